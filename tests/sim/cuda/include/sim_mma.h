/* sim_mma.h -- mma.sync.m16n8k16 of bf16 for the stand-in. Included by cuda_runtime.h.
 *
 * The layout follows the tables of the PTX ISA ("Matrix Fragments for mma.m16n8k16 with floating
 * point type"). For element i of a fragment, with groupID = lane >> 2 and t = lane % 4:
 *     A  row = groupID for i in 0,1,4,5, else groupID + 8;  column = 2t + (i & 1), + 8 for i >= 4
 *     B  row = 2t + (i & 1), + 8 for i >= 2;                column = groupID
 *     C  row = groupID for i < 2, else groupID + 8;         column = 2t + (i & 1)
 * A sum goes from the last k to the first; c is added last. */
#pragma once
#include "common/base/dtype.h"

struct sim_fragments {
    uint32_t a[4], b[2];
};

static inline float sim_half(uint32_t both, int i)
{
    return f32_from_bf16((uint16_t)(both >> 16 * (i & 1)));
}

static inline void sim_mma_bf16(const char *place, float *c, const uint32_t *a, const uint32_t *b)
{
    struct sim_fragments mine, all[32];
    float rows[2][16], cols[2][16]; /* operands of this lane's four elements of C */
    const unsigned group = sim_lane() >> 2, pair = sim_lane() % 4;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    sim_exchange(0xffffffffu, &mine, sizeof mine, all, place);
    for (unsigned t = 0; t < 4; t++) {
        for (int i = 0; i < 8; i++)
            rows[i >> 1 & 1][2 * t + (i & 1) + (i >= 4 ? 8 : 0)] =
                sim_half(all[4 * group + t].a[i >> 1], i);
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < 4; i++)
                cols[j][2 * t + (i & 1) + (i >= 2 ? 8 : 0)] =
                    sim_half(all[4 * (2 * pair + (unsigned)j) + t].b[i >> 1], i);
    }
    for (int i = 0; i < 4; i++) {
        float sum = 0.0f;
        for (int k = 15; k >= 0; k--)
            sum += rows[i >> 1][k] * cols[i & 1][k];
        c[i] += sum;
    }
}
