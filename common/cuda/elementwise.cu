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

OPERATION(cuda, gelu, gelu_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)

__global__ void gelu_backward_kernel(gelu_backward_args a)
{
    const size_t i = global_thread();
    if (i >= a.elems)
        return;
    const float slope = gelu_slope(row_load(a.in, i, a.type));
    row_store(a.d_in, i, row_load(a.d_out, i, a.type) * slope, a.type);
}

OPERATION(cuda, gelu_backward, gelu_backward_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)

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

OPERATION(cuda, cast, cast_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)

/* ---- add, scale ------------------------------------------------------------------------------ */

__global__ void add_kernel(add_args a)
{
    const size_t i = global_thread();
    if (i < a.elems)
        a.out[i] = add_elem(&a, i, a.round_to);
}

OPERATION(cuda, add, add_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)

__global__ void scale_kernel(scale_args a)
{
    const size_t i = global_thread();
    if (i < a.elems)
        a.x[i] *= a.factor;
}

OPERATION(cuda, scale, scale_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)

/* ---- updates --------------------------------------------------------------------------------- */

__global__ void adamw_kernel(adamw_args a)
{
    const size_t i = global_thread();
    const float coef = a.grad_coef ? *a.grad_coef : 1.0f; /* x * 1.0f is x */
    if (i < a.elems)
        adamw_elem(&a, a.grad[i] * coef, &a.param[i], &a.m[i], &a.v[i]);
}

OPERATION(cuda, adamw, adamw_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)

__global__ void sgd_kernel(sgd_args a)
{
    const size_t i = global_thread();
    const float coef = a.grad_coef ? *a.grad_coef : 1.0f;
    if (i >= a.elems)
        return;
    if (a.momentum_buffer == NULL)
        sgd_elem(&a, a.grad[i] * coef, &a.param[i]);
    else
        momentum_elem(&a, a.grad[i] * coef, &a.param[i], &a.momentum_buffer[i]);
}

OPERATION(cuda, sgd, sgd_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)

__global__ void adadelta_kernel(adadelta_args a)
{
    const size_t i = global_thread();
    const float coef = a.grad_coef ? *a.grad_coef : 1.0f;
    if (i < a.elems)
        adadelta_elem(&a, a.grad[i] * coef, &a.param[i], &a.square_avg[i], &a.acc_delta[i]);
}

OPERATION(cuda, adadelta, adadelta_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)
