/* reducer_setup.h -- lab 3, provided: make a reducer for a strategy; the table of hooks; SGD.
 *
 *   reducer_create -> steps (backward.h) -> reducer_free */
#pragma once
#include "lab3_backward/backward.h"

/* sharding_shard_size -- ranks of a shard group: world_size under FULL and GRAD_OP, 1 under NONE,
 * fsdp_size under HYBRID. fsdp_size is not checked; the other strategies do not read it. */
int sharding_shard_size(sharding_strategy sharding, int world_size, int fsdp_size);

/* reducer_create -- strategy_fill, then make the units that stay after backward resident, then
 * reducer_init. With keeps_for_step all units stay after forward. A companion (lab 2's freeze.h)
 * stays after forward if its unit does. A unit that backward does not use stays only if resident.
 *   f       must outlive the reducer, and must not move
 *   errors  FSDP_EINVAL: the shard groups of f are not the strategy's; HYBRID with groups of one in
 *           a larger world, which is NONE; a unit is resharded and has no group to gather it from.
 *           Also errors of strategy_fill, fsdp_make_resident and reducer_init */
fsdp_status reducer_create(fsdp *f, sharding_strategy sharding, reducer *r);
/* reducer_init -- make the buffers and events, for units whose stays_* are set.
 *   errors  FSDP_ENOMEM; nothing is left behind */
fsdp_status reducer_init(fsdp *f, reducer *r);
/* reducer_free -- free everything, after reductions in flight; a zeroed struct is accepted. */
void reducer_free(reducer *r);

/* sgd_step -- the provided update, after grads_finish: shard -= lr * shard_grad, unit by unit, on
 * the compute stream. No norm, no clipping, no decay. */
fsdp_status sgd_step(reducer *r, float lr);

/* reducer_begin_micro -- note whether reductions wait for a later micro-step, and whether units
 * stay gathered until then; near_drop if a step begins (a = 0). self is a reducer *. */
fsdp_status reducer_begin_micro(void *self, int a, int n_micro, bool training);
/* reducer_leave_forward -- called before u's forward_post_hook: near_keep of u's parts (lab 2's
 * freeze.h), then forward_post_hook of the companion. */
fsdp_status reducer_leave_forward(reducer *r, int u);
/* fsdp_backward_hooks -- the table of a training pass without overlap: lab 2's forward hooks and
 * the hooks of backward.h; self is r. */
unit_hooks fsdp_backward_hooks(reducer *r);

/* grad_views_bind -- point views.grads[p] into full_grad, by slot, or to NULL if u has no gradient
 * memory. */
void grad_views_bind(reducer *r, int u);
