/* lm_head.c -- the last layer of a language model: logits and loss; see transformer.h. */
#include "common/model/transformer.h"

/* ---- head: logits = norm(in) wte^T, loss = cross-entropy ------------------------------------
 *
 * With model.chunk_rows, the logits of all rows never exist at the same time. In training, forward
 * computes only the norm. For each chunk of rows, backward computes the logits, adds to the loss
 * while it replaces the logits by their gradient, and computes the two products with it.
 * So no product is computed twice. In evaluation, forward computes the loss chunk by chunk.
 * Without chunk_rows, all rows are one chunk. [Hsu et al. 2024] */

/* Elements from one row of k->wide to the next. A GPU reads and writes rows of GPT-2's 50257
 * elements one by one, because they begin anywhere; 50304 apart, they begin at multiples of 128
 * bytes. A small vocabulary, for which that would take more than 3% more memory, is aligned to 16
 * bytes: 65 elements are 72 apart. Logits that the caller wants (io->logits) are dense. */
static size_t wide_stride(const layer *l)
{
    const size_t V = l->model->config.vocab_size, wide = size_round_up(V, 64);
    return wide - V <= V / 32 ? wide : size_round_up(V, 8);
}

static size_t head_chunk_rows(const layer *l, size_t rows)
{
    const size_t most = l->model->chunk_rows;
    return most > 0 && most < rows ? most : rows;
}

static layer_bytes head_arrays(const layer *l, const layer_io *io, layer_arrays *k)
{
    const size_t stride = wide_stride(l), rows = io->batch * io->seq_len;
    const bool chunked = l->model->chunk_rows > 0;
    layer_bytes need = lay_out(l, io, (layer_cols){.wide = chunked ? 0 : stride}, k);
    k->total = NULL;
    if (!chunked)
        return need;
    /* begin after the norm's output, which is in scratch if nothing is saved */
    room work = {.base = io->scratch,
                 .bytes = need.saved > need.scratch ? need.saved : need.scratch};
    k->wide = room_take(&work, head_chunk_rows(l, rows) * stride, io->type);
    k->total = room_take(&work, 1, DTYPE_I64); /* 8 bytes, for a double */
    need.scratch = work.bytes;
    return need;
}

LAYER_BYTES(head_bytes, head_arrays, layer_arrays)

static void *row_of(void *array, size_t row, size_t cols, dtype type)
{
    return array ? (char *)array + row * cols * dtype_bytes(type) : NULL;
}

/* The call for the chunk of *io's rows that begins at row `first`. *k has the arrays of all rows;
 * it is changed to the chunk's arrays. */
static layer_io head_chunk(const layer *l, const layer_io *io, size_t first, layer_arrays *k)
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
                             const layer_arrays *k, bool wants_grad)
{
    const size_t V = l->model->config.vocab_size, stride = io->logits ? V : wide_stride(l);
    void *logits = io->logits ? io->logits : k->wide;
    TRY(linear(
        l, o, s, io,
        &(linear_args){.y = logits, .y_stride = stride, .x = k->norm, .weight = l->n_params - 1}));
    if (io->targets == NULL)
        return FSDP_OK;
    return o->cross_entropy(s, &(cross_entropy_args){.loss = io->loss,
                                                     .total = k->total,
                                                     .d_logits = wants_grad ? k->wide : NULL,
                                                     .d_logits_stride = wide_stride(l),
                                                     .logits = logits,
                                                     .logits_stride = stride,
                                                     .targets = io->targets,
                                                     .rows = io->seq_len,
                                                     .leaves = io->leaves,
                                                     .vocab = V,
                                                     .type = io->type});
}

static fsdp_status head_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    layer_arrays all;
    head_arrays(l, io, &all);
    TRY(norm_forward(l, o, s, io, &all));
    if (all.total != NULL && io->keeps)
        return FSDP_OK;
    if (all.total != NULL)
        TRY(device_zero(s, all.total, sizeof *all.total));
    for (size_t first = 0; first < rows; first += head_chunk_rows(l, rows)) {
        layer_arrays k = all;
        const layer_io part = head_chunk(l, io, first, &k);
        TRY(head_loss(l, o, s, &part, &k, io->keeps));
    }
    return FSDP_OK;
}

static fsdp_status head_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    layer_arrays all;
    head_arrays(l, io, &all);
    if (all.total != NULL)
        TRY(device_zero(s, all.total, sizeof *all.total));
    for (size_t first = 0; first < rows; first += head_chunk_rows(l, rows)) {
        layer_arrays k = all;
        const layer_io part = head_chunk(l, io, first, &k);
        if (all.total != NULL)
            TRY(head_loss(l, o, s, &part, &k, true));
        TRY(linear_backward(l, o, s, &part,
                            &(linear_grad){.d_x = k.d_norm,
                                           .d_y = k.wide,
                                           .d_y_stride = wide_stride(l),
                                           .x = k.norm,
                                           .weight = l->n_params - 1}));
    }
    return norm_backward(l, o, s, io, &all, NULL);
}

const layer LM_HEAD = {.name = "head",
                       .bytes = head_bytes,
                       .forward = head_forward,
                       .backward = head_backward,
                       .sums_leaves = true};
