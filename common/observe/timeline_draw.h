/* timeline_draw.h -- one step of several ranks as a picture: streams are lanes, time goes right.
 *
 * The timelines may be recorded, read from files, or simulated: their clock is one, and every item
 * has a begin and an end. */
#pragma once
#include <stdio.h>
#include "common/observe/timeline_stats.h"

/* What an item is drawn as. */
typedef enum draw_class {
    DRAW_FORWARD,
    DRAW_BACKWARD,
    DRAW_OPTIMIZER, /* and all else that the compute stream does outside of layers */
    DRAW_GATHER,    /* collectives that move: all-gather, broadcast, ... */
    DRAW_REDUCE,    /* collectives that add */
    DRAW_SIDE,      /* work of the other streams: copies, casts, sums */
    DRAW_WAIT,      /* the compute stream stands still for a collective */
    DRAW_CLASSES,
    DRAW_NONE = DRAW_CLASSES
} draw_class;

/* draw_class_name -- for a legend. */
const char *draw_class_name(draw_class c);

/* The step that is drawn, of all ranks. */
typedef struct draw_window {
    uint64_t step;
    double begin_s, end_s;
} draw_window;

/* draw_window_of -- from the first rank's beginning of a step to the last one's end.
 *   errors  FSDP_EINVAL a rank has no such step; FSDP_ENOMEM */
fsdp_status draw_window_of(const timeline_view *views, int n_views, uint64_t step,
                           draw_window *out);

/* One thing to be drawn. */
typedef struct draw_span {
    draw_class class;
    int64_t item;
    const char *unit; /* of the layer or the collective; valid as long as the timeline */
    double begin_s, end_s;
} draw_span;

/* draw_next -- *span = what there is to be drawn on stream s from c->at on, in order, inside the
 * window; false when there is nothing more. Begin with {0}. */
bool draw_next(const timeline_view *v, int s, const draw_window *window, timeline_cursor *c,
               draw_span *span);

/* timeline_draw_text -- 100 columns; each shows what took most of its time. */
void timeline_draw_text(FILE *out, const timeline_view *views, int n_views,
                        const draw_window *window);

/* timeline_draw_svg -- work of one block in one direction is one box.
 *   path    appears whole or not at all
 *   errors  FSDP_EIO */
fsdp_status timeline_draw_svg(const timeline_view *views, int n_views, const draw_window *window,
                              const char *path);
