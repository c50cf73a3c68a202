/* avx512.h -- the vectors of AVX-512 in plain C, in place of the intrinsics of gemm_amx.c, so that
 * its source runs on any x86-64. Include it before the source, and every header that the source
 * includes before this one. An aligned access elsewhere fails the test: a processor stops the
 * program. */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include "tests/unit/unit_lib.h"

typedef union v512 {
    float f32[16];
    double f64[8];
    uint16_t u16[32];
} v512;
typedef struct v256 {
    uint16_t u16[16];
} v256;

static inline const void *aligned_64(const void *x)
{
    assert_int_equal((uintptr_t)x % 64, 0);
    return x;
}

static inline v512 v512_load(const void *from)
{
    v512 r;
    memcpy(&r, aligned_64(from), sizeof r);
    return r;
}

static inline void v512_store(void *to, v512 x)
{
    (void)aligned_64(to);
    memcpy(to, &x, sizeof x);
}

/* Elements of `bytes` where the mask has ones, and zeros; or only these elements are stored. */
static inline v512 v512_load_part(uint32_t mask, const void *from, size_t bytes)
{
    v512 r = {0};
    for (size_t i = 0; i < sizeof r / bytes; i++)
        if (mask >> i & 1)
            memcpy((char *)&r + i * bytes, (const char *)from + i * bytes, bytes);
    return r;
}

static inline void v512_store_part(float *to, uint32_t mask, v512 x)
{
    for (size_t i = 0; i < 16; i++)
        if (mask >> i & 1)
            to[i] = x.f32[i];
}

/* `bytes` of y as part `at` of x. */
static inline v512 v512_insert(v512 x, const void *y, size_t bytes, size_t at)
{
    memcpy((char *)&x + at * bytes, y, bytes);
    return x;
}

static inline v512 v512_insert_128(v512 x, __m128 y, size_t at)
{
    return v512_insert(x, &y, sizeof y, at);
}

static inline v512 v512_insert_256(v512 x, v256 y, size_t at)
{
    return v512_insert(x, &y, sizeof y, at);
}

static inline v256 v512_half(v512 x, size_t at)
{
    v256 r;
    memcpy(&r, x.u16 + 16 * at, sizeof r);
    return r;
}

/* Interleaves elements from number `first` on, in each quarter of x and y. */
static inline v512 v512_interleave_f32(v512 x, v512 y, size_t first)
{
    v512 r;
    for (size_t i = 0; i < 16; i++)
        r.f32[i] = (i % 2 ? y : x).f32[i / 4 * 4 + first + i % 4 / 2];
    return r;
}

static inline v512 v512_interleave_f64(v512 x, v512 y, size_t first)
{
    v512 r;
    for (size_t i = 0; i < 8; i++)
        r.f64[i] = (i % 2 ? y : x).f64[i / 2 * 2 + first];
    return r;
}

/* Element i is number at[i] of x, or from 32 on, number at[i] - 32 of y. */
static inline v512 v512_choose(v512 x, v512 at, v512 y)
{
    v512 r;
    for (size_t i = 0; i < 32; i++)
        r.u16[i] = (at.u16[i] & 32 ? y : x).u16[at.u16[i] & 31];
    return r;
}

static inline v512 v512_reversed(const uint16_t x[32])
{
    v512 r;
    for (size_t i = 0; i < 32; i++)
        r.u16[i] = x[31 - i];
    return r;
}

static inline v512 v512_add(v512 x, uint16_t y)
{
    for (size_t i = 0; i < 32; i++)
        x.u16[i] = (uint16_t)(x.u16[i] + y);
    return x;
}

#define __m512  v512
#define __m512d v512
#define __m512i v512
#undef _mm512_castps_pd
#undef _mm512_castpd_ps
#undef _mm512_castps128_ps512
#undef _mm512_castsi512_si256
#undef _mm512_extracti64x4_epi64
#undef _mm512_inserti64x4
#undef _mm512_insertf32x4
#undef _mm512_unpacklo_ps
#undef _mm512_unpackhi_ps
#undef _mm512_unpacklo_pd
#undef _mm512_unpackhi_pd
#undef _mm512_permutexvar_epi16
#undef _mm512_permutex2var_epi16
#undef _mm512_set_epi16
#undef _mm512_set1_epi16
#undef _mm512_add_epi16
#undef _mm512_load_ps
#undef _mm512_store_ps
#undef _mm512_storeu_ps
#undef _mm512_store_si512
#undef _mm512_stream_ps
#undef _mm512_maskz_loadu_ps
#undef _mm512_maskz_loadu_epi16
#undef _mm512_mask_storeu_ps
#define _mm512_castps_pd(x)                  x
#define _mm512_castpd_ps(x)                  x
#define _mm512_castps128_ps512(x)            v512_insert_128((v512){0}, x, 0)
#define _mm512_castsi512_si256(x)            v512_half(x, 0)
#define _mm512_extracti64x4_epi64(x, at)     v512_half(x, at)
#define _mm512_inserti64x4(x, y, at)         v512_insert_256(x, y, at)
#define _mm512_insertf32x4(x, y, at)         v512_insert_128(x, y, at)
#define _mm512_unpacklo_ps(x, y)             v512_interleave_f32(x, y, 0)
#define _mm512_unpackhi_ps(x, y)             v512_interleave_f32(x, y, 2)
#define _mm512_unpacklo_pd(x, y)             v512_interleave_f64(x, y, 0)
#define _mm512_unpackhi_pd(x, y)             v512_interleave_f64(x, y, 1)
#define _mm512_permutexvar_epi16(at, x)      v512_choose(x, at, x)
#define _mm512_permutex2var_epi16(x, at, y)  v512_choose(x, at, y)
#define _mm512_set_epi16(...)                v512_reversed((const uint16_t[32]){__VA_ARGS__})
#define _mm512_set1_epi16(x)                 x
#define _mm512_add_epi16(x, y)               v512_add(x, y)
#define _mm512_load_ps(from)                 v512_load(from)
#define _mm512_store_ps(to, x)               v512_store(to, x)
#define _mm512_storeu_ps(to, x)              v512_store(to, x)
#define _mm512_store_si512(to, x)            v512_store(to, x)
#define _mm512_stream_ps(to, x)              v512_store(to, x)
#define _mm512_maskz_loadu_ps(mask, from)    v512_load_part(mask, from, 4)
#define _mm512_maskz_loadu_epi16(mask, from) v512_load_part(mask, from, 2)
#define _mm512_mask_storeu_ps(to, mask, x)   v512_store_part(to, mask, x)
/* The source's functions are compiled for any x86-64. */
#define target(isa) unused
