/* reducer.h -- lab 3: the reducer collects the gradients of a step and sums them over ranks.
 *
 *   zero_grad -> per micro-step and unit: reduce_begin, reduce_wait -> grads_finish
 *
 * Who owns what [FSDP §3.2] [ZeRO §5.2]:
 *   full_grad   [padded_elems] this rank's gradient of one micro-step; allocated from the pre hook
 *               to the end of the reduction
 *   acc         this rank's slice of the gradient, summed over ranks and the step's micro-steps:
 *               1/W of the unit, whatever the size of the shard group
 *   shard_grad  the finished gradient of this rank's shard, from grads_finish to the next
 *               zero_grad. With one replica per shard, the shard is the slice */
#pragma once
#include "lab2_forward/fsdp.h"
#include "lab3_backward/grad_buffer.h"

typedef struct unit_grad {
    grad_buffer buffer;
    comm_slice slice;             /* this rank's world slice of the flat array */
    float *shard_grad;            /* [slice.elems], after grads_finish [layout.shard_elems] */
    event *computed;              /* recorded on compute: full_grad is complete */
    event *reduced;               /* recorded on reduce_stream: full_grad may be freed */
    bool reducing;                /* between reduce_begin and reduce_wait */
    bool visited;                 /* its pre hook has fired in this micro-step */
    const struct reduce_way *way; /* provided (reduce.h) */
} unit_grad;

typedef struct reducer { /* named as in PyTorch's DDP */
    fsdp *f;
    int batch_level;  /* tree level of the node that a rank contributes to one reduction */
    unit_grad *grads; /* [n_units] */
} reducer;

/* ---- provided: each checks the state and calls a function of yours (backward.h) -------------- */
/* reduce_begin -- start the reduction of u's full_grad into acc, by reduce_flat.
 *   owner       full_grad belongs to the collective until reduce_wait
 *   collective  all ranks of reduce_group (the world), units in the same order
 *   errors      FSDP_ESTATE: u is reducing already, or has no gradient memory */
fsdp_status reduce_begin(reducer *r, int u);
/* reduce_wait -- compute waits for the reduction and full_grad is freed, by reduce_flat_wait. No-op
 * unless u is reducing. */
fsdp_status reduce_wait(reducer *r, int u);

/* ---- 3.4 ------------------------------------------------------------------------------------- */
/* zero_grad -- free shard_grad, the gradients of the last step.
 *   errors  FSDP_ESTATE: an accumulator still holds gradients of an unfinished step */
fsdp_status zero_grad(reducer *r);
/* grads_finish -- grad_finish, then grad_all_gather (backward.h), for every unit. Then shard_grad
 * holds the mean gradient. */
fsdp_status grads_finish(reducer *r, float scale);
