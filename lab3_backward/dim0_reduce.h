/* dim0_reduce.h -- lab 3, provided: gradients of a unit in the per-parameter layout (lab 1's
 * dim0.h), by REDUCE_ROWS of reduce.h. A rank's slice holds its rows of each parameter, or a part
 * of them. */
#pragma once
#include "lab3_backward/reduce.h"

/* dim0_reduce -- as task 3.2a's reduce_flat.
 *   moves   (W-1)*slice_elems*dtype_bytes(reduce_dtype) sent per rank
 *   source  [FSDP2 RFC] */
fsdp_status dim0_reduce(reducer *r, int u);
/* dim0_finish -- as task 3.3's finish_flat: scale, and zero the padding. */
fsdp_status dim0_finish(reducer *r, int u, float scale);
