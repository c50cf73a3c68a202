/* profile.h -- where the time of a training step goes: per operation calls, seconds, FLOPs, bytes.
 *
 *   profile_create -> profile_set_roof -> profile_step_begin -> profile_add for every operation
 *   -> profile_step_end -> ... -> profile_write_csv, profile_write_table -> profile_free
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
#include "common/base/status.h"
#include "common/device/work.h"

/* Rows of one profile; calls that find no room are counted in a row "other" of their kind. */
enum { PROFILE_MAX_ROWS = 128, PROFILE_MAX_STALLS = 256, PROFILE_NAME_BYTES = 96 };

typedef enum profile_kind {
    PROFILE_COMPUTE,    /* operations of the compute stream: what the step waits for */
    PROFILE_SIDE,       /* operations of other streams, at the same time as the former */
    PROFILE_COLLECTIVE, /* from the moment that the stream reaches it, waits for peers included */
    PROFILE_KINDS
} profile_kind;

typedef struct profile_row {
    profile_kind kind;
    work_key key;
    uint64_t calls;
    double seconds;
    work_cost cost; /* of all calls */
} profile_row;

typedef struct profile_roof {
    double flops_per_s, bytes_per_s;
    double bf16_flops_per_s; /* 0: not measured */
} profile_roof;

/* What the compute stream does in a step beside its operations. */
typedef enum profile_stall_kind {
    PROFILE_EXPOSED, /* stands still for a collective */
    PROFILE_REST,    /* anything else that is known */
    PROFILE_STALL_KINDS
} profile_stall_kind;

typedef struct profile_stall {
    profile_stall_kind kind;
    char name[PROFILE_NAME_BYTES]; /* "all-gather h.3" */
    uint64_t calls;
    double seconds;
} profile_stall;

typedef struct profile profile;

/* profile_create -- an empty profile, owned by the caller; NULL when there is no memory. */
profile *profile_create(void);
/* profile_free -- NULL is accepted. */
void profile_free(profile *p);
/* profile_set_roof -- what rows are compared with. Without it no row has a share. */
void profile_set_roof(profile *p, profile_roof roof);

/* ---- counting ------------------------------------------------------------------------------- */

/* profile_step_begin -- a step begins. Its wall time ends with the last profile_add before the next
 * profile_step_begin or profile_step_end. */
void profile_step_begin(profile *p);
/* profile_step_end -- what follows belongs to no step. Accepted at any time. */
void profile_step_end(profile *p);
/* profile_is_counting -- whether a step is under way that is not the first. */
bool profile_is_counting(const profile *p);

/* profile_add -- count n_calls of an operation, which took `seconds` and cost `cost` together.
 * Dropped while the profile is not counting.
 *   key   its texts are kept by reference: literals */
void profile_add(profile *p, profile_kind kind, const work_key *key, uint64_t n_calls,
                 double seconds, work_cost cost);

/* profile_add_stall -- count what the compute stream did in the step under way, or in the one that
 * is over while the next has not begun. Dropped while the profile is not counting.
 *   name  copied; stalls that find no row are counted as "other" */
void profile_add_stall(profile *p, profile_stall_kind kind, const char *name, uint64_t n_calls,
                       double seconds);

/* ---- reading -------------------------------------------------------------------------------- */

/* The whole: steps counted, their wall time, and the rows of each kind added up. */
typedef struct profile_totals {
    uint64_t steps;
    double wall_s;
    double seconds[PROFILE_KINDS];
    work_cost cost[PROFILE_KINDS];
    double stall_s[PROFILE_STALL_KINDS];
} profile_totals;

/* profile_unaccounted -- seconds of the wall time in which the compute stream did nothing known. */
double profile_unaccounted(const profile_totals *t);

/* profile_total -- all that has been counted so far. */
profile_totals profile_total(profile *p);

/* profile_read -- all rows, sorted by kind, then by seconds, the most first. Returns how many.
 *   rows  [PROFILE_MAX_ROWS] */
size_t profile_read(profile *p, profile_row *rows);

/* profile_read_stalls -- all of them, sorted in the same way. Returns how many.
 *   stalls  [PROFILE_MAX_STALLS] */
size_t profile_read_stalls(profile *p, profile_stall *stalls);
/* profile_stall_name -- "exposed", "rest". */
const char *profile_stall_name(profile_stall_kind k);

/* profile_row_name -- "matmul 256x3072x768 NN", "add". Returns text [PROFILE_NAME_BYTES]. */
const char *profile_row_name(const profile_row *row, char *text);
/* profile_kind_name -- "compute", "side", "collective". */
const char *profile_kind_name(profile_kind k);

/* profile_share -- a row's share of the roof, from 0. FLOPs in bf16 count against the roof of bf16,
 * the others against that of fp32; a row that has both (a sum) is given the time of the one and the
 * time of the other.
 *   binds  becomes "compute", "memory", or "-" where there is nothing to compare: no time, no roof
 *          of what the row computes, a collective */
double profile_share(const profile_row *row, profile_roof roof, const char **binds);

/* profile_write_csv -- every row and the totals. Figures are those of all counted steps together;
 * in the lines of totals `calls` is the number of steps.
 *   path    appears whole or not at all (atomic_file.h)
 *   errors  FSDP_EIO */
fsdp_status profile_write_csv(profile *p, const char *path);
/* profile_write_table -- the same for a reader, by step, as Markdown. */
fsdp_status profile_write_table(profile *p, const char *path);
