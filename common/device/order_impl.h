/* order_impl.h -- what the parts of the order checker share; private to common/device.
 *
 * order_clock.c   what happens before what
 * order_memory.c  live blocks and what was done to them
 * order_check.c   the rules and the reports */
#pragma once
#include "common/device/order_check.h"

/* ---- clocks --------------------------------------------------------------------------------- */

enum { ORDER_STREAMS = 64 };

/* Of each stream, how many of its operations happen before something. */
typedef struct order_clock {
    uint64_t done[ORDER_STREAMS];
} order_clock;

typedef struct order_event {
    const event *of;
    order_clock at; /* when it was recorded last */
} order_event;

/* A freed stream leaves its slot to the next one. All it did is then before what the host issues,
 * so its numbers can be counted on. */
typedef struct order_clocks {
    const stream *of[ORDER_STREAMS]; /* NULL: a free slot */
    char name[ORDER_STREAMS][32];
    order_clock stream[ORDER_STREAMS]; /* of the operation that it got last */
    order_clock host;                  /* of all that is issued from now on */
    order_event *events;               /* [n_events], those that have been recorded */
    size_t n_events, events_room;
} order_clocks;

/* order_slot -- which slot the stream has; -1: there is no free one for a new stream. */
int order_slot(order_clocks *k, const stream *s);
/* order_tick -- the stream gets an operation; returns its number. */
uint64_t order_tick(order_clocks *k, int slot);
/* order_record -- the event stands for what the stream has got; false: no memory. */
bool order_record(order_clocks *k, int slot, const event *e);
/* order_wait -- what the stream gets is after the event. */
void order_wait(order_clocks *k, int slot, const event *e);
/* order_sync_stream, order_sync_event -- what anybody issues is after that. */
void order_sync_stream(order_clocks *k, int slot);
void order_sync_event(order_clocks *k, const event *e);
/* order_stream_free, order_event_free -- their slots can be used again. */
void order_stream_free(order_clocks *k, int slot);
void order_event_free(order_clocks *k, const event *e);
/* order_is_recorded -- whether an event stands for operation `number` of a slot. */
bool order_is_recorded(const order_clocks *k, int slot, uint64_t number);

/* order_before -- whether operation `number` of a slot is in the clock. */
static inline bool order_before(const order_clock *clock, int slot, uint64_t number)
{
    return clock->done[slot] >= number;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* What an operation is called, and for what it was issued: "matmul", " (h.0.attn forward)". */
typedef struct order_op {
    char what[40], where[112];
} order_op;

/* One operation's access to bytes begin ... end-1 of a block. */
typedef struct order_access {
    order_op op;
    const char *verb; /* "reads", a literal */
    int slot;
    bool writes;
    uint64_t number; /* of the operation, on its stream */
    size_t begin, end;
} order_access;

typedef struct order_block {
    const char *begin;
    size_t bytes;
    const char *label;
    order_access *log; /* [n_log] what later accesses can conflict with */
    size_t n_log, log_room;
} order_block;

/* The last blocks that were freed. */
enum { ORDER_FREED = 256 };
typedef struct order_freed {
    const char *begin, *label;
    size_t bytes;
    order_access by;
} order_freed;

typedef struct order_memory {
    order_block **live; /* [n_live] by address */
    size_t n_live, live_room;
    order_freed freed[ORDER_FREED];
    size_t n_freed;
} order_memory;

/* order_grow -- room for one element more after the n of *(type **)array; *room counts elements.
 * false: no memory. */
bool order_grow(void *array, size_t n, size_t *room, size_t elem_bytes);
/* order_block_find -- the live block that ptr points into; NULL: none. */
order_block *order_block_find(const order_memory *m, const void *ptr);
/* order_block_begin -- a block without accesses; NULL: no memory. */
order_block *order_block_begin(order_memory *m, const void *ptr, size_t bytes, const char *label);
/* order_block_end -- it was freed by that access; b is gone. */
void order_block_end(order_memory *m, order_block *b, const order_access *by);
/* order_freed_find -- the block, freed not long ago, that ptr pointed into; NULL: none. */
const order_freed *order_freed_find(const order_memory *m, const void *ptr);
/* order_log_add -- false: no memory. */
bool order_log_add(order_block *b, const order_access *a);
/* order_memory_free -- all of it. */
void order_memory_free(order_memory *m);
