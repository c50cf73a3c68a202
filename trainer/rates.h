/* predict.h -- how long a step will take, and how much of that is communication that nothing hides:
 * the plan's units in virtual time, with rates that a short calibration has measured.
 *
 *   predict_calibrate (once) -> predict_step (for any configuration) */
#pragma once
#include "common/observe/virtual_time_step.h"
#include "trainer/fsdp_engine.h"

/* What one rank can do while the others do the same. */
typedef struct predict_rates {
    double flops_per_s, bytes_per_s; /* matrix products; memory (profile_roof.h) */
    virtual_link link;               /* of an all-gather; zero with one rank */
} predict_rates;

/* predict_calibrate -- measure, on all ranks at once: about half a second.
 *   run         with dev and world
 *   *out        rank 0's figures, the same on all ranks
 *   collective  all ranks; the host waits
 *   errors      FSDP_ENOMEM, those of a collective */
fsdp_status predict_calibrate(const run_context *run, predict_rates *out);

/* predict_step -- one step of a job of the given shape. Computation is counted at the calibrated
 * rates: matrix products and attention in forward, twice that in backward, the optimizer by the
 * bytes it touches. Nothing else is counted, so a real step takes longer.
 *   config  fsdp.mesh, run.dev and run.world are not read
 *   errors  FSDP_ENOMEM, those of fsdp_lay_out, strategy_fill and virtual_step_predict */
fsdp_status predict_step(const fsdp_engine_config *config, const mesh_shape *shape,
                         const predict_rates *rates, virtual_figures *out);

/* predict_buckets -- how many parameters a bucket should have at most, so that the predicted step
 * is shortest: 1, 2, 4 ... times the largest unit are tried. A larger one must win 1% at least,
 * because it costs memory. 0: merging wins nothing.
 *   errors  those of predict_step */
fsdp_status predict_buckets(const fsdp_engine_config *config, const mesh_shape *shape,
                            const predict_rates *rates, size_t *max_elems);
