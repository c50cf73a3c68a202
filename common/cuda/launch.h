/* launch.h -- how kernels are written and launched; the first include of every .cu file.
 *
 *     __global__ void scale_kernel(scale_args a) { ... }
 *
 *     OPERATION(cuda, scale, scale_kernel, blocks_of(a->elems), BLOCK_THREADS, *a)
 *
 * Two compilers read these files: nvcc, and g++ over the stand-in of tests/sim/cuda, which runs the
 * threads of a block one by one on the CPU. LAUNCH is the one thing that differs. The code is C in
 * C++ clothes: no templates and no classes; what depends on the element type is written once as an
 * inline function of a constant `type`, and BY_TYPE picks it (ops/row_sums.h).
 *
 * A kernel that LAUNCH names, and no other, is loaded when the device opens (cuda_runtime.c). */
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

/* LAUNCH -- launch it on stream s now; its address goes to a section of the plug-in that lists all
 * kernels. */
#define LAUNCH(kernel, grid, block, s, ...)                                                        \
    ({                                                                                             \
        static constexpr auto *listed __attribute__((section("fsdp_kernels"), used)) = kernel;     \
        LAUNCH_NOW(kernel, grid, block, s, __VA_ARGS__);                                           \
    })

/* ISSUED(table, op) defines table_op, an operation of ops.h, which passes its arguments to
 * op_issue, a cuda_issue_fn. OPERATION(table, op, ...) defines op_issue too, as one launch of a
 * kernel: the arguments of the kernel follow `block`, and they, the grid and the block may use the
 * operation's arguments *a. */
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

/* Threads of a block where each treats one element or row. */
enum { BLOCK_THREADS = 256 };
/* groups_of -- how many groups of up to `most` n things make. blocks_of -- how many blocks n such
 * threads take. */
static inline unsigned groups_of(size_t n, size_t most)
{
    return (unsigned)((n + most - 1) / most);
}
static inline unsigned blocks_of(size_t n)
{
    return groups_of(n, BLOCK_THREADS);
}

/* global_thread -- number of this thread in the grid, which has one dimension. */
static __device__ inline size_t global_thread(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
