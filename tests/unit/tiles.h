/* tiles.h -- AMX's tiles in plain C, in place of the intrinsics, so that a kernel runs on
 * processors without them. All tiles have 16 rows of 64 bytes.
 *
 * A multiplication follows Intel's manual (Software Developer's Manual, TDPBF16PS): even and odd
 * products are summed apart, and both sums are added to the tile at the end. Each addition rounds
 * once, to nearest even. A denormal input is taken for 0, and a denormal result becomes 0.
 *
 * The test fails if the kernel uses a tile while no configuration is loaded: a processor stops the
 * program. tiles_config counts. */
#pragma once
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include "common/base/dtype.h"
#include "tests/unit/unit_lib.h"

static float tiles_emulated[8][16 * 16];
static struct tiles_state {
    int loads, releases;
    bool is_loaded;
} tiles_config;

/* Loading a configuration clears the tiles. */
static inline void tiles_configure(const void *config)
{
    uint8_t whole[64] = {1};
    for (int tile = 0; tile < 8; tile++) {
        whole[16 + 2 * tile] = 64;
        whole[48 + tile] = 16;
    }
    assert_memory_equal(config, whole, sizeof whole);
    memset(tiles_emulated, 0, sizeof tiles_emulated);
    tiles_config.loads++;
    tiles_config.is_loaded = true;
}

static inline void tiles_release(void)
{
    tiles_config.releases++;
    tiles_config.is_loaded = false;
}

static inline float *tile_of(int tile)
{
    if (!tiles_config.is_loaded)
        fail_msg("tile %d is used without a configuration", tile);
    return tiles_emulated[tile];
}

static inline void tile_zero(int tile)
{
    memset(tile_of(tile), 0, sizeof *tiles_emulated);
}

static inline void tile_load(int tile, const void *from, size_t stride)
{
    for (size_t r = 0; r < 16; r++)
        memcpy(tile_of(tile) + 16 * r, (const char *)from + r * stride, 64);
}

static inline void tile_store(int tile, void *to, size_t stride)
{
    for (size_t r = 0; r < 16; r++)
        memcpy((char *)to + r * stride, tile_of(tile) + 16 * r, 64);
}

static inline float normal_or_0(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

static inline float bf16_product_added(uint16_t x, uint16_t y, float sum)
{
    return normal_or_0(
        fmaf(normal_or_0(f32_from_bf16(x)), normal_or_0(f32_from_bf16(y)), normal_or_0(sum)));
}

/* sum [16,16] += a [16,32] by pairs of rows of b [16,16,2]. */
static inline void tile_multiply(int sum, int a, int b)
{
    uint16_t x[16][32], y[16][16][2];
    memcpy(x, tile_of(a), sizeof x);
    memcpy(y, tile_of(b), sizeof y);
    for (int i = 0; i < 16; i++) {
        float even[16] = {0}, odd[16] = {0}, *const out = tile_of(sum) + 16 * i;
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 16; j++) {
                even[j] = bf16_product_added(x[i][2 * k], y[k][j][0], even[j]);
                odd[j] = bf16_product_added(x[i][2 * k + 1], y[k][j][1], odd[j]);
            }
        for (int j = 0; j < 16; j++)
            out[j] = normal_or_0(normal_or_0(out[j]) + normal_or_0(even[j] + odd[j]));
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config)        tiles_configure(config)
#define _tile_release()                 tiles_release()
#define _tile_zero(tile)                tile_zero(tile)
#define _tile_loadd(tile, from, stride) tile_load(tile, from, stride)
#define _tile_stored(tile, to, stride)  tile_store(tile, to, stride)
#define _tile_dpbf16ps(sum, a, b)       tile_multiply(sum, a, b)
