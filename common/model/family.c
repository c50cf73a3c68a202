/* family.c -- the registry of models; see family.h. The functions for a family's `build` are in
 * model_lists.c; model_config.c reads and writes config.json. */
#include "common/model/family.h"
#include "common/model/tensor_parallel.h"

#include <stdlib.h>
#include <string.h>

static const model_family *const FAMILIES[] = {&GPT2_FAMILY, &LLAMA_FAMILY, &MNIST_FAMILY};

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

/* Count the elements of each parameter, and of all parameters with storage of their own. Returns
 * whether their bytes fit a size_t. */
static bool count_elems(model *m)
{
    bool too_large = false;
    size_t bytes;
    for (int p = 0; p < m->n_params; p++) {
        param_spec *spec = &m->params[p];
        spec->elems = 1;
        for (int d = 0; d < spec->n_dims; d++)
            too_large |= __builtin_mul_overflow(spec->elems, spec->dims[d], &spec->elems);
        spec->cut.elems = spec->elems;
        memcpy(spec->cut.dims, spec->dims, sizeof spec->dims);
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
        status = count_elems(m) ? model_share(m, 0, 1, false) : too_large(&m->config);
    }
    if (status != FSDP_OK)
        model_free(m);
    return status;
}
