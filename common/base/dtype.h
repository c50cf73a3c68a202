/* dtype.h -- element types, bf16, and checked size arithmetic. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/base/row_fn.h"
#include "common/base/status.h"

EXTERN_C_BEGIN

/* DTYPE_F32 is 0, so a struct of arguments that names no type means fp32. */
typedef enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8 } dtype;

/* dtype_bytes -- bytes of one element; asserts that t is a type. */
size_t dtype_bytes(dtype t);
/* dtype_name -- "f32", "bf16", "i64", "u8", or "unknown type". */
const char *dtype_name(dtype t);

/* bf16_from_f32 -- round an fp32 to bf16, its upper half (sign, all 8 bits of the exponent, 7
 * of the 23 bits of the fraction): to nearest, ties to even.
 *     1.00390625 = 3f80|8000  half way, 3f80 is even   -> 3f80 = 1
 *     1.01171875 = 3f81|8000  half way, 3f81 is odd    -> 3f82 = 1.015625
 * A carry out of the fraction raises the exponent; above the largest exponent the result is
 * infinity. Denormals are rounded like all other numbers. A NaN is not rounded, because rounding
 * could turn it into infinity: it keeps its sign and upper bits, and becomes quiet. Only integer
 * operations are used, so every machine gives the same result. */
ROW_FN uint16_t bf16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint32_t rounded = u + 0x7fffu + (u >> 16 & 1u);
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded >> 16);
}

/* f32_from_bf16 -- convert exactly. */
ROW_FN float f32_from_bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* f32_from_f16 -- convert exactly. f16 has 1 sign bit, 5 of exponent (bias 15) and 10 of fraction.
 *     3c00 = 1    0001 = 2^-24, the smallest denormal    7c00 = infinity */
static inline float f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u;
    const uint32_t fraction = h & 0x3ffu;
    uint32_t u = sign | (exponent == 31u ? 255u : exponent + 112u) << 23 | fraction << 13;
    float x;
    memcpy(&x, &u, sizeof x);
    if (exponent == 0)
        x = (sign ? -0x1p-24f : 0x1p-24f) * (float)fraction;
    return x;
}

/* bf16_round -- the nearest bf16, as an fp32. */
ROW_FN float bf16_round(float x)
{
    return f32_from_bf16(bf16_from_f32(x));
}

/* size_mul -- *out = a * b.
 *   errors  FSDP_EINVAL naming `what`: the product does not fit a size_t */
fsdp_status size_mul(size_t a, size_t b, const char *what, size_t *out);

/* min_size -- the smaller one. */
static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* size_round_up -- n rounded up to a multiple of align, for sizes known to be small: align must not
 * be 0 and the result must fit, but neither is checked. */
static inline size_t size_round_up(size_t n, size_t align)
{
    return (n + align - 1) / align * align;
}

/* size_align_up -- *out = n rounded up to a multiple of align: 10 by 4 -> 12, 12 by 4 -> 12.
 *   errors  FSDP_EINVAL naming `what`: align is 0, or the result does not fit a size_t */
fsdp_status size_align_up(size_t n, size_t align, const char *what, size_t *out);

/* elems_to_int -- an element count as an int, for MPI and libraries; asserts that it fits. */
int elems_to_int(size_t elems);

EXTERN_C_END
