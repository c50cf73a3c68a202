/* npu_ops_attention.c -- causal attention by FlashAttentionScore. See npu_ops.h.
 *
 * q, k and v are views with a stride between rows, so slices of one [B,T,3C] array are not copied
 * here; if the operator needs dense rows, it copies them into its workspace. Each call makes the
 * mask again: T*T bytes, at memory bandwidth. */
#include "lab6_npu/npu_ops.h"

enum { COPIES = 8 }; /* copies of each row's maximum and sum, as the operator requires */

/* Rows of `cols` elements (all heads), with `stride` elements from one row to the next. */
static npu_view heads_view(const attention_shape *x, const void *ptr, size_t cols, size_t stride)
{
    npu_view v = view_3d(ptr, npu_type(x->type), x->batch, x->seq_len, cols);
    v.stride[0] = (int64_t)(x->seq_len * stride);
    v.stride[1] = (int64_t)stride;
    return v;
}

static npu_view stats_view(const attention_shape *x, const float *ptr)
{
    const int64_t T = (int64_t)x->seq_len, H = (int64_t)x->n_head;
    return (npu_view){ptr,
                      ACL_FLOAT,
                      4,
                      {(int64_t)x->batch, H, T, COPIES},
                      {H * T * COPIES, T * COPIES, COPIES, 1}};
}

/* One of the COPIES of a statistic, as a vector. */
static npu_view stats_column(const attention_shape *x, const float *ptr)
{
    npu_view v = view_f32(ptr, x->batch * x->n_head * x->seq_len);
    v.stride[0] = COPIES;
    return v;
}

/* The scratch memory of a call: two statistics, then the mask. */
typedef struct attention_scratch {
    float *max, *sum;
    void *mask;
} attention_scratch;

static fsdp_status scratch_get(stream *s, const attention_shape *x, attention_scratch *out)
{
    const size_t stats = x->batch * x->n_head * x->seq_len * COPIES;
    void *ptr;
    TRY(device_alloc(s, MEM_OTHER, 2 * stats * sizeof(float) + x->seq_len * x->seq_len,
                     "attention's statistics and mask", &ptr));
    *out = (attention_scratch){ptr, (float *)ptr + stats, (float *)ptr + 2 * stats};
    return FSDP_OK;
}

static attention_views attention_of(const attention_args *a, const attention_scratch *t)
{
    const attention_shape *x = &a->shape;
    const size_t out_cols = x->n_head * x->v_head_dim;
    return (attention_views){.q = heads_view(x, a->q, x->n_head * x->head_dim, x->q_stride),
                             .k = heads_view(x, a->k, x->n_kv_head * x->head_dim, x->k_stride),
                             .v = heads_view(x, a->v, x->n_kv_head * x->v_head_dim, x->v_stride),
                             .out = heads_view(x, a->out, out_cols, out_cols),
                             .max = stats_view(x, t->max),
                             .sum = stats_view(x, t->sum),
                             .mask = view_2d(t->mask, ACL_UINT8, x->seq_len, x->seq_len),
                             .scale = (double)x->scale,
                             .n_head = (int64_t)x->n_head};
}

/* Set the mask: 1 (masked) above the diagonal, else 0. */
static fsdp_status mask_make(stream *s, npu_view mask)
{
    TRY(aclnn_fill(s, mask, 1));
    return aclnn_triu(s, mask, 1);
}

/* lse = max + log(sum). */
static fsdp_status lse_make(stream *s, const attention_args *a, const attention_scratch *t)
{
    const npu_view lse = view_f32(a->lse, a->shape.batch * a->shape.n_head * a->shape.seq_len);
    TRY(aclnn_log(s, lse, stats_column(&a->shape, t->sum)));
    return aclnn_add(s, lse, lse, stats_column(&a->shape, t->max));
}

static fsdp_status attention_issue(stream *s, const void *args)
{
    const attention_args *a = args;
    attention_scratch t;
    TRY(scratch_get(s, &a->shape, &t));
    const attention_views x = attention_of(a, &t);
    fsdp_status status = mask_make(s, x.mask);
    IF_OK(status, aclnn_attention(s, &x));
    IF_OK(status, lse_make(s, a, &t));
    device_free(s, t.max);
    return status;
}

ISSUED(attention)

/* ---- backward -------------------------------------------------------------------------------- */

/* With max = lse and sum = 1, exp(score - max) / sum is the probability. So forward only needs to
 * keep lse. */
static fsdp_status stats_make(stream *s, const attention_shape *x, const float *lse,
                              const attention_views *to)
{
    const size_t rows = x->batch * x->n_head * x->seq_len;
    TRY(aclnn_copy(s, view_2d(to->max.ptr, ACL_FLOAT, rows, COPIES),
                   view_2d(lse, ACL_FLOAT, rows, 1)));
    return aclnn_fill(s, to->sum, 1);
}

static fsdp_status attention_backward_issue(stream *s, const void *args)
{
    const attention_backward_args *a = args;
    const attention_shape *x = &a->shape;
    attention_scratch t;
    TRY(scratch_get(s, x, &t));
    const attention_args forward = {
        .out = (void *)(uintptr_t)a->out, .q = a->q, .k = a->k, .v = a->v, .shape = *x};
    const attention_views y = attention_of(&forward, &t);
    fsdp_status status = mask_make(s, y.mask);
    IF_OK(status, stats_make(s, x, a->lse, &y));
    IF_OK(status,
          aclnn_attention_backward(
              s, heads_view(x, a->d_q, x->n_head * x->head_dim, x->q_stride),
              heads_view(x, a->d_k, x->n_kv_head * x->head_dim, x->k_stride),
              heads_view(x, a->d_v, x->n_kv_head * x->v_head_dim, x->v_stride),
              heads_view(x, a->d_out, x->n_head * x->v_head_dim, x->n_head * x->v_head_dim), &y));
    device_free(s, t.max);
    return status;
}

ISSUED(attention_backward)
