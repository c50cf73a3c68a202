/* exact_lib.c -- see exact_lib.h. */
#include "tests/grade/exact_lib.h"
#include <math.h>

static const double U = 0x1p-24; /* unit roundoff of fp32 */

/* The same update in double, from the same fp32 inputs and scalars, and how far a correct fp32
 * program may be from it, in any order of its operations. First-order rounding analysis, u = 2^-24;
 * what is allowed stands in brackets:
 *   g = grad*coef          u |g|
 *   m = b1*m + (1-b1)*g    2 products, 1 sum: 3u (|b1 m| + |(1-b1) g|)            [4u]
 *   v, all terms >= 0      5u v                                                   [6u]
 *   upd = step*m/den       den = sqrt(v)/sb + eps: half of v's error, then sqrt,
 *                          quotient, sum: 6u; product, quotient: 8u |upd|         [12u]
 *                          m's own error: step/den * err(m)                       [twice]
 *   p - decay*p - upd      4u |p|; p*(1-decay) rounds twice                       [6u] */
adamw_exact adamw_double(const adamw_args *a, size_t i, double coef)
{
    double g = (double)a->grad[i] * coef, p = (double)a->param[i];
    double m0 = (double)a->beta1 * (double)a->m[i], m1 = (double)a->one_minus_beta1 * g;
    adamw_exact e;
    e.m = m0 + m1;
    e.m_tol = 4.0 * U * (fabs(m0) + fabs(m1));
    e.v = (double)a->beta2 * (double)a->v[i] + (double)a->one_minus_beta2 * g * g;
    e.v_tol = 6.0 * U * e.v + 0x1p-140;
    double den = sqrt(e.v) / (double)a->sqrt_bias2 + (double)a->eps;
    double upd = den > 0.0 ? (double)a->step_size * e.m / den : 0.0;
    e.param = p - (double)a->decay * p - upd;
    double through_m = den > 0.0 ? (double)a->step_size / den * e.m_tol : 0.0;
    e.param_tol = U * (6.0 * fabs(p) + 12.0 * fabs(upd)) + 2.0 * through_m;
    return e;
}

optim_config adamw_config(double lr, double weight_decay, int64_t step)
{
    return (optim_config){.lr = lr,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .weight_decay = weight_decay,
                          .step = step};
}
