/* rsum_digits.h -- operations on the digits of rsum.h's fixed-point number, for host and device. */
#pragma once
#include "common/base/pmath.h"
#include "common/sum/rsum.h"

enum {
    RSUM_UNIT_LOG2 = -298, /* weight of bin[0] */
    EXP_SPECIAL = 255      /* biased exponent of infinity and NaN */
};

typedef unsigned __int128 uint128;

/* rsum_normalise -- bring the digits to 0 ... 2^32-1 by carrying. The value does not change.
 * Before, the digits may be any non-negative int64. */
ROW_FN void rsum_normalise(int64_t *bin)
{
    for (int i = 0; i < RSUM_DIGITS - 1; i++) {
        bin[i + 1] += bin[i] >> 32;
        bin[i] &= 0xffffffff;
    }
}

/* rsum_add_digits -- digits += sum * 2^shift. shift is even, so within a digit the sum is shifted
 * by at most 30 and has up to 94 bits: three digits. */
ROW_FN void rsum_add_digits(int64_t *bin, uint64_t sum, int shift)
{
    uint128 wide = (uint128)sum << (shift % 32);
    int64_t *digit = &bin[shift / 32];
    digit[0] += (int64_t)(uint32_t)wide;
    digit[1] += (int64_t)(uint32_t)(wide >> 32);
    digit[2] += (int64_t)(wide >> 64);
}

/* rsum_lead_value -- the number with three digits in `lead`, whose lowest bit weighs 2^unit_log2,
 * rounded to nearest, ties to even. */
ROW_FN double rsum_lead_value(uint128 lead, int unit_log2)
{
    int lead_bits = 0;
    for (uint128 v = lead; v != 0; v >>= 1)
        lead_bits++;
    int drop = lead_bits > 53 ? lead_bits - 53 : 0;
    uint64_t kept = (uint64_t)(lead >> drop);
    uint128 rest = lead - ((uint128)kept << drop), half = (uint128)1 << drop >> 1;
    if (rest > half || (rest == half && drop > 0 && (kept & 1)))
        kept++; /* 2^53 is a double too */
    /* exact: the sum of the powers is far from a double's limits */
    return (double)kept * pm_from_bits((uint64_t)(drop + unit_log2 + 1023) << 52);
}

/* rsum_value -- the sum, rounded once to double (to nearest, ties to even). NaN if a NaN was added;
 * else +infinity if an infinity was. */
ROW_FN double rsum_value(const rsum *r)
{
    rsum sum = *r;
    rsum_normalise(sum.bin);
    if (sum.bin[RSUM_BIN_NAN] != 0)
        return pm_from_bits(0x7ff8000000000000);
    if (sum.bin[RSUM_BIN_INF] != 0)
        return pm_from_bits(0x7ff0000000000000);
    int top = RSUM_DIGITS - 1;
    while (top > 0 && sum.bin[top] == 0)
        top--;
    /* The three leading digits hold at least 65 bits of the sum, or all of it: more than the 53 of
     * a double and its rounding bit. Of the digits below only "not zero" matters. */
    uint128 lead = 0;
    for (int i = top; i > top - 3; i--)
        lead = lead << 32 | (i >= 0 ? (uint64_t)sum.bin[i] : 0);
    for (int i = 0; i < top - 2; i++)
        lead |= sum.bin[i] != 0;
    return rsum_lead_value(lead, 32 * (top - 2) + RSUM_UNIT_LOG2);
}
