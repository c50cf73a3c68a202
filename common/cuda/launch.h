/* launch.h -- how kernels are written and launched; the first include of every .cu file.
 *
 *     __global__ void scale_kernel(scale_args a) { ... }
 *
 *     OPERATION(cuda, scale, scale_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)
 *
 * Two compilers read .cu files: nvcc, and g++ with the stand-in of tests/sim/cuda, which runs the
 * threads of a block one by one on the CPU. Only LAUNCH and mma_bf16 (mma.h) differ for the two.
 * The code is C that compiles as C++, without templates and classes. Code that depends on the
 * element type is an inline function with a constant `type`, and BY_TYPE calls it with the right
 * one (ops/row_sums.h).
 *
 * Only kernels that LAUNCH names are loaded when the device opens (cuda_runtime.c). */
#pragma once
#include <cuda_runtime.h>
#include "common/cuda/issue.h"

#ifdef __CUDACC__
#define LAUNCH_NOW(kernel, grid, block, s, ...)                                                    \
    (kernel<<<(grid), (block), 0, (cudaStream_t)accel_queue_of(s)>>>(__VA_ARGS__),                 \
     cudaGetLastError())
#else
#define LAUNCH_NOW(kernel, grid, block, s, ...)                                                    \
    sim_launch(#kernel, kernel, (grid), (block), (cudaStream_t)accel_queue_of(s), __VA_ARGS__)
#endif

/* LAUNCH -- launch a kernel on stream s now. The macro also puts the kernel's address in a section
 * of the plug-in, so that the section lists all kernels. */
#define LAUNCH(kernel, grid, block, s, ...)                                                        \
    ({                                                                                             \
        static constexpr auto *listed __attribute__((section("fsdp_kernels"), used)) = kernel;     \
        LAUNCH_NOW(kernel, grid, block, s, __VA_ARGS__);                                           \
    })

/* ISSUED(table, op) defines table_op, an operation of ops.h, which passes its arguments to
 * op_issue, a cuda_issue_fn. OPERATION(table, op, ...) also defines op_issue, as one launch of a
 * kernel. The kernel's arguments follow `block`. Grid, block and these arguments may use *a, the
 * arguments of the operation. */
#define ISSUED(table, op)                                                                          \
    fsdp_status table##_##op(stream *s, const op##_args *a)                                        \
    {                                                                                              \
        return cuda_issue(s, op##_issue, a, op##_work(a));                                         \
    }
#define OPERATION(table, op, kernel, grid, block, ...)                                             \
    static cudaError_t op##_issue(stream *s, const void *args)                                     \
    {                                                                                              \
        const op##_args *a = (const op##_args *)args;                                              \
        return LAUNCH(kernel, grid, block, s, __VA_ARGS__);                                        \
    }                                                                                              \
    ISSUED(table, op)

/* Threads of a block if each thread computes one element or row. */
enum { BLOCK_THREADS = 256 };
/* groups_of -- the number of groups of up to `most` for n items. blocks_of -- the number of blocks
 * for n threads. */
static __host__ __device__ inline unsigned groups_of(size_t n, size_t most)
{
    return (unsigned)((n + most - 1) / most);
}
static __host__ __device__ inline unsigned blocks_of(size_t n)
{
    return groups_of(n, BLOCK_THREADS);
}
static __host__ __device__ inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* grid_of -- a grid of rows of blocks, in dimension x alone: y and z have at most 65,535 blocks.
 * block_of -- this block's row and column in it. */
static inline unsigned grid_of(size_t n_rows, size_t n_cols)
{
    return (unsigned)(n_rows * n_cols);
}
typedef struct block_place {
    size_t row, col;
} block_place;
static __device__ inline block_place block_of(unsigned n_cols)
{
    const block_place at = {blockIdx.x / n_cols, blockIdx.x % n_cols};
    return at;
}

/* global_thread -- this thread's index in the whole grid, in dimension x. */
static __device__ inline size_t global_thread(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
