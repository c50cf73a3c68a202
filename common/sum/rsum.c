/* rsum.c -- exact sums of squares: a fixed-point accumulator, and two ways to fill it.
 *
 * A float is m * 2^(E-150) with a whole m < 2^24 and E = 1 ... 254 (denormals have E = 1), so its
 * square is m*m * 2^(2(E-1)) in units of 2^-298, the square of the smallest denormal:
 *
 *     bin[i] weighs 2^(32*i - 298)       i = 0 ... RSUM_DIGITS-1
 *
 * Adding a 48-bit square to three digits per element would be slow. So there are two faster, exact
 * ways to add up a block of elements, whose sums are added to the digits once per block:
 *     add_window   vectors of doubles, for blocks whose exponents are not too far apart
 *     add_table    a table of one sum per exponent, for any block
 * Exact sums do not depend on the order, so either way gives the same bits.
 * [Demmel & Nguyen 2013; Kulisch accumulator] */
#include "common/sum/rsum_digits.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdbool.h>
#include <string.h>

/* ---- the table ------------------------------------------------------------------------------
 * The squares of a block are added up by exponent, because all squares with one E have one unit:
 *     add_one:    table[E] += m*m           2^16 elements at most: 2^16 * 2^48 = 2^64
 *     add_table:  digits += table[E] << 2(E-1)
 * Several tables are used in turn, so that neighbours with equal exponents do not wait for each
 * other's store. */

enum { TABLES = 4 };

static inline uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline void add_one(uint64_t *table, float x)
{
    uint32_t bits = float_bits(x);
    uint32_t exponent = (bits >> 23) & 0xff;
    uint64_t m = (bits & 0x7fffff) | (exponent != 0 ? 0x800000u : 0u);
    table[exponent] += m * m;
}

static void count_specials(rsum *r, const float *x, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        r->bin[RSUM_BIN_NAN] += isnan(x[i]) ? 1 : 0;
        r->bin[RSUM_BIN_INF] += isinf(x[i]) ? 1 : 0;
    }
}

/* add_table -- r += squares of at most 2^16 elements. */
static void add_table(rsum *r, const float *x, size_t elems)
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
            rsum_add_digits(r->bin, sum, e > 1 ? 2 * (e - 1) : 0); /* E = max(e, 1) */
    }
    if (specials != 0) /* rare: look again, to distinguish infinities from NaNs */
        count_specials(r, x, elems);
}

/* ---- the window -----------------------------------------------------------------------------
 * The square of a float is exact in a double. To add doubles exactly, every sum has a fixed unit u:
 * a sum that starts at 2^52 u and stays below 2^53 u has u as its last place, so adding s to it
 * rounds s to a multiple of u. The part rounded off can be recovered exactly, and is added to a
 * second sum with a finer unit:
 *
 *     t = sum + s;  rest = s - (t - sum);  sum = t;          |rest| <= u/2
 *
 * Let `top` be the largest exponent E of the block. Its squares are below 2^(2 top - 252). With
 *     u[0] = 2^(2 top - 252 - 46),  u[1] = u[0] / 2^46,  u[2] = u[1] / 2^46
 * 2^6 squares are below 2^52 u[0] in all, and 2^6 rests of u[l]/2 = 2^45 u[l+1] at most come to
 * 2^51 u[l+1]; rests have signs, so those sums start half way, at 1.5 * 2^52 u[l+1]. The last sum
 * must leave no rest. The last bit of a square weighs 2^(2(E - 150)), so
 *     2 levels hold   2(E - 150) >= 2 top - 344,  that is E >= top - 22
 *     3 levels hold   2(E - 150) >= 2 top - 390,  that is E >= top - 45
 * A zero fits in any window. A block of a thousand normally distributed numbers rarely needs three
 * levels (about one in some hundred). A block with elements 2^46 times as large as others goes to
 * the table.
 *
 * Every step is exact, so fused multiply-adds and the width of vectors do not change the result.
 *
 * A block is read twice, for its exponents and for its squares. The processor fetches ahead only
 * within the first reading, so the second asks for what comes PREFETCH_ELEMS later. */

#ifdef __AVX512F__
enum { LANES = 8, ROWS = 8 };
#else
enum { LANES = 4, ROWS = 4 };
#endif
/* ROWS: vectors summed independently, to hide the latency of an addition. */
enum {
    LEVEL_BITS = 46, /* u[l] / u[l+1] = 2^46 */
    LANE_ELEMS = 64, /* squares in one lane: 2^6 * 2^46 = 2^52 */
    MAX_LEVELS = 3,
    PREFETCH_ELEMS = 8192,
    LINE_ELEMS = 64 / sizeof(float),
    BLOCK_ELEMS = LANE_ELEMS * ROWS * LANES
};

typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));
typedef int64_t integers __attribute__((vector_size(LANES * sizeof(int64_t))));

/* Exponents E of a block: the largest, and the smallest of elements that are not zero. */
typedef struct exponent_range {
    int top, low;
    bool all_zero;
} exponent_range;

static exponent_range find_exponents(const float *x, size_t elems)
{
    uint32_t most = 0, least = UINT32_MAX; /* bits of 2|x|; those minus 1, so that a zero
                                              wraps to the largest */
    for (size_t i = 0; i < elems; i++) {
        uint32_t bits = float_bits(x[i]) << 1;
        most = bits > most ? bits : most;
        least = bits - 1 < least ? bits - 1 : least;
    }
    int top = (int)(most >> 24), low = (int)((least + 1) >> 24);
    return (exponent_range){top > 1 ? top : 1, low > 1 ? low : 1, most == 0};
}

/* log2 of u[level]. */
static int unit_log2(int top, int level)
{
    return 2 * top - 252 - LEVEL_BITS * (level + 1);
}

/* The start value of a level's sums. From there, each unit adds 1 to the double's bits. */
static double level_start(int top, int level)
{
    uint64_t half = level == 0 ? 0 : 1; /* 2^52 or 1.5 * 2^52 */
    uint64_t bits = (uint64_t)(unit_log2(top, level) + 52 + 1023) << 52 | half << 51;
    double start;
    memcpy(&start, &bits, sizeof start);
    return start;
}

/* gcc 12 makes good code of loops over four lanes, bad code of loops over eight. */
static inline doubles to_doubles(const float *x)
{
#ifdef __AVX512F__
    return (doubles)_mm512_cvtps_pd(_mm256_loadu_ps(x));
#else
    return (doubles){x[0], x[1], x[2], x[3]};
#endif
}

/* y += x*x rounded once; the x are floats, whose squares are exact anyway. */
static inline void add_square(doubles *y, const doubles *x)
{
#if defined __AVX512F__
    *y = (doubles)_mm512_fmadd_pd((__m512d)*x, (__m512d)*x, (__m512d)*y);
#elif defined __FMA__ || defined __ARM_FEATURE_FMA
    const doubles a = *x, b = *y;
    *y = (doubles){fma(a[0], a[0], b[0]), fma(a[1], a[1], b[1]), fma(a[2], a[2], b[2]),
                   fma(a[3], a[3], b[3])};
#else
    *y += *x * *x;
#endif
}

/* count_units -- by how many units one level's sums have grown from `start`. */
static int64_t count_units(const doubles *sum, double start)
{
    const doubles from = start - (doubles){0};
    integers units = {0};
    for (int row = 0; row < ROWS; row++)
        units += (integers)sum[row] - (integers)from;
    int64_t total = 0;
    for (int lane = 0; lane < LANES; lane++)
        total += units[lane];
    return total;
}

/* add_window -- r += squares of at most BLOCK_ELEMS elements, a multiple of ROWS*LANES. It is
 * inlined so that `levels` is a constant and the sums stay in registers. Vectors make it faster
 * than add_table, which is why both exist. */
static inline __attribute__((always_inline)) void add_window(rsum *r, const float *x, size_t elems,
                                                             int top, int levels)
{
    doubles sum[MAX_LEVELS][ROWS];
    double start[MAX_LEVELS];
    for (int l = 0; l < levels; l++) {
        start[l] = level_start(top, l);
        for (int row = 0; row < ROWS; row++)
            sum[l][row] = start[l] - (doubles){0};
    }
    for (const float *end = x + elems; x < end; x += ROWS * LANES) {
        for (int i = 0; i < ROWS * LANES; i += LINE_ELEMS)
            __builtin_prefetch(x + PREFETCH_ELEMS + i);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++) {
            const doubles d = to_doubles(x + row * LANES);
            doubles t = sum[0][row], rest = t;
            add_square(&t, &d);
            rest -= t;
            add_square(&rest, &d); /* d*d - (t - sum) */
            sum[0][row] = t;
#pragma GCC unroll 2
            for (int l = 1; l < levels - 1; l++) {
                t = sum[l][row] + rest;
                rest -= t - sum[l][row];
                sum[l][row] = t;
            }
            sum[levels - 1][row] += rest;
        }
    }
    int64_t units = 0;
    for (int l = levels - 1; l >= 0; l--) {
        units = count_units(sum[l], start[l]) + (units >> LEVEL_BITS); /* and carry or borrow */
        uint64_t digits = l > 0 ? units & (((int64_t)1 << LEVEL_BITS) - 1) : units;
        rsum_add_digits(r->bin, digits, unit_log2(top, l) - RSUM_UNIT_LOG2);
    }
}

/* ---- one block ------------------------------------------------------------------------------- */

/* add_block -- r += squares of at most BLOCK_ELEMS elements, a multiple of ROWS*LANES. */
static void add_block(rsum *r, const float *x, size_t elems)
{
    const exponent_range e = find_exponents(x, elems);
    if (e.all_zero)
        return;
    if (e.top != EXP_SPECIAL && e.low >= e.top - 22)
        add_window(r, x, elems, e.top > 23 ? e.top : 23, 2); /* u[1] >= 2^-298, the bins' unit */
    else if (e.top != EXP_SPECIAL && e.low >= e.top - 45)
        add_window(r, x, elems, e.top > 46 ? e.top : 46, 3); /* so is u[2] */
    else
        add_table(r, x, elems);
    rsum_normalise(r->bin);
}

void rsum_add_squares(rsum *r, const float *x, size_t elems)
{
    rsum_normalise(r->bin);
    const size_t whole = elems - elems % (ROWS * LANES);
    for (size_t begin = 0; begin < whole; begin += BLOCK_ELEMS)
        add_block(r, x + begin, whole - begin < BLOCK_ELEMS ? whole - begin : BLOCK_ELEMS);
    if (whole < elems) { /* the last elements, padded with zeros */
        float last[ROWS * LANES] = {0};
        memcpy(last, x + whole, (elems - whole) * sizeof *x);
        add_block(r, last, ROWS * LANES);
    }
}

void rsum_merge(rsum *r, const rsum *other)
{
    for (int i = 0; i < RSUM_BINS; i++) /* up to 2^30 parts on either side: */
        r->bin[i] += other->bin[i];     /* 2^31 (2^32 - 1) + 2^31 - 1 < 2^63 */
    rsum_normalise(r->bin);
}
