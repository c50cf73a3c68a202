/* memory.c -- blocks of device memory and of pinned host memory.
 *
 * The ledger counts a block until the stream that allocated it may reuse the memory. If that stream
 * also frees the block, it may reuse the memory at once, so device_free subtracts the block. If
 * another stream frees a device block (the compute stream frees a gathered unit), the block is
 * subtracted when that stream has reached the free. A host block is subtracted by device_free.
 *
 * Operations take the same temporaries in every step, from the stream that also frees them. Such a
 * block stays with its stream, for the next request of its size: later work of a stream runs after
 * the work that used the block. So after the first step temporaries cost no call of the library. A
 * stream keeps the MOST_TEMPORARIES that it freed last. */
#include <search.h>
#include <stdlib.h>
#include "common/accel/accel_impl.h"

typedef struct block block;
struct block {
    char *ptr;
    mem_request is;
    accel_kept *kept;          /* NULL: memory of the library's own pool */
    const accel_stream *by;    /* the stream that allocated it */
    STAILQ_ENTRY(block) link;  /* in `leaving` of a stream, or in `idle` */
    TAILQ_ENTRY(block) by_use; /* in `temporaries` of a stream */
    void *freed;               /* event of the free by another stream; stays with an idle entry */
};

enum { MOST_TEMPORARIES = 64 };

/* Blocks that overlap compare equal: a key of one byte finds the block that contains the byte. */
static int block_compare(const void *a, const void *b)
{
    const block *x = a, *y = b;
    const size_t x_bytes = x->is.bytes > 0 ? x->is.bytes : 1;
    const size_t y_bytes = y->is.bytes > 0 ? y->is.bytes : 1;
    if (x->ptr + x_bytes <= y->ptr)
        return -1;
    return y->ptr + y_bytes <= x->ptr;
}

static block *block_at(accel_device *d, const void *ptr)
{
    const block key = {.ptr = (char *)(uintptr_t)ptr, .is.bytes = 1};
    block **node = tfind(&key, &d->blocks, block_compare);
    return node != NULL ? *node : NULL;
}

static ledger *ledger_of(accel_device *d, const block *b)
{
    return b->is.on_host ? d->base.host_ledger : d->base.ledger;
}

bool accel_is_host(accel_device *d, const void *ptr)
{
    const block *b = block_at(d, ptr);
    return b != NULL && b->is.on_host;
}

bool accel_is_pageable(accel_device *d, const void *ptr)
{
    const block *b = block_at(d, ptr);
    return b != NULL && b->is.on_host && b->kept->is_pageable;
}

/* A block's entry, zeroed but for `freed`; NULL: no host memory. */
static block *entry_new(accel_device *d)
{
    block *b = STAILQ_FIRST(&d->idle);
    if (b == NULL)
        return calloc(1, sizeof *b);
    STAILQ_REMOVE_HEAD(&d->idle, link);
    return b;
}

static void entry_put(accel_device *d, block *b)
{
    *b = (block){.freed = b->freed};
    STAILQ_INSERT_HEAD(&d->idle, b, link);
}

/* ---- freed by another stream ----------------------------------------------------------------- */

static void uncount(accel_device *d, block *b)
{
    ledger_sub(ledger_of(d, b), b->is.category, b->is.bytes);
    entry_put(d, b);
}

/* b was freed on s. The ledger counts it until s reaches the free. */
static void leave(accel_stream *s, block *b)
{
    accel_device *d = accel_device_of(s->base.device);
    if (b->freed == NULL && d->api->event_create(d, ACCEL_ORDERS, &b->freed) != 0) {
        uncount(d, b);
        return;
    }
    (void)accel_stream_check(s, d->api->event_record(b->freed, s->queue), "device_free");
    STAILQ_INSERT_TAIL(&s->leaving, b, link);
}

/* A stream reaches its frees in order. */
static void look(accel_device *d, accel_stream *s)
{
    block *b;
    while ((b = STAILQ_FIRST(&s->leaving)) != NULL &&
           (atomic_load(&d->failed) || d->api->event_look(b->freed) != ACCEL_NOT_READY)) {
        STAILQ_REMOVE_HEAD(&s->leaving, link);
        uncount(d, b);
    }
}

void accel_memory_look(accel_device *d)
{
    for (int i = 0; i < ACCEL_STREAMS; i++)
        if (d->streams[i] != NULL)
            look(d, d->streams[i]);
}

/* ---- temporaries ----------------------------------------------------------------------------- */

static void give_back(accel_stream *s, const block *b)
{
    if (b->kept != NULL)
        accel_kept_put(s, b->kept);
    else
        (void)accel_stream_check(s, accel_api_at(s)->block_put(s, b->ptr), "device_free");
}

/* Whether a block that s frees stays with s. (The cache of kept.c does the same for its blocks.)
 * With debug_fill all go back, so that whoever looks for mistakes in the use of memory sees each
 * free. */
static bool stays(const accel_stream *s, const block *b)
{
    return b->by == s && b->kept == NULL && b->is.category == MEM_OTHER &&
           !s->base.device->config.debug_fill;
}

static void temporary_remove(accel_stream *s, block *t)
{
    accel_device *d = accel_device_of(s->base.device);
    TAILQ_REMOVE(&s->temporaries, t, by_use);
    s->n_temporaries--;
    d->temporary_bytes -= t->is.bytes;
    entry_put(d, t);
}

static void temporary_end(accel_stream *s, block *t)
{
    give_back(s, t);
    temporary_remove(s, t);
}

/* Let b be a block of s with b's number of bytes, if s has one. */
static bool temporary_take(accel_stream *s, block *b)
{
    block *t;
    TAILQ_FOREACH(t, &s->temporaries, by_use)
    {
        if (t->is.bytes == b->is.bytes)
            break;
    }
    if (t == NULL)
        return false;
    b->ptr = t->ptr;
    temporary_remove(s, t);
    return true;
}

static void temporary_put(accel_stream *s, block *b)
{
    TAILQ_INSERT_HEAD(&s->temporaries, b, by_use);
    accel_device_of(s->base.device)->temporary_bytes += b->is.bytes;
    if (s->n_temporaries++ == MOST_TEMPORARIES)
        temporary_end(s, TAILQ_LAST(&s->temporaries, accel_temporaries));
}

void accel_temporaries_end(accel_stream *s)
{
    while (!TAILQ_EMPTY(&s->temporaries))
        temporary_end(s, TAILQ_FIRST(&s->temporaries));
}

/* ---- alloc ----------------------------------------------------------------------------------- */

/* Wait for all streams and return all freed memory to the system. */
static fsdp_status reclaim(accel_device *d)
{
    for (int i = 0; i < ACCEL_STREAMS; i++) {
        if (d->streams[i] == NULL)
            continue;
        accel_temporaries_end(d->streams[i]);
        TRY(accel_wait(d->streams[i], NULL));
    }
    accel_memory_look(d);
    if (d->api->block_get != NULL)
        return d->api->explain(d->api->blocks_trim(d), "device_alloc");
    accel_kept_trim(d, true);
    return FSDP_OK;
}

/* Get memory for b in order of s; b->ptr is NULL if there is none. */
static int device_try(accel_stream *s, block *b)
{
    const size_t bytes = b->is.bytes > 0 ? b->is.bytes : 1;
    void *ptr = NULL;
    int code = 0;
    if (accel_api_at(s)->block_get != NULL)
        code = accel_api_at(s)->block_get(s, bytes, &ptr);
    else if ((b->kept = accel_kept_get(s, bytes, USE_ON_DEVICE)) != NULL)
        ptr = b->kept->ptr;
    b->ptr = ptr;
    return code;
}

static fsdp_status device_get(accel_stream *s, block *b)
{
    accel_device *d = accel_device_of(s->base.device);
    if (b->is.bytes > device_limit_left(&d->base))
        TRY(reclaim(d));
    if (b->is.bytes > device_limit_left(&d->base))
        return device_alloc_failed(d->base.ledger, &b->is, 0);
    if (b->is.category == MEM_OTHER && temporary_take(s, b))
        return FSDP_OK;
    int code = device_try(s, b);
    if (code == 0 && b->ptr == NULL) {
        TRY(reclaim(d));
        code = device_try(s, b);
    }
    if (code != 0 || b->ptr != NULL)
        return accel_stream_check(s, code, "device_alloc");
    return device_alloc_failed(d->base.ledger, &b->is, 0);
}

static fsdp_status host_get(accel_stream *s, block *b)
{
    if (accel_pinned_get(s, b->is.bytes, USE_ON_HOST, &b->kept) != FSDP_OK)
        return device_alloc_failed(s->base.device->host_ledger, &b->is, 0);
    b->ptr = b->kept->ptr;
    return FSDP_OK;
}

fsdp_status accel_alloc(stream *base, const mem_request *want, void **out)
{
    accel_stream *s = accel_stream_at(base);
    accel_device *d = accel_device_of(base->device);
    TRY(accel_device_status(d));
    accel_memory_look(d);
    block *b = entry_new(d);
    if (b == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_alloc: no memory to enter '%s'", want->label);
    b->is = *want;
    b->by = s;
    fsdp_status status = want->on_host ? host_get(s, b) : device_get(s, b);
    if (status != FSDP_OK) {
        entry_put(d, b);
        return status;
    }
    if (tsearch(b, &d->blocks, block_compare) == NULL) {
        give_back(s, b);
        entry_put(d, b);
        return fsdp_error(FSDP_ENOMEM, "", "device_alloc: no memory to enter '%s'", want->label);
    }
    ledger_add(ledger_of(d, b), want->category, want->bytes);
    *out = b->ptr;
    return FSDP_OK;
}

/* ---- free ------------------------------------------------------------------------------------ */

/* With debug_fill, freed device memory is filled with NaN. Host memory is not: to fill it in stream
 * order would take a host task. */
void accel_free(stream *base, void *ptr)
{
    accel_stream *s = accel_stream_at(base);
    accel_device *d = accel_device_of(base->device);
    block *b = block_at(d, ptr);
    FSDP_ASSERT(b != NULL && b->ptr == ptr && "freed pointer is not from device_alloc");
    tdelete(b, &d->blocks, block_compare);
    ledger_free_issued(ledger_of(d, b), b->is.category, b->is.bytes);
    if (base->device->config.debug_fill && !b->is.on_host && b->is.bytes > 0)
        (void)accel_stream_check(s, d->api->fill(ptr, 0xFF, b->is.bytes, s->queue), "device_free");
    if (stays(s, b)) {
        ledger_sub(ledger_of(d, b), b->is.category, b->is.bytes);
        temporary_put(s, b);
        return;
    }
    give_back(s, b);
    if (b->by != s && !b->is.on_host)
        leave(s, b);
    else
        uncount(d, b);
}

/* ---- the device ------------------------------------------------------------------------------ */

size_t accel_mem_available(device *base)
{
    accel_device *d = accel_device_of(base);
    const size_t available =
        d->api->mem_available(d) + accel_kept_device_bytes(d) + d->temporary_bytes;
    const size_t left = device_limit_left(base);
    return available < left ? available : left;
}

size_t accel_mem_reserved(device *base)
{
    accel_device *d = accel_device_of(base);
    return d->api->block_get != NULL ? d->api->mem_reserved(d) : d->kept_device_bytes;
}

static void report_live(const void *node, VISIT which, int depth)
{
    const block *b = *(const block *const *)node;
    (void)depth;
    if (which == postorder || which == leaf)
        fprintf(stderr, "device_close: block '%s' (%s, %zu bytes) was never freed\n", b->is.label,
                mem_category_name(b->is.category), b->is.bytes);
}

void accel_memory_close(accel_device *d)
{
    accel_memory_look(d);
    twalk(d->blocks, report_live);
    FSDP_ASSERT(d->blocks == NULL && "device closed with live memory");
    block *b;
    while ((b = STAILQ_FIRST(&d->idle)) != NULL) {
        STAILQ_REMOVE_HEAD(&d->idle, link);
        if (b->freed != NULL)
            (void)d->api->event_destroy(b->freed);
        free(b);
    }
    accel_kept_close(d);
}
