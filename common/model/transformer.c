/* transformer.c -- the embedding, and of other layers the norm and attention; see transformer.h. */
#include "common/model/transformer.h"
#include <math.h>
#include "common/comm/comm_sums.h"
#include "common/model/tensor_parallel.h"

enum { MAX_BLOCKS = 100000 };

void *room_take(room *from, size_t elems, dtype type)
{
    void *at = from->base ? from->base + from->bytes : NULL;
    from->bytes += size_round_up(elems * dtype_bytes(type), LAYER_ALIGN_BYTES);
    return at;
}

/* Elements of layer_arrays.sum for a sum of `elems`: an array for each level of the tree over this
 * rank's blocks, and one more. */
static size_t sum_elems(const layer *l, size_t elems)
{
    size_t n = 1;
    for (size_t blocks = l->model->n_tp_blocks; blocks > 1; blocks /= 2)
        n++;
    return n * sum_step(elems);
}

/* Elements of one block in layer_arrays.d_kv. */
static size_t kv_step(size_t rows, size_t kv)
{
    return sum_step(2 * rows * kv);
}

layer_bytes lay_out(const layer *l, const layer_io *io, layer_cols cols, layer_arrays *k)
{
    const size_t rows = io->batch * io->seq_len, C = l->model->config.d_model;
    const size_t own = own_rows(l, io), gathered = l->model->token_parts > 1 ? rows * C : 0;
    FSDP_ASSERT(io->saved != NULL || !io->keeps);
    room kept = {.base = io->saved ? io->saved : io->scratch}, work = {.base = io->scratch};
    k->mean = room_take(&kept, l->model->family->is_rms ? 0 : own, DTYPE_F32);
    k->rstd = room_take(&kept, own, DTYPE_F32);
    k->norm = room_take(&kept, own * C, io->type);
    k->wide = room_take(&kept, rows * cols.wide, io->type);
    k->lse = room_take(&kept, rows * cols.heads, DTYPE_F32);
    k->att = room_take(&kept, rows * cols.att, io->type);
    k->d_norm = room_take(&work, rows * (cols.att > C ? cols.att : C), io->type);
    k->d_wide = room_take(&work, rows * cols.d_wide, io->type);
    k->sink = room_take(&work, 2 * C, DTYPE_F32);
    if (l->model->config.tp_blocks > 1) { /* forward uses it beside what it would save */
        work.bytes = kept.bytes > work.bytes ? kept.bytes : work.bytes;
        k->sum = room_take(&work, sum_elems(l, rows * C), DTYPE_F32);
        k->d_kv = room_take(&work, l->model->n_tp_blocks * kv_step(rows, cols.kv), DTYPE_F32);
        k->full = room_take(&work, gathered, io->type);
    }
    return (layer_bytes){kept.bytes, work.bytes};
}

void transformer_add_layer(model *m, const layer *kind, int block)
{
    model_add_layer(m, kind, block);
    model_add_out(m, m->config.d_model);
}

/* Check --tp-blocks: every block has the same heads and the same part of the MLP, and some
 * tokens. */
static fsdp_status check_blocks(const model_config *c)
{
    const size_t G = c->tp_blocks, each = (c->vocab_size + G - 1) / G;
    const bool shares = c->n_kv_head > 0 && c->n_kv_head < G && G % c->n_kv_head == 0;
    const size_t kv = shares ? G : c->n_kv_head;
    const struct {
        const char *name;
        size_t n;
    } SIZES[] = {{"--n-head", c->n_head}, {"--d-ff", c->d_ff}, {"--n-kv-head", kv}};
    if (G > MOST_VOCAB_PARTS || (G & (G - 1)) != 0)
        return fsdp_error(FSDP_EINVAL, "pass --tp-blocks 1, 2, 4, ...",
                          "--tp-blocks: got %zu, expected a power of two up to %d", G,
                          MOST_VOCAB_PARTS);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        if (SIZES[i].n % G != 0)
            return fsdp_error(FSDP_EINVAL, "pass fewer --tp-blocks, or other sizes",
                              "--tp-blocks: got %zu, expected a divisor %sof %s, %zu", G,
                              SIZES[i].n == c->n_kv_head ? "or a multiple " : "", SIZES[i].name,
                              SIZES[i].n);
    if ((G - 1) * each < c->vocab_size)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass fewer --tp-blocks, or a larger --vocab-size",
                      "--tp-blocks: got %zu blocks of %zu tokens, but a vocabulary of %zu leaves "
                      "none for the last",
                      G, each, c->vocab_size);
}

fsdp_status transformer_check(model_config *c)
{
    TRY(model_check_positive(c, "n-layer", c->n_blocks));
    TRY(model_check_positive(c, "n-head", c->n_head));
    TRY(model_check_positive(c, "d-model", c->d_model));
    TRY(model_check_positive(c, "vocab-size", c->vocab_size));
    TRY(model_check_positive(c, "n-positions", c->max_seq_len));
    if (c->n_blocks > MAX_BLOCKS)
        return fsdp_error(FSDP_EINVAL, "use a smaller --n-layer",
                          "%s: n-layer is %zu, expected at most %d", c->family, c->n_blocks,
                          MAX_BLOCKS);
    if (c->vocab_size > INT32_MAX)
        return fsdp_error(FSDP_EINVAL, "use a smaller --vocab-size",
                          "%s: vocab-size is %zu, expected at most %d (tokens are int32)",
                          c->family, c->vocab_size, INT32_MAX);
    c->tp_blocks = c->tp_blocks ? c->tp_blocks : 1;
    TRY(check_blocks(c));
    if (c->head_dim == 0 && c->d_model % c->n_head != 0)
        return fsdp_error(FSDP_EINVAL, "change --n-head or --d-model so that it divides",
                          "%s: n-head %zu does not divide d-model %zu", c->family, c->n_head,
                          c->d_model);
    return FSDP_OK;
}

bool grad_wanted(const layer_io *io, int param)
{
    for (int i = 0; i < param; i++)
        if (io->grads[i] != NULL)
            return true;
    return io->d_in != NULL;
}

fsdp_status norm_forward(const layer *l, const ops *o, stream *s, const layer_io *io,
                         const layer_arrays *k)
{
    const size_t rows = own_rows(l, io), C = l->model->config.d_model;
    const float eps = l->model->config.norm_eps;
    if (l->model->family->is_rms)
        return o->rmsnorm(s, &(rmsnorm_args){.out = k->norm,
                                             .rstd = k->rstd,
                                             .in = io->in,
                                             .gain = io->params[0],
                                             .rows = rows,
                                             .cols = C,
                                             .eps = eps,
                                             .type = io->type});
    return o->layernorm(s, &(layernorm_args){.out = k->norm,
                                             .mean = k->mean,
                                             .rstd = k->rstd,
                                             .in = io->in,
                                             .gain = io->params[0],
                                             .bias = io->params[1],
                                             .rows = rows,
                                             .cols = C,
                                             .eps = eps,
                                             .type = io->type});
}

/* A norm's backward on some of the rows, and where it writes the gradients of gain and bias. */
typedef struct norm_grad {
    const layer_arrays *k;
    const void *d_residual;
    float *d_gain, *d_bias;
    size_t first, rows;
    bool overwrite;
} norm_grad;

/* The operation writes unwanted gradients too. An unwanted gradient of the input overwrites the
 * norm's output, which is not read afterwards. */
static fsdp_status norm_grads(const layer *l, const ops *o, stream *s, const layer_io *io,
                              const norm_grad *g)
{
    const layer_arrays *k = g->k;
    const size_t C = l->model->config.d_model, at = g->first * C;
    void *d_in = element(io->d_in ? io->d_in : k->norm, at, io->type);
    const void *d_out = element(k->d_norm, at, io->type), *in = element(io->in, at, io->type);
    const void *d_residual = element(g->d_residual, at, io->type);
    const size_t leaves = l->model->config.tp_blocks > 1 ? 1 : io->leaves;
    if (l->model->family->is_rms)
        return o->rmsnorm_backward(s, &(rmsnorm_backward_args){.d_in = d_in,
                                                               .d_gain = g->d_gain,
                                                               .d_out = d_out,
                                                               .in = in,
                                                               .gain = io->params[0],
                                                               .d_residual = d_residual,
                                                               .leaves = leaves,
                                                               .rstd = k->rstd + g->first,
                                                               .rows = g->rows,
                                                               .cols = C,
                                                               .overwrite = g->overwrite,
                                                               .type = io->type});
    return o->layernorm_backward(s, &(layernorm_backward_args){.d_in = d_in,
                                                               .d_gain = g->d_gain,
                                                               .d_bias = g->d_bias,
                                                               .d_out = d_out,
                                                               .in = in,
                                                               .gain = io->params[0],
                                                               .mean = k->mean + g->first,
                                                               .leaves = leaves,
                                                               .rstd = k->rstd + g->first,
                                                               .d_residual = d_residual,
                                                               .rows = g->rows,
                                                               .cols = C,
                                                               .overwrite = g->overwrite,
                                                               .type = io->type});
}

static fsdp_status norm_part(const token_sum *t, size_t first, size_t rows, float *out)
{
    norm_grad g = *(const norm_grad *)t->args;
    g.first = first;
    g.rows = rows;
    g.d_gain = out;
    g.d_bias = out + t->cols;
    g.overwrite = true;
    return norm_grads(t->l, t->o, t->s, t->io, &g);
}

fsdp_status norm_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                          const layer_arrays *k, const void *d_residual)
{
    const size_t C = l->model->config.d_model, n = l->model->family->is_rms ? 1 : 2;
    norm_grad g = {.k = k,
                   .d_residual = d_residual,
                   .d_gain = io->grads[0] ? io->grads[0] : k->sink,
                   .rows = own_rows(l, io),
                   .overwrite = !grad_adds(io, 0)};
    if (!grad_wanted(io, (int)n))
        return FSDP_OK;
    if (l->model->config.tp_blocks > 1)
        return token_sum_run(&(token_sum){norm_part, l, o, s, io, &g, n * C, C, 0});
    if (n == 2)
        g.d_bias = io->grads[1] ? io->grads[1] : k->sink + C;
    return norm_grads(l, o, s, io, &g);
}

/* ---- attention ------------------------------------------------------------------------------- */

size_t heads_of(const layer *l, bool kv)
{
    const model_config *c = &l->model->config;
    const size_t n = (kv && c->n_kv_head ? c->n_kv_head : c->n_head) / c->tp_blocks;
    return n > 0 ? n : 1; /* several blocks share a head of keys and values */
}

/* A family without head_dim has heads as wide as fit. */
static attention_shape find_heads(const layer *l, const layer_io *io, const qkv *p)
{
    const model_config *c = &l->model->config;
    const size_t width = c->head_dim ? c->head_dim : c->d_model / c->n_head;
    return (attention_shape){.q_stride = p->q_stride,
                             .k_stride = p->kv_stride,
                             .v_stride = p->kv_stride,
                             .batch = io->batch,
                             .seq_len = io->seq_len,
                             .n_head = heads_of(l, false),
                             .n_kv_head = heads_of(l, true),
                             .head_dim = width,
                             .v_head_dim = width,
                             .scale = 1.0f / sqrtf((float)width),
                             .type = io->type};
}

/* What block i of this rank reads and writes. */
typedef struct attention_block {
    void *att, *d_att;
    float *lse;
    qkv p, d;
} attention_block;

static qkv parts_at(const qkv *p, size_t i, size_t kv, dtype type)
{
    return (qkv){.q = element(p->q, i * p->q_step, type),
                 .k = element(p->k, kv * p->kv_step, type),
                 .v = element(p->v, kv * p->kv_step, type)};
}

/* Which of this rank's blocks of keys and values block i uses. */
static size_t kv_block_of(const model *m, size_t i)
{
    return (m->first_block + i) / m->kv_share - m->first_block / m->kv_share;
}

static attention_block find_block(const layer *l, const attention_shape *x, const layer_arrays *k,
                                  const qkv p[2], size_t i)
{
    const size_t rows = i * x->batch * x->seq_len * x->n_head, kv = kv_block_of(l->model, i);
    return (attention_block){.att = element(k->att, rows * x->v_head_dim, x->type),
                             .d_att = element(k->d_norm, rows * x->v_head_dim, x->type),
                             .lse = k->lse + rows,
                             .p = parts_at(&p[0], i, kv, x->type),
                             .d = parts_at(&p[1], i, kv, x->type)};
}

fsdp_status attend(const layer *l, const ops *o, stream *s, const layer_io *io,
                   const layer_arrays *k, const qkv *p)
{
    const attention_shape x = find_heads(l, io, p);
    const qkv only[2] = {*p, *p};
    for (size_t i = 0; i < l->model->n_tp_blocks; i++) {
        const attention_block b = find_block(l, &x, k, only, i);
        TRY(o->attention(
            s, &(attention_args){
                   .out = b.att, .lse = b.lse, .q = b.p.q, .k = b.p.k, .v = b.p.v, .shape = x}));
    }
    return FSDP_OK;
}

/* Add up, in the first of them, the gradients of keys and values of n blocks that share these, as a
 * tree; then over the ranks of the other blocks that share them. d_k and d_v are rounded once. */
static fsdp_status join_kv(const layer *l, const ops *o, stream *s, const layer_io *io, float *d_kv,
                           const qkv *d)
{
    const model *m = l->model;
    const size_t elems = io->batch * io->seq_len * d->kv_stride, step = sum_step(2 * elems);
    const size_t n = m->kv_share < m->n_tp_blocks ? m->kv_share : m->n_tp_blocks;
    for (size_t apart = 1; apart < n; apart *= 2)
        for (size_t i = 0; i < n; i += 2 * apart) {
            float *left = d_kv + i * step;
            TRY(o->add(
                s,
                &(add_args){.out = left, .a = left, .b = left + apart * step, .elems = 2 * elems}));
        }
    if (io->kv)
        TRY(comm_all_reduce(io->kv, s, l->name, DTYPE_F32, d_kv, 2 * elems));
    TRY(o->cast(s, &(cast_args){d->k, d_kv, io->type, DTYPE_F32, elems}));
    return o->cast(s, &(cast_args){d->v, d_kv + elems, io->type, DTYPE_F32, elems});
}

fsdp_status attend_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                            const layer_arrays *k, const qkv p[2])
{
    const attention_shape x = find_heads(l, io, p);
    const bool shares = l->model->kv_share > 1;
    const size_t elems = io->batch * io->seq_len * p->kv_stride, step = sum_step(2 * elems);
    const size_t n_blocks = l->model->n_tp_blocks, n_kv = l->model->n_kv_blocks;
    for (size_t i = 0; i < n_blocks; i++) {
        const attention_block b = find_block(l, &x, k, p, i);
        float *d_kv = shares ? k->d_kv + i * step : NULL;
        TRY(o->attention_backward(s,
                                  &(attention_backward_args){.d_q = b.d.q,
                                                             .d_k = shares ? d_kv : b.d.k,
                                                             .d_v = shares ? d_kv + elems : b.d.v,
                                                             .d_out = b.d_att,
                                                             .out = b.att,
                                                             .lse = b.lse,
                                                             .q = b.p.q,
                                                             .k = b.p.k,
                                                             .v = b.p.v,
                                                             .shape = x,
                                                             .wide_kv = shares}));
    }
    for (size_t i = 0; i < n_blocks && shares; i += n_blocks / n_kv) {
        qkv d = parts_at(&p[1], i, kv_block_of(l->model, i), x.type);
        d.kv_stride = p->kv_stride;
        TRY(join_kv(l, o, s, io, k->d_kv + i * step, &d));
    }
    return FSDP_OK;
}

/* ---- embed: out = wte[tokens] (+ wpe[positions]) --------------------------------------------- */

enum { EMBED_WTE, EMBED_WPE };

/* embedding_backward_args.order; and, if the output is cut by tokens, all rows of it or of its
 * gradient. */
static void *embed_arrays(const layer *l, const layer_io *io, uint64_t **order, size_t *bytes)
{
    const size_t rows = io->batch * io->seq_len;
    room work = {.base = io->scratch};
    *order = room_take(&work, rows, DTYPE_I64);
    void *full =
        room_take(&work, l->model->token_parts > 1 ? rows * l->model->config.d_model : 0, io->type);
    *bytes = work.bytes;
    return full;
}

static layer_bytes embed_bytes(const layer *l, size_t rows, dtype type)
{
    uint64_t *order;
    layer_bytes need = {0};
    embed_arrays(l, &(layer_io){.batch = 1, .seq_len = rows, .type = type}, &order, &need.scratch);
    return need;
}

/* The tokens whose rows of wte this rank has. */
static vocab_cut wte_cut(const layer *l)
{
    const param_spec *wte = &l->model->params[l->first_param];
    const model_config *c = &l->model->config;
    return c->tp_blocks > 1 ? (vocab_cut){wte->cut.begin / c->d_model, c->vocab_size}
                            : (vocab_cut){0};
}

/* Each of the rows is on one tp rank, and all bits of it are 0 on the others. So the sum of the
 * bits, as integers, is the row; a sum of numbers would turn -0 into 0. */
static fsdp_status share_rows(const layer *l, stream *s, const layer_io *io, void *rows)
{
    const size_t elems = io->batch * io->seq_len * l->model->config.d_model;
    const size_t words = size_round_up(elems * dtype_bytes(io->type), 8) / 8;
    TRY(comm_all_reduce(io->tp, s, l->name, DTYPE_I64, rows, words));
    return rows != io->out ? keep_rows(l, s, io, rows, io->out) : FSDP_OK;
}

static fsdp_status embed_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const model_config *c = &l->model->config;
    if (io->seq_len > c->max_seq_len)
        return fsdp_error(FSDP_EINVAL, "use a shorter --seq-len, or a model with more positions",
                          "%s: sequences of %zu tokens, expected at most %zu, its positions",
                          c->family, io->seq_len, c->max_seq_len);
    uint64_t *order;
    size_t bytes;
    void *full = embed_arrays(l, io, &order, &bytes);
    void *rows = l->model->token_parts > 1 ? full : io->out;
    TRY(o->embedding(s, &(embedding_args){.out = rows,
                                          .wte = io->params[EMBED_WTE],
                                          .wpe = l->n_params > 1 ? io->params[EMBED_WPE] : NULL,
                                          .tokens = io->in,
                                          .batch = io->batch,
                                          .seq_len = io->seq_len,
                                          .width = c->d_model,
                                          .vocab = l->model->params[l->first_param].dims[0],
                                          .type = io->type,
                                          .cut = wte_cut(l)}));
    return io->tp ? share_rows(l, s, io, rows) : FSDP_OK;
}

static fsdp_status embed_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const model_config *c = &l->model->config;
    uint64_t *order;
    size_t bytes;
    void *full = embed_arrays(l, io, &order, &bytes);
    const void *d_out = l->model->token_parts > 1 ? full : io->d_out;
    float *d_wte = io->grads[EMBED_WTE], *d_wpe = l->n_params > 1 ? io->grads[EMBED_WPE] : NULL;
    const size_t C = c->d_model, wpe_elems = c->max_seq_len * C;
    const size_t vocab = l->model->params[l->first_param].dims[0];
    if (d_wpe != NULL && !grad_adds(io, EMBED_WPE)) /* wpe has few rows: zero them, then add */
        TRY(device_zero(s, d_wpe, wpe_elems * sizeof *d_wpe));
    if (d_wte != NULL && !grad_adds(io, EMBED_WTE))
        TRY(device_zero(s, d_wte, vocab * C * sizeof *d_wte));
    if (d_out == full)
        TRY(gather_rows(l, s, io, io->d_out, full));
    if (d_wte != NULL)
        return o->embedding_backward(
            s, &(embedding_backward_args){.d_wte = d_wte,
                                          .d_wpe = d_wpe,
                                          .d_out = d_out,
                                          .tokens = io->in,
                                          .batch = io->batch,
                                          .seq_len = io->seq_len,
                                          .width = c->d_model,
                                          .vocab = vocab,
                                          .cut = wte_cut(l),
                                          .leaves = io->leaves,
                                          .order = io->leaves > 1 ? order : NULL,
                                          .type = io->type});
    if (d_wpe == NULL)
        return FSDP_OK;
    /* wte is frozen: summing positions over sequences is a bias gradient with T*C columns */
    return o->bias_backward(s, &(bias_backward_args){
                                   .d_bias = d_wpe,
                                   .d_out = d_out,
                                   .rows = io->batch,
                                   .cols = io->seq_len * c->d_model,
                                   .leaves = io->leaves,
                                   .type = io->type,
                               });
}

const layer TOKEN_EMBED = {.name = "embed",
                           .bytes = embed_bytes,
                           .forward = embed_forward,
                           .backward = embed_backward,
                           .sums_leaves = true};
