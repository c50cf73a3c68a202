/* planted.cc -- see planted.h. */
#include "tests/sim/cuda/planted.h"
#include "common/cuda/attention_tiles.h"

/* Thread i writes its number and reads another thread's. Without a barrier the value is wrong in
 * one order of threads and right in the other. */
__global__ void neighbour_kernel(planted_args a)
{
    __shared__ float number[PLANTED_THREADS];
    const unsigned i = threadIdx.x, before = i > 0 ? i - 1 : 0;
    number[i] = (float)i;
    if (a.correct && a.kernel == WARP_NEIGHBOUR)
        __syncwarp();
    else if (a.correct)
        __syncthreads();
    a.out[blockIdx.x * PLANTED_THREADS + i] = number[a.kernel == WARP_NEIGHBOUR ? i ^ 1 : before];
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

static unsigned n_counted;

__global__ void counting_kernel(planted_args a)
{
    __shared__ bool is_last;
    float *const mine = a.out + blockIdx.x * PLANTED_THREADS + threadIdx.x;
    *mine = 1.0f;
    if (a.correct || a.kernel != COUNTED_EARLY)
        __syncthreads();
    if (threadIdx.x == 0) {
        if (a.correct || a.kernel != COUNT_WITHOUT_FENCE)
            __threadfence();
        is_last = atomicInc(&n_counted, PLANTED_BLOCKS - 1) == PLANTED_BLOCKS - 1;
        if (a.correct || a.kernel != READ_WITHOUT_FENCE)
            __threadfence();
    }
    __syncthreads();
    if (is_last)
        *mine = a.out[(1 - blockIdx.x) * PLANTED_THREADS + threadIdx.x];
}

static cudaError_t planted_issue(stream *s, const void *args)
{
    const planted_args *a = (const planted_args *)args;
    if (a->kernel == BLOCK_NEIGHBOUR || a->kernel == WARP_NEIGHBOUR)
        return LAUNCH(neighbour_kernel, PLANTED_BLOCKS, PLANTED_THREADS, s, *a);
    if (a->kernel >= COUNT_WITHOUT_FENCE)
        return LAUNCH(counting_kernel, PLANTED_BLOCKS, PLANTED_THREADS, s, *a);
    return LAUNCH(misuse_kernel, PLANTED_BLOCKS, PLANTED_THREADS, s, *a);
}

fsdp_status planted_launch(stream *s, const planted_args *a)
{
    op_work work = {};
    work.info.key.name = "planted";
    return cuda_issue(s, planted_issue, a, work);
}
