/* rsum.h -- sums of squares that do not depend on how the elements are split over ranks.
 *
 *   rsum part = {0};
 *   rsum_add_squares(&part, grad, elems);        on every rank, over its own shard
 *   comm_all_reduce(..., DTYPE_I64, part.bin, RSUM_BINS);   integers add exactly
 *   norm = sqrt(rsum_value(&part));              correctly rounded, same bits for any sharding
 *
 * The square of a float fits 48 bits exactly. An rsum is a fixed-point number of RSUM_DIGITS digits
 * of 32 bits, each in an int64 with room for carries. It can hold 2^62 times the square of any
 * float (2^-298 ... 2^256). So the sum is exact, and exact sums have no order. Infinities and NaNs
 * are counted in the last two bins, so that they survive the all-reduce too. rsum_value is in
 * rsum_digits.h, which host and device share.
 * [Demmel & Nguyen 2013; Kulisch accumulator] */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

enum { RSUM_DIGITS = 20, RSUM_BIN_INF = 20, RSUM_BIN_NAN = 21, RSUM_BINS = 22 };

typedef struct rsum {
    int64_t bin[RSUM_BINS]; /* bin[i] < RSUM_DIGITS weighs 2^(32*i - 298) */
} rsum;

/* rsum_add_squares -- r += the exact sum of x[i]^2. r is normalised afterwards (digits < 2^32), so
 * equal sums have equal bins.
 *   costs  about the time to read x. A block of 1024 elements takes longer if a nonzero element is
 *          2^22 times smaller than another, but no bits are lost */
void rsum_add_squares(rsum *r, const float *x, size_t elems);

/* rsum_merge -- r += other, exact. Before it, as before rsum_add_squares and rsum_value, up to 2^30
 * normalised parts may have been added bin by bin, as an all-reduce does: 2^30 * 2^32 < 2^63. */
void rsum_merge(rsum *r, const rsum *other);

EXTERN_C_END
