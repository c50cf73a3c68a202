/* rsum.h -- sums of squares that do not depend on how the elements are split over ranks.
 *
 *   rsum part = {0};
 *   rsum_add_squares(&part, grad, elems);        on every rank, over its own shard
 *   comm_all_reduce(..., DTYPE_I64, part.bin, RSUM_BINS);   integers add exactly
 *   norm = sqrt(rsum_value(&part));              correctly rounded, same bits for any sharding
 *
 * The square of a float is exact in 48 bits. An rsum is a fixed-point number of RSUM_BINS digits of
 * 32 bits, each kept in an int64 with room for carries, wide enough for every square of a float
 * (2^-298 ... 2^256) times 2^62 of them; so the sum is exact, and exact sums have no order.
 * [Demmel & Nguyen 2013; Kulisch accumulator]
 * Infinity and NaN are counted in the last two bins, so that they survive the all-reduce too.   */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { RSUM_DIGITS = 20, RSUM_BIN_INF = 20, RSUM_BIN_NAN = 21, RSUM_BINS = 22 };

typedef struct rsum {
    int64_t bin[RSUM_BINS]; /* bin[i] < RSUM_DIGITS weighs 2^(32*i - 298) */
} rsum;

/* rsum_add_squares -- r += sum of x[i]^2, exact; leaves r normalised (digits < 2^32), so
 * equal sums have equal bins. Near the speed of reading x when no element but zeros is 2^22 times
 * smaller than another within 1024; any other x costs more time, never bits.                     */
void rsum_add_squares(rsum *r, const float *x, size_t elems);

/* rsum_merge -- r += other, exact. Up to 2^30 normalised parts may be added bin by bin (that is
 * what an all-reduce of the bins does) before any of these functions: 2^30 * 2^32 < 2^63.        */
void rsum_merge(rsum *r, const rsum *other);

/* rsum_value -- the sum, rounded once to double (to nearest, ties to even); NaN or +infinity when
 * such an element was added (or an infinite one).                                                */
double rsum_value(const rsum *r);
