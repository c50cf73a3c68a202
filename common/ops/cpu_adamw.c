/* cpu_adamw.c -- AdamW's update, for both tables. A learner's tree has another file in its place
 * (in tests/grade/handout), which calls the learner's adamw_shard of task 4.1. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_adamw.h"

static fsdp_status adamw_tile(const void *args, size_t tile)
{
    const adamw_args a = *(const adamw_args *)args;
    const float coef = a.grad_coef ? *a.grad_coef : 1.0f; /* x * 1.0f is x */
    float *restrict param = a.param, *restrict m = a.m, *restrict v = a.v;
    const float *restrict grad = a.grad;
    const size_t end = min_size(a.elems, (tile + 1) * TILE_ELEMS);
    for (size_t i = tile * TILE_ELEMS; i < end; i++)
        adamw_elem(&a, grad[i] * coef, &param[i], &m[i], &v[i]);
    return FSDP_OK;
}

ELEMENTWISE(adamw, MIN_PARALLEL_ELEMS)
