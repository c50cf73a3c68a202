/* cpu_tables.c -- the two maths libraries of the CPU.
 *
 * They share every operation but those that multiply matrices: there, "fast" calls oneDNN and
 * "portable" calls gemm_portable.c, whose bits are the same on every machine. */
#include "common/ops/cpu_kernels.h"

static fsdp_status fast_matmul(stream *s, const matmul_args *a)
{
    return matmul_launch(s, a, gemm_dnnl);
}

static fsdp_status fast_attention(stream *s, const attention_args *a)
{
    return attention_launch(s, a, gemm_dnnl, true);
}

static fsdp_status fast_attention_backward(stream *s, const attention_backward_args *a)
{
    return attention_backward_launch(s, a, gemm_dnnl, true);
}

static fsdp_status portable_matmul(stream *s, const matmul_args *a)
{
    return matmul_launch(s, a, gemm_portable);
}

static fsdp_status portable_attention(stream *s, const attention_args *a)
{
    return attention_launch(s, a, gemm_portable, false);
}

static fsdp_status portable_attention_backward(stream *s, const attention_backward_args *a)
{
    return attention_backward_launch(s, a, gemm_portable, false);
}

static const sum_kernels SUMS = {.add = cpu_add, .cast = cpu_cast, .launch = sum_launch_cpu};

#define SHARED_OPS                                                                                 \
    .bias_backward = cpu_bias_backward, .embedding = cpu_embedding,                                \
    .embedding_backward = cpu_embedding_backward, .layernorm = cpu_layernorm,                      \
    .layernorm_backward = cpu_layernorm_backward, .gelu = cpu_gelu,                                \
    .gelu_backward = cpu_gelu_backward, .cross_entropy = cpu_cross_entropy, .cast = cpu_cast,      \
    .add = cpu_add, .scale = cpu_scale, .sum_squares = cpu_sum_squares,                            \
    .clip_coef = cpu_clip_coef, .adamw = cpu_adamw, .sgd = cpu_sgd, .sums = &SUMS

const ops *ops_cpu_fast(void)
{
    static const ops TABLE = {
#ifdef FSDP_HAVE_DNNL
        .name = "fast",
#else
        .name = "fast (without oneDNN)",
#endif
        .matmul = fast_matmul,
        .attention = fast_attention,
        .attention_backward = fast_attention_backward,
        SHARED_OPS,
    };
    return &TABLE;
}

const ops *ops_cpu_portable(void)
{
    static const ops TABLE = {
        .name = "portable",
        .matmul = portable_matmul,
        .attention = portable_attention,
        .attention_backward = portable_attention_backward,
        SHARED_OPS,
    };
    return &TABLE;
}
