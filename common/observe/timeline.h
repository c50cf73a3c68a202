/* timeline.h -- what one rank issued, in order, and when it ran. The trace, the figures of exposed
 * communication and virtual time are all read from it.
 *
 *   timeline_create -> timeline_add (when something is issued), timeline_ran (when it has run) ...
 *   -> timeline_free
 *
 * An item is known by its index. Items of one stream run in the order of their indices. Between
 * streams only events order: a WAIT names the RECORD that it waits for. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

typedef enum timeline_kind {
    TIMELINE_WORK,       /* a launch, a copy or a fill */
    TIMELINE_COLLECTIVE, /* group, seq, bytes */
    TIMELINE_RECORD,     /* an event stands for the stream's work so far */
    TIMELINE_WAIT,       /* the stream goes on after item `after`, a RECORD */
    TIMELINE_SYNC,       /* the host goes on after item `after`, or after all of `stream` so far */
    TIMELINE_STEP        /* the host begins step `seq`; on no stream */
} timeline_kind;

/* Streams: TIMELINE_COMPUTE is the stream "compute" of every timeline. */
enum { TIMELINE_HOST = -1, TIMELINE_NONE = -1, TIMELINE_COMPUTE = 0, TIMELINE_MAX_STREAMS = 32 };
enum { TIMELINE_NAME_BYTES = 24, TIMELINE_UNIT_BYTES = 48, TIMELINE_STREAM_BYTES = 32 };

/* Whether a copy moves offloaded arrays between the host and a device with memory of its own. */
typedef enum timeline_way { STAYS_INSIDE, TO_DEVICE, TO_HOST } timeline_way;

typedef struct timeline_item {
    timeline_kind kind;
    int stream;                     /* index into the timeline's streams, or TIMELINE_HOST */
    char name[TIMELINE_NAME_BYTES]; /* WORK: "matmul"; COLLECTIVE: "all-gather"; else "" */
    char unit[TIMELINE_UNIT_BYTES]; /* WORK: the layer, "h.0.attn"; COLLECTIVE: its label */
    bool is_move;                   /* WORK: a copy, an upload, a download or a fill */
    timeline_way way;               /* a copy's, known on a dry device only */
    char phase;                     /* 'f' forward, 'b' backward, '-' neither */
    int64_t after;                  /* WAIT, SYNC: index of a RECORD, or TIMELINE_NONE */
    uint64_t group, seq;            /* COLLECTIVE: equal on all its ranks; STEP: seq is the step */
    int group_ranks;                /* COLLECTIVE */
    int first_rank, last_rank;      /* COLLECTIVE: in the job, of the group's first and last rank */
    double bytes;                   /* COLLECTIVE: payload that this rank sends; WORK: moved */
    double flops;                   /* WORK */
    const void *event;              /* RECORD: its event; NULL once that is freed */
    double issued_s;                /* by clock_now_s */
    double begin_s, end_s;          /* when the stream (SYNC: the host) came to it and had done it;
                                       both 0: it has not run, or took no time (RECORD, many WAITs) */
} timeline_item;

typedef struct timeline timeline;

/* timeline_create -- an empty timeline of rank `rank`; NULL when there is no memory. One thread at
 * a time may use it.
 *   offset_s  added to every time that is entered: from this rank's clock to the clock of rank 0
 *   bound_s   how far off that may be; 0 if ranks share a clock */
timeline *timeline_create(int rank, double offset_s, double bound_s);
/* timeline_free -- NULL is accepted. */
void timeline_free(timeline *t);
/* timeline_clear -- forget all items; streams keep their indices. */
void timeline_clear(timeline *t);

/* timeline_stream -- the index of the stream of that name, which is new or known. */
int timeline_stream(timeline *t, const char *name);
/* timeline_add -- append a copy of *item; returns its index, or TIMELINE_NONE when memory is short
 * (then n_lost counts it). */
int64_t timeline_add(timeline *t, const timeline_item *item);
/* timeline_ran -- item i ran from begin_s to end_s. A second call extends it. */
void timeline_ran(timeline *t, int64_t i, double begin_s, double end_s);

/* A whole timeline to read, recorded or simulated. */
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
