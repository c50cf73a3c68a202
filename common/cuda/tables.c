/* tables.c -- the op tables of the CUDA backend. */
#include "common/cuda/cuda_impl.h"
#include "common/cuda/kernels.h"
#include "common/ops/op_work.h"

static const sum_kernels SUMS = {.add = cuda_add, .cast = cuda_cast, .launch = cuda_sum_launch};

static const ops FAST = {
    .name = "fast",
    .sums = &SUMS,
#define OP(op, on_cpu, on_cuda, ...) OP_##on_cuda(op, cuda, fast)
#include "common/ops/op_list.h"
};

static const ops PORTABLE = {
    .name = "portable",
    .sums = &SUMS,
#define OP(op, on_cpu, on_cuda, ...) OP_##on_cuda(op, cuda, portable)
#include "common/ops/op_list.h"
};

const ops *ops_cuda_fast(void)
{
    return &FAST;
}

const ops *ops_cuda_portable(void)
{
    return &PORTABLE;
}
