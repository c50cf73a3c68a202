/* pinned.c -- memory of the host that the GPU reaches, kept for reuse.
 *
 *   cuda_pinned_get -> work issued on a stream -> cuda_pinned_put ... cuda_pinned_close
 *
 * To pin memory takes milliseconds, and may wait for the GPU. So a block that was put waits for the
 * next get of its size. The stream that used it last may have it at once, for work in its own
 * order; anybody else when the event says that this use is over.
 *
 * The blocks stand in a file that peers of the host can map (host_share.h), where there is one. */
#include <stdlib.h>
#include "common/base/dtype.h"
#include "common/cuda/cuda_impl.h"
#include "common/device/host_share.h"

/* Sizes in steps of an eighth of a power of two: at most that much is wasted. */
static size_t size_class(size_t bytes)
{
    size_t step = 4096;
    while (step * 16 <= bytes)
        step *= 2;
    return bytes <= step ? step : size_round_up(bytes, step);
}

/* ---- from and to the system ------------------------------------------------------------------ */

static bool system_get(cuda_pinned *p)
{
    p->ptr = host_share_get(p->bytes, &p->share_offset);
    if (p->ptr != NULL) {
        if (cudaHostRegister(p->ptr, p->bytes, cudaHostRegisterDefault) == cudaSuccess)
            return true;
        host_share_put(p->ptr, p->bytes, p->share_offset);
    }
    p->share_offset = CUDA_NOT_SHARED;
    if (cudaHostAlloc(&p->ptr, p->bytes, cudaHostAllocPortable) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return false;
}

static void system_put(cuda_pinned *p)
{
    if (p->share_offset == CUDA_NOT_SHARED) {
        (void)cudaFreeHost(p->ptr);
    } else {
        (void)cudaHostUnregister(p->ptr);
        host_share_put(p->ptr, p->bytes, p->share_offset);
    }
}

static cuda_pinned *fresh(cuda_device *d, size_t bytes)
{
    cuda_pinned *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    p->bytes = bytes;
    if (cudaEventCreateWithFlags(&p->used, cudaEventDisableTiming) != cudaSuccess) {
        free(p);
        return NULL;
    }
    if (system_get(p)) {
        pthread_mutex_lock(&d->lock);
        LIST_INSERT_HEAD(&d->all_pinned, p, in_all);
        pthread_mutex_unlock(&d->lock);
        return p;
    }
    (void)cudaEventDestroy(p->used);
    free(p);
    return NULL;
}

static void release(cuda_device *d, cuda_pinned *p)
{
    pthread_mutex_lock(&d->lock);
    LIST_REMOVE(p, in_all);
    pthread_mutex_unlock(&d->lock);
    system_put(p);
    (void)cudaEventDestroy(p->used);
    free(p);
}

/* ---- the cache ------------------------------------------------------------------------------- */

static cuda_pinned *reuse(cuda_stream *s, size_t bytes, bool by_host)
{
    cuda_device *d = cuda_device_of(s->base.device);
    cuda_pinned *p;
    TAILQ_FOREACH(p, &d->pinned, link)
    {
        if (p->bytes == bytes &&
            ((!by_host && p->by == s) || cuda_look(NULL, p->used) == cudaSuccess))
            break;
    }
    if (p != NULL)
        TAILQ_REMOVE(&d->pinned, p, link);
    return p;
}

/* Blocks in use are left. */
static void trim(cuda_device *d)
{
    cuda_pinned *p = TAILQ_FIRST(&d->pinned), *next;
    for (; p != NULL; p = next) {
        next = TAILQ_NEXT(p, link);
        if (cuda_look(NULL, p->used) != cudaSuccess)
            continue;
        TAILQ_REMOVE(&d->pinned, p, link);
        release(d, p);
    }
}

fsdp_status cuda_pinned_get(cuda_stream *s, size_t bytes, bool by_host, cuda_pinned **out)
{
    cuda_device *d = cuda_device_of(s->base.device);
    *out = NULL;
    if (bytes <= SIZE_MAX / 2) {
        bytes = size_class(bytes);
        if ((*out = reuse(s, bytes, by_host)) == NULL && (*out = fresh(d, bytes)) == NULL) {
            trim(d);
            *out = fresh(d, bytes);
        }
    }
    if (*out != NULL)
        return FSDP_OK;
    return fsdp_error(FSDP_ENOMEM, "run fewer ranks on this host",
                      "no memory of the host that GPU %d reaches: %zu bytes",
                      s->base.device->config.index, bytes);
}

void cuda_pinned_used(cuda_stream *s, cuda_pinned *p)
{
    p->by = s;
    (void)cuda_stream_check(s, cudaEventRecord(p->used, s->handle), "pinned memory");
}

void cuda_pinned_put(cuda_stream *s, cuda_pinned *p)
{
    cuda_pinned_used(s, p);
    TAILQ_INSERT_HEAD(&cuda_device_of(s->base.device)->pinned, p, link);
}

/* A task of the host may ask, whose stream has not come to the free: blocks in the cache count. */
bool cuda_share_find(device *base, const void *ptr, size_t bytes, device_share *out)
{
    cuda_device *d = cuda_device_of(base);
    cuda_pinned *p;
    pthread_mutex_lock(&d->lock);
    LIST_FOREACH(p, &d->all_pinned, in_all)
    {
        if ((uintptr_t)ptr - (uintptr_t)p->ptr < p->bytes)
            break;
    }
    const size_t inner = p != NULL ? (size_t)((const char *)ptr - (const char *)p->ptr) : 0;
    const bool found = p != NULL && p->share_offset != CUDA_NOT_SHARED && bytes <= p->bytes - inner;
    if (found)
        *out = (device_share){p->share_offset, p->bytes, inner};
    pthread_mutex_unlock(&d->lock);
    return found;
}

int cuda_share_fd(device *d)
{
    (void)d;
    return host_share_fd();
}

static void put_stages(cuda_device *d, cuda_stages *stages)
{
    for (int i = 0; i < CUDA_STAGES; i++)
        if (stages->block[i] != NULL)
            TAILQ_INSERT_HEAD(&d->pinned, stages->block[i], link);
}

/* Where a GPU is lost, nobody knows when it stops to write: its blocks are left to the system. */
void cuda_pinned_close(cuda_device *d)
{
    put_stages(d, &d->small);
    put_stages(d, &d->large);
    if (!atomic_load(&d->failed))
        trim(d);
}
