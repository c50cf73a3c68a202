/* memory.c -- blocks of device memory and of pinned host memory.
 *
 * A freed block stays with the stream that allocated it, for that stream's next request of its
 * size: a step requests the same blocks in the same order. So after the first step memory costs no
 * call of the library. If the stream also freed the block, its later work runs after the work that
 * used it. If another stream did (the compute stream frees a gathered unit), an event tells when
 * that stream has reached the free; a block that is requested earlier makes the requesting stream
 * wait for the event. The requesting stream takes no new memory in place of such a block, which
 * limits how far gathers run ahead of the compute stream. A block goes back to the library after
 * MOST_FREES later frees of its stream's blocks, more than a step has, and when memory is short.
 *
 * The ledger counts a device block until the stream that freed it has reached the free, or until it
 * is requested again. For the stream that allocated it that is at once. A host block is subtracted
 * by device_free. */
#include <search.h>
#include <stdlib.h>
#include "common/accel/accel_impl.h"

typedef struct block block;
struct block {
    char *ptr;
    mem_request is;
    accel_kept *kept;        /* NULL: memory of the library's own pool */
    accel_stream *by;        /* the stream that allocated it */
    accel_stream *leaves;    /* the other stream that freed it and has not reached that; or NULL */
    TAILQ_ENTRY(block) link; /* in `leaving` of that stream, or in `idle` */
    TAILQ_ENTRY(block) by_use; /* in `free_blocks` of `by`, if it stays */
    void *freed;               /* event of the free by another stream; stays with an idle entry */
    bool stays;
    unsigned n_frees; /* of its stream, when it was freed */
};

enum { MOST_FREES = 16384 };

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
    block *b = TAILQ_FIRST(&d->idle);
    if (b == NULL)
        return calloc(1, sizeof *b);
    TAILQ_REMOVE(&d->idle, b, link);
    return b;
}

static void entry_put(accel_device *d, block *b)
{
    *b = (block){.freed = b->freed};
    TAILQ_INSERT_HEAD(&d->idle, b, link);
}

/* ---- freed by another stream ----------------------------------------------------------------- */

static void uncount(accel_device *d, block *b)
{
    ledger_sub(ledger_of(d, b), b->is.category, b->is.bytes);
    if (b->leaves != NULL)
        TAILQ_REMOVE(&b->leaves->leaving, b, link);
    b->leaves = NULL;
    if (!b->stays)
        entry_put(d, b);
}

/* b was freed on s: its event is recorded there. */
static int leave(accel_stream *s, block *b)
{
    accel_device *d = accel_device_of(s->base.device);
    const int code = b->freed != NULL ? 0 : d->api->event_create(d, ACCEL_ORDERS, &b->freed);
    if (code != 0)
        return code;
    (void)accel_stream_check(s, d->api->event_record(b->freed, s->queue), "device_free");
    b->leaves = s;
    TAILQ_INSERT_TAIL(&s->leaving, b, link);
    return 0;
}

/* A stream reaches its frees in order. */
static void look(accel_device *d, accel_stream *s)
{
    block *b;
    while ((b = TAILQ_FIRST(&s->leaving)) != NULL &&
           (atomic_load(&d->failed) || d->api->event_look(b->freed) != ACCEL_NOT_READY))
        uncount(d, b);
}

void accel_memory_look(accel_device *d)
{
    for (int i = 0; i < ACCEL_STREAMS; i++)
        if (d->streams[i] != NULL)
            look(d, d->streams[i]);
}

/* ---- free blocks ----------------------------------------------------------------------------- */

static void give_back(accel_stream *s, const block *b)
{
    if (b->kept != NULL)
        accel_kept_put(s, b->kept);
    else
        (void)accel_stream_check(s, accel_api_at(s)->block_put(s, b->ptr), "device_free");
}

/* Whether a freed block stays with its stream, which is still there. (The cache of kept.c does the
 * same for its blocks.) With debug_fill all go back, so that whoever looks for mistakes in the use
 * of memory sees each free. */
static bool stays(const accel_device *d, const block *b)
{
    bool is_there = false;
    for (int i = 0; i < ACCEL_STREAMS; i++)
        is_there = is_there || d->streams[i] == b->by;
    return is_there && b->kept == NULL && !b->is.on_host && !d->base.config.debug_fill;
}

/* Take t out of the free blocks of s, and return its memory if it gives_back. Later work of s runs
 * after the work that used it. */
static void free_block_remove(accel_stream *s, block *t, bool gives_back)
{
    accel_device *d = accel_device_of(s->base.device);
    TAILQ_REMOVE(&s->free_blocks, t, by_use);
    d->free_bytes -= t->is.bytes;
    if (t->leaves != NULL) {
        (void)accel_stream_check(s, d->api->queue_wait(s->queue, t->freed), "device_free");
        uncount(d, t);
    }
    if (gives_back)
        give_back(s, t);
    entry_put(d, t);
}

/* Let b be a free block of s with b's number of bytes, if s has one: of those that need no wait the
 * last that was freed, else the first. */
static bool free_block_take(accel_stream *s, block *b)
{
    block *t, *found = NULL;
    TAILQ_FOREACH(t, &s->free_blocks, by_use)
    {
        if (t->is.bytes == b->is.bytes && (t->leaves == NULL || found == NULL))
            found = t;
    }
    if (found == NULL)
        return false;
    b->ptr = found->ptr;
    free_block_remove(s, found, false);
    return true;
}

static void free_block_put(accel_stream *s, block *b)
{
    block *oldest;
    b->stays = true;
    b->n_frees = s->n_frees++;
    TAILQ_INSERT_TAIL(&s->free_blocks, b, by_use);
    accel_device_of(s->base.device)->free_bytes += b->is.bytes;
    while (oldest = TAILQ_FIRST(&s->free_blocks), s->n_frees - oldest->n_frees > MOST_FREES)
        free_block_remove(s, oldest, true);
}

void accel_free_blocks_end(accel_stream *s)
{
    while (!TAILQ_EMPTY(&s->free_blocks))
        free_block_remove(s, TAILQ_FIRST(&s->free_blocks), true);
}

/* ---- alloc ----------------------------------------------------------------------------------- */

/* Wait for all streams and return all freed memory to the system. */
static fsdp_status reclaim(accel_device *d)
{
    for (int i = 0; i < ACCEL_STREAMS; i++) {
        if (d->streams[i] == NULL)
            continue;
        accel_free_blocks_end(d->streams[i]);
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
    if (free_block_take(s, b))
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
    const bool by_another = b->by != s && !b->is.on_host;
    const bool leaves = by_another && leave(s, b) == 0;
    if ((leaves || !by_another) && stays(d, b))
        free_block_put(b->by, b);
    else
        give_back(s, b);
    if (!leaves)
        uncount(d, b);
}

/* ---- the device ------------------------------------------------------------------------------ */

size_t accel_mem_available(device *base)
{
    accel_device *d = accel_device_of(base);
    const size_t available = d->api->mem_available(d) + accel_kept_device_bytes(d) + d->free_bytes;
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
    while ((b = TAILQ_FIRST(&d->idle)) != NULL) {
        TAILQ_REMOVE(&d->idle, b, link);
        if (b->freed != NULL)
            (void)d->api->event_destroy(b->freed);
        free(b);
    }
    accel_kept_close(d);
}
