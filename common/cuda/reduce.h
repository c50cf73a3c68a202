/* reduce.h -- sums and maxima across the lanes of a warp, in a fixed order. All lanes take part,
 * and all get the result. Also counts blocks. Only for .cu files. */
#pragma once
#include "common/cuda/launch.h"
#include "common/ops/row_sums.h"

enum { WARP_LANES = 32, ALL_LANES = -1 };

/* ROW_KERNEL(op, n, row_fn) defines op_kernel: thread r, of a.n, calls row_fn for row r.
 * ROW_OPERATION defines table_op too, with that kernel. */
#define ROW_KERNEL(op, n, row_fn)                                                                  \
    __global__ void op##_kernel(op##_args a)                                                       \
    {                                                                                              \
        const size_t r = global_thread();                                                          \
        if (r < a.n)                                                                               \
            BY_TYPE(row_fn, a.type, &a, r);                                                        \
    }
#define ROW_OPERATION(table, op, n, row_fn)                                                        \
    ROW_KERNEL(op, n, row_fn)                                                                      \
    OPERATION(table, op, op##_kernel, groups_of(a->n, WARP_LANES), WARP_LANES, *a)

/* warp_sum -- the sum of all lanes' x: adds lanes that are 16 apart, then 8, 4, 2 and 1. Both lanes
 * of a pair add the same two numbers. */
static __device__ inline float warp_sum(float x)
{
    for (int apart = WARP_LANES / 2; apart > 0; apart /= 2)
        x += __shfl_xor_sync((unsigned)ALL_LANES, x, apart);
    return x;
}

/* quad_sum, quad_max -- over the four lanes that hold a row of a tile (mma.h). */
static __device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync((unsigned)ALL_LANES, x, 1);
    x += __shfl_xor_sync((unsigned)ALL_LANES, x, 2);
    return x;
}
static __device__ inline float quad_max(float x)
{
    x = larger(x, __shfl_xor_sync((unsigned)ALL_LANES, x, 1));
    return larger(x, __shfl_xor_sync((unsigned)ALL_LANES, x, 2));
}

/* is_last_block -- count this block, one of n that wrote something: true for the one that is
 * counted last, which may read what the others wrote before. All threads of the block call it.
 * *count is 0 before the first call and after the last: atomicInc goes from n - 1 to 0. */
static __device__ inline bool is_last_block(unsigned *count, unsigned n)
{
    __shared__ unsigned is_last;
    __syncthreads(); /* the block has written all, and read is_last of an earlier call */
    if (threadIdx.x == 0) {
        __threadfence(); /* what it wrote is seen before its count */
        is_last = atomicInc(count, n - 1) == n - 1;
        __threadfence(); /* what the others wrote is read after their counts */
    }
    __syncthreads();
    return is_last != 0;
}
