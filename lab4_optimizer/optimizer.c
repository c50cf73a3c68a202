/* optimizer.c -- tasks 4.1 to 4.4: one norm for all ranks, the order of a step, AdamW on a shard,
 * and which of its elements decay. */
#include <math.h>
#include <stdlib.h>
#include "common/device/cpu_tiles.h"
#include "common/ops/op_work.h"
#include "lab4_optimizer/optimizer.h"

fsdp_status grad_norm(fsdp_optimizer *o)
{
    fsdp *f = o->r->f;
    const ops *ops_table = f->run.ops;
    /* SOLUTION BEGIN 4.3 */
    TRY(device_zero(f->compute, o->norm_sum, sizeof *o->norm_sum));
    for (int u = 0; u < f->n_units; u++)
        for (int i = 0; i < o->units[u].n_ranges; i++) {
            const decay_range *range = &o->units[u].ranges[i];
            TRY(ops_table->sum_squares(
                f->compute, &(sum_squares_args){.sum = o->norm_sum,
                                                .x = o->r->grads[u].shard_grad + range->begin,
                                                .elems = range->elems}));
        }
    if (o->norm_group == NULL) /* this rank has added up the whole gradient */
        return FSDP_OK;
    TRY(event_record(o->squared, f->compute));
    TRY(stream_wait_event(o->norm_stream, o->squared));
    TRY(comm_all_reduce(o->norm_group, o->norm_stream, "grad norm", DTYPE_I64, o->norm_sum->bin,
                        RSUM_BINS));
    TRY(event_record(o->added, o->norm_stream));
    return stream_wait_event(f->compute, o->added);
    /* SOLUTION END 4.3 */
}

/* The CPU runs adamw_shard over tiles, so that threads share the work without changing a bit. */
static fsdp_status adamw_tile(const void *args, size_t tile)
{
    adamw_args part = *(const adamw_args *)args;
    size_t begin = tile * TILE_ELEMS;
    part.param += begin;
    part.m += begin;
    part.v += begin;
    part.grad += begin;
    part.elems = min_size(part.elems - begin, TILE_ELEMS);
    return adamw_shard(&part);
}

static fsdp_status adamw_kernel(void *args, int n_threads)
{
    const adamw_args *a = args;
    return tiles_run(n_threads, tiles_of(a->elems, TILE_ELEMS), adamw_tile, a);
}

static fsdp_status run_adamw(fsdp *f, const adamw_args *a)
{
    if (!device_runs_c(f->run.dev))
        return f->run.ops->adamw(f->compute, a);
    op_work w = adamw_work(a);
    return stream_launch_work(f->compute, &(launch_config){.fn = adamw_kernel,
                                                           .args = a,
                                                           .args_bytes = sizeof *a,
                                                           .work = w.info,
                                                           .accesses = w.accesses,
                                                           .n_accesses = w.n_accesses});
}

/* AdamW on every range of every unit of this rank. */
static fsdp_status adamw_update(fsdp_optimizer *o, const step_scalars *sc)
{
    fsdp *f = o->r->f;
    adamw_args decays = {.grad_coef = o->coef}, plain;
    adamw_scalars(&decays, &(adamw_config){.lr = sc->lr,
                                           .beta1 = sc->beta1,
                                           .beta2 = sc->beta2,
                                           .eps = sc->eps,
                                           .weight_decay = sc->weight_decay,
                                           .step = sc->step});
    plain = decays;
    plain.decay = 0.0f;
    for (int u = 0; u < f->n_units; u++) {
        const unit_optim *opt = &o->units[u];
        for (int i = 0; i < opt->n_ranges; i++) {
            const decay_range *range = &opt->ranges[i];
            adamw_args a = range->decay ? decays : plain;
            a.param = f->units[u].shard + range->begin;
            a.m = opt->m + range->begin;
            a.v = opt->v + range->begin;
            a.grad = o->r->grads[u].shard_grad + range->begin;
            a.elems = range->elems;
            TRY(run_adamw(f, &a));
        }
    }
    return FSDP_OK;
}

fsdp_status optimizer_step(fsdp_optimizer *o, const step_scalars *sc, float *norm)
{
    stream *s = o->r->f->compute;
    const ops *ops_table = o->r->f->run.ops;
    /* SOLUTION BEGIN 4.4 */
    /* STUB: (void)adamw_update; */
    /* STUB: return fsdp_todo("4.4"); */
    TRY(grads_finish(o->r, sc->grad_scale));
    TRY(grad_norm(o));
    TRY(ops_table->clip_coef(
        s, &(clip_coef_args){
               .norm = o->norm, .coef = o->coef, .sum = o->norm_sum, .max_norm = sc->clip_norm}));
    TRY(device_copy(s, norm, o->norm, sizeof *norm));
    if (sc->optimizer == OPTIMIZER_SGD)
        return sgd_step(o->r, (float)sc->lr, 0.0f, o->coef);
    return adamw_update(o, sc);
    /* SOLUTION END 4.4 */
}

fsdp_status adamw_shard(const adamw_args *a)
{
    /* SOLUTION BEGIN 4.1 */
    float coef = a->grad_coef ? *a->grad_coef : 1.0f;
    float *restrict param = a->param, *restrict m = a->m, *restrict v = a->v;
    const float *restrict grad = a->grad;
    for (size_t i = 0; i < a->elems; i++) {
        float g = grad[i] * coef;
        float p = param[i] - a->decay * param[i]; /* decoupled: not through the moments */
        m[i] = a->beta1 * m[i] + a->one_minus_beta1 * g;
        v[i] = a->beta2 * v[i] + a->one_minus_beta2 * (g * g);
        param[i] = p - a->step_size * m[i] / (sqrtf(v[i]) / a->sqrt_bias2 + a->eps);
    }
    return FSDP_OK;
    /* SOLUTION END 4.1 */
}

fsdp_status decay_ranges(const flat_layout *layout, const param_spec *params, int rank,
                         decay_range *out, int *n_ranges)
{
    *n_ranges = 0;
    flat_piece *pieces = calloc((size_t)layout->n_slots + 1, sizeof *pieces);
    if (!pieces)
        return fsdp_error(FSDP_ENOMEM, "", "decay_ranges: no host memory");
    int n_pieces = 0;
    fsdp_status status = flat_intersect(layout, rank, pieces, &n_pieces);
    /* SOLUTION BEGIN 4.2 */
    /* STUB: if (status == FSDP_OK) */
    /* STUB:     status = fsdp_todo("4.2"); */
    for (int i = 0; status == FSDP_OK && i < n_pieces; i++) {
        const param_spec *spec = &params[layout->slots[pieces[i].slot].param];
        if (!spec->frozen)
            out[(*n_ranges)++] = (decay_range){
                .begin = pieces[i].shard_begin, .elems = pieces[i].elems, .decay = spec->decay};
    }
    /* SOLUTION END 4.2 */
    free(pieces);
    return status;
}
