/* bytes_copy.c -- see bytes_copy.h. One store writes a vector of the widest kind that the build
 * has; machines without such stores run plain loops. */
#include "common/base/bytes_copy.h"
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vec;
#define VEC_LOAD(at)      _mm512_loadu_ps(at)
#define VEC_ADD(a, b)     _mm512_add_ps(a, b)
#define VEC_STREAM(at, v) _mm512_stream_ps(at, v)
#elif defined(__AVX__)
#include <immintrin.h>
typedef __m256 vec;
#define VEC_LOAD(at)      _mm256_loadu_ps(at)
#define VEC_ADD(a, b)     _mm256_add_ps(a, b)
#define VEC_STREAM(at, v) _mm256_stream_ps(at, v)
#elif defined(__SSE2__)
#include <immintrin.h>
typedef __m128 vec;
#define VEC_LOAD(at)      _mm_loadu_ps(at)
#define VEC_ADD(a, b)     _mm_add_ps(a, b)
#define VEC_STREAM(at, v) _mm_stream_ps(at, v)
#endif

#ifdef VEC_STREAM

enum { VEC_ELEMS = sizeof(vec) / sizeof(float) };

/* Bytes until `at` is aligned to a vector. */
static size_t misaligned(const void *at)
{
    return -(uintptr_t)at & (sizeof(vec) - 1);
}

static void copy_stream(char *dst, const char *src, size_t bytes)
{
    size_t head = misaligned(dst);
    memcpy(dst, src, head);
    size_t body = head + (bytes - head) / sizeof(vec) * sizeof(vec);
    for (size_t i = head; i < body; i += sizeof(vec))
        VEC_STREAM((float *)(void *)(dst + i), VEC_LOAD((const float *)(const void *)(src + i)));
    memcpy(dst + body, src + body, bytes - body);
    bytes_stream_fence();
}

static size_t add_some(float *dst, const float *left, const float *right, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        dst[i] = left[i] + right[i];
    return to;
}

void f32_add_stream(float *dst, const float *left, const float *right, size_t elems)
{
    size_t head = misaligned(dst) / sizeof(float);
    size_t i = add_some(dst, left, right, 0, head < elems ? head : elems);
    for (; i + VEC_ELEMS <= elems; i += VEC_ELEMS)
        VEC_STREAM(dst + i, VEC_ADD(VEC_LOAD(left + i), VEC_LOAD(right + i)));
    (void)add_some(dst, left, right, i, elems);
}

void bytes_stream_fence(void)
{
    _mm_sfence();
}

#else

static void copy_stream(char *dst, const char *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

void f32_add_stream(float *dst, const float *left, const float *right, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        dst[i] = left[i] + right[i];
}

void bytes_stream_fence(void)
{
}

#endif

void bytes_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes < BYTES_STREAM_MIN)
        memcpy(dst, src, bytes);
    else
        copy_stream(dst, src, bytes);
}
