/* timeline_draw.c -- code shared by both kinds of picture; see timeline_draw.h. */
#include "common/observe/timeline_draw.h"
#include <math.h>

const char *const draw_class_names[DRAW_CLASSES] = {[DRAW_FORWARD] = "forward",
                                                    [DRAW_BACKWARD] = "backward",
                                                    [DRAW_OPTIMIZER] = "optimizer, other",
                                                    [DRAW_GATHER] = "gather",
                                                    [DRAW_REDUCE] = "reduce",
                                                    [DRAW_SIDE] = "copy, cast",
                                                    [DRAW_WAIT] = "wait (exposed)"};

/* The class of an item that is not a stall. */
static draw_class class_of(const timeline_item *item)
{
    if (item->kind == TIMELINE_COLLECTIVE)
        return item->reduces ? DRAW_REDUCE : DRAW_GATHER;
    if (item->kind != TIMELINE_WORK)
        return DRAW_NONE;
    if (item->stream != TIMELINE_COMPUTE)
        return DRAW_SIDE;
    return item->phase == 'f' || item->phase == 'r' ? DRAW_FORWARD
           : item->phase == 'b'                     ? DRAW_BACKWARD
                                                    : DRAW_OPTIMIZER;
}

/* *span = the item at the cursor; then move the cursor to the next item. */
static void span_at(const timeline_view *v, int s, timeline_cursor *c, draw_span *span)
{
    int64_t i = c->at;
    const timeline_item *item = &v->items[i];
    timeline_stall stall;
    bool is_stall = timeline_next_stall(v, c, i + 1, &stall);
    c->at = i + 1;
    *span = (draw_span){DRAW_NONE, i, item->unit, item->begin_s, item->end_s};
    if (item->stream != s || !(item->end_s > 0))
        return;
    span->class = class_of(item);
    if (is_stall && item->kind == TIMELINE_WAIT) {
        span->class = DRAW_WAIT;
        span->unit = v->items[stall.cause].unit;
        span->begin_s = stall.begin_s;
    }
}

double draw_axis_s(const draw_window *window)
{
    return fmax(window->end_s - window->begin_s, window->axis_s);
}

bool draw_has_lane(const timeline_view *v, int s)
{
    const draw_window always = {.begin_s = -INFINITY, .end_s = INFINITY};
    timeline_cursor c = {0};
    draw_span span;
    return draw_next(v, s, &always, &c, &span);
}

int draw_lanes(const timeline_view *v)
{
    int n = 0;
    for (int s = 0; s < v->n_streams; s++)
        n += draw_has_lane(v, s);
    return n;
}

bool draw_next(const timeline_view *v, int s, const draw_window *window, timeline_cursor *c,
               draw_span *span)
{
    while (c->at < v->n_items) {
        span_at(v, s, c, span);
        if (span->class == DRAW_NONE || span->end_s <= window->begin_s ||
            span->begin_s >= window->end_s)
            continue;
        span->begin_s = fmax(span->begin_s, window->begin_s);
        span->end_s = fmin(span->end_s, window->end_s);
        if (span->end_s > span->begin_s)
            return true;
    }
    return false;
}
