/* profile.h -- where the time of a training step goes: per operation calls, seconds, FLOPs, bytes.
 *
 *   profile_create -> profile_step_begin -> profile_add for every operation
 *   -> profile_step_end -> ... -> profile_print_csv, profile_print_table -> profile_free
 *
 * Nothing is counted before the second profile_step_begin: the first step warms up. FLOPs and bytes
 * are not measured; they come from formulas over an operation's arguments (work.h, comm.h).
 *
 * Beside them stands the roof: what the machine can do at most. A row's share of it is the larger
 * of its FLOP/s over the peak and its bytes/s over the rate of memory, and the larger one is what
 * binds it (the roofline model of Williams, Waterman and Patterson). Products of bf16 have a peak
 * of their own, since a CPU with instructions for them does twice as many, or more. A row above
 * 100% of the memory's rate found its arrays in a cache, or updates them in place.
 *
 * Thread-safe: streams are threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "common/base/status.h"
#include "common/device/work.h"
#include "common/observe/virtual_time.h"

/* Rows of one profile; calls that find no room are counted in a row "other" of their kind. */
enum { PROFILE_MAX_ROWS = 384, PROFILE_NAME_BYTES = 96 };

typedef enum profile_kind {
    PROFILE_COMPUTE,    /* operations of the compute stream: what the step waits for */
    PROFILE_SIDE,       /* operations of other streams, at the same time as the former */
    PROFILE_COLLECTIVE, /* from the moment that the stream reaches it, waits for peers included */
    /* what the compute stream does in a step beside its operations: */
    PROFILE_EXPOSED, /* stands still for a collective */
    PROFILE_REST,    /* anything else that is known */
    PROFILE_KINDS
} profile_kind;

typedef struct profile_row {
    profile_kind kind;
    work_key key; /* its texts are valid as long as the profile */
    uint64_t calls;
    double seconds;
    work_cost cost;                /* of all calls */
    char name[PROFILE_NAME_BYTES]; /* EXPOSED, REST: key.name of the profile's own row */
} profile_row;

typedef struct profile_roof {
    double flops_per_s, bytes_per_s;
    double bf16_flops_per_s;       /* 0: not measured */
    virtual_link upload, download; /* zeroed where device memory is the host's */
} profile_roof;

typedef struct profile profile;

/* profile_create -- an empty profile, owned by the caller; NULL when there is no memory.
 *   roof  what rows are compared with; zeroed: no row has a share */
profile *profile_create(profile_roof roof);
/* profile_free -- NULL is accepted. */
void profile_free(profile *p);

/* ---- counting ------------------------------------------------------------------------------- */

/* profile_step_begin -- a step begins. Its wall time ends with the last profile_add before the next
 * profile_step_begin or profile_step_end. */
void profile_step_begin(profile *p);
/* profile_step_end -- what follows belongs to no step. Accepted at any time. */
void profile_step_end(profile *p);
/* profile_add -- count n_calls of an operation, which took `seconds` and cost `cost` together.
 * Dropped while the profile is not counting. PROFILE_EXPOSED and PROFILE_REST may be added when the
 * step is over, while the next has not begun.
 *   key   its texts are kept by reference: literals; of PROFILE_EXPOSED and PROFILE_REST the name
 * is copied */
void profile_add(profile *p, profile_kind kind, const work_key *key, uint64_t n_calls,
                 double seconds, work_cost cost);

/* ---- reading -------------------------------------------------------------------------------- */

/* The whole: steps counted, their wall time, and the rows of each kind added up. */
typedef struct profile_totals {
    uint64_t steps;
    double wall_s;
    double seconds[PROFILE_KINDS];
    work_cost cost[PROFILE_KINDS];
    profile_roof roof;
} profile_totals;

/* profile_unaccounted -- seconds of the wall time in which the compute stream did nothing known. */
double profile_unaccounted(const profile_totals *t);

/* profile_read -- all that has been counted so far, at one moment: the totals, and all rows, sorted
 * by kind, then by seconds, the most first. Returns how many rows there are.
 *   rows  [PROFILE_MAX_ROWS] */
size_t profile_read(profile *p, profile_totals *t, profile_row *rows);

/* profile_row_name -- "matmul 256x3072x768 NN", "add". Returns text [PROFILE_NAME_BYTES]. */
const char *profile_row_name(const profile_row *row, char *text);

/* profile_share -- a row's share of the roof, from 0. FLOPs in bf16 count against the roof of bf16,
 * the others against that of fp32; a row that has both (a sum) is given the time of the one and the
 * time of the other.
 *   binds  becomes "compute", "memory", or "-" where there is nothing to compare: no time, no roof
 *          of what the row computes, a collective */
double profile_share(const profile_row *row, profile_roof roof, const char **binds);

/* profile_print_csv -- every row and the totals. Figures are sums over all counted steps;
 * in the lines of totals `calls` is the number of steps. */
void profile_print_csv(profile *p, FILE *out);
/* profile_print_table -- the same for a reader, by step, as Markdown. */
void profile_print_table(profile *p, FILE *out);
