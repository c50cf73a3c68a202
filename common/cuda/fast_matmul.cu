/* fast_matmul.cu -- the end of a matmul if cuBLASLt cannot do it: add bias and residual to products
 * of fp32, and round to the type of out. It also computes a product with k = 0, which cuBLASLt
 * refuses. One thread per element. */
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

typedef struct finish_args {
    const matmul_args *a;
    const float *products;
} finish_args;

static cudaError_t finish_issue(stream *s, const void *args)
{
    const finish_args *f = (const finish_args *)args;
    return LAUNCH(fast_finish_kernel, blocks_of(f->a->m * f->a->n), BLOCK_THREADS, s, *f->a,
                  f->products);
}

fsdp_status fast_matmul_finish(stream *s, const matmul_args *a, const float *products)
{
    const finish_args f = {a, products};
    op_work work = matmul_work(a);
    if (products != NULL) { /* the watch knows the products' cost already */
        memset(&work.info, 0, sizeof work.info);
        work.info.key.name = "matmul_finish";
        op_reads(&work, products, matmul_out_span(a) * sizeof *products);
    }
    return cuda_issue(s, finish_issue, &f, work);
}
