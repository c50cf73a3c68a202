/* row_fn.h -- ROW_FN (inlined) and ROW_CALL (not inlined) mark the functions of the portable maths,
 * which the host's compiler and the device's compiler both compile.
 *
 * These functions use only + - * / sqrtf, comparisons and integers, and call only each other. So
 * both compilers give the same bits, if neither fuses a multiplication and an addition. */
#pragma once

#ifdef __CUDACC__
#define ROW_FN   static inline __host__ __device__
#define ROW_CALL static __host__ __device__ __noinline__
#else
/* Always inlined: one function serves several element types, which are constants at each call. */
#define ROW_FN   static inline __attribute__((always_inline))
#define ROW_CALL static __attribute__((noinline, unused))
#endif
