/* tables.c -- the op tables of the CUDA backend. */
#include "common/cuda/cuda_impl.h"
#include "common/cuda/fast_kernels.h"
#include "common/cuda/kernels.h"

static const sum_kernels SUMS = {
    .add = cuda_add, .round = cuda_round, .launch = cuda_sum_launch, .sum_i64 = cuda_sum_launch};

#define SHARED_OPS                                                                                 \
    .embedding = cuda_embedding, .embedding_backward = cuda_embedding_backward, .gelu = cuda_gelu, \
    .gelu_backward = cuda_gelu_backward, .cast = cuda_cast, .add = cuda_add, .scale = cuda_scale,  \
    .sum_squares = cuda_sum_squares, .clip_coef = cuda_clip_coef, .adamw = cuda_adamw,             \
    .sgd = cuda_sgd, .sums = &SUMS

const ops *ops_cuda_fast(void)
{
    static const ops TABLE = {.name = "fast",
                              .matmul = fast_matmul,
                              .bias_backward = fast_bias_backward,
                              .layernorm = fast_layernorm,
                              .layernorm_backward = fast_layernorm_backward,
                              .cross_entropy = fast_cross_entropy,
                              .attention = fast_attention,
                              .attention_backward = fast_attention_backward,
                              SHARED_OPS};
    return &TABLE;
}

const ops *ops_cuda_portable(void)
{
    static const ops TABLE = {.name = "portable",
                              .matmul = portable_matmul,
                              .bias_backward = portable_bias_backward,
                              .layernorm = portable_layernorm,
                              .layernorm_backward = portable_layernorm_backward,
                              .attention = portable_attention,
                              .attention_backward = portable_attention_backward,
                              .cross_entropy = portable_cross_entropy,
                              SHARED_OPS};
    return &TABLE;
}
