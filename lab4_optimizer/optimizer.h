/* optimizer.h -- lab 4: AdamW on shards, and one norm for all ranks.
 *
 *   optimizer_create -> per step: optimizer_step -> optimizer_free
 *
 * Each rank updates only its shard. The moments are [shard_elems] too, so optimizer state is N/W
 * per rank. The next unshard carries the new values to every rank. [ZeRO §5.1] [AdamW alg. 2] */
#pragma once
#include "common/steps/engine.h"
#include "lab3_backward/backward.h"

/* A run of this rank's elements of one parameter: what AdamW and the norm walk over. */
typedef struct decay_range {
    size_t begin, elems; /* in the shard */
    bool decay;          /* weight decay applies */
} decay_range;

typedef struct unit_optim {
    float *m, *v; /* [shard_elems] MEM_OPTIMIZER, zero at first; NULL for SGD and frozen units */
    decay_range *ranges; /* of the shard, ascending */
    int n_ranges;
} unit_optim;

typedef struct fsdp_optimizer {
    reducer *r;
    unit_optim *units;   /* [n_units] */
    rsum *norm_sum;      /* device, [1] */
    float *norm, *coef;  /* device, [1] each */
    stream *norm_stream; /* where the norm's collective runs: lab 2's comm_stream */
    comm *norm_group;    /* the shard group; NULL: every rank has the whole gradient */
    event *squared;      /* recorded on compute: norm_sum holds this rank's squares */
    event *added;        /* recorded on norm_stream: norm_sum is the whole model's */
} fsdp_optimizer;

/* optimizer_create -- make the ranges and, if f->run.optimizer is AdamW, the moments of every unit.
 *   r       must outlive the optimizer, and must not move
 *   errors  FSDP_ENOMEM, those of decay_ranges; nothing is left behind */
fsdp_status optimizer_create(reducer *r, fsdp_optimizer *o);
/* optimizer_free -- free everything; a zeroed struct is accepted. */
void optimizer_free(fsdp_optimizer *o);

/* ---- 4.1 ------------------------------------------------------------------------------------- */
/* adamw_shard -- one AdamW step over a->elems elements of host arrays. On the CPU it is called for
 * chunks of a shard, from several threads.
 *   param, m, v  [elems], updated
 *   grad         [elems], multiplied by *a->grad_coef, or by 1 if that is NULL
 *   source       [AdamW alg. 2]; the formula is at adamw_args in common/ops/ops.h */
fsdp_status adamw_shard(const adamw_args *a);

/* ---- 4.2 ------------------------------------------------------------------------------------- */
/* decay_ranges -- cut rank's shard into runs with and without weight decay, one per piece,
 * ascending. Alignment gaps, padding and frozen parameters belong to no range.
 *   params     indexed by slot.param; params[p].decay says whether p decays
 *   out        [layout->n_slots]
 *   *n_ranges  how many; 0 for a rank that is all padding
 *   errors     FSDP_ENOMEM, and those of flat_intersect */
fsdp_status decay_ranges(const flat_layout *layout, const param_spec *params, int rank,
                         decay_range *out, int *n_ranges);

/* ---- 4.3 ------------------------------------------------------------------------------------- */
/* grad_norm -- *o->norm_sum = the exact sum of squares of all gradients of the model. Every rank
 * adds the squares of its own pieces (no gaps, no padding), then norm_group adds the bins as
 * integers. Replicas hold the same gradients, so each shard group finds the whole norm.
 *   collective  one all-reduce of RSUM_BINS i64 over norm_group; none if that is NULL
 *   order       on the compute stream. The all-reduce runs on norm_stream, which waits for
 *               `squared`; the compute stream waits for `added` */
fsdp_status grad_norm(fsdp_optimizer *o);

/* ---- 4.4 ------------------------------------------------------------------------------------- */
/* optimizer_step -- one step: grads_finish with sc->grad_scale, grad_norm, the clip coefficient
 * (ops->clip_coef, the same on every rank), and the update of every unit's shard. The next
 * zero_grad frees the gradients.
 *   norm    [1] device: the norm before clipping
 *   source  [ZeRO §5.1] */
fsdp_status optimizer_step(fsdp_optimizer *o, const step_scalars *sc, float *norm);

/* ---- 4.5: checkpoint.h. 4.6 integrates: trainer/fsdp_engine.h joins labs 1 to 4. -------- */
