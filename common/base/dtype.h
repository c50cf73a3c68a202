/* dtype.h -- element types that cross the seams, bf16, and checked size arithmetic. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/base/status.h"

/* DTYPE_F32 is 0: a struct of arguments that does not name a type means fp32. */
typedef enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8 } dtype;

size_t dtype_bytes(dtype t);
const char *dtype_name(dtype t);

/* bf16_from_f32 -- the upper half of an fp32: its sign, all 8 bits of its exponent, and 7 of the 23
 * bits of its fraction; rounded to nearest, ties to the even one.
 *     1.00390625 = 3f80|8000  half way, 3f80 is even   -> 3f80 = 1
 *     1.01171875 = 3f81|8000  half way, 3f81 is odd    -> 3f82 = 1.015625
 * A carry out of the fraction raises the exponent, from the largest one to infinity; denormals are
 * rounded as all others are. A NaN keeps its sign and its upper bits and becomes quiet: rounded as
 * a number, it could turn into infinity. Done on integers, so that no machine differs.           */
static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint32_t rounded = u + 0x7fffu + (u >> 16 & 1u);
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded >> 16);
}

/* f32_from_bf16 -- exact. */
static inline float f32_from_bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* bf16_round -- the nearest bf16, in an fp32. */
static inline float bf16_round(float x)
{
    return f32_from_bf16(bf16_from_f32(x));
}

/* size_mul -- *out = a * b, or FSDP_EINVAL naming `what` when it does not fit a size_t. */
fsdp_status size_mul(size_t a, size_t b, const char *what, size_t *out);

/* size_round_up -- n rounded up to a multiple of align, for sizes that are known to be small:
 * neither align is 0 nor the sum too large. */
static inline size_t size_round_up(size_t n, size_t align)
{
    return (n + align - 1) / align * align;
}

/* size_align_up -- *out = n rounded up to a multiple of align: 10 by 4 -> 12, 12 by 4 -> 12, 0 ->
 * 0. FSDP_EINVAL naming `what` when align is 0 or the result does not fit a size_t. */
fsdp_status size_align_up(size_t n, size_t align, const char *what, size_t *out);

/* elems_to_int -- an element count for an interface that takes int; asserts that it fits. */
int elems_to_int(size_t elems);

/* size_log2_floor -- floor(log2(n)); 0 for n = 0. */
int size_log2_floor(size_t n);
