/* profile.h -- where the time of a step goes: calls, seconds, FLOPs and bytes of each operation.
 *
 *   profile_create -> profile_step_begin -> profile_add for every operation
 *   -> profile_step_end -> ... -> profile_print_csv, profile_print_table -> profile_free
 *
 * Counting begins with the second profile_step_begin, because the first step warms up. FLOPs and
 * bytes are not measured: formulas give them from an operation's arguments (work.h, comm.h).
 *
 * The roof is the most that the machine can do. A row's share of the roof is the larger of its
 * FLOP/s over the peak and its bytes/s over the memory bandwidth; the larger one binds the row (the
 * roofline model of Williams, Waterman and Patterson). bf16 products have their own peak, because a
 * CPU with instructions for them does at least twice as many FLOP/s. If a row exceeds 100% of the
 * memory bandwidth, its arrays were in a cache, or it updates them in place.
 *
 * Thread-safe, because streams are threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "common/base/status.h"
#include "common/device/work.h"

/* The most rows of a profile. When it is full, new operations count in the row "other" of their
 * kind. */
enum { PROFILE_MAX_ROWS = 384, PROFILE_NAME_BYTES = 96 };

typedef enum profile_kind {
    PROFILE_COMPUTE,    /* operations of the compute stream, which make up the step's time */
    PROFILE_SIDE,       /* operations of other streams, which overlap the compute stream */
    PROFILE_COLLECTIVE, /* from when its stream reaches the collective, including waits for peers */
    /* time of the compute stream outside of its operations: */
    PROFILE_EXPOSED, /* it waits for a collective */
    PROFILE_REST,    /* any other known cause */
    PROFILE_KINDS
} profile_kind;

typedef struct profile_row {
    profile_kind kind;
    work_key key; /* its strings are valid as long as the profile */
    uint64_t calls;
    double seconds;
    work_cost cost;                /* of all calls */
    char name[PROFILE_NAME_BYTES]; /* EXPOSED, REST: the copy that key.name points to */
} profile_row;

typedef struct profile_roof {
    double flops_per_s, bytes_per_s;
    double bf16_flops_per_s;       /* 0: not measured */
    virtual_link upload, download; /* zeroed if the device uses host memory */
} profile_roof;

typedef struct profile profile;

/* profile_create -- an empty profile, owned by the caller; NULL if out of memory.
 *   roof  what rows are compared with; if zeroed, rows have no share */
profile *profile_create(profile_roof roof);
/* profile_free -- NULL is accepted. */
void profile_free(profile *p);

/* ---- counting ------------------------------------------------------------------------------- */

/* profile_step_begin -- begin a step. Its wall time ends with the last operation or collective that
 * is added before the next profile_step_begin or profile_step_end. */
void profile_step_begin(profile *p);
/* profile_step_end -- end the step, if one is open: what follows belongs to no step. */
void profile_step_end(profile *p);
/* profile_add -- count n_calls of an operation; `seconds` and `cost` are totals over these calls.
 * Ignored while the profile is not counting. PROFILE_EXPOSED and PROFILE_REST do not extend the
 * wall time, so they may be added last, just before the call that ends the step.
 *   key   its strings are kept by reference (literals), but the name is copied for PROFILE_EXPOSED
 *         and PROFILE_REST */
void profile_add(profile *p, profile_kind kind, const work_key *key, uint64_t n_calls,
                 double seconds, work_cost cost);

/* ---- reading -------------------------------------------------------------------------------- */

/* Totals: steps counted, their wall time, and the sums of the rows of each kind. */
typedef struct profile_totals {
    uint64_t steps;
    double wall_s;
    double seconds[PROFILE_KINDS];
    work_cost cost[PROFILE_KINDS];
    profile_roof roof;
} profile_totals;

/* profile_unaccounted -- seconds of the wall time that no row of the compute stream explains. */
double profile_unaccounted(const profile_totals *t);

/* profile_read -- a consistent copy of what was counted so far: the totals, and the rows sorted by
 * kind, then by seconds in descending order. Returns the number of rows.
 *   rows  [PROFILE_MAX_ROWS] */
size_t profile_read(profile *p, profile_totals *t, profile_row *rows);

/* profile_row_name -- "matmul 256x3072x768 NN", "add". Returns text [PROFILE_NAME_BYTES]. */
const char *profile_row_name(const profile_row *row, char *text);

/* profile_share -- a row's share of the roof, from 0. bf16 FLOPs count against the bf16 peak, other
 * FLOPs against the fp32 peak. For a row that has both (a sum), the two least times are added.
 *   binds  receives "compute", "memory", or "-" if nothing can be compared: the row has no time, no
 *          peak is known for what it computes, or it is a collective */
double profile_share(const profile_row *row, profile_roof roof, const char **binds);

/* profile_print_csv -- print every row and the totals. Figures are sums over all counted steps; in
 * the lines of totals `calls` is the number of steps. */
void profile_print_csv(profile *p, FILE *out);
/* profile_print_table -- print a Markdown table for people, with figures per step. */
void profile_print_table(profile *p, FILE *out);
