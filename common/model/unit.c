/* unit.c -- a model's views, border and lists, and the check of its operations; see unit.h. */
#include "common/model/unit.h"

#include <stdlib.h>
#include <string.h>

fsdp_status model_views_init(const model *m, model_views *v)
{
    memset(v, 0, sizeof *v);
    v->params = calloc((size_t)m->n_params, sizeof *v->params);
    v->grads = calloc((size_t)m->n_params, sizeof *v->grads);
    if (v->params == NULL || v->grads == NULL) {
        model_views_free(v);
        return fsdp_error(FSDP_ENOMEM, "", "model views: no host memory for %d parameters",
                          m->n_params);
    }
    return FSDP_OK;
}

void model_views_free(model_views *v)
{
    free(v->params);
    free(v->grads);
    memset(v, 0, sizeof *v);
}

int model_border(const model *m)
{
    for (int i = 0; i < m->n_layers; i++) {
        const layer *l = &m->layers[i];
        for (int p = l->first_param; p < l->first_param + l->n_params; p++)
            if (!m->params[p].frozen)
                return i;
    }
    return m->n_layers;
}

fsdp_status model_check_ops(const model *m, const ops *o, stream *s)
{
    void *none[LAYER_MAX_PARAMS] = {NULL};
    /* out is not NULL, so forward issues its last product too; nothing is written */
    const layer_io io = {
        .seq_len = 1, .type = DTYPE_F32, .out = none, .params = none, .training = true};
    for (int i = 0; i < m->n_layers; i++)
        TRY(m->layers[i].forward(&m->layers[i], o, s, &io));
    return FSDP_OK;
}

void model_free(model *m)
{
    free(m->layers);
    free(m->params);
    memset(m, 0, sizeof *m);
}
