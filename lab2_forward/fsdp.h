/* fsdp.h -- lab 2: units that are gathered for as long as they compute, and no longer.
 *
 *   SHARDED --unshard_begin--> GATHERING --unshard_wait--> GATHERED --reshard--> SHARDED
 *
 * Who owns what [FSDP §3.2] [ZeRO §5.3]:
 *   shard  this rank's master copy in fp32; always allocated, changed only by the optimizer
 *   full   the gathered flat array; allocated only between unshard_begin and reshard. With
 *          param_dtype = DTYPE_BF16 it holds the masters rounded to bf16, and half the bytes move
 *   views  pointers into full that the model's layers read; NULL unless the unit is GATHERED */
#pragma once
#include "common/comm/mesh.h"
#include "common/model/run_context.h"
#include "lab1_flatparam/flat_layout.h"
#include "lab2_forward/fsdp_own.h"

typedef enum unit_state { UNIT_SHARDED, UNIT_GATHERING, UNIT_GATHERED } unit_state;

enum { UNIT_ROOT = 0, UNIT_NAME_BYTES = 32 };

typedef struct fsdp_unit {
    int id, first_param, end_param; /* fsdp.param_unit is id only for some p < end_param */
    char name[UNIT_NAME_BYTES]; /* "root", "h.0", merged "h.0-h.2": the label of its collectives */
    flat_layout layout;         /* used_elems of the flat array are real, padded_elems are gathered;
                                   each rank of the shard group has shard_elems of them */
    flat_layout slices;         /* for lab 3: the array cut for all ranks of the job; owns slots */
    bool frozen;                /* all its parameters are frozen */
    bool stays_after_forward;   /* not resharded by the forward post hook */
    bool stays_after_backward;  /* resident: gathered for good, never resharded */
    float *shard;               /* [layout.shard_elems] MEM_PARAMS_SHARD, owned */
    void *full; /* [padded_elems] of param_dtype, MEM_PARAMS_FULL while not SHARDED, else NULL */
    unit_state state;
    unit_own own;    /* provided */
    event *gathered; /* recorded on gather_stream by unshard_begin */
    event *consumed; /* recorded on compute; the next gather waits for it (or for gather_after) */
} fsdp_unit;

typedef struct fsdp {
    run_context run;       /* m: the model; ops: the maths; param_dtype */
    mesh mesh;             /* groups of ranks that hold one copy, and replicas of it (lab 3) */
    stream *compute;       /* borrowed from the device */
    stream *gather_stream; /* unshards run here, on gather_group */
    stream *reduce_stream; /* reductions run here, on reduce_group */
    comm *gather_group;    /* the shard group */
    comm *reduce_group;    /* the world */
    event *gather_after;   /* lab 5: gathers wait for this event; NULL: for compute's work so far */
    stream *comm_stream;   /* owned; in labs 2 to 4 gather_stream and reduce_stream are this one */
    fsdp_own own;          /* provided */
    model_views views;     /* params[p], grads[p]: p is the global index of a parameter */
    int n_units;
    fsdp_unit *units;
    int *layer_unit; /* [n_layers] the unit of each layer */
    int *param_unit; /* [n_params] the unit of each parameter */
} fsdp;

/* ---- 2.1 ------------------------------------------------------------------------------------- */
/* unshard_begin -- start gathering unit u: allocate full with comm_alloc, put this rank's shard
 * where it belongs (shard_cast to full_at shard_rank*shard_elems), all-gather in place on
 * gather_stream, and record `gathered`.
 *   owner       full belongs to the collective until unshard_wait
 *   order       gather_stream already waits for compute's work so far, because the optimizer may
 *               still be writing the shard (lab 5 waits for less: gather_after)
 *   collective  all ranks of gather_group (the shard group), units in the same order
 *   moves       (S-1)*shard_elems*dtype_bytes(param_dtype) sent per rank of a shard group of S
 *   state       SHARDED -> GATHERING; no-op when GATHERING or GATHERED
 *   errors      of comm_alloc, shard_cast and comm_all_gather
 *   source      [FSDP §3.2.1] */
fsdp_status unshard_begin(fsdp *f, int u);
/* unshard_drop -- provided: give up a gather that nobody used; free full after the gather, on
 * gather_stream. Compute waits too: the optimizer must not write a shard that a gather still reads.
 *   state  GATHERING -> SHARDED; no-op in the other states */
fsdp_status unshard_drop(fsdp *f, int u);

/* ---- 2.2 ------------------------------------------------------------------------------------- */
/* unshard_wait -- make the compute stream wait for `gathered`, then views_bind.
 *   state   GATHERING -> GATHERED; no-op when GATHERED
 *   errors  FSDP_ESTATE when SHARDED */
fsdp_status unshard_wait(fsdp *f, int u);

/* ---- 2.3 ------------------------------------------------------------------------------------- */
/* reshard -- set views.params of u's parameters (param_unit), tied ones too, to NULL; free full.
 *   order   stream-ordered on compute, after the kernels that still read full
 *   state   GATHERED -> SHARDED; no-op when SHARDED, resident or kept for the step (keeps_now)
 *   errors  FSDP_ESTATE when GATHERING: the gather in flight would write to freed memory */
fsdp_status reshard(fsdp *f, int u);
