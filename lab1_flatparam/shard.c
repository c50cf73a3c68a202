/* shard.c -- task 1.1: which part of a flat array a rank owns. */
#include "lab1_flatparam/flat_param.h"

fsdp_status shard_range(size_t total_elems, int world_size, int rank, shard_span *out)
{
    /* SOLUTION BEGIN 1.1 */
    if (world_size < 1 || rank < 0 || rank >= world_size)
        return fsdp_error(FSDP_EINVAL, "ranks count from 0 to world_size - 1",
                          "shard_range: got rank %d of world_size %d", rank, world_size);
    size_t w = (size_t)world_size, r = (size_t)rank;
    size_t shard_elems = total_elems / w + (total_elems % w != 0); /* rounded up */
    size_t begin = r * shard_elems;
    /* The last ranks may start behind the end: n=5, W=4 gives shards of 2, and rank 3 starts at
     * 6. */
    begin = begin < total_elems ? begin : total_elems;
    size_t left = total_elems - begin;
    out->shard_elems = shard_elems;
    out->begin = begin;
    out->elems = left < shard_elems ? left : shard_elems;
    out->pad_elems = shard_elems - out->elems;
    return FSDP_OK;
    /* SOLUTION END 1.1 */
}
