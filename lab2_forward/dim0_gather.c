/* dim0_gather.c -- provided, no task: GATHER_ROWS, the way of a unit in the per-parameter layout
 * (lab 1's dim0.h). Its shard is not one slice of the gathered array but a piece of every
 * parameter. Everything else in this lab is the same for both layouts. */
#include <stdlib.h>
#include "lab2_forward/forward.h"
#include "lab2_forward/host_state.h"

/* Append the pieces of one part of l, the part of `rank`, to *out. */
static void append(const flat_layout *l, int rank, const flat_piece *mine, int n_mine,
                   comm_pieces *out)
{
    comm_piece *list = (comm_piece *)out->list;
    for (int i = 0; i < n_mine; i++)
        list[out->n++] = (comm_piece){.at = (size_t)rank * l->shard_elems + mine[i].shard_begin,
                                      .begin = l->slots[mine[i].slot].offset + mine[i].param_begin,
                                      .elems = mine[i].elems};
}

/* List the pieces of all parts of l, rank after rank. pieces_of lists the pieces of one rank. */
static fsdp_status list_pieces(const fsdp_unit *u, const flat_layout *l,
                               fsdp_status (*pieces_of)(const fsdp_unit *, int, flat_piece **,
                                                        int *),
                               comm_pieces *out)
{
    const size_t room = (size_t)l->world_size * (size_t)l->n_slots + 1;
    *out = (comm_pieces){calloc(room, sizeof *out->list), 0, l->shard_elems};
    if (!out->list)
        return fsdp_error(FSDP_ENOMEM, "", "no host memory");
    for (int rank = 0; rank < l->world_size; rank++) {
        flat_piece *mine;
        int n_mine;
        TRY(pieces_of(u, rank, &mine, &n_mine));
        append(l, rank, mine, n_mine, out);
        free(mine);
    }
    comm_piece *kept = realloc((void *)out->list, (out->n + 1) * sizeof *kept);
    out->list = kept ? kept : out->list; /* shrink: some parts lack rows */
    return FSDP_OK;
}

/* List the pieces of a unit that is laid out, and allocate its shard so that peers can read it in
 * place. */
static fsdp_status dim0_create(fsdp *f, fsdp_unit *u)
{
    placement *p = &u->given.place;
    TRY(list_pieces(u, &u->layout, unit_shard_pieces, &p->shard_pieces));
    TRY(list_pieces(u, &p->slices, unit_slice_pieces, &p->slice_pieces));
    u->given.is_shown = !shard_is_on_host(f);
    return !u->given.is_shown ? shard_alloc(f, u)
                              : comm_alloc_f32(p->gather_group, f->compute, MEM_PARAMS_SHARD,
                                               u->layout.shard_elems, "parameter shard", &u->shard);
}

/* Like task 2.1's gather_flat, but it gathers the rows of all ranks [FSDP2 RFC]. Gaps between slots
 * are not written. */
static fsdp_status dim0_gather(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    const dtype t = f->run.param_dtype;
    const void *send = unit->shard;
    void *rounded = NULL;
    fsdp_status status = FSDP_OK;
    TRY(comm_alloc(f->gather_group, f->gather_stream, MEM_PARAMS_FULL,
                   unit->layout.padded_elems * dtype_bytes(t), "gathered unit", &unit->full));
    unit->state = UNIT_GATHERING;
    if (t != DTYPE_F32 || !unit->given.is_shown) {
        TRY(comm_alloc(f->gather_group, f->gather_stream, MEM_COMM,
                       unit->layout.shard_elems * dtype_bytes(t), "shard for peers", &rounded));
        status = shard_cast(f, u, rounded);
        send = rounded;
    }
    if (status == FSDP_OK)
        status = comm_all_gather_pieces(f->gather_group, f->gather_stream, unit->name, t, send,
                                        unit->full, &unit->given.place.shard_pieces);
    device_free(f->gather_stream, rounded);
    TRY(status);
    return event_record(unit->gathered, f->gather_stream);
}

const gather_way GATHER_ROWS = {
    .begin = dim0_gather, .wait = gather_wait, .drop = unit_drop, .make = dim0_create};
