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
 * Who owns what [FSDP §3.2] [ZeRO §5.2]:
 *   full_grad   [padded_elems] this rank's gradient of one micro-step; allocated from the pre hook
 *               to the end of the reduction
 *   acc         the running sum, over the micro-steps of a step, of this rank's world slice
 *               (padded_elems / W): every reduction is over all ranks, however few of them share
 *               the parameters
 *   shard_grad  the finished gradient of this rank's shard, from grads_finish to the next
 *               zero_grad. With one replica the shard is the world slice; with more it is the
 *               slices of all replicas joined */
#pragma once
#include "lab2_forward/fsdp.h"

typedef enum sharding_strategy {
    SHARDING_FULL,
    SHARDING_GRAD_OP,
    SHARDING_NONE,
    SHARDING_HYBRID
} sharding_strategy;

/* sharding_shard_size -- ranks of a shard group: world_size under FULL and GRAD_OP, 1 under NONE,
 * fsdp_size under HYBRID. fsdp_size is not checked, and not read by the others. */
int sharding_shard_size(sharding_strategy sharding, int world_size, int fsdp_size);

/* What one reduction of a unit delivers: the gradient of a range of its flat array. Buffer 0 is the
 * whole array. In canonical mode a tied parameter's second use has a buffer of its own, because it
 * is summed apart (reducer_setup.c). */
typedef struct grad_buffer {
    int param;    /* -1: the whole flat array; else global index of the tied (second) parameter */
    size_t begin; /* first element in the flat array */
    size_t elems; /* length of the unreduced gradient */
    float *full_grad;   /* [elems] MEM_GRADS_FULL, owned from pre hook to end of reduction */
    comm_slice *slices; /* [W] the part of the range that each rank keeps: its world slice's */
    size_t slice_begin; /* where this rank's part starts in its world slice */
    grad_acc acc;
} grad_buffer;

enum { UNIT_MAX_BUFFERS = 2 };

typedef struct unit_grad {
    int n_buffers;
    grad_buffer buffers[UNIT_MAX_BUFFERS];
    float *shard_grad; /* [slices.shard_elems], after grads_finish [layout.shard_elems] */
    event *computed;   /* recorded on compute: full_grad is complete */
    event *reduced;    /* recorded on reduce_stream: full_grad may be freed */
    bool reducing;     /* between reduce_begin and reduce_wait */
    bool visited;      /* its pre hook has fired in this micro-step */
} unit_grad;

/* Collects the gradients of a backward pass and sums them over ranks. The name is DDP's. */
typedef struct reducer {
    fsdp *f;
    int batch_level;  /* level of the sum's tree at which a rank's micro-batch is one node */
    unit_grad *grads; /* [n_units] */
} reducer;

/* reducer_create -- set the units' stays_* by strategy_fill, make resident those that stay after
 * backward, then reducer_init.
 *   f       must outlive the reducer, and must not move
 *   errors  FSDP_EINVAL: the shard groups of f are not the strategy's; HYBRID with groups of one in
 *           a larger world, which is NONE; a unit is resharded and has no group to gather it from.
 *           Those of strategy_fill, fsdp_make_resident and reducer_init */
fsdp_status reducer_create(fsdp *f, sharding_strategy sharding, reducer *r);
/* reducer_init -- make the buffers and events, for units whose stays_* are settled.
 *   errors  FSDP_ENOMEM; nothing is left behind */
fsdp_status reducer_init(fsdp *f, reducer *r);
/* reducer_free -- free everything, after reductions in flight; a zeroed struct is accepted. */
void reducer_free(reducer *r);

/* ---- 3.1 ------------------------------------------------------------------------------------- */
/* backward_pre_hook -- before unit u's first layer of backward: unshard_begin and unshard_wait,
 * mark u visited and, unless it is frozen, give it gradient memory (full_grad_alloc). self is a
 * reducer *. */
fsdp_status backward_pre_hook(void *self, int u);
/* full_grad_alloc -- provided: allocate full_grad of every buffer of u and bind the gradient views.
 * A unit that is not marked visited gets zeros everywhere. A visited one gets zeros only where no
 * layer will write (gaps, padding, frozen parameters), because the layers overwrite the rest. */
fsdp_status full_grad_alloc(reducer *r, int u);
/* grad_views_bind -- provided: point views.grads[p] into full_grad, by slot. A view is NULL if its
 * parameter is frozen or u has no gradient memory. */
void grad_views_bind(reducer *r, int u);

/* ---- 3.2 ------------------------------------------------------------------------------------- */
/* reduce_begin -- reduce-scatter every buffer of u on reduce_stream: full_grad, by the buffer's
 * slices, into its acc at level r->batch_level.
 *   order       after the compute stream's work on it (event `computed`); records `reduced`
 *   owner       full_grad belongs to the collective until reduce_wait
 *   collective  all ranks of reduce_group (the world), units in the same order
 *   moves       (W-1)*slice_elems*dtype_bytes(reduce_dtype) sent per rank for buffer 0; for another
 *               buffer, what the other ranks keep of it. The reduce-scatter itself rounds to
 *               acc.sum_dtype
 *   errors      FSDP_ESTATE: u is reducing already, or has no gradient memory
 *   source      [FSDP §3.2.1] [ZeRO §7.2] */
fsdp_status reduce_begin(reducer *r, int u);
/* reduce_wait -- make the compute stream wait for `reduced`, free full_grad on it, and set the
 * gradient views to NULL. No-op unless u is reducing. */
fsdp_status reduce_wait(reducer *r, int u);
/* backward_post_hook -- after unit u's last layer of backward: reshard FIRST, so that the gathered
 * parameters are freed before the reduction takes staging memory; then reduce_begin and
 * reduce_wait. A resident unit keeps its parameters. A frozen one is not reduced. */
fsdp_status backward_post_hook(void *self, int u);

/* ---- 3.3 ------------------------------------------------------------------------------------- */
/* grad_finish -- end of a step for unit u: shard_grad = scale * the sum in acc, with zero padding.
 *   scale       applied once, last: the sum over ranks and micro-steps is a sum over tokens
 *   buffers     the sums of buffers 1 and up are added before that, at their slice_begin
 *   shard_grad  this rank's world slice: elements mesh_slice*slice_elems ... of the flat array;
 *               those at or past slices.used_elems are padding */
fsdp_status grad_finish(reducer *r, int u, float scale);

/* ---- 3.4 ------------------------------------------------------------------------------------- */
/* zero_grad -- forget the gradients of the last step: free shard_grad.
 *   errors  FSDP_ESTATE: an accumulator still holds gradients, so a step was left unfinished */
fsdp_status zero_grad(reducer *r);
/* grads_finish -- grad_finish, then grad_all_gather, for every unit that is not frozen. */
fsdp_status grads_finish(reducer *r, float scale);

/* ---- 3.5 ------------------------------------------------------------------------------------- */
/* strategy_fill -- set every unit's stays_after_forward and stays_after_backward. Lab 2 has set
 * them for FULL.
 *                 stays after forward  stays after backward
 *   FULL          root only            no
 *   GRAD_OP       yes                  no
 *   NONE          yes                  yes
 *   HYBRID        as FULL: it differs only in its groups
 *   source        [FSDP §3.2.2] [ZeRO §7] */
fsdp_status strategy_fill(sharding_strategy sharding, fsdp *f);
/* grad_all_gather -- end of a step with several replicas of a shard: each has reduced one slice of
 * it, and all need the gradient of the whole shard. shard_grad becomes [layout.shard_elems] by an
 * all-gather over mesh.replicate (reduce-scatter + all-gather = all-reduce). With one replica the
 * slice is the shard, and nothing happens.
 *   order       the all-gather runs on reduce_stream, after compute (event `computed`); compute
 *               waits for it (event `reduced`)
 *   collective  all replicas of the shard, units in the same order
 *   moves       (R-1)*slice_elems*4 bytes sent per rank */
fsdp_status grad_all_gather(reducer *r, int u);

/* ---- 3.6 ------------------------------------------------------------------------------------- */
/* backward_end_hook -- end of a micro-step's backward. A unit that was not visited and is not
 * frozen contributes zeros, because its collective must run on every rank. Every reduction is
 * waited for, every unit that is still gathered is resharded (unless it is resident), and `visited`
 * is cleared. */
fsdp_status backward_end_hook(void *self);

/* fsdp_backward_hooks -- the table of a training pass without overlap: lab 2's forward hooks and
 * the hooks above; self is r. */
unit_hooks fsdp_backward_hooks(reducer *r);

/* ---- 3.7 integrates, with the provided SGD: p -= lr * grad on the shard. --------------------- */
/* sgd_step -- provided: one SGD step on every shard, from shard_grad * *grad_coef (NULL: 1). */
fsdp_status sgd_step(reducer *r, float lr, float weight_decay, const float *grad_coef);
