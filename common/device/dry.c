/* dry.c -- see dry.h.
 *
 * Streams, events and the host have vector clocks (order_clock.h), which tell what the host has
 * waited for. A freed block stays in the ledger until its free is in the host's clock. */
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include "common/device/dry.h"
#include "common/device/device_impl.h"
#include "common/device/order_clock.h"

/* Above all addresses that Linux maps, without a hint, on x86-64 and AArch64. Addresses are never
 * reused. Host memory that is not device memory has addresses of its own. */
#define FIRST_ADDRESS ((uintptr_t)1 << 48)
#define FIRST_ON_HOST ((uintptr_t)1 << 56)

enum { ADDRESS_ALIGN = 64 };

typedef struct dry_block {
    uintptr_t at;
    mem_request is;
    ledger *ledger;
    const stream *by; /* the stream that allocated it; once freed, the stream that freed it */
    int slot;         /* of the stream that freed it */
    uint64_t number;  /* of the free on that stream */
    TAILQ_ENTRY(dry_block) link;
} dry_block;

typedef struct dry_device {
    device base;
    bool is_inline; /* the compute stream */
    bool is_pool;   /* see DRY_POOL */
    uintptr_t next, next_on_host;
    void *live;                              /* tree of dry_block by address */
    TAILQ_HEAD(dry_blocks, dry_block) freed; /* the host has not waited for the free */
    order_clocks clocks;
} dry_device;

static dry_device *dry_of(device *d)
{
    return (dry_device *)d;
}

/* ---- time ----------------------------------------------------------------------------------- */

static void forget(dry_block *b)
{
    ledger_sub(b->ledger, b->is.category, b->is.bytes);
    free(b);
}

/* Called when the host has waited: forget the blocks whose free is in the host's clock. */
static void reap(dry_device *d)
{
    for (dry_block *b = TAILQ_FIRST(&d->freed), *next; b != NULL; b = next) {
        next = TAILQ_NEXT(b, link);
        if (!order_before(&d->clocks.host, b->slot, b->number))
            continue;
        TAILQ_REMOVE(&d->freed, b, link);
        forget(b);
    }
}

/* The host waits for all streams. */
static void sync_all(dry_device *d)
{
    for (int i = 0; i < ORDER_STREAMS; i++)
        if (d->clocks.of[i] != NULL)
            order_sync_stream(&d->clocks, i);
    reap(d);
}

static bool runs_in_host(const dry_device *d, const stream *s)
{
    return d->is_inline && s == d->base.compute;
}

/* Count one operation on s and return its number. */
static uint64_t issue(dry_device *d, const stream *s, int slot)
{
    uint64_t number = order_tick(&d->clocks, slot);
    if (runs_in_host(d, s))
        order_sync_stream(&d->clocks, slot);
    return number;
}

static fsdp_status dry_stream_sync(stream *s)
{
    dry_device *d = dry_of(s->device);
    order_sync_stream(&d->clocks, order_slot(&d->clocks, s));
    reap(d);
    return FSDP_OK;
}

static fsdp_status dry_event_create(device *d, bool timed, event **out)
{
    event *e = calloc(1, sizeof *e);
    if (e == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "event_create: no memory");
    *e = (event){.device = d, .timed = timed};
    *out = e;
    return FSDP_OK;
}

static void dry_event_free(event *e)
{
    order_event_free(&dry_of(e->device)->clocks, e);
    free(e);
}

static fsdp_status dry_event_record(event *e, stream *s)
{
    dry_device *d = dry_of(s->device);
    int slot = order_slot(&d->clocks, s);
    (void)issue(d, s, slot);
    return order_record(&d->clocks, slot, e)
               ? FSDP_OK
               : fsdp_error(FSDP_ENOMEM, "", "event_record: no memory");
}

static fsdp_status dry_stream_wait_event(stream *s, event *e, const device_act *act)
{
    dry_device *d = dry_of(s->device);
    int slot = order_slot(&d->clocks, s);
    (void)act;
    order_wait(&d->clocks, slot, e);
    (void)issue(d, s, slot);
    if (runs_in_host(d, s))
        reap(d);
    return FSDP_OK;
}

static fsdp_status dry_event_sync(event *e)
{
    dry_device *d = dry_of(e->device);
    order_wait(&d->clocks, ORDER_HOST, e);
    reap(d);
    return FSDP_OK;
}

static bool dry_event_done(event *e)
{
    return dry_event_sync(e) == FSDP_OK;
}

static fsdp_status dry_event_elapsed_s(event *begin, event *end, double *out)
{
    (void)begin;
    (void)end;
    *out = 0;
    return FSDP_OK;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int compare_blocks(const void *a, const void *b)
{
    const dry_block *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* The entry of a block of the same size that s itself has freed, or NULL: a stream of the CPU would
 * reuse this memory, so the ledger stops counting it. The new block gets a new address. Blocks of
 * device_alloc_host are kept apart as on the CPU, because other processes can map them. */
static dry_block *revive(dry_device *d, const stream *s, const mem_request *want)
{
    dry_block *b;
    TAILQ_FOREACH(b, &d->freed, link)
    if (!d->is_pool && b->by == s && b->is.bytes == want->bytes && b->is.on_host == want->on_host) {
        TAILQ_REMOVE(&d->freed, b, link);
        ledger_sub(b->ledger, b->is.category, b->is.bytes);
        return b;
    }
    return NULL;
}

/* Whether the memory limit leaves `bytes`, if necessary after waiting for issued frees. */
static bool limit_allows(dry_device *d, size_t bytes)
{
    if (bytes <= device_limit_left(&d->base))
        return true;
    sync_all(d);
    return bytes <= device_limit_left(&d->base);
}

static fsdp_status dry_alloc(stream *s, const mem_request *want, void **out)
{
    dry_device *d = dry_of(s->device);
    ledger *l = want->on_host ? d->base.host_ledger : d->base.ledger;
    if (l == d->base.ledger && !limit_allows(d, want->bytes))
        return device_alloc_failed(l, want, 0);
    dry_block *b = revive(d, s, want);
    if (b == NULL && (b = calloc(1, sizeof *b)) == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_alloc: no host memory");
    uintptr_t *next = l == d->base.ledger ? &d->next : &d->next_on_host;
    *b = (dry_block){.at = *next, .is = *want, .ledger = l, .by = s};
    *next += (want->bytes / ADDRESS_ALIGN + 1) * ADDRESS_ALIGN;
    if (tsearch(b, &d->live, compare_blocks) == NULL) {
        free(b);
        return fsdp_error(FSDP_ENOMEM, "", "device_alloc: no host memory");
    }
    ledger_add(l, want->category, want->bytes);
    *out = (void *)b->at;
    return FSDP_OK;
}

static void dry_free(stream *s, void *ptr)
{
    dry_device *d = dry_of(s->device);
    dry_block key = {.at = (uintptr_t)ptr};
    dry_block *const *found = tfind(&key, &d->live, compare_blocks);
    FSDP_ASSERT(found != NULL && "freed pointer is not from device_alloc");
    dry_block *b = *found;
    tdelete(b, &d->live, compare_blocks);
    ledger_free_issued(b->ledger, b->is.category, b->is.bytes);
    b->slot = order_slot(&d->clocks, s);
    b->number = issue(d, s, b->slot);
    if (runs_in_host(d, s) || (d->is_pool && b->by == s)) {
        forget(b);
        return;
    }
    b->by = s;
    TAILQ_INSERT_HEAD(&d->freed, b, link);
}

bool dry_is_on_host(const void *ptr)
{
    return (uintptr_t)ptr >= FIRST_ON_HOST;
}

static size_t dry_mem_available(device *d)
{
    return device_limit_left(d);
}

/* ---- work ----------------------------------------------------------------------------------- */

static fsdp_status dry_move(stream *s, const device_act *act)
{
    dry_device *d = dry_of(s->device);
    (void)issue(d, s, order_slot(&d->clocks, s));
    if (act->kind == ACT_DOWNLOAD)
        memset(act->dst, 0, act->bytes);
    return FSDP_OK;
}

static fsdp_status dry_launch(stream *s, const launch_config *l, const device_act *act)
{
    dry_device *d = dry_of(s->device);
    (void)l;
    (void)act;
    (void)issue(d, s, order_slot(&d->clocks, s));
    return FSDP_OK;
}

/* ---- the device ----------------------------------------------------------------------------- */

static fsdp_status dry_stream_create(device *d, const stream_config *config, stream **out)
{
    stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "stream_create: no memory");
    stream_init(s, d, config);
    if (order_slot(&dry_of(d)->clocks, s) < 0) {
        free(s);
        return fsdp_error(FSDP_ENOMEM, "use fewer streams",
                          "stream_create: a dry device has %d streams at most", ORDER_STREAMS);
    }
    *out = s;
    return FSDP_OK;
}

static void dry_stream_free(stream *s)
{
    dry_device *d = dry_of(s->device);
    int slot = order_slot(&d->clocks, s);
    order_sync_stream(&d->clocks, slot);
    reap(d);
    order_stream_free(&d->clocks, slot);
    free(s);
}

static void report_live(const void *node, VISIT which, int depth)
{
    const dry_block *b = *(const dry_block *const *)node;
    (void)depth;
    if (which == postorder || which == leaf)
        fprintf(stderr, "device_close: block '%s' (%s, %zu bytes) was never freed\n", b->is.label,
                mem_category_name(b->is.category), b->is.bytes);
}

static void dry_close(device *base)
{
    dry_device *d = dry_of(base);
    if (base->compute != NULL)
        dry_stream_free(base->compute);
    sync_all(d); /* streams that were never freed */
    twalk(d->live, report_live);
    FSDP_ASSERT(d->live == NULL && "device closed with live memory");
    order_events_free(&d->clocks);
    device_delete(base);
}

static fsdp_status dry_open(const device_config *config, device **out)
{
    const device_backend *b = config->backend;
    bool runs_ahead = config->async_compute || config->schedule_seed != 0;
    dry_device *d = device_new(config, sizeof *d);
    if (d == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_open: no memory");
    d->is_inline = b->memory_is_host && !runs_ahead;
    d->is_pool = b == device_dry(DRY_POOL);
    d->next = FIRST_ADDRESS;
    d->next_on_host = FIRST_ON_HOST;
    TAILQ_INIT(&d->freed);
    fsdp_status status = dry_stream_create(
        &d->base, &(stream_config){.name = "compute", .n_threads = config->n_threads},
        &d->base.compute);
    if (status != FSDP_OK) {
        dry_close(&d->base);
        return status;
    }
    *out = &d->base;
    return FSDP_OK;
}

#define DRY_CALLS                                                                                  \
    .name = "dry", .runs_c = true, .stands_still = true, .open = dry_open, DEVICE_CALLS(dry)

static const device_backend BACKENDS[DRY_KINDS] = {
    [DRY_CPU] = {.memory_is_host = true, DRY_CALLS},
    [DRY_SEPARATE] = {DRY_CALLS},
    [DRY_POOL] = {DRY_CALLS},
};

const device_backend *device_dry(dry_kind kind)
{
    FSDP_ASSERT((int)kind >= 0 && kind < DRY_KINDS);
    return &BACKENDS[kind];
}
