/* gpt2_stages.c -- forward and backward of GPT-2's four kinds of stage.
 *
 * Each kind has one small struct that says where its arrays stand in stage_io.saved. Between
 * forward and backward a stage keeps (floats a token; C width, F MLP width, H heads, V vocabulary):
 *     embed  nothing
 *     attn   5 C + H + 2   mean, rstd, norm's output, q k v, log-sum-exp, attention's output
 *     mlp    C + F + 2     mean, rstd, norm's output, c_fc's output; gelu is computed again in
 *                          backward (the same operation on the same values: the same bits), which
 *                          saves F floats a token for one pass of element-wise work
 *     head   C + V + 2     mean, rstd, norm's output, and the gradient of the logits, which
 *                          cross-entropy puts in the logits' place, so that backward is two matmuls
 * A forward pass that does not train may leave `saved` out; the same arrays are then in scratch.
 * Functions issue work on the stream and return: nothing here reads device memory.
 * Letters as in ops.h; rows = B*T.                                                               */
#include "common/model/gpt2_impl.h"

#include <math.h>

/* A cursor over a block of floats. */
static float *take(float **next, size_t elems)
{
    float *at = *next;
    *next += elems;
    return at;
}

/* Where the kept arrays of this call stand. */
static float *kept(const stage_io *io)
{
    FSDP_ASSERT(io->saved != NULL || !io->training);
    return io->saved != NULL ? io->saved : io->scratch;
}

/* sink -- where the gradient of a frozen norm parameter goes: the operation wants an array, and
 * nobody reads this one.                                                                         */
static float *grad_or_sink(float *grad, float *sink)
{
    return grad != NULL ? grad : sink;
}

/* y = x w + b. w [n_in, n_out] as Conv1D stores it. */
static fsdp_status linear(const ops *o, stream *s, float *y, const float *x, const float *w,
                          const float *b, size_t rows, size_t n_in, size_t n_out)
{
    TRY(o->matmul(s, &(matmul_args){.out = y, .a = x, .b = w, .m = rows, .n = n_out, .k = n_in}));
    return o->bias_add(s,
                       &(bias_add_args){.out = y, .in = y, .bias = b, .rows = rows, .cols = n_out});
}

/* The three gradients of linear(); any destination may be NULL. */
typedef struct linear_grad {
    float *d_x, *d_w, *d_b; /* [rows,n_in] overwritten; [n_in,n_out], [n_out] added to */
    const float *d_y, *x, *w;
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
                                        .accumulate = true}));
    if (g->d_b != NULL)
        TRY(o->bias_backward(
            s, &(bias_backward_args){
                   .d_bias = g->d_b, .d_out = g->d_y, .rows = g->rows, .cols = g->n_out}));
    if (g->d_x == NULL)
        return FSDP_OK;
    return o->matmul(s, &(matmul_args){.out = g->d_x,
                                       .a = g->d_y,
                                       .b = g->w,
                                       .trans_b = true,
                                       .m = g->rows,
                                       .n = g->n_in,
                                       .k = g->n_out});
}

/* The three sublayers begin with a norm of io->in and keep the same three arrays of it. */
typedef struct norm_saved {
    float *mean, *rstd; /* [rows] */
    float *out;         /* [rows, C] */
} norm_saved;

static norm_saved take_norm(float **next, size_t rows, size_t width)
{
    norm_saved n;
    n.mean = take(next, rows);
    n.rstd = take(next, rows);
    n.out = take(next, rows * width);
    return n;
}

/* gain and bias are a stage's parameters 0 and 1. */
static fsdp_status norm_forward(const stage *st, const ops *o, stream *s, const stage_io *io,
                                const norm_saved *n)
{
    return o->layernorm(s, &(layernorm_args){.out = n->out,
                                             .mean = n->mean,
                                             .rstd = n->rstd,
                                             .in = io->in,
                                             .gain = io->params[0],
                                             .bias = io->params[1],
                                             .rows = io->batch * io->seq_len,
                                             .cols = st->model->config.d_model,
                                             .eps = st->model->config.norm_eps});
}

/* d_residual: gradient that reaches io->in past the norm, or NULL. sink [C]. */
static fsdp_status norm_backward(const stage *st, const ops *o, stream *s, const stage_io *io,
                                 const norm_saved *n, const float *d_norm, const float *d_residual,
                                 float *sink)
{
    return o->layernorm_backward(
        s, &(layernorm_backward_args){.d_in = io->d_in,
                                      .d_gain = grad_or_sink(io->grads[0], sink),
                                      .d_bias = grad_or_sink(io->grads[1], sink),
                                      .d_out = d_norm,
                                      .in = io->in,
                                      .gain = io->params[0],
                                      .mean = n->mean,
                                      .rstd = n->rstd,
                                      .d_residual = d_residual,
                                      .rows = io->batch * io->seq_len,
                                      .cols = st->model->config.d_model});
}

/* ---- embed: out = wte[tokens] + wpe[positions] ---------------------------------------------- */

static size_t no_elems(const stage *st, size_t batch, size_t seq_len)
{
    (void)st, (void)batch, (void)seq_len;
    return 0;
}

static size_t embed_scratch_elems(const stage *st, size_t batch, size_t seq_len, bool training)
{
    (void)st, (void)batch, (void)seq_len, (void)training;
    return 0;
}

static fsdp_status embed_forward(const stage *st, const ops *o, stream *s, const stage_io *io)
{
    const model_config *c = &st->model->config;
    if (io->seq_len > c->max_seq_len)
        return fsdp_error(FSDP_EINVAL, "use a shorter --seq-len, or a model with more positions",
                          "gpt2: sequences of %zu tokens, expected at most %zu (rows of wpe)",
                          io->seq_len, c->max_seq_len);
    return o->embedding(s, &(embedding_args){.out = io->out,
                                             .wte = io->params[EMBED_WTE],
                                             .wpe = io->params[EMBED_WPE],
                                             .tokens = io->tokens,
                                             .batch = io->batch,
                                             .seq_len = io->seq_len,
                                             .width = c->d_model,
                                             .vocab = c->vocab_size});
}

static fsdp_status embed_backward(const stage *st, const ops *o, stream *s, const stage_io *io)
{
    const model_config *c = &st->model->config;
    float *d_wte = io->grads[EMBED_WTE], *d_wpe = io->grads[EMBED_WPE];
    if (d_wte != NULL)
        return o->embedding_backward(s, &(embedding_backward_args){.d_wte = d_wte,
                                                                   .d_wpe = d_wpe,
                                                                   .d_out = io->d_out,
                                                                   .tokens = io->tokens,
                                                                   .batch = io->batch,
                                                                   .seq_len = io->seq_len,
                                                                   .width = c->d_model,
                                                                   .vocab = c->vocab_size});
    if (d_wpe == NULL)
        return FSDP_OK;
    /* wte is frozen: the positions' sum over sequences is that of a bias of T*C columns */
    return o->bias_backward(s, &(bias_backward_args){.d_bias = d_wpe,
                                                     .d_out = io->d_out,
                                                     .rows = io->batch,
                                                     .cols = io->seq_len * c->d_model});
}

void gpt2_embed_stage(stage *st)
{
    st->saved_elems = no_elems;
    st->scratch_elems = embed_scratch_elems;
    st->forward = embed_forward;
    st->backward = embed_backward;
}

/* ---- attn: out = in + proj(attention(qkv(norm(in)))) ---------------------------------------- */

typedef struct attn_saved {
    norm_saved norm;
    float *qkv; /* [rows, 3C]: row = q of all heads, then k, then v */
    float *lse; /* [B, H, T] */
    float *att; /* [rows, C] */
} attn_saved;

static attn_saved attn_layout(const stage *st, float *base, size_t batch, size_t seq_len)
{
    const size_t rows = batch * seq_len, C = st->model->config.d_model;
    float *next = base;
    attn_saved k;
    k.norm = take_norm(&next, rows, C);
    k.qkv = take(&next, rows * 3 * C);
    k.lse = take(&next, rows * st->model->config.n_head);
    k.att = take(&next, rows * C);
    return k;
}

static size_t attn_saved_elems(const stage *st, size_t batch, size_t seq_len)
{
    return batch * seq_len * (5 * st->model->config.d_model + st->model->config.n_head + 2);
}

/* Backward: d_att, later d_norm [rows,C]; d_qkv [rows,3C]; sink [C]. */
static size_t attn_scratch_elems(const stage *st, size_t batch, size_t seq_len, bool training)
{
    const size_t C = st->model->config.d_model;
    return training ? batch * seq_len * 4 * C + C : attn_saved_elems(st, batch, seq_len);
}

static fsdp_status attn_forward(const stage *st, const ops *o, stream *s, const stage_io *io)
{
    const model_config *c = &st->model->config;
    const size_t rows = io->batch * io->seq_len, C = c->d_model;
    const attn_saved k = attn_layout(st, kept(io), io->batch, io->seq_len);
    float *const *w = io->params;
    TRY(norm_forward(st, o, s, io, &k.norm));
    TRY(linear(o, s, k.qkv, k.norm.out, w[ATTN_QKV_WEIGHT], w[ATTN_QKV_BIAS], rows, C, 3 * C));
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
    TRY(linear(o, s, io->out, k.att, w[ATTN_PROJ_WEIGHT], w[ATTN_PROJ_BIAS], rows, C, C));
    return o->add(s, &(add_args){.out = io->out, .a = io->in, .b = io->out, .elems = rows * C});
}

static fsdp_status attn_core_backward(const stage *st, const ops *o, stream *s, const stage_io *io,
                                      const attn_saved *k, const float *d_att, float *d_qkv)
{
    const model_config *c = &st->model->config;
    const size_t C = c->d_model;
    return o->attention_backward(
        s, &(attention_backward_args){.d_q = d_qkv,
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
                                      .scale = 1.0f / sqrtf((float)(C / c->n_head))});
}

static fsdp_status attn_backward(const stage *st, const ops *o, stream *s, const stage_io *io)
{
    const size_t rows = io->batch * io->seq_len, C = st->model->config.d_model;
    const attn_saved k = attn_layout(st, io->saved, io->batch, io->seq_len);
    float *next = io->scratch;
    float *d_att = take(&next, rows * C), *d_qkv = take(&next, rows * 3 * C), *sink = next;
    float *d_norm = d_att; /* d_att is read for the last time before d_norm is written */
    TRY(linear_backward(o, s,
                        &(linear_grad){.d_x = d_att,
                                       .d_w = io->grads[ATTN_PROJ_WEIGHT],
                                       .d_b = io->grads[ATTN_PROJ_BIAS],
                                       .d_y = io->d_out,
                                       .x = k.att,
                                       .w = io->params[ATTN_PROJ_WEIGHT],
                                       .rows = rows,
                                       .n_in = C,
                                       .n_out = C}));
    TRY(attn_core_backward(st, o, s, io, &k, d_att, d_qkv));
    TRY(linear_backward(o, s,
                        &(linear_grad){.d_x = d_norm,
                                       .d_w = io->grads[ATTN_QKV_WEIGHT],
                                       .d_b = io->grads[ATTN_QKV_BIAS],
                                       .d_y = d_qkv,
                                       .x = k.norm.out,
                                       .w = io->params[ATTN_QKV_WEIGHT],
                                       .rows = rows,
                                       .n_in = C,
                                       .n_out = 3 * C}));
    return norm_backward(st, o, s, io, &k.norm, d_norm, io->d_out, sink);
}

void gpt2_attn_stage(stage *st)
{
    st->saved_elems = attn_saved_elems;
    st->scratch_elems = attn_scratch_elems;
    st->forward = attn_forward;
    st->backward = attn_backward;
}

/* ---- mlp: out = in + proj(gelu(fc(norm(in)))) ----------------------------------------------- */

typedef struct mlp_saved {
    norm_saved norm;
    float *fc; /* [rows, F], before gelu */
} mlp_saved;

static mlp_saved mlp_layout(const stage *st, float *base, size_t rows)
{
    float *next = base;
    mlp_saved k;
    k.norm = take_norm(&next, rows, st->model->config.d_model);
    k.fc = take(&next, rows * st->model->config.d_ff);
    return k;
}

static size_t mlp_saved_elems(const stage *st, size_t batch, size_t seq_len)
{
    return batch * seq_len * (st->model->config.d_model + st->model->config.d_ff + 2);
}

/* Training: gelu's output, in backward then its gradient [rows,F]; d_norm [rows,C]; sink [C].
 * Otherwise the kept arrays, gelu in place.                                                      */
static size_t mlp_scratch_elems(const stage *st, size_t batch, size_t seq_len, bool training)
{
    const size_t C = st->model->config.d_model, F = st->model->config.d_ff;
    return training ? batch * seq_len * (F + C) + C : mlp_saved_elems(st, batch, seq_len);
}

static fsdp_status mlp_forward(const stage *st, const ops *o, stream *s, const stage_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = st->model->config.d_model, F = st->model->config.d_ff;
    const mlp_saved k = mlp_layout(st, kept(io), rows);
    float *const *w = io->params;
    float *act = io->saved != NULL ? io->scratch : k.fc;
    TRY(norm_forward(st, o, s, io, &k.norm));
    TRY(linear(o, s, k.fc, k.norm.out, w[MLP_FC_WEIGHT], w[MLP_FC_BIAS], rows, C, F));
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = k.fc, .elems = rows * F}));
    TRY(linear(o, s, io->out, act, w[MLP_PROJ_WEIGHT], w[MLP_PROJ_BIAS], rows, F, C));
    return o->add(s, &(add_args){.out = io->out, .a = io->in, .b = io->out, .elems = rows * C});
}

static fsdp_status mlp_backward(const stage *st, const ops *o, stream *s, const stage_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = st->model->config.d_model, F = st->model->config.d_ff;
    const mlp_saved k = mlp_layout(st, io->saved, rows);
    float *next = io->scratch;
    float *act = take(&next, rows * F), *d_norm = take(&next, rows * C), *sink = next;
    float *d_fc = act; /* linear_backward reads x = act before it writes d_x */
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = k.fc, .elems = rows * F}));
    TRY(linear_backward(o, s,
                        &(linear_grad){.d_x = d_fc,
                                       .d_w = io->grads[MLP_PROJ_WEIGHT],
                                       .d_b = io->grads[MLP_PROJ_BIAS],
                                       .d_y = io->d_out,
                                       .x = act,
                                       .w = io->params[MLP_PROJ_WEIGHT],
                                       .rows = rows,
                                       .n_in = F,
                                       .n_out = C}));
    TRY(o->gelu_backward(
        s, &(gelu_backward_args){.d_in = d_fc, .d_out = d_fc, .in = k.fc, .elems = rows * F}));
    TRY(linear_backward(o, s,
                        &(linear_grad){.d_x = d_norm,
                                       .d_w = io->grads[MLP_FC_WEIGHT],
                                       .d_b = io->grads[MLP_FC_BIAS],
                                       .d_y = d_fc,
                                       .x = k.norm.out,
                                       .w = io->params[MLP_FC_WEIGHT],
                                       .rows = rows,
                                       .n_in = C,
                                       .n_out = F}));
    return norm_backward(st, o, s, io, &k.norm, d_norm, io->d_out, sink);
}

void gpt2_mlp_stage(stage *st)
{
    st->saved_elems = mlp_saved_elems;
    st->scratch_elems = mlp_scratch_elems;
    st->forward = mlp_forward;
    st->backward = mlp_backward;
}

/* ---- head: logits = norm(in) wte^T, loss = cross-entropy ------------------------------------ */

typedef struct head_saved {
    norm_saved norm;
    float *d_logits; /* [rows, V]; the logits before cross-entropy */
} head_saved;

static head_saved head_layout(const stage *st, float *base, size_t rows)
{
    float *next = base;
    head_saved k;
    k.norm = take_norm(&next, rows, st->model->config.d_model);
    k.d_logits = next;
    return k;
}

static size_t head_saved_elems(const stage *st, size_t batch, size_t seq_len)
{
    return batch * seq_len * (st->model->config.d_model + st->model->config.vocab_size + 2);
}

/* Backward: d_norm [rows,C]; sink [C]. */
static size_t head_scratch_elems(const stage *st, size_t batch, size_t seq_len, bool training)
{
    const size_t C = st->model->config.d_model;
    return training ? batch * seq_len * C + C : head_saved_elems(st, batch, seq_len);
}

static fsdp_status head_forward(const stage *st, const ops *o, stream *s, const stage_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = st->model->config.d_model, V = st->model->config.vocab_size;
    const head_saved k = head_layout(st, kept(io), rows);
    float *logits = io->logits != NULL ? io->logits : k.d_logits;
    TRY(norm_forward(st, o, s, io, &k.norm));
    TRY(o->matmul(s, &(matmul_args){.out = logits,
                                    .a = k.norm.out,
                                    .b = io->params[HEAD_WEIGHT],
                                    .trans_b = true,
                                    .m = rows,
                                    .n = V,
                                    .k = C}));
    if (io->targets == NULL)
        return FSDP_OK;
    return o->cross_entropy(s, &(cross_entropy_args){.loss = io->loss,
                                                     .d_logits = io->training ? k.d_logits : NULL,
                                                     .logits = logits,
                                                     .targets = io->targets,
                                                     .rows = rows,
                                                     .vocab = V});
}

static fsdp_status head_backward(const stage *st, const ops *o, stream *s, const stage_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = st->model->config.d_model, V = st->model->config.vocab_size;
    const head_saved k = head_layout(st, io->saved, rows);
    float *next = io->scratch;
    float *d_norm = take(&next, rows * C), *sink = next;
    if (io->grads[HEAD_WEIGHT] != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = io->grads[HEAD_WEIGHT],
                                        .a = k.d_logits,
                                        .trans_a = true,
                                        .b = k.norm.out,
                                        .m = V,
                                        .n = C,
                                        .k = rows,
                                        .accumulate = true}));
    TRY(o->matmul(s, &(matmul_args){.out = d_norm,
                                    .a = k.d_logits,
                                    .b = io->params[HEAD_WEIGHT],
                                    .m = rows,
                                    .n = C,
                                    .k = V}));
    return norm_backward(st, o, s, io, &k.norm, d_norm, NULL, sink);
}

void gpt2_head_stage(stage *st)
{
    st->saved_elems = head_saved_elems;
    st->scratch_elems = head_scratch_elems;
    st->forward = head_forward;
    st->backward = head_backward;
}
