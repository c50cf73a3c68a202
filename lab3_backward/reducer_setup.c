/* reducer_setup.c -- provided, no task: the bookkeeping of lab 3, and SGD. */
#include <stdlib.h>
#include "lab3_backward/backward.h"

int sharding_shard_size(sharding_strategy sharding, int world_size, int fsdp_size)
{
    switch (sharding) {
    case SHARDING_FULL:
    case SHARDING_GRAD_OP:
        return world_size;
    case SHARDING_NONE:
        return 1;
    case SHARDING_HYBRID:
        return fsdp_size;
    }
    return world_size;
}

/* Add a buffer for elements begin ... begin + elems - 1 of the unit's flat array. Each rank keeps
 * the part that falls into its world slice. Worked example: 12 elements, W = 3, slices of 4; a tied
 * range 2 ... 8 is kept as 2, 4 and 1 elements. */
static fsdp_status add_buffer(reducer *r, const fsdp_unit *unit, unit_grad *g, int param,
                              size_t begin, size_t elems)
{
    FSDP_ASSERT(g->n_buffers < UNIT_MAX_BUFFERS);
    const mesh_shape *shape = &r->f->mesh.shape;
    const run_context *run = &r->f->run;
    grad_buffer *buffer = &g->buffers[g->n_buffers++];
    *buffer = (grad_buffer){.param = param, .begin = begin, .elems = elems};
    buffer->slices = calloc((size_t)shape->world_size, sizeof *buffer->slices);
    if (!buffer->slices)
        return fsdp_error(FSDP_ENOMEM, "", "reducer_create: no host memory");
    size_t slice_elems = unit->slices.shard_elems, end = begin + elems;
    for (int rank = 0; rank < shape->world_size; rank++) {
        size_t first = (size_t)mesh_slice(shape, rank) * slice_elems;
        size_t lo = first > begin ? first : begin;
        size_t hi = first + slice_elems < end ? first + slice_elems : end;
        buffer->slices[rank] = hi > lo ? (comm_slice){lo - begin, hi - lo} : (comm_slice){0, 0};
        if (rank == shape->world_rank)
            buffer->slice_begin = begin > first ? begin - first : 0;
    }
    grad_acc_init(&buffer->acc, run->mode, run->ops->sums, buffer->slices[shape->world_rank].elems,
                  MEM_GRADS_SHARD, param < 0 ? "gradient slice" : "gradient slice (second use)");
    buffer->acc.sum_dtype = run->reduce_dtype;
    return FSDP_OK;
}

/* The second use of a tied parameter (GPT-2: the embedding, used by the head) delivers its gradient
 * at another time than the first. In canonical mode, where the sum must have one fixed shape, the
 * two uses are summed apart and added last. So the second use gets a buffer of its own. */
static fsdp_status create_unit_grad(reducer *r, int u)
{
    const fsdp *f = r->f;
    const model *m = f->run.m;
    const fsdp_unit *unit = &f->units[u];
    unit_grad *g = &r->grads[u];
    TRY(event_create(f->run.dev, &g->computed));
    TRY(event_create(f->run.dev, &g->reduced));
    TRY(add_buffer(r, unit, g, -1, 0, unit->layout.padded_elems));
    if (f->run.mode != GRAD_ACC_CANONICAL)
        return FSDP_OK;
    for (int i = 0; i < unit->layout.n_slots; i++) {
        const flat_slot *slot = &unit->layout.slots[i];
        for (int p = 0; p < m->n_params; p++)
            if (m->params[p].tied_to == slot->param && !m->params[p].frozen)
                TRY(add_buffer(r, unit, g, p, slot->offset, slot->elems));
    }
    return FSDP_OK;
}

fsdp_status reducer_init(fsdp *f, reducer *r)
{
    *r = (reducer){.f = f, .batch_level = run_batch_level(&f->run)};
    fsdp_status status = FSDP_OK;
    r->grads = calloc((size_t)f->n_units, sizeof *r->grads);
    if (!r->grads)
        return fsdp_error(FSDP_ENOMEM, "", "reducer_create: no host memory");
    for (int u = 0; u < f->n_units && status == FSDP_OK; u++)
        status = create_unit_grad(r, u);
    if (status != FSDP_OK)
        reducer_free(r);
    return status;
}

fsdp_status reducer_create(fsdp *f, sharding_strategy sharding, reducer *r)
{
    const mesh_shape *shape = &f->mesh.shape;
    int expected = sharding_shard_size(sharding, shape->world_size, shape->shard_size);
    *r = (reducer){0};
    if (shape->shard_size != expected)
        return fsdp_error(FSDP_EINVAL, "open the mesh with the strategy's sharding_shard_size",
                          "reducer_create: got shard groups of %d ranks, expected %d",
                          shape->shard_size, expected);
    if (sharding == SHARDING_HYBRID && shape->shard_size == 1 && shape->world_size > 1)
        return fsdp_error(FSDP_EINVAL, "pass --sharding none: each rank holds a whole copy",
                          "reducer_create: got shard groups of 1 rank of %d under hybrid, expected "
                          "2 or more",
                          shape->world_size);
    TRY(strategy_fill(sharding, f));
    for (int u = 0; u < f->n_units; u++) {
        if (f->units[u].stays_after_backward)
            TRY(fsdp_make_resident(f, u));
        else if (!f->gather_group)
            return fsdp_error(FSDP_EINVAL, "use SHARDING_NONE to replicate everything",
                              "reducer_create: unit %d (%s) is resharded, and there is no group to "
                              "gather it from",
                              u, f->units[u].name);
    }
    return reducer_init(f, r);
}

void reducer_free(reducer *r)
{
    for (int u = 0; r->grads && u < r->f->n_units; u++) {
        unit_grad *g = &r->grads[u];
        if (g->reducing) /* after a failed step: the reduction may still read full_grad */
            stream_sync(r->f->reduce_stream);
        for (int k = 0; k < g->n_buffers; k++) {
            device_free(r->f->compute, g->buffers[k].full_grad);
            grad_acc_free(&g->buffers[k].acc, r->f->compute);
            free(g->buffers[k].slices);
        }
        device_free(r->f->compute, g->shard_grad);
        event_free(g->computed);
        event_free(g->reduced);
    }
    free(r->grads);
    *r = (reducer){0};
}

fsdp_status sgd_step(reducer *r, float lr, float weight_decay, const float *grad_coef)
{
    fsdp *f = r->f;
    for (int u = 0; u < f->n_units; u++) {
        if (f->units[u].frozen)
            continue;
        TRY(f->run.ops->sgd(f->compute, &(sgd_args){.param = f->units[u].shard,
                                                    .grad = r->grads[u].shard_grad,
                                                    .grad_coef = grad_coef,
                                                    .elems = f->units[u].layout.shard_elems,
                                                    .lr = lr,
                                                    .weight_decay = weight_decay}));
    }
    return FSDP_OK;
}
