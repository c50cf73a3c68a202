/* recompute.c -- task 3.10: which layers run again before their backward, and their second run. */
#include "lab3_backward/recompute.h"

bool recompute_wants(const recompute_spec *spec, const layer *l)
{
    const bool is_part = spec->part == RECOMPUTE_BLOCK ||
                         (spec->part == RECOMPUTE_ATTENTION && l->kind == LAYER_ATTENTION) ||
                         (spec->part == RECOMPUTE_MLP && l->kind == LAYER_MLP);
    return is_part && l->block >= spec->from && (l->block + 1) % spec->every == 0;
}

fsdp_status recompute_choose(const recompute_spec *spec, const model *m, const int *layer_unit,
                             int *segment, int *n_cut)
{
    *n_cut = 0;
    /* SOLUTION BEGIN 3.10 */
    int n = 0;
    for (int i = 0; i < m->n_layers; i++) {
        segment[i] = NO_SEGMENT;
        if (!recompute_wants(spec, &m->layers[i]))
            continue;
        const bool goes_on =
            i > 0 && segment[i - 1] != NO_SEGMENT && m->layers[i - 1].block == m->layers[i].block;
        const bool same_unit = i > 0 && layer_unit[i - 1] == layer_unit[i];
        segment[i] = goes_on && same_unit ? n - 1 : n++;
        *n_cut += goes_on && !same_unit;
    }
    return FSDP_OK;
    /* SOLUTION END 3.10 */
}

fsdp_status recompute_segment(runner *r, int first, int last)
{
    /* SOLUTION BEGIN 3.10 */
    for (int i = first; i <= last; i++)
        TRY(runner_layer_again(r, i, i < last));
    return FSDP_OK;
    /* SOLUTION END 3.10 */
}
