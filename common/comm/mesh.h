/* mesh.h -- the ranks of a job as a grid of several axes, and the groups of ranks along them.
 *
 *   mesh_shape_make (no processes needed) ... mesh_open -> collectives on its groups -> mesh_close
 *
 *     world rank = (((pp * R + replica) * S + shard) * C + cp) * tp_size + tp
 *
 *     W = 8, S = 4, the other axes 1:   replica 0:  0 1 2 3
 *                                       replica 1:  4 5 6 7
 * A shard group (a row) holds one copy of what is sharded; a replicate group (a column) holds the
 * same shard several times. [FSDP §3.2.2] Ranks that differ in cp share a row, too. Ranks that
 * differ in pp, cp or tp work on the same data:
 *   data rank  replica * S + shard: which sequences a rank reads
 *   leaf rank  data rank * C + cp: which of them, or which parts, it adds to the sum's tree
 * Today the trainer sets S alone; R is what remains. */
#pragma once
#include "common/comm/comm_calls.h"

typedef enum mesh_axis {
    AXIS_PP, /* outermost: neighbours along it are farthest apart */
    AXIS_REPLICATE,
    AXIS_SHARD,
    AXIS_CP,
    AXIS_TP,
    N_AXES
} mesh_axis;

typedef struct mesh_shape {
    int world_size, world_rank;
    int size[N_AXES]; /* ranks along each axis; their product is world_size */
    int at[N_AXES];   /* this rank's place along each axis */
} mesh_shape;

/* mesh_shape_make -- the place of world_rank in a mesh. size [N_AXES]: 0 is 1, except that
 * size[AXIS_REPLICATE] 0 is what the other axes leave of world_size.
 *   errors  FSDP_EINVAL: the sizes do not multiply to world_size, or world_rank is not a rank */
fsdp_status mesh_shape_make(int world_size, const int size[N_AXES], int world_rank,
                            mesh_shape *out);
/* mesh_data_size, mesh_data_rank -- how many data ranks there are, and this rank's number. */
static inline int mesh_data_size(const mesh_shape *s)
{
    return s->size[AXIS_REPLICATE] * s->size[AXIS_SHARD];
}
static inline int mesh_data_rank(const mesh_shape *s)
{
    return s->at[AXIS_REPLICATE] * s->size[AXIS_SHARD] + s->at[AXIS_SHARD];
}
/* mesh_leaf_size, mesh_leaf_rank -- the same of leaf ranks. */
static inline int mesh_leaf_size(const mesh_shape *s)
{
    return mesh_data_size(s) * s->size[AXIS_CP];
}
static inline int mesh_leaf_rank(const mesh_shape *s)
{
    return mesh_data_rank(s) * s->size[AXIS_CP] + s->at[AXIS_CP];
}

/* mesh_leaf_of -- the leaf rank whose losses world_rank has: the last pp stage's first tp rank has
 * them. -1: it has none. */
int mesh_leaf_of(const mesh_shape *s, int world_rank);

/* mesh_row_size, mesh_row_rank -- how many ranks a row has, and this rank's number among them. */
static inline int mesh_row_size(const mesh_shape *s)
{
    return s->size[AXIS_SHARD] * s->size[AXIS_CP];
}
static inline int mesh_row_rank(const mesh_shape *s)
{
    return s->at[AXIS_SHARD] * s->size[AXIS_CP] + s->at[AXIS_CP];
}

/* Groups of one rank in a larger world are NULL, but dp_cp, in which gradients are summed. */
typedef struct mesh {
    mesh_shape shape;
    comm *world;     /* borrowed */
    comm *shard;     /* this rank's row: axes shard and cp */
    comm *replicate; /* this rank's column; NULL if there is one replica */
    comm *dp_cp;     /* all leaf ranks of this rank's parameters: axes replicate, shard and cp */
    comm *copy;      /* one copy of the whole model: all axes but replicate */
    comm *tp;        /* the ranks that share out the blocks of this rank's layers; NULL: one rank */
} mesh;

/* mesh_group -- the ranks that differ from this one only along some axes, in order of their world
 * ranks: world itself if these are all ranks, NULL if this is the only one, so that no collective
 * can be issued on an axis of size 1 in a larger world.
 *   axes        1 << AXIS_SHARD | 1 << AXIS_CP ...; the axes longer than 1 that are left out
 *               between the first and the last lie side by side (comm_ranks), else FSDP_EINVAL
 *   *out        closed by the caller unless it is world
 *   collective  all ranks of world, same axes; the host waits
 *   errors      as comm_subset */
fsdp_status mesh_group(comm *world, const mesh_shape *s, unsigned axes, comm **out);

/* mesh_open -- a mesh of these sizes (mesh_shape_make), and its groups.
 *   world       borrowed, must outlive the mesh
 *   collective  all ranks of world, same sizes; the host waits
 *   errors      as mesh_shape_make and mesh_group; nothing stays allocated */
fsdp_status mesh_open(comm *world, const int size[N_AXES], mesh *out);
void mesh_close(mesh *m); /* collective unless the job failed; a zeroed struct is accepted */
