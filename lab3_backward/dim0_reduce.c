/* dim0_reduce.c -- provided, no task: the reduction of a unit whose shards are rows. */
#include "lab3_backward/dim0_reduce.h"
#include <stdlib.h>
#include "lab2_forward/dim0_gather.h"

fsdp_status dim0_reduce_begin(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    const struct dim0_pieces *p = f->units[u].own.pieces;
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->reduce_stream, g->computed));
    g->reducing = true;
    TRY(comm_reduce_scatter_pieces(
        f->reduce_group, f->reduce_stream, f->units[u].name, g->buffer.full_grad,
        f->own.replicas_last ? &p->shards : &p->slices, &g->buffer.acc, r->batch_level));
    return event_record(g->reduced, f->reduce_stream);
}

fsdp_status dim0_grad_finish(reducer *r, int u, float scale)
{
    fsdp *f = r->f;
    const comm_pieces *p = &f->units[u].own.pieces->slices;
    const size_t n = p->shard_elems, first = (size_t)f->mesh.shape.world_rank * n;
    float *grad = r->grads[u].shard_grad;
    size_t next = 0;
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

fsdp_status dim0_second_use(const fsdp *f, int u, second_use *s)
{
    const mesh_shape *shape = &f->mesh.shape;
    const flat_layout *l = &f->units[u].slices;
    flat_piece *pieces = calloc((size_t)l->n_slots + 1, sizeof *pieces);
    fsdp_status status = pieces ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "no host memory");
    for (int rank = 0; status == FSDP_OK && rank < shape->world_size; rank++) {
        int n = 0;
        s->buffer.slices[rank] = (comm_slice){0};
        status = flat_intersect(l, mesh_slice(shape, rank), pieces, &n);
        for (int i = 0; status == FSDP_OK && i < n; i++) {
            if (l->slots[pieces[i].slot].offset != s->buffer.begin)
                continue;
            s->buffer.slices[rank] = (comm_slice){pieces[i].param_begin, pieces[i].elems};
            if (rank == shape->world_rank)
                s->slice_begin = pieces[i].shard_begin;
        }
    }
    s->buffer.acc.elems = s->buffer.slices[shape->world_rank].elems;
    free(pieces);
    return status;
}
