/* adamw.c -- tasks 4.1 and 4.2: the update of one shard, and which of its elements decay. */
#include <math.h>
#include <stdlib.h>
#include "lab4_optimizer/optimizer.h"

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
