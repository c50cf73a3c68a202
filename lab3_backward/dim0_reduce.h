/* dim0_reduce.h -- lab 3, provided: gradients of a unit in the per-parameter layout (lab 1's
 * dim0.h). A rank's slice has a piece of every parameter of which the rank has rows. */
#pragma once
#include "lab3_backward/second_use.h"

/* dim0_reduce_begin -- the rest of reduce_begin, after its checks, without second uses.
 *   moves   (W-1)*slice_elems*dtype_bytes(reduce_dtype) sent per rank
 *   source  [FSDP2 RFC] */
fsdp_status dim0_reduce_begin(reducer *r, int u);
/* dim0_grad_finish -- the rest of grad_finish, after grad_sum: scale, and zero the padding. */
fsdp_status dim0_grad_finish(reducer *r, int u, float scale);
/* dim0_second_use -- change s, which is set up for the flat layout, where rows matter: set the
 * slice of its parameter that each rank keeps, and slice_begin. */
void dim0_second_use(const fsdp *f, int u, second_use *s);
