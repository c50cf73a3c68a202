/* placement.c -- see placement.h. */
#include "lab2_forward/fsdp.h"

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
