/* fsdp.h -- lab 2: gather a unit's parameters for as long as it computes, no longer.
 *
 *   fsdp_create -> per unit, per use:  unshard_begin -> unshard_wait -> (compute) -> reshard
 *   -> fsdp_free
 *
 * Owner's table. shard: this rank's master copy in fp32, always there, changed only by the
 * optimizer. full: the gathered flat array, there only between unshard_begin and reshard. Views:
 * pointers into full that the model's layers read; NULL outside that window. [FSDP §3.2]
 * [ZeRO §5.3]
 *
 * With param_dtype = DTYPE_BF16 full holds the masters rounded to bf16, and half the bytes move: a
 * rank casts its shard on the way into full.
 *
 * A unit with stays_after_backward is resident: it is gathered for good, which takes a shard group
 * of one rank, whose shard is the whole array. full is then the shard itself, or in bf16 a copy of
 * it that is cast anew whenever the masters have changed (fsdp_refresh).
 *
 * States of a unit:      unshard_begin          unshard_wait
 *              SHARDED ----------------> GATHERING ------------> GATHERED
 *                 ^------------------------ reshard --------------'
 *                 ^----- unshard_drop ------'                                                    */
#pragma once
#include "common/comm/mesh.h"
#include "common/model/run_context.h"
#include "lab1_flatparam/flat_param.h"

typedef enum unit_state { UNIT_SHARDED, UNIT_GATHERING, UNIT_GATHERED } unit_state;

enum { UNIT_ROOT = 0, UNIT_NAME_BYTES = 32 };

typedef struct fsdp_unit {
    int id;
    char name[UNIT_NAME_BYTES]; /* "root", "h.0": the label of its collectives */
    flat_layout slices;         /* cut for the world. slots[i].param: global parameter index */
    flat_layout layout;         /* the same array cut for the shard group; borrows the slots */
    bool frozen;                /* all its parameters are frozen */
    bool stays_after_forward;   /* not resharded by the forward post hook */
    bool stays_after_backward;  /* resident, see above */
    float *shard;               /* [layout.shard_elems] MEM_PARAMS_SHARD, owned */
    void *full; /* [padded_elems] of param_dtype, MEM_PARAMS_FULL while not SHARDED, else NULL */
    unit_state state;
    event *gathered; /* recorded on gather_stream by unshard_begin */
    event *consumed; /* recorded on the compute stream: the gather starts after it */
} fsdp_unit;

typedef struct fsdp_config {
    run_context run;
    const mesh *mesh; /* copied; its groups are borrowed */
    wrap_policy wrap;
    size_t wrap_min_elems; /* WRAP_SIZE */
} fsdp_config;

typedef struct fsdp {
    run_context run;
    mesh mesh;
    stream *compute;       /* borrowed from the device */
    stream *gather_stream; /* unshards run here, on gather_group */
    stream *reduce_stream; /* reductions run here, on reduce_group */
    comm *gather_group;    /* the shard group */
    comm *reduce_group;    /* the world */
    event *gather_after;   /* what gathers wait for; NULL: for all that compute has issued so far */
    stream *comm_stream;   /* owned; both streams above in labs 2 to 4 */
    model_views views;
    int n_units;
    fsdp_unit *units;
    int *layer_unit; /* [n_layers] */
    int *param_unit; /* [n_params] */
} fsdp;

/* fsdp_lay_out -- units, their layouts and the maps, for a job of the given shape; nothing is
 * allocated on a device and no rank is asked, so a plan can be made of any number of ranks. Every
 * unit gets FULL's rule: only the root stays after forward. config->mesh, run.dev and run.world are
 * not read. fsdp_free frees it.
 *   errors  FSDP_ENOMEM, and those of lab 1's functions; nothing is left behind */
fsdp_status fsdp_lay_out(const fsdp_config *config, const mesh_shape *shape, fsdp *f);
/* fsdp_create -- fsdp_lay_out, then allocates and fills the shards. The struct must not move
 * afterwards. Gathers use mesh.shard, reductions mesh.world, both on comm_stream.
 *   errors  those of fsdp_lay_out, device_alloc and stream_create; nothing is left behind */
fsdp_status fsdp_create(const fsdp_config *config, fsdp *f);
void fsdp_free(fsdp *f); /* a zeroed struct is accepted; waits for comm_stream */

/* fsdp_make_resident -- gather u for good, on the compute stream: set stays_after_backward, fill
 * full, bind the views.
 *   state       SHARDED -> GATHERED, and it stays so
 *   errors      FSDP_ESTATE: the shard is not the whole array, or u is not SHARDED; FSDP_ENOMEM */
fsdp_status fsdp_make_resident(fsdp *f, int u);
/* fsdp_refresh -- resident units in bf16: full = the masters rounded, on the compute stream. To be
 * called when the masters have changed. Other units are left as they are. */
fsdp_status fsdp_refresh(fsdp *f);
/* unshard_drop -- give up a gather that nobody used: full is freed behind it on gather_stream.
 *   state       GATHERING -> SHARDED; no-op otherwise */
void unshard_drop(fsdp *f, int u);
/* reshard_all -- every unit becomes SHARDED, whatever was begun, but for resident ones. */
fsdp_status reshard_all(fsdp *f);

/* full_at -- the address of the element that has `elems` elements of u's gathered array before it.
 * full must be there. */
void *full_at(const fsdp *f, int u, size_t elems);

/* ---- 2.1 ------------------------------------------------------------------------------------- */
/* unshard_begin -- start gathering unit u: allocate full, copy the shard into its place
 * (full_at shard_rank*shard_elems, by shard_cast), all-gather in place over gather_group on
 * gather_stream, record `gathered`.
 *   owner       full belongs to the collective until unshard_wait
 *   order       gather_stream has been made to wait for gather_after, or for what the compute
 *               stream has issued so far (the optimizer may still be writing the shard)
 *   collective  all ranks of the shard group, units in the same order
 *   moves       (S-1)*shard_elems*dtype_bytes(param_dtype) sent per rank of a shard group of S
 *   state       SHARDED -> GATHERING; no-op when GATHERING or GATHERED
 *   errors      those of comm_alloc and comm_all_gather
 *   source      [FSDP §3.2.1] */
fsdp_status unshard_begin(fsdp *f, int u);

/* ---- 2.2 ------------------------------------------------------------------------------------- */
/* unshard_wait -- the compute stream waits for `gathered`; then the views are bound.
 *   state       GATHERING -> GATHERED; no-op when GATHERED; FSDP_ESTATE when SHARDED */
fsdp_status unshard_wait(fsdp *f, int u);
/* views_bind -- views.params[p] = full_at(offset) for every slot of u, and for every parameter that
 * is tied to one. */
fsdp_status views_bind(fsdp *f, int u);

/* ---- 2.3 ------------------------------------------------------------------------------------- */
/* reshard -- drop the gathered array: views to NULL, free full behind what the compute stream has
 * issued (stream-ordered on compute).
 *   state       GATHERED -> SHARDED; no-op when SHARDED or resident; FSDP_ESTATE when GATHERING (a
 *               gather in flight would write into freed memory) */
fsdp_status reshard(fsdp *f, int u);

/* ---- 2.4 ------------------------------------------------------------------------------------- */
/* The hooks of a forward pass (self: fsdp *), which training uses too. pre: begin, then wait. post:
 * reshard, unless the unit stays_after_forward. Under FULL only the root does: its head is the
 * first to be used by backward. */
fsdp_status forward_pre_hook(void *self, int u);
fsdp_status forward_post_hook(void *self, int u);
unit_hooks fsdp_forward_hooks(fsdp *f);

/* ---- 2.5 integrates: the runner evaluates the whole model on W ranks with these hooks. ------- */

/* ---- 2.6, a star: unscored ------------------------------------------------------------------- */
/* shard_cast -- slice [shard_elems] of param_dtype = the master shard of u, rounded when it is
 * bf16; on gather_stream. */
fsdp_status shard_cast(fsdp *f, int u, void *slice);
