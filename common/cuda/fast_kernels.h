/* fast_kernels.h -- operations that the fast table of the CUDA backend has for itself. Private to
 * common/cuda. Each is the operation of ops.h that has its name. */
#pragma once
#include "common/ops/ops.h"

EXTERN_C_BEGIN

/* fast_matmul ... fast_cross_entropy -- of the fast table. */
fsdp_status fast_matmul(stream *s, const matmul_args *a);
fsdp_status fast_bias_backward(stream *s, const bias_backward_args *a);
fsdp_status fast_layernorm(stream *s, const layernorm_args *a);
fsdp_status fast_layernorm_backward(stream *s, const layernorm_backward_args *a);
fsdp_status fast_attention(stream *s, const attention_args *a);
fsdp_status fast_attention_backward(stream *s, const attention_backward_args *a);
fsdp_status fast_cross_entropy(stream *s, const cross_entropy_args *a);

/* fast_matmul_finish -- what a matmul adds to its products [m,n]: out = products + bias + residual,
 * rounded as out is stored. products may be out; NULL: they are 0. */
fsdp_status fast_matmul_finish(stream *s, const matmul_args *a, const float *products);

/* matmul_open -- cuBLASLt of GPU number `index`, which is the thread's current one, and an empty
 * list of plans; matmul_close -- the streams have done their work. NULL is accepted.
 *   errors  FSDP_ENOMEM; FSDP_EDEVICE what cuBLASLt says */
struct cuda_matmul;
fsdp_status matmul_open(int index, struct cuda_matmul **out);
void matmul_close(struct cuda_matmul *m);

EXTERN_C_END
