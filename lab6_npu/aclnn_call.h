/* aclnn_call.h -- the operators of aclnn that npu_ops*.c use, for C: aclnn's headers are C++.
 *
 *     const npu_view w = view_2d(a->w, ACL_FLOAT, rows, cols);
 *     TRY(aclnn_mm(s, out, x, view_transposed(w)));
 *
 * A view (npu_view.h) describes an array; its tensor (aclTensor) lives during one call. Each
 * function runs both phases of one operator: aclnnXxxGetWorkspaceSize and aclnnXxx on s. The
 * workspace is allocated on s and freed on s after the second phase. The work is issued on s when
 * the function returns; arrays must live until it has run.
 *
 *   in place  out may be the same view as the first input of an element-wise function; then the
 *             operator's in-place form is used
 *   errors    FSDP_EINVAL: aclnn refused; FSDP_EDEVICE; both with aclnn's message. FSDP_ENOMEM
 *   source    [CANN two-phase API] and, for each function, [CANN aclnnXxx] */
#pragma once
#include "common/device/device.h"
#include "lab6_npu/npu_view.h"

EXTERN_C_BEGIN

/* ---- products: of matrices [m,k] and [k,n], summed in fp32 ----------------------------------- */

/* aclnn_mm -- out = a b, all of one type. aclnn_mm_add -- io += a b, all fp32. */
fsdp_status aclnn_mm(stream *s, npu_view out, npu_view a, npu_view b);
fsdp_status aclnn_mm_add(stream *s, npu_view io, npu_view a, npu_view b);

/* ---- element by element ---------------------------------------------------------------------- */

/* aclnn_add ... aclnn_sin -- one operator each. A b smaller than out is repeated
 * (broadcast). aclnn_sub_from: io -= b. */
fsdp_status aclnn_add(stream *s, npu_view out, npu_view a, npu_view b);
fsdp_status aclnn_sub_from(stream *s, npu_view io, npu_view b);
fsdp_status aclnn_mul(stream *s, npu_view out, npu_view a, npu_view b);
fsdp_status aclnn_div_by(stream *s, npu_view io, npu_view b);
fsdp_status aclnn_muls(stream *s, npu_view out, npu_view a, float factor);
fsdp_status aclnn_divs_by(stream *s, npu_view io, float divisor);
fsdp_status aclnn_adds_to(stream *s, npu_view io, float term);
fsdp_status aclnn_sqrt(stream *s, npu_view out, npu_view in);
fsdp_status aclnn_log(stream *s, npu_view out, npu_view in);
fsdp_status aclnn_cos(stream *s, npu_view out, npu_view in);
fsdp_status aclnn_sin(stream *s, npu_view out, npu_view in);
/* aclnn_cast -- to the type of out, to nearest, ties to even. aclnn_copy -- out and in have the
 * same type; a smaller `in` is repeated. aclnn_fill -- the type must hold `value` exactly. */
fsdp_status aclnn_cast(stream *s, npu_view out, npu_view in);
fsdp_status aclnn_copy(stream *s, npu_view out, npu_view in);
fsdp_status aclnn_fill(stream *s, npu_view out, float value);
fsdp_status aclnn_zero(stream *s, npu_view out);
/* aclnn_triu -- set element (i,j) to 0 if j < i + diagonal. */
fsdp_status aclnn_triu(stream *s, npu_view io, int64_t diagonal);
/* aclnn_gelu, aclnn_gelu_backward -- the tanh form. */
fsdp_status aclnn_gelu(stream *s, npu_view out, npu_view in);
fsdp_status aclnn_gelu_backward(stream *s, npu_view d_in, npu_view d_out, npu_view in);
/* aclnn_silu, aclnn_silu_backward -- x / (1 + exp(-x)). */
fsdp_status aclnn_silu(stream *s, npu_view out, npu_view in);
fsdp_status aclnn_silu_backward(stream *s, npu_view d_in, npu_view d_out, npu_view in);
/* aclnn_rotary -- out [B,T,H,D] is dense and must not be `in`. Pair (a,b) of a head becomes
 *
 *     (a cos - b sin, b cos + a sin)
 *
 * with cos and sin [1,T,1,D], of the same type. */
fsdp_status aclnn_rotary(stream *s, npu_view out, npu_view in, npu_view cos, npu_view sin,
                         bool interleaved);

/* ---- sums and rows --------------------------------------------------------------------------- */

/* aclnn_reduce_sum -- out = the sum over the first dimension of in, in fp32. */
fsdp_status aclnn_reduce_sum(stream *s, npu_view out, npu_view in);

typedef struct norm_views {
    npu_view in, gain, mean, rstd; /* [rows,cols], [cols], [rows,1] twice */
} norm_views;

/* aclnn_layernorm -- writes out, x->mean and x->rstd. aclnn_layernorm_backward -- all fp32. */
fsdp_status aclnn_layernorm(stream *s, npu_view out, const norm_views *x, npu_view bias,
                            double eps);
fsdp_status aclnn_layernorm_backward(stream *s, npu_view d_in, npu_view d_gain, npu_view d_bias,
                                     npu_view d_out, const norm_views *x);
/* aclnn_rmsnorm -- writes out and x->rstd. aclnn_rmsnorm_backward -- d_gain in fp32. Rows: at least
 * one. There is no x->mean. */
fsdp_status aclnn_rmsnorm(stream *s, npu_view out, const norm_views *x, double eps);
fsdp_status aclnn_rmsnorm_backward(stream *s, npu_view d_in, npu_view d_gain, npu_view d_out,
                                   const norm_views *x);

/* aclnn_log_softmax, aclnn_log_softmax_backward -- of each row, the last dimension. backward: d_in
 * = d_out - exp(out) * sum(d_out). */
fsdp_status aclnn_log_softmax(stream *s, npu_view out, npu_view in);
fsdp_status aclnn_log_softmax_backward(stream *s, npu_view d_in, npu_view d_out, npu_view out);

/* The arguments that the loss and its backward share. */
typedef struct nll_views {
    npu_view log_p, target; /* [rows,classes] f32, [rows] i32 */
    npu_view weight, total; /* [classes] f32: 1 for each class; [1] f32: written but not used */
} nll_views;

/* aclnn_nll_loss -- loss [rows] = -log_p[r, target[r]]. backward: d_log_p [rows,classes] is -d_loss
 * [rows] at the targets and 0 elsewhere. */
fsdp_status aclnn_nll_loss(stream *s, npu_view loss, const nll_views *x);
fsdp_status aclnn_nll_loss_backward(stream *s, npu_view d_log_p, npu_view d_loss,
                                    const nll_views *x);

/* aclnn_embedding -- row r of out [n,C] is row numbers[r] of table [V,C]; numbers [n] i32.
 * backward: d_table [V,C] is overwritten by sums of rows of d_out [n,C]; fp32. */
fsdp_status aclnn_embedding(stream *s, npu_view out, npu_view table, npu_view numbers);
fsdp_status aclnn_embedding_backward(stream *s, npu_view d_table, npu_view d_out, npu_view numbers);

/* ---- attention ------------------------------------------------------------------------------- */

/* q [B,T,H*D], k [B,T,KV*D] and v [B,T,KV*Dv], Dv <= D; there may be gaps between rows. `max` and
 * `sum` [B,H,T,8] f32 are the softmax's maximum and divisor of each row. mask [T,T] u8, 1: masked.
 * Older releases of CANN accept only Dv == D. */
typedef struct attention_views {
    npu_view q, k, v, out, max, sum, mask;
    double scale;
    int64_t n_head;
} attention_views;

/* aclnn_attention -- writes out, max and sum. backward: reads them, and writes d_q, d_k and d_v,
 * which have the shapes of q, k and v. */
fsdp_status aclnn_attention(stream *s, const attention_views *x);
fsdp_status aclnn_attention_backward(stream *s, npu_view d_q, npu_view d_k, npu_view d_v,
                                     npu_view d_out, const attention_views *x);

EXTERN_C_END
