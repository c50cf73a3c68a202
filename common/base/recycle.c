/* recycle.c -- see recycle.h.
 *
 * A record is | header | bytes |; both together fit into LEAST_BYTES << class. Small records are
 * cut from slabs, many at a time: the number in use depends on how far the host runs ahead of its
 * streams, and a step that needs a few more than ever before should not allocate each of them. */
#include "common/base/recycle.h"
#include <pthread.h>
#include <stdlib.h>
#include "common/base/under_asan.h"

enum { CLASSES = 32 };
#define LEAST_BYTES ((size_t)64)
#define SLAB_BYTES  ((size_t)32 << 10)

typedef struct header {
    _Alignas(max_align_t) struct header *next; /* while the record is in a list */
    int class;
} header;

static struct {
    pthread_mutex_t lock;
    header *waiting[CLASSES];
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void push(header *h, int class)
{
    h->class = class;
    h->next = shared.waiting[class];
    shared.waiting[class] = h;
}

/* The caller holds the lock. */
static void refill(int class)
{
    size_t record_bytes = LEAST_BYTES << class;
    size_t slab_bytes = record_bytes > SLAB_BYTES || UNDER_ASAN ? record_bytes : SLAB_BYTES;
    char *slab = malloc(slab_bytes);
    for (size_t at = 0; slab && at < slab_bytes; at += record_bytes)
        push((header *)(slab + at), class);
}

void *recycle_get(size_t bytes)
{
    int class = 0;
    while (class < CLASSES && (LEAST_BYTES << class) - sizeof(header) < bytes)
        class ++;
    if (class == CLASSES)
        return NULL;
    pthread_mutex_lock(&shared.lock);
    if (!shared.waiting[class])
        refill(class);
    header *h = shared.waiting[class];
    if (h)
        shared.waiting[class] = h->next;
    pthread_mutex_unlock(&shared.lock);
    return h ? h + 1 : NULL;
}

void recycle_put(void *record)
{
    if (!record)
        return;
    header *h = (header *)record - 1;
    if (UNDER_ASAN) {
        free(h);
        return;
    }
    pthread_mutex_lock(&shared.lock);
    push(h, h->class);
    pthread_mutex_unlock(&shared.lock);
}
