/* family.c -- the registry of models, and what every family's model is built with; see family.h.
 * config.json is read and written by model_config.c. */
#include "common/model/family.h"

#include <stdlib.h>
#include <string.h>

static const model_family *const FAMILIES[] = {&GPT2_FAMILY, &LLAMA_FAMILY};

enum { N_FAMILIES = sizeof FAMILIES / sizeof *FAMILIES };

const model_family *model_family_find(const char *name)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(FAMILIES[i]->name, name) == 0)
            return FAMILIES[i];
    return NULL;
}

const model_family *model_family_at(int number)
{
    FSDP_ASSERT(number >= 0 && number < N_FAMILIES);
    return FAMILIES[number];
}

static fsdp_status find_family(const char *name, const model_family **f)
{
    *f = model_family_find(name);
    if (*f)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "build/fsdp_train --help lists the models",
                      "model: no family '%.64s', expected one of " MODEL_FAMILIES, name);
}

fsdp_status model_complete(model_config *config)
{
    const model_family *f;
    TRY(find_family(config->family, &f));
    return f->complete(config);
}

fsdp_status model_preset(const char *family, const char *size, model_config *config)
{
    const model_family *f;
    char names[256] = "", hint[320];
    TRY(find_family(family, &f));
    for (const model_preset_row *p = f->presets; p->name; p++) {
        if (!size || strcmp(p->name, size) == 0) {
            *config = p->config;
            snprintf(config->family, sizeof config->family, "%s", f->name);
            return FSDP_OK;
        }
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? "|" : "",
                 p->name);
    }
    snprintf(hint, sizeof hint, "pass --size with one of: %s", names);
    return fsdp_error(FSDP_EINVAL, hint, "%s: no size '%.64s', expected one of %s", f->name, size,
                      names);
}

fsdp_status model_check_positive(const model_config *c, const char *option, size_t value)
{
    char hint[64];
    snprintf(hint, sizeof hint, "pass --%s with a value of at least 1", option);
    if (value == 0)
        return fsdp_error(FSDP_EINVAL, hint, "%s: %s is 0", c->family, option);
    return FSDP_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

void model_add_layer(model *m, const layer *kind, int block)
{
    layer *l = &m->layers[m->n_layers];
    if (m->layers) {
        const char *dot = strrchr(m->family->blocks, '.');
        *l = *kind;
        if (block >= 0)
            snprintf(l->name, sizeof l->name, "%.8s.%d.%.10s", dot + 1, block, kind->name);
        l->block = block;
        l->first_param = m->n_params;
        l->model = m;
    }
    m->n_layers++;
}

void model_add_out(model *m, const char *name, size_t width, array_kind kind)
{
    if (m->layers) {
        layer *l = &m->layers[m->n_layers - 1];
        l->outs[l->n_outs++] = (array_spec){name, width, kind};
    }
}

void model_add_param(model *m, const param_spec *spec)
{
    if (m->layers) {
        layer *l = &m->layers[m->n_layers - 1];
        param_spec *p = &m->params[m->n_params];
        *p = *spec;
        p->tied_to = NOT_TIED;
        while (p->n_dims < PARAM_MAX_DIMS && p->dims[p->n_dims] > 0)
            p->n_dims++;
        p->decay = p->n_dims > 1;
        if (l->block >= 0) {
            const int n = snprintf(p->name, sizeof p->name, "%s.%d.%s", m->family->blocks, l->block,
                                   spec->name);
            FSDP_ASSERT((size_t)n < sizeof p->name);
        }
        l->n_params++;
    }
    m->n_params++;
}

void model_add_vector(model *m, const char *name, size_t n, init_rule init)
{
    param_spec spec = {.dims = {n}, .init = init};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    model_add_param(m, &spec);
}

void model_add_matrix(model *m, const char *name, size_t rows, size_t cols, float std)
{
    param_spec spec = {.dims = {rows, cols}, .init = INIT_NORMAL, .init_scale = std};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    model_add_param(m, &spec);
}

void model_add_tied(model *m, const char *name, int of)
{
    param_spec spec = m->params ? m->params[of] : (param_spec){0};
    snprintf(spec.name, sizeof spec.name, "%.40s", name);
    spec.n_dims = 0;
    model_add_param(m, &spec);
    if (m->params)
        m->params[m->n_params - 1].tied_to = of;
}

/* Counts the elements of each parameter, and of all that have storage of their own. Returns whether
 * their bytes fit a size_t. */
static bool count_elems(model *m)
{
    bool too_large = false;
    size_t bytes;
    for (int p = 0; p < m->n_params; p++) {
        param_spec *spec = &m->params[p];
        spec->elems = 1;
        for (int d = 0; d < spec->n_dims; d++)
            too_large |= __builtin_mul_overflow(spec->elems, spec->dims[d], &spec->elems);
        if (spec->tied_to == NOT_TIED)
            too_large |= __builtin_add_overflow(m->n_param_elems, spec->elems, &m->n_param_elems);
    }
    return !__builtin_mul_overflow(m->n_param_elems, sizeof(float), &bytes) && !too_large;
}

static fsdp_status too_large(const model_config *c)
{
    return fsdp_error(FSDP_EINVAL, "use smaller sizes",
                      "%s: layers %zu, d-model %zu, d-ff %zu, vocabulary %zu, positions %zu: the "
                      "bytes of the parameters do not fit a size_t",
                      c->family, c->n_blocks, c->d_model, c->d_ff, c->vocab_size, c->max_seq_len);
}

fsdp_status model_create(const model_config *config, model *m)
{
    *m = (model){.config = *config};
    TRY(find_family(config->family, &m->family));
    TRY(m->family->complete(&m->config));
    m->n_blocks = (int)m->config.n_blocks;
    m->family->build(m);
    m->layers = calloc((size_t)m->n_layers, sizeof *m->layers);
    m->params = calloc((size_t)m->n_params, sizeof *m->params);
    m->n_layers = m->n_params = 0;
    fsdp_status status = FSDP_OK;
    if (m->layers == NULL || m->params == NULL)
        status = fsdp_error(FSDP_ENOMEM, "use a smaller --n-layer",
                            "%s: no host memory for the lists of %zu layers", config->family,
                            config->n_blocks);
    else {
        m->family->build(m);
        status = count_elems(m) ? FSDP_OK : too_large(&m->config);
    }
    if (status != FSDP_OK)
        model_free(m);
    return status;
}
