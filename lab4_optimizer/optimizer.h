/* optimizer.h -- lab 4: AdamW on shards, one norm for all ranks, checkpoints for any world size.
 *
 *   optimizer_create -> per step: optimizer_step -> optimizer_free
 *   ckpt_save / ckpt_load at any point between steps
 *
 * Each rank updates its shard only; moments are [shard_elems], so optimizer state is N/W per rank.
 * The next unshard carries the new values to everybody. [ZeRO §5.1] [AdamW alg. 2] */
#pragma once
#include "common/train/engine.h"
#include "lab3_backward/backward.h"

/* A run of this rank's elements of one parameter: what AdamW and the norm walk over. */
typedef struct decay_range {
    size_t begin, elems; /* in the shard */
    bool decay;          /* weight decay applies */
} decay_range;

typedef struct unit_optim {
    float *m, *v;        /* [shard_elems] MEM_OPTIMIZER, 0 at first; NULL for sgd, frozen units */
    decay_range *ranges; /* of the shard */
    int n_ranges;
} unit_optim;

typedef struct fsdp_optimizer {
    reducer *r;
    unit_optim *units;   /* [n_units] */
    rsum *norm_sum;      /* device, [1] */
    float *norm, *coef;  /* device, [1] each */
    stream *norm_stream; /* the norm's collective runs here; in lab 4 the compute stream */
    comm *norm_group;    /* the shard group; NULL: a rank has the whole gradient already */
    event *squared;      /* compute stream: this rank's squares are in norm_sum */
    event *added;        /* norm_stream: norm_sum is that of the whole model */
} fsdp_optimizer;

/* optimizer_create -- moments (AdamW) and ranges of every unit; the kind is f->run.optimizer. The
 * reducer must outlive it and must not move.
 *   errors  FSDP_ENOMEM, those of decay_ranges; nothing is left behind */
fsdp_status optimizer_create(reducer *r, fsdp_optimizer *o);
void optimizer_free(fsdp_optimizer *o); /* a zeroed struct is accepted */

/* ---- 4.1 ------------------------------------------------------------------------------------- */
/* adamw_shard -- one AdamW step over a->elems elements of host arrays. The CPU calls it for chunks
 * of a shard.
 *   param, m, v  [elems], updated
 *   grad         [elems]; multiplied by *a->grad_coef, by 1 when that is NULL
 * The formula stands at adamw_args in common/ops/ops.h. */
fsdp_status adamw_shard(const adamw_args *a);

/* ---- 4.2 ------------------------------------------------------------------------------------- */
/* decay_ranges -- cut rank's shard into runs with and without weight decay
 * (params[slot.param].decay), one per piece, ascending. Alignment gaps, padding and frozen
 * parameters belong to no range.
 *   out [layout->n_slots] */
fsdp_status decay_ranges(const flat_layout *layout, const param_spec *params, int rank,
                         decay_range *out, int *n_ranges);

/* ---- 4.3 ------------------------------------------------------------------------------------- */
/* grad_norm -- *o->norm_sum = exact sum of squares of all gradients of the model: every rank adds
 * its own pieces (not gaps, not padding), then norm_group adds the bins as integers. Replicas hold
 * the same gradients, so each shard group finds the norm of the whole model.
 *   collective  one all-reduce of RSUM_BINS i64 over norm_group, none when that is NULL
 *   order       on the compute stream; the all-reduce on norm_stream, between `squared`, which it
 *               waits for, and `added`, which the compute stream waits for */
fsdp_status grad_norm(fsdp_optimizer *o);

/* ---- 4.4 ------------------------------------------------------------------------------------- */
/* optimizer_step -- the order of a step: grads_finish(scale), grad_norm, clip coefficient
 * (ops->clip_coef; the same on every rank), update of every unit's shard, gradients freed at the
 * next zero_grad.
 *   norm  [1] device: the norm before clipping */
fsdp_status optimizer_step(fsdp_optimizer *o, const step_scalars *sc, float *norm);

/* ---- 4.5 ------------------------------------------------------------------------------------- */
/* ckpt_save -- collective: DIR/rank-RRRRR.ckpt per rank, then DIR/meta.json by rank 0. A rank's
 * file holds pieces (parameter, begin, elems) of parameter, m and v, those of its world slice:
 * every element is written once, padding never. Everything goes to DIR.tmp, is fsynced, then
 * renamed; an old DIR stays whole until then.
 *   errors  FSDP_EIO, FSDP_ENOMEM */
fsdp_status ckpt_save(fsdp_optimizer *o, const char *dir, int64_t next_step);
/* ckpt_load -- collective: any number of files onto any world size. Every element must come exactly
 * once.
 *   errors  FSDP_EIO, FSDP_EINVAL (another model, missing or damaged file, with its name) */
fsdp_status ckpt_load(fsdp_optimizer *o, const char *dir, int64_t *next_step);
/* ckpt_exists -- dir, or what a save that was cut short left of it, holds a checkpoint. */
bool ckpt_exists(const char *dir);

/* ckpt_pack / ckpt_unpack -- what the learner writes: between a shard and a list of pieces.
 * ckpt_pack: copies the pieces of rank's shard into values (host), one behind the other, and fills
 * the index. ckpt_unpack: puts those parts of foreign pieces that fall into rank's shard in place;
 * *n_elems += how many. */
typedef struct ckpt_piece {
    int32_t param;
    uint64_t begin, elems; /* inside the parameter */
} ckpt_piece;
fsdp_status ckpt_pack(const flat_layout *layout, int rank, const float *shard, ckpt_piece *pieces,
                      int *n_pieces, float *values);
fsdp_status ckpt_unpack(const flat_layout *layout, int rank, const ckpt_piece *pieces, int n_pieces,
                        const float *values, float *shard, size_t *n_elems);

/* ---- 4.6 integrates: trainer/engine.h puts labs 1 to 4 together. ----------------------------- */
