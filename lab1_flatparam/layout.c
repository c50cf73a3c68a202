/* layout.c -- tasks 1.2 and 1.3: from parameters to one flat array, and from a shard back to
 * them. */
#include <stdlib.h>
#include "common/base/dtype.h"
#include "lab1_flatparam/flat_param.h"

fsdp_status flat_layout_build(int n_params, const int *params, const size_t *elems,
                              size_t align_elems, int world_size, flat_layout *out)
{
    *out = (flat_layout){.world_size = world_size, .n_slots = n_params};
    if (n_params < 0 || align_elems < 1 || world_size < 1)
        return fsdp_error(FSDP_EINVAL, "", "flat_layout_build: got %d parameters, align %zu, W %d",
                          n_params, align_elems, world_size);
    out->slots = calloc((size_t)n_params + 1, sizeof *out->slots);
    if (!out->slots)
        return fsdp_error(FSDP_ENOMEM, "", "flat_layout_build: no host memory for %d slots",
                          n_params);
    /* SOLUTION BEGIN 1.2 */
    size_t next = 0;
    for (int i = 0; i < n_params; i++) {
        out->slots[i] = (flat_slot){.param = params[i], .offset = next, .elems = elems[i]};
        if (elems[i] > SIZE_MAX / 8 || next > SIZE_MAX / 8)
            return fsdp_error(FSDP_EINVAL, "use a smaller model",
                              "flat_layout_build: parameter %d of %zu elements overflows",
                              params[i], elems[i]);
        next += elems[i];
        next = (next + align_elems - 1) / align_elems * align_elems;
    }
    shard_span span;
    TRY(shard_range(next, world_size, 0, &span));
    out->used_elems = next;
    out->shard_elems = span.shard_elems;
    out->padded_elems = span.shard_elems * (size_t)world_size;
    return FSDP_OK;
    /* SOLUTION END 1.2 */
}

void flat_layout_free(flat_layout *l)
{
    free(l->slots);
    *l = (flat_layout){0};
}

fsdp_status flat_intersect(const flat_layout *layout, int rank, flat_piece *pieces, int *n_pieces)
{
    *n_pieces = 0;
    /* SOLUTION BEGIN 1.3 */
    size_t shard_begin = (size_t)rank * layout->shard_elems;
    size_t shard_end = shard_begin + layout->shard_elems;
    for (int i = 0; i < layout->n_slots; i++) {
        const flat_slot *slot = &layout->slots[i];
        size_t begin = slot->offset > shard_begin ? slot->offset : shard_begin;
        size_t slot_end = slot->offset + slot->elems;
        size_t end = slot_end < shard_end ? slot_end : shard_end;
        if (begin >= end)
            continue;
        pieces[(*n_pieces)++] = (flat_piece){.slot = i,
                                             .param_begin = begin - slot->offset,
                                             .shard_begin = begin - shard_begin,
                                             .elems = end - begin};
    }
    return FSDP_OK;
    /* SOLUTION END 1.3 */
}
