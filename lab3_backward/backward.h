/* backward.h -- lab 3: the backward hooks, the reduction, and the parts of the end of a step. */
#pragma once
#include "lab3_backward/reducer.h"

typedef enum sharding_strategy {
    SHARDING_FULL,
    SHARDING_GRAD_OP,
    SHARDING_NONE,
    SHARDING_HYBRID
} sharding_strategy;

/* ---- provided -------------------------------------------------------------------------------- */
/* full_grad_alloc -- allocate u's full_grad and bind the gradient views. A unit that is not marked
 * visited gets zeros everywhere. A visited unit gets zeros only where no layer will write (gaps and
 * padding); layers overwrite the rest. FSDP_ESTATE: full_grad is allocated already. */
fsdp_status full_grad_alloc(reducer *r, int u);
/* full_grad_free -- free u's full_grad in order of the compute stream. Set it and the gradient
 * views to NULL, so that nobody adds to freed memory. */
void full_grad_free(reducer *r, int u);
/* grad_finish -- shard_grad = this rank's slice of the sum, from acc; then finish_flat.
 * grad_all_gather -- all_gather_slices, if a shard has replicas. */
fsdp_status grad_finish(reducer *r, int u, float scale);
fsdp_status grad_all_gather(reducer *r, int u);

/* ---- 3.1, 3.2b, 3.6 -------------------------------------------------------------------------- */
/* backward_pre_hook -- before unit u's first layer of backward: unshard_begin and unshard_wait,
 * mark u visited, and give it gradient memory (full_grad_alloc). self is a reducer *, here and
 * below. */
fsdp_status backward_pre_hook(void *self, int u);
/* backward_post_hook -- after unit u's last layer of backward: reshard FIRST, so that the gathered
 * parameters are freed before the reduction takes staging memory; then reduce_begin and
 * reduce_wait. A resident unit keeps its parameters. */
fsdp_status backward_post_hook(void *self, int u);
/* backward_end_hook -- end of a micro-step's backward. A unit that was not visited contributes
 * zeros, because its collective must run on every rank. Wait for every reduction, reshard every
 * unit that is still gathered (unless it is resident), and clear `visited`. */
fsdp_status backward_end_hook(void *self);

/* ---- 3.2a ------------------------------------------------------------------------------------ */
/* reduce_flat -- reduce-scatter u's full_grad on reduce_stream, by its slices, into acc at level
 * r->batch_level; set reducing.
 *   order   after the compute stream's work on it (event `computed`); records `reduced`
 *   moves   (W-1)/W*padded_elems*dtype_bytes(reduce_dtype) sent per rank. The reduce-scatter
 *           rounds to acc.sum_dtype
 *   source  [FSDP §3.2.1] [ZeRO §7.2] */
fsdp_status reduce_flat(reducer *r, int u);
/* reduce_flat_wait -- make the compute stream wait for `reduced`, then full_grad_free; clear
 * reducing. */
fsdp_status reduce_flat_wait(reducer *r, int u);

/* ---- 3.3 ------------------------------------------------------------------------------------- */
/* finish_flat -- end of a step for unit u: multiply shard_grad, this rank's slice of the sum, by
 * scale, and set its padding to zero. Padding: elements of the flat array at or after used_elems.
 *   scale  applied once, last: the sum over ranks and micro-steps is a sum over tokens. Call
 *          run.ops->scale(stream, &(scale_args){.x, .factor, .elems}) */
fsdp_status finish_flat(reducer *r, int u, float scale);

/* ---- 3.5a, 3.5b; 3.8, a star: HYBRID, without code of its own -------------------------------- */
/* strategy_fill -- set every unit's stays_after_forward and stays_after_backward. Lab 2 has set
 * them for FULL. HYBRID gathers in shard groups; reductions run over the world, then 3.5b.
 *                 stays after forward  stays after backward
 *   FULL, HYBRID  root only            no       (they differ only in their groups)
 *   GRAD_OP       yes                  no
 *   NONE          yes                  yes
 *   source        [FSDP §3.2.2] [ZeRO §7] */
fsdp_status strategy_fill(sharding_strategy sharding, fsdp *f);
/* all_gather_slices -- end of a step with several replicas of a shard: each has reduced one slice
 * of it, and all need the gradient of the whole shard. shard_grad becomes [layout.shard_elems] by
 * an all-gather over mesh.replicate (reduce-scatter + all-gather = all-reduce).
 *   order       the all-gather runs on reduce_stream, after compute (event `computed`); compute
 *               waits for it (event `reduced`)
 *   collective  all replicas of the shard, units in the same order
 *   moves       (R-1)*slice_elems*4 bytes sent per rank */
fsdp_status all_gather_slices(reducer *r, int u);
