/* npu_pool.c -- device memory in order of streams, which ACL itself does not have.
 *
 *   npu_block_get -> work issued on streams -> npu_block_put ... npu_blocks_trim, npu_pool_close
 *
 * aclrtMalloc and aclrtFree take long, and wait for no stream: a block may not go back while work
 * that uses it is still to come. So a block that was put is kept. The stream that put it may have
 * it again at once, for work behind its own; another stream when the event that was recorded at the
 * put has been reached. PyTorch's caching allocator works like this; unlike it, this one never cuts
 * a block up: sizes are rounded, so that a unit's memory fits the next unit of its size, and when
 * the memory is used up what is kept goes back to ACL and comes again in other sizes.
 *
 * Each block is an aclrtMalloc: it begins at a multiple of 64 bytes, and ACL adds the 32 bytes that
 * operators may read behind its end. [CANN aclrtMalloc] */
#include <stdlib.h>
#include "acl/acl.h"
#include "common/accel/accel_impl.h"
#include "lab6_npu/npu_impl.h"

/* In pool.free a block that was put, the latest first; in pool.spare a record without a block. */
struct npu_block {
    npu_block *next;
    void *ptr;
    size_t bytes;
    void *last_use;         /* an event */
    const accel_stream *by; /* who put it */
};

static npu_pool *pool_of(const accel_stream *s)
{
    return &npu_own_of(s->base.device)->pool;
}

/* ---- get ------------------------------------------------------------------------------------- */

/* Take *at out of its list: its memory is the caller's now. */
static void *take(npu_pool *pool, npu_block **at)
{
    npu_block *b = *at;
    *at = b->next;
    b->next = pool->spare;
    pool->spare = b;
    pool->free_bytes -= b->bytes;
    return b->ptr;
}

/* A block of exactly these bytes that s may have now; NULL: none. */
static void *reuse(const accel_stream *s, size_t bytes)
{
    npu_pool *pool = pool_of(s);
    for (npu_block **at = &pool->free; *at != NULL; at = &(*at)->next)
        if ((*at)->bytes == bytes &&
            ((*at)->by == s || accel_api_at(s)->event_look((*at)->last_use) == 0))
            return take(pool, at);
    return NULL;
}

int npu_block_get(accel_stream *s, size_t bytes, void **out)
{
    *out = NULL;
    if (bytes > SIZE_MAX / 2)
        return ACL_SUCCESS;
    bytes = accel_size_class(bytes);
    if ((*out = reuse(s, bytes)) != NULL)
        return ACL_SUCCESS;
    const int code = aclrtMalloc(out, bytes, ACL_MEM_MALLOC_HUGE_FIRST);
    if (code == ACL_SUCCESS)
        return ACL_SUCCESS;
    *out = NULL;
    return code == ACL_ERROR_RT_MEMORY_ALLOCATION ? ACL_SUCCESS : code;
}

/* ---- put ------------------------------------------------------------------------------------- */

static npu_block *record_get(accel_device *d, npu_pool *pool)
{
    npu_block *b = pool->spare;
    if (b != NULL) {
        pool->spare = b->next;
        return b;
    }
    b = calloc(1, sizeof *b);
    if (b != NULL && d->api->event_create(d, ACCEL_ORDERS, &b->last_use) != 0) {
        free(b);
        b = NULL;
    }
    return b;
}

/* Where there is no record, nobody can tell when the block is free: it is lost until the end. */
int npu_block_put(accel_stream *s, void *ptr, size_t bytes)
{
    npu_pool *pool = pool_of(s);
    npu_block *b = record_get(accel_device_of(s->base.device), pool);
    if (b == NULL)
        return ACL_ERROR_BAD_ALLOC;
    b->ptr = ptr;
    b->bytes = accel_size_class(bytes);
    b->by = s;
    b->next = pool->free;
    pool->free = b;
    pool->free_bytes += b->bytes;
    return accel_api_at(s)->event_record(b->last_use, s->queue);
}

/* ---- the device ------------------------------------------------------------------------------ */

int npu_blocks_trim(accel_device *d)
{
    npu_pool *pool = &npu_own_of(&d->base)->pool;
    int code = ACL_SUCCESS;
    while (pool->free != NULL) {
        const int of_free = aclrtFree(take(pool, &pool->free));
        code = code == ACL_SUCCESS ? of_free : code;
    }
    return code;
}

size_t npu_mem_available(accel_device *d)
{
    size_t available = 0, total = 0;
    if (aclrtGetMemInfo(ACL_HBM_MEM, &available, &total) != ACL_SUCCESS)
        return 0;
    return available + npu_own_of(&d->base)->pool.free_bytes;
}

void npu_pool_close(accel_device *d)
{
    npu_pool *pool = &npu_own_of(&d->base)->pool;
    (void)npu_blocks_trim(d);
    while (pool->spare != NULL) {
        npu_block *b = pool->spare;
        pool->spare = b->next;
        (void)d->api->event_destroy(b->last_use);
        free(b);
    }
}
