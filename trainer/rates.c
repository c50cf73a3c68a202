/* predict.c -- see predict.h. */
#include "trainer/predict.h"
#include <stdlib.h>
#include <string.h>
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/ops/profile_roof.h"
#include "lab5_prefetch/bucket.h"

/* ---- calibration ----------------------------------------------------------------------------- */

enum { SMALL_BYTES = 1 << 10, LARGE_BYTES = 4 << 20, GATHERS = 8 };

/* The shortest of GATHERS all-gathers in which every rank sends `bytes` in all. */
static fsdp_status time_gather(const run_context *run, stream *s, char *buf, size_t bytes,
                               double *seconds)
{
    size_t w = (size_t)comm_size(run->world), slice = bytes / (w - 1);
    *seconds = 1e9;
    for (int i = 0; i < GATHERS; i++) {
        TRY(comm_barrier(run->world, s, "calibrate"));
        TRY(stream_sync(s));
        double begun_s = clock_now_s();
        TRY(comm_all_gather(run->world, s, "calibrate", DTYPE_U8,
                            buf + (size_t)comm_rank(run->world) * slice, buf, slice));
        TRY(stream_sync(s));
        double now_s = clock_now_s() - begun_s;
        *seconds = now_s < *seconds ? now_s : *seconds;
    }
    return FSDP_OK;
}

/* seconds = latency + bytes / rate through two points. */
static fsdp_status time_link(const run_context *run, stream *s, virtual_link *out)
{
    size_t w = (size_t)comm_size(run->world);
    double small_s, large_s;
    void *buf;
    *out = (virtual_link){0};
    if (w == 1)
        return FSDP_OK;
    fsdp_status status =
        comm_alloc(run->world, s, MEM_COMM, LARGE_BYTES / (w - 1) * w, "calibration", &buf);
    TRY(comm_agree(run->world, status));
    status = time_gather(run, s, buf, SMALL_BYTES, &small_s);
    if (status == FSDP_OK)
        status = time_gather(run, s, buf, LARGE_BYTES, &large_s);
    device_free(s, buf);
    TRY(status);
    double slope = (large_s - small_s) / (LARGE_BYTES - SMALL_BYTES);
    out->bytes_per_s = slope > 0 ? 1 / slope : 0;
    out->latency_s = small_s;
    return FSDP_OK;
}

fsdp_status predict_calibrate(const run_context *run, predict_rates *out)
{
    stream *s = device_compute_stream(run->dev);
    profile_roof roof;
    predict_rates mine = {0};
    void *buf;
    TRY(comm_agree(run->world,
                   ops_profile_roof(run->ops, s, run->param_dtype == DTYPE_BF16, &roof)));
    mine.flops_per_s = roof.bf16_flops_per_s > 0 ? roof.bf16_flops_per_s : roof.flops_per_s;
    mine.bytes_per_s = roof.bytes_per_s;
    TRY(time_link(run, s, &mine.link));
    TRY(comm_agree(run->world, device_alloc(s, MEM_OTHER, sizeof mine, "rates", &buf)));
    fsdp_status status = device_upload(s, buf, &mine, sizeof mine);
    if (status == FSDP_OK)
        status = comm_broadcast(run->world, s, "rates", DTYPE_U8, buf, sizeof mine, 0);
    if (status == FSDP_OK)
        status = device_download(s, out, buf, sizeof *out);
    if (status == FSDP_OK)
        status = stream_sync(s);
    device_free(s, buf);
    ledger_reset_peaks(device_ledger(run->dev)); /* the run's peaks are reported, not these */
    return status;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* FLOPs of a layer's forward over one micro-batch: two for each weight of a matrix product and
 * token, and in attention, which is a block's first layer, 2*T*C for a token: half the square of
 * 4*T*C, as each position looks back only. The embedding multiplies nothing, and the head uses its
 * table. */
static double forward_flops(const run_context *run, int i)
{
    const model *m = run->m;
    const layer *l = &m->layers[i];
    double tokens = (double)run->batch * (double)run->seq_len, per_token = 0;
    for (int p = l->first_param; p < l->first_param + l->n_params; p++)
        if (m->params[p].n_dims == 2 && i > 0)
            per_token += 2 * (double)m->params[p].elems;
    if (l->block >= 0 && l->part == 0)
        per_token += 2 * (double)run->seq_len * (double)m->config.d_model;
    return tokens * per_token;
}

/* The units in the order in which they compute, the root first. `units` [f->n_units] borrows names
 * of f. */
static void fill_units(const fsdp *f, const run_context *run, const predict_rates *rates,
                       virtual_unit *units, virtual_step_config *step)
{
    const mesh_shape *shape = &f->mesh.shape;
    const double param_bytes = (double)dtype_bytes(run->param_dtype);
    const double reduce_bytes = (double)dtype_bytes(run->reduce_dtype);
    double shard_elems = 0;
    int last = -1;
    for (int i = 0; i < run->m->n_layers; i++) {
        const int u = f->layer_unit[i];
        const fsdp_unit *unit = &f->units[u];
        double seconds = forward_flops(run, i) / rates->flops_per_s;
        if (u == UNIT_ROOT && i > 0) {
            step->head_forward_s += seconds;
            step->head_backward_s += 2 * seconds;
            continue;
        }
        if (u != last) {
            units[step->n_units++] = (virtual_unit){
                .name = unit->name,
                .gather_bytes = unit->stays_after_backward
                                    ? 0
                                    : (double)(shape->shard_size - 1) *
                                          (double)unit->layout.shard_elems * param_bytes,
                .reduce_bytes = (double)(shape->world_size - 1) * (double)unit->slices.shard_elems *
                                reduce_bytes,
                .stays = unit->stays_after_forward};
            shard_elems += (double)unit->layout.shard_elems;
            last = u;
        }
        units[step->n_units - 1].forward_s += seconds;
        units[step->n_units - 1].backward_s += 2 * seconds;
    }
    /* AdamW reads four values of an element and writes three */
    double touched = run->optimizer == OPTIMIZER_ADAMW ? 7 : 3;
    step->optimizer_s = touched * sizeof(float) * shard_elems / rates->bytes_per_s;
}

static virtual_prefetch schedule_of(const fsdp_engine_config *config)
{
    switch (config->prefetch.mode) {
    case PREFETCH_BACKWARD:
        return VIRTUAL_PREFETCH_BACKWARD;
    case PREFETCH_FORWARD:
        return VIRTUAL_PREFETCH_FORWARD;
    case PREFETCH_BOTH:
        return VIRTUAL_PREFETCH_BOTH;
    case PREFETCH_BACKWARD_POST: /* its gather has the reduction to run beside, and no more */
        return VIRTUAL_PREFETCH_IMPLICIT;
    default:
        return VIRTUAL_PREFETCH_NONE;
    }
}

/* One micro-step is like the other: of many, the first MOST_RUN are run. */
static fsdp_status predict_micro_steps(virtual_step_config *step, const virtual_config *costs,
                                       virtual_figures *out)
{
    enum { MOST_RUN = 4 };
    const int n = step->grad_accum;
    virtual_figures fewer;
    if (n <= MOST_RUN)
        return virtual_step_predict(step, costs, out);
    step->grad_accum = MOST_RUN - 1;
    TRY(virtual_step_predict(step, costs, &fewer));
    step->grad_accum = MOST_RUN;
    TRY(virtual_step_predict(step, costs, out));
    const double more = n - MOST_RUN;
    out->step_s += more * (out->step_s - fewer.step_s);
    out->compute_s += more * (out->compute_s - fewer.compute_s);
    out->communication_s += more * (out->communication_s - fewer.communication_s);
    out->exposed_s += more * (out->exposed_s - fewer.exposed_s);
    out->floor_s += more * (out->floor_s - fewer.floor_s);
    return FSDP_OK;
}

fsdp_status predict_step(const fsdp_engine_config *config, const mesh_shape *shape,
                         const predict_rates *rates, virtual_figures *out)
{
    fsdp f;
    TRY(fsdp_lay_out(&config->fsdp, shape, &f));
    fsdp_status status = strategy_fill(config->sharding, &f);
    virtual_unit *units = calloc((size_t)f.n_units, sizeof *units);
    /* all ranks do the same, so two stand for any number */
    virtual_step_config step = {.n_ranks = shape->world_size > 1 ? 2 : 1,
                                .units = units,
                                .grad_accum = config->fsdp.run.grad_accum,
                                .prefetch = schedule_of(config),
                                .limit = config->prefetch.limit,
                                .one_stream = config->prefetch.mode == PREFETCH_NONE};
    virtual_config costs = {.link = rates->link, .inline_compute = !config->runs_ahead};
    if (status == FSDP_OK && !units)
        status = fsdp_error(FSDP_ENOMEM, "", "predict_step: no host memory");
    if (status == FSDP_OK) {
        fill_units(&f, &config->fsdp.run, rates, units, &step);
        status = predict_micro_steps(&step, &costs, out);
    }
    free(units);
    fsdp_free(&f);
    return status;
}

static fsdp_status largest_unit(const fsdp_engine_config *config, const mesh_shape *shape,
                                size_t *elems)
{
    fsdp f;
    *elems = 0;
    TRY(fsdp_lay_out(&config->fsdp, shape, &f));
    for (int u = UNIT_ROOT + 1; u < f.n_units; u++)
        *elems = f.units[u].layout.used_elems > *elems ? f.units[u].layout.used_elems : *elems;
    fsdp_free(&f);
    return FSDP_OK;
}

fsdp_status predict_buckets(const fsdp_engine_config *config, const mesh_shape *shape,
                            const predict_rates *rates, size_t *max_elems)
{
    fsdp_engine_config c = *config;
    virtual_figures now, best;
    size_t largest;
    *max_elems = 0;
    c.fsdp.merge = NULL;
    TRY(largest_unit(&c, shape, &largest));
    TRY(predict_step(&c, shape, rates, &best));
    for (size_t n = 1; n <= 64 && largest > 0; n *= 2) {
        bucket_config buckets = {.max_elems = n * largest};
        c.fsdp.merge = bucket_assign;
        c.fsdp.merge_how = &buckets;
        TRY(predict_step(&c, shape, rates, &now));
        if (now.step_s > 0.99 * best.step_s && n > 1)
            break;
        if (now.step_s > 0.99 * best.step_s)
            continue;
        best = now;
        *max_elems = buckets.max_elems;
    }
    return FSDP_OK;
}
