/* tables.c -- the op tables of the CUDA backend. */
#include "common/cuda/cuda_impl.h"
#include "common/cuda/kernels.h"

static const sum_kernels SUMS = {.add = cuda_add, .cast = cuda_cast, .launch = cuda_sum_launch};

#define SHARED(op)   .op = cuda_##op,
#define FAST(op)     .op = fast_##op,
#define PORTABLE(op) .op = portable_##op,

const ops *ops_cuda_fast(void)
{
    static const ops TABLE = {
        .name = "fast", .sums = &SUMS, EACH_SHARED_OP(SHARED) EACH_OWN_OP(FAST)};
    return &TABLE;
}

const ops *ops_cuda_portable(void)
{
    static const ops TABLE = {
        .name = "portable", .sums = &SUMS, EACH_SHARED_OP(SHARED) EACH_OWN_OP(PORTABLE)};
    return &TABLE;
}
