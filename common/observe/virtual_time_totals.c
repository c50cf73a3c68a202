/* virtual_time_totals.c -- what the items of a step add up to; see virtual_totals. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/observe/virtual_time_impl.h"

int virtual_compute_stream(const timeline_view *view, const virtual_config *config)
{
    for (int s = 0; s < view->n_streams; s++)
        if (strcmp(view->streams[s], config->compute ? config->compute : "compute") == 0)
            return s;
    return TIMELINE_NONE;
}

/* One rank's items, gone through in order. */
typedef struct adder {
    const timeline_view *view;
    const double *moved_s;
    int compute;
    bool *has_called; /* [n_streams] a collective came before on that stream */
    bool *is_caused;  /* [n_items] of a RECORD: one came before it */
    double compute_end_s;
} adder;

/* What the compute stream did with an item, and before it. */
static void add_compute(adder *a, const timeline_item *it, virtual_totals *t)
{
    double lasted_s = it->end_s - it->begin_s;
    t->idle_s += it->begin_s - a->compute_end_s;
    a->compute_end_s = it->end_s;
    if (it->kind == TIMELINE_WORK)
        t->compute_s += lasted_s;
    else if (it->kind == TIMELINE_COLLECTIVE)
        t->exposed_s += lasted_s;
    else if (it->kind == TIMELINE_WAIT && it->after != TIMELINE_NONE && a->is_caused[it->after])
        t->exposed_s += lasted_s;
    else
        t->waited_s += lasted_s;
}

static void add_item(adder *a, int64_t i, virtual_totals *t)
{
    const timeline_item *it = &a->view->items[i];
    t->end_s = fmax(t->end_s, it->end_s);
    if (it->kind == TIMELINE_STEP)
        return;
    if (it->kind == TIMELINE_SYNC) {
        t->sync_s += it->end_s - it->begin_s;
        return;
    }
    if (it->kind == TIMELINE_COLLECTIVE)
        t->communication_s += it->end_s - a->moved_s[i];
    if (it->stream == TIMELINE_HOST)
        return;
    if (it->kind == TIMELINE_COLLECTIVE)
        a->has_called[it->stream] = true;
    a->is_caused[i] = it->kind == TIMELINE_RECORD && a->has_called[it->stream];
    if (it->stream == a->compute)
        add_compute(a, it, t);
}

static void add_rank(adder *a, virtual_totals *t)
{
    bool is_marked = false;
    for (int64_t i = 0; i < a->view->n_items; i++) {
        const timeline_item *it = &a->view->items[i];
        if (it->kind == TIMELINE_STEP) {
            if (is_marked)
                (++t)->begin_s = it->begin_s;
            t->step = it->seq;
            is_marked = true;
        }
        add_item(a, i, t);
    }
}

static size_t count_steps(const timeline_view *v)
{
    size_t n = 0;
    for (int64_t i = 0; i < v->n_items; i++)
        n += v->items[i].kind == TIMELINE_STEP;
    return n > 0 ? n : 1;
}

fsdp_status virtual_totals_fill(const virtual_config *config, virtual_result *result)
{
    FSDP_ASSERT(result->n_ranks > 0);
    int64_t n_items = 1;
    int n_streams = 1;
    result->n_steps = 1;
    for (int r = 0; r < result->n_ranks; r++) {
        const timeline_view *v = &result->views[r];
        n_items = v->n_items > n_items ? v->n_items : n_items;
        n_streams = v->n_streams > n_streams ? v->n_streams : n_streams;
        result->n_steps = count_steps(v) > result->n_steps ? count_steps(v) : result->n_steps;
    }
    size_t n_totals = (size_t)result->n_ranks * result->n_steps;
    bool *has_called = malloc((size_t)n_streams * sizeof *has_called);
    bool *is_caused = malloc((size_t)n_items * sizeof *is_caused);
    result->totals = calloc(n_totals, sizeof *result->totals);
    if (!has_called || !is_caused || !result->totals) {
        free(has_called);
        free(is_caused);
        return fsdp_error(FSDP_ENOMEM, "simulate fewer ranks or steps", "virtual time: no memory");
    }
    for (int r = 0; r < result->n_ranks; r++) {
        memset(has_called, 0, (size_t)n_streams * sizeof *has_called);
        add_rank(&(adder){.view = &result->views[r],
                          .moved_s = result->moved_s[r],
                          .compute = virtual_compute_stream(&result->views[r], config),
                          .has_called = has_called,
                          .is_caused = is_caused},
                 result->totals + (size_t)r * result->n_steps);
    }
    for (size_t k = 0; k < n_totals; k++)
        result->end_s = fmax(result->end_s, result->totals[k].end_s);
    free(has_called);
    free(is_caused);
    return FSDP_OK;
}
