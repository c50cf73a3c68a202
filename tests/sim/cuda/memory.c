/* memory.c -- memory and copies of the stand-in, on top of tests/sim/core. A copy between the GPU
 * and pinned memory runs after the call returns. With pageable memory the call waits for the stream
 * and the copy. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/base/dtype.h"
#include "common/base/page.h"
#include "tests/sim/cuda/planted.h"
#include "tests/sim/cuda/sim.h"

/* The peak of held bytes after the last trim of the pool. */
static size_t reserved;
static atomic_uint n_gets;

/* ---- the pool -------------------------------------------------------------------------------- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device_index)
{
    (void)device_index;
    *pool = (cudaMemPool_t)&reserved;
    return sim_sticky();
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attr, void *value)
{
    (void)attr;
    (void)value;
    return pool == (cudaMemPool_t)&reserved ? sim_sticky() : sim_fail(cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attr, void *value)
{
    if (pool != (cudaMemPool_t)&reserved)
        return sim_fail(cudaErrorInvalidValue);
    if (attr != cudaMemPoolAttrReservedMemCurrent && attr != cudaMemPoolAttrUsedMemCurrent)
        return sim_fail(cudaErrorInvalidValue);
    *(uint64_t *)value = attr == cudaMemPoolAttrUsedMemCurrent ? sim_held_bytes() : reserved;
    return sim_sticky();
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t min_bytes_to_keep)
{
    const size_t used = sim_held_bytes();
    (void)pool;
    if (reserved > min_bytes_to_keep)
        reserved = used > min_bytes_to_keep ? used : min_bytes_to_keep;
    return sim_sticky();
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *total = sim_memory_bytes();
    *available = *total > reserved ? *total - reserved : 0;
    return sim_sticky();
}

cudaError_t cudaMallocAsync(void **ptr, size_t bytes, cudaStream_t q)
{
    stream *s = sim_stream(q);
    UNLESS_STICKY();
    *ptr = NULL;
    atomic_fetch_add(&n_gets, 1);
    fsdp_status status = sim_block_get(s, bytes, bytes, ptr);
    if (sim_held_bytes() > reserved)
        reserved = sim_held_bytes();
    return sim_status(status);
}

unsigned sim_pool_gets(void)
{
    return atomic_load(&n_gets);
}

__attribute__((destructor)) static void counts_print(void)
{
    if (sim_number("FSDP_SIM_COUNTS", 0) > 0)
        fprintf(stderr, "sim: %u requests, %u launches\n", sim_pool_gets(), sim_launches());
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t q)
{
    bool known;
    fsdp_status status = sim_block_put(sim_stream(q), ptr, &known);
    if (!known)
        return sim_fail(cudaErrorInvalidValue);
    return status == FSDP_OK ? sim_sticky() : sim_status(status);
}

/* ---- pinned memory --------------------------------------------------------------------------- */

/* Mapped memory has two addresses: the GPU's view comes after the host's in memory. CUDA may use
 * one address for both; two addresses expose a program that confuses them. */
static size_t view_bytes(size_t bytes)
{
    return size_round_up(bytes, PAGE_BYTES);
}

static bool map_twice(size_t bytes, void **out)
{
    const size_t view = view_bytes(bytes);
    const int fd = memfd_create("mapped", MFD_CLOEXEC), all = PROT_READ | PROT_WRITE;
    char *at = mmap(NULL, 2 * view, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *out = at;
    const bool done = fd >= 0 && at != MAP_FAILED && ftruncate(fd, (off_t)view) == 0 &&
                      mmap(at, view, all, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED &&
                      mmap(at + view, view, all, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    if (fd >= 0)
        close(fd);
    return done && sim_range_add(at + view, bytes, SIM_MAPPED);
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    if (flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped))
        return sim_fail(cudaErrorInvalidValue);
    if (!(flags & cudaHostAllocMapped ? map_twice(bytes, ptr)
                                      : posix_memalign(ptr, 4096, bytes) == 0) ||
        !sim_range_add(*ptr, bytes, SIM_PINNED))
        return sim_fail(cudaErrorMemoryAllocation);
    return sim_sticky();
}

cudaError_t cudaHostGetDevicePointer(void **on_gpu, void *ptr, unsigned flags)
{
    const sim_range r = sim_range_at(ptr);
    *on_gpu = (char *)ptr + view_bytes(r.bytes);
    if (flags != 0 || r.kind != SIM_PINNED || sim_range_at(*on_gpu).kind != SIM_MAPPED)
        return sim_fail(cudaErrorInvalidValue);
    return sim_sticky();
}

/* Waits for the GPU. */
cudaError_t cudaFreeHost(void *ptr)
{
    const size_t view = view_bytes(sim_range_at(ptr).bytes);
    if (!sim_range_remove(ptr, SIM_PINNED))
        return sim_fail(cudaErrorInvalidValue);
    sim_queues_wait();
    if (sim_range_remove((char *)ptr + view, SIM_MAPPED))
        munmap(ptr, 2 * view);
    else
        free(ptr);
    return sim_sticky();
}

cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned flags)
{
    if (bytes == 0 || flags != cudaHostRegisterDefault)
        return sim_fail(cudaErrorInvalidValue);
    if (!sim_range_add(ptr, bytes, SIM_REGISTERED))
        return sim_fail(cudaErrorHostMemoryAlreadyRegistered);
    return sim_sticky();
}

cudaError_t cudaHostUnregister(void *ptr)
{
    if (!sim_range_remove(ptr, SIM_REGISTERED))
        return sim_fail(cudaErrorHostMemoryNotRegistered);
    sim_queues_wait();
    return sim_sticky();
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Whether the kind matches the memory of both ends. */
static bool kind_fits(cudaMemcpyKind kind, const sim_range *dst, const sim_range *src)
{
    static const cudaMemcpyKind KINDS[2][2] = {{cudaMemcpyHostToHost, cudaMemcpyHostToDevice},
                                               {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}};
    return kind == cudaMemcpyDefault ||
           kind == KINDS[src->kind == SIM_OF_DEVICE][dst->kind == SIM_OF_DEVICE];
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t q)
{
    const sim_range to = sim_range_at(dst), from = sim_range_at(src);
    stream *s = sim_stream(q);
    UNLESS_STICKY();
    if (!kind_fits(kind, &to, &from) ||
        (to.kind != SIM_PAGEABLE && !sim_range_holds(&to, dst, bytes)) ||
        (from.kind != SIM_PAGEABLE && !sim_range_holds(&from, src, bytes)))
        return sim_fail(cudaErrorInvalidValue);
    fsdp_status status = sim_copy(s, dst, src, bytes);
    const bool of_host = to.kind != SIM_OF_DEVICE && from.kind != SIM_OF_DEVICE;
    if (status == FSDP_OK && (of_host || to.kind == SIM_PAGEABLE || from.kind == SIM_PAGEABLE))
        status = stream_sync(s);
    return sim_status(status);
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t q)
{
    const sim_range to = sim_range_at(dst);
    stream *s = sim_stream(q);
    UNLESS_STICKY();
    if (to.kind == SIM_PAGEABLE || !sim_range_holds(&to, dst, bytes))
        return sim_fail(cudaErrorInvalidValue);
    return sim_status(sim_fill(s, dst, byte, bytes));
}
