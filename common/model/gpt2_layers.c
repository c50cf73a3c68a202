/* gpt2_layers.c -- forward and backward of GPT-2's two ends, embedding and head, and the norm that
 * begins every other layer. The block's layers are in gpt2_block.c. */
#include "common/model/gpt2_impl.h"

float *gpt2_take(float **next, size_t elems)
{
    float *at = *next;
    *next += elems;
    return at;
}

float *gpt2_kept(const layer_io *io)
{
    FSDP_ASSERT(io->saved != NULL || !io->training);
    return io->saved != NULL ? io->saved : io->scratch;
}

bool gpt2_adds(const layer_io *io, int param)
{
    return io->overwrite == NULL || !io->overwrite[param];
}

/* The operation needs an array even for a frozen parameter. */
static float *grad_or_sink(float *grad, float *sink)
{
    return grad != NULL ? grad : sink;
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t gpt2_linear_rounding(size_t rows, size_t n_in, size_t n_out, dtype type)
{
    const matmul_args y = {.m = rows, .n = n_out, .k = n_in, .b_type = type, .compute = type};
    const matmul_args d_x = {.m = rows, .n = n_in, .k = n_out, .b_type = type, .compute = type};
    const matmul_args d_w = {.m = n_in, .n = n_out, .k = rows, .trans_a = true, .compute = type};
    return largest(matmul_scratch_bytes(&d_w),
                   largest(matmul_scratch_bytes(&y), matmul_scratch_bytes(&d_x)));
}

gpt2_norm gpt2_take_norm(float **next, size_t rows, size_t width)
{
    gpt2_norm n;
    n.mean = gpt2_take(next, rows);
    n.rstd = gpt2_take(next, rows);
    n.out = gpt2_take(next, rows * width);
    return n;
}

fsdp_status gpt2_norm_forward(const layer *l, const ops *o, stream *s, const layer_io *io,
                              const gpt2_norm *n)
{
    return o->layernorm(s, &(layernorm_args){.out = n->out,
                                             .mean = n->mean,
                                             .rstd = n->rstd,
                                             .in = io->in,
                                             .gain = io->params[0],
                                             .bias = io->params[1],
                                             .rows = io->batch * io->seq_len,
                                             .cols = l->model->config.d_model,
                                             .eps = l->model->config.norm_eps,
                                             .param_type = io->param_type});
}

fsdp_status gpt2_norm_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                               const gpt2_norm *n, const gpt2_norm_grad *grad)
{
    const size_t C = l->model->config.d_model;
    return o->layernorm_backward(
        s, &(layernorm_backward_args){.d_in = io->d_in,
                                      .d_gain = grad_or_sink(io->grads[0], grad->sink),
                                      .d_bias = grad_or_sink(io->grads[1], grad->sink + C),
                                      .d_out = grad->d_out,
                                      .in = io->in,
                                      .gain = io->params[0],
                                      .mean = n->mean,
                                      .rstd = n->rstd,
                                      .d_residual = grad->d_residual,
                                      .rows = io->batch * io->seq_len,
                                      .cols = C,
                                      .param_type = io->param_type,
                                      .overwrite = !gpt2_adds(io, 0)});
}

/* ---- embed: out = wte[tokens] + wpe[positions] ---------------------------------------------- */

static size_t no_elems(const layer *l, size_t batch, size_t seq_len)
{
    (void)l, (void)batch, (void)seq_len;
    return 0;
}

static size_t embed_scratch_elems(const layer *l, size_t batch, size_t seq_len, bool training)
{
    (void)l, (void)batch, (void)seq_len, (void)training;
    return 0;
}

static size_t no_rounding(const layer *l, size_t batch, size_t seq_len, dtype param_type)
{
    (void)l, (void)batch, (void)seq_len, (void)param_type;
    return 0;
}

static fsdp_status embed_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const model_config *c = &l->model->config;
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
                                             .vocab = c->vocab_size,
                                             .param_type = io->param_type});
}

static fsdp_status embed_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const model_config *c = &l->model->config;
    float *d_wte = io->grads[EMBED_WTE], *d_wpe = io->grads[EMBED_WPE];
    const size_t C = c->d_model, wpe_elems = c->max_seq_len * C;
    if (d_wpe != NULL && !gpt2_adds(io, EMBED_WPE)) /* few rows: zeroed, then added to */
        TRY(device_zero(s, d_wpe, wpe_elems * sizeof *d_wpe));
    if (d_wte != NULL && !gpt2_adds(io, EMBED_WTE))
        TRY(device_zero(s, d_wte, c->vocab_size * C * sizeof *d_wte));
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
    /* wte is frozen: summing positions over sequences is a bias gradient with T*C columns */
    return o->bias_backward(s, &(bias_backward_args){
                                   .d_bias = d_wpe,
                                   .d_out = io->d_out,
                                   .rows = io->batch,
                                   .cols = io->seq_len * c->d_model,
                               });
}

void gpt2_embed_layer(layer *l)
{
    l->saved_elems = no_elems;
    l->scratch_elems = embed_scratch_elems;
    l->rounding_bytes = no_rounding;
    l->forward = embed_forward;
    l->backward = embed_backward;
}

/* ---- head: logits = norm(in) wte^T, loss = cross-entropy ------------------------------------ */

typedef struct head_saved {
    gpt2_norm norm;
    float *d_logits; /* [rows, V]; the logits before cross-entropy */
} head_saved;

static head_saved head_layout(const layer *l, float *base, size_t rows)
{
    float *next = base;
    head_saved k;
    k.norm = gpt2_take_norm(&next, rows, l->model->config.d_model);
    k.d_logits = next;
    return k;
}

static size_t head_saved_elems(const layer *l, size_t batch, size_t seq_len)
{
    return batch * seq_len * (l->model->config.d_model + l->model->config.vocab_size + 2);
}

/* Backward: d_norm [rows,C]; sink [2C]. */
static size_t head_scratch_elems(const layer *l, size_t batch, size_t seq_len, bool training)
{
    const size_t C = l->model->config.d_model;
    return training ? batch * seq_len * C + 2 * C : head_saved_elems(l, batch, seq_len);
}

/* As for a linear layer, except that its weight's gradient is stored [V,C]: d_logits^T norm. */
static size_t head_rounding_bytes(const layer *l, size_t batch, size_t seq_len, dtype param_type)
{
    const size_t rows = batch * seq_len;
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    const matmul_args y = {.m = rows, .n = V, .k = C, .b_type = param_type, .compute = param_type};
    const matmul_args d_x = {
        .m = rows, .n = C, .k = V, .b_type = param_type, .compute = param_type};
    const matmul_args d_w = {.m = V, .n = C, .k = rows, .trans_a = true, .compute = param_type};
    return largest(matmul_scratch_bytes(&d_w),
                   largest(matmul_scratch_bytes(&y), matmul_scratch_bytes(&d_x)));
}

static fsdp_status head_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    const head_saved k = head_layout(l, gpt2_kept(io), rows);
    float *logits = io->logits != NULL ? io->logits : k.d_logits;
    TRY(gpt2_norm_forward(l, o, s, io, &k.norm));
    TRY(o->matmul(s, &(matmul_args){.out = logits,
                                    .a = k.norm.out,
                                    .b = io->params[HEAD_WEIGHT],
                                    .trans_b = true,
                                    .m = rows,
                                    .n = V,
                                    .k = C,
                                    .b_type = io->param_type,
                                    .compute = io->param_type}));
    if (io->targets == NULL)
        return FSDP_OK;
    return o->cross_entropy(s, &(cross_entropy_args){.loss = io->loss,
                                                     .d_logits = io->training ? k.d_logits : NULL,
                                                     .logits = logits,
                                                     .targets = io->targets,
                                                     .rows = rows,
                                                     .vocab = V});
}

static fsdp_status head_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    const head_saved k = head_layout(l, io->saved, rows);
    float *next = io->scratch;
    float *d_norm = gpt2_take(&next, rows * C), *sink = next;
    if (io->grads[HEAD_WEIGHT] != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = io->grads[HEAD_WEIGHT],
                                        .a = k.d_logits,
                                        .trans_a = true,
                                        .b = k.norm.out,
                                        .m = V,
                                        .n = C,
                                        .k = rows,
                                        .accumulate = gpt2_adds(io, HEAD_WEIGHT),
                                        .compute = io->param_type}));
    TRY(o->matmul(s, &(matmul_args){.out = d_norm,
                                    .a = k.d_logits,
                                    .b = io->params[HEAD_WEIGHT],
                                    .m = rows,
                                    .n = C,
                                    .k = V,
                                    .b_type = io->param_type,
                                    .compute = io->param_type}));
    return gpt2_norm_backward(l, o, s, io, &k.norm,
                              &(gpt2_norm_grad){.d_out = d_norm, .sink = sink});
}

void gpt2_head_layer(layer *l)
{
    l->saved_elems = head_saved_elems;
    l->scratch_elems = head_scratch_elems;
    l->rounding_bytes = head_rounding_bytes;
    l->forward = head_forward;
    l->backward = head_backward;
}
