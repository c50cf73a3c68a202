/* launch.h -- how kernels are written and launched; the first include of every .cu file.
 *
 *     __global__ void scale_kernel(scale_args a) { ... }
 *
 *     ISSUE(scale, scale_args, blocks_of(a->elems), BLOCK_THREADS)
 *
 *     fsdp_status cuda_scale(stream *s, const scale_args *a)
 *     {
 *         return cuda_issue(s, scale_issue, a, scale_work(a));
 *     }
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
    (kernel<<<(grid), (block), 0, (s)>>>(__VA_ARGS__), cudaGetLastError())
#else
#define LAUNCH_NOW(kernel, grid, block, s, ...)                                                    \
    sim_launch(#kernel, kernel, (grid), (block), (s), __VA_ARGS__)
#endif

/* LAUNCH -- launch it now; its address goes to a section of the plug-in that lists all kernels. */
#define LAUNCH(kernel, grid, block, s, ...)                                                        \
    ({                                                                                             \
        static constexpr auto *listed __attribute__((section("fsdp_kernels"), used)) = kernel;     \
        LAUNCH_NOW(kernel, grid, block, s, __VA_ARGS__);                                           \
    })

/* ISSUE -- name_issue, a cuda_issue_fn: one launch of name_kernel with its arguments, which `grid`
 * and `block` know as a. What takes more than one launch writes such a function itself. */
#define ISSUE(name, args_type, grid, block)                                                        \
    static cudaError_t name##_issue(cudaStream_t s, const void *args)                              \
    {                                                                                              \
        const args_type *a = (const args_type *)args;                                              \
        return LAUNCH(name##_kernel, grid, block, s, *a);                                          \
    }

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
