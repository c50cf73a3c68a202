/* virtual_time_step.h -- the schedule of an FSDP step, written down without running anything: for
 * virtual_time_run.
 *
 *   virtual_step_create(&config, &step) -> virtual_time_run(step.views, config.n_ranks, ...)
 *   -> virtual_step_peak -> virtual_step_free                 or all of it: virtual_step_predict
 *
 * All ranks issue the same: units forward in order, then backward in reverse. A unit is gathered,
 * computed and dropped; backward gathers it again and reduces its gradient when it is computed.
 * units[0] is the root: it computes at both ends of the model, is gathered once for both passes,
 * and its gradient is reduced last. Streams: "compute", "gather" and "reduce", or "comm" for the
 * last two. What differs between ranks, such as a slow one, is a matter of virtual_config.work_s.
 *
 * At the end of a micro-step the compute stream waits for its reductions. [FSDP §3.3] */
#pragma once
#include "common/observe/virtual_time.h"

typedef enum virtual_prefetch {
    VIRTUAL_PREFETCH_NONE,     /* a gather waits until the compute stream comes to its unit, and a
                                  reduction is waited for where it is issued */
    VIRTUAL_PREFETCH_IMPLICIT, /* a gather is issued where its unit is needed; whether it begins
                                  earlier depends on how far the host runs ahead */
    VIRTUAL_PREFETCH_BACKWARD, /* also, before backward of a unit, that of the next one in line */
    VIRTUAL_PREFETCH_FORWARD,  /* the same in forward only */
    VIRTUAL_PREFETCH_BOTH
} virtual_prefetch;

typedef struct virtual_unit {
    const char *name;
    double gather_bytes; /* that a rank sends in a gather; 0: the unit is not sharded */
    double reduce_bytes; /* the same of a reduction; 0: it has no gradient */
    double forward_s, backward_s;
    bool stays; /* gathered from forward to backward, as the root always is */
} virtual_unit;

typedef struct virtual_step_config {
    int n_ranks;
    const virtual_unit *units; /* [n_units] in order of forward; n_units >= 1 */
    int n_units;
    double head_forward_s, head_backward_s; /* the root's layers behind the last unit */
    double optimizer_s;
    int grad_accum; /* micro-steps; 0 stands for 1 */
    virtual_prefetch prefetch;
    int limit;       /* N: the host waits until at most N + 1 units that do not stay are gathered;
                        0: it never does. [FSDP §3.4] */
    int sync_after;  /* the host waits for the compute stream behind both passes of this unit, as it
                        must to read a figure from there; 0: it does not */
    bool one_stream; /* gathers and reductions in one order, on stream "comm" */
} virtual_step_config;

/* From the gather of a unit to its drop: indices of items. */
typedef struct virtual_hold {
    int64_t gather, dropped;
} virtual_hold;

typedef struct virtual_step {
    timeline_view *views; /* [n_ranks] of the same items */
    timeline_item *items;
    virtual_hold *holds; /* [n_holds] of units[1] and on */
    size_t n_holds;
} virtual_step;

/* virtual_step_create -- write down one step.
 *   config  its texts and units are read during the call
 *   out     owned by the caller until virtual_step_free; empty after an error
 *   errors  FSDP_EINVAL no rank, no unit; FSDP_ENOMEM */
fsdp_status virtual_step_create(const virtual_step_config *config, virtual_step *out);
/* virtual_step_free -- a zeroed or freed step is accepted. */
void virtual_step_free(virtual_step *step);

/* virtual_step_peak -- most units besides the root that hold memory at one time on rank 0: from the
 * moment that the host issues the gather, which is when it takes the memory, until the drop. */
int virtual_step_peak(const virtual_step *step, const virtual_result *result);

/* virtual_time_floor -- the least time that any schedule of the step leaves exposed: its own length
 * is at least this plus all computation. With G(i) the gathers that come no later than computation
 * i, and R(k) the reductions that come no earlier than computation k, in the order of the step,
 *
 *     step >= max over i <= k of  G(i) + (computations i to k) + R(k)      and  >= all collectives
 *
 * because a link is serial. i = first, k = last: the root's gather has nothing before it to hide
 * behind, and its reduction nothing after. Other i, k: the first unit's gather has only the
 * embedding to hide behind, and a slow link delays what comes later more. Memory is no limit here,
 * and the host costs nothing. */
double virtual_time_floor(const virtual_step_config *config, const virtual_config *costs);

/* A step in figures, those of rank 0. */
typedef struct virtual_figures {
    double step_s, compute_s, communication_s, exposed_s, floor_s;
    int peak_units;
} virtual_figures;

/* virtual_step_predict -- create, run, read, free.
 *   errors  as virtual_step_create and virtual_time_run */
fsdp_status virtual_step_predict(const virtual_step_config *config, const virtual_config *costs,
                                 virtual_figures *out);
