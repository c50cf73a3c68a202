/* fast_lib.c -- see fast_lib.h.
 *
 * Bounds of fast mode, u = 2^-24, gamma_k = k u / (1 - k u) [Higham, Accuracy and Stability, ch. 4]
 *
 *   Calls of equal shape. A node is the gradient of one call over b sequences; equal calls give
 *   equal bits on any rank, so the W ranks and the twin add the same n nodes, only in other orders.
 *   Any order of n terms is within gamma_{n-1} * sum|node| of the exact sum, so two orders are
 *   within 2 gamma_{n-1} sum|node|. Scaling adds u|g| on either side. Reading back through p - lr*g
 *   adds one more u|g| and u|p|/lr.
 *
 *   Sums in bf16, v = 2^-8. A node leaves a call in fp32, with the twin's bits here too. It is
 *   rounded once before it is sent, and each of the n-1 additions once (in fp32 first, which
 *   changes nothing: 24 >= 2*8 + 2 bits). Rounding x errs by at most half the spacing of bf16
 *   there, h(x) = v 2^floor(log2 |x|) <= v |x|. With S = sum|node|, and s the exact sum, in any
 *   order of the additions:
 *
 *       the nodes, rounded      sum h(node) <= v S
 *       n-2 partial sums        h(S (1+v)^(n-1)) each
 *       the last sum            h(|s| + the two above)
 *
 *   So the error for W = 2 is at most about 2 v S. One micro-step and 15 tokens make the bound
 * tight: there are few terms, and 1/tokens is no power of two, so a rounding after the scaling
 * would show. The norm is off by at most the 2-norm of the elements' bounds, a weight after a step
 * of SGD by at most lr times its gradient's bound. Two runs differ by at most twice that.
 *
 *   Calls of other shapes (b sequences in one call or one by one). The library may block a product
 * differently, and activations move by rounding. No useful bound exists, so every tensor may
 * differ by 8 times the difference between two single-device runs of other shapes. With activations
 * in bf16 most tensors are equal, and that difference may be zero. But if a sum lies near the
 * middle of two bf16 numbers, another order may round it to the other number. Then each run is off
 * by at most its rounding error, and two runs differ by at most twice that error (triangle
 * inequality). The rounding error of a tensor is its distance from the same run in fp32. */
#include "tests/equivalence/fast_lib.h"
#include <math.h>
#include <string.h>
#include "common/model/family.h"
#include "tests/equivalence/twin_lib.h"

static const double U = 0x1p-24, UB = 0x1p-8; /* unit roundoffs of fp32 and bf16 */

static double gamma_of(size_t k)
{
    return (double)k * U / (1.0 - (double)k * U);
}

/* The most that element i of a sum in bf16 may differ from the exact sum, `sum`. */
static double bf16_sum_error(const twin_step *t, size_t i, double sum)
{
    double off = t->spacings[i], n = (double)t->nodes;
    if (t->nodes == 1)
        return off;
    off += (n - 2.0) * twin_bf16_spacing(t->abs_sum[i] * pow(1.0 + UB, n - 1.0));
    return off + twin_bf16_spacing(fabs(sum) + off);
}

/* Bound on |got - twin| for element i of the gradient. The twin sums in fp32. */
static double gradient_bound(const twin_step *t, size_t i, dtype reduce)
{
    double g = fabs((double)t->grad[i]), sum_off = 2.0 * gamma_of(t->nodes - 1) * t->abs_sum[i];
    if (reduce == DTYPE_BF16)
        sum_off += bf16_sum_error(t, i, g * (1.0 + 2.0 * U) / t->scale + sum_off);
    return sum_off * t->scale + 3.0 * U * (g + sum_off * t->scale);
}

/* |got - twin| <= bound for every element and for the norm. The PASS line shows the largest
 * quotient. */
static fsdp_status within_bound(suite *s, const run_result *got, const twin_step *t, double lr,
                                dtype reduce)
{
    double worst = 0.0, norm = 0.0, norm_bound = 0.0;
    for (size_t i = 0; i < t->elems; i++) {
        double p = (double)t->before[i], g = (double)t->grad[i];
        double bound_g = gradient_bound(t, i, reduce);
        double bound =
            lr * bound_g + U * (fabs(p) + 2.0 * lr * (fabs(g) + bound_g)) + 0x1p-149 * lr;
        double off = fabs((double)got->params[i] - (p - lr * g));
        norm += g * g;
        norm_bound += bound_g * bound_g;
        worst = off / bound > worst ? off / bound : worst;
        if (!(off <= bound))
            return fsdp_error(FSDP_EINVAL, "", "weight %zu after lr %.3g: off by %.3g, bound %.3g",
                              i, lr, off, bound);
    }
    norm = sqrt(norm);
    norm_bound = sqrt(norm_bound) + 2.0 * U * norm;
    double norm_off = fabs((double)got->norm[0] - norm);
    snprintf(s->detail, sizeof s->detail, " (at most %.2f of the bound, the norm %.2g)", worst,
             norm_off / norm_bound);
    if (!(norm_off <= norm_bound))
        return fsdp_error(FSDP_EINVAL, "", "the norm is off by %.3g, bound %.3g", norm_off,
                          norm_bound);
    return FSDP_OK;
}

void fast_sgd(suite *s, const model_config *m, const ops *o, const dtypes *types)
{
    run_config c = suite_config(m, o, GRAD_ACC_FAST);
    bool rounds = types->reduce == DTYPE_BF16, steps = types == &DTYPES[FP32];
    twin_step t = {0};
    char name[128];
    c.param_dtype = types->param; /* the twin sums in fp32 */
    c.grad_accum = rounds ? 1 : c.grad_accum;
    c.seq_len -= rounds ? 1 : 0;
    fsdp_status st = s->rank == 0 ? twin_step_make(&c, s->world_size, c.batch, &t) : FSDP_OK;
    snprintf(name, sizeof name, "fast%s: the twin's gradient, nodes of 2 sequences", types->name);
    suite_report(s, name, st);
    c.reduce_dtype = types->reduce;
    for (int v = 0; v < (1 + steps) * N_VARIANTS && st == FSDP_OK; v++) {
        bool step = v >= N_VARIANTS;
        const variant *var = &VARIANTS[v % N_VARIANTS];
        run_result got = {0};
        if (suite_skips(s, v % N_VARIANTS))
            continue;
        suite_use_variant(&c, var);
        c.lr = step ? 0.5 : (double)GRAD_LR;
        st = run_training(s->dev[v % 2], s->world[v % 2], &c, &got);
        fsdp_status mine = st;
        if (st == FSDP_OK && s->rank == 0)
            mine = within_bound(s, &got, &t, c.lr, types->reduce);
        snprintf(name, sizeof name, "fast, ops %s%s: %s, %s", o->name, types->name,
                 step ? "one step of sgd within the bound" : "gradients within the bound",
                 var->name);
        suite_report(s, name, mine);
        run_result_free(&got);
    }
    twin_step_free(&t);
}

/* The largest relative difference, in the 2-norm, of a tensor's gradient between two runs. Their
 * weights moved by -lr*g. */
static double tensor_distance(const model *m, const run_result *a, const run_result *b)
{
    double worst = 0.0;
    size_t at = 0;
    for (int p = 0; p < m->n_params; p++) {
        double diff = 0.0, norm = 0.0;
        if (m->params[p].tied_to != NOT_TIED)
            continue;
        for (size_t i = 0; i < m->params[p].elems; i++, at++) {
            double x = (double)a->params[at] / (double)GRAD_LR,
                   y = (double)b->params[at] / (double)GRAD_LR;
            diff += (x - y) * (x - y);
            norm += y * y;
        }
        double rel = diff == 0.0 ? 0.0 : sqrt(diff / norm);
        worst = isnan(rel) || rel > worst ? rel : worst;
    }
    return worst;
}

/* How far calls of another shape move a tensor from `one`, a run of *c on one device. */
static fsdp_status measure_shapes(suite *s, const run_config *c, const model *m,
                                  const run_result *one, double *allowed)
{
    const bool is_bf16 = c->param_dtype == DTYPE_BF16;
    run_config other = *c;
    run_result r = {0};
    other.param_dtype = DTYPE_F32;
    TRY(suite_run_single(s, &other, is_bf16 ? 1 : 2, &r));
    if (s->rank == 0) {
        const double band = tensor_distance(m, &r, one);
        *allowed = is_bf16 ? 2.0 * band : 8.0 * (band > 4.0 * U ? band : 4.0 * U);
    }
    run_result_free(&r);
    return FSDP_OK;
}

void fast_shapes(suite *s, const model_config *mc, const ops *o, const dtypes *types)
{
    run_config c = suite_config(mc, o, GRAD_ACC_FAST);
    run_result one = {0}, many = {0};
    double allowed = 0;
    model m = {0};
    suite_use_variant(&c, &VARIANTS[1]);
    c.param_dtype = types->param;
    c.batch = 4;
    c.lr = (double)GRAD_LR;
    fsdp_status st = model_create(mc, &m);
    if (st == FSDP_OK)
        st = suite_run_single(s, &c, 1, &one);
    if (st == FSDP_OK)
        st = measure_shapes(s, &c, &m, &one, &allowed);
    c.chunk_rows = 7;
    if (st == FSDP_OK)
        st = run_training(s->dev[0], s->world[0], &c, &many);
    if (st == FSDP_OK && s->rank == 0) {
        double got = tensor_distance(&m, &many, &one);
        snprintf(s->detail, sizeof s->detail, " (%.2g, allowed %.2g)", got, allowed);
        if (!(got <= allowed))
            st = fsdp_error(FSDP_EINVAL, "", "a tensor's gradient is off by %.3g, allowed %.3g",
                            got, allowed);
    }
    char name[96];
    snprintf(name, sizeof name, "fast, ops %s%s: gradients of calls of other shapes, chunked loss",
             o->name, types->name);
    suite_report(s, name, st);
    model_free(&m);
    run_result_free(&one);
    run_result_free(&many);
}
