/* llama.c -- Llama 2, 3 and 3.1 as Hugging Face's LlamaForCausalLM, cut into layers.
 *
 *   embed          embed_tokens
 *   layers.i.attn  input_layernorm, q_proj, k_proj, v_proj, o_proj:  x + o(attn(rope(qkv(norm x))))
 *   layers.i.mlp   post_attention_layernorm, gate_proj, up_proj, down_proj:
 *                  x + down(silu(gate(norm x)) * up(norm x))
 *   head           norm, lm_head (a weight of its own, or tied to embed_tokens)
 *
 * Linear weights are stored [out, in] and have no bias, norms are RMS norms. [Touvron et al. 2023]
 * Between forward and backward a layer of a block keeps, in elements a token (C width, F MLP width,
 * H and Hkv heads, D their width):
 *
 *     attn   C + (2 H + 2 Hkv) D   norm's output, q k v after rope, attention's output; H + 1 fp32
 *     mlp    C + 2 F               norm's output, gate, up; 1 fp32
 *
 * Backward computes silu(gate) * up again. */
#include <fnmatch.h>
#include <math.h>
#include <string.h>
#include "common/base/json.h"
#include "common/base/pmath.h"
#include "common/model/tensor_parallel.h"
#include "common/model/transformer.h"

#define LLAMA_NORM_EPS 1e-5f
#define LLAMA_INIT_STD 0.02f

enum { BYTE_VOCAB = 256, LLAMA2_VOCAB = 32000, LLAMA3_VOCAB = 128256 };

/* A layer's own parameter order: indices into layer_io.params and .grads. */
enum {
    ATTN_NORM,
    ATTN_Q, /* [H D, C] */
    ATTN_K, /* [Hkv D, C], as v */
    ATTN_V,
    ATTN_O /* [C, H D] */
};
enum {
    MLP_NORM,
    MLP_GATE, /* [F, C], as up */
    MLP_UP,
    MLP_DOWN /* [C, F] */
};

/* ---- rotary positions ------------------------------------------------------------------------ */

/* theta^(-2i/D), i < D/2. As in Hugging Face, the power is rounded to fp32, then inverted. */
static float frequency(const model_config *c, size_t i)
{
    const float exponent = (float)(2 * i) / (float)c->head_dim;
    return 1.0f / (float)pm_exp((double)exponent * pm_log((double)c->rope_theta));
}

/* Llama 3.1: wavelengths above original/low positions are multiplied by factor, wavelengths below
 * original/high are kept, and frequencies in between are interpolated. */
static float scaled_frequency(const model_config *c, float freq)
{
    const float wave = 6.28318530717958647692f / freq, original = (float)c->rope_original;
    const float blend = (original / wave - c->rope_low) / (c->rope_high - c->rope_low);
    if (c->rope_factor == 0.0f || wave < original / c->rope_high)
        return freq;
    if (wave > original / c->rope_low)
        return freq / c->rope_factor;
    return (1.0f - blend) * freq / c->rope_factor + blend * freq;
}

/* Apply rope to heads. The caller has set a.x, a.batch (blocks), a.n_head and a.inverse. */
static fsdp_status turn(const layer *l, const ops *o, stream *s, const layer_io *io, rope_args a)
{
    const model_config *c = &l->model->config;
    a.stride = a.n_head * c->head_dim;
    a.batch *= io->batch;
    a.seq_len = io->seq_len;
    a.head_dim = c->head_dim;
    a.type = io->type;
    for (size_t i = 0; i < c->head_dim / 2; i++)
        a.inv_freq[i] = scaled_frequency(c, frequency(c, i));
    return o->rope(s, &a);
}

/* Apply rope to heads, or to keys, of all blocks. */
static fsdp_status turn_all(const layer *l, const ops *o, stream *s, const layer_io *io,
                            const qkv *p, bool inverse)
{
    const model *m = l->model;
    TRY(turn(
        l, o, s, io,
        (rope_args){
            .x = p->q, .batch = m->n_tp_blocks, .n_head = heads_of(l, false), .inverse = inverse}));
    return turn(
        l, o, s, io,
        (rope_args){
            .x = p->k, .batch = m->n_kv_blocks, .n_head = heads_of(l, true), .inverse = inverse});
}

/* ---- attn: out = in + o(attention(rope(q k v(norm(in))))) ------------------------------------ */

/* Elements per row of one block: of q (q_cols), and of k or v. */
static size_t q_cols(const layer *l)
{
    return heads_of(l, false) * l->model->config.head_dim;
}

static size_t kv_cols(const layer *l)
{
    return heads_of(l, true) * l->model->config.head_dim;
}

static layer_bytes attn_arrays(const layer *l, const layer_io *io, layer_arrays *k)
{
    const size_t n = l->model->n_tp_blocks;
    const size_t wide = n * q_cols(l) + 2 * l->model->n_kv_blocks * kv_cols(l);
    return lay_out(l, io,
                   (layer_cols){.wide = wide,
                                .d_wide = wide,
                                .heads = n * heads_of(l, false),
                                .att = n * q_cols(l),
                                .kv = l->model->kv_share > 1 ? kv_cols(l) : 0},
                   k);
}

LAYER_BYTES(attn_bytes, attn_arrays, layer_arrays)

/* q [rows, H D] of each block, k and v [rows, Hkv D], one after the other. */
static qkv parts_of(const layer *l, const layer_io *io, void *wide)
{
    const size_t rows = io->batch * io->seq_len, q = rows * q_cols(l), kv = rows * kv_cols(l);
    void *k = element(wide, q * l->model->n_tp_blocks, io->type);
    void *v = element(k, kv * l->model->n_kv_blocks, io->type);
    return (qkv){wide, k, v, q_cols(l), kv_cols(l), q, kv};
}

static fsdp_status attn_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    layer_arrays k;
    attn_arrays(l, io, &k);
    const qkv p = parts_of(l, io, k.wide);
    TRY(norm_forward(l, o, s, io, &k));
    const linear_args products[] = {{.y = p.q, .x = k.norm, .k = &k, .weight = ATTN_Q},
                                    {.y = p.k, .x = k.norm, .k = &k, .weight = ATTN_K},
                                    {.y = p.v, .x = k.norm, .k = &k, .weight = ATTN_V}};
    TRY(linear(l, o, s, io, products, 3));
    TRY(turn_all(l, o, s, io, &p, false));
    TRY(attend(l, o, s, io, &k, &p));
    if (io->out == NULL)
        return FSDP_OK;
    return linear(
        l, o, s, io,
        &(linear_args){.y = io->out, .x = k.att, .residual = io->in, .k = &k, .weight = ATTN_O}, 1);
}

static fsdp_status attn_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    layer_arrays k;
    attn_arrays(l, io, &k);
    const qkv p[] = {parts_of(l, io, k.wide), parts_of(l, io, k.d_wide)};
    void *d_att = k.d_norm; /* last read before the gradient of the norm's output is written */
    TRY(linear_backward(
        l, o, s, io,
        &(linear_grad){.d_x = d_att, .d_y = io->d_out, .x = k.att, .k = &k, .weight = ATTN_O}, 1));
    if (!grad_wanted(io, ATTN_O))
        return FSDP_OK;
    TRY(attend_backward(l, o, s, io, &k, p));
    TRY(turn_all(l, o, s, io, &p[1], true));
    const linear_grad grads[] = {
        {.d_x = k.d_norm, .d_y = p[1].q, .x = k.norm, .k = &k, .weight = ATTN_Q},
        {.d_x = k.d_norm, .d_y = p[1].k, .x = k.norm, .weight = ATTN_K},
        {.d_x = k.d_norm, .d_y = p[1].v, .x = k.norm, .weight = ATTN_V}};
    TRY(linear_backward(l, o, s, io, grads, 3));
    return norm_backward(l, o, s, io, &k, io->d_out);
}

static const layer ATTN = {.name = "attn",
                           .kind = LAYER_ATTENTION,
                           .bytes = attn_bytes,
                           .forward = attn_forward,
                           .backward = attn_backward,
                           .sums_leaves = true};

/* ---- mlp: out = in + down(silu(gate(norm(in))) * up(norm(in))) ------------------------------- */

/* This rank's part of F columns. */
static size_t ff_cols(const layer *l)
{
    return l->model->config.d_ff / l->model->config.tp_blocks * l->model->n_tp_blocks;
}

/* k->wide is gate [rows, F], then up [rows, F]. The first half of k->d_wide holds silu(gate) * up,
 * then its gradient, then the gradient of up. The second half holds the gradient of gate. */
static layer_bytes mlp_arrays(const layer *l, const layer_io *io, layer_arrays *k)
{
    const size_t F = ff_cols(l);
    return lay_out(l, io, (layer_cols){.wide = 2 * F, .d_wide = 2 * F}, k);
}

LAYER_BYTES(mlp_bytes, mlp_arrays, layer_arrays)

/* The second half of an array [rows, 2 F]. */
static void *second(const layer *l, const layer_io *io, void *wide)
{
    return (char *)wide + io->batch * io->seq_len * ff_cols(l) * dtype_bytes(io->type);
}

static fsdp_status mlp_forward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t elems = io->batch * io->seq_len * ff_cols(l);
    layer_arrays k;
    mlp_arrays(l, io, &k);
    void *gate = k.wide, *up = second(l, io, k.wide);
    void *act = io->saved != NULL ? k.d_wide : gate; /* gate is in scratch: in place */
    TRY(norm_forward(l, o, s, io, &k));
    const linear_args products[] = {{.y = gate, .x = k.norm, .k = &k, .weight = MLP_GATE},
                                    {.y = up, .x = k.norm, .k = &k, .weight = MLP_UP}};
    TRY(linear(l, o, s, io, products, 2));
    if (io->out == NULL)
        return FSDP_OK;
    TRY(o->swiglu(
        s, &(swiglu_args){.out = act, .gate = gate, .up = up, .elems = elems, .type = io->type}));
    return linear(
        l, o, s, io,
        &(linear_args){.y = io->out, .x = act, .residual = io->in, .k = &k, .weight = MLP_DOWN}, 1);
}

static fsdp_status mlp_backward(const layer *l, const ops *o, stream *s, const layer_io *io)
{
    const size_t elems = io->batch * io->seq_len * ff_cols(l);
    layer_arrays k;
    mlp_arrays(l, io, &k);
    void *gate = k.wide, *up = second(l, io, k.wide);
    void *act = k.d_wide, *d_act = k.d_wide, *d_up = k.d_wide, *d_gate = second(l, io, k.d_wide);
    TRY(o->swiglu(
        s, &(swiglu_args){.out = act, .gate = gate, .up = up, .elems = elems, .type = io->type}));
    TRY(linear_backward(
        l, o, s, io,
        &(linear_grad){.d_x = d_act, .d_y = io->d_out, .x = act, .k = &k, .weight = MLP_DOWN}, 1));
    if (!grad_wanted(io, MLP_DOWN))
        return FSDP_OK;
    TRY(o->swiglu_backward(s, &(swiglu_backward_args){.d_gate = d_gate,
                                                      .d_up = d_up,
                                                      .d_out = d_act,
                                                      .gate = gate,
                                                      .up = up,
                                                      .elems = elems,
                                                      .type = io->type}));
    const linear_grad grads[] = {
        {.d_x = k.d_norm, .d_y = d_gate, .x = k.norm, .k = &k, .weight = MLP_GATE},
        {.d_x = k.d_norm, .d_y = d_up, .x = k.norm, .weight = MLP_UP}};
    TRY(linear_backward(l, o, s, io, grads, 2));
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
    const model_config *c = &m->config;
    const size_t C = c->d_model, F = c->d_ff, q = c->n_head * c->head_dim;
    const size_t kv = c->n_kv_head * c->head_dim, G = c->tp_blocks;
    const size_t kv_blocks = G < c->n_kv_head ? G : c->n_kv_head;
    transformer_add_layer(m, &ATTN, block);
    model_add_vector(m, "input_layernorm.weight", C, INIT_ONE);
    model_add_matrix(m, "self_attn.q_proj.weight", q, C, LLAMA_INIT_STD);
    model_add_cut(m, G, q / G * C);
    model_add_matrix(m, "self_attn.k_proj.weight", kv, C, LLAMA_INIT_STD);
    model_add_cut(m, kv_blocks, kv / kv_blocks * C);
    model_add_matrix(m, "self_attn.v_proj.weight", kv, C, LLAMA_INIT_STD);
    model_add_cut(m, kv_blocks, kv / kv_blocks * C);
    model_add_matrix(m, "self_attn.o_proj.weight", C, q, LLAMA_INIT_STD);
    model_add_cut(m, G, q / G);
    transformer_add_layer(m, &MLP, block);
    model_add_vector(m, "post_attention_layernorm.weight", C, INIT_ONE);
    model_add_matrix(m, "mlp.gate_proj.weight", F, C, LLAMA_INIT_STD);
    model_add_cut(m, G, F / G * C);
    model_add_matrix(m, "mlp.up_proj.weight", F, C, LLAMA_INIT_STD);
    model_add_cut(m, G, F / G * C);
    model_add_matrix(m, "mlp.down_proj.weight", C, F, LLAMA_INIT_STD);
    model_add_cut(m, G, F / G);
}

static void build(model *m)
{
    const size_t C = m->config.d_model, V = m->config.vocab_size;
    const size_t tokens = cut_at(V, m->config.tp_blocks, 1) * C;
    m->input = (array_spec){"tokens", 1, ARRAY_INDICES};
    transformer_add_layer(m, &TOKEN_EMBED, -1);
    model_add_matrix(m, "model.embed_tokens.weight", V, C, LLAMA_INIT_STD);
    model_add_cut(m, m->config.tp_blocks, tokens);
    for (int block = 0; block < m->n_blocks; block++)
        add_block(m, block);
    model_add_layer(m, &LM_HEAD, -1);
    model_add_vector(m, "model.norm.weight", C, INIT_ONE);
    if (m->config.untied) {
        model_add_matrix(m, "lm_head.weight", V, C, LLAMA_INIT_STD);
        model_add_cut(m, m->config.tp_blocks, tokens);
    } else {
        model_add_tied(m, "lm_head.weight", 0);
    }
}

/* ---- sizes and config.json ------------------------------------------------------------------- */

enum { FF_MULTIPLE = 256 };

static fsdp_status complete(model_config *c)
{
    if (c->n_head > 0 && c->head_dim == 0 && c->d_model % c->n_head == 0)
        c->head_dim = c->d_model / c->n_head;
    c->n_kv_head = c->n_kv_head ? c->n_kv_head : c->n_head;
    /* 2/3 of 4 d_model: three matrices then have as many elements as GPT-2's two */
    c->d_ff = c->d_ff ? c->d_ff : size_round_up(8 * c->d_model / 3, FF_MULTIPLE);
    c->norm_eps = c->norm_eps != 0.0f ? c->norm_eps : LLAMA_NORM_EPS;
    c->rope_theta = c->rope_theta != 0.0f ? c->rope_theta : 10000.0f;
    TRY(transformer_check(c));
    if (c->n_head % c->n_kv_head != 0)
        return fsdp_error(FSDP_EINVAL, "change --n-kv-head or --n-head so that it divides",
                          "%s: n-kv-head %zu does not divide n-head %zu", c->family, c->n_kv_head,
                          c->n_head);
    if (c->head_dim % 2 != 0 || c->head_dim > 2 * ROPE_MAX_PAIRS)
        return fsdp_error(FSDP_EINVAL, "change --n-head or --d-model",
                          "%s: heads of width %zu, expected an even number up to %d (rotary "
                          "positions turn pairs)",
                          c->family, c->head_dim, 2 * ROPE_MAX_PAIRS);
    return FSDP_OK;
}

#define LLAMA(blocks, heads, kv, width, ff, vocab, positions, theta)                               \
    .n_blocks = blocks, .n_head = heads, .n_kv_head = kv, .d_model = width, .d_ff = ff,            \
    .vocab_size = vocab, .max_seq_len = positions, .rope_theta = theta, .norm_eps = LLAMA_NORM_EPS
#define LLAMA31                                                                                    \
    .untied = true, .rope_factor = 8, .rope_low = 1, .rope_high = 4, .rope_original = 8192

static const model_preset_row PRESETS[] = {
    {"tiny", {LLAMA(2, 4, 2, 64, 192, BYTE_VOCAB, 256, 10000)}},
    {"small", {LLAMA(6, 8, 2, 256, 768, BYTE_VOCAB, 256, 10000), .untied = true}},
    {"124m", {LLAMA(12, 12, 12, 768, 2048, LLAMA2_VOCAB, 1024, 10000)}},
    {"cs336-xl", {LLAMA(48, 25, 25, 1600, 6400, 50257, 1024, 10000), .untied = true}},
    {"llama2-7b", {LLAMA(32, 32, 32, 4096, 11008, LLAMA2_VOCAB, 4096, 10000), .untied = true}},
    {"llama2-13b", {LLAMA(40, 40, 40, 5120, 13824, LLAMA2_VOCAB, 4096, 10000), .untied = true}},
    {"llama2-70b", {LLAMA(80, 64, 8, 8192, 28672, LLAMA2_VOCAB, 4096, 10000), .untied = true}},
    {"llama3-8b", {LLAMA(32, 32, 8, 4096, 14336, LLAMA3_VOCAB, 8192, 500000), .untied = true}},
    {"llama3-70b", {LLAMA(80, 64, 8, 8192, 28672, LLAMA3_VOCAB, 8192, 500000), .untied = true}},
    {"llama3.1-8b", {LLAMA(32, 32, 8, 4096, 14336, LLAMA3_VOCAB, 131072, 500000), LLAMA31}},
    {"llama3.1-70b", {LLAMA(80, 64, 8, 8192, 28672, LLAMA3_VOCAB, 131072, 500000), LLAMA31}},
    {"llama3.1-405b", {LLAMA(126, 128, 8, 16384, 53248, LLAMA3_VOCAB, 131072, 500000), LLAMA31}},
    {0},
};

#define MOST_ROPE 1e12f
/* Members of the object that scales rotary positions. */
static const config_field LLAMA3[] = {
    {"rope_type", CONFIG_WRITTEN, .value = "\"llama3\""},
    {"factor", CONFIG_NUMBER, CONFIG_AT(rope_factor), .most = MOST_ROPE},
    {"low_freq_factor", CONFIG_NUMBER, CONFIG_AT(rope_low), .most = MOST_ROPE},
    {"high_freq_factor", CONFIG_NUMBER, CONFIG_AT(rope_high), .most = MOST_ROPE},
    {"original_max_position_embeddings", CONFIG_SIZE_OR, CONFIG_AT(rope_original)},
    {0},
};
static const config_field THETA[] = {
    {"rope_theta", CONFIG_NUMBER, CONFIG_AT(rope_theta), .otherwise = 10000.0f, .most = MOST_ROPE},
    {0},
};

static const config_field FIELDS[] = {
    {"architectures", CONFIG_WRITTEN, .value = "[\"LlamaForCausalLM\"]"},
    {"model_type", CONFIG_WRITTEN, .value = "\"llama\""},
    {"num_hidden_layers", CONFIG_SIZE, CONFIG_AT(n_blocks)},
    {"num_attention_heads", CONFIG_SIZE, CONFIG_AT(n_head)},
    {"num_key_value_heads", CONFIG_SIZE_OR, CONFIG_AT(n_kv_head)},
    {"head_dim", CONFIG_SIZE_OR, CONFIG_AT(head_dim)},
    {"hidden_size", CONFIG_SIZE, CONFIG_AT(d_model)},
    {"intermediate_size", CONFIG_SIZE, CONFIG_AT(d_ff)},
    {"max_position_embeddings", CONFIG_SIZE, CONFIG_AT(max_seq_len)},
    {"vocab_size", CONFIG_SIZE, CONFIG_AT(vocab_size)},
    {"rope_theta", CONFIG_NUMBER, CONFIG_AT(rope_theta), .otherwise = 10000.0f, .most = MOST_ROPE},
    {"rms_norm_eps", CONFIG_NUMBER, CONFIG_AT(norm_eps), .otherwise = 1e-6f, .most = 1.0f},
    {"tie_word_embeddings", CONFIG_NOT, CONFIG_AT(untied)},
    {"hidden_act", CONFIG_FIXED, .value = "\"silu\"", .or_value = "\"swish\""},
    {"attention_bias", CONFIG_FIXED, .value = "false"},
    {"mlp_bias", CONFIG_FIXED, .value = "false"},
    {"is_causal", CONFIG_ABSENT, .value = "true"},
    {"attention_dropout", CONFIG_OTHERWISE, .value = "0"},
    {"initializer_range", CONFIG_OTHERWISE, .value = "0.02"},
    {"torch_dtype", CONFIG_WRITTEN, .value = "\"float32\""},
    {"rope_scaling", CONFIG_OBJECT, CONFIG_AT(rope_factor), .value = "null", .fields = LLAMA3},
    {0},
};

static const char ROPE_KEYS[] = "@(rope_type|type|rope_theta|factor|low_freq_factor|"
                                "high_freq_factor|original_max_position_embeddings)";
static const char SCALING_HINT[] = "use a model with Llama 3.1's scaling, or with none";

static fsdp_status read_llama3(const char *path, const cJSON *item, model_config *c)
{
    c->rope_original = c->max_seq_len; /* if it is missing, as in transformers 5 */
    TRY(config_read_object(path, item, LLAMA3, c));
    if (c->rope_high > c->rope_low)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, SCALING_HINT,
                      "import: %s: \"%s\": expected high_freq_factor above low_freq_factor", path,
                      item->string);
}

/* Versions of transformers read different ones of two fields, so the two must agree. */
static fsdp_status contradiction(const char *path, const char *key, const char *other)
{
    return fsdp_error(FSDP_EINVAL, "remove the one that the weights were not trained with",
                      "import: %s: \"%s\" contradicts %s", path, key, other);
}

/* Read "rope_scaling" or, in newer files, "rope_parameters", which has rope_theta too. Older files
 * have the key "type" instead of "rope_type". */
static fsdp_status read_rope(const char *path, const cJSON *item, bool has_theta, model_config *c)
{
    char got[48];
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(item, "rope_type");
    const cJSON *old = cJSON_GetObjectItemCaseSensitive(item, "type");
    const float theta = c->rope_theta;
    if (type != NULL && old != NULL && !cJSON_Compare(type, old, true))
        return contradiction(path, item->string, "itself: rope_type is not type");
    type = type != NULL ? type : old;
    if (cJSON_GetObjectItemCaseSensitive(item, "rope_theta") != NULL)
        TRY(config_read_object(path, item, THETA, c));
    if (has_theta && c->rope_theta != theta)
        return contradiction(path, item->string, "\"rope_theta\" beside it");
    const cJSON *more = cJSON_IsObject(item) ? item->child : NULL;
    for (; more != NULL; more = more->next)
        if (fnmatch(ROPE_KEYS, more->string, FNM_EXTMATCH) != 0 && !config_is_neutral(more))
            return fsdp_error(FSDP_EINVAL, SCALING_HINT,
                              "import: %s: \"%s\": \"%.64s\": got a field that Llama here does "
                              "not have",
                              path, item->string, more->string);
    if (cJSON_IsString(type) && strcmp(type->valuestring, "llama3") == 0)
        return read_llama3(path, item, c);
    if (cJSON_IsObject(item) &&
        (type == NULL ? cJSON_GetObjectItemCaseSensitive(item, "factor") == NULL
                      : cJSON_IsString(type) && strcmp(type->valuestring, "default") == 0))
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, SCALING_HINT,
                      "import: %s: \"%s\": \"rope_type\": got %s, expected \"llama3\" or "
                      "\"default\"",
                      path, item->string, json_print(type, got, sizeof got));
}

/* transformers takes "rope_scaling" if there are both, version 4 never takes "rope_parameters". */
static fsdp_status read_more(const char *path, const cJSON *j, model_config *c)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    const bool has_theta = cJSON_GetObjectItemCaseSensitive(j, "rope_theta") != NULL;
    const model_config plain = *c;
    for (int i = 0, n_read = 0; i < 2; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(j, keys[i]);
        const model_config first = *c;
        if (item == NULL || config_is_neutral(item))
            continue;
        *c = plain;
        TRY(read_rope(path, item, has_theta, c));
        if (n_read++ > 0 &&
            (c->rope_theta != first.rope_theta || c->rope_factor != first.rope_factor ||
             c->rope_low != first.rope_low || c->rope_high != first.rope_high ||
             c->rope_original != first.rope_original))
            return contradiction(path, keys[1], "\"rope_scaling\"");
    }
    return FSDP_OK;
}

const model_family LLAMA_FAMILY = {
    .name = "llama",
    .title = "Llama",
    .presets = PRESETS,
    .blocks = "model.layers",
    .is_rms = true,
    .prefix = "model.",
    /* tables of rotary positions, under the names of all versions */
    .ignored = "@(freqs_cis|?(*.)@(rotary?(_pos)?(_emb)|rope).@(?(+([!.])_)inv_freq|freqs?(_cis)|"
               "?(?(_)cached_)@(cos|sin)|?(_)@(cos|sin)_cached))",
    .fields = FIELDS,
    .harmless = "@(rope_parameters|pretraining_tp|max_sequence_length)",
    .complete = complete,
    .read_more = read_more,
    .build = build,
};
