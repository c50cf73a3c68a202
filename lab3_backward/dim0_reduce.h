/* dim0_reduce.h -- lab 3, provided: gradients of a unit in the per-parameter layout (lab 1's
 * dim0.h). A rank's slice is a piece of every parameter that it has rows of. */
#pragma once
#include "lab3_backward/second_use.h"

/* dim0_reduce_begin -- reduce_begin after its checks, without the second use.
 *   moves   (W-1)*slice_elems*dtype_bytes(reduce_dtype) sent per rank
 *   source  [FSDP2 RFC] */
fsdp_status dim0_reduce_begin(reducer *r, int u);
/* dim0_grad_finish -- grad_finish after grad_sum: multiply, and zero what is in no row. */
fsdp_status dim0_grad_finish(reducer *r, int u, float scale);
/* dim0_second_use -- the parts of s, which is set up for the flat layout, that depend on rows: the
 * slice of its parameter that each rank keeps, and slice_begin. */
void dim0_second_use(const fsdp *f, int u, second_use *s);
