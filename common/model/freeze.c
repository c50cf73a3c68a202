/* freeze.c -- which parameters of a model are not trained; see unit.h. */
#include "common/model/unit.h"
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static fsdp_status bad_patterns(const model *m, const char *got)
{
    char hint[320];
    const layer *l = m->layers, *head = &l[m->n_layers - 1];
    snprintf(hint, sizeof hint, "use names such as %s, %s, %s or %s; '*' stands for any characters",
             m->params[0].name, m->params[l->n_params].name, m->params[head->first_param].name,
             m->params[m->n_params - 1].name);
    return fsdp_error(FSDP_EINVAL, hint,
                      "--freeze: got '%.256s', expected patterns with commas between them, each of "
                      "which names a parameter, and at least one that is left to train",
                      got);
}

/* Freeze the parameters that match the pattern. Returns whether any matches. */
static bool freeze_one(model *m, const char *pattern)
{
    bool matches = false;
    for (int p = 0; p < m->n_params; p++) {
        const int storage = m->params[p].tied_to != NOT_TIED ? m->params[p].tied_to : p;
        if (fnmatch(pattern, m->params[p].name, 0) == 0)
            matches = m->params[storage].frozen = true;
    }
    return matches;
}

fsdp_status model_freeze(model *m, const char *patterns)
{
    if (!patterns)
        return FSDP_OK;
    char *list = strdup(patterns), *rest = list;
    if (!list)
        return fsdp_error(FSDP_ENOMEM, "", "--freeze: no host memory");
    fsdp_status status = FSDP_OK;
    while (rest && status == FSDP_OK) {
        const char *one = strsep(&rest, ",");
        status = freeze_one(m, one) ? FSDP_OK : bad_patterns(m, one);
    }
    free(list);
    for (int p = 0; p < m->n_params; p++) /* tied parameters are frozen with their storage */
        if (m->params[p].tied_to != NOT_TIED)
            m->params[p].frozen = m->params[m->params[p].tied_to].frozen;
    if (status == FSDP_OK && model_border(m) == m->n_layers)
        return bad_patterns(m, patterns);
    return status;
}
