/* kept.c -- a cache of freed memory: pinned host memory, and device memory of a library without a
 * stream-ordered pool.
 *
 *   accel_kept_get -> work issued on a stream -> accel_kept_put ... accel_kept_close
 *
 * The system's calls for such memory are slow and may wait for the device. So a freed block is kept
 * for the next request of its size. The stream that used the block last may get it at once, for
 * later work on that stream. Other streams get it when an event shows that its last use is over.
 * PyTorch's caching allocator works in the same way, but this cache never splits a block. It rounds
 * sizes up, so that requests of nearly equal size can use each other's blocks. If memory runs
 * short, free blocks go back to the system.
 *
 * Host blocks are part of a file that other processes of the host can map (host_share.h), if the
 * system has such a file. */
#include <stdlib.h>
#include "common/base/dtype.h"
#include "common/base/page.h"
#include "common/accel/accel_impl.h"
#include "common/device/host_share.h"

/* The size of the block for a request. Sizes are multiples of least_bytes; larger ones are
 * multiples of an eighth of a power of two, so that at most an eighth is wasted. */
static size_t size_class(size_t bytes, size_t least_bytes)
{
    size_t step = least_bytes;
    while (step * 16 <= bytes)
        step *= 2;
    return bytes <= step ? step : size_round_up(bytes, step);
}

/* ---- from and to the system ------------------------------------------------------------------ */

/* Get a block that is shared with peers and pinned. If the library can only pin memory that it
 * allocates, a stage (by_host) is only pinned, and other blocks are only shared. If memory cannot
 * be shared, the block is only pinned. */
static bool host_get(const accel_api *api, accel_kept *p, bool by_host)
{
    const bool both = api->pin_register != NULL;
    p->ptr = both || !by_host ? host_share_get(p->bytes, &p->share_offset) : NULL;
    p->is_pageable = p->ptr != NULL && !both;
    if (p->ptr != NULL) {
        if (!both || api->pin_register(p->ptr, p->bytes) == 0)
            return true;
        host_share_put(p->ptr, p->bytes, p->share_offset);
    }
    p->share_offset = ACCEL_NOT_SHARED;
    return api->pin_alloc(&p->ptr, p->bytes) == 0;
}

static void system_put(const accel_api *api, accel_kept *p)
{
    if (p->is_device) {
        (void)api->memory_put(p->ptr);
    } else if (p->share_offset == ACCEL_NOT_SHARED) {
        (void)api->pin_free(p->ptr);
    } else {
        if (!p->is_pageable)
            (void)api->pin_unregister(p->ptr);
        host_share_put(p->ptr, p->bytes, p->share_offset);
    }
}

static accel_kept *fresh(accel_device *d, size_t bytes, accel_use use)
{
    accel_kept *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    p->bytes = bytes;
    p->is_device = use == USE_ON_DEVICE;
    if (p->is_device ? (p->ptr = d->api->memory_get(bytes)) == NULL
                     : !host_get(d->api, p, use == USE_AS_STAGE)) {
        free(p);
        return NULL;
    }
    d->kept_device_bytes += p->is_device ? bytes : 0;
    if (!p->is_device) {
        pthread_mutex_lock(&d->lock);
        LIST_INSERT_HEAD(&d->all_host, p, in_all);
        pthread_mutex_unlock(&d->lock);
    }
    return p;
}

static void release(accel_device *d, accel_kept *p)
{
    d->kept_device_bytes -= p->is_device ? p->bytes : 0;
    if (!p->is_device) {
        pthread_mutex_lock(&d->lock);
        LIST_REMOVE(p, in_all);
        pthread_mutex_unlock(&d->lock);
    }
    system_put(d->api, p);
    (void)d->api->event_destroy(p->used);
    free(p);
}

/* ---- the cache ------------------------------------------------------------------------------- */

static accel_kept *reuse(accel_stream *s, size_t bytes, accel_use use)
{
    accel_device *d = accel_device_of(s->base.device);
    accel_kept *p;
    TAILQ_FOREACH(p, &d->kept, link)
    {
        const bool is_mine = use != USE_AS_STAGE && p->by == s;
        if (p->bytes == bytes && p->is_device == (use == USE_ON_DEVICE) &&
            !(use == USE_AS_STAGE && p->is_pageable) &&
            (is_mine || d->api->event_look(p->used) == 0))
            break;
    }
    if (p != NULL)
        TAILQ_REMOVE(&d->kept, p, link);
    return p;
}

void accel_kept_trim(accel_device *d, bool is_device)
{
    accel_kept *p = TAILQ_FIRST(&d->kept), *next;
    for (; p != NULL; p = next) {
        next = TAILQ_NEXT(p, link);
        if (p->is_device != is_device || d->api->event_look(p->used) != 0)
            continue;
        TAILQ_REMOVE(&d->kept, p, link);
        release(d, p);
    }
}

size_t accel_kept_device_bytes(const accel_device *d)
{
    size_t bytes = 0;
    const accel_kept *p;
    TAILQ_FOREACH(p, &d->kept, link)
    {
        bytes += p->is_device ? p->bytes : 0;
    }
    return bytes;
}

accel_kept *accel_kept_get(accel_stream *s, size_t bytes, accel_use use)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = size_class(bytes, use == USE_ON_DEVICE ? 4096 : PAGE_BYTES);
    accel_kept *p = reuse(s, bytes, use);
    return p != NULL ? p : fresh(accel_device_of(s->base.device), bytes, use);
}

fsdp_status accel_pinned_get(accel_stream *s, size_t bytes, accel_use use, accel_kept **out)
{
    accel_device *d = accel_device_of(s->base.device);
    *out = accel_kept_get(s, bytes, use);
    if (*out == NULL) {
        accel_kept_trim(d, false);
        *out = accel_kept_get(s, bytes, use);
    }
    if (*out != NULL)
        return FSDP_OK;
    return fsdp_error(FSDP_ENOMEM, "run fewer ranks on this host",
                      "no memory of the host that %s %d reaches: %zu bytes", d->api->word,
                      d->base.config.index, bytes);
}

void accel_kept_used(accel_stream *s, accel_kept *p)
{
    const accel_api *api = accel_api_at(s);
    int code = 0;
    if (p->used == NULL)
        code = api->event_create(accel_device_of(s->base.device), ACCEL_ORDERS, &p->used);
    if (code == 0)
        code = api->event_record(p->used, s->queue);
    p->by = s;
    (void)accel_stream_check(s, code, "event of a memory block");
}

/* Without an event, nobody can tell when the block's last use is over; the block is leaked. */
void accel_kept_put(accel_stream *s, accel_kept *p)
{
    accel_kept_used(s, p);
    if (p->used != NULL)
        TAILQ_INSERT_HEAD(&accel_device_of(s->base.device)->kept, p, link);
}

/* Also finds blocks in the cache: a host task may ask for a block whose free the host has issued
 * but the stream has not reached. */
bool accel_share_find(device *base, const void *ptr, size_t bytes, device_share *out)
{
    accel_device *d = accel_device_of(base);
    accel_kept *p;
    pthread_mutex_lock(&d->lock);
    LIST_FOREACH(p, &d->all_host, in_all)
    {
        if ((uintptr_t)ptr - (uintptr_t)p->ptr < p->bytes)
            break;
    }
    const size_t inner = p != NULL ? (size_t)((const char *)ptr - (const char *)p->ptr) : 0;
    const bool found =
        p != NULL && p->share_offset != ACCEL_NOT_SHARED && bytes <= p->bytes - inner;
    if (found)
        *out = (device_share){p->share_offset, p->bytes, inner};
    pthread_mutex_unlock(&d->lock);
    return found;
}

static void put_stages(accel_device *d, accel_stages *stages)
{
    for (int i = 0; i < ACCEL_STAGES; i++)
        if (stages->block[i] != NULL && stages->block[i]->used != NULL)
            TAILQ_INSERT_HEAD(&d->kept, stages->block[i], link);
}

/* A failed device may still write to its blocks, so they are leaked. */
void accel_kept_close(accel_device *d)
{
    put_stages(d, &d->small);
    put_stages(d, &d->large);
    if (!atomic_load(&d->failed)) {
        accel_kept_trim(d, false);
        accel_kept_trim(d, true);
    }
}
