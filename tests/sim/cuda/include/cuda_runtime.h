/* cuda_runtime.h -- what nvcc adds to C++ in .cu files, for g++: function qualifiers, thread
 * indices, barriers and exchanges between threads. kernel.cc runs the threads. */
#pragma once
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
/* A process runs one block at a time; kernel.cc fills this section with NaN before each block. */
#define __shared__ static __attribute__((section("sim_shared"), aligned(16)))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* ---- barriers. A place is a line, because a compiler may split one call into several ---- */
#define SIM_TEXT_(x) #x
#define SIM_TEXT(x)  SIM_TEXT_(x)
#define SIM_HERE     __FILE__ ":" SIM_TEXT(__LINE__)

#define __syncthreads() sim_barrier(SIM_HERE)
#define __syncwarp(...) sim_syncwarp(SIM_HERE, sim_mask(__VA_ARGS__))
void sim_barrier(const char *place);
void sim_syncwarp(const char *place, unsigned mask);
static inline unsigned sim_mask(unsigned mask = 0xffffffffu)
{
    return mask;
}

/* ---- exchanges between the lanes of a warp ---- */
void sim_exchange(unsigned mask, const void *mine, size_t bytes, void *all, const char *place);
unsigned sim_lane(void);

/* A lane outside the mask has no value; a lane that reads it gets its own value. */
template <typename T>
static inline T sim_shuffle(const char *place, unsigned mask, T mine, int from)
{
    T all[32];
    sim_exchange(mask, &mine, sizeof mine, all, place);
    return from >= 0 && from < 32 && (mask >> from & 1) ? all[from] : mine;
}
#define __shfl_sync(mask, mine, from) sim_shuffle(SIM_HERE, mask, mine, from)
#define __shfl_xor_sync(mask, mine, with)                                                          \
    sim_shuffle(SIM_HERE, mask, mine, (int)sim_lane() ^ (int)(with))
#define __shfl_down_sync(mask, mine, by)                                                           \
    sim_shuffle(SIM_HERE, mask, mine, (int)(sim_lane() + (unsigned)(by)))

static inline unsigned sim_ballot(const char *place, unsigned mask, int predicate)
{
    int all[32];
    unsigned votes = 0;
    sim_exchange(mask, &predicate, sizeof predicate, all, place);
    for (unsigned l = 0; l < 32; l++)
        votes |= (mask >> l & 1) && all[l] ? 1u << l : 0;
    return votes;
}
#define __ballot_sync(mask, predicate) sim_ballot(SIM_HERE, mask, predicate)

#include "sim_mma.h"

/* ---- atomics: one thread runs at a time ---- */
static inline void __threadfence_system(void)
{
}
#define __threadfence() sim_fence()
void sim_fence(void);
/* Only to count blocks, of which the last one reads what the others wrote: fences are expected
 * before and after. Other blocks may run before it returns. */
#define atomicInc(at, most) sim_count_block(SIM_HERE, at, most)
unsigned sim_count_block(const char *place, unsigned *at, unsigned most);
template <typename T> static inline T atomicAdd(T *at, T value)
{
    T old = *at;
    *at = old + value;
    return old;
}
template <typename T> static inline T atomicCAS(T *at, T expected, T value)
{
    T old = *at;
    *at = old == expected ? value : old;
    return old;
}

/* On a GPU the quotient may be off by 2 in its last place. */
static inline float __fdividef(float a, float b)
{
    return a / b;
}

struct alignas(16) float4 {
    float x, y, z, w;
};

/* One launch: run body(args) for each thread of each block. */
struct sim_kernel {
    const char *name;
    const void *code;
    dim3 grid, block;
    void (*body)(void *args);
    void (*discard)(void *args);
    void *args;
};
cudaError_t sim_launch_kernel(const sim_kernel &k, cudaStream_t stream);

/* The arguments are evaluated and copied at the call, as in a real launch. */
template <typename... P, typename... A>
cudaError_t sim_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                       cudaStream_t stream, A... args)
{
    auto call = [=] { kernel(args...); };
    typedef decltype(call) call_type;
    sim_kernel k = {name,
                    (const void *)kernel,
                    grid,
                    block,
                    [](void *c) { (*(call_type *)c)(); },
                    [](void *c) { delete (call_type *)c; },
                    new call_type(call)};
    return sim_launch_kernel(k, stream);
}
