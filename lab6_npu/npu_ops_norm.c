/* npu_ops_norm.c -- layer and RMS normalisation. See npu_ops.h. The backward pass of an RMS norm is
 * the backward pass of a layer norm without mean and d_bias. */
#include "lab6_npu/npu_ops.h"

/* Statistics are [rows,1], because aclnn requires as many dimensions as the input has. */
static norm_views norm_of(const void *in, const void *gain, const float *mean, const float *rstd,
                          const size_t shape[2], dtype type)
{
    return (norm_views){.in = view_2d(in, npu_type(type), shape[0], shape[1]),
                        .gain = view_1d(gain, npu_type(type), shape[1]),
                        .mean = view_2d(mean, ACL_FLOAT, shape[0], 1),
                        .rstd = view_2d(rstd, ACL_FLOAT, shape[0], 1)};
}

static fsdp_status layernorm_issue(stream *s, const void *args)
{
    const layernorm_args *a = args;
    const norm_views x =
        norm_of(a->in, a->gain, a->mean, a->rstd, (size_t[2]){a->rows, a->cols}, a->type);
    return aclnn_layernorm(s, view_2d(a->out, npu_type(a->type), a->rows, a->cols), &x,
                           view_1d(a->bias, npu_type(a->type), a->cols), (double)a->eps);
}

ISSUED(layernorm)

static fsdp_status rmsnorm_issue(stream *s, const void *args)
{
    const rmsnorm_args *a = args;
    const norm_views x =
        norm_of(a->in, a->gain, NULL, a->rstd, (size_t[2]){a->rows, a->cols}, a->type);
    return aclnn_rmsnorm(s, view_2d(a->out, npu_type(a->type), a->rows, a->cols), &x,
                         (double)a->eps);
}

ISSUED(rmsnorm)

/* ---- backward -------------------------------------------------------------------------------- */

/* The scratch memory of a call; all fp32. NULL: the caller's array is used. */
typedef struct norm_scratch {
    float *in, *gain, *d_out, *residual, *d_in, *d_params;
} norm_scratch;

static void scratch_free(stream *s, norm_scratch *x)
{
    device_free(s, x->d_params), device_free(s, x->d_in), device_free(s, x->residual);
    device_free(s, x->d_out), device_free(s, x->gain), device_free(s, x->in);
}

/* Where the call writes the gradients of gain and bias: in the caller's arrays, or in scratch
 * memory if they are added to the caller's later. */
static fsdp_status d_params_get(stream *s, const layernorm_backward_args *a, norm_scratch *x,
                                float *out[2])
{
    out[0] = a->d_gain, out[1] = a->d_bias;
    if (a->overwrite)
        return FSDP_OK;
    TRY(device_alloc_f32(s, MEM_OTHER, 2 * a->cols, "gradients of a norm", &x->d_params));
    out[0] = x->d_params, out[1] = x->d_params + a->cols;
    return FSDP_OK;
}

static fsdp_status residual_add(stream *s, const layernorm_backward_args *a, norm_scratch *x,
                                float *d_in)
{
    const size_t elems = a->rows * a->cols;
    const npu_view to = view_f32(d_in, elems);
    const float *residual;
    if (a->d_residual != NULL) {
        TRY(npu_widen(s, a->d_residual, a->type, elems, &residual, &x->residual));
        TRY(aclnn_add(s, to, to, view_f32(residual, elems)));
    }
    return a->type == DTYPE_F32 ? FSDP_OK : aclnn_cast(s, view_1d(a->d_in, ACL_BF16, elems), to);
}

static fsdp_status layernorm_backward_wide(stream *s, const layernorm_backward_args *a,
                                           norm_scratch *x)
{
    const size_t elems = a->rows * a->cols;
    const float *in, *gain, *d_out;
    float *d_in = a->d_in, *d_params[2];
    TRY(npu_widen(s, a->in, a->type, elems, &in, &x->in));
    TRY(npu_widen(s, a->gain, a->type, a->cols, &gain, &x->gain));
    TRY(npu_widen(s, a->d_out, a->type, elems, &d_out, &x->d_out));
    TRY(d_params_get(s, a, x, d_params));
    if (a->type != DTYPE_F32) {
        TRY(device_alloc_f32(s, MEM_OTHER, elems, "gradient in fp32", &x->d_in));
        d_in = x->d_in;
    }
    const norm_views norm =
        norm_of(in, gain, a->mean, a->rstd, (size_t[2]){a->rows, a->cols}, DTYPE_F32);
    const npu_view to = view_2d(d_in, ACL_FLOAT, a->rows, a->cols);
    const npu_view from = view_2d(d_out, ACL_FLOAT, a->rows, a->cols);
    const npu_view gain_to = view_f32(d_params[0], a->cols);
    if (a->mean == NULL)
        TRY(aclnn_rmsnorm_backward(s, to, gain_to, from, &norm));
    else
        TRY(aclnn_layernorm_backward(s, to, gain_to, view_f32(d_params[1], a->cols), from, &norm));
    if (!a->overwrite)
        TRY(npu_add_grad(s, a->d_gain, d_params[0], a->cols));
    if (!a->overwrite && a->d_bias != NULL)
        TRY(npu_add_grad(s, a->d_bias, d_params[1], a->cols));
    return residual_add(s, a, x, d_in);
}

static fsdp_status layernorm_backward_issue(stream *s, const void *args)
{
    const layernorm_backward_args *a = args;
    norm_scratch x = {0};
    if (a->rows == 0) {
        TRY(aclnn_zero(s, view_f32(a->d_gain, a->cols)));
        return a->d_bias == NULL ? FSDP_OK : aclnn_zero(s, view_f32(a->d_bias, a->cols));
    }
    fsdp_status status = layernorm_backward_wide(s, a, &x);
    scratch_free(s, &x);
    return status;
}

ISSUED(layernorm_backward)

static fsdp_status rmsnorm_backward_issue(stream *s, const void *args)
{
    const rmsnorm_backward_args *a = args;
    const layernorm_backward_args norm = {.d_in = a->d_in,
                                          .d_gain = a->d_gain,
                                          .d_out = a->d_out,
                                          .in = a->in,
                                          .gain = a->gain,
                                          .d_residual = a->d_residual,
                                          .rstd = a->rstd,
                                          .rows = a->rows,
                                          .cols = a->cols,
                                          .overwrite = a->overwrite,
                                          .type = a->type};
    return layernorm_backward_issue(s, &norm);
}

ISSUED(rmsnorm_backward)
