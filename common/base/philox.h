/* philox.h -- counter-based random numbers: Philox 4x32-10 [Salmon et al., SC 2011].
 *
 * A counter-based generator has no state: word i of stream (seed, stream) is a function of these
 * numbers alone. So any rank can fill any part of any tensor, in any order, and every sharding of a
 * model starts from the same weights. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* philox4x32_10 -- out[4] = ten rounds over counter[4] with key[2]. tests/unit checks it against
 * the known answers of the Random123 distribution. */
void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* philox_u32 -- word `index` (from 0) of the stream (seed, stream): word index%4 of counter
 * {lo(index/4), hi(index/4), lo(stream), hi(stream)} under key {lo(seed), hi(seed)}. */
uint32_t philox_u32(uint64_t seed, uint64_t stream, uint64_t index);

/* philox_normal_fill -- out[i] = std * z(begin+i) for i < elems, where z is standard normal.
 * Box-Muller makes elements 2k (cosine) and 2k+1 (sine) from words 2k and 2k+1 of the stream:
 *     z(2k), z(2k+1) = sqrt(-2 log((w[2k] + 1/2) / 2^32)) * cos, sin(2 pi w[2k+1] / 2^32)
 * It is computed in double and rounded to float before the multiplication by std; |z| < 6.8. The
 * bits do not depend on begin or elems and are the same on every IEEE-754 machine, because pmath.h
 * does the maths.
 *   costs  2.3 ns an element on one core with AVX-512, 6.8 with SSE2 (gcc 12) */
void philox_normal_fill(uint64_t seed, uint64_t stream, uint64_t begin, size_t elems, float std,
                        float *out);
