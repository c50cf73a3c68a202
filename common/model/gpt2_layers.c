/* gpt2_layers.c -- forward and backward of GPT-2's two ends, embedding and head, and the norm that
 * begins every other layer. The block's layers are in gpt2_block.c. */
#include "common/model/gpt2_impl.h"

void *gpt2_take(gpt2_room *room, size_t elems, dtype type)
{
    void *at = room->base ? room->base + room->bytes : NULL;
    room->bytes += size_round_up(elems * dtype_bytes(type), LAYER_ALIGN_BYTES);
    return at;
}

void *gpt2_kept(const layer_io *io)
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

gpt2_norm gpt2_take_norm(gpt2_room *room, size_t rows, size_t width, dtype type)
{
    gpt2_norm n;
    n.mean = gpt2_take(room, rows, DTYPE_F32);
    n.rstd = gpt2_take(room, rows, DTYPE_F32);
    n.out = gpt2_take(room, rows * width, type);
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
                                             .type = io->type});
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
                                      .type = io->type,
                                      .overwrite = !gpt2_adds(io, 0)});
}

/* ---- embed: out = wte[tokens] + wpe[positions] ---------------------------------------------- */

static layer_bytes embed_bytes(const layer *l, size_t rows, dtype type)
{
    (void)l, (void)rows, (void)type;
    return (layer_bytes){0};
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
                                             .type = io->type});
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
                                                                   .vocab = c->vocab_size,
                                                                   .type = io->type});
    if (d_wpe == NULL)
        return FSDP_OK;
    /* wte is frozen: summing positions over sequences is a bias gradient with T*C columns */
    return o->bias_backward(s, &(bias_backward_args){
                                   .d_bias = d_wpe,
                                   .d_out = io->d_out,
                                   .rows = io->batch,
                                   .cols = io->seq_len * c->d_model,
                                   .type = io->type,
                               });
}

const layer GPT2_EMBED = {
    .bytes = embed_bytes, .forward = embed_forward, .backward = embed_backward};

/* ---- head: logits = norm(in) wte^T, loss = cross-entropy ------------------------------------ */

typedef struct head_arrays {
    gpt2_norm norm; /* saved: these two */
    void *d_logits; /* [rows, V]; the logits before cross-entropy */
    void *d_norm;   /* [rows, C] */
    float *sink;    /* [2C] */
} head_arrays;

/* Finds the arrays of a call in `saved` and `scratch`; both NULL: only their bytes. */
static layer_bytes head_layout(const layer *l, size_t rows, dtype type, void *saved, void *scratch,
                               head_arrays *k)
{
    const size_t C = l->model->config.d_model;
    gpt2_room kept = {.base = saved}, work = {.base = scratch};
    k->norm = gpt2_take_norm(&kept, rows, C, type);
    k->d_logits = gpt2_take(&kept, rows * l->model->config.vocab_size, type);
    k->d_norm = gpt2_take(&work, rows * C, type);
    k->sink = gpt2_take(&work, 2 * C, DTYPE_F32);
    return (layer_bytes){kept.bytes, work.bytes};
}

static layer_bytes head_bytes(const layer *l, size_t rows, dtype type)
{
    return head_layout(l, rows, type, NULL, NULL, &(head_arrays){0});
}

static fsdp_status head_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    head_arrays k;
    head_layout(l, rows, io->type, gpt2_kept(io), io->scratch, &k);
    void *logits = io->logits != NULL ? io->logits : k.d_logits;
    TRY(gpt2_norm_forward(l, o, s, io, &k.norm));
    TRY(o->matmul(s, &(matmul_args){.out = logits,
                                    .a = k.norm.out,
                                    .b = io->params[HEAD_WEIGHT],
                                    .trans_b = true,
                                    .m = rows,
                                    .n = V,
                                    .k = C,
                                    .type = io->type,
                                    .out_type = io->type}));
    if (io->targets == NULL)
        return FSDP_OK;
    return o->cross_entropy(s, &(cross_entropy_args){.loss = io->loss,
                                                     .d_logits = io->training ? k.d_logits : NULL,
                                                     .logits = logits,
                                                     .targets = io->targets,
                                                     .rows = rows,
                                                     .vocab = V,
                                                     .type = io->type});
}

static fsdp_status head_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    head_arrays k;
    head_layout(l, rows, io->type, io->saved, io->scratch, &k);
    if (io->grads[HEAD_WEIGHT] != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = io->grads[HEAD_WEIGHT],
                                        .a = k.d_logits,
                                        .trans_a = true,
                                        .b = k.norm.out,
                                        .m = V,
                                        .n = C,
                                        .k = rows,
                                        .accumulate = gpt2_adds(io, HEAD_WEIGHT),
                                        .type = io->type}));
    TRY(o->matmul(s, &(matmul_args){.out = k.d_norm,
                                    .a = k.d_logits,
                                    .b = io->params[HEAD_WEIGHT],
                                    .m = rows,
                                    .n = C,
                                    .k = V,
                                    .type = io->type,
                                    .out_type = io->type}));
    return gpt2_norm_backward(l, o, s, io, &k.norm,
                              &(gpt2_norm_grad){.d_out = k.d_norm, .sink = k.sink});
}

const layer GPT2_HEAD = {.bytes = head_bytes, .forward = head_forward, .backward = head_backward};
