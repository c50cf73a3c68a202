/* fsdp_setup.h -- lab 2, provided: make an fsdp object; resident units.
 *
 *   fsdp_create -> (hooks of labs 2 to 5) -> fsdp_free
 *
 * A resident unit (stays_after_backward) takes a shard group of one rank, whose shard is the whole
 * array. In fp32, full is the shard itself; in bf16 it is a copy, which fsdp_refresh updates after
 * the masters have changed. */
#pragma once
#include "lab1_flatparam/flat_param.h"
#include "lab2_forward/host_state.h"
#include "lab2_forward/unshard.h"

typedef struct fsdp_config {
    run_context run;
    const mesh *mesh; /* copied; its groups are borrowed */
    wrap_policy wrap;
    size_t wrap_min_elems; /* WRAP_SIZE */
    bool per_param;        /* lay units out by dim0_layout */
    /* merge -- NULL, or merge units of the wrapping: set the bucket of each in bucket_of [n_units],
     * given the elements of each. The root, 0, stays alone; bucket numbers ascend */
    fsdp_status (*merge)(size_t max_elems, const size_t *elems, int n_units, int *bucket_of,
                         int *n_buckets);
    size_t merge_max_elems; /* of a merged unit */
    offload_config offload;
    comm *near_group;    /* borrowed; see placement.h */
    bool keeps_for_step; /* see fsdp_given */
    bool replicas_last;  /* reductions run in the shard group; see placement.h */
} fsdp_config;

/* fsdp_lay_out -- make the units, their layouts and the maps for a job of the given shape. It
 * allocates nothing on a device and talks to no rank, so a plan can be made for any number of
 * ranks. Units follow FULL's rule: only the root stays gathered after forward.
 *   config  mesh, run.dev and run.world are not read
 *   f       free it with fsdp_free
 *   errors  FSDP_ENOMEM, and errors of lab 1's functions; nothing is left behind */
fsdp_status fsdp_lay_out(const fsdp_config *config, const mesh_shape *shape, fsdp *f);
/* fsdp_create -- fsdp_lay_out, then allocate the shards and fill them with initial values.
 *   config  gathers use mesh.shard, reductions mesh.dp_cp, or mesh.shard if replicas_last; both run
 *           on comm_stream
 *   f       must not move afterwards
 *   errors  of fsdp_lay_out, device_alloc and stream_create; nothing is left behind */
fsdp_status fsdp_create(const fsdp_config *config, fsdp *f);
/* fsdp_free -- wait for comm_stream and free everything; a zeroed struct is accepted. */
void fsdp_free(fsdp *f);

/* fsdp_most_shard_elems -- shard_elems of the largest unit. */
size_t fsdp_most_shard_elems(const fsdp *f);

/* fsdp_make_resident -- set u's stays_after_backward, fill full and bind the views, all on the
 * compute stream.
 *   state   SHARDED -> GATHERED, for as long as f lives
 *   errors  FSDP_ESTATE: the shard is not the whole array, or u is not SHARDED; FSDP_ENOMEM */
fsdp_status fsdp_make_resident(fsdp *f, int u);
/* fsdp_refresh -- round the masters of resident units into full, on the compute stream. Call it
 * when the masters have changed. It does nothing in fp32, where full is the shard. */
fsdp_status fsdp_refresh(fsdp *f);
