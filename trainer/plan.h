/* plan.h -- predict what a run needs and how long a step takes, by running a few of its steps on a
 * dry device: memory by category, calls and bytes of collectives, and time on a given machine.
 *
 *   plan_make (any number of times, after trainer_prepare has the model and the options) */
#pragma once
#include "common/observe/timeline_stats.h"
#include "common/simulate/virtual_time.h"
#include "common/steps/train.h"
#include "trainer/prices.h"

typedef struct trainer trainer;

/* The machine for which a plan computes times. */
typedef struct plan_costs {
    virtual_device machine;
    prices prices;         /* measured times of operations, used instead of machine if n > 0 */
    virtual_config config; /* links and ranks_per_host; the other fields are not used */
} plan_costs;

/* Times of one step. */
typedef struct plan_times {
    double step_s; /* from the end of the previous step's computation to the end of this step's */
    double compute_s, communication_s, exposed_s;
    double floor_s;       /* the least exposed communication of any schedule */
    double copies_s;      /* between host and device, in both directions together */
    double longer_s;      /* how much longer the step takes than with copies that take no time */
    timeline_stall stall; /* the longest; its `item` and `cause` are no longer valid */
} plan_times;

/* Rows of memory: the categories; their total at one moment; and, if the device has its own memory,
 * all blocks of device_alloc_host. */
enum { MEM_TOTAL = MEM_CATEGORIES, MEM_ON_HOST, MEM_ROWS };

/* A plan. All figures but times are exact, to the byte, except with is_bound. */
typedef struct plan {
    size_t memory_bytes[MEM_ROWS]; /* peaks in the order of issue */
    comm_stats traffic;            /* of one step */
    double flops;                  /* of one step; 0 if a timeline was recorded for times */
    bool is_bound;    /* not all canonical sums were planned: gradients are an upper bound */
    plan_times times; /* zeroed unless plan_make was `timed` */
} plan;

/* plan_read_memory -- read the peaks of d's memory: measured in time, and in the order of issue. */
void plan_read_memory(device *d, size_t in_time[MEM_ROWS], size_t issued[MEM_ROWS]);
/* plan_make -- run the first steps of a run on a dry device, as rank `rank` of cfg.n_ranks.
 *   t       gives options, model, operations, and the kinds of device and group; not changed
 *   timed   compute times with t->costs
 *   errors  any error of the engine; FSDP_ENOMEM */
fsdp_status plan_make(const trainer *t, int rank, bool timed, plan *out);
