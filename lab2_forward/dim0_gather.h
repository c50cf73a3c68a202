/* dim0_gather.h -- lab 2, provided: a unit in the per-parameter layout (lab 1's dim0.h). Its shard
 * is not one slice of the gathered array but a piece of every parameter, so it has a gather of its
 * own. All else in this lab is the same for both layouts. */
#pragma once
#include "lab2_forward/fsdp.h"

/* dim0_create -- list the pieces of a unit that is laid out, and allocate its shard, which peers
 * read in place where they can. dim0_free: free the lists; a unit in the flat layout is accepted.
 *   errors  FSDP_ENOMEM, those of flat_intersect and comm_alloc; dim0_free cleans up */
fsdp_status dim0_create(fsdp *f, fsdp_unit *u);
void dim0_free(fsdp_unit *u);

/* dim0_gather -- full [padded_elems] of type t = all ranks' rows. Gaps between slots are not
 * written.
 *   t           DTYPE_F32, or param_dtype, to which the shard is rounded
 *   order       stream-ordered on gather_stream
 *   collective  all ranks of gather_group, units in the same order
 *   moves       (S-1)*shard_elems*dtype_bytes(t) sent per rank of a shard group of S
 *   errors      those of comm_alloc and comm_all_gather_pieces
 *   source      [FSDP2 RFC] */
fsdp_status dim0_gather(fsdp *f, int u, dtype t, void *full);
/* dim0_unshard_begin -- unshard_begin after its checks. */
fsdp_status dim0_unshard_begin(fsdp *f, int u);
