/* fsdp_engine.c -- see fsdp_engine.h. The engine's functions call the functions of labs 1 to 5. */
#include "trainer/fsdp_engine.h"
#include "common/comm/comm.h"
#include "common/model/tensor_parallel.h"
#include "lab3_backward/reducer_setup.h"
#include "lab4_optimizer/offload.h"
#include <stdlib.h>

typedef struct fsdp_engine {
    fsdp f;
    reducer r;
    fsdp_optimizer o;
    prefetch p; /* zeroed without overlap */
} fsdp_engine;

/* An evaluation after the last step leaves units gathered. Reshard them, so that every step moves
 * the same bytes and no step computes with an old copy. */
static fsdp_status engine_begin_step(void *self)
{
    fsdp_engine *e = self;
    TRY(reshard_all(&e->f));
    return zero_grad(&e->r);
}

static fsdp_status engine_step(void *self, const step_scalars *sc, float *norm)
{
    fsdp_engine *e = self;
    if (e->f.run.no_norm) {
        TRY(grads_finish(&e->r, sc->grad_scale));
        TRY(sgd_step(&e->r, (float)sc->optim.lr));
    } else {
        TRY(shard_is_on_host(&e->f) ? offload_step(&e->o, sc, adamw_shard, norm)
                                    : optimizer_step(&e->o, sc, norm));
    }
    if (e->f.given.offload && !e->f.given.offload->config.keeps_grads)
        TRY(zero_grad(&e->r));
    return fsdp_refresh(&e->f);
}

static const char *engine_unit_name(void *self, int unit)
{
    return ((fsdp_engine *)self)->f.units[unit].name;
}

static fsdp_status engine_save(void *self, ckpt_store *to, int64_t next_step)
{
    return ckpt_save(&((fsdp_engine *)self)->o, to, next_step);
}

static fsdp_status engine_saved_elems(void *self, size_t *out)
{
    return ckpt_saved_elems(&((fsdp_engine *)self)->o, out);
}

static fsdp_status engine_load(void *self, const ckpt_source *from)
{
    fsdp_engine *e = self;
    TRY(ckpt_load(&e->o, from));
    return comm_agree(e->f.run.world, fsdp_refresh(&e->f));
}

/* ---- full arrays, for export ----------------------------------------------------------------- */

/* *whole = the elements of parameter p, which this rank has in its unit's array, together with
 * those of the other tp ranks. *owned is device memory that the caller frees, or NULL. */
static fsdp_status gather_blocks(fsdp *f, int p, const float *array, const float **whole,
                                 float **owned)
{
    const param_spec *spec = &f->run.m->params[p];
    const flat_slot *slot = f->units[f->param_unit[p]].layout.slots;
    while (slot->param != p)
        slot++;
    *whole = array + slot->offset;
    *owned = NULL;
    if (!f->run.tp || spec->cut.blocks == 0)
        return FSDP_OK;
    const size_t n = (size_t)comm_size(f->run.tp), at = (size_t)comm_rank(f->run.tp);
    const size_t each = param_share_elems(spec, comm_size(f->run.tp));
    TRY(comm_alloc_f32(f->run.tp, f->compute, MEM_COMM, n * each, "whole parameter", owned));
    *whole = *owned;
    TRY(device_copy(f->compute, *owned + at * each, array + slot->offset,
                    spec->elems * sizeof **owned));
    TRY(comm_all_gather(f->run.tp, f->compute, spec->name, DTYPE_F32, *owned + at * each, *owned,
                        each));
    const size_t apart = n > spec->cut.blocks ? n / spec->cut.blocks : 1; /* ranks of one block */
    for (size_t i = 1; i < spec->cut.blocks && apart > 1; i++)
        TRY(device_copy(f->compute, *owned + i * each, *owned + i * apart * each,
                        each * sizeof **owned));
    return FSDP_OK;
}

/* Pass the whole of parameter p to the sink, on rank 0. */
static fsdp_status sink_param(fsdp *f, int p, const float *whole, engine_sink sink, void *ctx)
{
    const param_spec *spec = &f->run.m->params[p];
    size_t bytes = spec->cut.elems * sizeof(float);
    float *host = malloc(bytes + 1);
    if (!host)
        return fsdp_error(FSDP_ENOMEM, "", "export: no host memory for %s", spec->name);
    fsdp_status status = device_download(f->compute, host, whole, bytes);
    IF_OK(status, stream_sync(f->compute));
    IF_OK(status, sink(ctx, host, spec->cut.elems));
    free(host);
    return status;
}

/* The parameters of a unit are adjacent in the global order. Only the root unit has parameters at
 * both ends, so it is gathered twice. Only one unit and its companion are gathered at a time. */
static fsdp_status engine_read_array(void *self, int k, engine_sink sink, void *ctx)
{
    fsdp_engine *e = self;
    fsdp *f = &e->f;
    fsdp_status mine = FSDP_OK, status = reshard_all(f);
    float *full[2] = {NULL};
    int gathered[2] = {-1, -1}; /* numbers of a trained and a frozen unit */
    for (int p = 0; p < f->run.m->n_params && status == FSDP_OK; p++) {
        const int u = f->param_unit[p], i = f->units[u].given.frozen;
        const bool shared = f->units[u].given.place.n_shards > 1; /* if not, the shard is whole */
        float *shard = ckpt_unit_array(&e->o, u, k);
        if (f->run.m->params[p].tied_to != NOT_TIED || !ckpt_has(f->run.m, p, k))
            continue;
        if (shared && u != gathered[i]) {
            device_free(f->compute, full[i]);
            full[i] = NULL;
            status = unit_gather_array(f, u, shard, &full[i]);
            gathered[i] = u;
        }
        const float *whole = NULL;
        float *owned = NULL;
        IF_OK(status, gather_blocks(f, p, shared ? full[i] : shard, &whole, &owned));
        if (status == FSDP_OK && sink && comm_rank(f->run.world) == 0 && mine == FSDP_OK)
            mine = sink_param(f, p, whole, sink, ctx);
        device_free(f->compute, owned);
    }
    device_free(f->compute, full[0]);
    device_free(f->compute, full[1]);
    return status != FSDP_OK ? status : comm_agree(f->run.world, mine);
}

/* ---- the reduced gradients, for digests ------------------------------------------------------ */

/* Replicas have the same gradients, but each element must be in one piece only: replica 0's, of the
 * rank that counts it. */
static fsdp_status engine_find_grad(void *self, int p, engine_piece *out)
{
    const fsdp_engine *e = self;
    const int u = e->f.param_unit[p];
    const flat_layout *l = &e->f.units[u].layout;
    const placement *place = &e->f.units[u].given.place;
    flat_piece *pieces;
    int n;
    *out = (engine_piece){0};
    const param_cut *cut = &e->f.run.m->params[p].cut;
    if (place->rank >= place->n_shards || !place->counts || cut->elsewhere)
        return FSDP_OK;
    TRY(unit_shard_pieces(&e->f.units[u], place->rank, &pieces, &n));
    for (int i = 0; i < n; i++) /* a slot has at most one piece in a shard */
        if (l->slots[pieces[i].slot].param == p)
            *out = (engine_piece){cut->begin + pieces[i].param_begin, pieces[i].elems,
                                  e->r.grads[u].shard_grad + pieces[i].shard_begin};
    free(pieces);
    return FSDP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void engine_free(void *self)
{
    fsdp_engine *e = self;
    if (!e)
        return;
    prefetch_free(&e->p); /* waits for its streams */
    if (e->f.comm_stream)
        stream_sync(e->f.comm_stream);
    optimizer_free(&e->o);
    reducer_free(&e->r);
    fsdp_free(&e->f);
    free(e);
}

/* Create only what the run needs. An evaluation needs lab 2, and lab 3 only if the strategy decides
 * which units stay gathered. With no_norm, plain SGD needs no code of lab 4. */
static fsdp_status create_parts(const fsdp_config *config, sharding_strategy sharding,
                                fsdp_engine *e, unit_hooks *hooks)
{
    const run_context *run = &config->run;
    TRY(fsdp_create(config, &e->f));
    *hooks = fsdp_forward_hooks(&e->f);
    if (!run->forward_only || sharding != SHARDING_FULL)
        TRY(reducer_create(&e->f, sharding, &e->r));
    if (!run->forward_only)
        *hooks = fsdp_backward_hooks(&e->r);
    e->r.f = &e->f; /* even without a reducer, to read and write parameters */
    e->o.r = &e->r;
    return run->forward_only || run->no_norm ? FSDP_OK : optimizer_create(&e->r, &e->o);
}

fsdp_status fsdp_engine_create(const fsdp_config *config, sharding_strategy sharding,
                               const prefetch_config *overlap, engine *out)
{
    fsdp_engine *e = calloc(1, sizeof *e);
    if (!e)
        return fsdp_error(FSDP_ENOMEM, "", "fsdp engine: no host memory");
    const bool overlaps = overlap->mode != PREFETCH_NONE;
    unit_hooks hooks;
    fsdp_status status = create_parts(config, sharding, e, &hooks);
    if (overlaps) /* agree first: prefetch_create is collective */
        status = comm_agree(config->run.world, status);
    if (overlaps && status == FSDP_OK)
        status = prefetch_create(overlap, &e->r, &e->p, &hooks);
    if (status != FSDP_OK) {
        engine_free(e);
        return status;
    }
    *out = (engine){
        .self = e,
        .n_units = e->f.n_units,
        .layer_unit = e->f.layer_unit,
        .hooks = hooks,
        .views = &e->f.views,
        .unit_name = engine_unit_name,
        .begin_step = engine_begin_step,
        .optimizer_step = engine_step,
        .find_grad = engine_find_grad,
        .read_array = engine_read_array,
        .save = engine_save,
        .saved_elems = engine_saved_elems,
        .load = engine_load,
        .free = engine_free,
    };
    return FSDP_OK;
}
