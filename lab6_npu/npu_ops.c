/* npu_ops.c -- the op table of an NPU. See npu_ops.h. */
#include "lab6_npu/npu_ops.h"

static const sum_kernels SUMS = {
    .add = npu_add, .round = npu_round, .launch = npu_sum_launch, .sum_i64 = npu_sum_launch};

const ops *ops_npu_fast(void)
{
    static const ops TABLE = {.name = "fast",
                              .matmul = npu_matmul,
                              .bias_backward = npu_bias_backward,
                              .embedding = npu_embedding,
                              .embedding_backward = npu_embedding_backward,
                              .layernorm = npu_layernorm,
                              .layernorm_backward = npu_layernorm_backward,
                              .gelu = npu_gelu,
                              .gelu_backward = npu_gelu_backward,
                              .attention = npu_attention,
                              .attention_backward = npu_attention_backward,
                              .cross_entropy = npu_cross_entropy,
                              .cast = npu_cast,
                              .add = npu_add,
                              .scale = npu_scale,
                              .sum_squares = npu_sum_squares,
                              .clip_coef = npu_clip_coef,
                              .adamw = npu_adamw,
                              .sgd = npu_sgd,
                              .sums = &SUMS};
    return &TABLE;
}
