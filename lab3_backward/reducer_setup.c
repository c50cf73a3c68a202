/* reducer_setup.c -- provided, no task: the bookkeeping of lab 3, and SGD. */
#include <stdlib.h>
#include "common/device/device.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/reducer_setup.h"
#include "lab3_backward/second_use.h"

int sharding_shard_size(sharding_strategy sharding, int world_size, int fsdp_size)
{
    return sharding == SHARDING_NONE ? 1 : sharding == SHARDING_HYBRID ? fsdp_size : world_size;
}

static fsdp_status create_unit_grad(reducer *r, int u)
{
    const fsdp *f = r->f;
    const flat_layout *l = &f->units[u].slices;
    unit_grad *g = &r->grads[u];
    TRY(event_create(f->run.dev, &g->computed));
    TRY(event_create(f->run.dev, &g->reduced));
    const int slice = mesh_slice(&f->mesh.shape, f->mesh.shape.world_rank);
    g->slice = (comm_slice){(size_t)slice * l->shard_elems, l->shard_elems};
    TRY(grad_buffer_init(f, u, 0, l->shard_elems * (size_t)l->world_size, "gradient slice",
                         &g->buffer));
    g->buffer.elems = g->buffer.local.elems = l->padded_elems; /* dim0.h: fewer than the slices */
    return second_use_init(r, u);
}

fsdp_status reducer_init(fsdp *f, reducer *r)
{
    *r = (reducer){.f = f, .batch_level = run_reduce_level(&f->run)};
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
        fsdp_unit *unit = &f->units[u];
        unit->stays_after_forward =
            !unit->own.forward_only && (unit->stays_after_forward || f->own.keeps_for_step);
        if (unit->own.companion) /* companions come after all other units */
            f->units[unit->own.companion].stays_after_forward = unit->stays_after_forward;
        if (unit->stays_after_backward)
            TRY(fsdp_make_resident(f, u));
        else if (!f->gather_group)
            return fsdp_error(FSDP_EINVAL, "use SHARDING_NONE to replicate everything",
                              "reducer_create: unit %d (%s) is resharded, and there is no group to "
                              "gather it from",
                              u, unit->name);
    }
    return reducer_init(f, r);
}

void reducer_free(reducer *r)
{
    for (int u = 0; r->grads && u < r->f->n_units; u++) {
        unit_grad *g = &r->grads[u];
        if (g->reducing) /* after a failed step: the reduction may still read full_grad */
            stream_sync(r->f->reduce_stream);
        grad_buffer_free(r->f, &g->buffer);
        second_use_free(r, u);
        device_free(r->f->compute, g->shard_grad);
        event_free(g->computed);
        event_free(g->reduced);
    }
    free(r->grads);
    *r = (reducer){0};
}

fsdp_status sgd_step(reducer *r, float lr)
{
    fsdp *f = r->f;
    for (int u = 0; u < f->n_units; u++) {
        if (f->units[u].frozen)
            continue;
        TRY(f->run.ops->sgd(f->compute, &(sgd_args){.param = f->units[u].shard,
                                                    .grad = r->grads[u].shard_grad,
                                                    .elems = f->units[u].layout.shard_elems,
                                                    .lr = lr}));
    }
    return FSDP_OK;
}
