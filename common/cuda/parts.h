/* parts.h -- loads and stores of up to 16 bytes of neighbouring elements, for kernels of the fast
 * table. Only for .cu files. */
#pragma once
#include "common/cuda/launch.h"
#include "common/ops/row_sums.h"

/* A thread's part of an array: one element, or 16 bytes, which are loaded one by one or at once. */
typedef enum part_kind { ELEMENT, ELEMENTS, VECTOR } part_kind;
enum { PART_BYTES = 16, MOST_ELEMS = PART_BYTES / sizeof(uint16_t) };

/* BY_PART -- BY_TYPE, and the part's kind is a constant before the type. */
#define BY_PART(f, kind, type, ...)                                                                \
    ((kind) == VECTOR     ? BY_TYPE(f, type, __VA_ARGS__, VECTOR)                                  \
     : (kind) == ELEMENTS ? BY_TYPE(f, type, __VA_ARGS__, ELEMENTS)                                \
                          : BY_TYPE(f, type, __VA_ARGS__, ELEMENT))

/* part_elems -- the number of elements of a part. */
static __host__ __device__ inline size_t part_elems(part_kind kind, dtype type)
{
    return kind == ELEMENT ? 1
                           : PART_BYTES / (type == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* part_kind_for -- the kind for rows of `cols` elements. arrays [n]; NULL: there is none. */
static inline part_kind part_kind_for(size_t cols, dtype type, const void *const *arrays, int n)
{
    uintptr_t bits = 0;
    for (int i = 0; i < n; i++)
        bits |= (uintptr_t)arrays[i];
    if (cols % part_elems(VECTOR, type) != 0)
        return ELEMENT;
    return bits % PART_BYTES == 0 ? VECTOR : ELEMENTS;
}

/* load -- x [n] = the elements from number i on. store -- the reverse. at_once: by 16 bytes, which
 * are aligned. */
static __device__ inline void load(float *x, const void *from, size_t i, size_t n, bool at_once,
                                   dtype type)
{
    alignas(float4) char part[MOST_ELEMS * sizeof(float)];
    for (size_t k = 0; at_once && k < n / part_elems(VECTOR, type); k++) {
        const float4 whole = ((const float4 *)row_at(from, i, type))[k];
        memcpy(part + k * sizeof whole, &whole, sizeof whole);
    }
    for (size_t e = 0; e < n; e++)
        x[e] = at_once ? row_load(part, e, type) : row_load(from, i + e, type);
}
static __device__ inline void store(void *to, size_t i, const float *x, size_t n, bool at_once,
                                    dtype type)
{
    alignas(float4) char part[MOST_ELEMS * sizeof(float)];
    for (size_t e = 0; e < n; e++)
        row_store(at_once ? part : to, at_once ? e : i + e, x[e], type);
    for (size_t k = 0; at_once && k < n / part_elems(VECTOR, type); k++) {
        float4 whole;
        memcpy(&whole, part + k * sizeof whole, sizeof whole);
        ((float4 *)row_out_at(to, i, type))[k] = whole;
    }
}
