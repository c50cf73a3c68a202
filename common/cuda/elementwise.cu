/* elementwise.cu -- operations that treat each element alone, for both tables: one thread an
 * element, with the bodies that the CPU uses (ops/row_elem.h), so the bits are the CPU's. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/ops/row_elem.h"

/* ---- gelu ------------------------------------------------------------------------------------ */

__global__ void gelu_kernel(gelu_args a)
{
    const size_t i = global_thread();
    if (i < a.elems)
        row_store(a.out, i, gelu_elem(row_load(a.in, i, a.type)), a.type);
}

static cudaError_t gelu_issue(cudaStream_t s, const void *args)
{
    const gelu_args *a = (const gelu_args *)args;
    return LAUNCH(gelu_kernel, blocks_of(a->elems), BLOCK_THREADS, s, *a);
}

fsdp_status cuda_gelu(stream *s, const gelu_args *a)
{
    TRY(check_type("gelu", a->type));
    return a->elems > 0 ? cuda_issue(s, gelu_issue, a, gelu_work(a)) : FSDP_OK;
}

/* ---- adamw ----------------------------------------------------------------------------------- */

__global__ void adamw_kernel(adamw_args a)
{
    const size_t i = global_thread();
    const float coef = a.grad_coef ? *a.grad_coef : 1.0f; /* x * 1.0f is x */
    if (i < a.elems)
        adamw_elem(&a, a.grad[i] * coef, &a.param[i], &a.m[i], &a.v[i]);
}

static cudaError_t adamw_issue(cudaStream_t s, const void *args)
{
    const adamw_args *a = (const adamw_args *)args;
    return LAUNCH(adamw_kernel, blocks_of(a->elems), BLOCK_THREADS, s, *a);
}

fsdp_status cuda_adamw(stream *s, const adamw_args *a)
{
    return a->elems > 0 ? cuda_issue(s, adamw_issue, a, adamw_work(a)) : FSDP_OK;
}
