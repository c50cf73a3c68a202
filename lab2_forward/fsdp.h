/* fsdp.h -- lab 2: gather a unit's parameters for as long as it computes, no longer.
 *
 *   fsdp_create -> per unit, per use:  unshard_begin -> unshard_wait -> (compute) -> reshard
 *   -> fsdp_free
 *
 * Owner's table. shard: this rank's master copy in fp32, always there, changed only by the
 * optimizer. full: the gathered flat array, there only between unshard_begin and reshard. Views:
 * pointers into full that the model's layers read; NULL outside that window. With SHARDING_NONE
 * full is the shard itself, for good. [FSDP §3.2] [ZeRO §5.3]
 *
 * With param_dtype = DTYPE_BF16 full holds the masters rounded to bf16, and half the bytes move: a
 * rank casts its shard on the way into full. SHARDING_NONE then has a full beside the shard, cast
 * anew whenever the masters have changed (fsdp_refresh).
 *
 * States of a unit:      unshard_begin          unshard_wait
 *              SHARDED ----------------> GATHERING ------------> GATHERED
 *                 ^------------------------ reshard --------------' */
#pragma once
#include "common/comm/comm.h"
#include "common/model/unit.h"
#include "lab1_flatparam/flat_param.h"

typedef enum unit_state { UNIT_SHARDED, UNIT_GATHERING, UNIT_GATHERED } unit_state;
typedef enum sharding_strategy { SHARDING_FULL, SHARDING_GRAD_OP, SHARDING_NONE } sharding_strategy;

enum { UNIT_ROOT = 0, UNIT_NAME_BYTES = 32 };

typedef struct fsdp_unit {
    int id;
    char name[UNIT_NAME_BYTES]; /* "root", "h.0": the label of its collectives */
    flat_layout layout;         /* slots[i].param: global parameter index */
    bool frozen;                /* all its parameters are frozen */
    float *shard;               /* [shard_elems] MEM_PARAMS_SHARD, owned */
    void *full; /* [padded_elems] of param_dtype, MEM_PARAMS_FULL while not SHARDED, else NULL */
    unit_state state;
    event *gathered; /* recorded on the communication stream by unshard_begin */
    event *consumed; /* recorded on the compute stream: the gather starts after it */
} fsdp_unit;

typedef struct fsdp_config {
    const model *m;
    const ops *ops;
    device *dev;
    comm *comm;
    wrap_policy wrap;
    size_t wrap_min_elems; /* WRAP_SIZE */
    sharding_strategy sharding;
    uint64_t seed;
    dtype param_dtype;  /* of gathered parameters: DTYPE_F32 or DTYPE_BF16 */
    dtype reduce_dtype; /* in which gradients are summed (lab 3), see ops/grad_acc.h: sum_dtype */
} fsdp_config;

typedef struct fsdp {
    fsdp_config config;  /* a copy */
    stream *compute;     /* borrowed from the device */
    stream *comm_stream; /* owned: gathers and reductions run here */
    model_views views;
    int n_units;
    fsdp_unit *units;
    int *layer_unit; /* [n_layers] */
    int *param_unit; /* [n_params] */
} fsdp;

/* fsdp_create -- wraps the model, lays out each unit, allocates and fills the shards. The struct
 * must not move afterwards. errors: what labs 1's functions and device_alloc give; nothing is left
 * behind. */
fsdp_status fsdp_create(const fsdp_config *config, fsdp *f);
void fsdp_free(fsdp *f); /* a zeroed struct is accepted; waits for comm_stream */

/* fsdp_refresh -- SHARDING_NONE in bf16: full = the masters rounded, on the compute stream. To be
 * called when the masters have changed; does nothing in every other case.                        */
fsdp_status fsdp_refresh(fsdp *f);

/* full_at -- where element `elems` of the gathered array stands. u->full must be there. */
void *full_at(const fsdp *f, int u, size_t elems);

/* ---- 2.1 ------------------------------------------------------------------------------------- */
/* unshard_begin -- start gathering unit u: allocate full, copy the shard into its place
 * (full_at rank*shard_elems, by shard_cast), all-gather in place on comm_stream, record `gathered`.
 *   owner       full belongs to the collective until unshard_wait
 *   order       comm_stream first waits for what the compute stream has issued so far (the
 *               optimizer may still be writing the shard)
 *   moves       (W-1)*shard_elems*dtype_bytes(param_dtype) sent per rank
 *   state       SHARDED -> GATHERING; no-op when GATHERING or GATHERED
 *   source      [FSDP §3.2.1] */
fsdp_status unshard_begin(fsdp *f, int u);

/* ---- 2.2 ------------------------------------------------------------------------------------- */
/* unshard_wait -- the compute stream waits for `gathered`; then the views are bound.
 *   state       GATHERING -> GATHERED; no-op when GATHERED; FSDP_ESTATE when SHARDED */
fsdp_status unshard_wait(fsdp *f, int u);
/* views_bind -- views.params[p] = full_at(offset) for every slot of u, and for parameters tied to
 * one. */
fsdp_status views_bind(fsdp *f, int u);

/* ---- 2.3 ------------------------------------------------------------------------------------- */
/* reshard -- drop the gathered array: views to NULL, free full behind what the compute stream has
 * issued (stream-ordered on compute).
 *   state       GATHERED -> SHARDED; no-op when SHARDED; FSDP_ESTATE when GATHERING (a gather in
 *               flight would write into freed memory) */
fsdp_status reshard(fsdp *f, int u);

/* ---- 2.4 ------------------------------------------------------------------------------------- */
/* The hooks of a forward pass (self: fsdp *). pre: begin, then wait. post: reshard, except the root
 * unit, whose head is the first to be used by backward.                                          */
fsdp_status forward_pre_hook(void *self, int u);
fsdp_status forward_post_hook(void *self, int u);
unit_hooks fsdp_forward_hooks(fsdp *f);

/* ---- 2.5 integrates: the runner evaluates the whole model on W ranks with these hooks. ------- */

/* ---- 2.6, a star: unscored ------------------------------------------------------------------- */
/* shard_cast -- slice [shard_elems] of param_dtype = the master shard of u, rounded when it is
 * bf16; on comm_stream. */
fsdp_status shard_cast(fsdp *f, int u, void *slice);
