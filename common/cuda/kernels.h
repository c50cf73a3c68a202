/* kernels.h -- the operations of the CUDA backend: what tables.c makes op tables of. Private to
 * common/cuda. Each is the operation of ops.h, or of sum/sum_kernels.h, that has its name. */
#pragma once
#include "common/ops/check_args.h"
#include "common/ops/ops.h"

EXTERN_C_BEGIN

/* cuda_embedding ... cuda_sgd -- of both tables. */
fsdp_status cuda_embedding(stream *s, const embedding_args *a);
fsdp_status cuda_embedding_backward(stream *s, const embedding_backward_args *a);
fsdp_status cuda_gelu(stream *s, const gelu_args *a);
fsdp_status cuda_gelu_backward(stream *s, const gelu_backward_args *a);
fsdp_status cuda_cast(stream *s, const cast_args *a);
fsdp_status cuda_add(stream *s, const add_args *a);
fsdp_status cuda_scale(stream *s, const scale_args *a);
fsdp_status cuda_sum_squares(stream *s, const sum_squares_args *a);
fsdp_status cuda_clip_coef(stream *s, const clip_coef_args *a);
fsdp_status cuda_adamw(stream *s, const adamw_args *a);
fsdp_status cuda_sgd(stream *s, const sgd_args *a);

/* portable_matmul ... portable_cross_entropy -- of the portable table. */
fsdp_status portable_matmul(stream *s, const matmul_args *a);
fsdp_status portable_bias_backward(stream *s, const bias_backward_args *a);
fsdp_status portable_layernorm(stream *s, const layernorm_args *a);
fsdp_status portable_layernorm_backward(stream *s, const layernorm_backward_args *a);
fsdp_status portable_attention(stream *s, const attention_args *a);
fsdp_status portable_attention_backward(stream *s, const attention_backward_args *a);
fsdp_status portable_cross_entropy(stream *s, const cross_entropy_args *a);

/* cuda_round -- the `round` of the sums; cuda_sum_launch -- their `launch` and `sum_i64`. */
fsdp_status cuda_round(stream *s, const round_args *a);
fsdp_status cuda_sum_launch(stream *s, const sum_launch *l);

EXTERN_C_END
