/* update.c -- provided, no task: the optimizer on every shard, and what the device is told. */
#include "common/device/cpu_tiles.h"
#include "common/device/device.h"
#include "common/ops/op_work.h"
#include "lab4_optimizer/optimizer.h"

typedef struct tiled_args {
    adamw_args a;
    adamw_fn adamw;
} tiled_args;

/* The CPU runs `adamw` over tiles, so that threads share the work without changing a bit. */
static fsdp_status adamw_tile(const void *args, size_t tile)
{
    const tiled_args *t = args;
    adamw_args part = t->a;
    size_t begin = tile * TILE_ELEMS;
    part.param += begin;
    part.m += begin;
    part.v += begin;
    part.grad += begin;
    part.elems = min_size(part.elems - begin, TILE_ELEMS);
    return t->adamw(&part);
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

static optim_part part_of(const fsdp_optimizer *o, int u, const decay_range *range)
{
    optim_part part = {.param = o->r->f->units[u].shard + range->begin,
                       .grad = o->r->grads[u].shard_grad + range->begin,
                       .elems = range->elems,
                       .decay = range->decay};
    for (int k = 0; k < optimizer_of(o->r->f->run.optimizer)->n_states; k++)
        part.state[k] = o->units[u].state[k] + range->begin;
    return part;
}

fsdp_status optimizer_update(fsdp_optimizer *o, const step_scalars *sc, adamw_fn adamw)
{
    fsdp *f = o->r->f;
    const optimizer_rule *rule = optimizer_of(f->run.optimizer);
    const bool is_tiled = f->run.optimizer == OPTIMIZER_ADAMW && device_runs_c(f->run.dev);
    optim_scalars scalars;
    optim_scalars_make(&sc->optim, o->coef, &scalars);
    for (int u = 0; u < f->n_units; u++)
        for (int i = 0; i < o->units[u].n_ranges; i++) {
            const optim_part part = part_of(o, u, &o->units[u].ranges[i]);
            TRY(is_tiled ? run_adamw(f, &(tiled_args){optim_adamw(&scalars, &part), adamw})
                         : rule->update(f->run.ops, f->compute, &scalars, &part));
        }
    return FSDP_OK;
}
