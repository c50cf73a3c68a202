/* reduce.c -- tasks 3.2, 3.3, 3.4: reduce-scatter a unit's gradient, finish it, clear it. */
#include "lab3_backward/backward.h"

fsdp_status reduce_begin(fsdp_backward *b, int u)
{
    fsdp *f = b->f;
    unit_grad *g = &b->grads[u];
    if (g->reducing || !g->places[0].full_grad)
        return fsdp_error(FSDP_ESTATE,
                          "pair every reduce_begin with a backward_pre_hook and a reduce_wait",
                          "reduce_begin: unit %d (%s) %s", u, f->units[u].name,
                          g->reducing ? "is reducing already" : "has no gradient memory");
    /* SOLUTION BEGIN 3.2 */
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->comm_stream, g->computed));
    g->reducing = true;
    for (int k = 0; k < g->n_places; k++) {
        grad_place *place = &g->places[k];
        if (place->slice_elems)
            TRY(comm_reduce_scatterv(f->config.comm, f->comm_stream, f->units[u].name,
                                     place->full_grad, place->slice_elems, &place->acc, b->level));
        else
            TRY(comm_reduce_scatter(f->config.comm, f->comm_stream, f->units[u].name,
                                    place->full_grad, f->units[u].layout.shard_elems, &place->acc,
                                    b->level));
    }
    return event_record(g->reduced, f->comm_stream);
    /* SOLUTION END 3.2 */
}

fsdp_status reduce_wait(fsdp_backward *b, int u)
{
    fsdp *f = b->f;
    unit_grad *g = &b->grads[u];
    if (!g->reducing)
        return FSDP_OK;
    /* SOLUTION BEGIN 3.2 */
    TRY(stream_wait_event(f->compute, g->reduced));
    g->reducing = false;
    for (int k = 0; k < g->n_places; k++) {
        device_free(f->compute, g->places[k].full_grad);
        g->places[k].full_grad = NULL;
    }
    grad_views_bind(b, u); /* now NULL: nobody adds to freed memory */
    return FSDP_OK;
    /* SOLUTION END 3.2 */
}

fsdp_status grad_finish(fsdp_backward *b, int u, float scale)
{
    fsdp *f = b->f;
    const ops *o = f->config.ops;
    const flat_layout *l = &f->units[u].layout;
    unit_grad *g = &b->grads[u];
    /* SOLUTION BEGIN 3.3 */
    TRY(grad_acc_finish(&g->places[0].acc, f->compute, &g->shard_grad));
    for (int k = 1; k < g->n_places; k++) {
        grad_place *place = &g->places[k];
        float *mine = g->shard_grad + place->shard_begin, *second;
        TRY(grad_acc_finish(&place->acc, f->compute, &second));
        TRY(o->add(f->compute,
                   &(add_args){.out = mine, .a = mine, .b = second, .elems = place->acc.elems}));
        device_free(f->compute, second);
    }
    TRY(o->scale(f->compute,
                 &(scale_args){.x = g->shard_grad, .factor = scale, .elems = l->shard_elems}));
    size_t begin = (size_t)comm_rank(f->config.comm) * l->shard_elems;
    size_t real = l->used_elems > begin ? l->used_elems - begin : 0;
    if (real >= l->shard_elems)
        return FSDP_OK;
    return device_zero(f->compute, g->shard_grad + real, (l->shard_elems - real) * sizeof(float));
    /* SOLUTION END 3.3 */
}

fsdp_status step_begin(fsdp_backward *b)
{
    for (int u = 0; u < b->f->n_units; u++)
        if (b->grads[u].places[0].acc.n_pushed > 0)
            return fsdp_error(
                FSDP_ESTATE, "call step_finish at the end of every step",
                "step_begin: unit %d (%s) still holds gradients of an unfinished step", u,
                b->f->units[u].name);
    /* SOLUTION BEGIN 3.4 */
    for (int u = 0; u < b->f->n_units; u++) {
        device_free(b->f->compute, b->grads[u].shard_grad);
        b->grads[u].shard_grad = NULL;
    }
    return FSDP_OK;
    /* SOLUTION END 3.4 */
}

fsdp_status step_finish(fsdp_backward *b, float scale)
{
    /* SOLUTION BEGIN 3.4 */
    for (int u = 0; u < b->f->n_units; u++) {
        if (b->f->units[u].frozen)
            continue;
        TRY(grad_finish(b, u, scale));
        if (b->f->config.sharding == SHARDING_NONE)
            TRY(grad_all_gather(b, u));
    }
    return FSDP_OK;
    /* SOLUTION END 3.4 */
}
