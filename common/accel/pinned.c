/* pinned.c -- memory of the host that copies reach, kept for reuse.
 *
 *   accel_pinned_get -> work issued on a stream -> accel_pinned_put ... accel_pinned_close
 *
 * To pin memory takes milliseconds, and may wait for the device. So a block that was put waits for
 * the next get of its size. The stream that used it last may have it at once, for work in its own
 * order; anybody else when the event says that this use is over.
 *
 * The blocks stand in a file that peers of the host can map (host_share.h), where there is one. */
#include <stdlib.h>
#include "common/base/dtype.h"
#include "common/accel/accel_impl.h"
#include "common/device/host_share.h"

size_t accel_size_class(size_t bytes)
{
    size_t step = 4096;
    while (step * 16 <= bytes)
        step *= 2;
    return bytes <= step ? step : size_round_up(bytes, step);
}

/* ---- from and to the system ------------------------------------------------------------------ */

/* Shared and pinned; of a library that pins only its own, shared for the caller and pinned for a
 * stage, which is by_host. */
static bool system_get(const accel_api *api, accel_pinned *p, bool by_host)
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
    return api->pin_alloc(p->bytes, &p->ptr) == 0;
}

static void system_put(const accel_api *api, accel_pinned *p)
{
    if (p->share_offset == ACCEL_NOT_SHARED) {
        (void)api->pin_free(p->ptr);
    } else {
        if (!p->is_pageable)
            (void)api->pin_unregister(p->ptr);
        host_share_put(p->ptr, p->bytes, p->share_offset);
    }
}

static accel_pinned *fresh(accel_device *d, size_t bytes, bool by_host)
{
    accel_pinned *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    p->bytes = bytes;
    if (d->api->event_create(d, ACCEL_ORDERS, &p->used) != 0) {
        free(p);
        return NULL;
    }
    if (system_get(d->api, p, by_host)) {
        pthread_mutex_lock(&d->lock);
        LIST_INSERT_HEAD(&d->all_pinned, p, in_all);
        pthread_mutex_unlock(&d->lock);
        return p;
    }
    (void)d->api->event_destroy(p->used);
    free(p);
    return NULL;
}

static void release(accel_device *d, accel_pinned *p)
{
    pthread_mutex_lock(&d->lock);
    LIST_REMOVE(p, in_all);
    pthread_mutex_unlock(&d->lock);
    system_put(d->api, p);
    (void)d->api->event_destroy(p->used);
    free(p);
}

/* ---- the cache ------------------------------------------------------------------------------- */

static accel_pinned *reuse(accel_stream *s, size_t bytes, bool by_host)
{
    accel_device *d = accel_device_of(s->base.device);
    accel_pinned *p;
    TAILQ_FOREACH(p, &d->pinned, link)
    {
        if (p->bytes == bytes && !(by_host && p->is_pageable) &&
            ((!by_host && p->by == s) || d->api->event_look(p->used) == 0))
            break;
    }
    if (p != NULL)
        TAILQ_REMOVE(&d->pinned, p, link);
    return p;
}

/* Blocks in use are left. */
static void trim(accel_device *d)
{
    accel_pinned *p = TAILQ_FIRST(&d->pinned), *next;
    for (; p != NULL; p = next) {
        next = TAILQ_NEXT(p, link);
        if (d->api->event_look(p->used) != 0)
            continue;
        TAILQ_REMOVE(&d->pinned, p, link);
        release(d, p);
    }
}

fsdp_status accel_pinned_get(accel_stream *s, size_t bytes, bool by_host, accel_pinned **out)
{
    accel_device *d = accel_device_of(s->base.device);
    *out = NULL;
    if (bytes <= SIZE_MAX / 2) {
        bytes = accel_size_class(bytes);
        if ((*out = reuse(s, bytes, by_host)) == NULL &&
            (*out = fresh(d, bytes, by_host)) == NULL) {
            trim(d);
            *out = fresh(d, bytes, by_host);
        }
    }
    if (*out != NULL)
        return FSDP_OK;
    return fsdp_error(FSDP_ENOMEM, "run fewer ranks on this host",
                      "no memory of the host that %s %d reaches: %zu bytes", accel_api_at(s)->word,
                      s->base.device->config.index, bytes);
}

void accel_pinned_used(accel_stream *s, accel_pinned *p)
{
    p->by = s;
    (void)accel_stream_check(s, accel_api_at(s)->event_record(p->used, s->queue), "pinned memory");
}

void accel_pinned_put(accel_stream *s, accel_pinned *p)
{
    accel_pinned_used(s, p);
    TAILQ_INSERT_HEAD(&accel_device_of(s->base.device)->pinned, p, link);
}

/* A task of the host may ask, whose stream has not come to the free: blocks in the cache count. */
bool accel_share_find(device *base, const void *ptr, size_t bytes, device_share *out)
{
    accel_device *d = accel_device_of(base);
    accel_pinned *p;
    pthread_mutex_lock(&d->lock);
    LIST_FOREACH(p, &d->all_pinned, in_all)
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
        if (stages->block[i] != NULL)
            TAILQ_INSERT_HEAD(&d->pinned, stages->block[i], link);
}

/* Nobody knows when a device that is lost stops to write: its blocks are left to the system. */
void accel_pinned_close(accel_device *d)
{
    put_stages(d, &d->small);
    put_stages(d, &d->large);
    if (!atomic_load(&d->failed))
        trim(d);
}
