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
    return io->d_in[0] != NULL;
}

fsdp_status gpt2_norm_forward(const layer *l, const ops *o, stream *s, const layer_io *io,
                              const gpt2_arrays *k)
{
    return o->layernorm(s, &(layernorm_args){.out = k->norm,
                                             .mean = k->mean,
                                             .rstd = k->rstd,
                                             .in = io->in[0],
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
    return o->layernorm_backward(
        s, &(layernorm_backward_args){.d_in = io->d_in[0] ? io->d_in[0] : k->norm,
                                      .d_gain = d_gain ? d_gain : k->sink,
                                      .d_bias = d_bias ? d_bias : k->sink + C,
                                      .d_out = k->d_norm,
                                      .in = io->in[0],
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
    return o->embedding(s, &(embedding_args){.out = io->out[0],
                                             .wte = io->params[EMBED_WTE],
                                             .wpe = io->params[EMBED_WPE],
                                             .tokens = io->in[0],
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
                                                                   .d_out = io->d_out[0],
                                                                   .tokens = io->in[0],
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
                                   .d_out = io->d_out[0],
                                   .rows = io->batch,
                                   .cols = io->seq_len * c->d_model,
                                   .type = io->type,
                               });
}

const layer GPT2_EMBED = {
    .name = "embed", .bytes = embed_bytes, .forward = embed_forward, .backward = embed_backward};

/* ---- head: logits = norm(in) wte^T, loss = cross-entropy ------------------------------------
 *
 * With model.chunk_rows the logits of all rows never exist together. A forward that a backward
 * follows computes only the norm. Backward then takes chunk by chunk: it computes the logits of a
 * chunk, replaces them by their gradient as it adds to the loss, and computes the two products of
 * that gradient. So no product is computed twice. An evaluation takes the loss chunk by chunk in
 * forward. Without chunk_rows all rows are one chunk. [Hsu et al. 2024] */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t head_chunk_rows(const layer *l, size_t rows)
{
    const size_t most = l->model->chunk_rows;
    return most > 0 && most < rows ? most : rows;
}

static layer_bytes head_arrays(const layer *l, const layer_io *io, gpt2_arrays *k)
{
    const size_t V = l->model->config.vocab_size, rows = io->batch * io->seq_len;
    const bool chunked = l->model->chunk_rows > 0;
    layer_bytes need = gpt2_lay_out(l, io, (gpt2_cols){.wide = chunked ? 0 : V}, k);
    k->total = NULL;
    if (!chunked)
        return need;
    /* after the norm's output, which is in scratch if nothing is saved */
    room work = {.base = io->scratch, .bytes = larger(need.saved, need.scratch)};
    k->wide = take(&work, head_chunk_rows(l, rows) * V, io->type);
    k->total = take(&work, 1, DTYPE_I64); /* as large as a double */
    need.scratch = work.bytes;
    return need;
}

static layer_bytes head_bytes(const layer *l, size_t rows, dtype type)
{
    return head_arrays(l, &(layer_io){.batch = 1, .seq_len = rows, .type = type},
                       &(gpt2_arrays){0});
}

static void *row_of(void *array, size_t row, size_t cols, dtype type)
{
    return array ? (char *)array + row * cols * dtype_bytes(type) : NULL;
}

/* The call for the chunk of *io's rows that begins at row `first`. *k has the arrays of all rows;
 * it is changed to the chunk's arrays. */
static layer_io head_chunk(const layer *l, const layer_io *io, size_t first, gpt2_arrays *k)
{
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    const size_t rows = io->batch * io->seq_len, most = head_chunk_rows(l, rows);
    layer_io part = *io;
    part.batch = 1;
    part.seq_len = rows - first < most ? rows - first : most;
    part.targets = io->targets ? io->targets + first : NULL;
    part.logits = row_of(io->logits, first, V, io->type);
    part.overwrite = first > 0 ? NULL : io->overwrite;
    k->norm = row_of(k->norm, first, C, io->type);
    k->d_norm = row_of(k->d_norm, first, C, io->type);
    return part;
}

/* Logits of a chunk, its loss and, if wanted, the gradient of its logits in k->wide. */
static fsdp_status head_loss(const layer *l, const ops *o, stream *s, const layer_io *io,
                             const gpt2_arrays *k, bool wants_grad)
{
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    void *logits = io->logits != NULL ? io->logits : k->wide;
    TRY(o->matmul(s, &(matmul_args){.out = logits,
                                    .a = k->norm,
                                    .b = io->params[HEAD_WEIGHT],
                                    .trans_b = true,
                                    .m = io->seq_len,
                                    .n = V,
                                    .k = C,
                                    .type = io->type,
                                    .out_type = io->type}));
    if (io->targets == NULL)
        return FSDP_OK;
    return o->cross_entropy(s, &(cross_entropy_args){.loss = io->loss,
                                                     .total = k->total,
                                                     .d_logits = wants_grad ? k->wide : NULL,
                                                     .logits = logits,
                                                     .targets = io->targets,
                                                     .rows = io->seq_len,
                                                     .vocab = V,
                                                     .type = io->type});
}

/* The two products of the gradient of a chunk's logits, which is in k->wide. */
static fsdp_status head_grads(const layer *l, const ops *o, stream *s, const layer_io *io,
                              const gpt2_arrays *k)
{
    const size_t C = l->model->config.d_model, V = l->model->config.vocab_size;
    if (io->grads[HEAD_WEIGHT] != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = io->grads[HEAD_WEIGHT],
                                        .a = k->wide,
                                        .trans_a = true,
                                        .b = k->norm,
                                        .m = V,
                                        .n = C,
                                        .k = io->seq_len,
                                        .accumulate = gpt2_adds(io, HEAD_WEIGHT),
                                        .type = io->type}));
    return o->matmul(s, &(matmul_args){.out = k->d_norm,
                                       .a = k->wide,
                                       .b = io->params[HEAD_WEIGHT],
                                       .m = io->seq_len,
                                       .n = C,
                                       .k = V,
                                       .type = io->type,
                                       .out_type = io->type});
}

static fsdp_status head_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    gpt2_arrays all;
    head_arrays(l, io, &all);
    TRY(gpt2_norm_forward(l, o, s, io, &all));
    if (all.total != NULL && io->keeps)
        return FSDP_OK;
    if (all.total != NULL)
        TRY(device_zero(s, all.total, sizeof *all.total));
    for (size_t first = 0; first < rows; first += head_chunk_rows(l, rows)) {
        gpt2_arrays k = all;
        const layer_io part = head_chunk(l, io, first, &k);
        TRY(head_loss(l, o, s, &part, &k, io->keeps));
    }
    return FSDP_OK;
}

static fsdp_status head_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    gpt2_arrays all;
    head_arrays(l, io, &all);
    if (all.total != NULL)
        TRY(device_zero(s, all.total, sizeof *all.total));
    for (size_t first = 0; first < rows; first += head_chunk_rows(l, rows)) {
        gpt2_arrays k = all;
        const layer_io part = head_chunk(l, io, first, &k);
        if (all.total != NULL)
            TRY(head_loss(l, o, s, &part, &k, true));
        TRY(head_grads(l, o, s, &part, &k));
    }
    return gpt2_norm_backward(l, o, s, io, &all, NULL);
}

const layer GPT2_HEAD = {
    .name = "head", .bytes = head_bytes, .forward = head_forward, .backward = head_backward};
