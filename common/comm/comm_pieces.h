/* comm_pieces.h -- collectives whose shards are several pieces of an array. In comm_calls.h, which
 * has the rules for all collectives, a shard is one slice. */
#pragma once
#include "common/comm/comm_sums.h"

EXTERN_C_BEGIN

/* A run of elements, with its place in the caller's array and its place in rank order. In rank
 * order, elements r*shard_elems ... (r+1)*shard_elems - 1 are the shard of rank r. */
typedef struct comm_piece {
    size_t at;    /* place of the first element in rank order */
    size_t begin; /* place of the first element in the caller's array */
    size_t elems;
} comm_piece;

/* Which elements of an array are in which shard, for shards that are not one slice. Every shard has
 * shard_elems elements. Elements of a shard that are in no piece are padding.
 *
 * Worked example: two matrices of 5 and 3 rows of one element, each at a multiple of 4 elements of
 * the array; W = 2. Rank 0 has three rows of a and two of b, rank 1 the rest:
 *     array     a a a a a . . . b b b      shard_elems 5: three rows of a, two of b
 *     in order  a a a b b | a a . b .      pieces {0,0,3} {3,8,2} {5,3,2} {8,10,1} */
typedef struct comm_pieces {
    const comm_piece *list; /* [n], in ascending order of `at`; each piece lies in one shard */
    size_t n;
    size_t shard_elems;
} comm_pieces;

/* comm_all_gather_pieces -- like comm_all_gather of send [shard_elems], but each piece is copied to
 * its place in recv. The rest of recv is not written.
 *   send        peers read this memory; comm_alloc avoids a copy
 *   pieces      borrowed, with its list, until the call has run on s; the same on every rank
 *   in place    not allowed
 *   holds       the array in rank order, unless peers' memory is read in place
 *   moves       (W-1)*shard_elems sent per rank; padding is not sent if peers' memory is read in
 *               place */
fsdp_status comm_all_gather_pieces(comm *c, stream *s, const char *label, dtype t, const void *send,
                                   void *recv, const comm_pieces *pieces);
/* comm_reduce_scatter_pieces -- like comm_reduce_scatterv of the shards of send: each rank pushes
 * the W contributions to its own shard.
 *   pieces      as above
 *   acc         vectors of shard_elems, else FSDP_EINVAL. Their padding is undefined
 *   collective  also the same level and kind of acc
 *   holds       send in rank order, unless peers' memory is read in place
 *   moves       (W-1)*shard_elems of acc->sum_dtype sent per rank */
fsdp_status comm_reduce_scatter_pieces(comm *c, stream *s, const char *label, const float *send,
                                       const comm_pieces *pieces, grad_acc *acc, int level);

EXTERN_C_END
