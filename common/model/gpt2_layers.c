/* gpt2_layers.c -- forward and backward of GPT-2's two ends, embedding and head, and the norm that
 * begins every other layer. The block's layers are in gpt2_block.c. */
#include "common/model/gpt2_impl.h"

/* Memory that is cut into arrays, one after the other. */
typedef struct room {
    char *base;   /* NULL: arrays are only measured */
    size_t bytes; /* taken so far */
} room;

static void *take(room *from, size_t elems, dtype type)
{
    void *at = from->base ? from->base + from->bytes : NULL;
    from->bytes += size_round_up(elems * dtype_bytes(type), LAYER_ALIGN_BYTES);
    return at;
}

layer_bytes gpt2_lay_out(const layer *l, const layer_io *io, gpt2_cols cols, gpt2_arrays *k)
{
    const size_t rows = io->batch * io->seq_len, C = l->model->config.d_model;
    FSDP_ASSERT(io->saved != NULL || !io->keeps);
    room kept = {.base = io->saved ? io->saved : io->scratch}, work = {.base = io->scratch};
    k->mean = take(&kept, rows, DTYPE_F32);
    k->rstd = take(&kept, rows, DTYPE_F32);
    k->norm = take(&kept, rows * C, io->type);
    k->wide = take(&kept, rows * cols.wide, io->type);
    k->lse = take(&kept, rows * cols.heads, DTYPE_F32);
    k->att = take(&kept, cols.heads ? rows * C : 0, io->type);
    k->d_norm = take(&work, rows * C, io->type);
    k->d_wide = take(&work, rows * cols.d_wide, io->type);
    k->sink = take(&work, 2 * C, DTYPE_F32);
    return (layer_bytes){kept.bytes, work.bytes};
}

bool gpt2_adds(const layer_io *io, int param)
{
    return io->overwrite == NULL || !io->overwrite[param];
}

bool gpt2_wants(const layer_io *io, int param)
{
    for (int i = 0; i < param; i++)
        if (io->grads[i] != NULL)
            return true;
    return io->d_in != NULL;
}

fsdp_status gpt2_norm_forward(const layer *l, const ops *o, stream *s, const layer_io *io,
                              const gpt2_arrays *k)
{
    return o->layernorm(s, &(layernorm_args){.out = k->norm,
                                             .mean = k->mean,
                                             .rstd = k->rstd,
                                             .in = io->in,
                                             .gain = io->params[0],
                                             .bias = io->params[1],
                                             .rows = io->batch * io->seq_len,
                                             .cols = l->model->config.d_model,
                                             .eps = l->model->config.norm_eps,
                                             .type = io->type});
}

/* The operation needs arrays even for gradients that nobody wants. An unwanted gradient of the
 * input overwrites the norm's output, which nobody reads any more. */
fsdp_status gpt2_norm_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                               const gpt2_arrays *k, const void *d_residual)
{
    const size_t C = l->model->config.d_model;
    float *d_gain = io->grads[0], *d_bias = io->grads[1];
    return o->layernorm_backward(s,
                                 &(layernorm_backward_args){.d_in = io->d_in ? io->d_in : k->norm,
                                                            .d_gain = d_gain ? d_gain : k->sink,
                                                            .d_bias = d_bias ? d_bias : k->sink + C,
                                                            .d_out = k->d_norm,
                                                            .in = io->in,
                                                            .gain = io->params[0],
                                                            .mean = k->mean,
                                                            .rstd = k->rstd,
                                                            .d_residual = d_residual,
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
    .name = "embed", .bytes = embed_bytes, .forward = embed_forward, .backward = embed_backward};

/* ---- head: logits = norm(in) wte^T, loss = cross-entropy ------------------------------------ */

static layer_bytes head_arrays(const layer *l, const layer_io *io, gpt2_arrays *k)
{
    return gpt2_lay_out(l, io, (gpt2_cols){.wide = l->model->config.vocab_size}, k);
}

static layer_bytes head_bytes(const layer *l, size_t rows, dtype type)
{
    return head_arrays(l, &(layer_io){.batch = 1, .seq_len = rows, .type = type},
                       &(gpt2_arrays){0});
}

static fsdp_status head_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    gpt2_arrays k;
    head_arrays(l, io, &k);
    void *logits = io->logits != NULL ? io->logits : k.wide;
    TRY(gpt2_norm_forward(l, o, s, io, &k));
    TRY(o->matmul(s, &(matmul_args){.out = logits,
                                    .a = k.norm,
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
                                                     .d_logits = io->keeps ? k.wide : NULL,
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
    gpt2_arrays k;
    head_arrays(l, io, &k);
    if (io->grads[HEAD_WEIGHT] != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = io->grads[HEAD_WEIGHT],
                                        .a = k.wide,
                                        .trans_a = true,
                                        .b = k.norm,
                                        .m = V,
                                        .n = C,
                                        .k = rows,
                                        .accumulate = gpt2_adds(io, HEAD_WEIGHT),
                                        .type = io->type}));
    TRY(o->matmul(s, &(matmul_args){.out = k.d_norm,
                                    .a = k.wide,
                                    .b = io->params[HEAD_WEIGHT],
                                    .m = rows,
                                    .n = C,
                                    .k = V,
                                    .type = io->type,
                                    .out_type = io->type}));
    return gpt2_norm_backward(l, o, s, io, &k, NULL);
}

const layer GPT2_HEAD = {
    .name = "head", .bytes = head_bytes, .forward = head_forward, .backward = head_backward};
