/* optim.h -- arguments of the operations at the end of a step: norm, clip, AdamW. ops.h
 * says what holds for all operations; all arrays are in device memory. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "common/sum/rsum.h"

EXTERN_C_BEGIN

/* A run of elements of an array: this rank's elements of one parameter. */
typedef struct decay_range {
    size_t begin, elems;
    bool decay; /* weight decay applies */
} decay_range;

/* The elements of an array that a call takes: those in the ranges at[n], which are ascending and do
 * not overlap. Others are neither read nor written. at NULL: all elements are taken, and decay.
 *   at      host memory, which lives until the call has run
 *   origin  what the ranges call the array's first element: 0 if the array is the whole shard */
typedef struct range_table {
    const decay_range *at;
    int n;
    size_t origin;
} range_table;

/* Exact sum of squares, added into the rsum at `sum` (device memory); see sum/rsum.h. */
typedef struct sum_squares_args {
    rsum *sum;
    const float *x; /* [elems], of which `ranges` are summed */
    size_t elems;
    range_table ranges;
} sum_squares_args;

/* norm = fp32(sqrt(rsum_value(sum))); coef = min(1, max_norm / (norm + 1e-6)), 1 when max_norm is 0
 * (no clipping). All in device memory, so that the host does not wait.
 * A norm that is not finite gives coef = 1: the update then puts NaN or inf into the weights, as
 * with PyTorch's default. */
typedef struct clip_coef_args {
    float *norm, *coef;
    const rsum *sum;
    float max_norm;
} clip_coef_args;

/* AdamW with decoupled weight decay [AdamW alg. 2], one pass, element-wise:
 *   g = grad * (*grad_coef)            grad_coef NULL: g = grad
 *   p = p - (lr*weight_decay) * p      (product formed once in fp32)
 *   m = beta1*m + (1-beta1)*g          v = beta2*v + (1-beta2)*(g*g)
 *   p = p - (lr/bias1) * m / (sqrt(v)/sqrt_bias2 + eps)       bias1 = 1-beta1^t, t from 1
 * Scalars are formed by the caller with adamw_scalars, so that every backend uses the same bits. */
typedef struct adamw_args {
    float *param, *m, *v;
    const float *grad, *grad_coef;
    size_t elems;
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float step_size;  /* fp32(lr / (1 - beta1^t)) */
    float sqrt_bias2; /* fp32(sqrt(1 - beta2^t)) */
    float decay;      /* fp32(lr * weight_decay), 0 for tensors that do not decay */
    float eps;
    range_table ranges; /* of the elems */
} adamw_args;

EXTERN_C_END
