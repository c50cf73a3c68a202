/* gpt2.c -- GPT-2's presets and its lists of layers and parameters. The arithmetic of the layers is
 * in gpt2_layers.c and gpt2_block.c.
 *
 *   gpt2_preset -> (caller changes sizes) -> gpt2_create -> ... -> model_free
 *
 * [Radford et al. 2019]; names, shapes and initial values as in Hugging Face's GPT2LMHeadModel. */
#include "common/model/gpt2_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GPT2_PRESETS  "tiny|small|124m|355m|774m|1558m|xl-2l"
#define GPT2_NORM_EPS 1e-5f

enum { BYTE_VOCAB = 256, GPT2_VOCAB = 50257 };
enum { MAX_BLOCKS = 100000, PARAMS_PER_BLOCK = ATTN_N_PARAMS + MLP_N_PARAMS };

static const float GPT2_INIT_STD = 0.02f;

/* ---- presets -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    model_config config;
} PRESETS[] = {
    {"tiny", {"gpt2", 2, 2, 64, 4 * 64, BYTE_VOCAB, 256, GPT2_NORM_EPS}},
    {"small", {"gpt2", 6, 8, 256, 4 * 256, BYTE_VOCAB, 256, GPT2_NORM_EPS}},
    {"124m", {"gpt2", 12, 12, 768, 4 * 768, GPT2_VOCAB, 1024, GPT2_NORM_EPS}},
    {"355m", {"gpt2", 24, 16, 1024, 4 * 1024, GPT2_VOCAB, 1024, GPT2_NORM_EPS}},
    {"774m", {"gpt2", 36, 20, 1280, 4 * 1280, GPT2_VOCAB, 1024, GPT2_NORM_EPS}},
    {"1558m", {"gpt2", 48, 25, 1600, 4 * 1600, GPT2_VOCAB, 1024, GPT2_NORM_EPS}},
    {"xl-2l", {"gpt2", 2, 25, 1600, 4 * 1600, BYTE_VOCAB, 1024, GPT2_NORM_EPS}},
};

fsdp_status gpt2_preset(const char *name, model_config *config)
{
    for (size_t i = 0; i < sizeof PRESETS / sizeof *PRESETS; i++)
        if (strcmp(PRESETS[i].name, name) == 0) {
            *config = PRESETS[i].config;
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
    return FSDP_OK;
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* Appends a layer to the model's list, which is long enough. block -1: it is in no block. */
static void add_layer(model *m, const layer *kind, int block)
{
    layer *l = &m->layers[m->n_layers++];
    *l = *kind;
    if (block >= 0)
        snprintf(l->name, sizeof l->name, "h.%d.%.10s", block, kind->name);
    l->block = block;
    l->first_param = m->n_params;
    l->model = m;
    if (kind != &GPT2_HEAD)
        l->outs[l->n_outs++] = (array_spec){"x", m->config.d_model, ARRAY_VALUES};
}

/* Appends one parameter of the layer that was added last. cols 0 makes it a vector. */
static param_spec *add_param(model *m, const char *name, size_t rows, size_t cols, init_rule init)
{
    layer *l = &m->layers[m->n_layers - 1];
    param_spec *p = &m->params[m->n_params++];
    l->n_params++;
    *p = (param_spec){
        .n_dims = cols ? 2 : 1,
        .dims = {rows, cols},
        .init = init,
        .init_scale = init == INIT_NORMAL ? GPT2_INIT_STD : 0.0f,
        .decay = cols != 0,
        .tied_to = NOT_TIED,
    };
    if (l->block >= 0)
        snprintf(p->name, sizeof p->name, "transformer.h.%d.%.20s", l->block, name);
    else
        snprintf(p->name, sizeof p->name, "%.40s", name);
    return p;
}

static void add_block(model *m, int block)
{
    const size_t C = m->config.d_model, F = m->config.d_ff;
    /* projections back into the residual stream start smaller, by the root of their number */
    const float residual_std = (float)(0.02 / sqrt(2.0 * (double)m->n_blocks));
    add_layer(m, &GPT2_ATTN, block);
    add_param(m, "ln_1.weight", C, 0, INIT_ONE);
    add_param(m, "ln_1.bias", C, 0, INIT_ZERO);
    add_param(m, "attn.c_attn.weight", C, 3 * C, INIT_NORMAL);
    add_param(m, "attn.c_attn.bias", 3 * C, 0, INIT_ZERO);
    add_param(m, "attn.c_proj.weight", C, C, INIT_NORMAL)->init_scale = residual_std;
    add_param(m, "attn.c_proj.bias", C, 0, INIT_ZERO);
    add_layer(m, &GPT2_MLP, block);
    add_param(m, "ln_2.weight", C, 0, INIT_ONE);
    add_param(m, "ln_2.bias", C, 0, INIT_ZERO);
    add_param(m, "mlp.c_fc.weight", C, F, INIT_NORMAL);
    add_param(m, "mlp.c_fc.bias", F, 0, INIT_ZERO);
    add_param(m, "mlp.c_proj.weight", F, C, INIT_NORMAL)->init_scale = residual_std;
    add_param(m, "mlp.c_proj.bias", C, 0, INIT_ZERO);
}

static void add_layers(model *m)
{
    const size_t C = m->config.d_model, V = m->config.vocab_size;
    m->input = (array_spec){"tokens", 1, ARRAY_INDICES};
    add_layer(m, &GPT2_EMBED, -1);
    add_param(m, "transformer.wte.weight", V, C, INIT_NORMAL);
    add_param(m, "transformer.wpe.weight", m->config.max_seq_len, C, INIT_NORMAL);
    for (int block = 0; block < m->n_blocks; block++)
        add_block(m, block);
    add_layer(m, &GPT2_HEAD, -1);
    add_param(m, "transformer.ln_f.weight", C, 0, INIT_ONE);
    add_param(m, "transformer.ln_f.bias", C, 0, INIT_ZERO);
    add_param(m, "lm_head.weight", V, C, INIT_NORMAL)->tied_to = EMBED_WTE;
}

/* Counts the elements of each parameter, and of all that have storage of their own. Returns whether
 * their bytes fit a size_t. */
static bool count_elems(model *m)
{
    bool too_large = false;
    size_t bytes;
    for (int p = 0; p < m->n_params; p++) {
        param_spec *spec = &m->params[p];
        const size_t cols = spec->n_dims > 1 ? spec->dims[1] : 1;
        too_large |= __builtin_mul_overflow(spec->dims[0], cols, &spec->elems);
        if (spec->tied_to == NOT_TIED)
            too_large |= __builtin_add_overflow(m->n_param_elems, spec->elems, &m->n_param_elems);
    }
    return !__builtin_mul_overflow(m->n_param_elems, sizeof(float), &bytes) && !too_large;
}

fsdp_status gpt2_create(const model_config *config, model *m)
{
    *m = (model){.config = *config};
    model_config *c = &m->config;
    snprintf(c->family, sizeof c->family, "gpt2");
    c->d_ff = c->d_ff ? c->d_ff : 4 * c->d_model;
    c->norm_eps = c->norm_eps != 0.0f ? c->norm_eps : GPT2_NORM_EPS;
    TRY(check_config(c));
    m->n_blocks = (int)c->n_blocks;
    m->layers = calloc(2 + 2 * c->n_blocks, sizeof *m->layers);
    m->params =
        calloc(EMBED_N_PARAMS + PARAMS_PER_BLOCK * c->n_blocks + HEAD_N_PARAMS, sizeof *m->params);
    if (m->layers == NULL || m->params == NULL) {
        model_free(m);
        return fsdp_error(FSDP_ENOMEM, "use a smaller --n-layer",
                          "gpt2: no host memory for the lists of %zu layers", config->n_blocks);
    }
    add_layers(m);
    if (count_elems(m))
        return FSDP_OK;
    fsdp_status status = fsdp_error(
        FSDP_EINVAL, "use smaller sizes",
        "gpt2: layers %zu, d-model %zu, d-ff %zu, vocabulary %zu, positions %zu: the bytes "
        "of the parameters do not fit a size_t",
        c->n_blocks, c->d_model, c->d_ff, c->vocab_size, c->max_seq_len);
    model_free(m);
    return status;
}
