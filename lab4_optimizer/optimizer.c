/* optimizer.c -- tasks 4.1 to 4.4: one norm for all ranks, the order of a step, AdamW on a shard,
 * and which elements of a shard decay. */
#include <math.h>
#include <stdlib.h>
#include "common/comm/comm_sums.h"
#include "common/device/device_calls.h"
#include "lab4_optimizer/optimizer.h"

fsdp_status grad_norm(fsdp_optimizer *o)
{
    /* SOLUTION BEGIN 4.3 */
    TRY(device_zero(o->compute, o->norm_sum, sizeof *o->norm_sum));
    for (int u = 0; u < o->n_units; u++) {
        const unit_optim *unit = &o->units[u];
        if (unit->n_ranges > 0)
            TRY(o->ops->sum_squares(
                o->compute, &(sum_squares_args){.sum = o->norm_sum,
                                                .x = o->r->grads[u].shard_grad,
                                                .elems = o->r->f->units[u].layout.shard_elems,
                                                .ranges = {unit->ranges, unit->n_ranges}}));
    }
    if (o->norm_group == NULL) /* this rank has added up the whole gradient */
        return FSDP_OK;
    TRY(event_record(o->squared, o->compute));
    TRY(stream_wait_event(o->norm_stream, o->squared));
    TRY(comm_all_reduce(o->norm_group, o->norm_stream, "grad norm", DTYPE_I64, o->norm_sum->bin,
                        RSUM_BINS));
    TRY(event_record(o->added, o->norm_stream));
    return stream_wait_event(o->compute, o->added);
    /* SOLUTION END 4.3 */
}

fsdp_status optimizer_step(fsdp_optimizer *o, const step_scalars *sc, float *norm)
{
    /* SOLUTION BEGIN 4.4 */
    TRY(grads_finish(o->r, sc->grad_scale));
    TRY(grad_norm(o));
    TRY(o->ops->clip_coef(o->compute, &(clip_coef_args){.norm = o->norm,
                                                        .coef = o->coef,
                                                        .sum = o->norm_sum,
                                                        .max_norm = sc->clip_norm}));
    TRY(device_copy(o->compute, norm, o->norm, sizeof *norm));
    return optimizer_update(o, sc, adamw_shard);
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
        out[(*n_ranges)++] = (decay_range){
            .begin = pieces[i].shard_begin, .elems = pieces[i].elems, .decay = spec->decay};
    }
    /* SOLUTION END 4.2 */
    free(pieces);
    return status;
}
