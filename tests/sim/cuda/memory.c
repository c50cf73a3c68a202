/* memory.c -- memory and copies of the stand-in. It knows every block of a GPU and every range of
 * pinned memory, and so what a copy is: between the GPU and pinned memory it goes on behind the
 * call, with pageable memory the call waits for the stream and for the copy.
 *
 * Behind each block of a GPU stands a word that nobody may touch; it is looked at when the block is
 * freed. Fresh and freed memory is NaN. */
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "tests/sim/cuda/sim.h"

enum { PAGEABLE, OF_GPU, PINNED, REGISTERED };
enum { CANARY_BYTES = 64, CANARY = 0xC7 };

typedef struct range {
    char *ptr;
    size_t bytes;
    int kind;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the tree */
static void *ranges;                                     /* tsearch */
/* Bytes of the GPU: a freed block counts until its stream comes to the free. reserved: the most
 * that was held since the pool was trimmed. */
static _Atomic size_t held;
static size_t reserved;

/* ---- what is where --------------------------------------------------------------------------- */

static int range_compare(const void *a, const void *b)
{
    const range *x = a, *y = b;
    if (x->ptr + x->bytes <= y->ptr)
        return -1;
    return y->ptr + y->bytes <= x->ptr;
}

/* The range that ptr is in; kind PAGEABLE: none that CUDA knows. */
static range range_at(const void *ptr)
{
    const range key = {(char *)(uintptr_t)ptr, 1, PAGEABLE};
    pthread_mutex_lock(&lock);
    range **node = tfind(&key, &ranges, range_compare);
    range found = node != NULL ? **node : key;
    pthread_mutex_unlock(&lock);
    return found;
}

static bool range_add(void *ptr, size_t bytes, int kind)
{
    range *r = malloc(sizeof *r);
    if (r == NULL)
        return false;
    *r = (range){ptr, bytes, kind};
    pthread_mutex_lock(&lock);
    range **node = tsearch(r, &ranges, range_compare);
    const bool is_new = node != NULL && *node == r;
    pthread_mutex_unlock(&lock);
    if (!is_new)
        free(r);
    return is_new;
}

/* Whether ptr was the beginning of such a range, which is no more. */
static bool range_remove(void *ptr, int kind, size_t *bytes)
{
    const range key = {ptr, 1, PAGEABLE};
    pthread_mutex_lock(&lock);
    range **node = tfind(&key, &ranges, range_compare), *r = node != NULL ? *node : NULL;
    const bool found = r != NULL && r->ptr == ptr && r->kind == kind;
    if (found) {
        *bytes = r->bytes;
        tdelete(r, &ranges, range_compare);
        free(r);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_within(const range *r, const void *ptr, size_t bytes)
{
    return bytes <= r->bytes - (size_t)((const char *)ptr - r->ptr);
}

bool sim_is_pinned(const void *ptr, size_t bytes)
{
    const range r = range_at(ptr);
    return (r.kind == PINNED || r.kind == REGISTERED) && is_within(&r, ptr, bytes);
}

/* ---- the pool -------------------------------------------------------------------------------- */

static size_t total_bytes(void)
{
    return sim_number("FSDP_SIM_MEMORY_MIB", 65536) << 20;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device_index)
{
    (void)device_index;
    *pool = (cudaMemPool_t)&ranges;
    return sim_sticky();
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attr, void *value)
{
    (void)attr;
    (void)value;
    return pool == (cudaMemPool_t)&ranges ? sim_sticky() : sim_fail(cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attr, void *value)
{
    if (pool != (cudaMemPool_t)&ranges)
        return sim_fail(cudaErrorInvalidValue);
    if (attr != cudaMemPoolAttrReservedMemCurrent && attr != cudaMemPoolAttrUsedMemCurrent)
        return sim_fail(cudaErrorInvalidValue);
    *(uint64_t *)value = attr == cudaMemPoolAttrUsedMemCurrent ? atomic_load(&held) : reserved;
    return sim_sticky();
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t min_bytes_to_keep)
{
    const size_t used = atomic_load(&held);
    (void)pool;
    if (reserved > min_bytes_to_keep)
        reserved = used > min_bytes_to_keep ? used : min_bytes_to_keep;
    return sim_sticky();
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *total = total_bytes();
    *available = *total > reserved ? *total - reserved : 0;
    return sim_sticky();
}

typedef struct block_args {
    char *ptr;
    size_t bytes;
} block_args;

static fsdp_status run_begin(void *args, int n_threads)
{
    const block_args *a = args;
    (void)n_threads;
    memset(a->ptr + a->bytes, CANARY, CANARY_BYTES);
    return FSDP_OK;
}

static fsdp_status run_end(void *args, int n_threads)
{
    const block_args *a = args;
    (void)n_threads;
    for (int i = 0; i < CANARY_BYTES; i++)
        if ((unsigned char)a->ptr[a->bytes + (size_t)i] != CANARY)
            sim_die("a block of %zu bytes was written %d bytes behind its end", a->bytes, i);
    atomic_fetch_sub(&held, a->bytes);
    return FSDP_OK;
}

cudaError_t cudaMallocAsync(void **ptr, size_t bytes, cudaStream_t q)
{
    block_args a = {NULL, bytes};
    stream *s = sim_stream(q);
    if (sim_sticky() != cudaSuccess)
        return sim_sticky();
    const size_t others = atomic_load(&held), total = total_bytes();
    if (bytes > total || others > total - bytes)
        return sim_fail(cudaErrorMemoryAllocation);
    fsdp_status status =
        device_alloc(s, MEM_OTHER, bytes + CANARY_BYTES, "memory of the GPU", (void **)&a.ptr);
    if (status == FSDP_OK && !range_add(a.ptr, bytes > 0 ? bytes : 1, OF_GPU))
        status = FSDP_ENOMEM;
    if (status == FSDP_OK)
        status = stream_launch(s, run_begin, &a, sizeof a);
    if (status == FSDP_OK && atomic_fetch_add(&held, bytes) + bytes > reserved)
        reserved = others + bytes;
    *ptr = a.ptr;
    return sim_status(status);
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t q)
{
    block_args a = {ptr, 0};
    stream *s = sim_stream(q);
    if (!range_remove(ptr, OF_GPU, &a.bytes))
        return sim_fail(cudaErrorInvalidValue);
    fsdp_status status = stream_launch(s, run_end, &a, sizeof a);
    device_free(s, ptr);
    return status == FSDP_OK ? sim_sticky() : sim_status(status);
}

/* ---- pinned memory --------------------------------------------------------------------------- */

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    if (flags & ~(unsigned)cudaHostAllocPortable)
        return sim_fail(cudaErrorInvalidValue);
    if (posix_memalign(ptr, 4096, bytes) != 0 || !range_add(*ptr, bytes, PINNED))
        return sim_fail(cudaErrorMemoryAllocation);
    return sim_sticky();
}

/* It waits for the GPU. */
cudaError_t cudaFreeHost(void *ptr)
{
    size_t bytes;
    if (!range_remove(ptr, PINNED, &bytes))
        return sim_fail(cudaErrorInvalidValue);
    sim_wait_all();
    free(ptr);
    return sim_sticky();
}

cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned flags)
{
    if (bytes == 0 || flags != cudaHostRegisterDefault)
        return sim_fail(cudaErrorInvalidValue);
    if (!range_add(ptr, bytes, REGISTERED))
        return sim_fail(cudaErrorHostMemoryAlreadyRegistered);
    return sim_sticky();
}

cudaError_t cudaHostUnregister(void *ptr)
{
    size_t bytes;
    if (!range_remove(ptr, REGISTERED, &bytes))
        return sim_fail(cudaErrorHostMemoryNotRegistered);
    sim_wait_all();
    return sim_sticky();
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copy_args {
    void *dst;
    const void *src;
    size_t bytes;
} copy_args;

static fsdp_status copy_now(void *args, int n_threads)
{
    const copy_args *a = args;
    (void)n_threads;
    memcpy(a->dst, a->src, a->bytes);
    return FSDP_OK;
}

/* Does the kind name what the two are? */
static bool kind_fits(cudaMemcpyKind kind, const range *dst, const range *src)
{
    static const cudaMemcpyKind KINDS[2][2] = {{cudaMemcpyHostToHost, cudaMemcpyHostToDevice},
                                               {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}};
    return kind == cudaMemcpyDefault || kind == KINDS[src->kind == OF_GPU][dst->kind == OF_GPU];
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t q)
{
    const copy_args a = {dst, src, bytes};
    const range to = range_at(dst), from = range_at(src);
    stream *s = sim_stream(q);
    if (sim_sticky() != cudaSuccess)
        return sim_sticky();
    if (!kind_fits(kind, &to, &from) || (to.kind != PAGEABLE && !is_within(&to, dst, bytes)) ||
        (from.kind != PAGEABLE && !is_within(&from, src, bytes)))
        return sim_fail(cudaErrorInvalidValue);
    fsdp_status status = stream_launch(s, copy_now, &a, sizeof a);
    const bool of_host = to.kind != OF_GPU && from.kind != OF_GPU;
    if (status == FSDP_OK && (of_host || to.kind == PAGEABLE || from.kind == PAGEABLE))
        status = stream_sync(s);
    return sim_status(status);
}

typedef struct fill_args {
    void *dst;
    int byte;
    size_t bytes;
} fill_args;

static fsdp_status fill_now(void *args, int n_threads)
{
    const fill_args *a = args;
    (void)n_threads;
    memset(a->dst, a->byte, a->bytes);
    return FSDP_OK;
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t q)
{
    const fill_args a = {dst, byte, bytes};
    const range to = range_at(dst);
    stream *s = sim_stream(q);
    if (sim_sticky() != cudaSuccess)
        return sim_sticky();
    if (to.kind == PAGEABLE || !is_within(&to, dst, bytes))
        return sim_fail(cudaErrorInvalidValue);
    return sim_status(stream_launch(s, fill_now, &a, sizeof a));
}
