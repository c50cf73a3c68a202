/* model_lists.c -- the functions with which a family builds its model; see family.h. */
#include <string.h>
#include "common/model/family.h"

fsdp_status model_check_positive(const model_config *c, const char *option, size_t value)
{
    char hint[64];
    snprintf(hint, sizeof hint, "pass --%s with a value of at least 1", option);
    if (value == 0)
        return fsdp_error(FSDP_EINVAL, hint, "%s: %s is 0", c->family, option);
    return FSDP_OK;
}

void model_add_layer(model *m, const layer *kind, int block)
{
    layer *l = &m->layers[m->n_layers];
    if (m->layers) {
        const char *blocks = m->family->blocks, *dot = blocks ? strrchr(blocks, '.') : NULL;
        *l = *kind;
        if (block >= 0 && blocks)
            snprintf(l->name, sizeof l->name, "%.8s.%d.%.10s", dot ? dot + 1 : blocks, block,
                     kind->name);
        l->block = block;
        l->first_param = m->n_params;
        l->model = m;
    }
    m->n_layers++;
}

void model_add_out(model *m, size_t width)
{
    if (m->layers)
        m->layers[m->n_layers - 1].out_width = width;
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
        if (l->block >= 0 && m->family->blocks) {
            const int n = snprintf(p->name, sizeof p->name, "%s.%d.%s", m->family->blocks, l->block,
                                   spec->name);
            FSDP_ASSERT((size_t)n < sizeof p->name);
        }
        FSDP_ASSERT(l->n_params < LAYER_MAX_PARAMS);
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

void model_add_cut(model *m, size_t blocks, size_t width)
{
    if (m->params)
        m->params[m->n_params - 1].cut = (param_cut){.blocks = blocks, .width = width};
}

void model_tie(model *m, int p, int of)
{
    m->params[p].tied_to = of;
    while (m->params[of].next_use > 0)
        of = m->params[of].next_use;
    m->params[of].next_use = p;
}

void model_add_tied(model *m, const char *name, int of)
{
    param_spec spec = m->params ? m->params[of] : (param_spec){0};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    spec.n_dims = 0;
    model_add_param(m, &spec);
    if (m->params)
        model_tie(m, m->n_params - 1, of);
}
