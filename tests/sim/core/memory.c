/* memory.c -- see memory.h. */
#include "tests/sim/core/memory.h"
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CANARY_BYTES = 64, CANARY = 0xC7 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `ranges` */
static void *ranges;                                     /* a tree for tsearch */
static _Atomic size_t held;

/* ---- ranges ---------------------------------------------------------------------------------- */

static int range_compare(const void *a, const void *b)
{
    const sim_range *x = a, *y = b;
    if (x->ptr + x->bytes <= y->ptr)
        return -1;
    return y->ptr + y->bytes <= x->ptr;
}

sim_range sim_range_at(const void *ptr)
{
    const sim_range key = {(char *)(uintptr_t)ptr, 1, SIM_PAGEABLE, 0};
    pthread_mutex_lock(&lock);
    sim_range **node = tfind(&key, &ranges, range_compare);
    sim_range found = node != NULL ? **node : key;
    pthread_mutex_unlock(&lock);
    return found;
}

bool sim_range_holds(const sim_range *r, const void *ptr, size_t bytes)
{
    return bytes <= r->bytes - (size_t)((const char *)ptr - r->ptr);
}

static bool range_add(sim_range range)
{
    sim_range *r = malloc(sizeof *r);
    if (r == NULL)
        return false;
    *r = range;
    pthread_mutex_lock(&lock);
    sim_range **node = tsearch(r, &ranges, range_compare);
    const bool is_new = node != NULL && *node == r;
    pthread_mutex_unlock(&lock);
    if (!is_new)
        free(r);
    return is_new;
}

bool sim_range_add(void *ptr, size_t bytes, sim_memory_kind kind)
{
    return range_add((sim_range){ptr, bytes, kind, 0});
}

/* sim_range_remove; *was receives the removed range. */
static bool range_take(void *ptr, sim_memory_kind kind, sim_range *was)
{
    const sim_range key = {ptr, 1, SIM_PAGEABLE, 0};
    pthread_mutex_lock(&lock);
    sim_range **node = tfind(&key, &ranges, range_compare), *r = node != NULL ? *node : NULL;
    const bool found = r != NULL && r->ptr == ptr && r->kind == kind;
    if (found) {
        *was = *r;
        tdelete(r, &ranges, range_compare);
        free(r);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool sim_range_remove(void *ptr, sim_memory_kind kind)
{
    sim_range was;
    return range_take(ptr, kind, &was);
}

typedef struct visitor {
    void (*see)(void *self, const sim_range *r);
    void *self;
} visitor;

static void visit(const void *node, VISIT order, void *arg)
{
    const visitor *v = arg;
    if (order == postorder || order == leaf)
        v->see(v->self, *(sim_range *const *)node);
}

void sim_range_each(void (*see)(void *self, const sim_range *r), void *self)
{
    pthread_mutex_lock(&lock);
    twalk_r(ranges, visit, &(visitor){see, self});
    pthread_mutex_unlock(&lock);
}

bool sim_is_pinned(const void *ptr, size_t bytes)
{
    const sim_range r = sim_range_at(ptr);
    return (r.kind == SIM_PINNED || r.kind == SIM_REGISTERED) && sim_range_holds(&r, ptr, bytes);
}

/* ---- blocks of the device -------------------------------------------------------------------- */

size_t sim_memory_bytes(void)
{
    return sim_number("FSDP_SIM_MEMORY_MIB", 65536) << 20;
}

size_t sim_held_bytes(void)
{
    return atomic_load(&held);
}

static fsdp_status run_begin(void *args, int n_threads)
{
    const sim_range *block = args;
    (void)n_threads;
    memset(block->ptr + block->bytes, CANARY, CANARY_BYTES);
    return FSDP_OK;
}

static fsdp_status run_end(void *args, int n_threads)
{
    const sim_range *block = args;
    (void)n_threads;
    for (int i = 0; i < CANARY_BYTES; i++)
        if ((unsigned char)block->ptr[block->bytes + (size_t)i] != CANARY)
            sim_die("a block of %zu bytes was written %d bytes after its end", block->bytes, i);
    atomic_fetch_sub(&held, block->held_bytes);
    return FSDP_OK;
}

fsdp_status sim_block_get(stream *s, size_t bytes, size_t held_bytes, void **out)
{
    const size_t others = sim_held_bytes(), total = sim_memory_bytes();
    sim_range block = {NULL, bytes > 0 ? bytes : 1, SIM_OF_DEVICE, held_bytes};
    void *ptr;
    if (held_bytes > total || others > total - held_bytes)
        return FSDP_ENOMEM;
    TRY(device_alloc(s, MEM_OTHER, block.bytes + CANARY_BYTES, sim_stands_for.memory, &ptr));
    block.ptr = *out = ptr;
    if (!range_add(block))
        return FSDP_ENOMEM;
    atomic_fetch_add(&held, held_bytes);
    return stream_launch(s, run_begin, &block, sizeof block);
}

fsdp_status sim_block_put(stream *s, void *ptr, bool *known)
{
    sim_range block;
    *known = range_take(ptr, SIM_OF_DEVICE, &block);
    if (!*known)
        return FSDP_OK;
    fsdp_status status = stream_launch(s, run_end, &block, sizeof block);
    device_free(s, ptr);
    return status;
}

/* ---- copies ---------------------------------------------------------------------------------- */

fsdp_status sim_copy_now(void *args, int n_threads)
{
    const sim_copy_args *a = args;
    (void)n_threads;
    memcpy(a->dst, a->src, a->bytes);
    return FSDP_OK;
}

fsdp_status sim_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    return stream_launch(s, sim_copy_now, &(sim_copy_args){dst, src, bytes}, sizeof(sim_copy_args));
}

fsdp_status sim_fill_now(void *args, int n_threads)
{
    const sim_fill_args *a = args;
    (void)n_threads;
    memset(a->dst, a->byte, a->bytes);
    return FSDP_OK;
}

fsdp_status sim_fill(stream *s, void *dst, int byte, size_t bytes)
{
    return stream_launch(s, sim_fill_now, &(sim_fill_args){dst, byte, bytes},
                         sizeof(sim_fill_args));
}
