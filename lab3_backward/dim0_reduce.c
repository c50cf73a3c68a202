/* dim0_reduce.c -- provided, no task: the reduction of a unit whose shards are rows. */
#include "lab3_backward/dim0_reduce.h"
#include <string.h>

fsdp_status dim0_reduce_begin(reducer *r, int u)
{
    fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    const unit_own *own = &f->units[u].own;
    TRY(event_record(g->computed, f->compute));
    TRY(stream_wait_event(f->reduce_stream, g->computed));
    g->reducing = true;
    TRY(comm_reduce_scatter_pieces(f->reduce_group, f->reduce_stream, f->units[u].name,
                                   g->buffer.full_grad,
                                   f->own.replicas_last ? &own->shard_pieces : &own->slice_pieces,
                                   &g->buffer.acc, r->batch_level));
    return event_record(g->reduced, f->reduce_stream);
}

fsdp_status dim0_grad_finish(reducer *r, int u, float scale)
{
    fsdp *f = r->f;
    const comm_pieces *p = &f->units[u].own.slice_pieces;
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

void dim0_second_use(const fsdp *f, int u, second_use *s)
{
    const mesh_shape *shape = &f->mesh.shape;
    const comm_pieces *p = &f->units[u].own.slice_pieces;
    memset(s->buffer.slices, 0, (size_t)shape->world_size * sizeof *s->buffer.slices);
    for (size_t i = 0; i < p->n; i++) {
        const comm_piece *x = &p->list[i];
        const size_t rank = x->at / p->shard_elems, begin = x->begin - s->buffer.begin;
        if (x->begin < s->buffer.begin || begin >= s->buffer.elems)
            continue;
        s->buffer.slices[rank] = (comm_slice){begin, x->elems};
        if (rank == (size_t)shape->world_rank)
            s->slice_begin = x->at % p->shard_elems;
    }
    s->buffer.acc.elems = s->buffer.slices[shape->world_rank].elems;
}
