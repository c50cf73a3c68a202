/* timeline_stats.h -- figures of each step of a timeline: how long the compute stream worked, how
 * long it waited for which collective, and how much communication overlapped computation.
 *
 * Exposed communication is time in which the compute stream makes no progress because of a
 * collective. There are three cases:
 *   - it waits (WAIT) for an event (RECORD) that follows a collective on another stream; the cause
 *     is the last collective of that stream before the RECORD;
 *   - it is idle before it reaches that WAIT, while the collective is in flight: on a CPU, the
 *     thread that moves the bytes may have taken the core of the thread that computes;
 *   - it runs a collective itself.
 * Here a copy between host and device (timeline_way) counts as a collective. Waits of the host
 * (SYNC) do not count, because streams go on. */
#pragma once
#include "common/observe/timeline.h"

/* timeline_cause -- the index of the COLLECTIVE or copy that item i, a WAIT of the compute stream,
 * waits for; TIMELINE_NONE for any other item. */
int64_t timeline_cause(const timeline_view *v, int64_t i);

/* One span of exposed communication. */
typedef struct timeline_stall {
    int64_t item;  /* the WAIT, or the COLLECTIVE of the compute stream */
    int64_t cause; /* the COLLECTIVE or copy; TIMELINE_NONE: no stall */
    double begin_s, seconds;
    char cause_name[TIMELINE_NAME_BYTES + TIMELINE_UNIT_BYTES]; /* "all-gather h.3"; "": no stall */
} timeline_stall;

/* The position of timeline_next_stall; begin with {.at = the first item}. */
typedef struct timeline_cursor {
    int64_t at;
    double busy_until_s;
} timeline_cursor;

/* timeline_next_stall -- *stall = the first stall from item c->at to item end-1; false if there is
 * none. A WAIT that ended at once is a stall of 0 seconds. */
bool timeline_next_stall(const timeline_view *v, timeline_cursor *c, int64_t end,
                         timeline_stall *stall);

typedef struct timeline_step {
    uint64_t step;
    int64_t first, end; /* its items are first to end-1; the first is the STEP */
    double begin_s, end_s;
    /* of the compute stream: */
    double compute_s;     /* operations */
    double move_s;        /* copies and fills */
    double exposed_s;     /* exposed communication: the sum of the stalls */
    double wait_s;        /* waits for anything else */
    double compute_end_s; /* when its last item ended */
    double comm_s; /* time in which a collective was in flight, or other work of a side stream with
                      collectives, since such work prepares or finishes a collective */
    timeline_stall stall; /* the longest */
} timeline_step;

/* timeline_next_step -- *step = the figures of the first step that begins at item `from` or later;
 * false if there is none. */
bool timeline_next_step(const timeline_view *v, int64_t from, timeline_step *step);

/* timeline_overlap -- the share of communication that was hidden, 0 to 1; 1 if there was none. */
double timeline_overlap(const timeline_step *step);
