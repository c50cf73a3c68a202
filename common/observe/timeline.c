/* timeline.c -- see timeline.h.
 *
 * Items are kept in one array that doubles when it is full. MAX_ITEMS limits the array, so that a
 * long run cannot fill the memory. Items beyond the limit are counted and dropped. */
#include "common/observe/timeline.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 1 << 18, FIRST_ITEMS = 1 << 10 };

struct timeline {
    timeline_view view; /* view.streams is `streams`; view.items is owned */
    char streams[TIMELINE_MAX_STREAMS][TIMELINE_STREAM_BYTES];
    int64_t room; /* items */
};

timeline *timeline_create(int rank, double offset_s, double bound_s)
{
    timeline *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->view = (timeline_view){
        .rank = rank, .streams = t->streams, .offset_s = offset_s, .bound_s = bound_s};
    timeline_stream(t, "compute");
    return t;
}

void timeline_free(timeline *t)
{
    if (!t)
        return;
    free(t->view.items);
    free(t);
}

void timeline_clear(timeline *t)
{
    t->view.n_items = 0;
    t->view.n_lost = 0;
}

int timeline_stream(timeline *t, const char *name)
{
    int s = 0;
    while (s < t->view.n_streams && strncmp(t->streams[s], name, TIMELINE_STREAM_BYTES - 1) != 0)
        s++;
    if (s == t->view.n_streams) {
        FSDP_ASSERT(s < TIMELINE_MAX_STREAMS);
        snprintf(t->streams[s], TIMELINE_STREAM_BYTES, "%s", name);
        t->view.n_streams++;
    }
    return s;
}

/* Make room for one more item; false: there is none. */
static bool has_room(timeline *t)
{
    if (t->view.n_items < t->room)
        return true;
    int64_t room = t->room > 0 ? 2 * t->room : FIRST_ITEMS;
    timeline_item *items =
        room <= MAX_ITEMS ? realloc(t->view.items, (size_t)room * sizeof *items) : NULL;
    if (!items)
        return false;
    t->view.items = items;
    t->room = room;
    return true;
}

int64_t timeline_add(timeline *t, const timeline_item *item)
{
    FSDP_ASSERT(item->stream >= TIMELINE_HOST && item->stream < t->view.n_streams);
    if (!has_room(t)) {
        t->view.n_lost++;
        return TIMELINE_NONE;
    }
    t->view.items[t->view.n_items] = *item;
    t->view.items[t->view.n_items].issued_s += t->view.offset_s;
    return t->view.n_items++;
}

void timeline_ran(timeline *t, int64_t i, double begin_s, double end_s)
{
    FSDP_ASSERT(i >= 0 && i < t->view.n_items);
    timeline_item *item = &t->view.items[i];
    bool first = item->end_s == 0;
    begin_s += t->view.offset_s;
    end_s += t->view.offset_s;
    item->begin_s = first || begin_s < item->begin_s ? begin_s : item->begin_s;
    item->end_s = first || end_s > item->end_s ? end_s : item->end_s;
}

timeline_view timeline_read(const timeline *t)
{
    return t->view;
}
