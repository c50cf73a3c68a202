/* forward.h -- lab 2: the forward hooks, and the parts of unshard_begin and unshard_wait. */
#pragma once
#include "lab2_forward/fsdp.h"

/* full_at -- provided: the address of element number `elems` of u's gathered array. */
void *full_at(const fsdp *f, int u, size_t elems);

/* ---- 2.2 ------------------------------------------------------------------------------------- */
/* views_bind -- for every slot of u, point views.params[p] at full_at(offset): for p = slot.param,
 * and for every p that shares its storage: run.m->params[slot.param].next_use, and so on to 0. */
fsdp_status views_bind(fsdp *f, int u);

/* ---- 2.4 ------------------------------------------------------------------------------------- */
/* forward_pre_hook -- before a unit's first layer: unshard_begin, then unshard_wait. self is an
 * fsdp *. Training uses both forward hooks, too. */
fsdp_status forward_pre_hook(void *self, int u);
/* forward_post_hook -- after a unit's last layer: reshard, unless the unit stays_after_forward.
 * Under FULL only the root does, because backward begins with the root's head. */
fsdp_status forward_post_hook(void *self, int u);
/* fsdp_forward_hooks -- the table of hooks of a forward pass. */
unit_hooks fsdp_forward_hooks(fsdp *f);

/* ---- 2.6, a star: unscored. (2.5 evaluates the whole model on W ranks with these hooks.) ----- */
/* shard_cast -- copy u's master shard to slice [shard_elems] of param_dtype, rounded for bf16 by
 * run.ops->cast(stream, &(cast_args){...}), see common/sum/sum_kernels.h.
 *   order  stream-ordered on gather_stream */
fsdp_status shard_cast(fsdp *f, int u, void *slice);
