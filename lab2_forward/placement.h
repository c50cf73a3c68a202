/* placement.h -- lab 2, provided: which elements of a unit each rank holds, and with which ranks it
 * shares them; and members of a unit and of fsdp that only provided code uses.
 *
 * A unit's array is cut twice: into n_shards shards, one on each rank of gather_group, and into
 * finer slices, one on each rank that trains the unit. A rank's file of a checkpoint holds its
 * slice. The slices of the replicas of a shard lie side by side in it (placement_slice).
 *
 *     --sharding          gather_group    reduce_group    then, at the end of a step
 *     full, grad-op       dp_cp           dp_cp
 *     none                NULL            dp_cp           replicas all-gather (task 3.5b)
 *     hybrid              shard group     dp_cp           replicas all-gather
 *       --no-sync=replicas  shard group   shard group     replicas reduce (lab 3's no_sync.h)
 *
 * dp_cp is the mesh's (mesh.h): the world, unless tp or pp cuts the model. A unit's frozen
 * parameters are another unit, its companion (freeze.h), with the same groups. How a unit is
 * gathered is a value, too: its `way`. */
#pragma once
#include "common/comm/comm_pieces.h"
#include "common/comm/mesh.h"
#include "common/model/run_context.h"
#include "lab1_flatparam/flat_param.h"

struct fsdp;
struct fsdp_unit;

/* How a unit is gathered. unshard_begin, unshard_wait and reshard check states and call these. */
typedef struct gather_way {
    fsdp_status (*begin)(struct fsdp *f, int u);              /* SHARDED -> GATHERING */
    fsdp_status (*wait)(struct fsdp *f, int u);               /* GATHERING -> GATHERED */
    fsdp_status (*drop)(struct fsdp *f, int u);               /* GATHERED -> SHARDED */
    fsdp_status (*make)(struct fsdp *f, struct fsdp_unit *u); /* allocate the shard */
    bool is_ordered; /* begin itself lets gather_stream wait for what it reads */
} gather_way;
extern const gather_way GATHER_FLAT, GATHER_ROWS; /* tasks 2.1 to 2.3; dim0_gather.c */

typedef struct placement {
    gather_way way;
    comm *gather_group, *reduce_group; /* borrowed */
    comm *replica_group;               /* borrowed: the ranks with this shard; NULL: one rank */
    comm *near_group;                  /* reshard_to.h: borrowed; NULL: no near groups */
    int n_shards, shard;               /* ranks of gather_group; this rank's shard */
    int n_reduce;                      /* ranks of reduce_group */
    int rank;                          /* this leaf rank; each has a slice */
    int batch_level;                   /* tree level of the node that it gives to a reduction */
    bool counts;                       /* the norm counts its gradient: no other rank of the mesh's
                                          `copy` has the same one */
    flat_layout slices;                /* the array cut for these ranks; owns slots */
    comm_pieces shard_pieces;          /* dim0_gather.c: all shards of the group; flat: none */
    comm_pieces slice_pieces;          /* dim0_gather.c: the slices of all ranks; flat: none */
} placement;

typedef struct unit_given {
    int first_layer, end_layer; /* its layers are some of these */
    placement place;
    int parts[2]; /* freeze.h: its companion, if it has one, and this unit */
    int n_parts;
    bool frozen;       /* all its parameters are frozen */
    bool forward_only; /* freeze.h: backward uses none of its parameters */
    bool is_shown;     /* dim0_gather.c: peers can read the shard in place */
    void *near;        /* reshard_to.h: the part that this rank keeps; NULL: none */
    gather_way far;    /* reshard_to.h: the way while it keeps none */
    event *consumed;   /* recorded on compute; the next gather waits for it (or for gather_after) */
} unit_given;

typedef struct fsdp_given {
    bool near_keeps;            /* the micro-step in progress trains */
    bool keeps_for_step;        /* units stay gathered until the step's last micro-step */
    bool keeps_now;             /* a later micro-step of the step needs the units */
    bool in_backward;           /* freeze.h: from the first pre_backward to the next micro-step */
    bool defers;                /* no_sync.h: reductions wait for a later micro-step */
    struct offload *offload;    /* host_state.h: owned; NULL: all state lives on the device */
    comm_slice *replica_slices; /* no_sync.h: [replicas] scratch, owned */
} fsdp_given;

/* placement_make -- the placement of a unit that all leaf ranks train, without groups and slices.
 *   replicas_last  reductions run in the shard group */
placement placement_make(const gather_way *way, const mesh_shape *s, const run_context *run,
                         bool replicas_last);
void placement_free(placement *p); /* its slices and pieces */
/* placement_slice -- the slice, of n_ranks, that `rank` keeps; rank = replica * n_shards + shard.
 *   n_shards 2, n_ranks 4: ranks 0, 1, 2, 3 keep slices 0, 2, 1, 3 */
int placement_slice(const placement *p, int n_ranks, int rank);

/* unit_shard_pieces, unit_slice_pieces -- the pieces of parameters in the shard, or in the slice,
 * that `rank` has; the caller frees *out. All lists of what a rank holds come from these two. */
fsdp_status unit_shard_pieces(const struct fsdp_unit *u, int rank, flat_piece **out, int *n_pieces);
fsdp_status unit_slice_pieces(const struct fsdp_unit *u, int rank, flat_piece **out, int *n_pieces);

/* fsdp_set_groups -- set these two groups of all units; also f->gather_group and f->reduce_group,
 * which the calls of a unit set to the unit's groups. */
void fsdp_set_groups(struct fsdp *f, comm *gather_group, comm *reduce_group);
