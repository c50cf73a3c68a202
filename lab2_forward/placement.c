/* placement.c -- see placement.h. */
#include <stdlib.h>
#include "lab2_forward/fsdp.h"

placement placement_make(const gather_way *way, const mesh_shape *s, const run_context *run,
                         bool replicas_last)
{
    return (placement){.way = *way,
                       .n_shards = mesh_row_size(s),
                       .shard = mesh_row_rank(s),
                       .n_reduce = replicas_last ? mesh_row_size(s) : mesh_leaf_size(s),
                       .rank = mesh_leaf_rank(s),
                       .batch_level = run_reduce_level(run),
                       .counts = true};
}

void placement_free(placement *p)
{
    free((void *)p->shard_pieces.list);
    free((void *)p->slice_pieces.list);
    flat_layout_free(&p->slices);
}

int placement_slice(const placement *p, int n_ranks, int rank)
{
    return rank % p->n_shards * (n_ranks / p->n_shards) + rank / p->n_shards;
}

fsdp_status unit_shard_pieces(const fsdp_unit *u, int rank, flat_piece **out, int *n_pieces)
{
    return flat_pieces(&u->layout, rank % u->given.place.n_shards, out, n_pieces);
}

fsdp_status unit_slice_pieces(const fsdp_unit *u, int rank, flat_piece **out, int *n_pieces)
{
    const placement *p = &u->given.place;
    return flat_pieces(&p->slices, placement_slice(p, p->slices.world_size, rank), out, n_pieces);
}

void fsdp_set_groups(fsdp *f, comm *gather_group, comm *reduce_group)
{
    f->gather_group = gather_group;
    f->reduce_group = reduce_group;
    for (int u = 0; u < f->n_units; u++) {
        f->units[u].given.place.gather_group = gather_group;
        f->units[u].given.place.reduce_group = reduce_group;
    }
}
