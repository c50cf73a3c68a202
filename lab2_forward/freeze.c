/* freeze.c -- see freeze.h. */
#include "lab2_forward/freeze.h"
#include <stdlib.h>

static void mark_forward_only(fsdp *f)
{
    const model *m = f->run.m;
    for (int u = 0; u < f->n_units; u++)
        f->units[u].given.forward_only = true;
    for (int i = model_border(m); i < m->n_layers; i++) {
        const layer *l = &m->layers[i];
        f->units[f->layer_unit[i]].given.forward_only = false;
        for (int p = l->first_param; p < l->first_param + l->n_params; p++)
            f->units[f->param_unit[p]].given.forward_only = false;
    }
}

fsdp_status freeze_split(fsdp *f)
{
    const int n = f->n_units;
    fsdp_unit *units = realloc(f->units, 2 * (size_t)n * sizeof *units);
    if (!units)
        return fsdp_error(FSDP_ENOMEM, "", "freeze_split: no host memory");
    f->units = units;
    for (int u = 0; u < n; u++) {
        unit_given *given = &units[u].given;
        *given->parts = u;
        given->n_parts = 1;
        const int first = units[u].first_param, end = units[u].end_param;
        int n_params = 0, n_frozen = 0;
        for (int p = first; p < end; p++) {
            n_params += f->param_unit[p] == u;
            n_frozen += f->param_unit[p] == u && f->run.m->params[p].frozen;
        }
        if (n_frozen == 0 || n_frozen == n_params)
            continue;
        fsdp_unit c = {.id = f->n_units++, .first_param = first, .end_param = end};
        snprintf(c.name, sizeof c.name, "%.20s (frozen)", units[u].name);
        for (int p = first; p < end; p++)
            if (f->param_unit[p] == u && f->run.m->params[p].frozen)
                f->param_unit[p] = c.id;
        *c.given.parts = *given->parts = c.id;
        c.given.n_parts = 1;
        given->parts[given->n_parts++] = u;
        units[c.id] = c;
    }
    mark_forward_only(f);
    return FSDP_OK;
}

bool unit_is_used(const fsdp *f, int u)
{
    return !(f->given.in_backward && f->units[u].given.forward_only);
}
