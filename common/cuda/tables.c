/* tables.c -- the op tables of the CUDA backend. */
#include "common/cuda/cuda_impl.h"
#include "common/cuda/fast_kernels.h"
#include "common/cuda/kernels.h"

#define SHARED_OPS .gelu = cuda_gelu, .adamw = cuda_adamw

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
    static const ops TABLE = {.name = "portable", SHARED_OPS};
    return &TABLE;
}
