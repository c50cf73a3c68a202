/* row_adamw.h -- AdamW's update, for all tables. It is lab 4's task 4.1: a learner's tree has
 * another file in its place (in tests/grade/handout), which calls the learner's adamw_shard. See
 * row_sums.h. */
#pragma once
#include <math.h>
#include "common/ops/ops.h"
#include "common/ops/row_sums.h"

/* adamw_elem -- one element's update, given g = grad * coef. */
ROW_FN void adamw_elem(const adamw_args *a, float g, float *param, float *m, float *v)
{
    const float decayed = *param - a->decay * *param;
    *m = a->beta1 * *m + a->one_minus_beta1 * g;
    *v = a->beta2 * *v + a->one_minus_beta2 * (g * g);
    *param = decayed - a->step_size * *m / (sqrtf(*v) / a->sqrt_bias2 + a->eps);
}

/* adamw_range -- update the elements [begin, end) of a's arrays, which do not overlap. */
ROW_FN fsdp_status adamw_range(adamw_args a, size_t begin, size_t end)
{
    const float coef = a.grad_coef ? *a.grad_coef : 1.0f; /* x * 1.0f is x */
    float *__restrict__ param = a.param, *__restrict__ m = a.m, *__restrict__ v = a.v;
    const float *__restrict__ grad = a.grad;
    for (size_t i = begin; i < end; i++)
        adamw_elem(&a, grad[i] * coef, &param[i], &m[i], &v[i]);
    return FSDP_OK;
}
