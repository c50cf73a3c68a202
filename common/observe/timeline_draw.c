/* timeline_draw.c -- what both pictures of a step share; see timeline_draw.h. */
#include "common/observe/timeline_draw.h"
#include <string.h>

const char *draw_class_name(draw_class c)
{
    static const char *const NAMES[DRAW_CLASSES] = {[DRAW_FORWARD] = "forward",
                                                    [DRAW_BACKWARD] = "backward",
                                                    [DRAW_OPTIMIZER] = "optimizer, other",
                                                    [DRAW_GATHER] = "gather",
                                                    [DRAW_REDUCE] = "reduce",
                                                    [DRAW_SIDE] = "copy, cast",
                                                    [DRAW_WAIT] = "wait (exposed)"};
    FSDP_ASSERT((int)c >= 0 && c < DRAW_CLASSES);
    return NAMES[c];
}

/* What item i is drawn as, unless it is a stall. */
static draw_class class_of(const timeline_view *v, int64_t i)
{
    const timeline_item *item = &v->items[i];
    if (item->kind == TIMELINE_COLLECTIVE)
        return strstr(item->name, "reduce") ? DRAW_REDUCE : DRAW_GATHER;
    if (item->kind != TIMELINE_WORK)
        return DRAW_NONE;
    if (item->stream != TIMELINE_COMPUTE)
        return DRAW_SIDE;
    return item->phase == 'f' ? DRAW_FORWARD : item->phase == 'b' ? DRAW_BACKWARD : DRAW_OPTIMIZER;
}

/* *span = the item at the cursor, which moves on. */
static void span_at(const timeline_view *v, int s, timeline_cursor *c, draw_span *span)
{
    int64_t i = c->at;
    timeline_stall stall;
    *span = (draw_span){.class = DRAW_NONE, .item = i};
    bool is_stall = timeline_next_stall(v, c, i + 1, &stall);
    c->at = i + 1;
    if (v->items[i].stream != s || !(v->items[i].end_s > 0))
        return;
    span->class = class_of(v, i);
    span->unit = v->items[i].unit;
    span->begin_s = v->items[i].begin_s;
    span->end_s = v->items[i].end_s;
    if (is_stall && v->items[i].kind == TIMELINE_WAIT) {
        span->class = DRAW_WAIT;
        span->unit = v->items[stall.cause].unit;
        span->begin_s = stall.begin_s;
    }
}

bool draw_next(const timeline_view *v, int s, const draw_window *window, timeline_cursor *c,
               draw_span *span)
{
    while (c->at < v->n_items) {
        span_at(v, s, c, span);
        if (span->class == DRAW_NONE || span->end_s <= window->begin_s ||
            span->begin_s >= window->end_s)
            continue;
        if (span->begin_s < window->begin_s)
            span->begin_s = window->begin_s;
        if (span->end_s > window->end_s)
            span->end_s = window->end_s;
        if (span->end_s > span->begin_s)
            return true;
    }
    return false;
}
