/* backward.h -- lab 3: gradients. Gather again, compute, give the parameters back, reduce-scatter.
 *
 *   reducer_create
 *   zero_grad
 *     per micro-step:
 *       units in reverse:             backward_pre_hook  (compute)  backward_post_hook
 *       once:                         backward_end_hook
 *   grads_finish                      shard_grad is ready for the optimizer
 *   reducer_free
 *
 * Owner's table. full_grad [padded_elems]: this rank's gradient of one micro-step, from pre to the
 * end of the reduction. acc: running sum over the micro-steps of a step, of this rank's world slice
 * (padded_elems / W): a reduction is over all ranks, whoever shares parameters with whom.
 * shard_grad: the finished gradient, from grads_finish to the next zero_grad. It is the shard's:
 * the world slice itself when every rank has a shard of its own, else the slices of the replicas
 * joined. [FSDP §3.2] [ZeRO §5.2] */
#pragma once
#include "lab2_forward/fsdp.h"

typedef enum sharding_strategy {
    SHARDING_FULL,
    SHARDING_GRAD_OP,
    SHARDING_NONE,
    SHARDING_HYBRID
} sharding_strategy;

/* sharding_shard_size -- ranks of a shard group: world_size under FULL and GRAD_OP, 1 under NONE,
 * fsdp_size under HYBRID (unchecked; the others do not read it). */
int sharding_shard_size(sharding_strategy sharding, int world_size, int fsdp_size);

/* What one reduction of a unit delivers: the gradient of a range of its flat array. Buffer 0 is the
 * whole array. A tied parameter whose second use is summed apart (reducer_setup.c) has a buffer of
 * its own. */
typedef struct grad_buffer {
    int param;    /* -1: the whole flat array; else the tied (second) parameter's global index */
    size_t begin; /* first element in the flat array */
    size_t elems; /* length of the unreduced gradient */
    float *full_grad;   /* [elems] MEM_GRADS_FULL, owned between pre hook and end of reduction */
    comm_slice *slices; /* [W] the range of it that each rank keeps: its world slice */
    size_t slice_begin; /* where this rank's range starts in its world slice */
    grad_acc acc;
} grad_buffer;

enum { UNIT_MAX_BUFFERS = 2 };

typedef struct unit_grad {
    int n_buffers;
    grad_buffer buffers[UNIT_MAX_BUFFERS];
    float *shard_grad; /* grad_finish: [slices.shard_elems]; grads_finish: [layout.shard_elems] */
    event *computed;   /* compute stream: full_grad is complete */
    event *reduced;    /* reduce_stream: full_grad may go */
    bool reducing;     /* between reduce_begin and reduce_wait */
    bool visited;      /* its hooks fired in this micro-step */
} unit_grad;

/* DDP's word for what collects the gradients of a backward pass and sums them over ranks. */
typedef struct reducer {
    fsdp *f;
    int batch_level;  /* of the sum's tree: where a rank's micro-batch is one node */
    unit_grad *grads; /* [n_units] */
} reducer;

/* reducer_create -- fills the units' stays_* by strategy_fill, makes resident what stays after
 * backward, then reducer_init. f must outlive it and must not move.
 *   errors  FSDP_EINVAL: the shard groups of f are not those of the strategy; HYBRID with groups
 *           of one in a larger world, which is NONE; a unit that is resharded without a group to
 *           gather it from. Those of strategy_fill, fsdp_make_resident and reducer_init */
fsdp_status reducer_create(fsdp *f, sharding_strategy sharding, reducer *r);
/* reducer_init -- buffers and events, for units whose stays_* are settled.
 *   errors  FSDP_ENOMEM; nothing is left behind */
fsdp_status reducer_init(fsdp *f, reducer *r);
void reducer_free(reducer *r); /* a zeroed struct is accepted */

/* ---- 3.1 ------------------------------------------------------------------------------------- */
/* backward_pre_hook -- before the first backward layer of u (self: reducer *): gather again
 * what was resharded (begin, wait), mark the unit visited, and give it gradient memory
 * (full_grad_alloc) unless it is frozen. */
fsdp_status backward_pre_hook(void *self, int u);
/* full_grad_alloc -- provided: allocate full_grad of every buffer of u, bind the gradient views. A
 * unit that is not marked visited gets zeros. One that is gets them only where no layer will write
 * (gaps, padding), for the layers overwrite the rest. */
fsdp_status full_grad_alloc(reducer *r, int u);
/* grad_views_bind -- provided: views.grads[p] into full_grad, by slot; NULL when the parameter is
 * frozen or u has no gradient memory. */
void grad_views_bind(reducer *r, int u);

/* ---- 3.2 ------------------------------------------------------------------------------------- */
/* reduce_begin -- for every buffer of u: reduce-scatter full_grad into acc over reduce_group on
 * reduce_stream (node of r->batch_level), after the compute stream's work on it; record `reduced`.
 *   owner       full_grad belongs to the collective until reduce_wait
 *   collective  all ranks of the world, units in the same order
 *   moves       (W-1)*slice_elems*dtype_bytes(reduce_dtype) sent per rank for buffer 0, for another
 *               one what the other ranks keep of it. The reduce-scatter rounds what it takes when
 *               acc.sum_dtype is bf16
 *   errors      FSDP_ESTATE: u is reducing already, or has no gradient memory
 *   source      [FSDP §3.2.1] [ZeRO §7.2] */
fsdp_status reduce_begin(reducer *r, int u);
/* reduce_wait -- the compute stream waits for `reduced`; then full_grad is freed on it and the
 * gradient views become NULL. No-op when u is not reducing. */
fsdp_status reduce_wait(reducer *r, int u);
/* backward_post_hook -- after the last backward layer of u: reshard FIRST (the gathered parameters'
 * memory is free before the reduction takes staging), then begin and wait. A resident unit keeps
 * its parameters, a frozen one is not reduced. */
fsdp_status backward_post_hook(void *self, int u);

/* ---- 3.3 ------------------------------------------------------------------------------------- */
/* grad_finish -- end of a step for unit u: shard_grad = acc's sum (plus the other buffers' at their
 * range, added last), times scale (once: the sum over ranks and micro-steps is a sum over tokens),
 * zero in the padding. All of it on this rank's world slice, elements slice*slice_elems ... of the
 * flat array; elements at or past slices.used_elems are padding. */
fsdp_status grad_finish(reducer *r, int u, float scale);

/* ---- 3.4 ------------------------------------------------------------------------------------- */
/* zero_grad -- forget the gradients of the last step: free shard_grad. Accumulators must be empty.
 *   errors  FSDP_ESTATE: a step was left unfinished */
fsdp_status zero_grad(reducer *r);
/* grads_finish -- grad_finish, then grad_all_gather, of every unit that is not frozen. */
fsdp_status grads_finish(reducer *r, float scale);

/* ---- 3.5 ------------------------------------------------------------------------------------- */
/* strategy_fill -- which units stay gathered: every unit's stays_after_forward and
 * stays_after_backward. Lab 2 has filled in FULL's rule.
 *                 after forward        after backward
 *   FULL          root only            no
 *   GRAD_OP       yes                  no
 *   NONE          yes                  yes
 *   HYBRID        as FULL: it differs in its groups alone
 *   source  [FSDP §3.2.2] [ZeRO §7] */
fsdp_status strategy_fill(sharding_strategy sharding, fsdp *f);
/* grad_all_gather -- end of a step, where several replicas hold a shard: each has reduced a slice
 * of it, and needs the whole gradient of the shard. shard_grad becomes [layout.shard_elems] by an
 * all-gather over mesh.replicate (reduce-scatter + all-gather = all-reduce). With one replica the
 * slice is the shard: nothing to do.
 *   order       on reduce_stream, after compute; the compute stream waits for it
 *   collective  all replicas of the shard, units in the same order
 *   moves       (R-1)*slice_elems*4 bytes sent per rank */
fsdp_status grad_all_gather(reducer *r, int u);

/* ---- 3.6 ------------------------------------------------------------------------------------- */
/* backward_end_hook -- end of a micro-step's backward: a unit that was not visited and is not
 * frozen contributes zeros (its collective runs on every rank all the same); all reductions are
 * waited for; what is still gathered is resharded unless it is resident; `visited` is cleared. */
fsdp_status backward_end_hook(void *self);

/* fsdp_backward_hooks -- the table of a training pass without overlap: lab 2's forward hooks, and
 * the hooks above. self is r. */
unit_hooks fsdp_backward_hooks(reducer *r);

/* ---- 3.7 integrates, with the provided SGD: p -= lr * grad on the shard. --------------------- */
fsdp_status sgd_step(reducer *r, float lr, float weight_decay, const float *grad_coef);
