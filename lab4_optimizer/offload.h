/* offload.h -- lab 4, a star: updates of arrays that live in host memory (lab 2's host_state.h).
 *
 *   --optimizer-offload  config.states: the optimizer's state arrays are on the host between steps
 *   --cpu-offload        config.shards: parameter shards and gradients are too
 *
 * The device updates pieces of a shard, with the same kernels. An update treats each element alone,
 * so the bits do not depend on where a piece begins. */
#pragma once
#include "lab2_forward/host_state.h"
#include "lab4_optimizer/optimizer.h"

/* Elements of unit u's shard from `begin` on: their number (arrays.elems) and their arrays. */
typedef struct update_part {
    int u;
    size_t begin;
    optim_part arrays;
} update_part;

/* ---- 4.7, a star: unscored ------------------------------------------------------------------- */
/* offload_update_part -- update part, whose arrays live on the host. Take the next piece of the
 * ring (offload_next, in lab 2's host_state.h); offload_bring; let the compute stream wait for the
 * uploads (offload_order); update_run; let `down` wait for the update; offload_take; record the
 * piece's `used` on `down`. So the copies of one piece run while the device updates the other. The
 * host never waits, and uploads wait for updates only through `used`.
 *   part  u, begin and arrays.elems are set */
fsdp_status offload_update_part(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw,
                                update_part *part);
/* offload_squares -- add the squares of unit u's ranges to *o->norm_sum, on compute. */
fsdp_status offload_squares(fsdp_optimizer *o, int u);
/* offload_norm -- do what grads_finish and grad_norm do, but unit by unit, so that few gradients
 * are on the device at a time: for each unit that is not frozen grad_finish, grad_all_gather,
 * offload_squares and grad_park (lab3_backward/grad_offload.h). Then one all-reduce over
 * norm_group, which is not NULL here, with grad_norm's streams and events. Only then is the norm
 * known, so the update is a second pass. */
fsdp_status offload_norm(fsdp_optimizer *o, float grad_scale);
/* offload_step -- optimizer_step for shards on the host: offload_norm, clip_coef, a copy of
 * o->norm to norm on compute, optimizer_update. */
fsdp_status offload_step(fsdp_optimizer *o, const step_scalars *sc, adamw_fn adamw, float *norm);

/* ---- provided -------------------------------------------------------------------------------- */
/* offload_arrays -- how many arrays of a shard an update must upload. */
size_t offload_arrays(const fsdp_optimizer *o);
/* update_part_point -- point part at the arrays of its elements, wherever they live, and set the
 * device's scope (device_set_scope) to the name of its unit. */
void update_part_point(const fsdp_optimizer *o, update_part *part);
/* offload_bring -- update_part_point, then upload the arrays that live on the host into p, in order
 * of `up`, and point part at the copies. offload_take -- download what the update has written, in
 * order of `down`. */
fsdp_status offload_bring(fsdp_optimizer *o, const offload_piece *p, update_part *part);
fsdp_status offload_take(fsdp_optimizer *o, const update_part *part);
/* update_run -- (update.c) update those elements of `whole` that are in the unit's ranges. */
fsdp_status update_run(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw,
                       const update_part *whole);
/* update_shards -- (update.c) update all shards, if all arrays are on the device. */
fsdp_status update_shards(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw);
/* offload_update -- offload_update_part of every piece of every unit that is not frozen.
 *   order  uploads start after earlier downloads: the last step's, and parked gradients. Later
 *          work on compute and `up` starts after the last download */
fsdp_status offload_update(fsdp_optimizer *o, const optim_scalars *scalars, adamw_fn adamw);
