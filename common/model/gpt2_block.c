/* gpt2_block.c -- forward and backward of a block's two layers, attention and MLP. gpt2_impl.h
 * lists what they keep between the two passes. */
#include "common/model/gpt2_impl.h"

#include <math.h>

/* y = x w + b. w [n_in, n_out] as Conv1D stores it. */
typedef struct linear_args {
    float *y;              /* [rows, n_out] */
    const float *x;        /* [rows, n_in] */
    void *const *w_then_b; /* two of the layer's views, next to each other */
    dtype type;            /* of w and b */
    size_t rows, n_in, n_out;
} linear_args;

static fsdp_status linear(const ops *o, stream *s, const linear_args *l)
{
    TRY(o->matmul(s, &(matmul_args){.out = l->y,
                                    .a = l->x,
                                    .b = l->w_then_b[0],
                                    .m = l->rows,
                                    .n = l->n_out,
                                    .k = l->n_in,
                                    .b_type = l->type,
                                    .compute = l->type}));
    return o->bias_add(s, &(bias_add_args){.out = l->y,
                                           .in = l->y,
                                           .bias = l->w_then_b[1],
                                           .rows = l->rows,
                                           .cols = l->n_out,
                                           .param_type = l->type});
}

/* The three gradients of linear(). Any destination may be NULL. */
typedef struct linear_grad {
    float *d_x, *d_w, *d_b; /* [rows,n_in], written; [n_in,n_out], [n_out]: add says how */
    bool add_w, add_b;      /* true: add to what d_w, d_b hold; false: overwrite it */
    const float *d_y, *x;
    const void *w;
    dtype type; /* of w */
    size_t rows, n_in, n_out;
} linear_grad;

static fsdp_status linear_backward(const ops *o, stream *s, const linear_grad *g)
{
    if (g->d_w != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = g->d_w,
                                        .a = g->x,
                                        .trans_a = true,
                                        .b = g->d_y,
                                        .m = g->n_in,
                                        .n = g->n_out,
                                        .k = g->rows,
                                        .accumulate = g->add_w,
                                        .compute = g->type}));
    if (g->d_b != NULL)
        TRY(o->bias_backward(s, &(bias_backward_args){.d_bias = g->d_b,
                                                      .d_out = g->d_y,
                                                      .rows = g->rows,
                                                      .cols = g->n_out,
                                                      .overwrite = !g->add_b}));
    if (g->d_x == NULL)
        return FSDP_OK;
    return o->matmul(s, &(matmul_args){.out = g->d_x,
                                       .a = g->d_y,
                                       .b = g->w,
                                       .trans_b = true,
                                       .m = g->rows,
                                       .n = g->n_in,
                                       .k = g->n_out,
                                       .b_type = g->type,
                                       .compute = g->type});
}

/* ---- attn: out = in + proj(attention(qkv(norm(in)))) ---------------------------------------- */

typedef struct attn_saved {
    gpt2_norm norm;
    float *qkv; /* [rows, 3C]: row = q of all heads, then k, then v */
    float *lse; /* [B, H, T] */
    float *att; /* [rows, C] */
} attn_saved;

static attn_saved attn_layout(const layer *l, float *base, size_t batch, size_t seq_len)
{
    const size_t rows = batch * seq_len, C = l->model->config.d_model;
    float *next = base;
    attn_saved k;
    k.norm = gpt2_take_norm(&next, rows, C);
    k.qkv = gpt2_take(&next, rows * 3 * C);
    k.lse = gpt2_take(&next, rows * l->model->config.n_head);
    k.att = gpt2_take(&next, rows * C);
    return k;
}

static size_t attn_saved_elems(const layer *l, size_t batch, size_t seq_len)
{
    return batch * seq_len * (5 * l->model->config.d_model + l->model->config.n_head + 2);
}

/* Backward: d_att, then d_norm in its place [rows,C]; d_qkv [rows,3C]; sink [2C]. */
static size_t attn_scratch_elems(const layer *l, size_t batch, size_t seq_len, bool training)
{
    const size_t C = l->model->config.d_model;
    return training ? batch * seq_len * 4 * C + 2 * C : attn_saved_elems(l, batch, seq_len);
}

static size_t attn_rounding_bytes(const layer *l, size_t batch, size_t seq_len, dtype param_type)
{
    const size_t rows = batch * seq_len, C = l->model->config.d_model;
    const size_t qkv = gpt2_linear_rounding(rows, C, 3 * C, param_type);
    const size_t proj = gpt2_linear_rounding(rows, C, C, param_type);
    return qkv > proj ? qkv : proj;
}

static fsdp_status attn_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const model_config *c = &l->model->config;
    const size_t rows = io->batch * io->seq_len, C = c->d_model;
    const attn_saved k = attn_layout(l, gpt2_kept(io), io->batch, io->seq_len);
    void *const *w = io->params;
    TRY(gpt2_norm_forward(l, o, s, io, &k.norm));
    TRY(linear(o, s,
               &(linear_args){.y = k.qkv,
                              .x = k.norm.out,
                              .w_then_b = &w[ATTN_QKV_WEIGHT],
                              .type = io->param_type,
                              .rows = rows,
                              .n_in = C,
                              .n_out = 3 * C}));
    TRY(o->attention(s, &(attention_args){.out = k.att,
                                          .lse = k.lse,
                                          .q = k.qkv,
                                          .k = k.qkv + C,
                                          .v = k.qkv + 2 * C,
                                          .q_stride = 3 * C,
                                          .k_stride = 3 * C,
                                          .v_stride = 3 * C,
                                          .batch = io->batch,
                                          .seq_len = io->seq_len,
                                          .n_head = c->n_head,
                                          .n_kv_head = c->n_head,
                                          .head_dim = C / c->n_head,
                                          .scale = 1.0f / sqrtf((float)(C / c->n_head))}));
    TRY(linear(o, s,
               &(linear_args){.y = io->out,
                              .x = k.att,
                              .w_then_b = &w[ATTN_PROJ_WEIGHT],
                              .type = io->param_type,
                              .rows = rows,
                              .n_in = C,
                              .n_out = C}));
    return o->add(s, &(add_args){.out = io->out, .a = io->in, .b = io->out, .elems = rows * C});
}

static attention_backward_args attn_core_grad(const layer *l, const layer_io *io,
                                              const attn_saved *k, const float *d_att, float *d_qkv)
{
    const model_config *c = &l->model->config;
    const size_t C = c->d_model;
    return (attention_backward_args){.d_q = d_qkv,
                                     .d_k = d_qkv + C,
                                     .d_v = d_qkv + 2 * C,
                                     .d_out = d_att,
                                     .out = k->att,
                                     .lse = k->lse,
                                     .q = k->qkv,
                                     .k = k->qkv + C,
                                     .v = k->qkv + 2 * C,
                                     .q_stride = 3 * C,
                                     .k_stride = 3 * C,
                                     .v_stride = 3 * C,
                                     .batch = io->batch,
                                     .seq_len = io->seq_len,
                                     .n_head = c->n_head,
                                     .n_kv_head = c->n_head,
                                     .head_dim = C / c->n_head,
                                     .scale = 1.0f / sqrtf((float)(C / c->n_head))};
}

static fsdp_status attn_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len, C = l->model->config.d_model;
    const attn_saved k = attn_layout(l, io->saved, io->batch, io->seq_len);
    float *next = io->scratch;
    float *d_att = gpt2_take(&next, rows * C), *d_qkv = gpt2_take(&next, rows * 3 * C),
          *sink = next;
    float *d_norm = d_att; /* d_att is last read before d_norm is first written */
    TRY(linear_backward(o, s,
                        &(linear_grad){.d_x = d_att,
                                       .d_w = io->grads[ATTN_PROJ_WEIGHT],
                                       .d_b = io->grads[ATTN_PROJ_BIAS],
                                       .add_w = gpt2_adds(io, ATTN_PROJ_WEIGHT),
                                       .add_b = gpt2_adds(io, ATTN_PROJ_BIAS),
                                       .d_y = io->d_out,
                                       .x = k.att,
                                       .w = io->params[ATTN_PROJ_WEIGHT],
                                       .type = io->param_type,
                                       .rows = rows,
                                       .n_in = C,
                                       .n_out = C}));
    const attention_backward_args core = attn_core_grad(l, io, &k, d_att, d_qkv);
    TRY(o->attention_backward(s, &core));
    TRY(linear_backward(o, s,
                        &(linear_grad){.d_x = d_norm,
                                       .d_w = io->grads[ATTN_QKV_WEIGHT],
                                       .d_b = io->grads[ATTN_QKV_BIAS],
                                       .add_w = gpt2_adds(io, ATTN_QKV_WEIGHT),
                                       .add_b = gpt2_adds(io, ATTN_QKV_BIAS),
                                       .d_y = d_qkv,
                                       .x = k.norm.out,
                                       .w = io->params[ATTN_QKV_WEIGHT],
                                       .type = io->param_type,
                                       .rows = rows,
                                       .n_in = C,
                                       .n_out = 3 * C}));
    return gpt2_norm_backward(
        l, o, s, io, &k.norm,
        &(gpt2_norm_grad){.d_out = d_norm, .d_residual = io->d_out, .sink = sink});
}

void gpt2_attn_layer(layer *l)
{
    l->saved_elems = attn_saved_elems;
    l->scratch_elems = attn_scratch_elems;
    l->rounding_bytes = attn_rounding_bytes;
    l->forward = attn_forward;
    l->backward = attn_backward;
}

/* ---- mlp: out = in + proj(gelu(fc(norm(in)))) ----------------------------------------------- */

typedef struct mlp_saved {
    gpt2_norm norm;
    float *fc; /* [rows, F], before gelu */
} mlp_saved;

static mlp_saved mlp_layout(const layer *l, float *base, size_t rows)
{
    float *next = base;
    mlp_saved k;
    k.norm = gpt2_take_norm(&next, rows, l->model->config.d_model);
    k.fc = gpt2_take(&next, rows * l->model->config.d_ff);
    return k;
}

static size_t mlp_saved_elems(const layer *l, size_t batch, size_t seq_len)
{
    return batch * seq_len * (l->model->config.d_model + l->model->config.d_ff + 2);
}

/* Training: gelu's output and, in backward, its gradient in the same place [rows,F]; d_norm
 * [rows,C]; sink [2C]. Otherwise the kept arrays, with gelu in place. */
static size_t mlp_scratch_elems(const layer *l, size_t batch, size_t seq_len, bool training)
{
    const size_t C = l->model->config.d_model, F = l->model->config.d_ff;
    return training ? batch * seq_len * (F + C) + 2 * C : mlp_saved_elems(l, batch, seq_len);
}

static size_t mlp_rounding_bytes(const layer *l, size_t batch, size_t seq_len, dtype param_type)
{
    const size_t rows = batch * seq_len;
    const size_t C = l->model->config.d_model, F = l->model->config.d_ff;
    const size_t fc = gpt2_linear_rounding(rows, C, F, param_type);
    const size_t proj = gpt2_linear_rounding(rows, F, C, param_type);
    return fc > proj ? fc : proj;
}

static fsdp_status mlp_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, F = l->model->config.d_ff;
    const mlp_saved k = mlp_layout(l, gpt2_kept(io), rows);
    void *const *w = io->params;
    float *act = io->saved != NULL ? io->scratch : k.fc;
    TRY(gpt2_norm_forward(l, o, s, io, &k.norm));
    TRY(linear(o, s,
               &(linear_args){.y = k.fc,
                              .x = k.norm.out,
                              .w_then_b = &w[MLP_FC_WEIGHT],
                              .type = io->param_type,
                              .rows = rows,
                              .n_in = C,
                              .n_out = F}));
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = k.fc, .elems = rows * F}));
    TRY(linear(o, s,
               &(linear_args){.y = io->out,
                              .x = act,
                              .w_then_b = &w[MLP_PROJ_WEIGHT],
                              .type = io->param_type,
                              .rows = rows,
                              .n_in = F,
                              .n_out = C}));
    return o->add(s, &(add_args){.out = io->out, .a = io->in, .b = io->out, .elems = rows * C});
}

static fsdp_status mlp_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, F = l->model->config.d_ff;
    const mlp_saved k = mlp_layout(l, io->saved, rows);
    float *next = io->scratch;
    float *act = gpt2_take(&next, rows * F), *d_norm = gpt2_take(&next, rows * C), *sink = next;
    float *d_fc = act; /* linear_backward reads x = act before it writes d_x */
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = k.fc, .elems = rows * F}));
    TRY(linear_backward(o, s,
                        &(linear_grad){.d_x = d_fc,
                                       .d_w = io->grads[MLP_PROJ_WEIGHT],
                                       .d_b = io->grads[MLP_PROJ_BIAS],
                                       .add_w = gpt2_adds(io, MLP_PROJ_WEIGHT),
                                       .add_b = gpt2_adds(io, MLP_PROJ_BIAS),
                                       .d_y = io->d_out,
                                       .x = act,
                                       .w = io->params[MLP_PROJ_WEIGHT],
                                       .type = io->param_type,
                                       .rows = rows,
                                       .n_in = F,
                                       .n_out = C}));
    TRY(o->gelu_backward(
        s, &(gelu_backward_args){.d_in = d_fc, .d_out = d_fc, .in = k.fc, .elems = rows * F}));
    TRY(linear_backward(o, s,
                        &(linear_grad){.d_x = d_norm,
                                       .d_w = io->grads[MLP_FC_WEIGHT],
                                       .d_b = io->grads[MLP_FC_BIAS],
                                       .add_w = gpt2_adds(io, MLP_FC_WEIGHT),
                                       .add_b = gpt2_adds(io, MLP_FC_BIAS),
                                       .d_y = d_fc,
                                       .x = k.norm.out,
                                       .w = io->params[MLP_FC_WEIGHT],
                                       .type = io->param_type,
                                       .rows = rows,
                                       .n_in = C,
                                       .n_out = F}));
    return gpt2_norm_backward(
        l, o, s, io, &k.norm,
        &(gpt2_norm_grad){.d_out = d_norm, .d_residual = io->d_out, .sink = sink});
}

void gpt2_mlp_layer(layer *l)
{
    l->saved_elems = mlp_saved_elems;
    l->scratch_elems = mlp_scratch_elems;
    l->rounding_bytes = mlp_rounding_bytes;
    l->forward = mlp_forward;
    l->backward = mlp_backward;
}
