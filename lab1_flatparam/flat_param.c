/* flat_param.c -- tasks 1.1, 1.2, 1.3 and 1.5: from parameters to one flat array that is cut into
 * shards, and from a shard back to parameters. */
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "common/model/init.h"
#include "lab1_flatparam/flat_param.h"

fsdp_status flat_layout_build(int n_params, const int *params, const size_t *elems,
                              flat_align align, int world_size, flat_layout *out)
{
    *out = (flat_layout){.world_size = world_size, .n_slots = n_params};
    if (n_params < 0 || align.slot_elems < 1 || align.shard_elems < 1 || world_size < 1)
        return fsdp_error(FSDP_EINVAL, "alignments count elements: 1 packs",
                          "flat_layout_build: got %d parameters, slot alignment %zu, shard "
                          "alignment %zu, world_size %d",
                          n_params, align.slot_elems, align.shard_elems, world_size);
    out->slots = calloc((size_t)n_params + 1, sizeof *out->slots);
    if (!out->slots)
        return fsdp_error(FSDP_ENOMEM, "", "flat_layout_build: no host memory for %d slots",
                          n_params);
    /* SOLUTION BEGIN 1.2 */
    size_t next = 0;
    for (int i = 0; i < n_params; i++) {
        out->slots[i] = (flat_slot){.param = params[i], .offset = next, .elems = elems[i]};
        if (elems[i] > SIZE_MAX - next)
            return fsdp_error(FSDP_EINVAL, "use a smaller model",
                              "flat_layout_build: parameter %d of %zu elements overflows",
                              params[i], elems[i]);
        TRY(size_align_up(next + elems[i], align.slot_elems, "flat array", &next));
    }
    shard_span span;
    TRY(shard_range(next, align.shard_elems, world_size, 0, &span));
    out->used_elems = next;
    out->shard_elems = span.shard_elems;
    out->padded_elems = span.shard_elems * (size_t)world_size;
    return FSDP_OK;
    /* SOLUTION END 1.2 */
}

static fsdp_status intersect_slots(const flat_layout *layout, int rank, flat_piece *pieces,
                                   int *n_pieces)
{
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

fsdp_status flat_intersect(const flat_layout *layout, int rank, flat_piece *pieces, int *n_pieces)
{
    *n_pieces = 0;
    return (layout->intersect ? layout->intersect : intersect_slots)(layout, rank, pieces,
                                                                     n_pieces);
}

fsdp_status shard_range(size_t total_elems, size_t align_elems, int world_size, int rank,
                        shard_span *out)
{
    /* SOLUTION BEGIN 1.1 */
    if (align_elems < 1 || world_size < 1 || rank < 0 || rank >= world_size)
        return fsdp_error(FSDP_EINVAL, "ranks count from 0 to world_size - 1, alignments from 1",
                          "shard_range: got rank %d of world_size %d, alignment %zu", rank,
                          world_size, align_elems);
    size_t w = (size_t)world_size, shard_elems, padded_elems;
    shard_elems = total_elems / w + (total_elems % w != 0); /* rounded up */
    TRY(size_align_up(shard_elems, align_elems, "shard", &shard_elems));
    TRY(size_mul(shard_elems, w, "flat array", &padded_elems));
    size_t begin = (size_t)rank * shard_elems;
    /* The last ranks may start past the end: n=5, W=4 gives shards of 2, and rank 3 starts at 6. */
    begin = begin < total_elems ? begin : total_elems;
    size_t left = total_elems - begin;
    out->shard_elems = shard_elems;
    out->begin = begin;
    out->elems = left < shard_elems ? left : shard_elems;
    out->pad_elems = shard_elems - out->elems;
    return FSDP_OK;
    /* SOLUTION END 1.1 */
}

fsdp_status flat_init_shard(const flat_layout *layout, const model *m, uint64_t seed, int rank,
                            float *shard)
{
    /* SOLUTION BEGIN 1.5 */
    flat_piece *pieces = calloc((size_t)layout->n_slots + 1, sizeof *pieces);
    if (!pieces)
        return fsdp_error(FSDP_ENOMEM, "", "flat_init_shard: no host memory");
    int n_pieces = 0;
    fsdp_status status = flat_intersect(layout, rank, pieces, &n_pieces);
    if (status == FSDP_OK) {
        memset(shard, 0, layout->shard_elems * sizeof *shard); /* gaps and padding too */
        for (int i = 0; i < n_pieces; i++) {
            int p = layout->slots[pieces[i].slot].param;
            param_init_range(&m->params[p], p, seed, pieces[i].param_begin, pieces[i].elems,
                             shard + pieces[i].shard_begin);
        }
    }
    free(pieces);
    return status;
    /* SOLUTION END 1.5 */
}
