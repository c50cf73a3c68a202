/* timeline_stats.h -- what a timeline says of its steps: how long the compute stream worked, how
 * long it stood still for which collective, and how much communication was hidden behind work.
 *
 * Exposed communication is time in which the compute stream stands still for a collective:
 *   - it waits (WAIT) for an event (RECORD) that stands behind a collective of another stream; the
 *     cause is the last collective of that stream before the RECORD;
 *   - it has nothing to do and has not come to that wait yet, while the collective is on its way:
 *     on a CPU the thread that moves the bytes may have taken the core of the one that computes;
 *   - it runs a collective itself.
 * A copy between host and device (timeline_way) counts as a collective.
 * The host's waits (SYNC) are no part of it: streams go on. */
#pragma once
#include "common/observe/timeline.h"

/* timeline_cause -- the index of the COLLECTIVE or copy that item i, a WAIT of the compute stream,
 * is for; TIMELINE_NONE for any other item. */
int64_t timeline_cause(const timeline_view *v, int64_t i);

/* One time of exposed communication. */
typedef struct timeline_stall {
    int64_t item;  /* the WAIT, or the COLLECTIVE of the compute stream */
    int64_t cause; /* the COLLECTIVE; TIMELINE_NONE only where there is no stall */
    double begin_s, seconds;
    char cause_name[TIMELINE_NAME_BYTES + TIMELINE_UNIT_BYTES]; /* "all-gather h.3", "" without */
} timeline_stall;

/* How far timeline_next_stall has come; begin with {.at = the first item}. */
typedef struct timeline_cursor {
    int64_t at;
    double busy_until_s;
} timeline_cursor;

/* timeline_next_stall -- *stall = the first stall from c->at to item end-1; false when there is
 * none. A wait that was over at once is a stall of 0 seconds. */
bool timeline_next_stall(const timeline_view *v, timeline_cursor *c, int64_t end,
                         timeline_stall *stall);

typedef struct timeline_step {
    uint64_t step;
    int64_t first, end; /* its items: first ... end-1; the first is the STEP */
    double begin_s, end_s;
    /* of the compute stream: */
    double compute_s;     /* operations */
    double move_s;        /* copies and fills */
    double exposed_s;     /* communication: the stalls */
    double wait_s;        /* waits for anything else */
    double compute_end_s; /* when it had done its last item */
    double comm_s; /* in which a collective was under way, or work of a stream that has one and
                      is not the compute stream: it prepares or finishes a collective */
    timeline_stall stall; /* the longest */
} timeline_step;

/* timeline_next_step -- *step = the figures of the first step that begins at item `from` or later;
 * false when there is none. */
bool timeline_next_step(const timeline_view *v, int64_t from, timeline_step *step);

/* timeline_overlap -- the share of communication that was hidden, from 0; 1 without any. */
double timeline_overlap(const timeline_step *step);
