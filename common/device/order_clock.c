/* order_clock.c -- vector clocks of streams, events and the host; see order_impl.h. */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
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

static int compare_events(const void *a, const void *b)
{
    const order_event *x = a, *y = b;
    return (x->of > y->of) - (x->of < y->of);
}

static order_event *find_event(const order_clocks *k, const event *e)
{
    const order_event key = {.of = e};
    order_event *const *found = tfind(&key, &k->events, compare_events);
    return found != NULL ? *found : NULL;
}

bool order_record(order_clocks *k, int slot, const event *e)
{
    order_event *x = find_event(k, e);
    if (x == NULL) {
        if ((x = calloc(1, sizeof *x)) == NULL)
            return false;
        x->of = e;
        if (tsearch(x, &k->events, compare_events) == NULL) {
            free(x);
            return false;
        }
    }
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
        tdelete(x, &k->events, compare_events);
    free(x);
}

void order_events_free(order_clocks *k)
{
    tdestroy(k->events, free);
}

/* The question of order_is_recorded. */
typedef struct asked {
    int slot;
    uint64_t number;
    bool is_recorded;
} asked;

static void ask_event(const void *node, VISIT which, void *answer)
{
    const order_event *x = *(const order_event *const *)node;
    asked *a = answer;
    (void)which;
    a->is_recorded = a->is_recorded || order_before(&x->at, a->slot, a->number);
}

bool order_is_recorded(const order_clocks *k, int slot, uint64_t number)
{
    asked a = {slot, number, false};
    twalk_r(k->events, ask_event, &a);
    return a.is_recorded;
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
