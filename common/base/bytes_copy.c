/* bytes_copy.c -- see bytes_copy.h. Non-temporal stores write the widest vectors that the build
 * has; without SSE2 they are ordinary stores. */
#include "common/base/bytes_copy.h"
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
typedef __m512 vec;
#define VEC_STREAM(at, v) _mm512_stream_ps(at, v)
#elif defined(__AVX__)
typedef __m256 vec;
#define VEC_STREAM(at, v) _mm256_stream_ps(at, v)
#elif defined(__SSE2__)
typedef __m128 vec;
#define VEC_STREAM(at, v) _mm_stream_ps(at, v)
#else
typedef float vec;
#define VEC_STREAM(at, v) memcpy(at, &(vec){v}, sizeof(vec))
#endif
enum { VEC_ELEMS = sizeof(vec) / sizeof(float) };

static inline vec vec_load(const void *at)
{
    vec v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* Bytes until `at` is aligned to a vector. */
static size_t misaligned(const void *at)
{
    return -(uintptr_t)at & (sizeof(vec) - 1);
}

void bytes_copy(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    size_t at = bytes < BYTES_STREAM_MIN ? bytes : misaligned(dst);
    memcpy(to, from, at);
    if (at == bytes)
        return;
    for (; at + sizeof(vec) <= bytes; at += sizeof(vec))
        VEC_STREAM((float *)(void *)(to + at), vec_load(from + at));
    memcpy(to + at, from + at, bytes - at);
    bytes_stream_fence();
}

void f32_add_stream(float *dst, const float *left, const float *right, size_t elems)
{
    size_t head = misaligned(dst) / sizeof(float), i = 0;
    for (; i < head && i < elems; i++)
        dst[i] = left[i] + right[i];
    for (; i + VEC_ELEMS <= elems; i += VEC_ELEMS)
        VEC_STREAM(dst + i, vec_load(left + i) + vec_load(right + i));
    for (; i < elems; i++)
        dst[i] = left[i] + right[i];
}

void bytes_stream_fence(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}
