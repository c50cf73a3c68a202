/* memory.c -- blocks of the GPU, from CUDA's stream-ordered pool, and of pinned memory.
 *
 * The pool keeps what is freed. AllowInternalDependencies is off: with it the pool may hand out a
 * block that another stream has yet to free, and make the first stream wait for that one, which
 * would serialise what prefetch wants side by side.
 *
 * The ledger counts as the pool does. A stream may have again at once what it freed itself: such a
 * block is counted until the call of device_free. One that another stream frees, as a gathered unit
 * is freed by the stream that computes, is counted until that stream gets there; nobody can have it
 * before. [CUDA cudaMallocAsync] */
#include <search.h>
#include <stdlib.h>
#include "common/cuda/cuda_impl.h"

typedef struct block block;
struct block {
    char *ptr;
    size_t bytes;
    mem_category category;
    const char *label;
    cuda_pinned *pinned;   /* NULL: memory of the GPU */
    const cuda_stream *by; /* whose alloc it was */
    block *next;           /* freed by another stream, which has yet to get to `freed` */
    cudaEvent_t freed;
};

/* Blocks that overlap are equal: a key of one byte finds the block that it is in. */
static int block_compare(const void *a, const void *b)
{
    const block *x = a, *y = b;
    const size_t x_bytes = x->bytes > 0 ? x->bytes : 1, y_bytes = y->bytes > 0 ? y->bytes : 1;
    if (x->ptr + x_bytes <= y->ptr)
        return -1;
    return y->ptr + y_bytes <= x->ptr;
}

static block *block_at(cuda_device *d, const void *ptr)
{
    const block key = {.ptr = (char *)(uintptr_t)ptr, .bytes = 1};
    block **node = tfind(&key, &d->blocks, block_compare);
    return node != NULL ? *node : NULL;
}

static ledger *ledger_of(cuda_device *d, const block *b)
{
    return b->pinned != NULL ? d->base.host_ledger : d->base.ledger;
}

bool cuda_is_host(cuda_device *d, const void *ptr)
{
    const block *b = block_at(d, ptr);
    return b != NULL && b->pinned != NULL;
}

/* ---- freed by another stream ----------------------------------------------------------------- */

static void uncount(cuda_device *d, block *b)
{
    ledger_sub(ledger_of(d, b), b->category, b->bytes);
    free(b);
}

/* b is freed on s; it is counted until s gets there. */
static void leave(cuda_stream *s, block *b)
{
    cuda_device *d = cuda_device_of(s->base.device);
    if (cudaEventCreateWithFlags(&b->freed, cudaEventDisableTiming) != cudaSuccess) {
        uncount(d, b);
        return;
    }
    (void)cuda_stream_check(s, cudaEventRecord(b->freed, s->handle), "device_free");
    b->next = d->leaving;
    d->leaving = b;
}

void cuda_memory_look(cuda_device *d)
{
    block **at = &d->leaving;
    while (*at != NULL) {
        block *b = *at;
        if (!atomic_load(&d->failed) && cuda_look(NULL, b->freed) == cudaErrorNotReady) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        (void)cudaEventDestroy(b->freed);
        uncount(d, b);
    }
}

/* ---- alloc ----------------------------------------------------------------------------------- */

static size_t limit_left(cuda_device *d)
{
    const size_t limit_bytes = d->base.config.memory_limit_bytes;
    if (limit_bytes == 0)
        return SIZE_MAX;
    const size_t live_bytes = ledger_read(d->base.ledger).live_total_bytes;
    return live_bytes < limit_bytes ? limit_bytes - live_bytes : 0;
}

/* What has been freed on any stream goes back to the GPU. */
static fsdp_status reclaim(cuda_device *d)
{
    (void)cudaGetLastError(); /* of the call that found no memory */
    for (int i = 0; i < CUDA_STREAMS; i++)
        if (d->fates[i].stream != NULL)
            TRY(cuda_wait(d->fates[i].stream, NULL));
    return cuda_status(cudaMemPoolTrimTo(d->pool, 0), "device_alloc");
}

static fsdp_status gpu_get(cuda_stream *s, block *b)
{
    cuda_device *d = cuda_device_of(s->base.device);
    const size_t bytes = b->bytes > 0 ? b->bytes : 1;
    if (b->bytes > limit_left(d))
        TRY(reclaim(d));
    if (b->bytes > limit_left(d))
        return device_alloc_failed(d->base.ledger, b->category, b->bytes, b->label);
    cudaError_t error = cudaMallocAsync((void **)&b->ptr, bytes, s->handle);
    if (error == cudaErrorMemoryAllocation) {
        TRY(reclaim(d));
        error = cudaMallocAsync((void **)&b->ptr, bytes, s->handle);
    }
    if (error != cudaErrorMemoryAllocation)
        return cuda_stream_check(s, error, "device_alloc");
    (void)cudaGetLastError(); /* the caller's error, not the stream's */
    return device_alloc_failed(d->base.ledger, b->category, b->bytes, b->label);
}

static fsdp_status host_get(cuda_stream *s, block *b)
{
    if (cuda_pinned_get(s, b->bytes, false, &b->pinned) != FSDP_OK)
        return device_alloc_failed(s->base.device->host_ledger, b->category, b->bytes, b->label);
    b->ptr = b->pinned->ptr;
    return FSDP_OK;
}

static void give_back(cuda_stream *s, const block *b)
{
    if (b->pinned != NULL)
        cuda_pinned_put(s, b->pinned);
    else
        (void)cuda_stream_check(s, cudaFreeAsync(b->ptr, s->handle), "device_free");
}

static fsdp_status alloc(cuda_stream *s, fsdp_status (*get)(cuda_stream *, block *),
                         const block *want, void **out)
{
    cuda_device *d = cuda_device_of(s->base.device);
    TRY(cuda_stream_status(s));
    block *b = malloc(sizeof *b);
    if (b == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_alloc: no memory to enter '%s'", want->label);
    *b = *want;
    b->by = s;
    cuda_memory_look(d);
    fsdp_status status = get(s, b);
    if (status != FSDP_OK) {
        free(b);
        return status;
    }
    if (tsearch(b, &d->blocks, block_compare) == NULL) {
        give_back(s, b);
        free(b);
        return fsdp_error(FSDP_ENOMEM, "", "device_alloc: no memory to enter '%s'", want->label);
    }
    ledger_add(ledger_of(d, b), b->category, b->bytes);
    *out = b->ptr;
    return FSDP_OK;
}

fsdp_status cuda_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                       void **out)
{
    return alloc(cuda_stream_at(s), gpu_get,
                 &(block){.bytes = bytes, .category = category, .label = label}, out);
}

fsdp_status cuda_alloc_host(stream *s, mem_category category, size_t bytes, const char *label,
                            void **out)
{
    return alloc(cuda_stream_at(s), host_get,
                 &(block){.bytes = bytes, .category = category, .label = label}, out);
}

/* ---- free ------------------------------------------------------------------------------------ */

/* With debug_fill what is freed is NaN. Memory of the host is not: that would take a host task. */
void cuda_free(stream *base, void *ptr)
{
    cuda_stream *s = cuda_stream_at(base);
    cuda_device *d = cuda_device_of(base->device);
    block *b = block_at(d, ptr);
    FSDP_ASSERT(b != NULL && b->ptr == ptr && "freed pointer is not from device_alloc");
    tdelete(b, &d->blocks, block_compare);
    if (base->device->config.debug_fill && b->pinned == NULL && b->bytes > 0)
        (void)cuda_stream_check(s, cudaMemsetAsync(ptr, 0xFF, b->bytes, s->handle), "device_free");
    give_back(s, b);
    if (b->by != s && b->pinned == NULL)
        leave(s, b);
    else
        uncount(d, b);
}

/* ---- the device ------------------------------------------------------------------------------ */

/* What the driver has, and what the pool holds unused. */
size_t cuda_mem_available(device *base)
{
    cuda_device *d = cuda_device_of(base);
    size_t available = 0, total = 0;
    uint64_t reserved = 0, used = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess ||
        cudaMemPoolGetAttribute(d->pool, cudaMemPoolAttrReservedMemCurrent, &reserved) !=
            cudaSuccess ||
        cudaMemPoolGetAttribute(d->pool, cudaMemPoolAttrUsedMemCurrent, &used) != cudaSuccess)
        return 0;
    available += (size_t)(reserved - used);
    const size_t left = limit_left(d);
    return available < left ? available : left;
}

fsdp_status cuda_memory_open(cuda_device *d)
{
    int off = 0;
    uint64_t keep = UINT64_MAX;
    TAILQ_INIT(&d->pinned);
    TRY(cuda_status(cudaDeviceGetDefaultMemPool(&d->pool, d->base.config.index), "memory pool"));
    TRY(cuda_status(
        cudaMemPoolSetAttribute(d->pool, cudaMemPoolReuseAllowInternalDependencies, &off),
        "memory pool"));
    return cuda_status(cudaMemPoolSetAttribute(d->pool, cudaMemPoolAttrReleaseThreshold, &keep),
                       "memory pool");
}

static void report_live(const void *node, VISIT which, int depth)
{
    const block *b = *(const block *const *)node;
    (void)depth;
    if (which == postorder || which == leaf)
        fprintf(stderr, "device_close: block '%s' (%s, %zu bytes) was never freed\n", b->label,
                mem_category_name(b->category), b->bytes);
}

void cuda_memory_close(cuda_device *d)
{
    cuda_memory_look(d);
    twalk(d->blocks, report_live);
    FSDP_ASSERT(d->blocks == NULL && "device closed with live memory");
    cuda_pinned_close(d);
}
