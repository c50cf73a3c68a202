/* bytes_copy.h -- copies and sums of arrays that are larger than the caches.
 *
 * An ordinary store first fetches the line that it overwrites. Stores that go around the caches
 * (non-temporal stores) save that traffic: a third of a copy's, a quarter of a sum's. What they
 * wrote must be read from memory again, so they pay only for arrays that would not stay in a cache
 * anyway. `make bench BENCH=kernels` shows both. */
#pragma once
#include <stddef.h>

/* From this length on stores go around the caches: it is more than a core's share of most. */
#define BYTES_STREAM_MIN ((size_t)4 << 20)

/* bytes_copy -- memcpy, with stores around the caches when bytes >= BYTES_STREAM_MIN. */
void bytes_copy(void *dst, const void *src, size_t bytes);

/* f32_add_stream -- dst[i] = left[i] + right[i], around the caches; the bits of the plain loop.
 *   dst  not left, not right; another thread may read it only after bytes_stream_fence */
void f32_add_stream(float *dst, const float *left, const float *right, size_t elems);

/* bytes_stream_fence -- other threads see what this thread stored with f32_add_stream before they
 * see what it stores later. One call after many short pieces is enough. */
void bytes_stream_fence(void);
