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

/* What one reduction reads and writes. */
typedef struct grad_buffer {
    size_t begin, elems; /* range of the flat array: all, or a tied parameter (second_use.h) */
    float *full_grad;    /* [elems] MEM_GRADS_FULL, owned from pre hook to end of reduction */
    comm_slice *slices;  /* [ranks of reduce_group] the slice that each rank keeps */
    grad_acc acc, local; /* acc: this rank's slice; local, provided: full_grads (no_sync.h) */
} grad_buffer;

typedef struct unit_grad {
    grad_buffer buffer;
    struct second_use *second; /* provided: a tied parameter's (second_use.h); NULL: none */
    comm_slice slice;          /* this rank's world slice of the flat array */
    float *shard_grad;         /* [slice.elems], after grads_finish [layout.shard_elems] */
    event *computed;           /* recorded on compute: full_grad is complete */
    event *reduced;            /* recorded on reduce_stream: full_grad may be freed */
    bool reducing;             /* between reduce_begin and reduce_wait */
    bool visited;              /* its pre hook has fired in this micro-step */
} unit_grad;

typedef struct reducer { /* named as in PyTorch's DDP */
    fsdp *f;
    int batch_level;  /* tree level of the node that a rank contributes to one reduction */
    unit_grad *grads; /* [n_units] */
} reducer;

/* ---- 3.2a ------------------------------------------------------------------------------------ */
/* reduce_begin -- reduce-scatter u's full_grad on reduce_stream, by its slices, into acc at level
 * r->batch_level.
 *   order       after the compute stream's work on it (event `computed`); records `reduced`
 *   owner       full_grad belongs to the collective until reduce_wait
 *   collective  all ranks of reduce_group (the world), units in the same order
 *   moves       (W-1)/W*padded_elems*dtype_bytes(reduce_dtype) sent per rank. The reduce-scatter
 *               rounds to acc.sum_dtype
 *   errors      FSDP_ESTATE: u is reducing already, or has no gradient memory
 *   source      [FSDP §3.2.1] [ZeRO §7.2] */
fsdp_status reduce_begin(reducer *r, int u);
/* reduce_wait -- make the compute stream wait for `reduced`, then full_grad_free. No-op unless u is
 * reducing. */
fsdp_status reduce_wait(reducer *r, int u);

/* ---- 3.4 ------------------------------------------------------------------------------------- */
/* zero_grad -- free shard_grad, the gradients of the last step.
 *   errors  FSDP_ESTATE: an accumulator still holds gradients of an unfinished step */
fsdp_status zero_grad(reducer *r);
/* grads_finish -- grad_finish, then grad_all_gather (backward.h), for every unit. Then shard_grad
 * holds the mean gradient. */
fsdp_status grads_finish(reducer *r, float scale);
