/* aclnn_call.cpp -- both phases of each operator of aclnn_call.h. The code is C; it is compiled as
 * C++ because the headers of aclnn are C++.
 *
 *     one call:  describe the arguments (aclCreateTensor ...)
 *                -> aclnnXxxGetWorkspaceSize: aclnn checks them, and makes an executor
 *                -> allocate the workspace -> aclnnXxx: issues the work, destroys the executor
 *                -> free the workspace in order of the stream -> destroy the descriptions
 *
 * cubeMathType is always 0: a product keeps the type of its operands; fp32 is not cut to HF32. */
#include "lab6_npu/aclnn_call.h"
#include "acl/acl.h"
#include "aclnnop/aclnn_add.h"
#include "aclnnop/aclnn_addmm.h"
#include "aclnnop/aclnn_cast.h"
#include "aclnnop/aclnn_copy.h"
#include "aclnnop/aclnn_cos.h"
#include "aclnnop/aclnn_div.h"
#include "aclnnop/aclnn_embedding.h"
#include "aclnnop/aclnn_embedding_dense_backward.h"
#include "aclnnop/aclnn_fill_scalar.h"
#include "aclnnop/aclnn_flash_attention_score.h"
#include "aclnnop/aclnn_flash_attention_score_grad.h"
#include "aclnnop/aclnn_gelu_backward_v2.h"
#include "aclnnop/aclnn_gelu_v2.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "aclnnop/aclnn_log.h"
#include "aclnnop/aclnn_logsoftmax.h"
#include "aclnnop/aclnn_logsoftmax_backward.h"
#include "aclnnop/aclnn_mm.h"
#include "aclnnop/aclnn_mul.h"
#include "aclnnop/aclnn_nll_loss.h"
#include "aclnnop/aclnn_nll_loss_backward.h"
#include "aclnnop/aclnn_reduce_sum.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_silu.h"
#include "aclnnop/aclnn_silu_backward.h"
#include "aclnnop/aclnn_sin.h"
#include "aclnnop/aclnn_sqrt.h"
#include "aclnnop/aclnn_triu.h"
#include "aclnnop/aclnn_zero.h"
#include "common/accel/accel.h"

enum { KEEP_DTYPE = 0 }; /* cubeMathType */
enum { MOST_TENSORS = 12, MOST_SCALARS = 2 };
/* [CANN aclCreateTensor]: the data of a tensor begins at a multiple of this many bytes. */
enum { TENSOR_ALIGN = 32 };

/* One operator's call, and the objects that were created for it. */
typedef struct op_call {
    stream *s;
    uint64_t workspace_bytes; /* result of the first phase, like the next two members */
    aclOpExecutor *executor;
    aclnnStatus code;
    int n_tensors, n_scalars;
    aclTensor *tensor[MOST_TENSORS];
    aclScalar *scalar[MOST_SCALARS];
    aclIntArray *ints; /* NULL: none; also for bools */
    aclBoolArray *bools;
} op_call;

/* The second phase of an operator. */
typedef aclnnStatus (*run_fn)(void *workspace, uint64_t bytes, aclOpExecutor *, aclrtStream);

static size_t element_bytes(aclDataType type)
{
    return type == ACL_INT64 ? 8 : type == ACL_BF16 ? 2 : type == ACL_UINT8 ? 1 : 4;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *code_name(aclnnStatus code)
{
    switch (code) {
    case 161001:
        return "ACLNN_ERR_PARAM_NULLPTR";
    case 161002:
        return "ACLNN_ERR_PARAM_INVALID";
    case 361001:
        return "ACLNN_ERR_RUNTIME_ERROR";
    case 561003:
        return "ACLNN_ERR_INNER_FIND_KERNEL_ERROR";
    case 561107:
        return "ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND";
    }
    return code / 1000 == 561 ? "ACLNN_ERR_INNER" : "an error";
}

/* The status for a code of aclnn. Codes 161xxx: an argument is wrong. */
static fsdp_status status_of(aclnnStatus code, const char *name)
{
    if (code == 0)
        return FSDP_OK;
    const char *words = aclGetRecentErrMsg();
    const bool no_kernels = code == 561003 || code == 561107;
    return fsdp_error(code / 1000 == 161 ? FSDP_EINVAL : FSDP_EDEVICE,
                      no_kernels ? "install CANN's kernels for this NPU, and source set_env.sh"
                                 : "look up the code under \"aclnn return codes\" in CANN's API "
                                   "reference",
                      "%s: %s (%d): %s", name, code_name(code), (int)code,
                      words != NULL ? words : "no message from CANN");
}

/* ---- descriptions: they live until the call is over ------------------------------------------ */

/* The number of elements in storage from v's first element to its last, both included. */
static int64_t span_elems(const npu_view *v)
{
    int64_t last = 0;
    for (int i = 0; i < v->n_dims; i++) {
        if (v->dim[i] == 0)
            return 0;
        last += (v->dim[i] - 1) * v->stride[i];
    }
    return last + 1;
}

/* A tensor for v. Its data begins at the last aligned address at or before v's; its offset is the
 * number of elements from there to v. */
static aclTensor *tensor(op_call *c, npu_view v)
{
    const size_t bytes = element_bytes(v.type);
    const int64_t span = span_elems(&v);
    FSDP_ASSERT(c->n_tensors < MOST_TENSORS);
    /* SOLUTION BEGIN 6.5 */
    const size_t before = (uintptr_t)v.ptr % TENSOR_ALIGN;
    const int64_t offset = (int64_t)(before / bytes), storage = offset + span;
    aclTensor *t = aclCreateTensor(v.dim, (uint64_t)v.n_dims, v.type, v.stride, offset,
                                   ACL_FORMAT_ND, &storage, 1, (char *)v.ptr - before);
    if (t != NULL)
        c->tensor[c->n_tensors++] = t;
    return t;
    /* STUB: return NULL; */
    /* SOLUTION END 6.5 */
}

static aclScalar *scalar(op_call *c, float value)
{
    aclScalar *x = aclCreateScalar(&value, ACL_FLOAT);
    FSDP_ASSERT(c->n_scalars < MOST_SCALARS);
    if (x != NULL)
        c->scalar[c->n_scalars++] = x;
    return x;
}

static aclIntArray *ints(op_call *c, int64_t value)
{
    return c->ints = aclCreateIntArray(&value, 1);
}

/* The wanted gradients: all three, of input, gain and bias. */
static aclBoolArray *all_wanted(op_call *c)
{
    const bool wanted[] = {true, true, true};
    return c->bools = aclCreateBoolArray(wanted, 3);
}

static void destroy_descriptions(op_call *c)
{
    for (int i = 0; i < c->n_tensors; i++)
        (void)aclDestroyTensor(c->tensor[i]);
    for (int i = 0; i < c->n_scalars; i++)
        (void)aclDestroyScalar(c->scalar[i]);
    if (c->ints != NULL)
        (void)aclDestroyIntArray(c->ints);
    if (c->bools != NULL)
        (void)aclDestroyBoolArray(c->bools);
}

/* ---- the two phases -------------------------------------------------------------------------- */

/* The rest of the call after the first phase, whose code, workspace size and executor are in c. The
 * operator uses the workspace until the stream has run it, so the workspace is freed in order of
 * the stream. An executor that was not run is destroyed. */
static fsdp_status execute(op_call *c, const char *name, run_fn run)
{
    fsdp_status status = status_of(c->code, name);
    /* SOLUTION BEGIN 6.5 */
    void *workspace = NULL;
    if (status == FSDP_OK && c->workspace_bytes > 0)
        status = device_alloc(c->s, MEM_OTHER, c->workspace_bytes, "aclnn workspace", &workspace);
    if (status == FSDP_OK)
        status =
            status_of(run(workspace, c->workspace_bytes, c->executor, accel_queue_of(c->s)), name);
    else if (c->code == 0)
        (void)aclDestroyAclOpExecutor(c->executor);
    device_free(c->s, workspace);
    /* STUB: status = fsdp_todo("6.5"); */
    /* SOLUTION END 6.5 */
    destroy_descriptions(c);
    return status;
}

/* CALL -- both phases of operator `name` on stream `on`. The arguments of the first phase follow,
 * except the last two. They may use the op_call c to create their descriptions. */
#define CALL(name, on, ...)                                                                        \
    ({                                                                                             \
        op_call c = {};                                                                            \
        c.s = on;                                                                                  \
        c.code = name##GetWorkspaceSize(__VA_ARGS__, &c.workspace_bytes, &c.executor);             \
        execute(&c, #name, name);                                                                  \
    })

/* ONE_CALL -- a function of aclnn_call.h that is one CALL: its name, its parameters after `s`, and
 * the arguments of the first phase. */
#define ONE_CALL(operator_name, function, parameters, ...)                                         \
    fsdp_status function(stream *s, AFTER_S parameters)                                            \
    {                                                                                              \
        return CALL(operator_name, s, __VA_ARGS__);                                                \
    }
#define AFTER_S(...) __VA_ARGS__

/* ---- products -------------------------------------------------------------------------------- */

fsdp_status aclnn_mm(stream *s, npu_view out, npu_view a, npu_view b)
{
    /* SOLUTION BEGIN 6.5 */
    return CALL(aclnnMm, s, tensor(&c, a), tensor(&c, b), tensor(&c, out), KEEP_DTYPE);
    /* SOLUTION END 6.5 */
}

fsdp_status aclnn_mm_add(stream *s, npu_view io, npu_view a, npu_view b)
{
    return CALL(aclnnInplaceAddmm, s, tensor(&c, io), tensor(&c, a), tensor(&c, b), scalar(&c, 1),
                scalar(&c, 1), KEEP_DTYPE);
}

/* ---- element by element ---------------------------------------------------------------------- */

fsdp_status aclnn_add(stream *s, npu_view out, npu_view a, npu_view b)
{
    if (out.ptr == a.ptr)
        return CALL(aclnnInplaceAdd, s, tensor(&c, out), tensor(&c, b), scalar(&c, 1));
    return CALL(aclnnAdd, s, tensor(&c, a), tensor(&c, b), scalar(&c, 1), tensor(&c, out));
}

ONE_CALL(aclnnInplaceAdd, aclnn_sub_from, (npu_view io, npu_view b), tensor(&c, io), tensor(&c, b),
         scalar(&c, -1))

fsdp_status aclnn_mul(stream *s, npu_view out, npu_view a, npu_view b)
{
    if (out.ptr == a.ptr)
        return CALL(aclnnInplaceMul, s, tensor(&c, out), tensor(&c, b));
    return CALL(aclnnMul, s, tensor(&c, a), tensor(&c, b), tensor(&c, out));
}

ONE_CALL(aclnnInplaceDiv, aclnn_div_by, (npu_view io, npu_view b), tensor(&c, io), tensor(&c, b))

fsdp_status aclnn_muls(stream *s, npu_view out, npu_view a, float factor)
{
    if (out.ptr == a.ptr)
        return CALL(aclnnInplaceMuls, s, tensor(&c, out), scalar(&c, factor));
    return CALL(aclnnMuls, s, tensor(&c, a), scalar(&c, factor), tensor(&c, out));
}

ONE_CALL(aclnnInplaceDivs, aclnn_divs_by, (npu_view io, float divisor), tensor(&c, io),
         scalar(&c, divisor))
ONE_CALL(aclnnInplaceAdds, aclnn_adds_to, (npu_view io, float term), tensor(&c, io),
         scalar(&c, term), scalar(&c, 1))
ONE_CALL(aclnnSqrt, aclnn_sqrt, (npu_view out, npu_view in), tensor(&c, in), tensor(&c, out))
ONE_CALL(aclnnLog, aclnn_log, (npu_view out, npu_view in), tensor(&c, in), tensor(&c, out))
ONE_CALL(aclnnCos, aclnn_cos, (npu_view out, npu_view in), tensor(&c, in), tensor(&c, out))
ONE_CALL(aclnnSin, aclnn_sin, (npu_view out, npu_view in), tensor(&c, in), tensor(&c, out))
ONE_CALL(aclnnCast, aclnn_cast, (npu_view out, npu_view in), tensor(&c, in), out.type,
         tensor(&c, out))
ONE_CALL(aclnnInplaceCopy, aclnn_copy, (npu_view out, npu_view in), tensor(&c, out), tensor(&c, in))
ONE_CALL(aclnnInplaceFillScalar, aclnn_fill, (npu_view out, float value), tensor(&c, out),
         scalar(&c, value))
ONE_CALL(aclnnInplaceZero, aclnn_zero, (npu_view out), tensor(&c, out))
ONE_CALL(aclnnInplaceTriu, aclnn_triu, (npu_view io, int64_t diagonal), tensor(&c, io), diagonal)

fsdp_status aclnn_gelu(stream *s, npu_view out, npu_view in)
{
    enum { TANH = 1 };
    return CALL(aclnnGeluV2, s, tensor(&c, in), TANH, tensor(&c, out));
}

fsdp_status aclnn_gelu_backward(stream *s, npu_view d_in, npu_view d_out, npu_view in)
{
    char form[] = "tanh";
    return CALL(aclnnGeluBackwardV2, s, tensor(&c, d_out), tensor(&c, in), form, tensor(&c, d_in));
}

ONE_CALL(aclnnSilu, aclnn_silu, (npu_view out, npu_view in), tensor(&c, in), tensor(&c, out))
ONE_CALL(aclnnSiluBackward, aclnn_silu_backward, (npu_view d_in, npu_view d_out, npu_view in),
         tensor(&c, d_out), tensor(&c, in), tensor(&c, d_in))

fsdp_status aclnn_rotary(stream *s, npu_view out, npu_view in, npu_view cos, npu_view sin,
                         bool interleaved)
{
    return CALL(aclnnRotaryPositionEmbedding, s, tensor(&c, in), tensor(&c, cos), tensor(&c, sin),
                interleaved, tensor(&c, out));
}

/* ---- sums and rows --------------------------------------------------------------------------- */

fsdp_status aclnn_reduce_sum(stream *s, npu_view out, npu_view in)
{
    return CALL(aclnnReduceSum, s, tensor(&c, in), ints(&c, 0), false, out.type, tensor(&c, out));
}

fsdp_status aclnn_layernorm(stream *s, npu_view out, const norm_views *x, npu_view bias, double eps)
{
    return CALL(aclnnLayerNorm, s, tensor(&c, x->in), ints(&c, x->in.dim[1]), tensor(&c, x->gain),
                tensor(&c, bias), eps, tensor(&c, out), tensor(&c, x->mean), tensor(&c, x->rstd));
}

fsdp_status aclnn_layernorm_backward(stream *s, npu_view d_in, npu_view d_gain, npu_view d_bias,
                                     npu_view d_out, const norm_views *x)
{
    return CALL(aclnnLayerNormBackward, s, tensor(&c, d_out), tensor(&c, x->in),
                ints(&c, x->in.dim[1]), tensor(&c, x->mean), tensor(&c, x->rstd),
                tensor(&c, x->gain), NULL, all_wanted(&c), tensor(&c, d_in), tensor(&c, d_gain),
                tensor(&c, d_bias));
}

fsdp_status aclnn_rmsnorm(stream *s, npu_view out, const norm_views *x, double eps)
{
    return CALL(aclnnRmsNorm, s, tensor(&c, x->in), tensor(&c, x->gain), eps, tensor(&c, out),
                tensor(&c, x->rstd));
}

fsdp_status aclnn_rmsnorm_backward(stream *s, npu_view d_in, npu_view d_gain, npu_view d_out,
                                   const norm_views *x)
{
    return CALL(aclnnRmsNormGrad, s, tensor(&c, d_out), tensor(&c, x->in), tensor(&c, x->rstd),
                tensor(&c, x->gain), tensor(&c, d_in), tensor(&c, d_gain));
}

fsdp_status aclnn_log_softmax(stream *s, npu_view out, npu_view in)
{
    return CALL(aclnnLogSoftmax, s, tensor(&c, in), -1, tensor(&c, out));
}

fsdp_status aclnn_log_softmax_backward(stream *s, npu_view d_in, npu_view d_out, npu_view out)
{
    return CALL(aclnnLogSoftmaxBackward, s, tensor(&c, d_out), tensor(&c, out), -1,
                tensor(&c, d_in));
}

enum { NO_REDUCTION = 0, IGNORE_INDEX = -100 }; /* NO_TARGET of common/ops/ops.h */

fsdp_status aclnn_nll_loss(stream *s, npu_view loss, const nll_views *x)
{
    return CALL(aclnnNLLLoss, s, tensor(&c, x->log_p), tensor(&c, x->target), tensor(&c, x->weight),
                NO_REDUCTION, IGNORE_INDEX, tensor(&c, loss), tensor(&c, x->total));
}

fsdp_status aclnn_nll_loss_backward(stream *s, npu_view d_log_p, npu_view d_loss,
                                    const nll_views *x)
{
    return CALL(aclnnNLLLossBackward, s, tensor(&c, d_loss), tensor(&c, x->log_p),
                tensor(&c, x->target), tensor(&c, x->weight), NO_REDUCTION, IGNORE_INDEX,
                tensor(&c, x->total), tensor(&c, d_log_p));
}

fsdp_status aclnn_embedding(stream *s, npu_view out, npu_view table, npu_view numbers)
{
    return CALL(aclnnEmbedding, s, tensor(&c, table), tensor(&c, numbers), tensor(&c, out));
}

fsdp_status aclnn_embedding_backward(stream *s, npu_view d_table, npu_view d_out, npu_view numbers)
{
    const uint64_t no_padding = UINT64_MAX; /* -1, as PyTorch's backend passes it */
    return CALL(aclnnEmbeddingDenseBackward, s, tensor(&c, d_out), tensor(&c, numbers),
                (uint64_t)d_table.dim[0], no_padding, false, tensor(&c, d_table));
}

/* ---- attention ------------------------------------------------------------------------------- */

/* With sparseMode 0 the mask alone decides which keys a query sees. The window of preTokens and
 * nextTokens agrees with the mask and lets the operator skip blocks. */
enum { ALL_BEFORE = INT32_MAX, NONE_AFTER = 0, MASK_IS_WHOLE = 0, HIGH_PRECISION = 0 };

fsdp_status aclnn_attention(stream *s, const attention_views *x)
{
    char layout[] = "BSH";
    const npu_view unused = view_f32(x->max.ptr, 0); /* for softmaxOutOut, which must not be NULL */
    return CALL(aclnnFlashAttentionScore, s, tensor(&c, x->q), tensor(&c, x->k), tensor(&c, x->v),
                NULL, NULL, NULL, tensor(&c, x->mask), NULL, x->scale, 1.0, ALL_BEFORE, NONE_AFTER,
                x->n_head, layout, HIGH_PRECISION, MASK_IS_WHOLE, tensor(&c, x->max),
                tensor(&c, x->sum), tensor(&c, unused), tensor(&c, x->out));
}

fsdp_status aclnn_attention_backward(stream *s, npu_view d_q, npu_view d_k, npu_view d_v,
                                     npu_view d_out, const attention_views *x)
{
    char layout[] = "BSH";
    return CALL(aclnnFlashAttentionScoreGrad, s, tensor(&c, x->q), tensor(&c, x->k),
                tensor(&c, x->v), tensor(&c, d_out), NULL, NULL, NULL, tensor(&c, x->mask),
                tensor(&c, x->max), tensor(&c, x->sum), NULL, tensor(&c, x->out), NULL, x->scale,
                1.0, ALL_BEFORE, NONE_AFTER, x->n_head, layout, HIGH_PRECISION, MASK_IS_WHOLE,
                tensor(&c, d_q), tensor(&c, d_k), tensor(&c, d_v), NULL);
}
