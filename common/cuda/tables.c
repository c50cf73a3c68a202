/* tables.c -- the op tables of the CUDA backend. */
#include "common/cuda/cuda_impl.h"
#include "common/cuda/kernels.h"
#include "common/ops/op_work.h"

static const sum_kernels SUMS = {.add = cuda_add, .cast = cuda_cast, .launch = cuda_sum_launch};

#define SHARED(op)   .op = cuda_##op,
#define FAST(op)     .op = fast_##op,
#define PORTABLE(op) .op = portable_##op,

#define REFUSED(op) REFUSED_OP(cuda, op)
EACH_MNIST_OP(REFUSED)

const ops *ops_cuda_fast(void)
{
    static const ops TABLE = {.name = "fast",
                              .sums = &SUMS,
                              EACH_SHARED_OP(SHARED) EACH_OWN_OP(FAST) EACH_MNIST_OP(SHARED)};
    return &TABLE;
}

const ops *ops_cuda_portable(void)
{
    static const ops TABLE = {.name = "portable",
                              .sums = &SUMS,
                              EACH_SHARED_OP(SHARED) EACH_OWN_OP(PORTABLE) EACH_MNIST_OP(SHARED)};
    return &TABLE;
}
