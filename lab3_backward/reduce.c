/* reduce.c -- provided, no task: the states of a unit's reduction. Special cases are handled here;
 * the tasks of backward.c, called through a unit's `way`, do the rest. */
#include "lab3_backward/reduce.h"
#include "common/comm/comm_sums.h"
#include "lab2_forward/unshard.h"
#include "lab3_backward/grad_offload.h"
#include "lab3_backward/no_sync.h"

/* ---- the reduction of one unit --------------------------------------------------------------- */

/* Reduce-scatter the buffers of second uses, too. */
static fsdp_status reduce_others(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    for (grad_buffer *other = g->buffer.next; other; other = other->next) {
        TRY(comm_reduce_scatterv(f->reduce_group, f->reduce_stream, f->units[u].name,
                                 other->full_grad, other->slices, &other->acc, r->batch_level));
        TRY(event_record(g->reduced, f->reduce_stream));
    }
    return FSDP_OK;
}

fsdp_status reduce_begin(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    if (!g->way->begin)
        return FSDP_OK;
    if (f->given.defers)
        return no_sync_keep(r, u);
    if (g->reducing || !g->buffer.full_grad)
        return fsdp_error(FSDP_ESTATE,
                          "pair every reduce_begin with a backward_pre_hook and a reduce_wait",
                          "reduce_begin: unit %d (%s) %s", u, f->units[u].name,
                          g->reducing ? "is reducing already" : "has no gradient memory");
    unit_use_groups(f, u);
    r->batch_level = f->units[u].given.place.batch_level;
    TRY(no_sync_join(r, u));
    TRY(grads_fetch(r, u, f->reduce_stream, false));
    TRY(g->way->begin(r, u));
    TRY(reduce_others(r, u));
    return grads_park(r, u, f->reduce_stream);
}

fsdp_status reduce_wait(reducer *r, int u)
{
    return r->grads[u].reducing ? r->grads[u].way->wait(r, u) : FSDP_OK;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

fsdp_status grad_sum(reducer *r, int u)
{
    const fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    TRY(grads_fetch(r, u, f->compute, true));
    TRY(grad_acc_finish(&g->buffer.acc, f->compute, &g->shard_grad));
    if (f->units[u].given.place.n_reduce < f->units[u].given.place.slices.world_size)
        return replicas_reduce(r, u);
    for (grad_buffer *b = g->buffer.next; b; b = b->next) {
        float *mine = g->shard_grad + b->slice_begin, *second;
        TRY(grad_acc_finish(&b->acc, f->compute, &second));
        TRY(f->run.ops->add(
            f->compute, &(add_args){.out = mine, .a = mine, .b = second, .elems = b->acc.elems}));
        device_free(f->compute, second);
    }
    return FSDP_OK;
}

fsdp_status grad_finish(reducer *r, int u, float scale)
{
    if (!r->grads[u].way->finish)
        return FSDP_OK;
    TRY(grad_sum(r, u));
    return r->grads[u].way->finish(r, u, scale);
}

fsdp_status grad_all_gather(reducer *r, int u)
{
    const placement *p = &r->f->units[u].given.place;
    if (p->n_shards == p->slices.world_size || !r->grads[u].way->all_gather)
        return FSDP_OK;
    unit_use_groups(r->f, u);
    return r->grads[u].way->all_gather(r, u);
}
