/* freeze.c -- see freeze.h. */
#include "common/model/freeze.h"
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static fsdp_status bad_pattern(const model *m, const char *got, const char *expected)
{
    char hint[320];
    const layer *l = m->layers, *head = &l[m->n_layers - 1];
    snprintf(hint, sizeof hint, "use names such as %s, %s, %s or %s; '*' stands for any characters",
             m->params[0].name, m->params[l->n_params].name, m->params[head->first_param].name,
             m->params[m->n_params - 1].name);
    return fsdp_error(FSDP_EINVAL, hint, "--freeze: got '%.256s', expected %s", got, expected);
}

static fsdp_status freeze_one(model *m, const char *pattern)
{
    bool matches = false;
    for (int p = 0; p < m->n_params; p++) {
        param_spec *spec = &m->params[p];
        if (fnmatch(pattern, spec->name, 0) != 0)
            continue;
        matches = spec->frozen = true;
        if (spec->tied_to != NOT_TIED)
            m->params[spec->tied_to].frozen = true;
    }
    if (matches)
        return FSDP_OK;
    return bad_pattern(m, pattern,
                       *pattern ? "a pattern that names a parameter"
                                : "one pattern or several with a comma between two of them");
}

fsdp_status model_freeze(model *m, const char *patterns)
{
    char *list = patterns ? strdup(patterns) : NULL, *rest = list;
    if (!patterns)
        return FSDP_OK;
    if (!list)
        return fsdp_error(FSDP_ENOMEM, "", "--freeze: no host memory");
    fsdp_status status = FSDP_OK;
    while (rest && status == FSDP_OK)
        status = freeze_one(m, strsep(&rest, ","));
    free(list);
    for (int p = 0; p < m->n_params; p++) /* the second name after the first */
        if (m->params[p].tied_to != NOT_TIED)
            m->params[p].frozen = m->params[m->params[p].tied_to].frozen;
    if (status == FSDP_OK && model_border(m) == m->n_layers)
        return bad_pattern(m, patterns, "at least one parameter that is left to train");
    return status;
}
