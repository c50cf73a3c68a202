/* adamw_band_lib.c -- see adamw_band_lib.h. */
#include "tests/equivalence/adamw_band_lib.h"
#include <math.h>
#include <stdio.h>
#include "common/model/family.h"
#include "common/ops/op_work.h"
#include "common/ops/ranges.h"
#include "tests/unit/target_lib.h"

enum { STEPS = 20 };

/* Define an operation adamw with this name: statements for one element, with its parameter p after
 * decay, its gradient g, and its moments m and v. */
#define ADAMW_ORDER(name, ...)                                                                     \
    static fsdp_status name##_kernel(void *args, int n_threads)                                    \
    {                                                                                              \
        const adamw_args *all = args;                                                              \
        decay_range r;                                                                             \
        for (int next = 0; range_next(&all->ranges, &next, 0, all->elems, &r);) {                  \
            const adamw_args part = adamw_of_range(all, r), *a = &part;                            \
            for (size_t i = 0; i < a->elems; i++) {                                                \
                const float g = a->grad[i] * (a->grad_coef ? *a->grad_coef : 1.0f);                \
                float p = a->param[i] * (1.0f - a->decay), m = a->m[i], v = a->v[i];               \
                __VA_ARGS__                                                                        \
                a->param[i] = p, a->m[i] = m, a->v[i] = v;                                         \
            }                                                                                      \
        }                                                                                          \
        return FSDP_OK;                                                                            \
    }                                                                                              \
    static fsdp_status name(stream *s, const adamw_args *a)                                        \
    {                                                                                              \
        op_work w = adamw_work(a);                                                                 \
        return stream_launch_work(s, &(launch_config){.fn = name##_kernel,                         \
                                                      .args = a,                                   \
                                                      .args_bytes = sizeof *a,                     \
                                                      .work = w.info,                              \
                                                      .accesses = w.accesses,                      \
                                                      .n_accesses = w.n_accesses});                \
    }

/* PyTorch divides before it multiplies by the step; Kingma and Ba first correct the moments. */
ADAMW_ORDER(pytorch, m = a->beta1 * m + a->one_minus_beta1 * g;
            v = a->beta2 * v + a->one_minus_beta2 * g * g;
            p -= a->step_size * (m / (sqrtf(v) / a->sqrt_bias2 + a->eps));)
ADAMW_ORDER(kingma, m = a->beta1 * m + a->one_minus_beta1 * g;
            v = a->beta2 * v + a->one_minus_beta2 * g * g;
            p -= a->step_size * (m / (sqrtf(v / (a->sqrt_bias2 * a->sqrt_bias2)) + a->eps));)
ADAMW_ORDER(interpolating, m += a->one_minus_beta1 * (g - m); v += a->one_minus_beta2 * (g * g - v);
            p -= a->step_size * (m / (sqrtf(v) / a->sqrt_bias2 + a->eps));)

static fsdp_status train(suite *s, const ops *table, run_result *out)
{
    double lr[STEPS];
    model_config m = {0};
    TRY(model_preset("gpt2", "tiny", &m));
    m.max_seq_len = 32;
    for (int t = 0; t < STEPS; t++)
        lr[t] =
            t < 5 ? 1e-3 * (t + 1) / 5.0 : 1e-4 + 9e-4 * (1.0 + cos(M_PI * (t - 5) / 15.0)) / 2.0;
    run_config c = suite_config(&m, table, GRAD_ACC_CANONICAL);
    c.batch = 8;
    c.optimizer = OPTIMIZER_ADAMW;
    c.lr_of_step = lr;
    c.steps = STEPS;
    c.clip_norm = 1.0f;
    c.seed = 1;
    return run_training(s->dev[0], s->alone, &c, out);
}

static fsdp_status expect_band(const char *what, const float *got, const float *want)
{
    for (int t = 0; t < STEPS; t++) {
        const double moved = fabs((double)got[t] - (double)want[t]) / (double)want[t];
        if (moved > ADAMW_BAND)
            return fsdp_error(FSDP_EINVAL, "", "step %d: a %s moved by %.3g, expected at most %.3g",
                              t + 1, what, moved, ADAMW_BAND);
    }
    return FSDP_OK;
}

fsdp_status adamw_band(suite *s)
{
    fsdp_status (*const ORDERS[])(stream *, const adamw_args *) = {pytorch, kingma, interpolating};
    run_result want = {0}, got = {0};
    fsdp_status status = train(s, target_ops(), &want);
    for (int k = 0; status == FSDP_OK && k < 3; k++) {
        ops table = *target_ops();
        table.adamw = ORDERS[k];
        status = train(s, &table, &got);
        if (status == FSDP_OK)
            status = expect_band("loss", got.loss, want.loss);
        if (status == FSDP_OK)
            status = expect_band("norm", got.norm, want.norm);
        run_result_free(&got);
    }
    run_result_free(&want);
    return status;
}
