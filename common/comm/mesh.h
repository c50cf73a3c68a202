/* mesh.h -- the ranks of a job as a grid: shard groups side by side, replicas one under the other.
 *
 *   mesh_shape_make (no processes needed) ... mesh_open -> collectives on its groups -> mesh_close
 *
 *     world rank = replica * shard_size + shard_rank         W = 8, shard_size 4:
 *                                                            replica 0:  0 1 2 3
 *                                                            replica 1:  4 5 6 7
 * A shard group (a row) holds one copy of what is sharded; a replicate group (a column) holds the
 * same shard several times. If an axis has size W, its group is the world itself and nothing is
 * split. An axis of size 1 in a larger world has no group, so no collective can be issued on it.
 * [FSDP §3.2.2] */
#pragma once
#include "common/comm/comm_calls.h"

typedef struct mesh_shape {
    int world_size, world_rank;
    int shard_size, shard_rank;  /* ranks of a shard group; this rank's number in its shard group */
    int replicate_size, replica; /* world_size / shard_size; this rank's number in its replicate
                                    group */
} mesh_shape;

/* mesh_shape_make -- the place of world_rank in a grid with rows of shard_size.
 *   errors  FSDP_EINVAL: world_size or shard_size < 1, shard_size does not divide world_size, or
 *           world_rank is not a rank */
fsdp_status mesh_shape_make(int world_size, int shard_size, int world_rank, mesh_shape *out);

typedef struct mesh {
    mesh_shape shape;
    comm *world;     /* borrowed */
    comm *shard;     /* this rank's row: world if shard_size is W, NULL if shard_size is 1 < W */
    comm *replicate; /* this rank's column: world if shard_size is 1 < W, NULL if it is W */
} mesh;

/* mesh_open -- the shape of world with shard groups of shard_size ranks, and this rank's two
 * groups.
 *   world       borrowed, must outlive the mesh
 *   collective  all ranks of world, same shard_size; the host waits
 *   errors      as mesh_shape_make and comm_range; nothing stays allocated */
fsdp_status mesh_open(comm *world, int shard_size, mesh *out);
void mesh_close(mesh *m); /* collective unless the job failed; a zeroed struct is accepted */
