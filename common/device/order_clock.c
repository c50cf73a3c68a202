/* order_clock.c -- vector clocks of streams, events and the host; see order_impl.h. */
#include <stdio.h>
#include "common/device/order_impl.h"

static void join(order_clock *to, const order_clock *from)
{
    for (int i = 0; i < ORDER_STREAMS; i++)
        to->done[i] = from->done[i] > to->done[i] ? from->done[i] : to->done[i];
}

int order_slot(order_clocks *k, const stream *s)
{
    int unused = -1;
    for (int i = ORDER_STREAMS - 1; i >= 0; i--) {
        if (k->of[i] == s)
            return i;
        unused = k->of[i] == NULL ? i : unused;
    }
    if (unused < 0)
        return -1;
    k->of[unused] = s;
    snprintf(k->name[unused], sizeof k->name[unused], "%s", stream_name(s));
    return unused;
}

uint64_t order_tick(order_clocks *k, int slot)
{
    join(&k->stream[slot], &k->host);
    return ++k->stream[slot].done[slot];
}

/* ---- events --------------------------------------------------------------------------------- */

static order_event *find_event(const order_clocks *k, const event *e)
{
    for (size_t i = 0; i < k->n_events; i++)
        if (k->events[i].of == e)
            return &k->events[i];
    return NULL;
}

bool order_record(order_clocks *k, int slot, const event *e)
{
    order_event *x = find_event(k, e);
    if (x == NULL) {
        if (!order_grow(&k->events, k->n_events, &k->events_room, sizeof *k->events))
            return false;
        x = &k->events[k->n_events++];
    }
    x->of = e;
    x->at = k->stream[slot];
    return true;
}

void order_wait(order_clocks *k, int slot, const event *e)
{
    const order_event *x = find_event(k, e);
    if (x != NULL)
        join(&k->stream[slot], &x->at);
}

void order_sync_event(order_clocks *k, const event *e)
{
    const order_event *x = find_event(k, e);
    if (x != NULL)
        join(&k->host, &x->at);
}

void order_event_free(order_clocks *k, const event *e)
{
    order_event *x = find_event(k, e);
    if (x != NULL)
        *x = k->events[--k->n_events];
}

bool order_is_recorded(const order_clocks *k, int slot, uint64_t number)
{
    for (size_t i = 0; i < k->n_events; i++)
        if (order_before(&k->events[i].at, slot, number))
            return true;
    return false;
}

/* ---- streams -------------------------------------------------------------------------------- */

void order_sync_stream(order_clocks *k, int slot)
{
    join(&k->host, &k->stream[slot]);
}

void order_stream_free(order_clocks *k, int slot)
{
    order_sync_stream(k, slot);
    k->of[slot] = NULL;
}
