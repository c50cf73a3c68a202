/* planted.cc -- see planted.h. */
#include "tests/sim/cuda/planted.h"
#include "common/cuda/attention_tiles.h"

/* Thread i leaves its number and takes the one before's: from the first thread to the last that
 * needs no barrier, the other way it does. */
__global__ void block_neighbour_kernel(planted_args a)
{
    __shared__ float number[PLANTED_THREADS];
    const unsigned i = threadIdx.x;
    number[i] = (float)i;
    if (a.correct)
        __syncthreads();
    a.out[blockIdx.x * PLANTED_THREADS + i] = number[i > 0 ? i - 1 : 0];
}

__global__ void warp_neighbour_kernel(planted_args a)
{
    __shared__ float number[PLANTED_THREADS];
    const unsigned i = threadIdx.x;
    number[i] = (float)i;
    if (a.correct)
        __syncwarp();
    a.out[blockIdx.x * PLANTED_THREADS + i] = number[i ^ 1];
}

__global__ void misuse_kernel(planted_args a)
{
    const unsigned all = 0xffffffffu, i = threadIdx.x;
    const bool some = a.correct || i % WARP_LANES != 3;
    float x = 1.0f;
    if (a.kernel == BARRIER_IN_BRANCH && some)
        __syncthreads();
    if (a.kernel == BARRIERS_APART) {
        if (some)
            __syncthreads();
        else
            __syncthreads();
    }
    if (a.kernel == LANE_MISSING && some)
        x = __shfl_xor_sync(all, x, 1);
    if (a.kernel == MASK_WITHOUT_CALLER)
        x = (float)__ballot_sync(some ? all : 1u, 1);
    if (a.kernel == EXCHANGES_APART) {
        if (some)
            x = __shfl_xor_sync(all, x, 1);
        else
            x = __shfl_xor_sync(all, x, 2);
    }
    a.out[blockIdx.x * PLANTED_THREADS + i] = x;
}

/* Fills a tile and multiplies as attention does; b may be 64 wide. */
__global__ void product_kernel(planted_args a)
{
    const dtype type = a.bf16 ? DTYPE_BF16 : DTYPE_F32;
    const int ld = tile_ld(64, type), b_rows = a.b_by_columns ? 64 : a.depth;
    const int b_cols = a.b_by_columns ? a.depth : 64;
    char *left = tile_memory(), *right = left + tile_bytes(MMA_ROWS, 64, type);
    for (int i = (int)threadIdx.x; i < MMA_ROWS * a.depth; i += WARP_LANES)
        row_store(left, i / a.depth * ld + i % a.depth, row_load(a.a, i, type), type);
    for (int i = (int)threadIdx.x; i < b_rows * b_cols; i += WARP_LANES)
        row_store(right, i / b_cols * ld + i % b_cols, row_load(a.b, i, type), type);
    __syncthreads();
    float c[SCORE_TILES][4];
    tiles_clear(c, SCORE_TILES);
    const product p = {left, right, ld, ld, a.depth, SCORE_TILES, a.b_by_columns};
    if (a.old_gpu)
        warp_product_fma(c, SCORE_TILES, p, type);
    else
        warp_product(c, SCORE_TILES, p, type);
    for (int n = 0; n < SCORE_TILES; n++)
        for (int i = 0; i < 4; i++)
            a.out[lane_row(i) * 64 + lane_col(n, i)] = c[n][i];
}

static cudaError_t planted_issue(stream *s, const void *args)
{
    const planted_args *a = (const planted_args *)args;
    if (a->kernel == PRODUCT)
        return LAUNCH(product_kernel, 1, WARP_LANES, s, *a);
    if (a->kernel == BLOCK_NEIGHBOUR)
        return LAUNCH(block_neighbour_kernel, PLANTED_BLOCKS, PLANTED_THREADS, s, *a);
    if (a->kernel == WARP_NEIGHBOUR)
        return LAUNCH(warp_neighbour_kernel, PLANTED_BLOCKS, PLANTED_THREADS, s, *a);
    return LAUNCH(misuse_kernel, PLANTED_BLOCKS, PLANTED_THREADS, s, *a);
}

fsdp_status planted_launch(stream *s, const planted_args *a)
{
    op_work work = {};
    work.info.key.name = "planted";
    return cuda_issue(s, planted_issue, a, work);
}
