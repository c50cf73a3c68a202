/* gpt2.c -- GPT-2's presets and its lists of layers and parameters. The arithmetic of the layers is
 * in gpt2_layers.c and gpt2_block.c.
 *
 *   gpt2_preset -> (caller changes sizes) -> gpt2_create -> ... -> model_free
 *
 * [Radford et al. 2019]; names, shapes and initial values as in Hugging Face's GPT2LMHeadModel. */
#include "common/model/gpt2_impl.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define GPT2_PRESETS "tiny|small|124m|355m|774m|1558m|xl-2l"
#define GPT2_VOCAB   50257

enum { BYTE_VOCAB = 256, MAX_BLOCKS = 100000, PARAMS_PER_BLOCK = ATTN_N_PARAMS + MLP_N_PARAMS };

static const float GPT2_INIT_STD = 0.02f;
static const float GPT2_NORM_EPS = 1e-5f;

/* ---- presets -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t n_blocks, n_head, d_model, vocab_size, max_seq_len;
} PRESETS[] = {
    {"tiny", 2, 2, 64, BYTE_VOCAB, 256},      {"small", 6, 8, 256, BYTE_VOCAB, 256},
    {"124m", 12, 12, 768, GPT2_VOCAB, 1024},  {"355m", 24, 16, 1024, GPT2_VOCAB, 1024},
    {"774m", 36, 20, 1280, GPT2_VOCAB, 1024}, {"1558m", 48, 25, 1600, GPT2_VOCAB, 1024},
    {"xl-2l", 2, 25, 1600, BYTE_VOCAB, 1024},
};

fsdp_status gpt2_preset(const char *name, model_config *config)
{
    for (size_t i = 0; i < sizeof PRESETS / sizeof *PRESETS; i++) {
        if (strcmp(PRESETS[i].name, name) != 0)
            continue;
        *config = (model_config){
            .family = "gpt2",
            .n_blocks = PRESETS[i].n_blocks,
            .n_head = PRESETS[i].n_head,
            .n_kv_head = PRESETS[i].n_head,
            .d_model = PRESETS[i].d_model,
            .d_ff = 4 * PRESETS[i].d_model,
            .vocab_size = PRESETS[i].vocab_size,
            .max_seq_len = PRESETS[i].max_seq_len,
            .norm_eps = GPT2_NORM_EPS,
        };
        return FSDP_OK;
    }
    return fsdp_error(FSDP_EINVAL, "pass --size with one of: " GPT2_PRESETS,
                      "gpt2: no size '%.64s', expected one of " GPT2_PRESETS, name);
}

/* ---- configuration -------------------------------------------------------------------------- */

static fsdp_status check_positive(const char *option, size_t value)
{
    char hint[64];
    snprintf(hint, sizeof hint, "pass --%s with a value of at least 1", option);
    if (value == 0)
        return fsdp_error(FSDP_EINVAL, hint, "gpt2: %s is 0", option);
    return FSDP_OK;
}

static fsdp_status check_config(const model_config *c)
{
    TRY(check_positive("n-layer", c->n_blocks));
    TRY(check_positive("n-head", c->n_head));
    TRY(check_positive("d-model", c->d_model));
    TRY(check_positive("vocab-size", c->vocab_size));
    TRY(check_positive("n-positions", c->max_seq_len));
    if (c->n_blocks > MAX_BLOCKS)
        return fsdp_error(FSDP_EINVAL, "use a smaller --n-layer",
                          "gpt2: n-layer is %zu, expected at most %d", c->n_blocks, MAX_BLOCKS);
    if (c->vocab_size > INT32_MAX)
        return fsdp_error(FSDP_EINVAL, "use a smaller --vocab-size",
                          "gpt2: vocab-size is %zu, expected at most %d (tokens are int32)",
                          c->vocab_size, INT32_MAX);
    if (c->d_model % c->n_head != 0)
        return fsdp_error(FSDP_EINVAL, "change --n-head or --d-model so that it divides",
                          "gpt2: n-head %zu does not divide d-model %zu", c->n_head, c->d_model);
    if (c->n_kv_head != c->n_head)
        return fsdp_error(FSDP_EINVAL, "leave --n-kv-head out, or make it equal to --n-head",
                          "gpt2: n-kv-head is %zu, expected n-head (%zu): every head has its own "
                          "keys and values",
                          c->n_kv_head, c->n_head);
    if (!(c->norm_eps > 0.0f))
        return fsdp_error(FSDP_EINVAL, "use 1e-5", "gpt2: norm_eps is %g, expected more than 0",
                          (double)c->norm_eps);
    return FSDP_OK;
}

/* A size of 0 means the usual one. */
static model_config with_defaults(const model_config *config)
{
    model_config c = *config;
    snprintf(c.family, sizeof c.family, "gpt2");
    c.n_kv_head = c.n_kv_head ? c.n_kv_head : c.n_head;
    c.d_ff = c.d_ff ? c.d_ff : 4 * c.d_model;
    c.norm_eps = c.norm_eps != 0.0f ? c.norm_eps : GPT2_NORM_EPS;
    return c;
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* builder -- appends layers and parameters to the model's lists, which are already long enough. It
 * remembers a size that does not fit, to report it once, at the end. */
typedef struct builder {
    model *m;
    char prefix[PARAM_NAME_BYTES]; /* "transformer.h.3." */
    bool too_large;
} builder;

static layer *add_layer(builder *b, const layer *kind, int block, int part)
{
    layer *l = &b->m->layers[b->m->n_layers++];
    *l = *kind;
    l->block = block;
    l->part = part;
    l->first_param = b->m->n_params;
    l->model = b->m;
    return l;
}

/* add_param -- append one parameter of the layer that was added last. cols 0 makes it a vector. */
static param_spec *add_param(builder *b, const char *name, size_t rows, size_t cols, init_rule init)
{
    model *m = b->m;
    param_spec *p = &m->params[m->n_params++];
    *p = (param_spec){
        .n_dims = cols ? 2 : 1,
        .dims = {rows, cols},
        .init = init,
        .init_std = init == INIT_NORMAL ? GPT2_INIT_STD : 0.0f,
        .decay = cols != 0,
        .tied_to = NOT_TIED,
    };
    snprintf(p->name, sizeof p->name, "%.40s%.20s", b->prefix, name);
    size_t bytes;
    b->too_large |= __builtin_mul_overflow(rows, cols ? cols : 1, &p->elems);
    b->too_large |= __builtin_mul_overflow(p->elems, sizeof(float), &bytes);
    m->layers[m->n_layers - 1].n_params++;
    return p;
}

/* Projections back into the residual stream start smaller, by the root of their number. */
static float residual_std(const model_config *c)
{
    return (float)(0.02 / sqrt(2.0 * (double)c->n_blocks));
}

static void add_embed(builder *b)
{
    const model_config *c = &b->m->config;
    layer *l = add_layer(b, &GPT2_EMBED, -1, 0);
    snprintf(l->name, sizeof l->name, "embed");
    snprintf(b->prefix, sizeof b->prefix, "transformer.");
    add_param(b, "wte.weight", c->vocab_size, c->d_model, INIT_NORMAL);
    add_param(b, "wpe.weight", c->max_seq_len, c->d_model, INIT_NORMAL);
}

static void add_attn(builder *b, int block)
{
    const model_config *c = &b->m->config;
    const size_t C = c->d_model;
    layer *l = add_layer(b, &GPT2_ATTN, block, 0);
    snprintf(l->name, sizeof l->name, "h.%d.attn", block);
    snprintf(b->prefix, sizeof b->prefix, "transformer.h.%d.", block);
    add_param(b, "ln_1.weight", C, 0, INIT_ONE);
    add_param(b, "ln_1.bias", C, 0, INIT_ZERO);
    add_param(b, "attn.c_attn.weight", C, 3 * C, INIT_NORMAL);
    add_param(b, "attn.c_attn.bias", 3 * C, 0, INIT_ZERO);
    add_param(b, "attn.c_proj.weight", C, C, INIT_NORMAL)->init_std = residual_std(c);
    add_param(b, "attn.c_proj.bias", C, 0, INIT_ZERO);
}

static void add_mlp(builder *b, int block)
{
    const model_config *c = &b->m->config;
    const size_t C = c->d_model, F = c->d_ff;
    layer *l = add_layer(b, &GPT2_MLP, block, 1);
    snprintf(l->name, sizeof l->name, "h.%d.mlp", block);
    add_param(b, "ln_2.weight", C, 0, INIT_ONE);
    add_param(b, "ln_2.bias", C, 0, INIT_ZERO);
    add_param(b, "mlp.c_fc.weight", C, F, INIT_NORMAL);
    add_param(b, "mlp.c_fc.bias", F, 0, INIT_ZERO);
    add_param(b, "mlp.c_proj.weight", F, C, INIT_NORMAL)->init_std = residual_std(c);
    add_param(b, "mlp.c_proj.bias", C, 0, INIT_ZERO);
}

static void add_head(builder *b)
{
    const model_config *c = &b->m->config;
    layer *l = add_layer(b, &GPT2_HEAD, -1, 1);
    snprintf(l->name, sizeof l->name, "head");
    snprintf(b->prefix, sizeof b->prefix, "transformer.");
    add_param(b, "ln_f.weight", c->d_model, 0, INIT_ONE);
    add_param(b, "ln_f.bias", c->d_model, 0, INIT_ZERO);
    b->prefix[0] = '\0';
    add_param(b, "lm_head.weight", c->vocab_size, c->d_model, INIT_NORMAL)->tied_to = EMBED_WTE;
}

/* m->n_param_elems = the elements of all parameters that have storage of their own. */
static void count_elems(builder *b)
{
    model *m = b->m;
    size_t bytes;
    for (int p = 0; p < m->n_params; p++) {
        if (m->params[p].tied_to == NOT_TIED)
            b->too_large |=
                __builtin_add_overflow(m->n_param_elems, m->params[p].elems, &m->n_param_elems);
    }
    b->too_large |= __builtin_mul_overflow(m->n_param_elems, sizeof(float), &bytes);
}

fsdp_status gpt2_create(const model_config *config, model *m)
{
    memset(m, 0, sizeof *m);
    const model_config c = with_defaults(config);
    TRY(check_config(&c));
    m->config = c;
    m->n_blocks = (int)c.n_blocks;
    m->layers = calloc(2 + 2 * c.n_blocks, sizeof *m->layers);
    m->params =
        calloc(EMBED_N_PARAMS + PARAMS_PER_BLOCK * c.n_blocks + HEAD_N_PARAMS, sizeof *m->params);
    if (m->layers == NULL || m->params == NULL) {
        model_free(m);
        return fsdp_error(FSDP_ENOMEM, "use a smaller --n-layer",
                          "gpt2: no host memory for the lists of %zu layers", c.n_blocks);
    }
    builder b = {.m = m};
    add_embed(&b);
    for (int block = 0; block < m->n_blocks; block++) {
        add_attn(&b, block);
        add_mlp(&b, block);
    }
    add_head(&b);
    count_elems(&b);
    if (!b.too_large)
        return FSDP_OK;
    model_free(m);
    return fsdp_error(FSDP_EINVAL, "use smaller sizes",
                      "gpt2: layers %zu, d-model %zu, d-ff %zu, vocabulary %zu, positions %zu: the "
                      "bytes of the parameters do not fit a size_t",
                      c.n_blocks, c.d_model, c.d_ff, c.vocab_size, c.max_seq_len);
}
