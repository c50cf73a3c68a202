/* lm_head.c -- the last layer of a language model: logits and loss; see transformer.h. */
#include "common/comm/comm_calls.h"
#include "common/model/tensor_parallel.h"
#include "common/model/transformer.h"

/* ---- head: logits = norm(in) wte^T, loss = cross-entropy ------------------------------------
 *
 * With model.chunk_rows, the logits of all rows never exist at the same time. In training, forward
 * computes only the norm. For each chunk of rows, backward computes the logits, adds to the loss
 * while it replaces the logits by their gradient, and computes the two products with it.
 * So no product is computed twice. In evaluation, forward computes the loss chunk by chunk.
 * Without chunk_rows, all rows are one chunk. [Hsu et al. 2024] */

/* The most tokens of a block of the vocabulary. */
static size_t block_vocab(const layer *l)
{
    return cut_at(l->model->config.vocab_size, l->model->config.tp_blocks, 1);
}

/* Elements from one row of k->wide to the next. A GPU reads and writes rows of GPT-2's 50257
 * elements one by one, because they begin anywhere; 50304 apart, they begin at multiples of 128
 * bytes. A small vocabulary, for which that would take more than 3% more memory, is aligned to 16
 * bytes: 65 elements are 72 apart. Logits that the caller wants (io->logits) are dense. */
static size_t wide_stride(const layer *l)
{
    const size_t V = block_vocab(l), wide = size_round_up(V, 64);
    return wide - V <= V / 32 ? wide : size_round_up(V, 8);
}

static size_t head_chunk_rows(const layer *l, size_t rows)
{
    const size_t most = l->model->chunk_rows;
    return most > 0 && most < rows ? most : rows;
}

static layer_bytes head_arrays(const layer *l, const layer_io *io, layer_arrays *k)
{
    const size_t wide = wide_stride(l) * l->model->n_tp_blocks, rows = io->batch * io->seq_len;
    const size_t most = head_chunk_rows(l, rows), blocks = l->model->config.tp_blocks;
    const bool chunked = l->model->chunk_rows > 0;
    layer_bytes need = lay_out(l, io, (layer_cols){.wide = chunked ? 0 : wide}, k);
    k->total = NULL;
    /* begin after the norm's output, which is in scratch if nothing is saved */
    room work = {.base = io->scratch,
                 .bytes = need.saved > need.scratch ? need.saved : need.scratch};
    if (chunked) {
        k->wide = room_take(&work, most * wide, io->type);
        k->total = room_take(&work, 1, DTYPE_I64); /* 8 bytes, for a double */
    }
    if (blocks > 1)
        k->parts = room_take(&work, most * blocks * sizeof *k->parts / sizeof(float), DTYPE_F32);
    if (chunked || blocks > 1)
        need.scratch = work.bytes;
    return need;
}

LAYER_BYTES(head_bytes, head_arrays, layer_arrays)

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
    part.logits = element(io->logits, first * V, io->type);
    part.overwrite = first > 0 ? NULL : io->overwrite;
    k->norm = element(k->norm, first * C, io->type);
    k->d_norm = element(k->d_norm, first * C, io->type);
    return part;
}

/* The call for this rank's block i of the logits. The first one gives the loss. */
static cross_entropy_args block_of(const layer *l, const cross_entropy_args *all, size_t i)
{
    const size_t V = l->model->config.vocab_size, G = l->model->config.tp_blocks;
    const size_t g = l->model->first_block + i;
    const size_t step = i * all->rows * all->logits_stride;
    cross_entropy_args a = *all;
    a.cut = (vocab_cut){cut_at(V, G, g), V};
    a.vocab = cut_at(V, G, g + 1) - a.cut.first;
    a.logits = element(a.logits, step, a.type);
    a.d_logits = element(a.d_logits, step, a.type);
    a.loss = i == 0 ? a.loss : NULL;
    a.total = i == 0 ? a.total : NULL;
    return a;
}

/* The loss and its gradient, if the logits are cut into blocks: what a row needs from the others is
 * three numbers of each block. */
static fsdp_status blocks_loss(const layer *l, const ops *o, stream *s, const layer_io *io,
                               const layer_arrays *k, cross_entropy_args all)
{
    const size_t n = l->model->n_tp_blocks, rows = all.rows;
    vocab_part *mine = k->parts + l->model->first_block * rows;
    const size_t numbers = n * rows * sizeof *mine / sizeof(float);
    cross_entropy_args a;
    all.parts = k->parts;
    all.n_parts = l->model->config.tp_blocks;
    for (size_t i = 0; i < n; i++) {
        a = block_of(l, &all, i);
        TRY(o->vocab_part(s, &(vocab_part_args){.parts = mine + i * rows,
                                                .logits = a.logits,
                                                .targets = a.targets,
                                                .rows = rows,
                                                .vocab = a.vocab,
                                                .stride = a.logits_stride,
                                                .type = a.type,
                                                .cut = a.cut}));
    }
    if (io->tp)
        TRY(comm_all_gather(io->tp, s, l->name, DTYPE_F32, mine, k->parts, numbers));
    for (size_t i = 0; i < n; i++) {
        a = block_of(l, &all, i);
        TRY(o->cross_entropy(s, &a));
    }
    return FSDP_OK;
}

/* Logits of a chunk, its loss and, if wanted, the gradient of its logits in k->wide. */
static fsdp_status head_loss(const layer *l, const ops *o, stream *s, const layer_io *io,
                             const layer_arrays *k, bool wants_grad)
{
    const model *m = l->model;
    const size_t V = m->config.vocab_size, stride = io->logits ? V : wide_stride(l);
    void *logits = io->logits ? io->logits : k->wide;
    FSDP_ASSERT(io->logits == NULL || m->config.tp_blocks == 1);
    TRY(linear(l, o, s, io,
               &(linear_args){.y = logits,
                              .y_stride = stride,
                              .x = k->norm,
                              .weight = l->n_params - 1,
                              .whole = true},
               1));
    if (io->targets == NULL)
        return FSDP_OK;
    cross_entropy_args a = {.loss = io->loss,
                            .total = k->total,
                            .d_logits = wants_grad ? k->wide : NULL,
                            .d_logits_stride = wide_stride(l),
                            .logits = logits,
                            .logits_stride = stride,
                            .targets = io->targets,
                            .rows = io->batch * io->seq_len,
                            .leaves = io->leaves,
                            .vocab = V,
                            .type = io->type};
    return m->config.tp_blocks > 1 ? blocks_loss(l, o, s, io, k, a) : o->cross_entropy(s, &a);
}

/* Let k->norm have all rows. */
static fsdp_status gather_norm(const layer *l, stream *s, const layer_io *io, layer_arrays *k)
{
    if (l->model->token_parts == 1)
        return FSDP_OK;
    TRY(gather_rows(l, s, io, k->norm, k->full));
    k->norm = k->full;
    return FSDP_OK;
}

static fsdp_status head_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t rows = io->batch * io->seq_len;
    layer_arrays all;
    head_arrays(l, io, &all);
    TRY(norm_forward(l, o, s, io, &all));
    if (all.total != NULL && io->keeps)
        return FSDP_OK;
    TRY(gather_norm(l, s, io, &all));
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
    layer_arrays all, own;
    head_arrays(l, io, &all);
    own = all;
    TRY(gather_norm(l, s, io, &all));
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
                                           .k = &k,
                                           .weight = l->n_params - 1,
                                           .whole = true},
                            1));
    }
    if (l->model->token_parts > 1)
        TRY(keep_rows(l, s, io, own.d_norm, own.d_norm));
    return norm_backward(l, o, s, io, &own, NULL);
}

const layer LM_HEAD = {.name = "head",
                       .bytes = head_bytes,
                       .forward = head_forward,
                       .backward = head_backward,
                       .sums_leaves = true};
