/* dim0_reduce.h -- lab 3, provided: gradients of a unit in the per-parameter layout (lab 1's
 * dim0.h). A rank's slice holds its rows of each parameter, or a part of them. */
#pragma once
#include "lab3_backward/second_use.h"

/* dim0_reduce_begin -- what remains of reduce_begin after its checks, except the second use.
 *   moves   (W-1)*slice_elems*dtype_bytes(reduce_dtype) sent per rank
 *   source  [FSDP2 RFC] */
fsdp_status dim0_reduce_begin(reducer *r, int u);
/* dim0_grad_finish -- what remains of grad_finish after grad_sum: scale, and zero the padding. */
fsdp_status dim0_grad_finish(reducer *r, int u, float scale);
/* dim0_second_use -- s is set up for the flat layout. Correct what depends on rows: the slice of
 * its parameter that each rank keeps, and slice_begin. */
void dim0_second_use(const fsdp *f, int u, second_use *s);
