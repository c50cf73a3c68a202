/* npu_ops.h -- the operations of ops.h on an NPU, composed of aclnn's operators; private to
 * lab6_npu. npu_ops.c has the table, the other npu_ops_*.c have the operations.
 *
 *   operation           aclnn's operators                   because
 *   matmul              Mm; InplaceAddmm to accumulate      a transposed operand is a view
 *     of bf16 with fp32 Cast, Mm, Add, Cast                 A2 multiplies no bf16 to fp32; rounding
 *     out, bias ...                                         comes last, and once
 *   bias_backward       ReduceSum, Add                      dtype FLOAT: sums of bf16 are fp32
 *   embedding           Embedding, Add                      the host checks the numbers before
 *   embedding_backward  EmbeddingDenseBackward, ReduceSum,  of fp32 rows: Cast before
 *                       Add
 *   layernorm           LayerNorm                           keeps mean and rstd in fp32
 *   layernorm_backward  LayerNormBackward, Add              gradients have weight's type, which has
 *                                                           to be fp32: Cast before
 *   rmsnorm             RmsNorm                             keeps rstd in fp32
 *   rmsnorm_backward    RmsNormGrad, Add                    of fp32 rows: Cast before, since the
 *                                                           residual is added before rounding
 *   rope                Mul, Cos, Sin (the angles),         not in place; in fp32: Cast before
 *                       RotaryPositionEmbedding, Copy
 *   swiglu              Silu, Mul                           SwiGlu wants gate and up in one array
 *   swiglu_backward     Silu, Mul, SiluBackward             likewise
 *   gelu                GeluV2                              knows the tanh form
 *   gelu_backward       GeluBackwardV2                      likewise
 *   attention           FillScalar, Triu (the mask),        O(T) beside the mask;
 *                       FlashAttentionScore, Log, Add       lse = max + log(sum)
 *   attention_backward  FlashAttentionScoreGrad             with max = lse and sum = 1
 *   cross_entropy       LogSoftmax, NLLLoss, its Backward,  not reduced: the host adds the losses
 *                       LogSoftmaxBackward                  of rows in double
 *   cast, add, scale    Cast, Add, Muls
 *   sum_squares         none: rsum, on the host             exact: any sharding, the same bits
 *   clip_coef           none: on the host                   two numbers, in double
 *   the updates         Mul, Muls, Add, Sqrt, Div, Divs,    the recipe's roundings in its order;
 *                       Adds                                ApplyAdamWV2 has others
 *   sums                Add, Cast                           Add of INT64 is exact */
#pragma once
#include "common/accel/accel.h"
#include "lab6_npu/aclnn_call.h"
#include "lab6_npu/npu_impl.h"

/* npu_type -- npu_acl_type, as the type of a view. */
static inline aclDataType npu_type(dtype t)
{
    return (aclDataType)npu_acl_type(t);
}

/* npu_widen -- *out = in [elems] as fp32: `in` itself, or a copy in *scratch. The caller frees
 * *scratch in order of s by device_free; it is NULL if no copy was needed. */
fsdp_status npu_widen(stream *s, const void *in, dtype type, size_t elems, const float **out,
                      float **scratch);
/* npu_add_grad -- grad [elems] += part. */
fsdp_status npu_add_grad(stream *s, float *grad, const float *part, size_t elems);
/* npu_host_task -- run fn(args) in order of s. *touches: the host memory that fn accesses. */
fsdp_status npu_host_task(stream *s, stream_fn fn, const void *args, size_t args_bytes,
                          const mem_access *touches);

/* npu_sum_launch -- the `launch` of sum_kernels. */
fsdp_status npu_sum_launch(stream *s, const sum_launch *l);

/* npu_matmul ... -- the operations of ops.h. */
#define OP(op, ...) fsdp_status npu_##op(stream *s, const op##_args *a);
#include "common/ops/op_list.h"

/* ISSUED(op) defines npu_op, which passes its arguments to op_issue, an accel_issue_fn. */
#define ISSUED(op)                                                                                 \
    fsdp_status npu_##op(stream *s, const op##_args *a)                                            \
    {                                                                                              \
        return accel_issue(s, op##_issue, a, op##_work(a));                                        \
    }
