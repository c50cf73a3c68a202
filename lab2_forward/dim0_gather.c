/* dim0_gather.c -- provided, no task: the gather of a unit whose shards are rows. */
#include "lab2_forward/dim0_gather.h"
#include <stdlib.h>
#include "lab2_forward/forward.h"
#include "lab2_forward/offload.h"

/* List the pieces of all slices of l, in order of ranks. slice_of: the mesh that gives each rank
 * its slice; NULL: rank r has slice r. */
static fsdp_status list_pieces(const flat_layout *l, const mesh_shape *slice_of, comm_pieces *out)
{
    const size_t room = (size_t)l->world_size * (size_t)l->n_slots + 1;
    comm_piece *list = calloc(room, sizeof *list);
    flat_piece *mine = calloc((size_t)l->n_slots + 1, sizeof *mine);
    fsdp_status status = list && mine ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "no host memory");
    size_t n = 0;
    for (int rank = 0; status == FSDP_OK && rank < l->world_size; rank++) {
        int n_mine = 0;
        status = flat_intersect(l, slice_of ? mesh_slice(slice_of, rank) : rank, mine, &n_mine);
        for (int i = 0; status == FSDP_OK && i < n_mine; i++)
            list[n++] = (comm_piece){.at = (size_t)rank * l->shard_elems + mine[i].shard_begin,
                                     .begin = l->slots[mine[i].slot].offset + mine[i].param_begin,
                                     .elems = mine[i].elems};
    }
    free(mine);
    comm_piece *kept = realloc(list, (n + 1) * sizeof *list); /* shrink: some slices lack rows */
    *out = (comm_pieces){kept ? kept : list, n, l->shard_elems};
    return status;
}

fsdp_status dim0_create(fsdp *f, fsdp_unit *u)
{
    TRY(list_pieces(&u->layout, NULL, &u->own.shard_pieces));
    TRY(list_pieces(&u->slices, &f->mesh.shape, &u->own.slice_pieces));
    return shard_is_on_host(f)
               ? FSDP_OK
               : comm_alloc_f32(f->gather_group, f->compute, MEM_PARAMS_SHARD,
                                u->layout.shard_elems, "parameter shard", &u->shard);
}

void dim0_free(fsdp_unit *u)
{
    free((void *)u->own.shard_pieces.list);
    free((void *)u->own.slice_pieces.list);
}

fsdp_status dim0_gather(fsdp *f, int u, dtype t, void *full)
{
    const fsdp_unit *unit = &f->units[u];
    const void *send = unit->shard;
    void *rounded = NULL;
    fsdp_status status = FSDP_OK;
    if (t != DTYPE_F32 || shard_is_on_host(f)) {
        TRY(comm_alloc(f->gather_group, f->gather_stream, MEM_COMM,
                       unit->layout.shard_elems * dtype_bytes(t), "rounded shard", &rounded));
        status = shard_is_on_host(f) ? offload_gather(f, u, t, rounded) : shard_cast(f, u, rounded);
        send = rounded;
    }
    if (status == FSDP_OK)
        status = comm_all_gather_pieces(f->gather_group, f->gather_stream, unit->name, t, send,
                                        full, &unit->own.shard_pieces);
    device_free(f->gather_stream, rounded);
    return status;
}

fsdp_status dim0_unshard_begin(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    TRY(comm_alloc(f->gather_group, f->gather_stream, MEM_PARAMS_FULL,
                   unit->layout.padded_elems * dtype_bytes(f->run.param_dtype), "gathered unit",
                   &unit->full));
    unit->state = UNIT_GATHERING;
    TRY(dim0_gather(f, u, f->run.param_dtype, unit->full));
    return event_record(unit->gathered, f->gather_stream);
}
