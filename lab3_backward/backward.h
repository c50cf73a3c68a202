/* backward.h -- lab 3: gradients. Gather again, compute, give the parameters back, reduce-scatter.
 *
 *   reducer_create
 *   zero_grad
 *     per micro-step:
 *       units in reverse:             backward_pre_hook  (compute)  backward_post_hook
 *       backward_end_hook
 *   grads_finish                       shard_grad is ready for the optimizer
 *   reducer_free
 *
 * Owner's table. full_grad [padded_elems]: this rank's gradient of one micro-step, from pre to the
 * end of the reduction. acc: running sum of the reduced shards over the micro-steps of a step.
 * shard_grad [shard_elems]: the finished gradient, from grads_finish to the next zero_grad.
 * [FSDP §3.2] [ZeRO §5.2] */
#pragma once
#include "common/train/engine.h"
#include "lab2_forward/fsdp.h"

/* Where one reduction of a unit delivers: a range of its flat array. Place 0 is the whole array. A
 * tied parameter whose second use is summed apart has a place of its own (create.c). */
typedef struct grad_buffer {
    int param;    /* -1: the whole flat array; else the tied (second) parameter's global index */
    size_t begin; /* first element in the flat array */
    size_t elems; /* length of the unreduced gradient */
    float *full_grad;    /* [elems] MEM_GRADS_FULL, owned between pre hook and end of reduction */
    size_t *slice_elems; /* [W] how much of it each rank keeps; NULL: shard_elems each */
    size_t shard_begin;  /* where this rank's slice starts in its shard */
    grad_acc acc;
} grad_buffer;

enum { UNIT_MAX_BUFFERS = 2 };

typedef struct unit_grad {
    int n_buffers;
    grad_buffer buffers[UNIT_MAX_BUFFERS];
    float *shard_grad; /* [shard_elems], SHARDING_NONE: [padded_elems]; set by grads_finish */
    event *computed;   /* compute stream: full_grad is complete */
    event *reduced;    /* communication stream: full_grad may go */
    bool reducing;     /* between reduce_begin and reduce_wait */
    bool visited;      /* its hooks fired in this micro-step */
} unit_grad;

typedef struct reducer {
    fsdp *f;
    grad_acc_mode mode;
    int level;        /* log2 of the sequences per rank and micro-step */
    unit_grad *grads; /* [n_units] */
} reducer;

fsdp_status reducer_create(fsdp *f, grad_acc_mode mode, int level, reducer *b);
void reducer_free(reducer *b); /* a zeroed struct is accepted */

/* ---- 3.1 ------------------------------------------------------------------------------------- */
/* backward_pre_hook -- before the first backward layer of u (self: reducer *): gather again
 * what was resharded (begin, wait), mark the unit visited, give it gradient memory unless it is
 * frozen. */
fsdp_status backward_pre_hook(void *self, int u);
/* Provided. full_grad_alloc: allocate full_grad of every place of u, bind the gradient views. A
 * unit that is not marked visited gets zeros; one that is gets them only where no layer will write
 * (gaps, padding), for the layers overwrite the rest. grad_views_bind: views.grads[p] into
 * full_grad by slot; NULL when frozen or without memory. */
fsdp_status full_grad_alloc(reducer *b, int u);
void grad_views_bind(reducer *b, int u);

/* ---- 3.2 ------------------------------------------------------------------------------------- */
/* reduce_begin -- for every place of u: reduce-scatter full_grad into acc on comm_stream (node of
 * b->level), after the compute stream's work on it; record `reduced`.
 *   moves   (W-1)*shard_elems*dtype_bytes(reduce_dtype) sent per rank and place; the reduce-scatter
 *           rounds what it takes when acc.sum_dtype is bf16
 *   state   FSDP_ESTATE when u is reducing already or has no gradient memory
 *   source  [FSDP §3.2.1] [ZeRO §7.2] */
fsdp_status reduce_begin(reducer *b, int u);
/* reduce_wait -- the compute stream waits for `reduced`, then full_grad is freed. No-op when not
 * reducing. */
fsdp_status reduce_wait(reducer *b, int u);
/* backward_post_hook -- after the last backward layer of u: reshard FIRST (the gathered parameters'
 * memory is free before the reduction takes staging), then begin and wait. SHARDING_NONE keeps the
 * parameters. */
fsdp_status backward_post_hook(void *self, int u);

/* ---- 3.3 ------------------------------------------------------------------------------------- */
/* grad_finish -- end of a step for unit u: shard_grad = acc's sum (plus the other buffers' at their
 * range, added last), times scale (once: the sum over ranks and micro-steps is a sum over tokens),
 * zero in the padding (elements at or past layout.used_elems). */
fsdp_status grad_finish(reducer *b, int u, float scale);

/* ---- 3.4 ------------------------------------------------------------------------------------- */
/* zero_grad -- forget the gradients of the last step: free shard_grad; accumulators must be empty
 * (FSDP_ESTATE: a step was left unfinished). grads_finish -- grad_finish of every unit that is not
 * frozen. */
fsdp_status zero_grad(reducer *b);
fsdp_status grads_finish(reducer *b, float scale);

/* ---- 3.5 ------------------------------------------------------------------------------------- */
/* keep_after_forward / keep_after_backward -- does a unit stay gathered?
 *                 after forward        after backward
 *   FULL          root only            no
 *   GRAD_OP       yes                  no
 *   NONE          yes                  yes                   [FSDP §3.2.2] [ZeRO §7] */
bool keep_after_forward(sharding_strategy sharding, bool is_root);
bool keep_after_backward(sharding_strategy sharding);
/* strategy_post_forward_hook -- lab 2's post hook with the table above in place of its fixed
 * rule. */
fsdp_status strategy_post_forward_hook(void *self, int u);
/* grad_all_gather -- SHARDING_NONE, end of a step: every rank needs the whole gradient; shard_grad
 * becomes [padded_elems] by all-gather (reduce-scatter + all-gather = all-reduce). */
fsdp_status grad_all_gather(reducer *b, int u);

/* ---- 3.6 ------------------------------------------------------------------------------------- */
/* backward_end_hook -- end of a micro-step's backward: a unit that was not visited and is not
 * frozen contributes zeros (its collective runs on every rank all the same); all reductions are
 * waited for; what is still gathered is resharded unless the strategy keeps it; `visited` is
 * cleared. */
fsdp_status backward_end_hook(void *self);

/* The table of a training pass without overlap: lab 2's pre_forward and the hooks above. self:
 * b. */
unit_hooks fsdp_backward_hooks(reducer *b);

/* ---- 3.7 integrates, with the provided SGD: p -= lr * grad on the shard. --------------------- */
fsdp_status sgd_step(reducer *b, float lr, float weight_decay, const float *grad_coef);
