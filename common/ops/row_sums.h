/* row_sums.h -- loads and stores of a row's elements, and sums along a row.
 *
 * row_*.h define what the operations of ops.h compute for an element or a row, in plain C for host
 * and device compilers. The last argument `type` says how the elements are stored. It is a constant
 * (BY_TYPE), so the compiler makes one loop for each type.
 *
 * A sum along a row is LANES partial sums (element i goes to lane i % LANES), added in one fixed
 * tree. Compilers vectorise that without changing the order of additions. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "common/base/dtype.h"

/* BY_TYPE -- call f(..., type) with type as a constant. */
#define BY_TYPE(f, type, ...)                                                                      \
    ((type) == DTYPE_F32 ? f(__VA_ARGS__, DTYPE_F32) : f(__VA_ARGS__, DTYPE_BF16))

/* row_load -- element i as fp32. */
ROW_FN float row_load(const void *x, size_t i, dtype type)
{
    return type == DTYPE_F32 ? ((const float *)x)[i] : f32_from_bf16(((const uint16_t *)x)[i]);
}

/* row_store -- element i = value, rounded if type is bf16. */
ROW_FN void row_store(void *x, size_t i, float value, dtype type)
{
    if (type == DTYPE_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = bf16_from_f32(value);
}

/* row_at -- the address of element i. */
ROW_FN const void *row_at(const void *x, size_t i, dtype type)
{
    return (const char *)x + i * (type == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* row_out_at -- the address of element i, for writing. */
ROW_FN void *row_out_at(void *x, size_t i, dtype type)
{
    return (char *)x + i * (type == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

enum { LANES = 16, MAX_LANES = 32 };

/* ROW_BY_LANES -- a statement for each element i of n, which goes to lane l. */
#define ROW_BY_LANES(n, i, l, ...)                                                                 \
    do {                                                                                           \
        size_t block_ = 0;                                                                         \
        for (; block_ + LANES <= (n); block_ += LANES)                                             \
            for (size_t l = 0; l < LANES; l++) {                                                   \
                const size_t i = block_ + l;                                                       \
                __VA_ARGS__;                                                                       \
            }                                                                                      \
        for (size_t l = 0; block_ + l < (n); l++) {                                                \
            const size_t i = block_ + l;                                                           \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* lanes_sum -- lanes 0+8, 1+9, ...; then 0+4, ...; 0+2, 1+3; 0+1. Not inlined: clang would
 * otherwise vectorise the caller's loop over the lanes only in pairs, to match these additions. */
ROW_CALL float lanes_sum(const float *acc)
{
    float half[LANES / 2], quarter[LANES / 4];
    for (size_t l = 0; l < LANES / 2; l++)
        half[l] = acc[l] + acc[l + LANES / 2];
    for (size_t l = 0; l < LANES / 4; l++)
        quarter[l] = half[l] + half[l + LANES / 4];
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* row_sum -- x[0] + ... + x[n-1] by lanes. */
ROW_FN float row_sum(const void *x, size_t n, dtype type)
{
    float acc[LANES] = {0};
    ROW_BY_LANES(n, i, l, acc[l] += row_load(x, i, type));
    return lanes_sum(acc);
}

/* row_dot -- sum of a[i]*b[i] by lanes. */
ROW_FN float row_dot(const void *a, const void *b, size_t n, dtype type)
{
    float acc[LANES] = {0};
    ROW_BY_LANES(n, i, l, acc[l] += row_load(a, i, type) * row_load(b, i, type));
    return lanes_sum(acc);
}

/* larger -- a if a > b, else b; so a NaN in a is ignored. */
ROW_FN float larger(float a, float b)
{
    return a > b ? a : b;
}

/* row_max -- the largest element, ignoring NaNs; -infinity for n = 0. It keeps MAX_LANES running
 * maxima, because gcc unrolls a loop over fewer and then does not vectorise it. */
ROW_FN float row_max(const void *x, size_t n, dtype type)
{
    float top[MAX_LANES];
    size_t begin = 0;
    for (size_t l = 0; l < MAX_LANES; l++)
        top[l] = -__builtin_inff();
    for (; begin + MAX_LANES <= n; begin += MAX_LANES)
        for (size_t l = 0; l < MAX_LANES; l++)
            top[l] = larger(row_load(x, begin + l, type), top[l]);
    for (size_t l = 0; begin + l < n; l++)
        top[l] = larger(row_load(x, begin + l, type), top[l]);
    for (size_t l = 0; l < 16; l++)
        top[l] = larger(top[l], top[l + 16]);
    for (size_t l = 0; l < 8; l++)
        top[l] = larger(top[l], top[l + 8]);
    for (size_t l = 0; l < 4; l++)
        top[l] = larger(top[l], top[l + 4]);
    return larger(larger(top[0], top[1]), larger(top[2], top[3]));
}
