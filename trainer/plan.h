/* plan.h -- what a run will need and how long a step will take, by making a few of its steps on a
 * dry device: memory by category, calls and bytes of collectives, and time on a named machine.
 *
 *   plan_make (any number of times, after trainer_prepare has the model and the options) */
#pragma once
#include "common/observe/timeline_stats.h"
#include "common/observe/virtual_time.h"
#include "common/steps/train.h"
#include "trainer/prices.h"

typedef struct trainer trainer;

/* What times of a plan go by. */
typedef struct plan_costs {
    virtual_device machine;
    prices prices;         /* what operations take instead, if there are any */
    virtual_config config; /* links; the rest is filled in by plan_make */
} plan_costs;

/* Of one step. */
typedef struct plan_times {
    double step_s; /* from the end of computation in the step before to its end in this one */
    double compute_s, communication_s, exposed_s;
    double floor_s;       /* no schedule leaves less exposed */
    double copies_s;      /* between host and device, both ways together */
    double longer_s;      /* than a step whose copies take no time */
    timeline_stall stall; /* the longest; `item` and `cause` are used up */
} plan_times;

/* Rows of memory: the categories, all of them at one moment, and all that device_alloc_host gave
 * where that is other memory. */
enum { MEM_TOTAL = MEM_CATEGORIES, MEM_ON_HOST, MEM_ROWS };

/* A bound only where marked; all else is exact, to the byte. */
typedef struct plan {
    size_t memory_bytes[MEM_ROWS]; /* peaks in the order of issue */
    comm_stats traffic;            /* of one step */
    double flops;                  /* of one step; not counted with times */
    bool is_bound;    /* more micro-steps than are run: memory of gradients is at most this */
    plan_times times; /* zeroed unless they were wanted */
} plan;

/* plan_read_memory -- the peaks of what d has held, in time and in the order of issue. */
void plan_read_memory(device *d, size_t in_time[MEM_ROWS], size_t issued[MEM_ROWS]);
/* plan_make -- make the first steps of the run on a dry device, as rank `rank` of cfg.n_ranks.
 *   t       its options, model and operations, and the kinds of device and group; not changed
 *   timed   times are wanted, by t->costs
 *   errors  those of the engine; FSDP_ENOMEM */
fsdp_status plan_make(const trainer *t, int rank, bool timed, plan *out);
