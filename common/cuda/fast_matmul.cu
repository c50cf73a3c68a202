/* fast_matmul.cu -- the end of a matmul if cuBLASLt cannot do it: add bias and residual to products
 * of fp32, and round to the type of out. It also computes a product with k = 0, which cuBLASLt
 * refuses: products NULL. One thread per element. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/ops/row_sums.h"

__global__ void fast_finish_kernel(matmul_args a, const float *products)
{
    const size_t i = global_thread();
    if (i >= a.m * a.n)
        return;
    const size_t col = i % a.n, at = i / a.n * row_stride(a.out_stride, a.n) + col;
    float x = products ? products[at] : 0.0f;
    if (a.bias)
        x += row_load(a.bias, col, a.type);
    if (a.residual)
        x += row_load(a.residual, at, a.type);
    row_store(a.out, at, x, a.out_type);
}

OPERATION(cuda, matmul_finish, fast_finish_kernel, blocks_of(a->of.m * a->of.n), BLOCK_THREADS,
          a->of, a->products)
