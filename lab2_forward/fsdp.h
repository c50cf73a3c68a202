/* fsdp.h -- lab 2: gather a unit's parameters for as long as it computes, and no longer.
 *
 *   fsdp_create -> per unit, per use:  unshard_begin -> unshard_wait -> (compute) -> reshard
 *   -> fsdp_free
 *
 * Who owns what [FSDP §3.2] [ZeRO §5.3]:
 *   shard  this rank's master copy in fp32; always allocated, changed only by the optimizer
 *   full   the gathered flat array; allocated only between unshard_begin and reshard
 *   views  pointers into full that the model's layers read; NULL unless the unit is GATHERED
 *
 * With param_dtype = DTYPE_BF16 full holds the masters rounded to bf16, and half the bytes move:
 * each rank casts its shard as it copies it into full.
 *
 * A unit with stays_after_backward is resident: it is never resharded. That takes a shard group of
 * one rank, whose shard is the whole array. full is then the shard itself; in bf16 it is a copy
 * that fsdp_refresh casts again whenever the masters have changed.
 *
 * States of a unit:      unshard_begin          unshard_wait
 *              SHARDED ----------------> GATHERING ------------> GATHERED
 *                 ^------------------------ reshard --------------'
 *                 ^----- unshard_drop ------' */
#pragma once
#include "common/comm/mesh.h"
#include "common/model/run_context.h"
#include "lab1_flatparam/flat_param.h"

typedef enum unit_state { UNIT_SHARDED, UNIT_GATHERING, UNIT_GATHERED } unit_state;

enum { UNIT_ROOT = 0, UNIT_NAME_BYTES = 32 };

typedef struct fsdp_unit {
    int id;
    char name[UNIT_NAME_BYTES]; /* "root", "h.0", merged "h.0-h.2": the label of its collectives */
    flat_layout slices;         /* cut for the world; slots[i].param is a global parameter index */
    flat_layout layout;         /* the same array cut for the shard group; borrows the slots */
    bool frozen;                /* all its parameters are frozen */
    bool stays_after_forward;   /* not resharded by the forward post hook */
    bool stays_after_backward;  /* resident, see above */
    float *shard;               /* [layout.shard_elems] MEM_PARAMS_SHARD, owned */
    void *full; /* [padded_elems] of param_dtype, MEM_PARAMS_FULL while not SHARDED, else NULL */
    unit_state state;
    event *gathered; /* recorded on gather_stream by unshard_begin */
    event *consumed; /* recorded on the compute stream; the gather starts after it */
} fsdp_unit;

typedef struct fsdp_config {
    run_context run;
    const mesh *mesh; /* copied; its groups are borrowed */
    wrap_policy wrap;
    size_t wrap_min_elems; /* WRAP_SIZE */
    /* merge -- NULL, or which of the wrapping's units become one: bucket_of [n_units] says for
     * each, given the elements of its parameters. The root, 0, stays alone; buckets ascend */
    fsdp_status (*merge)(const void *how, const size_t *elems, int n_units, int *bucket_of,
                         int *n_buckets);
    const void *merge_how;
} fsdp_config;

typedef struct fsdp {
    run_context run;
    mesh mesh;
    stream *compute;       /* borrowed from the device */
    stream *gather_stream; /* unshards run here, on gather_group */
    stream *reduce_stream; /* reductions run here, on reduce_group */
    comm *gather_group;    /* the shard group */
    comm *reduce_group;    /* the world */
    event *gather_after;   /* what gathers wait for; NULL: for all work that compute has so far */
    stream *comm_stream;   /* owned; in labs 2 to 4 both streams above are this one */
    model_views views;
    int n_units;
    fsdp_unit *units;
    int *layer_unit; /* [n_layers] the unit of each layer */
    int *param_unit; /* [n_params] the unit of each parameter */
} fsdp;

/* fsdp_lay_out -- make the units, their layouts and the maps for a job of the given shape. It
 * allocates nothing on a device and talks to no rank, so a plan can be made for any number of
 * ranks. Every unit gets FULL's rule: only the root stays gathered after forward.
 *   config  mesh, run.dev and run.world are not read
 *   f       free it with fsdp_free
 *   errors  FSDP_ENOMEM, and those of lab 1's functions; nothing is left behind */
fsdp_status fsdp_lay_out(const fsdp_config *config, const mesh_shape *shape, fsdp *f);
/* fsdp_create -- fsdp_lay_out, then allocate the shards and fill them with initial values.
 *   config  gathers use mesh.shard, reductions mesh.world, both on comm_stream
 *   f       must not move afterwards
 *   errors  those of fsdp_lay_out, device_alloc and stream_create; nothing is left behind */
fsdp_status fsdp_create(const fsdp_config *config, fsdp *f);
/* fsdp_free -- wait for comm_stream and free everything; a zeroed struct is accepted. */
void fsdp_free(fsdp *f);

/* fsdp_make_resident -- set u's stays_after_backward, fill full and bind the views, all on the
 * compute stream.
 *   state   SHARDED -> GATHERED, for as long as f lives
 *   errors  FSDP_ESTATE: the shard is not the whole array, or u is not SHARDED; FSDP_ENOMEM */
fsdp_status fsdp_make_resident(fsdp *f, int u);
/* fsdp_refresh -- round the masters of resident units into full, on the compute stream. Call it
 * when the masters have changed. It does nothing in fp32, where full is the shard. */
fsdp_status fsdp_refresh(fsdp *f);
/* unshard_drop -- give up a gather that nobody used: free full on gather_stream, after the gather.
 * The compute stream waits for it too, because the optimizer must not write a shard that a gather
 * still reads.
 *   state  GATHERING -> SHARDED; no-op in the other states */
fsdp_status unshard_drop(fsdp *f, int u);
/* reshard_all -- make every unit SHARDED, whatever its state, except resident ones. */
fsdp_status reshard_all(fsdp *f);

/* full_at -- the address of element number `elems` of u's gathered array, which must exist. */
void *full_at(const fsdp *f, int u, size_t elems);

/* ---- 2.1 ------------------------------------------------------------------------------------- */
/* unshard_begin -- start gathering unit u: allocate full with comm_alloc, put this rank's shard
 * where it belongs (shard_cast to full_at shard_rank*shard_elems), all-gather in place on
 * gather_stream, and record `gathered`.
 *   owner       full belongs to the collective until unshard_wait
 *   order       gather_stream already waits for gather_after or, if that is NULL, for the work that
 *               compute has so far, because the optimizer may still be writing the shard
 *   collective  all ranks of gather_group (the shard group), units in the same order
 *   moves       (S-1)*shard_elems*dtype_bytes(param_dtype) sent per rank of a shard group of S
 *   state       SHARDED -> GATHERING; no-op when GATHERING or GATHERED
 *   errors      those of comm_alloc and comm_all_gather
 *   source      [FSDP §3.2.1] */
fsdp_status unshard_begin(fsdp *f, int u);

/* ---- 2.2 ------------------------------------------------------------------------------------- */
/* unshard_wait -- make the compute stream wait for `gathered`, then bind the views.
 *   state   GATHERING -> GATHERED; no-op when GATHERED
 *   errors  FSDP_ESTATE when SHARDED */
fsdp_status unshard_wait(fsdp *f, int u);
/* views_bind -- point views.params[p] at full_at(offset) for every slot of u, and for every
 * parameter that is tied to one. */
fsdp_status views_bind(fsdp *f, int u);

/* ---- 2.3 ------------------------------------------------------------------------------------- */
/* reshard -- drop the gathered array: set the views to NULL and free full.
 *   order   stream-ordered on compute, after the kernels that still read full
 *   state   GATHERED -> SHARDED; no-op when SHARDED or resident
 *   errors  FSDP_ESTATE when GATHERING: the gather in flight would write to freed memory */
fsdp_status reshard(fsdp *f, int u);

/* ---- 2.4 ------------------------------------------------------------------------------------- */
/* forward_pre_hook -- before a unit's first layer: unshard_begin, then unshard_wait. self is an
 * fsdp *. Training uses the forward hooks too. */
fsdp_status forward_pre_hook(void *self, int u);
/* forward_post_hook -- after a unit's last layer: reshard, unless the unit stays_after_forward.
 * Under FULL only the root does, because backward begins with the root's head. */
fsdp_status forward_post_hook(void *self, int u);
/* fsdp_forward_hooks -- the table of hooks of a forward pass. */
unit_hooks fsdp_forward_hooks(fsdp *f);

/* ---- 2.5 integrates: the runner evaluates the whole model on W ranks with these hooks. ------- */

/* ---- 2.6, a star: unscored ------------------------------------------------------------------- */
/* shard_cast -- copy u's master shard to slice [shard_elems] of param_dtype, rounded for bf16.
 *   order  stream-ordered on gather_stream */
fsdp_status shard_cast(fsdp *f, int u, void *slice);
