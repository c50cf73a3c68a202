/* mma.h -- the only matrix instruction that kernels use: a warp adds the product of 16 x 16 and
 * 16 x 8 elements of bf16 to 16 x 8 elements of fp32. Only for .cu files.
 *
 * The elements of a lane, with g = lane / 4 and t = lane % 4; a register holds two neighbours of
 * bf16, the first in its low half:
 *     a[0], a[1]  rows g, g + 8, columns 2t, 2t + 1      a[2], a[3]  the same, columns + 8
 *     b[0]        rows 2t, 2t + 1, column g              b[1]        the same, rows + 8
 *     c[0 ... 3]  rows g, g, g + 8, g + 8, columns 2t, 2t + 1, 2t, 2t + 1
 * [PTX ISA, "Matrix Fragments for mma.m16n8k16"] */
#pragma once
#include "common/cuda/launch.h"

enum { MMA_ROWS = 16, MMA_COLS = 8, MMA_DEPTH = 16 };

/* Whether the target GPU has the instruction. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAS_MMA 0
#else
#define HAS_MMA 1
#endif

/* mma_bf16 -- c += a b; all lanes of the warp take part. */
static __device__ __forceinline__ void mma_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
#ifndef __CUDACC__
    sim_mma_bf16(SIM_HERE, c, a, b);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void)c, (void)a, (void)b;
#endif
}
