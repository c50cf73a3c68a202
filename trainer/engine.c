/* engine.c -- labs 1 to 4 put together as an engine for the training loop: provided, no task. */
#include <stdlib.h>
#include "lab4_optimizer/optimizer.h"

typedef struct fsdp_engine {
    fsdp f;
    reducer b;
    fsdp_optimizer o;
} fsdp_engine;

/* An evaluation since the last step has left units gathered. A step starts with none, so that it
 * moves the same bytes as any other, and never computes with an old copy. */
static fsdp_status reshard_all(fsdp *f)
{
    for (int u = 0; u < f->n_units && f->config.sharding != SHARDING_NONE; u++)
        TRY(reshard(f, u));
    return FSDP_OK;
}

static fsdp_status engine_begin_step(void *self)
{
    fsdp_engine *e = self;
    TRY(reshard_all(&e->f));
    return zero_grad(&e->b);
}

static fsdp_status engine_step(void *self, const step_scalars *sc, float *norm)
{
    fsdp_engine *e = self;
    TRY(optimizer_step(&e->o, sc, norm));
    return fsdp_refresh(&e->f);
}

static fsdp_status engine_save(void *self, const char *dir, int64_t next_step)
{
    return ckpt_save(&((fsdp_engine *)self)->o, dir, next_step);
}

static fsdp_status engine_load(void *self, const char *dir, int64_t *next_step)
{
    fsdp_engine *e = self;
    TRY(ckpt_load(&e->o, dir, next_step));
    return fsdp_refresh(&e->f);
}

/* Where the master of parameter p stands: gathered, or in the whole array of SHARDING_NONE. */
static const float *master_at(const fsdp *f, int p)
{
    const fsdp_unit *unit = &f->units[f->param_unit[p]];
    if (f->config.sharding != SHARDING_NONE)
        return f->views.params[p];
    int i = 0;
    while (unit->layout.slots[i].param != p)
        i++;
    return unit->shard + unit->layout.slots[i].offset;
}

/* Rank 0 hands the master of parameter p to the sink. */
static fsdp_status sink_param(fsdp *f, int p, engine_sink sink, void *ctx)
{
    const param_spec *spec = &f->config.m->params[p];
    size_t bytes = spec->elems * sizeof(float);
    float *host = malloc(bytes + 1);
    if (!host)
        return fsdp_error(FSDP_ENOMEM, "", "export: no host memory for %s", spec->name);
    fsdp_status status = device_download(f->compute, host, master_at(f, p), bytes);
    if (status == FSDP_OK)
        status = stream_sync(f->compute);
    if (status == FSDP_OK)
        status = sink(ctx, p, host, spec->elems);
    free(host);
    return status;
}

/* One unit is gathered at a time (the root stays, its parameters stand at both ends of the
 * order). */
static fsdp_status read_gathered(fsdp *f, engine_sink sink, void *ctx)
{
    fsdp_status mine = FSDP_OK;
    bool keep = f->config.sharding == SHARDING_NONE;
    for (int p = 0; p < f->config.m->n_params; p++) {
        int u = f->param_unit[p];
        if (f->config.m->params[p].tied_to != NOT_TIED)
            continue;
        TRY(unshard_begin(f, u));
        TRY(unshard_wait(f, u));
        if (comm_rank(f->config.comm) == 0 && mine == FSDP_OK)
            mine = sink_param(f, p, sink, ctx);
        bool unit_ends = p + 1 == f->config.m->n_params || f->param_unit[p + 1] != u;
        if (unit_ends && u != UNIT_ROOT && !keep)
            TRY(reshard(f, u));
    }
    if (!keep)
        TRY(reshard(f, UNIT_ROOT));
    return comm_agree(f->config.comm, mine);
}

/* The masters are what is read, whatever the model computes with: they are gathered as fp32. */
static fsdp_status engine_read_params(void *self, engine_sink sink, void *ctx)
{
    fsdp *f = &((fsdp_engine *)self)->f;
    const dtype param_dtype = f->config.param_dtype;
    TRY(reshard_all(f));
    f->config.param_dtype = f->config.sharding == SHARDING_NONE ? param_dtype : DTYPE_F32;
    fsdp_status status = read_gathered(f, sink, ctx);
    f->config.param_dtype = param_dtype;
    return status;
}

static void engine_free(void *self)
{
    fsdp_engine *e = self;
    if (!e)
        return;
    if (e->f.comm_stream)
        stream_sync(e->f.comm_stream);
    optimizer_free(&e->o);
    reducer_free(&e->b);
    fsdp_free(&e->f);
    free(e);
}

fsdp_status fsdp_engine_create(const fsdp_engine_config *config, engine *out)
{
    fsdp_engine *e = calloc(1, sizeof *e);
    if (!e)
        return fsdp_error(FSDP_ENOMEM, "", "fsdp engine: no host memory");
    fsdp_status status;
    GOTO_ON_FAIL(status, fsdp_create(&config->fsdp, &e->f), fail);
    GOTO_ON_FAIL(status, reducer_create(&e->f, config->mode, config->level, &e->b), fail);
    GOTO_ON_FAIL(status, optimizer_create(&e->b, config->optimizer, &e->o), fail);
    *out = (engine){
        .self = e,
        .name = "fsdp",
        .n_units = e->f.n_units,
        .layer_unit = e->f.layer_unit,
        .hooks = fsdp_backward_hooks(&e->b),
        .views = &e->f.views,
        .begin_step = engine_begin_step,
        .optimizer_step = engine_step,
        .read_params = engine_read_params,
        .save = engine_save,
        .load = engine_load,
        .free = engine_free,
    };
    return FSDP_OK;
fail:
    engine_free(e);
    return status;
}
