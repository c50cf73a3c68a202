/* bytes_copy.h -- copy and add arrays that are larger than the caches.
 *
 * An ordinary store first fetches the cache line that it overwrites. Non-temporal stores bypass the
 * caches and save this traffic: a third of the traffic of a copy, a quarter for a sum. The result
 * must then be read from memory, so they pay only for arrays that would not stay in a cache anyway.
 * `make bench BENCH=kernels` shows both. */
#pragma once
#include <stddef.h>

/* From this length on, stores bypass the caches; most caches hold less per core. */
#define BYTES_STREAM_MIN ((size_t)4 << 20)

/* bytes_copy -- memcpy, with non-temporal stores if bytes >= BYTES_STREAM_MIN. */
void bytes_copy(void *dst, const void *src, size_t bytes);

/* f32_add_stream -- dst[i] = left[i] + right[i] with non-temporal stores; the bits of a plain loop.
 *   dst  neither left nor right; another thread may read it only after bytes_stream_fence */
void f32_add_stream(float *dst, const float *left, const float *right, size_t elems);

/* bytes_stream_fence -- make other threads see this thread's earlier f32_add_stream before its
 * later stores. One call after many short pieces is enough. */
void bytes_stream_fence(void);
