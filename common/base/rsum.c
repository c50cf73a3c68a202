/* rsum.c -- exact sums of squares: a fixed-point accumulator fed by a table of exponents.
 *
 * A float is m * 2^(E-150) with a whole m < 2^24 and E = 1 ... 254 (denormals have E = 1), so its
 * square is m*m * 2^(2(E-1)) in units of 2^-298, the square of the smallest denormal:
 *
 *     bin[i] weighs 2^(32*i - 298)       i = 0 ... RSUM_DIGITS-1
 *
 * Adding a 48-bit square to three digits per element would be slow. Instead the squares of a block
 * are added up by exponent (all squares of one E have one unit), and the 256 sums go to the digits
 * once per block:
 *     add_block:  table[E] += m*m           2^16 elements at most: 2^16 * 2^48 = 2^64
 *     flush:      digits += table[E] << 2(E-1)
 * Several tables are used in turn, so that neighbours with equal exponents (the normal case) do not
 * wait for each other's store. [Demmel & Nguyen 2013; Kulisch accumulator]                      */
#include "common/base/rsum.h"

#include <math.h>
#include <string.h>

enum {
    TABLES = 4,
    BLOCK_ELEMS = 1 << 16, /* (2^24 - 1)^2 * 2^16 < 2^64, even if one table took them all */
    UNIT_LOG2 = -298,      /* weight of bin[0] */
    EXP_SPECIAL = 255      /* biased exponent of infinity and NaN */
};

typedef unsigned __int128 uint128;

/* normalise -- digits to 0 ... 2^32-1 by carrying; the value does not change. Digits may hold any
 * non-negative int64 before.                                                                     */
static void normalise(int64_t *bin)
{
    for (int i = 0; i < RSUM_DIGITS - 1; i++) {
        bin[i + 1] += bin[i] >> 32;
        bin[i] &= 0xffffffff;
    }
}

static inline void add_one(uint64_t *table, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t exponent = (bits >> 23) & 0xff;
    uint64_t m = (bits & 0x7fffff) | (exponent != 0 ? 0x800000u : 0u);
    table[exponent] += m * m;
}

/* add_digits -- digits += sum * 2^shift; sum << 30 takes 94 bits, so three digits. */
static void add_digits(int64_t *bin, uint64_t sum, int shift)
{
    uint128 wide = (uint128)sum << (shift % 32);
    int64_t *digit = &bin[shift / 32];
    digit[0] += (int64_t)(uint32_t)wide;
    digit[1] += (int64_t)(uint32_t)(wide >> 32);
    digit[2] += (int64_t)(wide >> 64);
}

static void count_specials(rsum *r, const float *x, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        r->bin[RSUM_BIN_NAN] += isnan(x[i]) ? 1 : 0;
        r->bin[RSUM_BIN_INF] += isinf(x[i]) ? 1 : 0;
    }
}

/* add_block -- r += squares of at most BLOCK_ELEMS elements. */
static void add_block(rsum *r, const float *x, size_t elems)
{
    uint64_t table[TABLES][256] = {{0}};
    size_t whole = elems - elems % TABLES;
    for (size_t i = 0; i < whole; i += TABLES)
        for (size_t t = 0; t < TABLES; t++)
            add_one(table[t], x[i + t]);
    for (size_t i = whole; i < elems; i++)
        add_one(table[0], x[i]);

    uint64_t specials = 0;
    for (int e = 0; e < 256; e++) {
        uint64_t sum = 0; /* cannot wrap: the tables share one block */
        for (int t = 0; t < TABLES; t++)
            sum += table[t][e];
        if (e == EXP_SPECIAL)
            specials = sum;
        else if (sum != 0)
            add_digits(r->bin, sum, e > 1 ? 2 * (e - 1) : 0); /* E = max(e, 1) */
    }
    normalise(r->bin);
    if (specials != 0) /* rare: look again, to tell infinities from NaNs */
        count_specials(r, x, elems);
}

void rsum_add_squares(rsum *r, const float *x, size_t elems)
{
    normalise(r->bin);
    for (size_t begin = 0; begin < elems; begin += BLOCK_ELEMS) {
        size_t left = elems - begin;
        add_block(r, x + begin, left < BLOCK_ELEMS ? left : BLOCK_ELEMS);
    }
}

void rsum_merge(rsum *r, const rsum *other)
{
    for (int i = 0; i < RSUM_BINS; i++) /* 2^30 parts on either side: 2^31 (2^32 - 1) and a carry */
        r->bin[i] += other->bin[i];     /* of 2^31 - 1 still fit                                  */
    normalise(r->bin);
}

double rsum_value(const rsum *r)
{
    rsum sum = *r;
    normalise(sum.bin);
    if (sum.bin[RSUM_BIN_NAN] != 0)
        return NAN;
    if (sum.bin[RSUM_BIN_INF] != 0)
        return INFINITY;
    int top = RSUM_DIGITS - 1;
    while (top > 0 && sum.bin[top] == 0)
        top--;
    /* The three leading digits hold at least 65 bits of the sum (or all of it): more than the 53
     * of a double and its rounding bit. Whether anything is below only matters as "not zero".    */
    uint128 lead = 0;
    for (int i = top; i > top - 3; i--)
        lead = lead << 32 | (i >= 0 ? (uint64_t)sum.bin[i] : 0);
    for (int i = 0; i < top - 2; i++)
        lead |= sum.bin[i] != 0;
    if (lead == 0)
        return 0.0;

    int lead_bits = 0;
    for (uint128 v = lead; v != 0; v >>= 1)
        lead_bits++;
    int drop = lead_bits > 53 ? lead_bits - 53 : 0;
    uint64_t kept = (uint64_t)(lead >> drop);
    uint128 rest = lead - ((uint128)kept << drop), half = (uint128)1 << drop >> 1;
    if (rest > half || (rest == half && drop > 0 && (kept & 1)))
        kept++; /* to nearest, ties to even; 2^53 is a double too */
    return ldexp((double)kept, drop + 32 * (top - 2) + UNIT_LOG2);
}
