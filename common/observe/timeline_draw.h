/* timeline_draw.h -- one step of several ranks as a picture: streams are lanes, time goes right.
 *
 *   draw_text or draw_svg: head -> lanes, rank by rank -> foot
 *
 * A rank's lanes are a text of their own, so that each rank can draw its own ones, whose timeline
 * no other rank has. A timeline may be recorded or simulated; the ranks' clock is one. */
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

/* Of a legend. */
extern const char *const draw_class_names[DRAW_CLASSES];

/* The step that is drawn, from the first rank's beginning of it to the last one's end. */
typedef struct draw_window {
    uint64_t step;
    double begin_s, end_s;
    double axis_s;       /* the axis is as long, if the step is shorter */
    const char *caption; /* of the title: which run it is; "": none */
} draw_window;

/* draw_axis_s -- how long the axis is. */
double draw_axis_s(const draw_window *window);

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

/* draw_lanes -- how many streams of v have anything to be drawn: the others get no lane. */
int draw_lanes(const timeline_view *v);
/* draw_has_lane -- whether stream s has. */
bool draw_has_lane(const timeline_view *v, int s);

/* How many ranks, and lanes of theirs. */
typedef struct draw_count {
    int n_ranks, n_lanes;
} draw_count;

/* A kind of picture: its file, and its head, the lanes of a rank, and its foot.
 *   all    ranks and lanes of the whole picture
 *   above  ranks and lanes that are drawn above this rank */
typedef struct draw_format {
    const char *file_name;
    int most_ranks;      /* that are drawn */
    bool last_step_only; /* else all steps are drawn, one below the other */
    void (*head)(FILE *out, const draw_window *window, draw_count all);
    void (*lanes)(FILE *out, const draw_window *window, const timeline_view *v, draw_count above);
    void (*foot)(FILE *out, const draw_window *window);
} draw_format;

/* draw_text -- 100 columns; a lane is a line, and each column shows what took most of its time.
 * draw_svg -- the work of one block in one direction is one box. */
extern const draw_format draw_text, draw_svg;
