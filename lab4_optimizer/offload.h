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
/* offload_update_part -- update part, whose arrays live on the host. Take the next piece of the
 * ring (offload_next); offload_bring; let the compute stream wait for the uploads (offload_order);
 * update_run; let `down` wait for the update; offload_take; record the piece's `used` on `down`. So
 * the copies of one piece run while the device updates the other. The host never waits, and no
 * upload waits for an update but by `used`.
 *   part  u, begin and arrays.elems are set */
fsdp_status offload_update_part(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw,
                                update_part *part);
/* offload_squares -- add the squares of unit u's ranges to *o->norm_sum, on compute. */
fsdp_status offload_squares(fsdp_optimizer *o, int u);
/* offload_norm -- do what grads_finish and grad_norm do, but unit by unit, so that few gradients
 * are on the device at a time: for each unit that is not frozen grad_finish, grad_all_gather,
 * offload_squares and grad_park (lab 3's grad_offload.h). Then one all-reduce over norm_group, in
 * the order of grad_norm. Only now is the norm complete: the update is a second pass. */
fsdp_status offload_norm(fsdp_optimizer *o, float grad_scale);
/* offload_step -- optimizer_step where shards are on the host: offload_norm, clip_coef,
 * optimizer_update. */
fsdp_status offload_step(fsdp_optimizer *o, const step_scalars *sc, adamw_fn adamw, float *norm);

/* ---- provided -------------------------------------------------------------------------------- */
/* offload_arrays -- how many arrays of a shard come from the host for an update. */
size_t offload_arrays(const fsdp_optimizer *o);
/* update_part_point -- point part at the arrays of its elements, wherever they live, and name its
 * unit to those who watch what is issued next. */
void update_part_point(const fsdp_optimizer *o, update_part *part);
/* offload_bring -- point part at its arrays, upload those that live on the host into p, in order of
 * `up`, and point part at these copies. offload_take -- download what the update has written, in
 * order of `down`. */
fsdp_status offload_bring(fsdp_optimizer *o, const offload_piece *p, update_part *part);
fsdp_status offload_take(fsdp_optimizer *o, const update_part *part);
/* update_run -- (update.c) update what the unit's ranges have of these elements, on compute. */
fsdp_status update_run(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw,
                       const update_part *whole);
/* offload_update -- offload_update_part of every piece of every unit that is not frozen.
 *   order  uploads start after what `down` has so far: the last step, and parked gradients. Later
 *          work on compute and `up` starts after the last download */
fsdp_status offload_update(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw);
