/* fast_matmul.cu -- what cuBLASLt cannot add to its products: bias and residual of bf16 to
 * products of fp32. And a product over nothing, of which it makes an error. A thread an element. */
#include "common/cuda/fast_kernels.h"
#include "common/cuda/launch.h"
#include "common/ops/row_sums.h"

__global__ void fast_finish_kernel(matmul_args a)
{
    const size_t i = global_thread();
    if (i >= a.m * a.n)
        return;
    float x = a.k > 0 ? ((const float *)a.out)[i] : 0.0f;
    if (a.bias)
        x += row_load(a.bias, i % a.n, a.type);
    if (a.residual)
        x += row_load(a.residual, i, a.type);
    row_store(a.out, i, x, a.out_type);
}

static cudaError_t finish_issue(cudaStream_t s, const void *args)
{
    const matmul_args *a = (const matmul_args *)args;
    return LAUNCH(fast_finish_kernel, blocks_of(a->m * a->n), BLOCK_THREADS, s, *a);
}

fsdp_status fast_matmul_finish(stream *s, const matmul_args *a)
{
    op_work work = matmul_work(a);
    if (a->k > 0) { /* the products have been told */
        memset(&work.info, 0, sizeof work.info);
        work.info.key.name = "matmul_finish";
    }
    return cuda_issue(s, finish_issue, a, work);
}
