/* attention_tiles.h -- tiles of attention in shared memory, and their products. Only for .cu files.
 *
 * A tile holds some rows of one head of q, k, v, ... in shared memory, in their own type: rows of D
 * or Dv elements, padded with zeros to a multiple of 16, and rows of zeros after the end of the
 * sequence. Rows are 16 bytes longer than the widest head, so that the lanes of a product read
 * from different banks: in bf16 lane (g,t) reads word 4g + t, in fp32 words 4g and 8t.
 *
 * A warp multiplies 16 rows of a tile by another tile. The lanes hold the result in the layout of
 * the matrix instruction (mma.h), which computes it for bf16 from sm_80 on. fmaf() computes it for
 * fp32, without rounding operands, and for bf16 on older GPUs. */
#pragma once
#include "common/cuda/mma.h"
#include "common/cuda/reduce.h"
#include "common/ops/ops.h"
#include "common/ops/row_softmax.h"

enum { TILE_BYTES = 48 << 10, PAD_BYTES = 16 };
/* Numbers of tiles of 8 columns: heads are at most 256 wide, and at most 64 queries or keys are
 * multiplied at a time. Arrays have these sizes; entries that a kernel does not use take no
 * registers. */
enum { HEAD_TILES = 32, SCORE_TILES = 8 };

/* tile_memory -- the shared memory of a block: the most that a kernel can declare statically. */
static __device__ inline char *tile_memory(void)
{
    __shared__ float4 memory[TILE_BYTES / sizeof(float4)];
    return (char *)memory;
}

/* tile_ld -- elements from one row of a tile with `cols` columns to the next. */
static __device__ __forceinline__ int tile_ld(int cols, dtype type)
{
    return cols + PAD_BYTES / (type == DTYPE_F32 ? 4 : 2);
}

/* tile_bytes -- the size of a tile of rows x cols. */
static __device__ __forceinline__ int tile_bytes(int rows, int cols, dtype type)
{
    return rows * tile_ld(cols, type) * (type == DTYPE_F32 ? 4 : 2);
}

/* Rows of one head of one sequence: row t at x + t * stride elements, `width` of them. */
typedef struct head_rows {
    const attention_shape *shape;
    const void *x;
    size_t stride, width;
} head_rows;

/* query_rows_of -- head h of sequence b in q, k, or one of their gradients. value_rows_of -- in v,
 * out, or one of their gradients. */
static __device__ __forceinline__ head_rows query_rows_of(const attention_shape *x,
                                                          const void *array, size_t stride,
                                                          size_t b, size_t h)
{
    const size_t at = query_element(x, stride, b, 0, h);
    return (head_rows){x, row_at(array, at, x->type), stride, x->head_dim};
}
static __device__ __forceinline__ head_rows value_rows_of(const attention_shape *x,
                                                          const void *array, size_t stride,
                                                          size_t b, size_t h)
{
    const size_t at = value_element(x, stride, b, 0, h);
    return (head_rows){x, row_at(array, at, x->type), stride, x->v_head_dim};
}

/* padded -- a head's width, rounded up to a multiple of MMA_DEPTH. */
static __device__ __forceinline__ int padded(size_t width)
{
    return ((int)width + MMA_DEPTH - 1) / MMA_DEPTH * MMA_DEPTH; /* 64 bits: registers spill */
}

/* A tile to be loaded; 16 bytes at a time if `wide`. */
typedef struct tile_place {
    char *tile;
    int ld, n_rows;
    bool wide;
} tile_place;

/* tile_load -- load rows first, first + 1, ... by all threads of the block, without a barrier. */
static __device__ __forceinline__ void tile_load(tile_place to, head_rows from, size_t first,
                                                 dtype type)
{
    const int step = !to.wide ? 1 : type == DTYPE_F32 ? 4 : 8;
    const int pieces = padded(from.width) / step;
    for (int i = (int)threadIdx.x; i < to.n_rows * pieces; i += (int)blockDim.x) {
        const size_t row = i / pieces, col = i % pieces * step;
        const bool there = first + row < from.shape->seq_len && col < from.width;
        const void *src = row_at(from.x, (first + row) * from.stride + col, type);
        void *dst = row_out_at(to.tile, row * to.ld + col, type);
        if (to.wide)
            *(float4 *)dst = there ? *(const float4 *)src : float4{0.0f, 0.0f, 0.0f, 0.0f};
        else
            row_store(dst, 0, there ? row_load(src, 0, type) : 0.0f, type);
    }
}

/* tile_pair -- elements i and i + 1 of a tile of bf16, i even, as a register. */
static __device__ __forceinline__ uint32_t tile_pair(const char *tile, int i)
{
    return *(const uint32_t *)(tile + 2 * i);
}

/* tile_column_pair -- elements i and i + ld. */
static __device__ __forceinline__ uint32_t tile_column_pair(const char *tile, int i, int ld)
{
    const uint16_t *x = (const uint16_t *)tile + i;
    return x[0] | (uint32_t)x[ld] << 16;
}

/* tile_store_pair -- elements i and i + 1 of a tile, i even. */
static __device__ __forceinline__ void tile_store_pair(char *tile, int i, float x, float y,
                                                       dtype type)
{
    if (type == DTYPE_F32) {
        ((float *)tile)[i] = x;
        ((float *)tile)[i + 1] = y;
    } else {
        *(uint32_t *)(tile + 2 * i) = bf16_from_f32(x) | (uint32_t)bf16_from_f32(y) << 16;
    }
}

/* A product of the first 16 rows of a [16,depth] and b [depth, 8 * used]. Element (k,n) of b is at
 * n * ldb + k if b is stored by columns, else at k * ldb + n. */
typedef struct product {
    const char *a, *b;
    int lda, ldb, depth, used;
    bool b_by_columns;
} product;

/* warp_product_mma -- warp_product by the matrix instruction. */
static __device__ __forceinline__ void warp_product_mma(float (*c)[4], int n_tiles, product p)
{
    const int lane = (int)(threadIdx.x % WARP_LANES), g = lane / 4, t = lane % 4;
    for (int k = 0; k < p.depth; k += MMA_DEPTH) {
        const int at = g * p.lda + k + 2 * t, below = at + 8 * p.lda;
        const uint32_t left[4] = {tile_pair(p.a, at), tile_pair(p.a, below), tile_pair(p.a, at + 8),
                                  tile_pair(p.a, below + 8)};
#pragma unroll
        for (int n = 0; n < n_tiles; n++) {
            if (n >= p.used)
                continue;
            uint32_t right[2];
            for (int half = 0; half < 2; half++) {
                const int row = k + 2 * t + 8 * half, col = MMA_COLS * n + g;
                right[half] = p.b_by_columns ? tile_pair(p.b, col * p.ldb + row)
                                             : tile_column_pair(p.b, row * p.ldb + col, p.ldb);
            }
            mma_bf16(c[n], left, right);
        }
    }
}

/* warp_product_fma -- warp_product by fused multiply-adds, in the order of k. */
static __device__ __forceinline__ void warp_product_fma(float (*c)[4], int n_tiles, product p,
                                                        dtype type)
{
    const int lane = (int)(threadIdx.x % WARP_LANES), g = lane / 4, t = lane % 4;
    const int step_k = p.b_by_columns ? 1 : p.ldb, step_n = p.b_by_columns ? p.ldb : 1;
    for (int k = 0; k < p.depth; k++) {
        const float upper = row_load(p.a, g * p.lda + k, type);
        const float lower = row_load(p.a, (g + 8) * p.lda + k, type);
#pragma unroll
        for (int n = 0; n < n_tiles; n++) {
            if (n >= p.used)
                continue;
            const int at = k * step_k + (MMA_COLS * n + 2 * t) * step_n;
            const float x = row_load(p.b, at, type), y = row_load(p.b, at + step_n, type);
            c[n][0] = fmaf(upper, x, c[n][0]);
            c[n][1] = fmaf(upper, y, c[n][1]);
            c[n][2] = fmaf(lower, x, c[n][2]);
            c[n][3] = fmaf(lower, y, c[n][3]);
        }
    }
}

/* warp_product -- add the product p to c [16, 8 * n_tiles]. n_tiles is a constant, so that c stays
 * in registers. p.depth is a multiple of 16; in fp32 any depth works. */
static __device__ __forceinline__ void warp_product(float (*c)[4], int n_tiles, product p,
                                                    dtype type)
{
    if (type == DTYPE_BF16 && HAS_MMA)
        warp_product_mma(c, n_tiles, p);
    else
        warp_product_fma(c, n_tiles, p, type);
}

/* tiles_clear -- n_tiles tiles of 16 x 8 zeros. */
static __device__ __forceinline__ void tiles_clear(float (*c)[4], int n_tiles)
{
#pragma unroll
    for (int n = 0; n < n_tiles; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
}

/* lane_row, lane_col -- the row and column of element i of a lane's tile number n. */
static __device__ __forceinline__ int lane_row(int i)
{
    return (int)(threadIdx.x % WARP_LANES) / 4 + 8 * (i / 2);
}
static __device__ __forceinline__ int lane_col(int n, int i)
{
    return MMA_COLS * n + (int)(threadIdx.x % 4) * 2 + i % 2;
}

/* rows_store -- store c as rows first ... first + 15, row g of a lane times by[0], g + 8 times
 * by[1] (mma.h). */
static __device__ __forceinline__ void rows_store(head_rows to, size_t first, float (*c)[4],
                                                  int n_tiles, const float *by, dtype type)
{
#pragma unroll
    for (int n = 0; n < n_tiles; n++)
        for (int i = 0; i < 4; i++) {
            const size_t row = first + lane_row(i), col = lane_col(n, i);
            if (row < to.shape->seq_len && col < to.width)
                row_store((void *)to.x, row * to.stride + col, c[n][i] * by[i / 2], type);
        }
}

/* Kernels are made for heads of up to 64 and 128 columns in fp32, and 64, 128 and 256 in bf16. */
enum { F32_64, F32_128, BF16_64, BF16_128, BF16_256, ATTENTION_TILINGS };

/* attention_tiling -- the kernel with the narrowest tiles that hold a head; -1: none. */
static inline int attention_tiling(const attention_shape *x)
{
    const size_t head = x->head_dim > x->v_head_dim ? x->head_dim : x->v_head_dim;
    if (x->type == DTYPE_F32)
        return head <= 64 ? F32_64 : head <= 128 ? F32_128 : -1;
    return head <= 64 ? BF16_64 : head <= 128 ? BF16_128 : head <= 256 ? BF16_256 : -1;
}

/* all_wide -- whether all rows of all heads of n arrays begin at multiples of 16 bytes. */
static inline bool all_wide(const attention_shape *x, const void *const *arrays, int n)
{
    const size_t bytes = x->type == DTYPE_F32 ? 4 : 2;
    size_t bits = (x->q_stride | x->k_stride | x->v_stride | x->head_dim | x->v_head_dim) * bytes;
    for (int i = 0; i < n; i++)
        bits |= (size_t)(uintptr_t)arrays[i];
    return bits % 16 == 0;
}
