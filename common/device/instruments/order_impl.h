/* order_impl.h -- types and functions that the files of the order checker share; private to
 * common/device/instruments.
 *
 * order_clock.c   vector clocks: what happens before what
 * order_memory.c  live blocks and the accesses to them
 * order_check.c   the rules and the reports */
#pragma once
#include "common/device/instruments/order_check.h"

/* ---- clocks --------------------------------------------------------------------------------- */

enum { ORDER_STREAMS = 64, ORDER_HOST = -1, ORDER_BUCKETS = 1 << 12 };

/* For each stream, the number of its operations that happen before a point. */
typedef struct order_clock {
    uint64_t done[ORDER_STREAMS];
} order_clock;

typedef struct order_event {
    const event *of;
    order_clock at; /* its stream's clock at the latest event_record */
    struct order_event *next;
} order_event;

/* The slot of a freed stream is used again. All its operations happen before everything that is
 * issued later, so the next stream can continue its numbers. */
typedef struct order_clocks {
    const stream *of[ORDER_STREAMS]; /* NULL: a free slot */
    char name[ORDER_STREAMS][32];
    order_clock stream[ORDER_STREAMS];  /* at the latest operation of the stream */
    order_clock host;                   /* happens before all that is issued from now on */
    order_event *events[ORDER_BUCKETS]; /* lists of the events that were recorded, by hash */
} order_clocks;

/* order_slot -- the slot of the stream, which is assigned at first use; -1: no slot is free. */
int order_slot(order_clocks *k, const stream *s);
/* order_tick -- issue an operation on the stream; returns its number. */
uint64_t order_tick(order_clocks *k, int slot);
/* order_record -- e now stands for all earlier operations of the stream; false: no memory. */
bool order_record(order_clocks *k, int slot, const event *e);
/* order_wait -- later operations of the stream happen after the event; ORDER_HOST: of all streams,
 * because the host waits. */
void order_wait(order_clocks *k, int slot, const event *e);
/* order_sync_stream -- all later operations happen after the stream. */
void order_sync_stream(order_clocks *k, int slot);
/* order_stream_free, order_event_free -- let the slot be used again. */
void order_stream_free(order_clocks *k, int slot);
void order_event_free(order_clocks *k, const event *e);
/* order_events_free -- free all events. */
void order_events_free(order_clocks *k);
/* order_is_recorded -- whether an event was recorded after operation `number` of a slot. */
bool order_is_recorded(const order_clocks *k, int slot, uint64_t number);

/* order_before -- whether operation `number` of a slot happens before the clock's point. */
static inline bool order_before(const order_clock *clock, int slot, uint64_t number)
{
    return clock->done[slot] >= number;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* The name of an operation, and what it was issued for: "matmul", " (h.0.attn forward)". */
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
    order_access *log; /* [n_log], accesses that later ones can conflict with */
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
    order_block **live; /* [n_live], sorted by address */
    size_t n_live, live_room;
    order_freed freed[ORDER_FREED];
    size_t n_freed;
} order_memory;

/* order_block_find -- the live block that contains ptr; NULL: none. */
order_block *order_block_find(const order_memory *m, const void *ptr);
/* order_block_begin -- add a live block without accesses; NULL: no memory. */
order_block *order_block_begin(order_memory *m, const void *ptr, size_t bytes, const char *label);
/* order_block_end -- `by` frees block b: release it, and note it in m->freed. */
void order_block_end(order_memory *m, order_block *b, const order_access *by);
/* order_freed_find -- the block that contained ptr and was freed last; NULL: none is known. */
const order_freed *order_freed_find(const order_memory *m, const void *ptr);
/* order_log_add -- log an access to b; false: no memory. */
bool order_log_add(order_block *b, const order_access *a);
/* order_memory_free -- release all live blocks. */
void order_memory_free(order_memory *m);
