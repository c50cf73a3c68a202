/* aclnn_math.h -- what the kernels of aclnn's stand-in share. */
#pragma once
#include "tests/sim/ascend/aclnn_sim.h"

EXTERN_C_BEGIN

/* sim_repeated -- t in another shape: repeated in dimensions of 1 and those that it lacks. */
sim_tensor sim_repeated(const sim_tensor *t, const sim_tensor *shape);
/* sim_load -- t as dense fp32, which the caller frees. sim_store -- the way back, with one rounding
 * to its type. sim_index -- element i of a vector of integers. */
float *sim_load(const sim_tensor *t);
void sim_store(const sim_tensor *t, const float *x);
int64_t sim_index(const sim_tensor *t, int64_t i);
/* sim_result -- where a result is made, filled with NaN: the workspace, or memory. sim_deliver --
 * it becomes `out`. */
float *sim_result(const sim_op *o, int64_t elems);
void sim_deliver(const sim_op *o, const sim_tensor *out, float *result);
/* sim_first -- with which of n terms a sum begins whose order is not fixed: another one each time,
 * unless ACL_OPT_DETERMINISTIC is set. */
int64_t sim_first(const sim_op *o, int64_t n);

EXTERN_C_END
