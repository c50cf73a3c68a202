/* timeline.c -- the record itself; see timeline.h.
 *
 * Items stand in one array that doubles when it is full, up to MAX_ITEMS, so that a long run cannot
 * fill the memory; an item that finds no room is counted and dropped. */
#include "common/observe/timeline.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 1 << 18, FIRST_ITEMS = 1 << 10, STREAM_NAME_BYTES = 32 };

struct timeline {
    int rank, n_streams;
    char stream_name[TIMELINE_MAX_STREAMS][STREAM_NAME_BYTES];
    const char *streams[TIMELINE_MAX_STREAMS]; /* point into stream_name, for views */
    timeline_item *items;                      /* [room] */
    int64_t n_items, room;
    uint64_t n_lost;
};

timeline *timeline_create(int rank)
{
    timeline *t = calloc(1, sizeof *t);
    if (t)
        t->rank = rank;
    return t;
}

void timeline_free(timeline *t)
{
    if (!t)
        return;
    free(t->items);
    free(t);
}

void timeline_clear(timeline *t)
{
    t->n_items = 0;
    t->n_lost = 0;
}

int timeline_stream(timeline *t, const char *name)
{
    int s = 0;
    while (s < t->n_streams && strncmp(t->streams[s], name, STREAM_NAME_BYTES - 1) != 0)
        s++;
    if (s == t->n_streams) {
        FSDP_ASSERT(s < TIMELINE_MAX_STREAMS);
        snprintf(t->stream_name[s], STREAM_NAME_BYTES, "%s", name);
        t->streams[s] = t->stream_name[s];
        t->n_streams++;
    }
    return s;
}

/* Room for one more item, if there can be. */
static bool has_room(timeline *t)
{
    if (t->n_items < t->room)
        return true;
    int64_t room = t->room > 0 ? 2 * t->room : FIRST_ITEMS;
    timeline_item *items =
        room <= MAX_ITEMS ? realloc(t->items, (size_t)room * sizeof *items) : NULL;
    if (!items)
        return false;
    t->items = items;
    t->room = room;
    return true;
}

int64_t timeline_add(timeline *t, const timeline_item *item)
{
    FSDP_ASSERT(item->stream >= TIMELINE_HOST && item->stream < t->n_streams);
    if (!has_room(t)) {
        t->n_lost++;
        return TIMELINE_NONE;
    }
    t->items[t->n_items] = *item;
    return t->n_items++;
}

void timeline_ran(timeline *t, int64_t i, double begin_s, double end_s)
{
    FSDP_ASSERT(i >= 0 && i < t->n_items);
    timeline_item *item = &t->items[i];
    bool first = item->end_s == 0;
    item->begin_s = first || begin_s < item->begin_s ? begin_s : item->begin_s;
    item->end_s = first || end_s > item->end_s ? end_s : item->end_s;
}

void timeline_shift(timeline *t, double offset_s)
{
    for (int64_t i = 0; i < t->n_items; i++) {
        timeline_item *item = &t->items[i];
        item->issued_s += offset_s;
        if (item->end_s > 0) { /* else it has not run */
            item->begin_s += offset_s;
            item->end_s += offset_s;
        }
    }
}

timeline_view timeline_read(const timeline *t)
{
    return (timeline_view){.rank = t->rank,
                           .n_streams = t->n_streams,
                           .streams = t->streams,
                           .items = t->items,
                           .n_items = t->n_items,
                           .n_lost = t->n_lost};
}
