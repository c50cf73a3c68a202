/* cpu_memory.c -- blocks of host memory, recycled inside the device.
 *
 *   cpu_pool_init -> cpu_alloc ... cpu_free -> cpu_pool_close
 *
 * A block is one piece of memory:   | cpu_block header | payload, 64-byte aligned | tail word |
 * The header of a large block is shifted by less than a page from the beginning of its mapping
 * (next_shift_bytes). The header of a guarded block is at the end of an open page, and the guarded
 * pages begin with the payload. A block stays in its place when it is recycled.
 * The header's last word and the tail are magic numbers. They detect a write just before or after
 * the payload, a second free and a foreign pointer: the program stops and names the block.
 *
 * Why recycle: a training step frees and allocates the same byte counts again and again. The first
 * touch of fresh pages from the system costs more than most kernels that use them. A freed block
 * waits in a bucket for a request of exactly its footprint. Bounds: the cache never holds more
 * bytes than the peak of live bytes. It is released before an allocation fails because the system
 * refuses, and before a block of 2 MiB or more would exceed the host's free memory.
 *
 * Life of a block:   live -> pending (device_free was called) -> cached (its stream reached it)
 *     cached -> live      any stream: all work queued before the free is done
 *     pending -> live     the same worker stream, same bytes: its queue already orders the old use
 *                         before the new one. Without this, a host that runs a whole step ahead of
 *                         its stream would need the sum of all blocks of the step.
 * The ledger counts the requested bytes from device_alloc until the block leaves `pending`.
 *
 * Under AddressSanitizer nothing is recycled, so that it sees every use after free.
 *
 * A shared block lies in a file that other processes can map (host_share.h) and is only reused as
 * a shared block. If device memory is guarded, device_alloc_host has a pool of its own. */
#include "common/base/dtype.h"
#include "common/base/page.h"
#include "common/base/recycle.h"
#include "common/base/under_asan.h"
#include "common/device/cpu_impl.h"
#include "common/device/guard.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK_LIVE  UINT64_C(0x11fe0b10c4a11ec5)
#define BLOCK_FREED UINT64_C(0xf3eed0b10c4dead5)
#define BLOCK_TAIL  UINT64_C(0x7a110b10c4e4d0f5)

enum { BLOCK_ALIGN = 64, BLOCK_HEADER_BYTES = 128 };
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define ALIAS_BYTES     ((size_t)4096) /* see next_shift_bytes */
#define NOT_SHARED      UINT64_MAX

enum { STATE_LIVE, STATE_PENDING, STATE_CACHED };

/* A device_free in a stream's queue. */
typedef struct pending_free {
    cpu_task task;
    cpu_block *block;
} pending_free;

/* The pool's lock guards links, state and frees_queued. */
struct cpu_block {
    pending_free own_node;           /* used unless an earlier free is still queued */
    pending_free *free_node;         /* the next device_free uses this, so it cannot fail */
    TAILQ_ENTRY(cpu_block) order;    /* in pool.live (live, pending) or pool.stale (cached) */
    LIST_ENTRY(cpu_block) in_bucket; /* while cached, or pending_on is set */
    const cpu_stream *pending_on;    /* this stream may reuse the block while it is pending */
    const char *label;
    size_t bytes;           /* requested */
    size_t footprint_bytes; /* shift, header, payload, tail, rounded: the key for reuse */
    cpu_pool *pool;
    uint16_t category, state;
    uint32_t frees_queued; /* device_free calls that the streams have not reached */
    uint64_t share_offset; /* offset in the shared file, or NOT_SHARED */
    uint64_t magic;        /* last: just before the payload */
};
_Static_assert(sizeof(struct cpu_block) == BLOCK_HEADER_BYTES, "the magic is next to the payload");

/* The pool of device_alloc_host. */
static cpu_pool *host_pool_of(cpu_device *d)
{
    return d->pool.is_guarded ? &d->host_pool : &d->pool;
}

static char *block_payload(cpu_block *b)
{
    return (char *)b + BLOCK_HEADER_BYTES;
}

/* ---- from and to the system ----------------------------------------------------------------- */

/* Large blocks request huge pages, and are shifted (next_shift_bytes). Under AddressSanitizer,
 * private blocks of any size come from malloc, which puts its guard right after them. */
static bool is_large(const cpu_pool *p, size_t footprint_bytes, bool shared)
{
    return !p->is_guarded && footprint_bytes >= HUGE_PAGE_BYTES && (shared || !UNDER_ASAN);
}

/* header + bytes + tail, rounded up to cache lines or, if shared or guarded, to pages. Large blocks
 * have room for a shift and are whole pages. 0: too large. */
static size_t footprint_of(const cpu_pool *p, size_t bytes, bool shared)
{
    if (bytes > SIZE_MAX / 2)
        return 0;
    size_t used_bytes = BLOCK_HEADER_BYTES + bytes + sizeof(uint64_t);
    if (p->is_guarded)
        return size_round_up(used_bytes - BLOCK_HEADER_BYTES + PAGE_BYTES, PAGE_BYTES);
    size_t footprint_bytes = size_round_up(used_bytes, shared ? PAGE_BYTES : BLOCK_ALIGN);
    if (!is_large(p, footprint_bytes, shared))
        return footprint_bytes;
    return size_round_up(used_bytes + ALIAS_BYTES - BLOCK_ALIGN, PAGE_BYTES);
}

/* Large blocks begin at different cache lines of 4096 bytes: block n of a pool at line 17 n mod 64.
 * This does not depend on the size of the system's pages.
 *
 * Mappings begin at a page boundary, and a kernel reads several arrays at once. AdamW over four
 * arrays of 124M floats takes 149 ms (2 cores of an Intel Xeon with AMX) if all begin at the same
 * offset in 4096 bytes, and 93 ms if they do not; over four of 1M floats 1.18 and 0.40 ms. Only the
 * last 12 bits of the address matter: four of 1M floats in small pages, whose higher bits differ,
 * take 1.27 and 0.47 ms. These bits choose the set of the first-level cache, and by them a load
 * decides whether an earlier store that is not yet complete may be to the same address.
 *
 * One line between two arrays is too little (0.66 ms), three are enough. 17 is odd, so 64 blocks in
 * a row all differ, and any two of four in a row are at least 13 lines apart. Arrays of less than
 * 2 MiB stay in the second-level cache and showed no difference; so smaller blocks are not shifted,
 * which would cost a page. */
static size_t next_shift_bytes(cpu_pool *p)
{
    enum { ALIAS_LINES = ALIAS_BYTES / BLOCK_ALIGN, STEP_LINES = 17 };
    unsigned n = atomic_fetch_add(&p->n_shifted, 1);
    return (size_t)(n * STEP_LINES % ALIAS_LINES) * BLOCK_ALIGN;
}

static cpu_block *system_get(cpu_pool *p, size_t footprint_bytes, bool shared)
{
    uint64_t share_offset = NOT_SHARED;
    bool large = is_large(p, footprint_bytes, shared);
    char *base;
    if (p->is_guarded)
        base = guard_map(footprint_bytes);
    else if (shared)
        base = host_share_get(footprint_bytes, &share_offset);
    else
        base = large ? host_map(footprint_bytes, HUGE_PAGE_BYTES)
                     : aligned_alloc(BLOCK_ALIGN, footprint_bytes);
    if (!base)
        return NULL;
    size_t guarded_bytes = p->is_guarded ? PAGE_BYTES - BLOCK_HEADER_BYTES : 0;
    cpu_block *b = (cpu_block *)(base + (large ? next_shift_bytes(p) : guarded_bytes));
    b->pool = p;
    b->share_offset = share_offset;
    return b;
}

/* The beginning of the block's mapping. A large block begins less than a page after it, a guarded
 * payload begins one open page after it. */
static char *block_base(cpu_block *b)
{
    bool large = is_large(b->pool, b->footprint_bytes, b->share_offset != NOT_SHARED);
    if (b->pool->is_guarded)
        return block_payload(b) - PAGE_BYTES;
    return (char *)b - (large ? (uintptr_t)b % ALIAS_BYTES : 0);
}

static void system_put(cpu_block *b)
{
    if (b->pool->is_guarded)
        guard_unmap(block_base(b), b->footprint_bytes);
    else if (b->share_offset != NOT_SHARED)
        host_share_put(block_base(b), b->footprint_bytes, b->share_offset);
    else if (is_large(b->pool, b->footprint_bytes, false))
        munmap(block_base(b), b->footprint_bytes);
    else
        free(b);
}

/* ---- lists; p->lock is held ----------------------------------------------------------------- */
static void live_insert(cpu_pool *p, cpu_block *b)
{
    b->own_node.block = b;
    b->free_node = &b->own_node;
    TAILQ_INSERT_TAIL(&p->live, b, order);
    p->live_bytes += b->footprint_bytes;
    if (p->live_bytes > p->live_peak_bytes)
        p->live_peak_bytes = p->live_bytes;
}

/* ---- the cache ------------------------------------------------------------------------------ */
static size_t bucket_of(size_t footprint_bytes)
{
    return (footprint_bytes / BLOCK_ALIGN * UINT64_C(0x9e3779b97f4a7c15)) >> 32 &
           (CPU_POOL_BUCKETS - 1);
}

static void cache_remove(cpu_pool *p, cpu_block *b)
{
    TAILQ_REMOVE(&p->stale, b, order);
    LIST_REMOVE(b, in_bucket);
    p->cached_bytes -= b->footprint_bytes;
}

/* Move the oldest blocks to `evicted` until at most keep_bytes are cached; p->lock is held. */
static void cache_evict(cpu_pool *p, size_t keep_bytes, struct cpu_block_list *evicted)
{
    while (p->cached_bytes > keep_bytes) {
        cpu_block *b = TAILQ_FIRST(&p->stale);
        cache_remove(p, b);
        TAILQ_INSERT_TAIL(evicted, b, order);
    }
}

static void system_put_all(struct cpu_block_list *evicted)
{
    cpu_block *b;
    while ((b = TAILQ_FIRST(evicted)) != NULL) {
        TAILQ_REMOVE(evicted, b, order);
        system_put(b);
    }
}

void cpu_pool_trim(cpu_pool *p, size_t keep_bytes)
{
    struct cpu_block_list evicted = TAILQ_HEAD_INITIALIZER(evicted);
    pthread_mutex_lock(&p->lock);
    cache_evict(p, keep_bytes, &evicted);
    pthread_mutex_unlock(&p->lock);
    system_put_all(&evicted); /* makes system calls, so outside the lock */
}

size_t cpu_pool_cached_bytes(cpu_pool *p)
{
    pthread_mutex_lock(&p->lock);
    size_t cached_bytes = p->cached_bytes;
    pthread_mutex_unlock(&p->lock);
    return cached_bytes;
}

/* Whether an alloc of `bytes` on s may get this block, which is from the right bucket. */
static bool is_reusable(const cpu_block *b, const cpu_stream *s, size_t bytes,
                        size_t footprint_bytes, bool shared)
{
    if ((b->share_offset != NOT_SHARED) != shared)
        return false;
    if (b->state == STATE_CACHED)
        return b->footprint_bytes == footprint_bytes;
    return b->pending_on == s && b->bytes == bytes; /* same bytes: the tail stays where it is */
}

/* pending -> live. The queued free will find the block live and leave it alone. */
static bool revive(cpu_block *b)
{
    pending_free *node = recycle_get(sizeof *node); /* own_node may be in the queue */
    if (!node)
        return false;
    b->free_node = node;
    LIST_REMOVE(b, in_bucket);
    b->pending_on = NULL;
    ledger_sub(b->pool->ledger, (mem_category)b->category, b->bytes);
    return true;
}

/* A block for reuse, or NULL. First choice: a pending block of this stream, so that the stream does
 * not hold two blocks. Second: the most recently freed block, which may still be in the processor's
 * caches. */
static cpu_block *reuse(cpu_pool *p, const cpu_stream *s, size_t bytes, size_t footprint_bytes,
                        bool shared)
{
    pthread_mutex_lock(&p->lock);
    cpu_block *b = NULL, *next;
    LIST_FOREACH(next, &p->bucket[bucket_of(footprint_bytes)], in_bucket)
    {
        bool is_own = next->state == STATE_PENDING;
        if ((b && !is_own) || !is_reusable(next, s, bytes, footprint_bytes, shared))
            continue;
        b = next;
        if (is_own)
            break;
    }
    if (b && b->state == STATE_CACHED) {
        cache_remove(p, b);
        live_insert(p, b);
    } else if (b && !revive(b)) {
        b = NULL;
    }
    if (b)
        b->state = STATE_LIVE;
    pthread_mutex_unlock(&p->lock);
    return b;
}

/* Memory from the system; NULL and errno: there is none. If a large block finds memory short, or
 * the system refuses, the cache is released first: the system might also grant the memory and kill
 * the process later. */
static cpu_block *fresh(cpu_pool *p, size_t footprint_bytes, bool shared)
{
    if (footprint_bytes >= HUGE_PAGE_BYTES && cpu_pool_cached_bytes(p) > 0 &&
        host_mem_available("") < footprint_bytes)
        cpu_pool_trim(p, 0);
    cpu_block *b = system_get(p, footprint_bytes, shared);
    if (!b) {
        cpu_pool_trim(p, 0);
        b = system_get(p, footprint_bytes, shared);
    }
    if (!b)
        return NULL;
    b->footprint_bytes = footprint_bytes;
    b->pending_on = NULL;
    b->frees_queued = 0;
    b->state = STATE_LIVE;
    pthread_mutex_lock(&p->lock);
    live_insert(p, b);
    pthread_mutex_unlock(&p->lock);
    return b;
}

/* ---- alloc and free ------------------------------------------------------------------------- */
/* Whether the memory limit leaves `bytes`, if necessary after draining the streams: a freed block
 * counts until its stream reaches the free. */
static bool limit_allows(cpu_device *d, size_t bytes)
{
    cpu_stream *s;
    if (bytes <= device_limit_left(&d->base))
        return true;
    pthread_mutex_lock(&d->lock);
    TAILQ_FOREACH(s, &d->streams, link)
    {
        cpu_stream_drain(s);
    }
    pthread_mutex_unlock(&d->lock);
    return bytes <= device_limit_left(&d->base);
}

/* Let the thread touch the payload until payload_close, which takes the returned value. */
static bool payload_open(const cpu_block *b)
{
    return b->pool->is_guarded && guard_right_set(true);
}

static void payload_close(const cpu_block *b, bool before)
{
    if (b->pool->is_guarded)
        guard_right_set(before);
}

/* AddressSanitizer puts its own guard after memory from malloc. */
static bool has_tail(const cpu_block *b)
{
    return !UNDER_ASAN || b->pool->is_guarded;
}

static void write_tail(cpu_block *b)
{
    if (!has_tail(b))
        return;
    bool before = payload_open(b);
    memcpy(block_payload(b) + b->bytes, &(uint64_t){BLOCK_TAIL}, sizeof(uint64_t));
    payload_close(b, before);
}

/* Assert that the tail is intact. The payload must be open. */
static void check_tail(cpu_block *b)
{
    if (!has_tail(b))
        return;
    uint64_t tail;
    memcpy(&tail, block_payload(b) + b->bytes, sizeof tail);
    if (tail != BLOCK_TAIL)
        fprintf(stderr, "device_free: block '%s' has %zu bytes\n", b->label, b->bytes);
    FSDP_ASSERT(tail == BLOCK_TAIL && "block written after its end");
}

fsdp_status cpu_alloc(stream *base, const mem_request *want, void **out)
{
    cpu_stream *s = (cpu_stream *)base;
    TRY(cpu_stream_status(s));
    cpu_device *d = (cpu_device *)base->device;
    cpu_pool *p = want->on_host ? host_pool_of(d) : &d->pool;
    bool shared = want->on_host && host_share_fd() >= 0;
    size_t footprint_bytes = footprint_of(p, want->bytes, shared);
    if (footprint_bytes == 0 || (p == &d->pool && !limit_allows(d, want->bytes)))
        return device_alloc_failed(p->ledger, want, 0);
    cpu_block *b = reuse(p, s, want->bytes, footprint_bytes, shared);
    if (!b)
        b = fresh(p, footprint_bytes, shared);
    if (!b)
        return device_alloc_failed(p->ledger, want, errno);
    bool revived = b->free_node != &b->own_node; /* older work may still use the payload */
    b->label = want->label;
    b->category = (uint16_t)want->category;
    b->magic = BLOCK_LIVE;
    if (!revived) { /* if revived, bytes and tail are right already */
        b->bytes = want->bytes;
        write_tail(b);
    }
    ledger_add(p->ledger, want->category, want->bytes);
    *out = block_payload(b);
    return FSDP_OK;
}

bool cpu_share_find(device *d, const void *ptr, size_t bytes, device_share *out)
{
    cpu_pool *p = host_pool_of((cpu_device *)d);
    uintptr_t at = (uintptr_t)ptr;
    bool found = false;
    cpu_block *b;
    pthread_mutex_lock(&p->lock);
    TAILQ_FOREACH(b, &p->live, order)
    {
        uintptr_t base = (uintptr_t)block_base(b);
        if (b->share_offset == NOT_SHARED || at < base || at - base >= b->footprint_bytes)
            continue;
        found = bytes <= b->footprint_bytes - (at - base);
        *out = (device_share){b->share_offset, b->footprint_bytes, at - base};
        break;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

/* pending -> cached, or back to the system; p->lock is held. */
static void retire(cpu_block *b, struct cpu_block_list *evicted)
{
    cpu_pool *p = b->pool;
    ledger_sub(p->ledger, (mem_category)b->category, b->bytes);
    TAILQ_REMOVE(&p->live, b, order);
    p->live_bytes -= b->footprint_bytes;
    if (UNDER_ASAN) {
        TAILQ_INSERT_TAIL(evicted, b, order);
        return;
    }
    if (!b->pending_on)
        LIST_INSERT_HEAD(&p->bucket[bucket_of(b->footprint_bytes)], b, in_bucket);
    b->pending_on = NULL;
    b->state = STATE_CACHED;
    TAILQ_INSERT_TAIL(&p->stale, b, order);
    p->cached_bytes += b->footprint_bytes;
    cache_evict(p, p->live_peak_bytes, evicted);
}

/* The stream has reached the free. */
static void free_run(cpu_stream *s, cpu_task *task)
{
    pending_free *node = (pending_free *)task;
    cpu_block *b = node->block;
    cpu_pool *p = b->pool;
    bool before = payload_open(b);
    check_tail(b);
    if (s->base.device->config.debug_fill)
        memset(block_payload(b), 0xFF, b->bytes);
    payload_close(b, before);
    if (node != &b->own_node)
        recycle_put(node);
    struct cpu_block_list evicted = TAILQ_HEAD_INITIALIZER(evicted);
    pthread_mutex_lock(&p->lock);
    b->frees_queued--;
    if (b->state == STATE_PENDING && b->frees_queued == 0)
        retire(b, &evicted);
    pthread_mutex_unlock(&p->lock);
    system_put_all(&evicted);
}

static const cpu_task_kind FREE = {.run = free_run};

/* The block of a live pointer from device_alloc. For any other pointer, stop with a message. */
static cpu_block *block_of(void *ptr)
{
    FSDP_ASSERT((uintptr_t)ptr % BLOCK_ALIGN == 0 && "freed pointer is not from device_alloc");
    cpu_block *b = (cpu_block *)((char *)ptr - BLOCK_HEADER_BYTES);
    if (b->magic == BLOCK_FREED)
        fprintf(stderr, "device_free: block '%s' (%zu bytes) is already free\n", b->label,
                b->bytes);
    FSDP_ASSERT(b->magic != BLOCK_FREED && "block freed twice");
    FSDP_ASSERT(b->magic == BLOCK_LIVE && "not from device_alloc, or written before its start");
    return b;
}

void cpu_free(stream *base, void *ptr)
{
    cpu_stream *s = (cpu_stream *)base;
    cpu_block *b = block_of(ptr);
    cpu_pool *p = b->pool;
    b->magic = BLOCK_FREED; /* already now, before the stream reaches the free */
    ledger_free_issued(p->ledger, (mem_category)b->category, b->bytes);
    pending_free *node = b->free_node;
    node->task.kind = &FREE;
    node->block = b;
    pthread_mutex_lock(&p->lock);
    b->frees_queued++;
    b->state = STATE_PENDING;
    if (s->is_worker && !UNDER_ASAN) {
        b->pending_on = s;
        LIST_INSERT_HEAD(&p->bucket[bucket_of(b->footprint_bytes)], b, in_bucket);
    }
    pthread_mutex_unlock(&p->lock);
    cpu_stream_issue(s, &node->task);
}

/* ---- finding the block of an access that faulted --------------------------------------------- */

/* The header is at the end of the open page, so it can be read without the right. */
cpu_block_facts cpu_guarded_find(const void *addr)
{
    const char *payload = (const char *)guard_find(addr) + PAGE_BYTES;
    const cpu_block *b = (const cpu_block *)(payload - BLOCK_HEADER_BYTES);
    return (cpu_block_facts){b->label, b->bytes, (size_t)((const char *)addr - payload),
                             b->magic == BLOCK_LIVE};
}

/* ---- the pool ------------------------------------------------------------------------------- */
void cpu_pool_init(cpu_pool *p, ledger *l, bool is_guarded)
{
    *p = (cpu_pool){.ledger = l, .is_guarded = is_guarded};
    pthread_mutex_init(&p->lock, NULL);
    TAILQ_INIT(&p->live);
    TAILQ_INIT(&p->stale);
}

void cpu_pool_close(cpu_pool *p)
{
    cpu_block *b;
    TAILQ_FOREACH(b, &p->live, order)
    {
        fprintf(stderr, "device_close: block '%s' (%s, %zu bytes) was never freed\n", b->label,
                mem_category_name((mem_category)b->category), b->bytes);
    }
    FSDP_ASSERT(TAILQ_EMPTY(&p->live) && "device closed with live memory");
    cpu_pool_trim(p, 0);
    pthread_mutex_destroy(&p->lock);
}
