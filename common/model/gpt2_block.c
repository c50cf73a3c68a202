/* gpt2_block.c -- forward and backward of a block's two layers, attention and MLP. gpt2_impl.h
 * lists what they keep between the two passes. */
#include "common/model/gpt2_impl.h"

#include <math.h>

/* y = x w + b (+ residual), for all rows of a call. w [n_in, n_out], as Conv1D stores it, is the
 * layer's parameter number `param`, b the next one. */
typedef struct linear_args {
    void *y;              /* [rows, n_out] */
    const void *x;        /* [rows, n_in] */
    const void *residual; /* [rows, n_out], or NULL */
    int param;
    size_t n_in, n_out;
} linear_args;

static fsdp_status linear(const ops *o, stream *s, const layer_io *io, const linear_args *l)
{
    return o->matmul(s, &(matmul_args){.out = l->y,
                                       .a = l->x,
                                       .b = io->params[l->param],
                                       .bias = io->params[l->param + 1],
                                       .residual = l->residual,
                                       .m = io->batch * io->seq_len,
                                       .n = l->n_out,
                                       .k = l->n_in,
                                       .type = io->type,
                                       .out_type = io->type});
}

/* The three gradients of linear(). d_w and d_b go to the layer's views of the two parameters, where
 * there is one. */
typedef struct linear_grad {
    void *d_x; /* [rows, n_in], written; not d_y, but x is allowed: it is read first */
    const void *d_y, *x;
    int param;
    size_t n_in, n_out;
} linear_grad;

static fsdp_status linear_backward(const ops *o, stream *s, const layer_io *io,
                                   const linear_grad *g)
{
    const int w = g->param, b = g->param + 1;
    const size_t rows = io->batch * io->seq_len;
    if (io->grads[w] != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = io->grads[w],
                                        .a = g->x,
                                        .trans_a = true,
                                        .b = g->d_y,
                                        .m = g->n_in,
                                        .n = g->n_out,
                                        .k = rows,
                                        .accumulate = gpt2_adds(io, w),
                                        .type = io->type}));
    if (io->grads[b] != NULL)
        TRY(o->bias_backward(s, &(bias_backward_args){.d_bias = io->grads[b],
                                                      .d_out = g->d_y,
                                                      .rows = rows,
                                                      .cols = g->n_out,
                                                      .overwrite = !gpt2_adds(io, b),
                                                      .type = io->type}));
    return o->matmul(s, &(matmul_args){.out = g->d_x,
                                       .a = g->d_y,
                                       .b = io->params[w],
                                       .trans_b = true,
                                       .m = rows,
                                       .n = g->n_in,
                                       .k = g->n_out,
                                       .type = io->type,
                                       .out_type = io->type});
}

/* ---- attn: out = in + proj(attention(qkv(norm(in)))) ---------------------------------------- */

typedef struct attn_arrays {
    gpt2_norm norm;       /* saved: these four */
    void *qkv;            /* [rows, 3C]: row = q of all heads, then k, then v */
    float *lse;           /* [B, H, T] */
    void *att;            /* [rows, C] */
    void *d_att, *d_norm; /* [rows, C], in one place: d_att is last read before d_norm is written */
    void *d_qkv;          /* [rows, 3C] */
    float *sink;          /* [2C] */
} attn_arrays;

/* Finds the arrays of a call in `saved` and `scratch`; both NULL: only their bytes. */
static layer_bytes attn_layout(const layer *l, size_t rows, dtype type, void *saved, void *scratch,
                               attn_arrays *k)
{
    const size_t C = l->model->config.d_model;
    gpt2_room kept = {.base = saved}, work = {.base = scratch};
    k->norm = gpt2_take_norm(&kept, rows, C, type);
    k->qkv = gpt2_take(&kept, rows * 3 * C, type);
    k->lse = gpt2_take(&kept, rows * l->model->config.n_head, DTYPE_F32);
    k->att = gpt2_take(&kept, rows * C, type);
    k->d_att = k->d_norm = gpt2_take(&work, rows * C, type);
    k->d_qkv = gpt2_take(&work, rows * 3 * C, type);
    k->sink = gpt2_take(&work, 2 * C, DTYPE_F32);
    return (layer_bytes){kept.bytes, work.bytes};
}

static layer_bytes attn_bytes(const layer *l, size_t rows, dtype type)
{
    return attn_layout(l, rows, type, NULL, NULL, &(attn_arrays){0});
}

static attention_shape attn_shape(const layer *l, size_t batch, size_t seq_len, dtype type)
{
    const size_t C = l->model->config.d_model, H = l->model->config.n_head;
    return (attention_shape){.q_stride = 3 * C,
                             .k_stride = 3 * C,
                             .v_stride = 3 * C,
                             .batch = batch,
                             .seq_len = seq_len,
                             .n_head = H,
                             .n_kv_head = H,
                             .head_dim = C / H,
                             .scale = 1.0f / sqrtf((float)(C / H)),
                             .type = type};
}

/* Part `i` of rows [rows, 3C]: 0 q, 1 k, 2 v. */
static void *qkv_part(const layer *l, const layer_io *io, void *qkv, size_t i)
{
    return (char *)qkv + i * l->model->config.d_model * dtype_bytes(io->type);
}

static fsdp_status attn_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len, C = l->model->config.d_model;
    attn_arrays k;
    attn_layout(l, rows, io->type, gpt2_kept(io), io->scratch, &k);
    TRY(gpt2_norm_forward(l, o, s, io, &k.norm));
    TRY(linear(
        o, s, io,
        &(linear_args){
            .y = k.qkv, .x = k.norm.out, .param = ATTN_QKV_WEIGHT, .n_in = C, .n_out = 3 * C}));
    TRY(o->attention(s,
                     &(attention_args){.out = k.att,
                                       .lse = k.lse,
                                       .q = qkv_part(l, io, k.qkv, 0),
                                       .k = qkv_part(l, io, k.qkv, 1),
                                       .v = qkv_part(l, io, k.qkv, 2),
                                       .shape = attn_shape(l, io->batch, io->seq_len, io->type)}));
    return linear(o, s, io,
                  &(linear_args){.y = io->out,
                                 .x = k.att,
                                 .residual = io->in,
                                 .param = ATTN_PROJ_WEIGHT,
                                 .n_in = C,
                                 .n_out = C});
}

/* k->d_qkv from k->d_att. */
static fsdp_status attn_core_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                                      const attn_arrays *k)
{
    return o->attention_backward(
        s, &(attention_backward_args){.d_q = qkv_part(l, io, k->d_qkv, 0),
                                      .d_k = qkv_part(l, io, k->d_qkv, 1),
                                      .d_v = qkv_part(l, io, k->d_qkv, 2),
                                      .d_out = k->d_att,
                                      .out = k->att,
                                      .lse = k->lse,
                                      .q = qkv_part(l, io, k->qkv, 0),
                                      .k = qkv_part(l, io, k->qkv, 1),
                                      .v = qkv_part(l, io, k->qkv, 2),
                                      .shape = attn_shape(l, io->batch, io->seq_len, io->type)});
}

static fsdp_status attn_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len, C = l->model->config.d_model;
    attn_arrays k;
    attn_layout(l, rows, io->type, io->saved, io->scratch, &k);
    TRY(linear_backward(o, s, io,
                        &(linear_grad){.d_x = k.d_att,
                                       .d_y = io->d_out,
                                       .x = k.att,
                                       .param = ATTN_PROJ_WEIGHT,
                                       .n_in = C,
                                       .n_out = C}));
    TRY(attn_core_backward(l, o, s, io, &k));
    TRY(linear_backward(o, s, io,
                        &(linear_grad){.d_x = k.d_norm,
                                       .d_y = k.d_qkv,
                                       .x = k.norm.out,
                                       .param = ATTN_QKV_WEIGHT,
                                       .n_in = C,
                                       .n_out = 3 * C}));
    return gpt2_norm_backward(
        l, o, s, io, &k.norm,
        &(gpt2_norm_grad){.d_out = k.d_norm, .d_residual = io->d_out, .sink = k.sink});
}

const layer GPT2_ATTN = {.bytes = attn_bytes, .forward = attn_forward, .backward = attn_backward};

/* ---- mlp: out = in + proj(gelu(fc(norm(in)))) ----------------------------------------------- */

typedef struct mlp_arrays {
    gpt2_norm norm;   /* saved: these two */
    void *fc;         /* [rows, F], before gelu */
    void *act, *d_fc; /* [rows, F], in one place: act is last read before d_fc is first written */
    void *d_norm;     /* [rows, C] */
    float *sink;      /* [2C] */
} mlp_arrays;

/* As attn_layout. */
static layer_bytes mlp_layout(const layer *l, size_t rows, dtype type, void *saved, void *scratch,
                              mlp_arrays *k)
{
    const size_t C = l->model->config.d_model, F = l->model->config.d_ff;
    gpt2_room kept = {.base = saved}, work = {.base = scratch};
    k->norm = gpt2_take_norm(&kept, rows, C, type);
    k->fc = gpt2_take(&kept, rows * F, type);
    k->act = k->d_fc = gpt2_take(&work, rows * F, type);
    k->d_norm = gpt2_take(&work, rows * C, type);
    k->sink = gpt2_take(&work, 2 * C, DTYPE_F32);
    return (layer_bytes){kept.bytes, work.bytes};
}

static layer_bytes mlp_bytes(const layer *l, size_t rows, dtype type)
{
    return mlp_layout(l, rows, type, NULL, NULL, &(mlp_arrays){0});
}

static fsdp_status mlp_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, F = l->model->config.d_ff;
    mlp_arrays k;
    mlp_layout(l, rows, io->type, gpt2_kept(io), io->scratch, &k);
    void *act = io->saved != NULL ? k.act : k.fc; /* scratch holds fc: gelu in place */
    TRY(gpt2_norm_forward(l, o, s, io, &k.norm));
    TRY(linear(
        o, s, io,
        &(linear_args){.y = k.fc, .x = k.norm.out, .param = MLP_FC_WEIGHT, .n_in = C, .n_out = F}));
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = k.fc, .elems = rows * F, .type = io->type}));
    return linear(o, s, io,
                  &(linear_args){.y = io->out,
                                 .x = act,
                                 .residual = io->in,
                                 .param = MLP_PROJ_WEIGHT,
                                 .n_in = F,
                                 .n_out = C});
}

static fsdp_status mlp_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, F = l->model->config.d_ff;
    mlp_arrays k;
    mlp_layout(l, rows, io->type, io->saved, io->scratch, &k);
    TRY(o->gelu(s, &(gelu_args){.out = k.act, .in = k.fc, .elems = rows * F, .type = io->type}));
    TRY(linear_backward(o, s, io,
                        &(linear_grad){.d_x = k.d_fc,
                                       .d_y = io->d_out,
                                       .x = k.act,
                                       .param = MLP_PROJ_WEIGHT,
                                       .n_in = F,
                                       .n_out = C}));
    TRY(o->gelu_backward(
        s, &(gelu_backward_args){
               .d_in = k.d_fc, .d_out = k.d_fc, .in = k.fc, .elems = rows * F, .type = io->type}));
    TRY(linear_backward(o, s, io,
                        &(linear_grad){.d_x = k.d_norm,
                                       .d_y = k.d_fc,
                                       .x = k.norm.out,
                                       .param = MLP_FC_WEIGHT,
                                       .n_in = C,
                                       .n_out = F}));
    return gpt2_norm_backward(
        l, o, s, io, &k.norm,
        &(gpt2_norm_grad){.d_out = k.d_norm, .d_residual = io->d_out, .sink = k.sink});
}

const layer GPT2_MLP = {.bytes = mlp_bytes, .forward = mlp_forward, .backward = mlp_backward};
