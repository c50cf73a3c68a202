/* bytes_copy.h -- copies and sums of arrays that are larger than the caches.
 *
 * An ordinary store first fetches the line that it overwrites. For arrays that do not stay in a
 * cache anyway, stores that go around the caches save that traffic: a third of a copy's, a quarter
 * of a sum's. The processor's name for them is non-temporal. What was stored must be read from
 * memory again, so short arrays are stored the ordinary way. `make bench BENCH=kernels` shows both.
 */
#pragma once
#include <stddef.h>

/* From this length on stores go around the caches: more than one core's share of most of them. */
#define BYTES_STREAM_MIN ((size_t)4 << 20)

/* bytes_copy -- memcpy; streams when bytes >= BYTES_STREAM_MIN. */
void bytes_copy(void *dst, const void *src, size_t bytes);

/* f32_add_stream -- dst[i] = left[i] + right[i], stored around the caches. dst is neither of the
 * others. The same bits as the plain loop. Others may see dst only after bytes_stream_fence. */
void f32_add_stream(float *dst, const float *left, const float *right, size_t elems);

/* bytes_stream_fence -- what this thread stored by f32_add_stream is seen before what it stores
 * later. Once behind many short pieces: the next piece need not wait for the stores of the last. */
void bytes_stream_fence(void);
