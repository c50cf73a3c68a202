/* gpt2.c -- GPT-2 as Hugging Face's GPT2LMHeadModel, cut into layers.
 *
 *   embed     wte, wpe
 *   h.i.attn  ln_1, c_attn, c_proj:  x + proj(attn(ln x))
 *   h.i.mlp   ln_2, c_fc, c_proj:    x + proj(gelu(fc(ln x)))
 *   head      ln_f, lm_head (tied to wte)
 *
 * embed and head are the root unit (block -1). Linear weights are stored [in, out] (Conv1D), wte
 * and lm_head [V, C]. [Radford et al. 2019]; names, shapes and initial values as in Hugging Face.
 *
 * Between forward and backward a layer of a block keeps, in elements a token (C width, F MLP width,
 * H heads):
 *
 *     attn   5 C     norm's output, q k v, attention's output; H + 2 fp32: log-sum-exp, mean, rstd
 *     mlp    C + F   norm's output, c_fc's output; 2 fp32: mean, rstd. gelu is computed again in
 *            backward (the same operation on the same values, so the same bits): one pass of
 *            element-wise work saves F elements a token */
#include <math.h>
#include "common/model/tensor_parallel.h"
#include "common/model/transformer.h"

#define GPT2_NORM_EPS 1e-5f
#define GPT2_INIT_STD 0.02f

enum { BYTE_VOCAB = 256, GPT2_VOCAB = 50257 };

/* A layer's own parameter order: indices into layer_io.params and .grads. */
enum {
    ATTN_LN_GAIN,
    ATTN_LN_BIAS,
    ATTN_QKV_WEIGHT, /* [C, 3C] */
    ATTN_QKV_BIAS,
    ATTN_PROJ_WEIGHT, /* [C, C] */
    ATTN_PROJ_BIAS
};
enum {
    MLP_LN_GAIN,
    MLP_LN_BIAS,
    MLP_FC_WEIGHT, /* [C, F] */
    MLP_FC_BIAS,
    MLP_PROJ_WEIGHT, /* [F, C] */
    MLP_PROJ_BIAS
};

/* ---- attn: out = in + proj(attention(qkv(norm(in)))) ---------------------------------------- */

/* This rank's part of n columns, or of n heads. */
static size_t mine(const layer *l, size_t n)
{
    return n / l->model->config.tp_blocks * l->model->n_tp_blocks;
}

/* k->wide is qkv [rows, 3C] for each block: row = q of its heads, then k, then v. */
static layer_bytes attn_arrays(const layer *l, const layer_io *io, layer_arrays *k)
{
    const size_t C = mine(l, l->model->config.d_model), H = mine(l, l->model->config.n_head);
    return lay_out(l, io, (layer_cols){.wide = 3 * C, .d_wide = 3 * C, .heads = H, .att = C}, k);
}

LAYER_BYTES(attn_bytes, attn_arrays, layer_arrays)

static qkv parts_of(const layer *l, const layer_io *io, void *wide)
{
    const size_t C = l->model->config.d_model / l->model->config.tp_blocks;
    const size_t bytes = C * dtype_bytes(io->type), step = io->batch * io->seq_len * 3 * C;
    return (qkv){wide, (char *)wide + bytes, (char *)wide + 2 * bytes, 3 * C, 3 * C, step, step};
}

static fsdp_status attn_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    layer_arrays k;
    attn_arrays(l, io, &k);
    const qkv p = parts_of(l, io, k.wide);
    TRY(norm_forward(l, o, s, io, &k));
    TRY(linear(l, o, s, io,
               &(linear_args){
                   .y = k.wide, .x = k.norm, .k = &k, .weight = ATTN_QKV_WEIGHT, .in_out = true},
               1));
    TRY(attend(l, o, s, io, &k, &p));
    if (io->out == NULL)
        return FSDP_OK;
    return linear(l, o, s, io,
                  &(linear_args){.y = io->out,
                                 .x = k.att,
                                 .residual = io->in,
                                 .k = &k,
                                 .weight = ATTN_PROJ_WEIGHT,
                                 .in_out = true},
                  1);
}

static fsdp_status attn_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    layer_arrays k;
    attn_arrays(l, io, &k);
    const qkv p[] = {parts_of(l, io, k.wide), parts_of(l, io, k.d_wide)};
    void *d_att = k.d_norm; /* last read before the gradient of the norm's output is written */
    TRY(linear_backward(l, o, s, io,
                        &(linear_grad){.d_x = d_att,
                                       .d_y = io->d_out,
                                       .x = k.att,
                                       .k = &k,
                                       .weight = ATTN_PROJ_WEIGHT,
                                       .in_out = true},
                        1));
    if (!grad_wanted(io, ATTN_PROJ_WEIGHT))
        return FSDP_OK;
    TRY(attend_backward(l, o, s, io, &k, p));
    TRY(linear_backward(l, o, s, io,
                        &(linear_grad){.d_x = k.d_norm,
                                       .d_y = k.d_wide,
                                       .x = k.norm,
                                       .k = &k,
                                       .weight = ATTN_QKV_WEIGHT,
                                       .in_out = true},
                        1));
    return norm_backward(l, o, s, io, &k, io->d_out);
}

static const layer ATTN = {.name = "attn",
                           .kind = LAYER_ATTENTION,
                           .bytes = attn_bytes,
                           .forward = attn_forward,
                           .backward = attn_backward,
                           .sums_leaves = true};

/* ---- mlp: out = in + proj(gelu(fc(norm(in)))) ----------------------------------------------- */

static layer_bytes mlp_arrays(const layer *l, const layer_io *io, layer_arrays *k)
{
    const size_t F = mine(l, l->model->config.d_ff);
    return lay_out(l, io, (layer_cols){.wide = F, .d_wide = F}, k);
}

LAYER_BYTES(mlp_bytes, mlp_arrays, layer_arrays)

static fsdp_status mlp_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t elems = io->batch * io->seq_len * mine(l, l->model->config.d_ff);
    layer_arrays k;
    mlp_arrays(l, io, &k);
    void *fc = k.wide;
    void *act = io->saved != NULL ? k.d_wide : fc; /* fc is in scratch: gelu in place */
    TRY(norm_forward(l, o, s, io, &k));
    TRY(linear(
        l, o, s, io,
        &(linear_args){.y = fc, .x = k.norm, .k = &k, .weight = MLP_FC_WEIGHT, .in_out = true}, 1));
    if (io->out == NULL)
        return FSDP_OK;
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = fc, .elems = elems, .type = io->type}));
    return linear(l, o, s, io,
                  &(linear_args){.y = io->out,
                                 .x = act,
                                 .residual = io->in,
                                 .k = &k,
                                 .weight = MLP_PROJ_WEIGHT,
                                 .in_out = true},
                  1);
}

static fsdp_status mlp_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t elems = io->batch * io->seq_len * mine(l, l->model->config.d_ff);
    layer_arrays k;
    mlp_arrays(l, io, &k);
    void *fc = k.wide, *act = k.d_wide, *d_fc = k.d_wide;
    TRY(o->gelu(s, &(gelu_args){.out = act, .in = fc, .elems = elems, .type = io->type}));
    TRY(linear_backward(l, o, s, io,
                        &(linear_grad){.d_x = d_fc,
                                       .d_y = io->d_out,
                                       .x = act,
                                       .k = &k,
                                       .weight = MLP_PROJ_WEIGHT,
                                       .in_out = true},
                        1));
    if (!grad_wanted(io, MLP_PROJ_WEIGHT))
        return FSDP_OK;
    TRY(o->gelu_backward(
        s, &(gelu_backward_args){
               .d_in = d_fc, .d_out = d_fc, .in = fc, .elems = elems, .type = io->type}));
    TRY(linear_backward(l, o, s, io,
                        &(linear_grad){.d_x = k.d_norm,
                                       .d_y = d_fc,
                                       .x = k.norm,
                                       .k = &k,
                                       .weight = MLP_FC_WEIGHT,
                                       .in_out = true},
                        1));
    return norm_backward(l, o, s, io, &k, io->d_out);
}

static const layer MLP = {.name = "mlp",
                          .kind = LAYER_MLP,
                          .bytes = mlp_bytes,
                          .forward = mlp_forward,
                          .backward = mlp_backward,
                          .sums_leaves = true};

/* ---- lists ----------------------------------------------------------------------------------- */

static void add_block(model *m, int block)
{
    const size_t C = m->config.d_model, F = m->config.d_ff, G = m->config.tp_blocks;
    /* GPT-2 divides the std of residual projections by the root of their number */
    const float residual_std = (float)(0.02 / sqrt(2.0 * (double)m->n_blocks));
    transformer_add_layer(m, &ATTN, block);
    model_add_vector(m, "ln_1.weight", C, INIT_ONE);
    model_add_vector(m, "ln_1.bias", C, INIT_ZERO);
    model_add_matrix(m, "attn.c_attn.weight", C, 3 * C, GPT2_INIT_STD);
    model_add_cut(m, G, C / G);
    model_add_vector(m, "attn.c_attn.bias", 3 * C, INIT_ZERO);
    model_add_cut(m, G, C / G);
    model_add_matrix(m, "attn.c_proj.weight", C, C, residual_std);
    model_add_cut(m, G, C / G * C);
    model_add_vector(m, "attn.c_proj.bias", C, INIT_ZERO);
    transformer_add_layer(m, &MLP, block);
    model_add_vector(m, "ln_2.weight", C, INIT_ONE);
    model_add_vector(m, "ln_2.bias", C, INIT_ZERO);
    model_add_matrix(m, "mlp.c_fc.weight", C, F, GPT2_INIT_STD);
    model_add_cut(m, G, F / G);
    model_add_vector(m, "mlp.c_fc.bias", F, INIT_ZERO);
    model_add_cut(m, G, F / G);
    model_add_matrix(m, "mlp.c_proj.weight", F, C, residual_std);
    model_add_cut(m, G, F / G * C);
    model_add_vector(m, "mlp.c_proj.bias", C, INIT_ZERO);
}

static void build(model *m)
{
    const size_t C = m->config.d_model, V = m->config.vocab_size;
    m->input = (array_spec){"tokens", 1, ARRAY_INDICES};
    transformer_add_layer(m, &TOKEN_EMBED, -1);
    model_add_matrix(m, "transformer.wte.weight", V, C, GPT2_INIT_STD);
    model_add_cut(m, m->config.tp_blocks, cut_at(V, m->config.tp_blocks, 1) * C);
    model_add_matrix(m, "transformer.wpe.weight", m->config.max_seq_len, C, GPT2_INIT_STD);
    for (int block = 0; block < m->n_blocks; block++)
        add_block(m, block);
    model_add_layer(m, &LM_HEAD, -1);
    model_add_vector(m, "transformer.ln_f.weight", C, INIT_ONE);
    model_add_vector(m, "transformer.ln_f.bias", C, INIT_ZERO);
    model_add_tied(m, "lm_head.weight", 0);
}

/* ---- sizes and config.json ------------------------------------------------------------------- */

static fsdp_status complete(model_config *c)
{
    c->d_ff = c->d_ff ? c->d_ff : 4 * c->d_model;
    c->norm_eps = c->norm_eps != 0.0f ? c->norm_eps : GPT2_NORM_EPS;
    TRY(transformer_check(c));
    if (c->n_kv_head != 0 && c->n_kv_head != c->n_head)
        return fsdp_error(FSDP_EINVAL, "leave --n-kv-head out, or pass --model llama",
                          "gpt2: n-kv-head is %zu, expected n-head, %zu", c->n_kv_head, c->n_head);
    return FSDP_OK;
}

#define GPT2(blocks, heads, width, ff, vocab, positions)                                           \
    {                                                                                              \
        .n_blocks = blocks, .n_head = heads, .d_model = width, .d_ff = ff, .vocab_size = vocab,    \
        .max_seq_len = positions, .norm_eps = GPT2_NORM_EPS                                        \
    }

static const model_preset_row PRESETS[] = {
    {"tiny", GPT2(2, 2, 64, 4 * 64, BYTE_VOCAB, 256)},
    {"small", GPT2(6, 8, 256, 4 * 256, BYTE_VOCAB, 256)},
    {"124m", GPT2(12, 12, 768, 4 * 768, GPT2_VOCAB, 1024)},
    {"355m", GPT2(24, 16, 1024, 4 * 1024, GPT2_VOCAB, 1024)},
    {"774m", GPT2(36, 20, 1280, 4 * 1280, GPT2_VOCAB, 1024)},
    {"1558m", GPT2(48, 25, 1600, 4 * 1600, GPT2_VOCAB, 1024)},
    {"xl-2l", GPT2(2, 25, 1600, 4 * 1600, BYTE_VOCAB, 1024)},
    {0},
};

static const config_field FIELDS[] = {
    {"architectures", CONFIG_WRITTEN, .value = "[\"GPT2LMHeadModel\"]"},
    {"model_type", CONFIG_WRITTEN, .value = "\"gpt2\""},
    {"n_layer", CONFIG_SIZE, CONFIG_AT(n_blocks)},
    {"n_head", CONFIG_SIZE, CONFIG_AT(n_head)},
    {"n_embd", CONFIG_SIZE, CONFIG_AT(d_model)},
    {"n_inner", CONFIG_SIZE_OR, CONFIG_AT(d_ff)},
    {"n_positions", CONFIG_SIZE, CONFIG_AT(max_seq_len)},
    {"n_ctx", CONFIG_SAME, CONFIG_AT(max_seq_len), .value = "n_positions"},
    {"vocab_size", CONFIG_SIZE, CONFIG_AT(vocab_size)},
    /* GPT-2 ends a text with its last token; in the byte vocabulary that is byte 255 */
    {"bos_token_id", .kind = CONFIG_LAST_TOKEN},
    {"eos_token_id", .kind = CONFIG_LAST_TOKEN},
    {"attn_pdrop", CONFIG_OTHERWISE, .value = "0"},
    {"embd_pdrop", CONFIG_OTHERWISE, .value = "0"},
    {"resid_pdrop", CONFIG_OTHERWISE, .value = "0"},
    {"initializer_range", CONFIG_OTHERWISE, .value = "0.02"},
    {"activation_function", CONFIG_FIXED, .value = "\"gelu_new\"",
     .or_value = "\"gelu_pytorch_tanh\""},
    {"layer_norm_epsilon", CONFIG_NUMBER, CONFIG_AT(norm_eps), .otherwise = GPT2_NORM_EPS,
     .most = 1.0f},
    {"tie_word_embeddings", CONFIG_FIXED, .value = "true"},
    {"scale_attn_weights", CONFIG_ABSENT, .value = "true"},
    {"scale_attn_by_inverse_layer_idx", CONFIG_ABSENT, .value = "false"},
    {"reorder_and_upcast_attn", CONFIG_ABSENT, .value = "false"},
    {"add_cross_attention", CONFIG_ABSENT, .value = "false"},
    {"is_causal", CONFIG_ABSENT, .value = "true"},
    {"torch_dtype", CONFIG_WRITTEN, .value = "\"float32\""},
    {0},
};

const model_family GPT2_FAMILY = {
    .name = "gpt2",
    .title = "GPT-2",
    .presets = PRESETS,
    .blocks = "transformer.h",
    .prefix = "transformer.",
    /* attention masks, which older files contain */
    .ignored = "h.+([0-9]).attn.@(bias|masked_bias)",
    .fields = FIELDS,
    .harmless = "@(summary_*|predict_special_tokens)",
    .complete = complete,
    .build = build,
};
