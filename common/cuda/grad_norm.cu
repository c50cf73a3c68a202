/* grad_norm.cu -- the exact sum of squares (sum/rsum.h), and clipping. For both tables.
 *
 * A thread adds the squares of its elements in its own digits; then the lanes of a warp add theirs
 * by exchanges, the warps of a block in shared memory, and each block adds its digits to the
 * result, by one atomic addition of an integer for each digit that is not 0. The last block
 * normalises the result. Exact sums do not depend on the order, so the bits equal the CPU's. There
 * is no overflow: 2^30 earlier parts and at most 2^18 threads, each with digits below 2^32, stay
 * below 2^63. */
#include "common/cuda/kernels.h"
#include "common/cuda/range_blocks.h"
#include "common/cuda/reduce.h"
#include "common/ops/row_elem.h"

enum { MOST_BLOCKS = 1024, WARPS = BLOCK_THREADS / WARP_LANES };

static __device__ inline void add_square(rsum *r, float x)
{
    const uint32_t bits = pm_bits_f(x), exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
    const uint64_t m = fraction | (exponent != 0 ? 0x800000u : 0u);
    if (exponent == EXP_SPECIAL)
        r->bin[fraction != 0 ? RSUM_BIN_NAN : RSUM_BIN_INF]++;
    else
        rsum_add_digits(r->bin, m * m, exponent > 1 ? 2 * ((int)exponent - 1) : 0);
}

/* Add the squares of the elements of this thread: four neighbours at a time, if x is aligned. */
static __device__ inline void add_elements(rsum *sum, const float *x, size_t elems)
{
    const size_t n_threads = (size_t)gridDim.x * blockDim.x;
    const size_t n_fours = (uintptr_t)x % sizeof(float4) == 0 ? elems / 4 : 0;
    for (size_t i = global_thread(); i < n_fours; i += n_threads) {
        const float4 four = ((const float4 *)x)[i];
        add_square(sum, four.x);
        add_square(sum, four.y);
        add_square(sum, four.z);
        add_square(sum, four.w);
    }
    for (size_t i = 4 * n_fours + global_thread(); i < elems; i += n_threads)
        add_square(sum, x[i]);
}

/* The sum of all lanes' x, for every lane. Most digits are 0 in all of them. */
static __device__ inline int64_t lanes_sum(int64_t x)
{
    if (__ballot_sync((unsigned)ALL_LANES, x != 0) == 0)
        return 0;
    for (int apart = WARP_LANES / 2; apart > 0; apart /= 2)
        x += __shfl_xor_sync((unsigned)ALL_LANES, x, apart);
    return x;
}

/* Add digit i of the warps' sums to the result. */
static __device__ inline void add_digit(rsum *sum, int64_t of_warp[WARPS][RSUM_BINS], unsigned i)
{
    int64_t digit = 0;
    for (int w = 0; w < WARPS; w++)
        digit += of_warp[w][i];
    if (digit != 0)
        atomicAdd((unsigned long long *)&sum->bin[i], (unsigned long long)digit);
}

__global__ void sum_squares_kernel(sum_squares_args a, const __grid_constant__ range_blocks ranges,
                                   unsigned *count)
{
    __shared__ int64_t of_warp[WARPS][RSUM_BINS];
    rsum mine;
    for (int i = 0; i < RSUM_BINS; i++)
        mine.bin[i] = 0;
    for (int i = 0; i < ranges.n; i++)
        add_elements(&mine, a.x + ranges.at[i].begin, ranges.at[i].elems);
    rsum_normalise(mine.bin);
    for (int i = 0; i < RSUM_BINS; i++) {
        const int64_t sum = lanes_sum(mine.bin[i]);
        if (threadIdx.x % WARP_LANES == 0)
            of_warp[threadIdx.x / WARP_LANES][i] = sum;
    }
    __syncthreads();
    if (threadIdx.x < RSUM_BINS)
        add_digit(a.sum, of_warp, threadIdx.x);
    if (!is_last_block(count, gridDim.x) || threadIdx.x > 0)
        return;
    for (int i = 0; i < RSUM_BINS; i++)
        mine.bin[i] = ((volatile int64_t *)a.sum->bin)[i]; /* what the other blocks have added */
    rsum_normalise(mine.bin);
    *a.sum = mine;
}

typedef struct squares_job {
    const sum_squares_args *args;
    unsigned *count;
} squares_job;

static cudaError_t sum_squares_issue(stream *s, const void *args)
{
    const squares_job *j = (const squares_job *)args;
    const sum_squares_args *a = j->args;
    cudaError_t error = cudaSuccess;
    range_blocks ranges;
    for (int i = 0; error == cudaSuccess && next_blocks(&a->ranges, a->elems, &i, &ranges);) {
        const unsigned most = MOST_BLOCKS, all = ranges.end[ranges.n - 1];
        error = LAUNCH(sum_squares_kernel, all < most ? all : most, BLOCK_THREADS, s, *a, ranges,
                       j->count);
    }
    return error;
}

fsdp_status cuda_sum_squares(stream *s, const sum_squares_args *a)
{
    squares_job job = {a, NULL};
    const op_work work = sum_squares_work(a);
    if (work.ends)
        return work.status;
    TRY(cuda_counts_of(s, &job.count));
    return cuda_issue(s, sum_squares_issue, &job, work);
}

__global__ void clip_coef_kernel(clip_coef_args a)
{
    clip_elem(&a);
}

OPERATION(cuda, clip_coef, clip_coef_kernel, 1, 1, *a)
