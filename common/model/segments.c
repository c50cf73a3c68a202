/* segments.c -- activation checkpointing: the memory of layers in segments. runner.h says what a
 * segment is. */
#include "common/model/runner_impl.h"

bool runner_in_segment(const runner *r, int i)
{
    return r->cfg.segment != NULL && i >= r->border && r->cfg.segment[i] != NO_SEGMENT;
}

bool runner_goes_on(const runner *r, int i)
{
    const int *segment = r->cfg.segment;
    return runner_in_segment(r, i) && i + 1 < r->cfg.run.m->n_layers &&
           segment[i + 1] == segment[i];
}

int runner_segment_begin(const runner *r, int i)
{
    int first = i;
    if (!runner_in_segment(r, i) || runner_goes_on(r, i))
        return -1;
    while (first > 0 && runner_goes_on(r, first - 1))
        first--;
    return first;
}

/* Place the arrays of segments. The arrays of a segment's layers follow each other; all segments
 * use the same memory. If the base addresses are NULL, only compute the bytes. */
static void place_segments(runner *r, size_t *outs_bytes, size_t *saved_bytes)
{
    char *outs = r->shared_outs, *saved = r->shared_saved;
    size_t outs_at = 0, saved_at = 0;
    for (int i = 0; i < r->cfg.run.m->n_layers; i++) {
        if (!runner_in_segment(r, i))
            continue;
        if (i == 0 || !runner_goes_on(r, i - 1))
            outs_at = saved_at = 0;
        r->saved[i] = saved ? saved + saved_at : NULL;
        saved_at += r->calls[i] * r->saved_bytes[i];
        *saved_bytes = saved_at > *saved_bytes ? saved_at : *saved_bytes;
        if (!runner_goes_on(r, i))
            continue;
        r->outs[i] = outs ? outs + outs_at : NULL;
        outs_at += r->n_leaves * r->out_bytes[i];
        *outs_bytes = outs_at > *outs_bytes ? outs_at : *outs_bytes;
    }
}

fsdp_status runner_alloc_segments(runner *r)
{
    size_t outs_bytes = 0, saved_bytes = 0;
    if (!r->cfg.segment)
        return FSDP_OK;
    place_segments(r, &outs_bytes, &saved_bytes);
    TRY(runner_alloc(r, outs_bytes, "segment outputs", &r->shared_outs));
    TRY(runner_alloc(r, saved_bytes, "segment saved", &r->shared_saved));
    place_segments(r, &outs_bytes, &saved_bytes);
    return FSDP_OK;
}
