/* update.c -- provided, no task: AdamW or SGD on every shard, and what the device is told of it. */
#include "common/device/cpu_tiles.h"
#include "common/device/device.h"
#include "common/ops/op_work.h"
#include "lab3_backward/reducer_setup.h"
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
    if (!device_runs_c(f->run.dev))
        return f->run.ops->adamw(f->compute, &t->a);
    op_work w = adamw_work(&t->a);
    return stream_launch_work(f->compute, &(launch_config){.fn = adamw_kernel,
                                                           .args = t,
                                                           .args_bytes = sizeof *t,
                                                           .work = w.info,
                                                           .accesses = w.accesses,
                                                           .n_accesses = w.n_accesses});
}

static fsdp_status adamw_update(fsdp_optimizer *o, const step_scalars *sc, adamw_fn adamw)
{
    fsdp *f = o->r->f;
    adamw_args decays = {.grad_coef = o->coef}, plain;
    adamw_scalars(&decays, &sc->adamw);
    plain = decays;
    plain.decay = 0.0f;
    for (int u = 0; u < f->n_units; u++) {
        const unit_optim *opt = &o->units[u];
        for (int i = 0; i < opt->n_ranges; i++) {
            const decay_range *range = &opt->ranges[i];
            tiled_args t = {range->decay ? decays : plain, adamw};
            t.a.param = f->units[u].shard + range->begin;
            t.a.m = opt->m + range->begin;
            t.a.v = opt->v + range->begin;
            t.a.grad = o->r->grads[u].shard_grad + range->begin;
            t.a.elems = range->elems;
            TRY(run_adamw(f, &t));
        }
    }
    return FSDP_OK;
}

fsdp_status optimizer_update(fsdp_optimizer *o, const step_scalars *sc, adamw_fn adamw)
{
    if (o->r->f->run.optimizer == OPTIMIZER_SGD)
        return sgd_step(o->r, (float)sc->adamw.lr, o->coef);
    return adamw_update(o, sc, adamw);
}
