/* grad_norm.cu -- the exact sum of squares (sum/rsum.h), and clipping. For both tables.
 *
 * A thread adds the squares of its elements in its own digits. Then the threads of a block add
 * their digits in shared memory, and the blocks add theirs to the result, by atomic additions of
 * integers. Exact sums do not depend on the order, so the bits equal the CPU's. There is no
 * overflow: 2^30 earlier parts and at most 2^19 threads, each with digits below 2^32, stay below
 * 2^63. */
#include "common/cuda/kernels.h"
#include "common/cuda/launch.h"
#include "common/ops/row_elem.h"

enum { MOST_BLOCKS = 2048 };

static __device__ inline void add_square(rsum *r, float x)
{
    const uint32_t bits = pm_bits_f(x), exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
    const uint64_t m = fraction | (exponent != 0 ? 0x800000u : 0u);
    if (exponent == EXP_SPECIAL)
        r->bin[fraction != 0 ? RSUM_BIN_NAN : RSUM_BIN_INF]++;
    else
        rsum_add_digits(r->bin, m * m, exponent > 1 ? 2 * ((int)exponent - 1) : 0);
}

/* Add a value to a bin that other threads add to at the same time; zeros are skipped. */
static __device__ inline void add_shared(int64_t *bin, int i, int64_t value)
{
    if (value != 0)
        atomicAdd((unsigned long long *)&bin[i], (unsigned long long)value);
}

__global__ void sum_squares_kernel(sum_squares_args a)
{
    __shared__ int64_t block_bin[RSUM_BINS];
    const size_t n_threads = (size_t)gridDim.x * blockDim.x;
    rsum mine;
    for (int i = 0; i < RSUM_BINS; i++)
        mine.bin[i] = 0;
    for (size_t i = global_thread(); i < a.elems; i += n_threads)
        add_square(&mine, a.x[i]);
    rsum_normalise(mine.bin);
    if (threadIdx.x < RSUM_BINS)
        block_bin[threadIdx.x] = 0;
    __syncthreads();
    for (int i = 0; i < RSUM_BINS; i++)
        add_shared(block_bin, i, mine.bin[i]);
    __syncthreads();
    if (threadIdx.x < RSUM_BINS)
        add_shared(a.sum->bin, (int)threadIdx.x, block_bin[threadIdx.x]);
}

__global__ void normalise_kernel(rsum *sum)
{
    rsum_normalise(sum->bin);
}

static cudaError_t sum_squares_issue(stream *s, const void *args)
{
    const sum_squares_args *a = (const sum_squares_args *)args;
    const unsigned most = MOST_BLOCKS, all = blocks_of(a->elems), blocks = all < most ? all : most;
    const cudaError_t error = LAUNCH(sum_squares_kernel, blocks, BLOCK_THREADS, s, *a);
    return error == cudaSuccess ? LAUNCH(normalise_kernel, 1, 1, s, a->sum) : error;
}

ISSUED(cuda, sum_squares)

__global__ void clip_coef_kernel(clip_coef_args a)
{
    clip_elem(&a);
}

OPERATION(cuda, clip_coef, clip_coef_kernel, 1, 1, *a)
