/* philox.c -- random words, and normal and uniform numbers, from Philox 4x32-10.
 *
 * Every output depends only on (seed, stream, index). Normal numbers are computed in whole blocks,
 * which vectorise. If only part of a block is needed, the rest is dropped, so that a number comes
 * from the same operations wherever the caller's range begins or ends. [Salmon et al., SC 2011]
 * [Box & Muller 1958] */
#include "common/base/philox.h"

#include <math.h>
#include <string.h>

#include "common/base/pmath.h"

enum { BLOCK_CALLS = 64, BLOCK_ELEMS = 4 * BLOCK_CALLS };

uint32_t philox_u32(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    philox4x32_10(seed, stream, index / 4, words);
    return words[index % 4];
}

/* normals_pair -- Box-Muller in double, rounded once to float. u1 = (radius_word + 1/2) / 2^32 is
 * never 0; the angle is angle_word / 2^32 turns. */
static inline void normals_pair(uint32_t radius_word, uint32_t angle_word, float *z_cos,
                                float *z_sin)
{
    double sine, cosine;
    double radius = sqrt(-2.0 * pm_log_positive((pm_from_u32(radius_word) + 0.5) * 0x1p-32));
    pm_sincos_turns(pm_from_u32(angle_word) * 0x1p-32, &sine, &cosine);
    *z_cos = (float)(radius * cosine);
    *z_sin = (float)(radius * sine);
}

/* normals_block -- out[i] = std * z(4*first_call + i) for BLOCK_ELEMS elements. */
static void normals_block(uint64_t seed, uint64_t stream, uint64_t first_call, float std,
                          float *restrict out)
{
    uint32_t words[4][BLOCK_CALLS]; /* word w of every call */
    float z[4][BLOCK_CALLS];
    for (size_t i = 0; i < BLOCK_CALLS; i++) {
        uint32_t c[4];
        philox4x32_10(seed, stream, first_call + i, c);
        for (int w = 0; w < 4; w++)
            words[w][i] = c[w];
    }
    for (size_t w = 0; w < 4; w += 2)
        for (size_t i = 0; i < BLOCK_CALLS; i++)
            normals_pair(words[w][i], words[w + 1][i], &z[w][i], &z[w + 1][i]);
    for (size_t i = 0; i < BLOCK_CALLS; i++)
        for (size_t w = 0; w < 4; w++)
            out[4 * i + w] = std * z[w][i];
}

void philox_normal_fill(uint64_t seed, uint64_t stream, uint64_t begin, size_t elems, float std,
                        float *out)
{
    while (elems > 0) {
        /* begin = 1003, 600 elements: call 250 makes 1000 ... 1003, so skip 3 and keep 253 of its
         * block; then a whole block of 256 from 1256; then the first 91 of the block from 1512. */
        const uint64_t first_call = begin / 4;
        const size_t skip = begin % 4;
        const size_t room = BLOCK_ELEMS - skip, take = elems < room ? elems : room;
        float block[BLOCK_ELEMS];
        normals_block(seed, stream, first_call, std, block);
        memcpy(out, block + skip, take * sizeof *out);
        begin += take;
        out += take;
        elems -= take;
    }
}

void philox_uniform_fill(uint64_t seed, uint64_t stream, uint64_t begin, size_t elems, float bound,
                         float *out)
{
    uint32_t words[4];
    for (size_t i = 0; i < elems; i++) {
        if (i == 0 || (begin + i) % 4 == 0)
            philox4x32_10(seed, stream, (begin + i) / 4, words);
        const double u = (2.0 * pm_from_u32(words[(begin + i) % 4]) + 1.0) * 0x1p-32 - 1.0;
        out[i] = (float)((double)bound * u);
    }
}
