/* create.c -- the bookkeeping of lab 3: provided, no task. */
#include <stdlib.h>
#include "lab3_backward/backward.h"

/* The second use of a tied parameter (GPT-2: the head's use of the embedding) delivers its gradient
 * at another time than the first. Where the sum must have one fixed shape, the two uses are summed
 * apart and added at the very end; this sets up the second place: the tied range of the flat array,
 * of which each rank keeps what falls into its shard. */
static fsdp_status add_tied_buffer(reducer *b, const fsdp_unit *unit, unit_grad *g, int param,
                                   const flat_slot *slot)
{
    FSDP_ASSERT(g->n_buffers < UNIT_MAX_BUFFERS);
    grad_buffer *buffer = &g->buffers[g->n_buffers++];
    *buffer = (grad_buffer){.param = param, .begin = slot->offset, .elems = slot->elems};
    int world_size = unit->layout.world_size, rank = comm_rank(b->f->config.comm);
    buffer->slice_elems = calloc((size_t)world_size, sizeof *buffer->slice_elems);
    if (!buffer->slice_elems)
        return fsdp_error(FSDP_ENOMEM, "", "reducer_create: no host memory");
    size_t shard = unit->layout.shard_elems, end = buffer->begin + buffer->elems;
    for (int r = 0; r < world_size; r++) {
        size_t lo = (size_t)r * shard, hi = lo + shard;
        lo = lo > buffer->begin ? lo : buffer->begin;
        hi = hi < end ? hi : end;
        buffer->slice_elems[r] = hi > lo ? hi - lo : 0;
    }
    size_t first = (size_t)rank * shard;
    buffer->shard_begin = buffer->begin > first ? buffer->begin - first : 0;
    grad_acc_init(&buffer->acc, b->mode, b->f->config.ops, buffer->slice_elems[rank],
                  MEM_GRADS_SHARD, "gradient shard (second use)");
    buffer->acc.sum_dtype = b->f->config.reduce_dtype;
    return FSDP_OK;
}

static fsdp_status create_unit_grad(reducer *b, int u)
{
    const fsdp *f = b->f;
    const fsdp_unit *unit = &f->units[u];
    unit_grad *g = &b->grads[u];
    TRY(event_create(f->config.dev, &g->computed));
    TRY(event_create(f->config.dev, &g->reduced));
    g->n_buffers = 1;
    g->buffers[0] = (grad_buffer){.param = -1, .elems = unit->layout.padded_elems};
    grad_acc_init(&g->buffers[0].acc, b->mode, f->config.ops, unit->layout.shard_elems,
                  MEM_GRADS_SHARD, "gradient shard");
    g->buffers[0].acc.sum_dtype = f->config.reduce_dtype;
    if (b->mode != GRAD_ACC_CANONICAL)
        return FSDP_OK;
    const model *m = f->config.m;
    for (int i = 0; i < unit->layout.n_slots; i++)
        for (int p = 0; p < m->n_params; p++)
            if (m->params[p].tied_to == unit->layout.slots[i].param && !m->params[p].frozen)
                TRY(add_tied_buffer(b, unit, g, p, &unit->layout.slots[i]));
    return FSDP_OK;
}

fsdp_status reducer_create(fsdp *f, grad_acc_mode mode, int level, reducer *b)
{
    *b = (reducer){.f = f, .mode = mode, .level = level};
    b->grads = calloc((size_t)f->n_units, sizeof *b->grads);
    if (!b->grads)
        return fsdp_error(FSDP_ENOMEM, "", "reducer_create: no host memory");
    for (int u = 0; u < f->n_units; u++) {
        fsdp_status status = create_unit_grad(b, u);
        if (status != FSDP_OK) {
            reducer_free(b);
            return status;
        }
    }
    return FSDP_OK;
}

void reducer_free(reducer *b)
{
    for (int u = 0; b->grads && u < b->f->n_units; u++) {
        unit_grad *g = &b->grads[u];
        if (g->reducing) /* left by a failed step: the reduction may still read full_grad */
            stream_sync(b->f->comm_stream);
        for (int k = 0; k < g->n_buffers; k++) {
            device_free(b->f->compute, g->buffers[k].full_grad);
            grad_acc_free(&g->buffers[k].acc, b->f->compute);
            free(g->buffers[k].slice_elems);
        }
        device_free(b->f->compute, g->shard_grad);
        event_free(g->computed);
        event_free(g->reduced);
    }
    free(b->grads);
    *b = (reducer){0};
}

void grad_views_bind(reducer *b, int u)
{
    const fsdp_unit *unit = &b->f->units[u];
    const model *m = b->f->config.m;
    unit_grad *g = &b->grads[u];
    float **views = b->f->views.grads;
    for (int i = 0; i < unit->layout.n_slots; i++) {
        const flat_slot *slot = &unit->layout.slots[i];
        float *grad = g->buffers[0].full_grad ? g->buffers[0].full_grad + slot->offset : NULL;
        views[slot->param] = m->params[slot->param].frozen ? NULL : grad;
        for (int p = 0; p < m->n_params; p++)
            if (m->params[p].tied_to == slot->param)
                views[p] = m->params[p].frozen ? NULL : grad;
    }
    for (int k = 1; k < g->n_buffers; k++)
        views[g->buffers[k].param] = g->buffers[k].full_grad;
}

/* Zero what no layer writes: between the slots, behind them, and the slots of frozen parameters. */
static fsdp_status zero_gaps(reducer *b, int u)
{
    const flat_layout *l = &b->f->units[u].layout;
    float *full = b->grads[u].buffers[0].full_grad;
    size_t next = 0;
    for (int i = 0; i < l->n_slots; i++) {
        if (b->f->config.m->params[l->slots[i].param].frozen)
            continue;
        TRY(device_zero(b->f->compute, full + next, (l->slots[i].offset - next) * sizeof *full));
        next = l->slots[i].offset + l->slots[i].elems;
    }
    return device_zero(b->f->compute, full + next, (l->padded_elems - next) * sizeof *full);
}

fsdp_status full_grad_alloc(reducer *b, int u)
{
    stream *s = b->f->compute;
    unit_grad *g = &b->grads[u];
    for (int k = 0; k < g->n_buffers; k++) {
        grad_buffer *buffer = &g->buffers[k];
        FSDP_ASSERT(buffer->full_grad == NULL);
        TRY(comm_alloc_f32(b->f->config.comm, s, MEM_GRADS_FULL, buffer->elems, "unit gradient",
                           &buffer->full_grad));
        if (!g->visited)
            TRY(device_zero(s, buffer->full_grad, buffer->elems * sizeof(float)));
    }
    grad_views_bind(b, u);
    return g->visited ? zero_gaps(b, u) : FSDP_OK;
}
