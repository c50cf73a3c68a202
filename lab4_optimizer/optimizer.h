/* optimizer.h -- lab 4: AdamW on shards, and one norm for all ranks. [ZeRO §5.1] [AdamW alg. 2] */
#pragma once
#include "common/ops/optim.h"
#include "common/steps/engine.h"
#include "lab3_backward/reducer.h"

/* decay_range (common/ops/optim.h): a run of this rank's elements of one parameter, its begin in
 * the shard. AdamW and the norm walk over these runs. */
typedef struct unit_optim {
    float *state[OPTIM_MAX_STATES]; /* [shard_elems] MEM_OPTIMIZER: AdamW's m, v; NULL: frozen */
    decay_range *ranges;            /* [n_ranges] of the shard that the norm counts, ascending: all,
                                       but those that another rank counts */
    decay_range *updated;           /* [n_updated] that the optimizer updates: all */
    int n_ranges, n_updated;
} unit_optim;

typedef fsdp_status (*adamw_fn)(const adamw_args *a);
struct optim_scalars;

typedef struct fsdp_optimizer {
    reducer *r; /* r->grads[u].shard_grad: the gradient of unit u's shard */
    const ops *ops;
    stream *compute;
    int n_units;
    unit_optim *units;   /* [n_units] */
    rsum *norm_sum;      /* device, [1]: RSUM_BINS integers in norm_sum->bin */
    float *norm, *coef;  /* device, [1] each */
    stream *norm_stream; /* lab 2's comm_stream: the norm's all-reduce runs here */
    comm *norm_group;    /* the shard group; NULL: every rank has the whole gradient */
    event *squared;      /* recorded on compute: norm_sum holds this rank's squares */
    event *added;        /* recorded on norm_stream: norm_sum is the whole model's */
    /* provided: update_shards or offload_update (offload.h) */
    fsdp_status (*update)(struct fsdp_optimizer *o, const struct optim_scalars *sc, adamw_fn adamw);
} fsdp_optimizer;

/* ---- 4.1 ------------------------------------------------------------------------------------- */
/* adamw_shard -- one AdamW step over a->elems elements of host arrays, by the formula at adamw_args
 * (common/ops/optim.h). On the CPU it is called for chunks of a shard, from several threads.
 *   param, m, v  [elems], updated
 *   grad         [elems], multiplied by *a->grad_coef, or by 1 if that is NULL
 *   source       [AdamW alg. 2] */
fsdp_status adamw_shard(const adamw_args *a);

/* ---- 4.2 ------------------------------------------------------------------------------------- */
/* decay_ranges -- cut rank's shard into runs with and without weight decay, one per piece,
 * ascending. Alignment gaps and padding belong to no range.
 *   params     indexed by slot.param; only params[p].decay is read
 *   out        [layout->n_slots]
 *   *n_ranges  how many; 0 for a rank that is all padding
 *   errors     FSDP_ENOMEM, and errors of flat_intersect */
fsdp_status decay_ranges(const flat_layout *layout, const param_spec *params, int rank,
                         decay_range *out, int *n_ranges);

/* ---- 4.3 ------------------------------------------------------------------------------------- */
/* grad_norm -- *o->norm_sum = the exact sum of squares of all gradients of the model. Every rank
 * adds the squares of its own ranges (ops->sum_squares with a unit's ranges as the table; a unit
 * with n_ranges 0 adds nothing); the all-reduce adds the bins as integers.
 * Replicas hold the same gradients, so each shard group finds the whole norm.
 *   collective  one all-reduce of RSUM_BINS i64 over norm_group; none if that is NULL
 *   order       on the compute stream. The all-reduce runs on norm_stream, which waits for
 *               `squared`; the compute stream waits for `added` */
fsdp_status grad_norm(fsdp_optimizer *o);

/* ---- 4.4 ------------------------------------------------------------------------------------- */
/* optimizer_step -- one step, in this order: grads_finish with sc->grad_scale, which turns sums
 * of gradients into means; grad_norm; o->coef by ops->clip_coef with sc->clip_norm, on the device,
 * so the host never waits for it; optimizer_update. The next zero_grad frees the gradients.
 *   norm    [1] device: a copy of o->norm, the norm before clipping
 *   source  [ZeRO §5.1] */
fsdp_status optimizer_step(fsdp_optimizer *o, const step_scalars *sc, float *norm);
/* optimizer_update -- provided: AdamW (by your adamw_shard on the CPU) or another optimizer on
 * every range of every unit of this rank, from shard_grad times *o->coef. Every optimizer
 * decays only the ranges that decay; for SGD weight decay is 0 unless --weight-decay is given. */
fsdp_status optimizer_update(fsdp_optimizer *o, const step_scalars *sc, adamw_fn adamw);
