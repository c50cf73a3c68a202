/* row_fn.h -- marks functions that a host compiler and a device compiler share: the portable maths.
 *
 * They use + - * / sqrtf, comparisons and integers, and call nothing but each other, so that both
 * compilers give the same bits when neither contracts a multiplication and an addition. */
#pragma once

#ifdef __CUDACC__
#define ROW_FN   static inline __host__ __device__
#define ROW_CALL static __host__ __device__ __noinline__
#else
/* Inlined always: one function serves several element types, each of which is a constant. */
#define ROW_FN   static inline __attribute__((always_inline))
#define ROW_CALL static __attribute__((noinline, unused))
#endif
