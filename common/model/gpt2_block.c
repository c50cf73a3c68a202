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
} linear_args;

static const size_t *dims_of(const layer *l, int param)
{
    return l->model->params[l->first_param + param].dims;
}

static fsdp_status linear(const layer *l, const ops *o, stream *s, const layer_io *io,
                          const linear_args *a)
{
    return o->matmul(s, &(matmul_args){.out = a->y,
                                       .a = a->x,
                                       .b = io->params[a->param],
                                       .bias = io->params[a->param + 1],
                                       .residual = a->residual,
                                       .m = io->batch * io->seq_len,
                                       .n = dims_of(l, a->param)[1],
                                       .k = dims_of(l, a->param)[0],
                                       .type = io->type,
                                       .out_type = io->type});
}

/* The three gradients of linear(). d_w and d_b go to the layer's views of the two parameters, where
 * there is one. */
typedef struct linear_grad {
    void *d_x; /* [rows, n_in], written if gpt2_wants what comes before the parameters. It may be x,
                  which is read first, but not d_y */
    const void *d_y, *x;
    int param;
} linear_grad;

static fsdp_status linear_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                                   const linear_grad *g)
{
    const int w = g->param, b = g->param + 1;
    const size_t rows = io->batch * io->seq_len, n_in = dims_of(l, w)[0], n_out = dims_of(l, w)[1];
    if (io->grads[w] != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = io->grads[w],
                                        .a = g->x,
                                        .trans_a = true,
                                        .b = g->d_y,
                                        .m = n_in,
                                        .n = n_out,
                                        .k = rows,
                                        .accumulate = gpt2_adds(io, w),
                                        .type = io->type}));
    if (io->grads[b] != NULL)
        TRY(o->bias_backward(s, &(bias_backward_args){.d_bias = io->grads[b],
                                                      .d_out = g->d_y,
                                                      .rows = rows,
                                                      .cols = n_out,
                                                      .overwrite = !gpt2_adds(io, b),
                                                      .type = io->type}));
    if (!gpt2_wants(io, w))
        return FSDP_OK;
    return o->matmul(s, &(matmul_args){.out = g->d_x,
                                       .a = g->d_y,
                                       .b = io->params[w],
                                       .trans_b = true,
                                       .m = rows,
                                       .n = n_in,
                                       .k = n_out,
                                       .type = io->type,
                                       .out_type = io->type});
}

/* ---- attn: out = in + proj(attention(qkv(norm(in)))) ---------------------------------------- */

/* k->wide is qkv [rows, 3C]: row = q of all heads, then k, then v. */
static layer_bytes attn_arrays(const layer *l, const layer_io *io, gpt2_arrays *k)
{
    const size_t C = l->model->config.d_model, H = l->model->config.n_head;
    return gpt2_lay_out(l, io, (gpt2_cols){.wide = 3 * C, .d_wide = 3 * C, .heads = H}, k);
}

static layer_bytes attn_bytes(const layer *l, size_t rows, dtype type)
{
    return attn_arrays(l, &(layer_io){.batch = 1, .seq_len = rows, .type = type},
                       &(gpt2_arrays){0});
}

static attention_shape attn_shape(const layer *l, const layer_io *io)
{
    const size_t C = l->model->config.d_model, H = l->model->config.n_head;
    return (attention_shape){.q_stride = 3 * C,
                             .k_stride = 3 * C,
                             .v_stride = 3 * C,
                             .batch = io->batch,
                             .seq_len = io->seq_len,
                             .n_head = H,
                             .n_kv_head = H,
                             .head_dim = C / H,
                             .scale = 1.0f / sqrtf((float)(C / H)),
                             .type = io->type};
}

/* Part `i` of rows [rows, 3C]: 0 q, 1 k, 2 v. */
static void *qkv_part(const layer *l, const layer_io *io, void *qkv, size_t i)
{
    return (char *)qkv + i * l->model->config.d_model * dtype_bytes(io->type);
}

static fsdp_status attn_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    gpt2_arrays k;
    attn_arrays(l, io, &k);
    TRY(gpt2_norm_forward(l, o, s, io, &k));
    TRY(linear(l, o, s, io, &(linear_args){.y = k.wide, .x = k.norm, .param = ATTN_QKV_WEIGHT}));
    TRY(o->attention(s, &(attention_args){.out = k.att,
                                          .lse = k.lse,
                                          .q = qkv_part(l, io, k.wide, 0),
                                          .k = qkv_part(l, io, k.wide, 1),
                                          .v = qkv_part(l, io, k.wide, 2),
                                          .shape = attn_shape(l, io)}));
    if (io->out[0] == NULL)
        return FSDP_OK;
    return linear(
        l, o, s, io,
        &(linear_args){
            .y = io->out[0], .x = k.att, .residual = io->in[0], .param = ATTN_PROJ_WEIGHT});
}

static fsdp_status attn_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    gpt2_arrays k;
    attn_arrays(l, io, &k);
    void *d_att = k.d_norm; /* last read before the gradient of the norm's output is written */
    TRY(linear_backward(
        l, o, s, io,
        &(linear_grad){.d_x = d_att, .d_y = io->d_out[0], .x = k.att, .param = ATTN_PROJ_WEIGHT}));
    if (!gpt2_wants(io, ATTN_PROJ_WEIGHT))
        return FSDP_OK;
    TRY(o->attention_backward(s, &(attention_backward_args){.d_q = qkv_part(l, io, k.d_wide, 0),
                                                            .d_k = qkv_part(l, io, k.d_wide, 1),
                                                            .d_v = qkv_part(l, io, k.d_wide, 2),
                                                            .d_out = d_att,
                                                            .out = k.att,
                                                            .lse = k.lse,
                                                            .q = qkv_part(l, io, k.wide, 0),
                                                            .k = qkv_part(l, io, k.wide, 1),
                                                            .v = qkv_part(l, io, k.wide, 2),
                                                            .shape = attn_shape(l, io)}));
    TRY(linear_backward(
        l, o, s, io,
        &(linear_grad){.d_x = k.d_norm, .d_y = k.d_wide, .x = k.norm, .param = ATTN_QKV_WEIGHT}));
    return gpt2_wants(io, ATTN_QKV_WEIGHT) ? gpt2_norm_backward(l, o, s, io, &k, io->d_out[0])
                                           : FSDP_OK;
}

const layer GPT2_ATTN = {
    .name = "attn", .bytes = attn_bytes, .forward = attn_forward, .backward = attn_backward};

/* ---- mlp: out = in + proj(gelu(fc(norm(in)))) ----------------------------------------------- */

static layer_bytes mlp_arrays(const layer *l, const layer_io *io, gpt2_arrays *k)
{
    const size_t F = l->model->config.d_ff;
    return gpt2_lay_out(l, io, (gpt2_cols){.wide = F, .d_wide = F}, k);
}

static layer_bytes mlp_bytes(const layer *l, size_t rows, dtype type)
{
    return mlp_arrays(l, &(layer_io){.batch = 1, .seq_len = rows, .type = type}, &(gpt2_arrays){0});
}

static fsdp_status mlp_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t elems = io->batch * io->seq_len * l->model->config.d_ff;
    gpt2_arrays k;
    mlp_arrays(l, io, &k);
    void *fc = k.wide;
    void *act = io->saved != NULL ? k.d_wide : fc; /* scratch holds fc: gelu in place */
    TRY(gpt2_norm_forward(l, o, s, io, &k));
    TRY(linear(l, o, s, io, &(linear_args){.y = fc, .x = k.norm, .param = MLP_FC_WEIGHT}));
    if (io->out[0] == NULL)
        return FSDP_OK;
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = fc, .elems = elems, .type = io->type}));
    return linear(
        l, o, s, io,
        &(linear_args){.y = io->out[0], .x = act, .residual = io->in[0], .param = MLP_PROJ_WEIGHT});
}

static fsdp_status mlp_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t elems = io->batch * io->seq_len * l->model->config.d_ff;
    gpt2_arrays k;
    mlp_arrays(l, io, &k);
    void *fc = k.wide, *act = k.d_wide, *d_fc = k.d_wide;
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = fc, .elems = elems, .type = io->type}));
    TRY(linear_backward(
        l, o, s, io,
        &(linear_grad){.d_x = d_fc, .d_y = io->d_out[0], .x = act, .param = MLP_PROJ_WEIGHT}));
    if (!gpt2_wants(io, MLP_PROJ_WEIGHT))
        return FSDP_OK;
    TRY(o->gelu_backward(
        s, &(gelu_backward_args){
               .d_in = d_fc, .d_out = d_fc, .in = fc, .elems = elems, .type = io->type}));
    TRY(linear_backward(
        l, o, s, io,
        &(linear_grad){.d_x = k.d_norm, .d_y = d_fc, .x = k.norm, .param = MLP_FC_WEIGHT}));
    return gpt2_wants(io, MLP_FC_WEIGHT) ? gpt2_norm_backward(l, o, s, io, &k, io->d_out[0])
                                         : FSDP_OK;
}

const layer GPT2_MLP = {
    .name = "mlp", .bytes = mlp_bytes, .forward = mlp_forward, .backward = mlp_backward};
