/* offload.h -- lab 4, a star: an update whose arrays live in host memory (lab 2's offload.h).
 *
 *   --optimizer-offload  config.states: the optimizer's state arrays are on the host between steps
 *   --cpu-offload        config.shards: parameter shards and gradients are there too
 *
 * The device updates pieces of a shard, with the same kernels. An update treats each element alone,
 * so the bits do not depend on where a piece begins. */
#pragma once
#include "lab2_forward/offload.h"
#include "lab4_optimizer/optimizer.h"

/* Elements of unit u's shard from `begin` on, and their arrays on the device. */
typedef struct update_part {
    int u;
    size_t begin;
    optim_part arrays;
} update_part;

/* ---- 4.7, a star: unscored ------------------------------------------------------------------- */
/* offload_update -- update every unit that is not frozen, piece by piece (offload_piece_elems with
 * offload_arrays). For each piece: offload_next, offload_bring, let the compute stream wait for the
 * uploads, update_run, let `down` wait for the update, offload_take, and record `used` on `down`.
 * The copies of one piece so run while the other piece is updated. The host never waits.
 *   order  uploads start after all that `down` has so far: the step before, and parked gradients.
 *          Later work on compute starts after the last download */
fsdp_status offload_update(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw);
/* offload_norm -- what grads_finish and grad_norm do, unit by unit: grad_finish, grad_all_gather,
 * squares of the unit's ranges added to *o->norm_sum, grad_park. Only then one all-reduce: the norm
 * must be that of the whole model before the first piece is clipped. */
fsdp_status offload_norm(fsdp_optimizer *o, float grad_scale);

/* ---- provided -------------------------------------------------------------------------------- */
/* offload_arrays -- how many arrays of a shard come from the host for an update. */
size_t offload_arrays(const fsdp_optimizer *o);
/* update_part_point -- point part at the arrays of its elements, wherever they live. */
void update_part_point(const fsdp_optimizer *o, update_part *part);
/* offload_bring -- point part at its arrays, upload those that live on the host into p, in order of
 * `up`, and point part at these copies. offload_take -- download what the update has written, in
 * order of `down`. */
fsdp_status offload_bring(fsdp_optimizer *o, const offload_piece *p, update_part *part);
fsdp_status offload_take(fsdp_optimizer *o, const update_part *part);
/* update_run -- (update.c) update what the unit's ranges have of these elements, on compute. */
fsdp_status update_run(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw,
                       const update_part *whole);
/* offload_step -- optimizer_step where shards are on the host: offload_norm, clip_coef,
 * optimizer_update. */
fsdp_status offload_step(fsdp_optimizer *o, const step_scalars *sc, float *norm);
