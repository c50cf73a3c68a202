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
#include "lab2_forward/placement.h"

typedef enum unit_state { UNIT_SHARDED, UNIT_GATHERING, UNIT_GATHERED } unit_state;

enum { UNIT_ROOT = 0, UNIT_NAME_BYTES = 32 };

typedef struct fsdp_unit {
    int id, first_param, end_param; /* fsdp.param_unit is id only for some p < end_param */
    char name[UNIT_NAME_BYTES]; /* "root", "h.0", merged "h.0-h.2": the label of its collectives */
    flat_layout layout;         /* used_elems of the flat array are real, padded_elems are gathered;
                                   each rank of the shard group has shard_elems of them */
    bool stays_after_forward;   /* not resharded by the forward post hook */
    bool stays_after_backward;  /* resident: gathered for good, never resharded */
    float *shard;               /* [layout.shard_elems] MEM_PARAMS_SHARD, owned */
    void *full; /* [padded_elems] of param_dtype, MEM_PARAMS_FULL while not SHARDED, else NULL */
    unit_state state;
    event *gathered;  /* recorded on gather_stream once full is written */
    unit_given given; /* provided */
} fsdp_unit;

typedef struct fsdp {
    run_context run;       /* m: the model; ops: the maths; param_dtype */
    mesh mesh;             /* groups of ranks that hold one copy, and replicas of it (lab 3) */
    stream *compute;       /* borrowed from the device */
    stream *gather_stream; /* unshards run here, on gather_group */
    stream *reduce_stream; /* reductions run here, on reduce_group */
    comm *gather_group;    /* the shard group */
    comm *reduce_group;    /* the world, unless the mesh has other axes (placement.h) */
    event *gather_after;   /* lab 5: gathers wait for this event; NULL: for compute's work so far */
    stream *comm_stream;   /* owned; in labs 2 to 4 gather_stream and reduce_stream are this one */
    model_views views;     /* params[p], grads[p]: p is the global index of a parameter */
    int n_units;
    fsdp_unit *units;
    int *layer_unit;  /* [n_layers] the unit of each layer */
    int *param_unit;  /* [n_params] the unit of each parameter */
    fsdp_given given; /* provided */
} fsdp;

/* ---- provided: states. Each checks the state and calls a function of yours (forward.h) ------- */
/* unshard_begin -- SHARDED -> GATHERING, by gather_flat; no-op when GATHERING or GATHERED, and for
 * a unit that the pass in progress does not use (freeze.h).
 *   collective  all ranks of gather_group, units in the same order */
fsdp_status unshard_begin(fsdp *f, int u);
/* unshard_wait -- GATHERING -> GATHERED, by gather_wait; no-op when GATHERED.
 *   errors  FSDP_ESTATE when SHARDED, if the pass uses u */
fsdp_status unshard_wait(fsdp *f, int u);
/* reshard -- GATHERED -> SHARDED, by unit_drop; no-op when SHARDED, resident or kept for the step.
 *   errors  FSDP_ESTATE when GATHERING: the gather in flight would write to freed memory */
fsdp_status reshard(fsdp *f, int u);
/* unshard_drop -- GATHERING -> SHARDED: give up a gather that nobody used; else a no-op. */
fsdp_status unshard_drop(fsdp *f, int u);
