/* dim0_gather.h -- lab 2, provided: a unit in the per-parameter layout (lab 1's dim0.h). Its shard
 * is not one slice of the gathered array but a piece of every parameter, so the unit has its own
 * gather. Everything else in this lab is the same for both layouts. */
#pragma once
#include "lab2_forward/fsdp.h"

/* dim0_create -- set the way of a unit that is laid out, list its pieces, and allocate its shard so
 * that peers can read it in place. dim0_free frees the lists; it accepts a unit in the flat layout.
 *   errors  FSDP_ENOMEM, and errors of flat_intersect and comm_alloc. Call dim0_free then, too */
fsdp_status dim0_create(fsdp *f, fsdp_unit *u);
void dim0_free(fsdp_unit *u);

/* dim0_gather -- like task 2.1's gather_flat, but it gathers the rows of all ranks. Gaps between
 * slots are not written.
 *   errors  of comm_alloc and comm_all_gather_pieces
 *   source  [FSDP2 RFC] */
fsdp_status dim0_gather(fsdp *f, int u);
