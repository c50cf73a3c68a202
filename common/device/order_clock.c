/* order_clock.c -- vector clocks of streams, events and the host; see order_clock.h. */
#include <stdio.h>
#include <stdlib.h>
#include "common/base/hash.h"
#include "common/device/order_clock.h"

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

/* Where the pointer to the event's entry is, or would be. */
static order_event **find_event(order_clocks *k, const event *e)
{
    order_event **at = &k->events[hash_bytes(&e, sizeof e) % ORDER_BUCKETS];
    while (*at != NULL && (*at)->of != e)
        at = &(*at)->next;
    return at;
}

bool order_record(order_clocks *k, int slot, const event *e)
{
    order_event **at = find_event(k, e);
    if (*at == NULL && (*at = calloc(1, sizeof **at)) == NULL)
        return false;
    (*at)->of = e;
    (*at)->at = k->stream[slot];
    return true;
}

void order_wait(order_clocks *k, int slot, const event *e)
{
    const order_event *x = *find_event(k, e);
    if (x != NULL)
        join(slot == ORDER_HOST ? &k->host : &k->stream[slot], &x->at);
}

void order_event_free(order_clocks *k, const event *e)
{
    order_event **at = find_event(k, e), *x = *at;
    if (x != NULL)
        *at = x->next;
    free(x);
}

void order_events_free(order_clocks *k)
{
    for (int i = 0; i < ORDER_BUCKETS; i++)
        while (k->events[i] != NULL)
            order_event_free(k, k->events[i]->of);
}

bool order_is_recorded(const order_clocks *k, int slot, uint64_t number)
{
    for (int i = 0; i < ORDER_BUCKETS; i++)
        for (const order_event *x = k->events[i]; x != NULL; x = x->next)
            if (order_before(&x->at, slot, number))
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
