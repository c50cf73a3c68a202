/* timeline.h -- a record of what one rank issued, in order, and when each item ran. The trace, the
 * figures of exposed communication and virtual time are computed from it.
 *
 *   timeline_create -> timeline_add (when something is issued), timeline_ran (when it has run) ...
 *   -> timeline_free
 *
 * Items have indices in the order of issue. Items of one stream run in this order. Only events
 * order items of different streams: a WAIT names the RECORD that it waits for. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

typedef enum timeline_kind {
    TIMELINE_WORK,       /* a launch, a copy or a fill */
    TIMELINE_COLLECTIVE, /* group, seq, bytes */
    TIMELINE_RECORD,     /* an event is recorded after the stream's work so far */
    TIMELINE_WAIT,       /* the stream waits for item `after`, a RECORD */
    TIMELINE_SYNC,       /* the host waits for item `after`, or for all work of `stream` so far */
    TIMELINE_STEP        /* the host begins step `seq`; on no stream */
} timeline_kind;

/* Every timeline has the stream "compute", as stream TIMELINE_COMPUTE. */
enum { TIMELINE_HOST = -1, TIMELINE_NONE = -1, TIMELINE_COMPUTE = 0, TIMELINE_MAX_STREAMS = 32 };
enum { TIMELINE_NAME_BYTES = 24, TIMELINE_UNIT_BYTES = 48, TIMELINE_STREAM_BYTES = 32 };

/* The direction of a copy between the host and a device with its own memory (offload). */
typedef enum timeline_way { STAYS_INSIDE, TO_DEVICE, TO_HOST } timeline_way;

typedef struct timeline_item {
    timeline_kind kind;
    int stream;                     /* index into the timeline's streams, or TIMELINE_HOST */
    char name[TIMELINE_NAME_BYTES]; /* WORK: "matmul"; COLLECTIVE: "all-gather"; else "" */
    char unit[TIMELINE_UNIT_BYTES]; /* WORK: the layer, "h.0.attn"; COLLECTIVE: its label */
    bool is_move;                   /* WORK: a copy, an upload, a download or a fill */
    timeline_way way;               /* of a copy; known on a dry device only */
    char phase;                     /* 'f' forward, 'r' recompute, 'b' backward, '-' none */
    int64_t after;                  /* WAIT, SYNC: index of a RECORD, or TIMELINE_NONE */
    bool reduces;                   /* COLLECTIVE: it adds; false: it only moves */
    uint64_t group, seq;            /* COLLECTIVE: equal on all its ranks; STEP: seq is the step */
    int group_ranks;                /* COLLECTIVE */
    int first_rank, last_rank;      /* COLLECTIVE: world ranks of the group's first and last rank */
    double bytes;                   /* COLLECTIVE: payload this rank sends; WORK: bytes moved */
    double flops;                   /* WORK */
    const void *event;              /* RECORD: its event; NULL after the event was freed */
    int64_t earlier;                /* RECORD: see timeline_watch.c */
    double issued_s;                /* by device_now_s */
    double begin_s, end_s;          /* when the stream (SYNC: the host) reached and finished it;
                                       both 0: it has not run, or takes no time (RECORD) */
} timeline_item;

typedef struct timeline timeline;

/* timeline_create -- an empty timeline of rank `rank`; NULL if out of memory. One thread at a time
 * may use it.
 *   offset_s  added to every time, to convert this rank's clock to rank 0's
 *   bound_s   the largest possible error of offset_s; 0 if ranks share a clock */
timeline *timeline_create(int rank, double offset_s, double bound_s);
/* timeline_free -- NULL is accepted. */
void timeline_free(timeline *t);
/* timeline_clear -- forget all items; streams keep their indices. */
void timeline_clear(timeline *t);

/* timeline_stream -- the index of the stream of that name, which is added if it is new. */
int timeline_stream(timeline *t, const char *name);
/* timeline_add -- append a copy of *item; returns its index, or TIMELINE_NONE if there is no room,
 * and counts the item in n_lost. */
int64_t timeline_add(timeline *t, const timeline_item *item);
/* timeline_ran -- record that item i ran from begin_s to end_s. A second call extends that span. */
void timeline_ran(timeline *t, int64_t i, double begin_s, double end_s);

/* A timeline to read, either recorded or simulated. */
typedef struct timeline_view {
    int rank, n_streams;
    const char (*streams)[TIMELINE_STREAM_BYTES]; /* [n_streams] names */
    timeline_item *items;                         /* [n_items] */
    int64_t n_items;
    uint64_t n_lost;
    double offset_s, bound_s; /* see timeline_create */
} timeline_view;
/* timeline_read -- valid until the next call that changes t. Call it when no stream has work. */
timeline_view timeline_read(const timeline *t);
