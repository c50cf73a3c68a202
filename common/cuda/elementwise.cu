/* elementwise.cu -- operations on single elements, for both tables (gelu and swiglu: portable): one
 * thread per element, with the functions of the CPU (ops/row_*.h), so that the bits equal the
 * CPU's. Also rope: one thread for the pairs of all heads that are rotated by one angle. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/range_blocks.h"
#include "common/ops/row_adamw.h"
#include "common/ops/row_elem.h"
#include "common/ops/row_image.h"

/* ELEMENT(op) { ... } -- the body of operation op for element i, with arguments *a.
 * ELEMENTWISE(op) -- defines cuda_op, which runs the body for each element. ELEMENTS(table, op,
 * type) -- defines table_op, with the CPU's op_at, which takes a.type. */
#define ELEMENT(op) static __device__ inline void op##_at(const op##_args *a, size_t i)
#define EACH_ELEMENT(table, op, ...)                                                               \
    __global__ void op##_kernel(op##_args a)                                                       \
    {                                                                                              \
        const size_t i = global_thread();                                                          \
        if (i < a.elems)                                                                           \
            op##_at(__VA_ARGS__);                                                                  \
    }                                                                                              \
    OPERATION(table, op, op##_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)
#define ELEMENTWISE(op)           EACH_ELEMENT(cuda, op, &a, i)
#define ELEMENTS(table, op, type) EACH_ELEMENT(table, op, &a, i, a.type)

ELEMENTS(portable, gelu, type)
ELEMENTS(portable, gelu_backward, type)
ELEMENTS(cuda, relu, type)
ELEMENTS(cuda, relu_backward, type)
ELEMENTS(portable, swiglu, type)
ELEMENTS(portable, swiglu_backward, type)
ELEMENTS(cuda, add, round_to)

/* ---- rope ------------------------------------------------------------------------------------ */

/* The number of angles of a row. */
static __host__ __device__ inline size_t rope_angles(const rope_args *a)
{
    return a->head_dim / 2;
}

__global__ void rope_kernel(rope_args a)
{
    const size_t i = global_thread(), angles = rope_angles(&a);
    if (i < a.batch * a.seq_len * angles)
        BY_TYPE(rope_pairs, a.type, &a, i / angles, i % angles);
}

OPERATION(cuda, rope, rope_kernel, blocks_of(a->batch * a->seq_len * rope_angles(a)), BLOCK_THREADS,
          *a)

/* ---- cast ------------------------------------------------------------------------------------ */

/* From bf16 to bf16 the bits are copied: a conversion to fp32 and back would turn a signalling NaN
 * into a quiet one. */
ELEMENT(cast)
{
    if (a->in_type == DTYPE_BF16 && a->out_type == DTYPE_BF16)
        ((uint16_t *)a->out)[i] = ((const uint16_t *)a->in)[i];
    else
        row_store(a->out, i, row_load(a->in, i, a->in_type), a->out_type);
}

ELEMENTWISE(cast)

/* ---- scale ----------------------------------------------------------------------------------- */

ELEMENT(scale)
{
    a->x[i] *= a->factor;
}

ELEMENTWISE(scale)

/* ---- updates --------------------------------------------------------------------------------- */

/* The gradient of element i times the coefficient, if there is one; x * 1.0f is exactly x. */
#define GRAD(a, i) ((a)->grad[i] * ((a)->grad_coef ? *(a)->grad_coef : 1.0f))

/* RANGES_OF(op, of_range) -- like ELEMENTWISE, for the elements of a->ranges: each range has blocks
 * of its own. */
#define RANGES_OF(op, of_range)                                                                    \
    __global__ void op##_kernel(op##_args a, const __grid_constant__ range_blocks ranges)          \
    {                                                                                              \
        int n = 0;                                                                                 \
        while (blockIdx.x >= ranges.end[n])                                                        \
            n++;                                                                                   \
        const op##_args part = of_range(&a, ranges.at[n]);                                         \
        const size_t i =                                                                           \
            global_thread() - (n > 0 ? ranges.end[n - 1] * (size_t)BLOCK_THREADS : 0);             \
        if (i < part.elems)                                                                        \
            op##_at(&part, i);                                                                     \
    }                                                                                              \
    static cudaError_t op##_issue(stream *s, const void *args)                                     \
    {                                                                                              \
        const op##_args *a = (const op##_args *)args;                                              \
        cudaError_t error = cudaSuccess;                                                           \
        range_blocks ranges;                                                                       \
        for (int i = 0; error == cudaSuccess && next_blocks(&a->ranges, a->elems, &i, &ranges);)   \
            error = LAUNCH(op##_kernel, ranges.end[ranges.n - 1], BLOCK_THREADS, s, *a, ranges);   \
        return error;                                                                              \
    }                                                                                              \
    ISSUED(cuda, op)

ELEMENT(adamw)
{
    adamw_elem(a, GRAD(a, i), &a->param[i], &a->m[i], &a->v[i]);
}

RANGES_OF(adamw, adamw_of_range)

#define UPDATE(kind, op, ...)                                                                      \
    ELEMENT(op)                                                                                    \
    {                                                                                              \
        op##_elem(a, GRAD(a, i), i);                                                               \
    }                                                                                              \
    RANGES_OF(op, update_of_range)
UPDATE_RULES(UPDATE)
