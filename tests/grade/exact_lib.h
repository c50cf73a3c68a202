/* exact_lib.h -- AdamW in double, and how far a correct fp32 program may be from it. */
#pragma once
#include "common/ops/ops.h"

typedef struct adamw_exact {
    double param, m, v, param_tol, m_tol, v_tol;
} adamw_exact;

/* adamw_double -- element i after *a in double, and how far a correct fp32 program may be from it.
 *   coef  what *a->grad_coef is, which may be in device memory */
adamw_exact adamw_double(const adamw_args *a, size_t i, double coef);

/* adamw_config -- of step number `step`, from 0. */
optim_config adamw_config(double lr, double weight_decay, int64_t step);
