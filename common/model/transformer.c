/* transformer.c -- the embedding, and the parts of layers: norm and linear. See transformer.h. */
#include "common/model/transformer.h"
#include <math.h>

enum { MAX_BLOCKS = 100000, NO_PARAM = -1 };

void *room_take(room *from, size_t elems, dtype type)
{
    void *at = from->base ? from->base + from->bytes : NULL;
    from->bytes += size_round_up(elems * dtype_bytes(type), LAYER_ALIGN_BYTES);
    return at;
}

layer_bytes lay_out(const layer *l, const layer_io *io, layer_cols cols, layer_arrays *k)
{
    const size_t rows = io->batch * io->seq_len, C = l->model->config.d_model;
    FSDP_ASSERT(io->saved != NULL || !io->keeps);
    room kept = {.base = io->saved ? io->saved : io->scratch}, work = {.base = io->scratch};
    k->mean = room_take(&kept, l->model->family->is_rms ? 0 : rows, DTYPE_F32);
    k->rstd = room_take(&kept, rows, DTYPE_F32);
    k->norm = room_take(&kept, rows * C, io->type);
    k->wide = room_take(&kept, rows * cols.wide, io->type);
    k->lse = room_take(&kept, rows * cols.heads, DTYPE_F32);
    k->att = room_take(&kept, rows * cols.att, io->type);
    k->d_norm = room_take(&work, rows * (cols.att > C ? cols.att : C), io->type);
    k->d_wide = room_take(&work, rows * cols.d_wide, io->type);
    k->sink = room_take(&work, 2 * C, DTYPE_F32);
    return (layer_bytes){kept.bytes, work.bytes};
}

void transformer_add_layer(model *m, const layer *kind, int block)
{
    model_add_layer(m, kind, block);
    model_add_out(m, m->config.d_model);
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
    if (c->head_dim == 0 && c->d_model % c->n_head != 0)
        return fsdp_error(FSDP_EINVAL, "change --n-head or --d-model so that it divides",
                          "%s: n-head %zu does not divide d-model %zu", c->family, c->n_head,
                          c->d_model);
    return FSDP_OK;
}

bool grad_adds(const layer_io *io, int param)
{
    return io->overwrite == NULL || !io->overwrite[param];
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
    const size_t rows = io->batch * io->seq_len, C = l->model->config.d_model;
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

/* The operation writes unwanted gradients too. An unwanted gradient of the input overwrites the
 * norm's output, which is not read afterwards. */
fsdp_status norm_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                          const layer_arrays *k, const void *d_residual)
{
    const size_t rows = io->batch * io->seq_len, C = l->model->config.d_model;
    if (!grad_wanted(io, l->model->family->is_rms ? 1 : 2))
        return FSDP_OK;
    void *d_in = io->d_in ? io->d_in : k->norm;
    float *d_gain = io->grads[0] ? io->grads[0] : k->sink;
    const bool overwrite = !grad_adds(io, 0);
    if (l->model->family->is_rms)
        return o->rmsnorm_backward(s, &(rmsnorm_backward_args){.d_in = d_in,
                                                               .d_gain = d_gain,
                                                               .d_out = k->d_norm,
                                                               .in = io->in,
                                                               .gain = io->params[0],
                                                               .d_residual = d_residual,
                                                               .leaves = io->leaves,
                                                               .rstd = k->rstd,
                                                               .rows = rows,
                                                               .cols = C,
                                                               .overwrite = overwrite,
                                                               .type = io->type});
    float *d_bias = io->grads[1] ? io->grads[1] : k->sink + C;
    return o->layernorm_backward(s, &(layernorm_backward_args){.d_in = d_in,
                                                               .d_gain = d_gain,
                                                               .d_bias = d_bias,
                                                               .d_out = k->d_norm,
                                                               .in = io->in,
                                                               .gain = io->params[0],
                                                               .mean = k->mean,
                                                               .leaves = io->leaves,
                                                               .rstd = k->rstd,
                                                               .d_residual = d_residual,
                                                               .rows = rows,
                                                               .cols = C,
                                                               .overwrite = overwrite,
                                                               .type = io->type});
}

/* ---- linear ---------------------------------------------------------------------------------- */

/* The shape of a linear layer. Returns its bias; NO_PARAM: it has none. */
static int find_linear(const layer *l, int weight, bool in_out, size_t *n_in, size_t *n_out)
{
    const param_spec *w = &l->model->params[l->first_param + weight];
    *n_in = w->dims[!in_out];
    *n_out = w->dims[in_out];
    return weight + 1 < l->n_params && w[1].n_dims == 1 ? weight + 1 : NO_PARAM;
}

fsdp_status linear(const layer *l, const ops *o, stream *s, const layer_io *io,
                   const linear_args *a)
{
    size_t n_in, n_out;
    const int bias = find_linear(l, a->weight, a->in_out, &n_in, &n_out);
    return o->matmul(s, &(matmul_args){.out = a->y,
                                       .out_stride = a->y_stride,
                                       .a = a->x,
                                       .b = io->params[a->weight],
                                       .trans_b = !a->in_out,
                                       .bias = bias == NO_PARAM ? NULL : io->params[bias],
                                       .residual = a->residual,
                                       .m = io->batch * io->seq_len,
                                       .n = n_out,
                                       .k = n_in,
                                       .type = io->type,
                                       .out_type = io->type});
}

fsdp_status linear_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                            const linear_grad *g)
{
    const size_t rows = io->batch * io->seq_len;
    size_t n_in, n_out;
    const int bias = find_linear(l, g->weight, g->in_out, &n_in, &n_out);
    FSDP_ASSERT(g->d_y_stride == 0 || (!g->in_out && bias == NO_PARAM));
    if (io->grads[g->weight] != NULL)
        TRY(o->matmul(s, &(matmul_args){.out = io->grads[g->weight],
                                        .a = g->in_out ? g->x : g->d_y,
                                        .a_stride = g->d_y_stride,
                                        .trans_a = true,
                                        .b = g->in_out ? g->d_y : g->x,
                                        .m = g->in_out ? n_in : n_out,
                                        .n = g->in_out ? n_out : n_in,
                                        .k = rows,
                                        .leaves = io->leaves,
                                        .accumulate = grad_adds(io, g->weight),
                                        .type = io->type}));
    if (bias != NO_PARAM && io->grads[bias] != NULL)
        TRY(o->bias_backward(s, &(bias_backward_args){.d_bias = io->grads[bias],
                                                      .d_out = g->d_y,
                                                      .rows = rows,
                                                      .leaves = io->leaves,
                                                      .cols = n_out,
                                                      .overwrite = !grad_adds(io, bias),
                                                      .type = io->type}));
    if (!grad_wanted(io, g->weight))
        return FSDP_OK;
    return o->matmul(s, &(matmul_args){.out = g->d_x,
                                       .a = g->d_y,
                                       .a_stride = g->d_y_stride,
                                       .b = io->params[g->weight],
                                       .trans_b = g->in_out,
                                       .residual = g->adds ? g->d_x : NULL,
                                       .m = rows,
                                       .n = n_in,
                                       .k = n_out,
                                       .type = io->type,
                                       .out_type = io->type});
}

/* ---- attention ------------------------------------------------------------------------------- */

/* A family without n_kv_head and head_dim has as many heads of keys, and heads as wide as fit. */
static attention_shape find_heads(const layer *l, const layer_io *io, const qkv *p)
{
    const model_config *c = &l->model->config;
    const size_t width = c->head_dim ? c->head_dim : c->d_model / c->n_head;
    return (attention_shape){.q_stride = p->q_stride,
                             .k_stride = p->kv_stride,
                             .v_stride = p->kv_stride,
                             .batch = io->batch,
                             .seq_len = io->seq_len,
                             .n_head = c->n_head,
                             .n_kv_head = c->n_kv_head ? c->n_kv_head : c->n_head,
                             .head_dim = width,
                             .v_head_dim = width,
                             .scale = 1.0f / sqrtf((float)width),
                             .type = io->type};
}

fsdp_status attend(const layer *l, const ops *o, stream *s, const layer_io *io,
                   const layer_arrays *k, const qkv *p)
{
    return o->attention(s, &(attention_args){.out = k->att,
                                             .lse = k->lse,
                                             .q = p->q,
                                             .k = p->k,
                                             .v = p->v,
                                             .shape = find_heads(l, io, p)});
}

fsdp_status attend_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                            const layer_arrays *k, const qkv p[2])
{
    return o->attention_backward(s, &(attention_backward_args){.d_q = p[1].q,
                                                               .d_k = p[1].k,
                                                               .d_v = p[1].v,
                                                               .d_out = k->d_norm,
                                                               .out = k->att,
                                                               .lse = k->lse,
                                                               .q = p->q,
                                                               .k = p->k,
                                                               .v = p->v,
                                                               .shape = find_heads(l, io, p)});
}

/* ---- embed: out = wte[tokens] (+ wpe[positions]) --------------------------------------------- */

enum { EMBED_WTE, EMBED_WPE };

static layer_bytes embed_bytes(const layer *l, size_t rows, dtype type)
{
    (void)l, (void)type;
    return (layer_bytes){.scratch = rows * sizeof(uint64_t)}; /* embedding_backward_args.order */
}

static fsdp_status embed_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const model_config *c = &l->model->config;
    if (io->seq_len > c->max_seq_len)
        return fsdp_error(FSDP_EINVAL, "use a shorter --seq-len, or a model with more positions",
                          "%s: sequences of %zu tokens, expected at most %zu, its positions",
                          c->family, io->seq_len, c->max_seq_len);
    return o->embedding(s, &(embedding_args){.out = io->out,
                                             .wte = io->params[EMBED_WTE],
                                             .wpe = l->n_params > 1 ? io->params[EMBED_WPE] : NULL,
                                             .tokens = io->in,
                                             .batch = io->batch,
                                             .seq_len = io->seq_len,
                                             .width = c->d_model,
                                             .vocab = c->vocab_size,
                                             .type = io->type});
}

static fsdp_status embed_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const model_config *c = &l->model->config;
    uint64_t *const order = io->leaves > 1 ? io->scratch : NULL;
    float *d_wte = io->grads[EMBED_WTE], *d_wpe = l->n_params > 1 ? io->grads[EMBED_WPE] : NULL;
    const size_t C = c->d_model, wpe_elems = c->max_seq_len * C;
    if (d_wpe != NULL && !grad_adds(io, EMBED_WPE)) /* wpe has few rows: zero them, then add */
        TRY(device_zero(s, d_wpe, wpe_elems * sizeof *d_wpe));
    if (d_wte != NULL && !grad_adds(io, EMBED_WTE))
        TRY(device_zero(s, d_wte, c->vocab_size * C * sizeof *d_wte));
    if (d_wte != NULL)
        return o->embedding_backward(s, &(embedding_backward_args){.d_wte = d_wte,
                                                                   .d_wpe = d_wpe,
                                                                   .d_out = io->d_out,
                                                                   .tokens = io->in,
                                                                   .batch = io->batch,
                                                                   .seq_len = io->seq_len,
                                                                   .width = c->d_model,
                                                                   .vocab = c->vocab_size,
                                                                   .leaves = io->leaves,
                                                                   .order = order,
                                                                   .type = io->type});
    if (d_wpe == NULL)
        return FSDP_OK;
    /* wte is frozen: summing positions over sequences is a bias gradient with T*C columns */
    return o->bias_backward(s, &(bias_backward_args){
                                   .d_bias = d_wpe,
                                   .d_out = io->d_out,
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
