/* parts.h -- a thread's part of a row in the fast table: 16 bytes. Only for .cu files. */
#pragma once
#include "common/cuda/launch.h"
#include "common/ops/row_sums.h"

enum { PART_BYTES = 16, MOST_ELEMS = PART_BYTES / sizeof(uint16_t) };

/* vector_elems -- the number of elements in a part. */
static __host__ __device__ inline size_t vector_elems(dtype type)
{
    return PART_BYTES / (type == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* load, store -- x [n] = the elements from number i on, and the reverse. at_once: by 16 bytes,
 * which are aligned. */
static __device__ inline void load(float *x, const void *from, size_t i, size_t n, bool at_once,
                                   dtype type)
{
    alignas(float4) char part[MOST_ELEMS * sizeof(float)];
    for (size_t k = 0; at_once && k < n / vector_elems(type); k++) {
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
    for (size_t k = 0; at_once && k < n / vector_elems(type); k++) {
        float4 whole;
        memcpy(&whole, part + k * sizeof whole, sizeof whole);
        ((float4 *)row_out_at(to, i, type))[k] = whole;
    }
}
