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

ISSUE(gelu, gelu_args, blocks_of(a->elems), BLOCK_THREADS)

fsdp_status cuda_gelu(stream *s, const gelu_args *a)
{
    TRY(check_type("gelu", a->type));
    return a->elems > 0 ? cuda_issue(s, gelu_issue, a, gelu_work(a)) : FSDP_OK;
}

__global__ void gelu_backward_kernel(gelu_backward_args a)
{
    const size_t i = global_thread();
    if (i >= a.elems)
        return;
    const float slope = gelu_slope(row_load(a.in, i, a.type));
    row_store(a.d_in, i, row_load(a.d_out, i, a.type) * slope, a.type);
}

ISSUE(gelu_backward, gelu_backward_args, blocks_of(a->elems), BLOCK_THREADS)

fsdp_status cuda_gelu_backward(stream *s, const gelu_backward_args *a)
{
    TRY(check_type("gelu_backward", a->type));
    return a->elems > 0 ? cuda_issue(s, gelu_backward_issue, a, gelu_backward_work(a)) : FSDP_OK;
}

/* ---- cast ------------------------------------------------------------------------------------ */

/* Equal types are copied as they are: to load and store a bf16 would quieten a NaN. */
__global__ void cast_kernel(cast_args a)
{
    const size_t i = global_thread();
    if (i >= a.elems)
        return;
    if (a.in_type == DTYPE_BF16 && a.out_type == DTYPE_BF16)
        ((uint16_t *)a.out)[i] = ((const uint16_t *)a.in)[i];
    else
        row_store(a.out, i, row_load(a.in, i, a.in_type), a.out_type);
}

ISSUE(cast, cast_args, blocks_of(a->elems), BLOCK_THREADS)

fsdp_status cuda_cast(stream *s, const cast_args *a)
{
    TRY(check_type("cast", a->in_type));
    TRY(check_type("cast", a->out_type));
    return a->elems > 0 ? cuda_issue(s, cast_issue, a, cast_work(a)) : FSDP_OK;
}

/* ---- add, scale ------------------------------------------------------------------------------ */

__global__ void add_kernel(add_args a)
{
    const size_t i = global_thread();
    if (i < a.elems)
        a.out[i] = add_elem(&a, i, a.round_to);
}

ISSUE(add, add_args, blocks_of(a->elems), BLOCK_THREADS)

fsdp_status cuda_add(stream *s, const add_args *a)
{
    FSDP_ASSERT(a->round_to == DTYPE_BF16 || (a->round_to == DTYPE_F32 && a->b) || a->elems == 0);
    return a->elems > 0 ? cuda_issue(s, add_issue, a, add_work(a)) : FSDP_OK;
}

__global__ void scale_kernel(scale_args a)
{
    const size_t i = global_thread();
    const float factor = a.device_factor ? a.factor * *a.device_factor : a.factor;
    if (i < a.elems)
        a.x[i] *= factor;
}

ISSUE(scale, scale_args, blocks_of(a->elems), BLOCK_THREADS)

fsdp_status cuda_scale(stream *s, const scale_args *a)
{
    return a->elems > 0 ? cuda_issue(s, scale_issue, a, scale_work(a)) : FSDP_OK;
}

/* ---- updates --------------------------------------------------------------------------------- */

__global__ void adamw_kernel(adamw_args a)
{
    const size_t i = global_thread();
    const float coef = a.grad_coef ? *a.grad_coef : 1.0f; /* x * 1.0f is x */
    if (i < a.elems)
        adamw_elem(&a, a.grad[i] * coef, &a.param[i], &a.m[i], &a.v[i]);
}

ISSUE(adamw, adamw_args, blocks_of(a->elems), BLOCK_THREADS)

fsdp_status cuda_adamw(stream *s, const adamw_args *a)
{
    return a->elems > 0 ? cuda_issue(s, adamw_issue, a, adamw_work(a)) : FSDP_OK;
}

__global__ void sgd_kernel(sgd_args a)
{
    const size_t i = global_thread();
    const float coef = a.grad_coef ? *a.grad_coef : 1.0f;
    if (i < a.elems)
        a.param[i] = sgd_elem(&a, a.grad[i] * coef, a.param[i]);
}

ISSUE(sgd, sgd_args, blocks_of(a->elems), BLOCK_THREADS)

fsdp_status cuda_sgd(stream *s, const sgd_args *a)
{
    return a->elems > 0 ? cuda_issue(s, sgd_issue, a, sgd_work(a)) : FSDP_OK;
}
