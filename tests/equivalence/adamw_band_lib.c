/* adamw_band_lib.c -- see adamw_band_lib.h. */
#include "tests/equivalence/adamw_band_lib.h"
#include <math.h>
#include <stdio.h>
#include "common/model/family.h"
#include "common/ops/op_work.h"
#include "tests/unit/target_lib.h"

/* Three other orders of the same formula: PyTorch's (p times 1-decay first, quotient before the
 * step size), Kingma's (corrected moments first), and moments by interpolation. */
static fsdp_status adamw_reordered(const adamw_args *a, int order)
{
    float coef = a->grad_coef ? *a->grad_coef : 1.0f;
    for (size_t i = 0; i < a->elems; i++) {
        float g = a->grad[i] * coef, p = a->param[i] * (1.0f - a->decay);
        if (order == 2) {
            a->m[i] = a->m[i] + a->one_minus_beta1 * (g - a->m[i]);
            a->v[i] = a->v[i] + a->one_minus_beta2 * (g * g - a->v[i]);
        } else {
            a->m[i] = a->beta1 * a->m[i] + a->one_minus_beta1 * g;
            a->v[i] = a->beta2 * a->v[i] + a->one_minus_beta2 * g * g;
        }
        if (order == 1) {
            float v_hat = a->v[i] / (a->sqrt_bias2 * a->sqrt_bias2);
            a->param[i] = p - a->step_size * (a->m[i] / (sqrtf(v_hat) + a->eps));
        } else {
            a->param[i] = p - a->step_size * (a->m[i] / (sqrtf(a->v[i]) / a->sqrt_bias2 + a->eps));
        }
    }
    return FSDP_OK;
}

static fsdp_status adamw_torch(void *args, int n_threads)
{
    (void)n_threads;
    return adamw_reordered(args, 0);
}

static fsdp_status adamw_kingma(void *args, int n_threads)
{
    (void)n_threads;
    return adamw_reordered(args, 1);
}

static fsdp_status adamw_lerp(void *args, int n_threads)
{
    (void)n_threads;
    return adamw_reordered(args, 2);
}

static fsdp_status launch(stream *s, stream_fn fn, const adamw_args *a)
{
    op_work w = adamw_work(a);
    return stream_launch_work(s, &(launch_config){.fn = fn,
                                                  .args = a,
                                                  .args_bytes = sizeof *a,
                                                  .work = w.info,
                                                  .accesses = w.accesses,
                                                  .n_accesses = w.n_accesses});
}

static fsdp_status launch_torch(stream *s, const adamw_args *a)
{
    return launch(s, adamw_torch, a);
}

static fsdp_status launch_kingma(stream *s, const adamw_args *a)
{
    return launch(s, adamw_kingma, a);
}

static fsdp_status launch_lerp(stream *s, const adamw_args *a)
{
    return launch(s, adamw_lerp, a);
}

static double widest(const float *got, const float *want, int n)
{
    double worst = 0.0;
    for (int t = 0; t < n; t++) {
        double rel = fabs((double)got[t] - (double)want[t]) / (double)want[t];
        worst = rel > worst ? rel : worst;
    }
    return worst;
}

fsdp_status adamw_band(suite *s)
{
    enum { STEPS = 20 };
    double lr[STEPS];
    model_config m = {0};
    TRY(model_preset("gpt2", "tiny", &m));
    m.max_seq_len = 32;
    for (int t = 0; t < STEPS; t++)
        lr[t] =
            t < 5 ? 1e-3 * (t + 1) / 5.0 : 1e-4 + 9e-4 * (1.0 + cos(M_PI * (t - 5) / 15.0)) / 2.0;
    if (!device_runs_c(s->dev[0]))
        return fsdp_error(FSDP_EINVAL, "leave FSDP_DEVICE out",
                          "the other orders are functions of this program");
    const ops *portable = target_ops();
    ops orders[] = {*portable, *portable, *portable, *portable};
    orders[1].adamw = launch_torch;
    orders[2].adamw = launch_kingma;
    orders[3].adamw = launch_lerp;
    static const char *const names[] = {"reference", "PyTorch's", "Kingma's", "interpolation"};
    run_result want = {0}, got = {0};
    for (int k = 0; k < 4; k++) {
        run_config c = suite_config(&m, &orders[k], GRAD_ACC_CANONICAL);
        c.batch = 8;
        c.optimizer = OPTIMIZER_ADAMW;
        c.lr_of_step = lr;
        c.steps = STEPS;
        c.clip_norm = 1.0f;
        c.seed = 1;
        TRY(run_training(s->dev[0], s->alone, &c, k ? &got : &want));
        if (k)
            printf("%s: loss %.3g, norm %.3g (largest relative difference of %d steps)\n", names[k],
                   widest(got.loss, want.loss, STEPS), widest(got.norm, want.norm, STEPS), STEPS);
        run_result_free(&got);
    }
    run_result_free(&want);
    return FSDP_OK;
}
