/* order_memory.c -- the live blocks and the accesses to them; see order_impl.h.
 *
 * A block lives from device_alloc to device_free. A later block may have the same address. */
#include <stdlib.h>
#include <string.h>
#include "common/device/instruments/order_impl.h"

/* Make room for element n of *(type **)array; *room counts elements. false: no memory. */
static bool grow(void *array, size_t n, size_t *room, size_t elem_bytes)
{
    if (n < *room)
        return true;
    size_t more_room = 2 * *room + 8;
    void *at;
    memcpy(&at, array, sizeof at); /* array may be a pointer to a pointer of any type */
    void *more = realloc(at, more_room * elem_bytes);
    if (more == NULL)
        return false;
    memcpy(array, &more, sizeof more);
    *room = more_room;
    return true;
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* The number of live blocks that begin at ptr or below. */
static size_t blocks_up_to(const order_memory *m, const void *ptr)
{
    size_t low = 0, high = m->n_live;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (m->live[middle]->begin <= (const char *)ptr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool contains(const char *begin, size_t bytes, const void *ptr)
{
    size_t offset = (size_t)((const char *)ptr - begin);
    return (const char *)ptr >= begin && (offset < bytes || offset == 0);
}

order_block *order_block_find(const order_memory *m, const void *ptr)
{
    size_t n = blocks_up_to(m, ptr);
    order_block *b = n > 0 ? m->live[n - 1] : NULL;
    return b != NULL && contains(b->begin, b->bytes, ptr) ? b : NULL;
}

order_block *order_block_begin(order_memory *m, const void *ptr, size_t bytes, const char *label)
{
    order_block *b = calloc(1, sizeof *b);
    if (b == NULL || !grow(&m->live, m->n_live, &m->live_room, sizeof *m->live)) {
        free(b);
        return NULL;
    }
    *b = (order_block){.begin = ptr, .bytes = bytes, .label = label};
    size_t at = blocks_up_to(m, ptr);
    memmove(m->live + at + 1, m->live + at, (m->n_live - at) * sizeof *m->live);
    m->live[at] = b;
    m->n_live++;
    return b;
}

void order_block_end(order_memory *m, order_block *b, const order_access *by)
{
    size_t at = blocks_up_to(m, b->begin) - 1;
    m->freed[m->n_freed++ % ORDER_FREED] =
        (order_freed){.begin = b->begin, .label = b->label, .bytes = b->bytes, .by = *by};
    m->n_live--;
    memmove(m->live + at, m->live + at + 1, (m->n_live - at) * sizeof *m->live);
    free(b->log);
    free(b);
}

const order_freed *order_freed_find(const order_memory *m, const void *ptr)
{
    for (size_t i = 1; i <= ORDER_FREED && i <= m->n_freed; i++) { /* from the latest on */
        const order_freed *f = &m->freed[(m->n_freed - i) % ORDER_FREED];
        if (contains(f->begin, f->bytes, ptr))
            return f;
    }
    return NULL;
}

bool order_log_add(order_block *b, const order_access *a)
{
    if (!grow(&b->log, b->n_log, &b->log_room, sizeof *b->log))
        return false;
    b->log[b->n_log++] = *a;
    return true;
}

void order_memory_free(order_memory *m)
{
    for (size_t i = 0; i < m->n_live; i++) {
        free(m->live[i]->log);
        free(m->live[i]);
    }
    free(m->live);
}
