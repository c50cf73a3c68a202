/* kernels.h -- the operations of the CUDA backend, which tables.c collects in op tables. Private to
 * common/cuda. Each implements the operation of the same name in ops.h or sum/sum_kernels.h. */
#pragma once
#include "common/ops/ops.h"

EXTERN_C_BEGIN

/* cuda_sum_launch -- the `launch` of sum_kernels. */
fsdp_status cuda_sum_launch(stream *s, const sum_launch *l);

/* fast_matmul_finish -- the end of a matmul: out = products [m,n] + bias + residual, rounded to the
 * type of out. products may be the same array as out; NULL: all products are 0. */
fsdp_status fast_matmul_finish(stream *s, const matmul_args *a, const float *products);

/* matmul_open -- open cuBLASLt for GPU number `index`, the thread's current device, with an empty
 * set of plans. matmul_close -- no stream has work; NULL is accepted.
 *   errors  FSDP_ENOMEM; FSDP_EDEVICE an error of cuBLASLt */
struct cuda_matmul;
fsdp_status matmul_open(int index, struct cuda_matmul **out);
void matmul_close(struct cuda_matmul *m);

/* EACH_SHARED_OP -- DO(name) for each operation that both tables share. EACH_OWN_OP -- DO(name) for
 * each operation that each table implements itself. */
/* clang-format off */
#define EACH_SHARED_OP(DO)                                                                         \
    DO(embedding) DO(embedding_backward) DO(gelu) DO(gelu_backward) DO(swiglu) DO(swiglu_backward) \
    DO(rope) DO(cast) DO(add) DO(scale) DO(sum_squares) DO(clip_coef) DO(adamw) DO(sgd)            \
    DO(adadelta) EACH_MNIST_OP(DO)
#define EACH_OWN_OP(DO)                                                                            \
    DO(matmul) DO(bias_backward) DO(layernorm) DO(layernorm_backward) DO(rmsnorm)                  \
    DO(rmsnorm_backward) DO(attention) DO(attention_backward) DO(cross_entropy)
/* clang-format on */

/* cuda_embedding ... cuda_dropout -- in both tables. portable_matmul ... portable_cross_entropy --
 * in the portable table. fast_matmul ... fast_cross_entropy -- in the fast table. */
#define DECLARE_SHARED(op) fsdp_status cuda_##op(stream *s, const op##_args *a);
#define DECLARE_OWN(op)                                                                            \
    fsdp_status portable_##op(stream *s, const op##_args *a);                                      \
    fsdp_status fast_##op(stream *s, const op##_args *a);
EACH_SHARED_OP(DECLARE_SHARED)
EACH_OWN_OP(DECLARE_OWN)
#undef DECLARE_SHARED
#undef DECLARE_OWN

EXTERN_C_END
