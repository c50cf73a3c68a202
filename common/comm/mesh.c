/* mesh.c -- see mesh.h. */
#include "common/comm/mesh.h"
#include "common/comm/comm.h"

fsdp_status mesh_shape_make(int world_size, int shard_size, int world_rank, mesh_shape *out)
{
    if (world_size < 1 || shard_size < 1 || world_size % shard_size != 0)
        return fsdp_error(FSDP_EINVAL, "pass a number of ranks that the shard group's size divides",
                          "mesh: got %d ranks in shard groups of %d, expected a divisor of %d",
                          world_size, shard_size, world_size);
    if (world_rank < 0 || world_rank >= world_size)
        return fsdp_error(FSDP_EINVAL, "ranks count from 0 to world_size - 1",
                          "mesh: got rank %d of %d", world_rank, world_size);
    *out = (mesh_shape){.world_size = world_size,
                        .world_rank = world_rank,
                        .shard_size = shard_size,
                        .shard_rank = world_rank % shard_size,
                        .replicate_size = world_size / shard_size,
                        .replica = world_rank / shard_size};
    return FSDP_OK;
}

fsdp_status mesh_open(comm *world, int shard_size, mesh *out)
{
    *out = (mesh){.world = world};
    TRY(mesh_shape_make(comm_size(world), shard_size, comm_rank(world), &out->shape));
    const mesh_shape *s = &out->shape;
    if (s->replicate_size == 1) {
        out->shard = world;
        return FSDP_OK;
    }
    if (s->shard_size == 1) {
        out->replicate = world;
        return FSDP_OK;
    }
    fsdp_status status =
        comm_range(world, s->replica * s->shard_size, 1, s->shard_size, &out->shard);
    if (status == FSDP_OK)
        status =
            comm_range(world, s->shard_rank, s->shard_size, s->replicate_size, &out->replicate);
    if (status != FSDP_OK)
        mesh_close(out);
    return status;
}

void mesh_close(mesh *m)
{
    if (m->replicate != m->world)
        comm_close(m->replicate);
    if (m->shard != m->world)
        comm_close(m->shard);
    *m = (mesh){0};
}
