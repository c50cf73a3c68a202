/* dim0_gather.h -- lab 2, provided: a unit in the per-parameter layout (lab 1's dim0.h). Its shard
 * is not one slice of the gathered array but a piece of every parameter, so the unit has its own
 * gather. Everything else in this lab is the same for both layouts. */
#pragma once
#include "lab2_forward/fsdp.h"

/* dim0_create -- list the pieces of a unit that is laid out, and allocate its shard so that peers
 * can read it in place. dim0_free frees the lists; it accepts a unit in the flat layout.
 *   errors  FSDP_ENOMEM, and errors of flat_intersect and comm_alloc. Call dim0_free then, too */
fsdp_status dim0_create(fsdp *f, fsdp_unit *u);
void dim0_free(fsdp_unit *u);

/* dim0_gather -- gather the rows of all ranks into full [padded_elems], of type t. Gaps between
 * slots are not written.
 *   t           DTYPE_F32, or param_dtype, to which the shard is rounded
 *   order       stream-ordered on gather_stream
 *   collective  all ranks of gather_group, units in the same order
 *   moves       (S-1)*shard_elems*dtype_bytes(t) sent per rank of a shard group of S
 *   errors      of comm_alloc and comm_all_gather_pieces
 *   source      [FSDP2 RFC] */
fsdp_status dim0_gather(fsdp *f, int u, dtype t, void *full);
/* dim0_unshard_begin -- what remains of unshard_begin after its checks. */
fsdp_status dim0_unshard_begin(fsdp *f, int u);
