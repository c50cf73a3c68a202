/* dim0.c -- task 1.6: shards of whole rows. */
#include "lab1_flatparam/dim0.h"
#include <stdlib.h>
#include "common/base/dtype.h"

fsdp_status dim0_layout(flat_layout *l, const param_spec *params, int shard_size, flat_align align)
{
    const int n_slices = l->world_size / shard_size; /* per shard */
    l->rows = calloc((size_t)l->n_slots + 1, sizeof *l->rows);
    if (!l->rows)
        return fsdp_error(FSDP_ENOMEM, "", "dim0_layout: no host memory");
    if (shard_size > 1) {
        l->row_ranks = shard_size;
        l->intersect = dim0_intersect;
        l->padded_elems = l->used_elems;
    }
    /* SOLUTION BEGIN 1.6 */
    const size_t s = (size_t)shard_size, n = (size_t)n_slices;
    size_t next = 0;
    for (int i = 0; i < l->n_slots; i++) {
        const param_spec *p = &params[l->slots[i].param];
        const size_t d0 = p->dims[0], row_elems = p->elems / d0;
        const size_t room = (d0 / s + (d0 % s != 0)) * row_elems; /* ceil(d0/S) rows */
        l->rows[i] = (dim0_rows){row_elems, room, next};
        TRY(size_align_up(next + room, align.slot_elems, "shard", &next));
    }
    return size_align_up(next / n + (next % n != 0), align.shard_elems, "slice", &l->shard_elems);
    /* SOLUTION END 1.6 */
}

fsdp_status dim0_intersect(const flat_layout *layout, int rank, flat_piece *pieces, int *n_pieces)
{
    const int n_slices = layout->world_size / layout->row_ranks; /* per shard */
    *n_pieces = 0;
    /* SOLUTION BEGIN 1.6 */
    const size_t shard = (size_t)(rank / n_slices);
    const size_t slice_begin = (size_t)(rank % n_slices) * layout->shard_elems;
    const size_t slice_end = slice_begin + layout->shard_elems;
    for (int i = 0; i < layout->n_slots; i++) {
        const flat_slot *slot = &layout->slots[i];
        const size_t room = layout->rows[i].room_elems, at = layout->rows[i].shard_begin;
        const size_t first = min_size(shard * room, slot->elems); /* in the parameter */
        const size_t elems = min_size(room, slot->elems - first);
        const size_t begin = at > slice_begin ? at : slice_begin;
        const size_t end = min_size(at + elems, slice_end);
        if (begin < end)
            pieces[(*n_pieces)++] = (flat_piece){.slot = i,
                                                 .param_begin = first + (begin - at),
                                                 .shard_begin = begin - slice_begin,
                                                 .elems = end - begin};
    }
    return FSDP_OK;
    /* SOLUTION END 1.6 */
}
