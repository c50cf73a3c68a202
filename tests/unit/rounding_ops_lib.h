/* rounding_ops_lib.h -- the portable operations in fp32, but every activation and every gradient of
 * an activation that they store is changed behind them. What layers in bf16 are compared to: shares
 * no code with the operations' DTYPE_BF16, and none with dtype_bytes or pointer arithmetic of
 * layers that depends on the type.
 *
 * Gradients of parameters stay as they are: matmul's are those with trans_a, as in every layer of
 * this tree. An array that it changes begins at a multiple of LAYER_ALIGN_BYTES (asserted); q, k, v
 * are slices of one. For a device that computes inline. */
#pragma once
#include "common/ops/ops.h"

/* ops_rounding -- stores the nearest bf16. */
const ops *ops_rounding(void);
/* ops_perturbing -- stores x (1 + 2^-8 z), z the next random number in -1 ... 1; seed starts them.
 * Rounding x to bf16 changes it by no more than 2^-8 |x|. */
const ops *ops_perturbing(uint64_t seed);
