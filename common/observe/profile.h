/* profile.h -- where the time of a training step goes: per operation calls, seconds, FLOPs, bytes.
 *
 *   profile_create -> profile_set_roof -> profile_step_begin -> profile_add at
 *   every operation -> profile_step_end -> ... -> profile_write_csv, profile_write_table
 *   -> profile_free
 *
 * Nothing is counted before the second profile_step_begin: the first step warms up. FLOPs and bytes
 * are not measured: they come from formulas over an operation's arguments (op_work.h,
 * comm.h). Beside them stands the roof, what the machine can do at most: a row's share of it is the
 * larger of (its FLOP/s over the peak) and (its bytes/s over the rate of memory), and the larger
 * one is what binds it (the roofline model of Williams, Waterman and Patterson). Products of bf16
 * have a peak of their own: a CPU with instructions for them does twice as many, or more. More than
 * 100% of the memory's rate means that the arrays were still in a cache, or are updated in place.
 * Thread-safe: streams are threads.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"
#include "common/observe/work.h"

typedef enum profile_kind {
    PROFILE_COMPUTE,    /* operations of the compute stream: what the step waits for */
    PROFILE_SIDE,       /* operations of other streams, at the same time as the former */
    PROFILE_COLLECTIVE, /* from the moment that the stream reaches it, waits for peers included */
    PROFILE_KINDS
} profile_kind;
const char *profile_kind_name(profile_kind k);

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

/* Rows of one profile; calls that find no room are counted in a row "other" of their kind. */
enum { PROFILE_MAX_ROWS = 128, PROFILE_NAME_BYTES = 96 };

typedef struct profile profile;

/* profile_create -- NULL when there is no memory. */
profile *profile_create(void);
void profile_free(profile *p); /* NULL is accepted */
void profile_set_roof(profile *p, profile_roof roof);

/* profile_step_begin -- a step begins; its wall time ends with the last profile_add before the next
 * profile_step_begin or profile_step_end.
 * profile_step_end -- what follows belongs to no step; accepted at any time. */
void profile_step_begin(profile *p);
void profile_step_end(profile *p);

/* profile_is_counting -- inside a step, but for the first. */
bool profile_is_counting(const profile *p);

/* profile_add -- n_calls of an operation that took `seconds` and cost `cost`, together. Drops them
 * while the profile is not counting. */
void profile_add(profile *p, profile_kind kind, const work_key *key, uint64_t n_calls,
                 double seconds, work_cost cost);

/* The whole: steps counted, their wall time, and the rows of each kind added up. */
typedef struct profile_totals {
    uint64_t steps;
    double wall_s;
    double seconds[PROFILE_KINDS];
    work_cost cost[PROFILE_KINDS];
} profile_totals;
profile_totals profile_total(profile *p);

/* profile_read -- rows [PROFILE_MAX_ROWS] sorted by kind, then by seconds, the most first. Returns
 * how many there are. */
size_t profile_read(profile *p, profile_row *rows);
/* profile_row_name -- "matmul 256x3072x768 NN", "add"; text [PROFILE_NAME_BYTES]. Returns text. */
const char *profile_row_name(const profile_row *row, char *text);

/* profile_share -- of the roof, from 0; *binds: "compute", "memory", or "-" where there is nothing
 * to compare (no time, no roof of what it computes, a collective). FLOPs in bf16 count against the
 * roof of bf16, the others against that of fp32; a row that has both (a sum) gets the time of the
 * one and the time of the other. */
double profile_share(const profile_row *row, profile_roof roof, const char **binds);

/* profile_write_csv -- every row and the totals; figures are of all counted steps together, and in
 * the lines of totals `calls` is the number of steps.
 * profile_write_table -- the same for a reader, by step, as Markdown.
 *   path    appears whole or not at all (atomic_file.h)
 *   errors  FSDP_EIO */
fsdp_status profile_write_csv(profile *p, const char *path);
fsdp_status profile_write_table(profile *p, const char *path);
