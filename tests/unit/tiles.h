/* tiles.h -- AMX's tiles in plain C, in place of the intrinsics, so that a kernel runs on
 * processors without them. All tiles have 16 rows of 64 bytes. A product of two bf16 numbers is
 * added for each of a pair in turn, with one rounding; nothing is flushed to 0. */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include "common/base/dtype.h"

static float tiles_emulated[8][16 * 16];

static inline void tile_load(int tile, const void *from, size_t stride)
{
    for (size_t r = 0; r < 16; r++)
        memcpy(tiles_emulated[tile] + 16 * r, (const char *)from + r * stride, 64);
}

static inline void tile_store(int tile, void *to, size_t stride)
{
    for (size_t r = 0; r < 16; r++)
        memcpy((char *)to + r * stride, tiles_emulated[tile] + 16 * r, 64);
}

/* sum [16,16] += a [16,32] by pairs of rows of b [16,16,2]. */
static inline void tile_multiply(int sum, int a, int b)
{
    uint16_t x[16][32], y[16][16][2];
    memcpy(x, tiles_emulated[a], sizeof x);
    memcpy(y, tiles_emulated[b], sizeof y);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            for (int k = 0; k < 32; k++)
                tiles_emulated[sum][16 * i + j] =
                    fmaf(f32_from_bf16(x[i][k]), f32_from_bf16(y[k / 2][j][k % 2]),
                         tiles_emulated[sum][16 * i + j]);
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config)        (void)(config)
#define _tile_release()                 (void)0
#define _tile_zero(tile)                memset(tiles_emulated[tile], 0, sizeof tiles_emulated[tile])
#define _tile_loadd(tile, from, stride) tile_load(tile, from, stride)
#define _tile_stored(tile, to, stride)  tile_store(tile, to, stride)
#define _tile_dpbf16ps(sum, a, b)       tile_multiply(sum, a, b)
