/* second_use.c -- provided, no task: the buffers of reductions, and a tied parameter's second
 * use. */
#include "lab3_backward/second_use.h"
#include "lab3_backward/no_sync.h"
#include <stdlib.h>
#include "lab3_backward/dim0_reduce.h"
#include "lab3_backward/grad_offload.h"

/* Worked example: 12 elements, W = 3, slices of 4; elements 2 ... 8 are kept as 2, 4 and 1. */
fsdp_status grad_buffer_init(const fsdp *f, int u, size_t begin, size_t elems, const char *label,
                             grad_buffer *out)
{
    const mesh_shape *shape = &f->mesh.shape;
    const run_context *run = &f->run;
    *out = (grad_buffer){.begin = begin, .elems = elems};
    const bool in_shards = f->own.replicas_last;
    const flat_layout *l = in_shards ? &f->units[u].layout : &f->units[u].slices;
    const size_t slice_elems = l->shard_elems, end = begin + elems;
    out->slices = calloc((size_t)l->world_size, sizeof *out->slices);
    if (!out->slices)
        return fsdp_error(FSDP_ENOMEM, "", "reducer_create: no host memory");
    for (int rank = 0; rank < l->world_size; rank++) {
        size_t first = (size_t)(in_shards ? rank : mesh_slice(shape, rank)) * slice_elems;
        size_t lo = first > begin ? first : begin;
        size_t hi = first + slice_elems < end ? first + slice_elems : end;
        out->slices[rank] = hi > lo ? (comm_slice){lo - begin, hi - lo} : (comm_slice){0, 0};
    }
    grad_acc_init(&out->acc, run->mode, run->ops->sums,
                  out->slices[comm_rank(f->reduce_group)].elems, MEM_GRADS_SHARD, label);
    grad_acc_init(&out->local, run->mode, run->ops->sums, elems, MEM_GRADS_FULL, "unit gradient");
    out->acc.sum_dtype = out->local.sum_dtype = run->reduce_dtype;
    return FSDP_OK;
}

void grad_buffer_free(const fsdp *f, grad_buffer *b)
{
    device_free(f->compute, b->full_grad);
    grad_acc_free(&b->acc, f->compute);
    grad_acc_free(&b->local, f->compute);
    free(b->slices);
    *b = (grad_buffer){0};
}

/* ---- the second use -------------------------------------------------------------------------- */

static fsdp_status init_at(reducer *r, int u, int param, const flat_slot *slot)
{
    const fsdp *f = r->f;
    second_use *s = calloc(1, sizeof *s);
    FSDP_ASSERT(r->grads[u].second == NULL); /* no unit here has two */
    r->grads[u].second = s;
    if (!s)
        return fsdp_error(FSDP_ENOMEM, "", "reducer_create: no host memory");
    s->param = param;
    size_t first = (size_t)mesh_slice(&f->mesh.shape, f->mesh.shape.world_rank) *
                   f->units[u].slices.shard_elems;
    s->slice_begin = slot->offset > first ? slot->offset - first : 0;
    TRY(grad_buffer_init(f, u, slot->offset, slot->elems, "gradient slice (second use)",
                         &s->buffer));
    if (f->units[u].layout.row_ranks > 0)
        dim0_second_use(f, u, s);
    return FSDP_OK;
}

fsdp_status second_use_init(reducer *r, int u)
{
    const model *m = r->f->run.m;
    const flat_layout *l = &r->f->units[u].layout;
    if (r->f->run.mode != GRAD_ACC_CANONICAL)
        return FSDP_OK;
    for (int i = 0; i < l->n_slots; i++)
        for (int p = m->params[l->slots[i].param].next_use; p > 0; p = m->params[p].next_use)
            if (!m->params[p].frozen)
                TRY(init_at(r, u, p, &l->slots[i]));
    return FSDP_OK;
}

void second_use_free(reducer *r, int u)
{
    second_use *s = r->grads[u].second;
    if (s)
        grad_buffer_free(r->f, &s->buffer);
    free(s);
    r->grads[u].second = NULL;
}

fsdp_status second_use_reduce(reducer *r, int u)
{
    const fsdp *f = r->f;
    second_use *s = r->grads[u].second;
    if (!s)
        return grads_park(r, u, f->reduce_stream);
    TRY(comm_reduce_scatterv(f->reduce_group, f->reduce_stream, f->units[u].name,
                             s->buffer.full_grad, s->buffer.slices, &s->buffer.acc,
                             r->batch_level));
    TRY(event_record(r->grads[u].reduced, f->reduce_stream));
    return grads_park(r, u, f->reduce_stream);
}

fsdp_status grad_sum(reducer *r, int u)
{
    const fsdp *f = r->f;
    unit_grad *g = &r->grads[u];
    second_use *s = g->second;
    TRY(grads_fetch(r, u, f->compute, true));
    TRY(grad_acc_finish(&g->buffer.acc, f->compute, &g->shard_grad));
    if (f->own.replicas_last)
        return replicas_reduce(r, u);
    if (!s)
        return FSDP_OK;
    float *mine = g->shard_grad + s->slice_begin, *second;
    TRY(grad_acc_finish(&s->buffer.acc, f->compute, &second));
    TRY(f->run.ops->add(
        f->compute,
        &(add_args){.out = mine, .a = mine, .b = second, .elems = s->buffer.acc.elems}));
    device_free(f->compute, second);
    return FSDP_OK;
}
