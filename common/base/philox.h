/* philox.h -- counter-based random numbers: Philox 4x32-10 [Salmon et al., SC 2011].
 *
 * A counter-based generator has no state: word i of stream (seed, stream) is a function of these
 * numbers alone. So any rank can fill any part of any tensor, in any order, and every sharding of a
 * model starts from the same weights. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "common/base/row_fn.h"

#define PHILOX_M0 0xd2511f53u /* multipliers and key increments of the paper, table 2 */
#define PHILOX_M1 0xcd9e8d57u
#define PHILOX_W0 0x9e3779b9u
#define PHILOX_W1 0xbb67ae85u

/* philox_round -- apply one round to the counter. */
ROW_FN void philox_round(uint32_t c[4], uint32_t key0, uint32_t key1)
{
    uint64_t product0 = (uint64_t)PHILOX_M0 * c[0];
    uint64_t product1 = (uint64_t)PHILOX_M1 * c[2];
    uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(product1 >> 32) ^ c1 ^ key0;
    c[1] = (uint32_t)product1;
    c[2] = (uint32_t)(product0 >> 32) ^ c3 ^ key1;
    c[3] = (uint32_t)product0;
}

/* philox4x32_10 -- out[4] = ten rounds over the counter {lo(call), hi(call), lo(number),
 * hi(number)} with the key {lo(seed), hi(seed)}, where `number` is the stream. tests/unit checks
 * the known answers of the Random123 distribution. */
ROW_FN void philox4x32_10(uint64_t seed, uint64_t number, uint64_t call, uint32_t out[4])
{
    out[0] = (uint32_t)call;
    out[1] = (uint32_t)(call >> 32);
    out[2] = (uint32_t)number;
    out[3] = (uint32_t)(number >> 32);
    for (uint32_t round = 0; round < 10; round++)
        philox_round(out, (uint32_t)seed + round * PHILOX_W0,
                     (uint32_t)(seed >> 32) + round * PHILOX_W1);
}

/* philox_u32 -- word `index` (from 0) of the stream (seed, stream): word index%4 of the call
 * index/4. */
uint32_t philox_u32(uint64_t seed, uint64_t stream, uint64_t index);

/* philox_normal_fill -- out[i] = std * z(begin+i) for i < elems, where z is standard normal.
 * Box-Muller makes elements 2k (cosine) and 2k+1 (sine) from words 2k and 2k+1 of the stream:
 *     z(2k), z(2k+1) = sqrt(-2 log((w[2k] + 1/2) / 2^32)) * cos, sin(2 pi w[2k+1] / 2^32)
 * z is computed in double and rounded to float before it is multiplied by std; |z| < 6.8. The bits
 * do not depend on begin or elems, and are the same on every IEEE-754 machine, because pmath.h does
 * the maths.
 *   costs  2.3 ns an element on one core with AVX-512, 6.8 with SSE2 (gcc 12) */
void philox_normal_fill(uint64_t seed, uint64_t stream, uint64_t begin, size_t elems, float std,
                        float *out);
/* philox_uniform_fill -- out[i] = bound * u(begin+i) for i < elems, where u = (2 w + 1) / 2^32 - 1
 * lies between -1 and 1 and w is word begin+i of the stream; computed in double, rounded once. */
void philox_uniform_fill(uint64_t seed, uint64_t stream, uint64_t begin, size_t elems, float bound,
                         float *out);
