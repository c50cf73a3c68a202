/* forward.h -- lab 2: the gather of a unit, and the forward hooks. */
#pragma once
#include "lab2_forward/fsdp.h"

/* ---- provided -------------------------------------------------------------------------------- */
/* full_at -- the address of element number `elems` of u's gathered array. */
void *full_at(const fsdp *f, int u, size_t elems);
/* shard_cast -- copy u's master shard to slice [shard_elems] of param_dtype, in order of
 * gather_stream: a copy in fp32, shard_round (2.6) in bf16. */
fsdp_status shard_cast(fsdp *f, int u, void *slice);

/* ---- 2.1 ------------------------------------------------------------------------------------- */
/* gather_flat -- start gathering unit u: allocate full with comm_alloc, put this rank's shard
 * where it belongs (shard_cast to full_at shard_rank*shard_elems), all-gather in place on
 * gather_stream, and record `gathered`. u is SHARDED, and becomes GATHERING.
 *   owner   full belongs to the collective until gather_wait
 *   order   gather_stream already waits for compute's work so far, because the optimizer may still
 *           be writing the shard (lab 5 waits for less: gather_after)
 *   moves   (S-1)*shard_elems*dtype_bytes(param_dtype) sent per rank of a shard group of S
 *   errors  of comm_alloc, shard_cast and comm_all_gather
 *   source  [FSDP §3.2.1] */
fsdp_status gather_flat(fsdp *f, int u);

/* ---- 2.2 ------------------------------------------------------------------------------------- */
/* gather_wait -- make the compute stream wait for `gathered`, then views_bind. u is GATHERING, and
 * becomes GATHERED. */
fsdp_status gather_wait(fsdp *f, int u);
/* views_bind -- for every slot of u, point views.params[p] at full_at(offset): for p = slot.param,
 * and for every p that shares its storage: run.m->params[slot.param].next_use, and so on to 0. */
fsdp_status views_bind(fsdp *f, int u);

/* ---- 2.3 ------------------------------------------------------------------------------------- */
/* unit_drop -- set views.params of u's parameters (param_unit), tied ones too, to NULL; free full.
 * u is GATHERED, and becomes SHARDED.
 *   order  stream-ordered on compute, after the kernels that still read full */
fsdp_status unit_drop(fsdp *f, int u);

/* ---- 2.4 ------------------------------------------------------------------------------------- */
/* forward_pre_hook -- before a unit's first layer: unshard_begin, then unshard_wait. self is an
 * fsdp *. Training uses both forward hooks, too. */
fsdp_status forward_pre_hook(void *self, int u);
/* forward_post_hook -- after a unit's last layer: reshard, unless the unit stays_after_forward.
 * Under FULL only the root does, because backward begins with the root's head. */
fsdp_status forward_post_hook(void *self, int u);

/* ---- 2.6, a star: unscored. (2.5 evaluates the whole model on W ranks with these hooks.) ----- */
/* shard_round -- slice [shard_elems] = u's master shard, rounded to param_dtype by
 * run.ops->cast(gather_stream, &(cast_args){...}), see common/sum/sum_kernels.h. */
fsdp_status shard_round(fsdp *f, int u, void *slice);
