/* guard.c -- see guard.h. */
#include "common/device/guard.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include "common/base/under_asan.h"
#if UNDER_ASAN
#include <sanitizer/asan_interface.h>
#else /* as that header does without it */
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { BY_NOTHING, BY_KEY, BY_POISON };

static atomic_int guarded_by; /* BY_NOTHING before guard_open */
static int key;               /* valid when that is BY_KEY */

/* Where it is BY_POISON. The entry of a mapping stands in its open page. */
typedef struct mapping {
    LIST_ENTRY(mapping) link;
    size_t bytes;
} mapping;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next two */
static LIST_HEAD(, mapping) mappings;
static int n_rights; /* threads that have the right */
static _Thread_local bool has_right;

/* ---- protection keys ------------------------------------------------------------------------- */
#ifdef PKEY_DISABLE_ACCESS
static bool key_get(void)
{
    key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return key >= 0;
}

static bool key_protect(char *at, size_t bytes)
{
    return pkey_mprotect(at, bytes, PROT_READ | PROT_WRITE, key) == 0;
}

static bool key_right(void)
{
    return pkey_get(key) == 0;
}

static void key_right_set(bool right)
{
    pkey_set(key, right ? 0 : PKEY_DISABLE_ACCESS);
}
#else /* a C library without them */
static bool key_get(void)
{
    return false;
}

static bool key_protect(char *at, size_t bytes)
{
    return at == NULL && bytes == 0;
}

static bool key_right(void)
{
    return false;
}

static void key_right_set(bool right)
{
    (void)right;
}
#endif

/* ---- poison ---------------------------------------------------------------------------------- */

/* lock is held. */
static void poison(mapping *m, bool on)
{
    char *at = (char *)m + GUARD_PAGE_BYTES;
    size_t bytes = m->bytes - GUARD_PAGE_BYTES;
    if (on)
        ASAN_POISON_MEMORY_REGION(at, bytes);
    else
        ASAN_UNPOISON_MEMORY_REGION(at, bytes);
}

static void poison_add(void *base, size_t bytes)
{
    mapping *m = base;
    m->bytes = bytes;
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&mappings, m, link);
    poison(m, n_rights == 0);
    pthread_mutex_unlock(&lock);
}

static void poison_remove(mapping *m)
{
    pthread_mutex_lock(&lock);
    LIST_REMOVE(m, link);
    poison(m, false);
    pthread_mutex_unlock(&lock);
}

static void poison_right_set(bool right)
{
    if (right == has_right)
        return;
    has_right = right;
    pthread_mutex_lock(&lock);
    n_rights += right ? 1 : -1;
    if (n_rights == (right ? 1 : 0)) {
        mapping *m;
        LIST_FOREACH(m, &mappings, link)
        {
            poison(m, !right);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ---- either ---------------------------------------------------------------------------------- */
fsdp_status guard_open(void)
{
    pthread_mutex_lock(&lock);
    if (guarded_by == BY_NOTHING && key_get())
        guarded_by = BY_KEY;
    else if (guarded_by == BY_NOTHING && UNDER_ASAN)
        guarded_by = BY_POISON;
    pthread_mutex_unlock(&lock);
    if (guarded_by != BY_NOTHING)
        return FSDP_OK;
    return fsdp_error(FSDP_ESKIP,
                      "run it where /proc/cpuinfo has the flag ospke, or build with SAN=address",
                      "no way to keep the host out of device memory: no memory protection keys");
}

void *guard_map(size_t bytes)
{
    FSDP_ASSERT(guarded_by != BY_NOTHING && bytes % GUARD_PAGE_BYTES == 0);
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (guarded_by == BY_POISON) {
        poison_add(base, bytes);
    } else if (!key_protect(base + GUARD_PAGE_BYTES, bytes - GUARD_PAGE_BYTES)) {
        munmap(base, bytes);
        return NULL;
    }
    return base;
}

void guard_unmap(void *base, size_t bytes)
{
    if (guarded_by == BY_POISON)
        poison_remove(base);
    munmap(base, bytes);
}

bool guard_has_key(int key_of_fault)
{
    return guarded_by == BY_KEY && key_of_fault == key;
}

bool guard_holds(const void *addr)
{
    bool found = false;
    mapping *m;
    pthread_mutex_lock(&lock);
    LIST_FOREACH(m, &mappings, link)
    {
        found = found || (uintptr_t)addr - (uintptr_t)m < m->bytes;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool guard_right(void)
{
    int by = atomic_load_explicit(&guarded_by, memory_order_relaxed);
    return by == BY_KEY ? key_right() : has_right;
}

bool guard_right_set(bool right)
{
    int by = atomic_load_explicit(&guarded_by, memory_order_relaxed);
    bool before = guard_right();
    if (by == BY_KEY)
        key_right_set(right);
    else if (by == BY_POISON)
        poison_right_set(right);
    return before;
}
