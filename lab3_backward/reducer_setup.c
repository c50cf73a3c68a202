/* reducer_setup.c -- provided, no task: the bookkeeping of lab 3, its table of hooks, and SGD. */
#include <stdlib.h>
#include "common/device/device.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab2_forward/reshard_to.h"
#include "lab3_backward/reduce.h"
#include "lab3_backward/reducer_setup.h"
#include "lab3_backward/second_use.h"

int sharding_shard_size(sharding_strategy sharding, int world_size, int fsdp_size)
{
    return sharding == SHARDING_NONE ? 1 : sharding == SHARDING_HYBRID ? fsdp_size : world_size;
}

const reduce_way REDUCE_NONE = {0};
const reduce_way REDUCE_FLAT = {.begin = reduce_flat,
                                .wait = reduce_flat_wait,
                                .finish = finish_flat,
                                .all_gather = all_gather_slices};

static fsdp_status create_unit_grad(reducer *r, int u)
{
    const fsdp *f = r->f;
    const placement *p = &f->units[u].given.place;
    const flat_layout cut = flat_layout_cut(&p->slices, p->n_reduce);
    const size_t slice_elems = p->slices.shard_elems;
    unit_grad *g = &r->grads[u];
    g->way = f->units[u].given.frozen  ? &REDUCE_NONE
             : p->slices.row_ranks > 0 ? &REDUCE_ROWS
                                       : &REDUCE_FLAT;
    g->slice = (comm_slice){(size_t)placement_slice(p, p->slices.world_size, p->rank) * slice_elems,
                            slice_elems};
    TRY(event_create(f->run.dev, &g->computed));
    TRY(event_create(f->run.dev, &g->reduced));
    TRY(grad_buffer_init(f, u, 0, p->slices.padded_elems, &g->buffer));
    for (int rank = 0; rank < p->n_reduce; rank++)
        g->buffer.slices[rank] = (comm_slice){
            (size_t)placement_slice(p, p->n_reduce, rank) * cut.shard_elems, cut.shard_elems};
    grad_buffer_ready(f, u, "gradient slice", &g->buffer);
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
    const int n_ranks = mesh_data_size(shape), size = shape->size[AXIS_SHARD];
    const int expected = sharding_shard_size(sharding, n_ranks, size);
    *r = (reducer){0};
    if (size != expected)
        return fsdp_error(FSDP_EINVAL, "open the mesh with the strategy's sharding_shard_size",
                          "reducer_create: got shard groups of %d ranks, expected %d", size,
                          expected);
    if (sharding == SHARDING_HYBRID && size == 1 && n_ranks > 1)
        return fsdp_error(FSDP_EINVAL, "pass --sharding none: each rank holds a whole copy",
                          "reducer_create: got shard groups of 1 rank of %d under hybrid, expected "
                          "2 or more",
                          n_ranks);
    TRY(strategy_fill(sharding, f));
    for (int u = 0; u < f->n_units; u++) {
        fsdp_unit *unit = &f->units[u];
        unit->stays_after_forward =
            !unit->given.forward_only && (unit->stays_after_forward || f->given.keeps_for_step);
        for (int i = 0; i < unit->given.n_parts; i++) /* companions come after all other units */
            f->units[unit->given.parts[i]].stays_after_forward = unit->stays_after_forward;
        if (unit->stays_after_backward)
            TRY(fsdp_make_resident(f, u));
        else if (!unit->given.place.gather_group)
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
        if (!r->grads[u].shard_grad) /* frozen */
            continue;
        TRY(f->run.ops->sgd(f->compute, &(sgd_args){.param = f->units[u].shard,
                                                    .grad = r->grads[u].shard_grad,
                                                    .elems = f->units[u].layout.shard_elems,
                                                    .lr = lr}));
    }
    return FSDP_OK;
}

/* ---- hooks ----------------------------------------------------------------------------------- */

fsdp_status reducer_begin_micro(void *self, int a, int n_micro, bool training)
{
    reducer *r = self;
    const bool later = training && a + 1 < n_micro;
    r->f->given.defers = later && r->f->run.no_sync;
    r->f->given.keeps_now = later && r->f->given.keeps_for_step;
    r->f->given.near_keeps = training;
    r->f->given.in_backward = false;
    if (a == 0)
        near_drop(r->f);
    return FSDP_OK;
}

fsdp_status reducer_leave_forward(reducer *r, int u)
{
    const unit_given *given = &r->f->units[u].given;
    for (int i = 0; i < given->n_parts; i++)
        TRY(near_keep(r->f, given->parts[i]));
    for (int i = 0; i < given->n_parts - 1; i++)
        TRY(forward_post_hook(r->f, given->parts[i]));
    return FSDP_OK;
}

static fsdp_status pre_forward(void *self, int u)
{
    return forward_pre_hook(((reducer *)self)->f, u);
}

static fsdp_status post_forward(void *self, int u)
{
    TRY(reducer_leave_forward(self, u));
    return forward_post_hook(((reducer *)self)->f, u);
}

static fsdp_status pre_backward(void *self, int u)
{
    ((reducer *)self)->f->given.in_backward = true;
    return backward_pre_hook(self, u);
}

unit_hooks fsdp_backward_hooks(reducer *r)
{
    return (unit_hooks){.self = r,
                        .begin_micro = reducer_begin_micro,
                        .pre_forward = pre_forward,
                        .post_forward = post_forward,
                        .pre_backward = pre_backward,
                        .post_backward = backward_post_hook,
                        .end_backward = backward_end_hook};
}
