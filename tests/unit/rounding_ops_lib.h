/* rounding_ops_lib.h -- the portable operations in fp32, which change every activation and every
 * gradient of an activation after storing it. Layers in bf16 are compared with them. They share no
 * code with the operations' DTYPE_BF16, with dtype_bytes, or with pointer arithmetic of layers that
 * depends on the type.
 *
 * Gradients of parameters do not change: in every layer of this tree, matmul computes them with
 * trans_a. An array that changes begins at a multiple of LAYER_ALIGN_BYTES (asserted); q, k, v are
 * slices of one array. The device must compute inline. */
#pragma once
#include "common/ops/ops.h"

/* ops_rounding -- stores the nearest bf16. */
const ops *ops_rounding(void);
/* ops_perturbing -- stores x (1 + 2^-8 z), z the next random number in -1 ... 1; seed starts them.
 * Rounding x to bf16 changes it by no more than 2^-8 |x|. */
const ops *ops_perturbing(uint64_t seed);
