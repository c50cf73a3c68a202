/* fast_elementwise.cu -- gelu and swiglu for the fast table: a thread computes 16 bytes of each
 * array, at once if all arrays are aligned, else one element after the other. An element's bits do
 * not depend on that: the compiler fuses no multiply-add, only fmaf does.
 *
 * For gelu, (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)) takes one exponential, and small results keep
 * their last bits. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/cuda/parts.h"
#include "common/ops/row_elem.h"

#define LOG2_E 1.4426950408889634

/* IN_PARTS(op, AT(array) | ...) -- defines fast_op, given all arrays. op_part computes elements i
 * ... i + n - 1, where n is 1, or the elements of a part in arrays that are aligned. */
#define IN_PARTS(op, addresses)                                                                    \
    static __device__ inline void op##_thread(const op##_args *a, bool at_once, dtype type)        \
    {                                                                                              \
        const size_t n = part_elems(VECTOR, type), i = n * global_thread();                        \
        if (at_once && i + n <= a->elems)                                                          \
            op##_part(a, i, n, type);                                                              \
        else                                                                                       \
            for (size_t e = i; e < smaller(i + n, a->elems); e++)                                  \
                op##_part(a, e, 1, type);                                                          \
    }                                                                                              \
    __global__ void fast_##op##_kernel(op##_args a, bool at_once)                                  \
    {                                                                                              \
        BY_TYPE(op##_thread, a.type, &a, at_once);                                                 \
    }                                                                                              \
    OPERATION(fast, op, fast_##op##_kernel,                                                        \
              groups_of(a->elems, part_elems(VECTOR, a->type) * BLOCK_THREADS), BLOCK_THREADS, *a, \
              (addresses) % PART_BYTES == 0)
#define AT(array) ((uintptr_t)a->array)

/* 1 / (1 + 2^x). __fdividef does not branch and errs by at most 2 in the last place. */
static __device__ inline float logistic(float x)
{
    return __fdividef(1.0f, 1.0f + exp2f(x));
}

/* (1 + tanh(u)) / 2 of gelu, u = sqrt(2/pi) (x + 0.044715 x^3). */
static __device__ inline float gelu_gate(float x)
{
    const float linear = (float)(-2.0 * LOG2_E * GELU_SCALE);
    const float cubic = (float)(-2.0 * LOG2_E * GELU_SCALE * GELU_CUBIC);
    return logistic(x * fmaf(cubic, x * x, linear));
}

static __device__ inline void gelu_part(const gelu_args *a, size_t i, size_t n, dtype type)
{
    float x[MOST_ELEMS];
    load(x, a->in, i, n, n > 1, type);
    for (size_t e = 0; e < n; e++)
        x[e] *= gelu_gate(x[e]);
    store(a->out, i, x, n, n > 1, type);
}

IN_PARTS(gelu, AT(out) | AT(in))

/* gelu'(x) = s + x s (1 - s) 2u', s = gelu_gate(x). */
static __device__ inline void gelu_backward_part(const gelu_backward_args *a, size_t i, size_t n,
                                                 dtype type)
{
    float d[MOST_ELEMS], x[MOST_ELEMS];
    load(d, a->d_out, i, n, n > 1, type);
    load(x, a->in, i, n, n > 1, type);
    for (size_t e = 0; e < n; e++) {
        const float s = gelu_gate(x[e]);
        const float slope = fmaf(6.0f * GELU_SCALE * GELU_CUBIC, x[e] * x[e], 2.0f * GELU_SCALE);
        d[e] *= fmaf(x[e] * s * (1.0f - s), slope, s);
    }
    store(a->d_in, i, d, n, n > 1, type);
}

IN_PARTS(gelu_backward, AT(d_in) | AT(d_out) | AT(in))

static __device__ inline void swiglu_part(const swiglu_args *a, size_t i, size_t n, dtype type)
{
    float x[MOST_ELEMS], up[MOST_ELEMS];
    load(x, a->gate, i, n, n > 1, type);
    load(up, a->up, i, n, n > 1, type);
    for (size_t e = 0; e < n; e++)
        x[e] *= logistic((float)-LOG2_E * x[e]) * up[e];
    store(a->out, i, x, n, n > 1, type);
}

IN_PARTS(swiglu, AT(out) | AT(gate) | AT(up))

static __device__ inline void swiglu_backward_part(const swiglu_backward_args *a, size_t i,
                                                   size_t n, dtype type)
{
    float d[MOST_ELEMS], x[MOST_ELEMS], up[MOST_ELEMS];
    load(d, a->d_out, i, n, n > 1, type);
    load(x, a->gate, i, n, n > 1, type);
    load(up, a->up, i, n, n > 1, type);
    for (size_t e = 0; e < n; e++) {
        const float s = logistic((float)-LOG2_E * x[e]);
        up[e] *= d[e] * s * fmaf(x[e], 1.0f - s, 1.0f);
        d[e] *= x[e] * s;
    }
    store(a->d_up, i, d, n, n > 1, type);
    store(a->d_gate, i, up, n, n > 1, type);
}

IN_PARTS(swiglu_backward, AT(d_gate) | AT(d_up) | AT(d_out) | AT(gate) | AT(up))
