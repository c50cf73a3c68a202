/* order_clock.h -- vector clocks of streams, events and the host: what happens before what. The dry
 * device and the order checker have them; private to common/device. */
#pragma once
#include "common/device/device.h"

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
