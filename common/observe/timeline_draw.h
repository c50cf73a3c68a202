/* timeline_draw.h -- one step of several ranks as a picture: streams are lanes, time goes right.
 *
 *   draw_text or draw_svg: head -> lanes, rank by rank -> foot
 *
 * Each rank draws its own lanes, as a separate text, because no other rank has its timeline. A
 * timeline may be recorded or simulated. The times of all ranks must be by one clock. */
#pragma once
#include <stdio.h>
#include "common/observe/timeline_stats.h"

/* How an item is drawn. */
typedef enum draw_class {
    DRAW_FORWARD,
    DRAW_BACKWARD,
    DRAW_OPTIMIZER, /* and all other work of the compute stream outside of layers */
    DRAW_GATHER,    /* collectives that only move data: all-gather, broadcast, ... */
    DRAW_REDUCE,    /* collectives that add */
    DRAW_SIDE,      /* work of the other streams: copies, casts, sums */
    DRAW_WAIT,      /* the compute stream waits for a collective */
    DRAW_CLASSES,
    DRAW_NONE = DRAW_CLASSES
} draw_class;

/* Names for the legend. */
extern const char *const draw_class_names[DRAW_CLASSES];

/* The step to draw, from when the first rank begins it to when the last rank ends it. */
typedef struct draw_window {
    uint64_t step;
    double begin_s, end_s;
    double axis_s;       /* least length of the axis, for a step that is shorter */
    const char *caption; /* names the run in the title; "": none */
} draw_window;

/* draw_axis_s -- the length of the axis in seconds. */
double draw_axis_s(const draw_window *window);

/* One item to draw. */
typedef struct draw_span {
    draw_class class;
    int64_t item;
    const char *unit; /* the layer, or a collective's unit; valid as long as the timeline */
    double begin_s, end_s;
} draw_span;

/* draw_next -- *span = the next item to draw on stream s, clipped to the window; false if there are
 * no more. Begin with *c = {0}. */
bool draw_next(const timeline_view *v, int s, const draw_window *window, timeline_cursor *c,
               draw_span *span);

/* draw_lanes -- the number of streams of v with an item to draw. Only these get a lane. */
int draw_lanes(const timeline_view *v);
/* draw_has_lane -- whether stream s has an item to draw. */
bool draw_has_lane(const timeline_view *v, int s);

/* A number of ranks, and the number of their lanes. */
typedef struct draw_count {
    int n_ranks, n_lanes;
} draw_count;

/* A kind of picture: the name of its file, and functions that write its head, the lanes of one
 * rank, and its foot.
 *   all    ranks and lanes of the whole picture
 *   above  ranks and lanes that are drawn above this rank */
typedef struct draw_format {
    const char *file_name;
    int most_ranks;      /* the first ranks are drawn, at most this number */
    bool last_step_only; /* false: all steps are drawn, one below the other */
    void (*head)(FILE *out, const draw_window *window, draw_count all);
    void (*lanes)(FILE *out, const draw_window *window, const timeline_view *v, draw_count above);
    void (*foot)(FILE *out, const draw_window *window);
} draw_format;

/* draw_text -- 100 columns; a lane is one line, each column shows what took most of its time.
 * draw_svg -- adjacent work of one block in one direction is drawn as one box. */
extern const draw_format draw_text, draw_svg;
