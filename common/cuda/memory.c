/* memory.c -- memory of a GPU, from CUDA's stream-ordered pool, and pinned memory of the host.
 *
 * The pool keeps what is freed. AllowInternalDependencies is off: with it the pool may hand out a
 * block that another stream has yet to free, and make the first stream wait for that one, which
 * would serialise what prefetch wants side by side. [CUDA cudaMallocAsync] */
#include <search.h>
#include <stdlib.h>
#include "common/base/units.h"
#include "common/cuda/cuda_impl.h"

typedef struct block {
    void *ptr;
    size_t bytes;
    mem_category category;
    bool on_host;
    const char *label;
} block;

static int block_compare(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const block *)a)->ptr, y = (uintptr_t)((const block *)b)->ptr;
    return (x > y) - (x < y);
}

static ledger *ledger_of(const cuda_device *d, bool on_host)
{
    return on_host ? d->base.host_ledger : d->base.ledger;
}

static fsdp_status alloc(stream *s, bool on_host, const block *want, void **out)
{
    cuda_device *d = cuda_device_of(s->device);
    block *b = malloc(sizeof *b);
    if (b == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_alloc: no memory to enter '%s'", want->label);
    *b = *want;
    b->on_host = on_host;
    size_t bytes = b->bytes > 0 ? b->bytes : 1;
    cudaError_t error = on_host ? cudaHostAlloc(&b->ptr, bytes, cudaHostAllocPortable)
                                : cudaMallocAsync(&b->ptr, bytes, cuda_stream_of(s));
    if (error == cudaSuccess && tsearch(b, &d->blocks, block_compare) == NULL)
        error = cudaErrorMemoryAllocation;
    if (error != cudaSuccess) {
        free(b);
        return cuda_status(error, want->label);
    }
    ledger_add(ledger_of(d, on_host), b->category, b->bytes);
    *out = b->ptr;
    return FSDP_OK;
}

fsdp_status cuda_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                       void **out)
{
    return alloc(s, false, &(block){.bytes = bytes, .category = category, .label = label}, out);
}

fsdp_status cuda_alloc_host(stream *s, mem_category category, size_t bytes, const char *label,
                            void **out)
{
    return alloc(s, true, &(block){.bytes = bytes, .category = category, .label = label}, out);
}

void cuda_free(stream *s, void *ptr)
{
    cuda_device *d = cuda_device_of(s->device);
    const block key = {.ptr = ptr};
    void *node = tfind(&key, &d->blocks, block_compare);
    FSDP_ASSERT(node != NULL && "device_free of what device_alloc has not given");
    block *b = *(block **)node;
    tdelete(b, &d->blocks, block_compare);
    ledger_sub(ledger_of(d, b->on_host), b->category, b->bytes);
    if (b->on_host) {
        (void)cudaStreamSynchronize(cuda_stream_of(s));
        (void)cudaFreeHost(ptr);
    } else {
        (void)cudaFreeAsync(ptr, cuda_stream_of(s));
    }
    free(b);
}

size_t cuda_mem_available(device *d)
{
    size_t available = 0, total = 0;
    (void)d;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

fsdp_status cuda_memory_open(cuda_device *d)
{
    int off = 0;
    uint64_t keep = UINT64_MAX;
    TRY(cuda_status(cudaDeviceGetDefaultMemPool(&d->pool, d->base.config.index), "memory pool"));
    TRY(cuda_status(
        cudaMemPoolSetAttribute(d->pool, cudaMemPoolReuseAllowInternalDependencies, &off),
        "memory pool"));
    return cuda_status(cudaMemPoolSetAttribute(d->pool, cudaMemPoolAttrReleaseThreshold, &keep),
                       "memory pool");
}

void cuda_memory_close(cuda_device *d)
{
    FSDP_ASSERT(d->blocks == NULL && "device memory is live");
}
