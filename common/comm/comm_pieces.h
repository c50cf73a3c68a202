/* comm_pieces.h -- collectives whose shards are several pieces of an array. The collectives of
 * comm_calls.h have one slice for each rank; the rules for every collective stand there. */
#pragma once
#include "common/comm/comm_calls.h"

EXTERN_C_BEGIN

/* A run of elements of the array that a caller has. Collectives know the same elements in rank
 * order: there shard r, of rank r, is elements r*shard_elems ... (r+1)*shard_elems - 1. */
typedef struct comm_piece {
    size_t at;    /* of its first element, in rank order */
    size_t begin; /* of its first element, in the caller's array */
    size_t elems;
} comm_piece;

/* Which elements of an array are in which shard, where a shard is not one slice. All shards have
 * shard_elems elements. Elements of a shard that are in no piece are padding.
 * Worked example: two matrices of 5 and 3 rows, each at a multiple of 4 elements of the array, and
 * W = 2. Rank 0 has rows 0 ... 2 and 0 ... 1, rank 1 the rest. A row is one element:
 *     array     a a a a a . . . b b b      shard_elems 5: three rows of a, two of b
 *     in order  a a a b b | a a . b .      pieces {0,0,3} {3,8,2} {5,3,2} {8,10,1} */
typedef struct comm_pieces {
    const comm_piece *list; /* [n], at ascends; no piece is in two shards */
    size_t n;
    size_t shard_elems;
} comm_pieces;

/* comm_all_gather_pieces -- as comm_all_gather of send [shard_elems], but each piece goes to its
 * place in recv. The rest of recv is not written.
 *   send        a rank shows its peers this memory, so comm_alloc saves a copy
 *   pieces      borrowed, as its list is, until s has passed the call; the same on every rank
 *   in place    not allowed
 *   holds       the array in rank order, unless peers' memory is read in place
 *   moves       (W-1)*shard_elems sent per rank (read in place, the padding stays behind) */
fsdp_status comm_all_gather_pieces(comm *c, stream *s, const char *label, dtype t, const void *send,
                                   void *recv, const comm_pieces *pieces);
/* comm_reduce_scatter_pieces -- as comm_reduce_scatterv of the shards of send: each rank pushes the
 * W contributions to its own shard.
 *   pieces      as above
 *   acc         vectors of shard_elems, else FSDP_EINVAL. Their padding is undefined
 *   collective  also the same level and kind of acc
 *   holds       send in rank order, unless peers' memory is read in place
 *   moves       (W-1)*shard_elems of acc->sum_dtype sent per rank */
fsdp_status comm_reduce_scatter_pieces(comm *c, stream *s, const char *label, const float *send,
                                       const comm_pieces *pieces, grad_acc *acc, int level);

EXTERN_C_END
