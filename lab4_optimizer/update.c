/* update.c -- provided: run the optimizer on all shards, and on a part of one. */
#include "common/device/cpu_tiles.h"
#include "common/device/device.h"
#include "common/ops/op_work.h"
#include "common/ops/ranges.h"
#include "lab4_optimizer/offload.h"

typedef struct tiled_args {
    adamw_args a;
    adamw_fn adamw;
} tiled_args;

/* The CPU runs `adamw` over tiles, so that threads share the work without changing a bit. */
static fsdp_status adamw_tile(const void *args, size_t tile)
{
    const tiled_args *t = args;
    const size_t begin = tile * TILE_ELEMS, end = min_size(t->a.elems, begin + TILE_ELEMS);
    decay_range r;
    for (int i = 0; range_next(&t->a.ranges, &i, begin, end, &r);) {
        const adamw_args part = adamw_of_range(&t->a, r);
        TRY(t->adamw(&part));
    }
    return FSDP_OK;
}

static fsdp_status adamw_kernel(void *args, int n_threads)
{
    const tiled_args *t = args;
    return tiles_run(n_threads, tiles_of(t->a.elems, TILE_ELEMS), adamw_tile, t);
}

static fsdp_status run_adamw(fsdp *f, const tiled_args *t)
{
    op_work w = adamw_work(&t->a);
    return stream_launch_work(f->compute, &(launch_config){.fn = adamw_kernel,
                                                           .args = t,
                                                           .args_bytes = sizeof *t,
                                                           .work = w.info,
                                                           .accesses = w.accesses,
                                                           .n_accesses = w.n_accesses});
}

void update_part_point(const fsdp_optimizer *o, update_part *part)
{
    device_set_scope(o->r->f->run.dev, o->r->f->units[part->u].name, NULL);
    part->arrays.param = o->r->f->units[part->u].shard + part->begin;
    part->arrays.grad = o->r->grads[part->u].shard_grad + part->begin;
    for (int k = 0; k < optimizer_of(o->r->f->run.optimizer)->n_states; k++)
        part->arrays.state[k] = o->units[part->u].state[k] + part->begin;
}

fsdp_status update_run(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw,
                       const update_part *whole)
{
    fsdp *f = o->r->f;
    const unit_optim *opt = &o->units[whole->u];
    const optimizer_rule *rule = optimizer_of(f->run.optimizer);
    const bool is_tiled = f->run.optimizer == OPTIMIZER_ADAMW && device_runs_c(f->run.dev);
    optim_part part = whole->arrays;
    part.ranges = (range_table){opt->updated, opt->n_updated, whole->begin};
    if (opt->n_updated == 0)
        return FSDP_OK;
    return is_tiled ? run_adamw(f, &(tiled_args){optim_adamw(scalars, &part), adamw})
                    : rule->update(f->run.ops, f->compute, scalars, &part);
}

fsdp_status update_shards(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw)
{
    for (int u = 0; u < o->n_units; u++) {
        update_part whole = {.u = u, .arrays.elems = o->r->f->units[u].layout.shard_elems};
        update_part_point(o, &whole);
        TRY(update_run(o, scalars, adamw, &whole));
    }
    return FSDP_OK;
}

fsdp_status optimizer_update(fsdp_optimizer *o, const step_scalars *sc, adamw_fn adamw)
{
    optim_scalars scalars;
    optim_scalars_make(&sc->optim, o->coef, &scalars);
    return o->update(o, &scalars, adamw);
}
