/* dim0_reduce.c -- provided, no task: REDUCE_ROWS, the way of a unit in the per-parameter layout
 * (lab 1's dim0.h). A rank's slice holds its rows of each parameter, or a part of them. */
#include "lab3_backward/reduce.h"
#include "common/device/device_calls.h"

/* As task 3.2a's reduce_flat. A rank sends (W-1)*slice_elems*dtype_bytes(reduce_dtype)
 * [FSDP2 RFC]. */
static fsdp_status dim0_reduce(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    const placement *p = &f->units[u].given.place;
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->reduce_stream, g->computed));
    g->reducing = true;
    TRY(comm_reduce_scatter_pieces(f->reduce_group, f->reduce_stream, f->units[u].name,
                                   g->buffer.full_grad,
                                   p->n_reduce == p->n_shards ? &p->shard_pieces : &p->slice_pieces,
                                   &g->buffer.acc, r->batch_level));
    return event_record(g->reduced, f->reduce_stream);
}

/* As task 3.3's finish_flat: scale, and zero the padding. */
static fsdp_status dim0_finish(reducer *r, int u, float scale)
{
    fsdp *f = r->f;
    const placement *place = &f->units[u].given.place;
    const comm_pieces *p = &place->slice_pieces;
    const size_t n = p->shard_elems, first = (size_t)place->rank * n;
    float *grad = r->grads[u].shard_grad;
    size_t next = 0; /* where the padding begins */
    TRY(f->run.ops->scale(f->compute, &(scale_args){.x = grad, .factor = scale, .elems = n}));
    for (size_t i = 0; i < p->n; i++) {
        if (p->list[i].at < first || p->list[i].at >= first + n)
            continue;
        const size_t begin = p->list[i].at - first;
        TRY(device_zero(f->compute, grad + next, (begin - next) * sizeof *grad));
        next = begin + p->list[i].elems;
    }
    return device_zero(f->compute, grad + next, (n - next) * sizeof *grad);
}

const reduce_way REDUCE_ROWS = {.begin = dim0_reduce,
                                .wait = reduce_flat_wait,
                                .finish = dim0_finish,
                                .all_gather = all_gather_slices};
