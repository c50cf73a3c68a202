/* virtual_time_floor.c -- virtual_time_floor: what no schedule can hide; see virtual_time.h.
 *
 * The items are gone through in the order of issue. What a stream waits for is carried along as a
 * mark: of a stream or a RECORD, how many computations and how many seconds of gathers come before
 * what is issued there next. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/observe/virtual_time.h"

/* What comes before something. */
typedef struct mark {
    int64_t computations; /* their number */
    double gathers_s;
} mark;

typedef struct floors {
    const timeline_view *view;
    const virtual_config *config;
    int compute;
    bool over_hosts; /* the links that are looked at */
    mark *streams;   /* [n_streams] */
    mark *records;   /* [n_items] */
    /* [n_items + 1] by computation: what it takes with all before it; the gathers that it waits
     * for; the reductions that need it, and nothing later */
    double *until_s, *gathers_s, *reductions_s;
    int64_t n;      /* computations */
    double calls_s; /* all collectives on these links */
} floors;

static mark later(mark a, mark b)
{
    return (mark){a.computations > b.computations ? a.computations : b.computations,
                  fmax(a.gathers_s, b.gathers_s)};
}

static double cost_of(const floors *f, const timeline_item *it)
{
    const virtual_config *c = f->config;
    return c->work_s ? c->work_s(c->self, 0, it) : it->end_s - it->begin_s;
}

/* A gather is all that brings something which computation waits for. */
static void add_collective(floors *f, const timeline_item *it, mark *at)
{
    bool over_hosts;
    double s = virtual_collective_s(f->config, it, &over_hosts);
    if (over_hosts != f->over_hosts)
        return;
    f->calls_s += s;
    if (strcmp(it->name, "all-gather") == 0)
        at->gathers_s += s;
    else
        f->reductions_s[at->computations] += s;
}

static void add_item(floors *f, int64_t i)
{
    const timeline_item *it = &f->view->items[i];
    if (it->kind == TIMELINE_STEP || it->kind == TIMELINE_SYNC || it->stream == TIMELINE_HOST)
        return;
    mark *at = &f->streams[it->stream];
    if (it->kind == TIMELINE_RECORD)
        f->records[i] = *at;
    else if (it->kind == TIMELINE_WAIT && it->after != TIMELINE_NONE)
        *at = later(*at, f->records[it->after]);
    else if (it->kind == TIMELINE_COLLECTIVE)
        add_collective(f, it, at);
    else if (it->kind == TIMELINE_WORK && it->stream == f->compute) {
        f->n++;
        f->until_s[f->n] = f->until_s[f->n - 1] + cost_of(f, it);
        f->gathers_s[f->n] = at->gathers_s;
        at->computations = f->n;
    }
}

/* max over i <= k of G(i) + (i to k) + R(k), from the first computation on. */
static double longest(const floors *f)
{
    double most = f->calls_s, before = -INFINITY, reductions = 0;
    for (int64_t k = 0; k <= f->n; k++)
        reductions += f->reductions_s[k];
    reductions -= f->reductions_s[0]; /* those that need no computation */
    for (int64_t k = 1; k <= f->n; k++) {
        before = fmax(before, f->gathers_s[k] - f->until_s[k - 1]);
        most = fmax(most, before + f->until_s[k] + reductions);
        reductions -= f->reductions_s[k];
    }
    return most;
}

static int64_t last_step(const timeline_view *v)
{
    int64_t first = 0;
    for (int64_t i = 0; i < v->n_items; i++)
        first = v->items[i].kind == TIMELINE_STEP ? i : first;
    return first;
}

fsdp_status virtual_time_floor(const timeline_view *view, const virtual_config *config,
                               double *floor_s)
{
    size_t n = (size_t)view->n_items + 1, n_streams = (size_t)view->n_streams + 1;
    floors f = {.view = view, .config = config, .compute = TIMELINE_NONE};
    for (int s = 0; s < view->n_streams; s++)
        if (strcmp(view->streams[s], config->compute ? config->compute : "compute") == 0)
            f.compute = s;
    double *figures = calloc(3 * n, sizeof *figures);
    mark *marks = calloc(n_streams + n, sizeof *marks);
    *floor_s = 0;
    for (int over_hosts = 0; figures && marks && over_hosts < 2; over_hosts++) {
        memset(figures, 0, 3 * n * sizeof *figures);
        memset(marks, 0, (n_streams + n) * sizeof *marks);
        f.over_hosts = over_hosts;
        f.streams = marks;
        f.records = marks + n_streams;
        f.until_s = figures;
        f.gathers_s = figures + n;
        f.reductions_s = figures + 2 * n;
        f.n = 0;
        f.calls_s = 0;
        for (int64_t i = last_step(view); i < view->n_items; i++)
            add_item(&f, i);
        *floor_s = fmax(*floor_s, longest(&f) - f.until_s[f.n]);
    }
    bool has_all = figures && marks;
    free(figures);
    free(marks);
    return has_all ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "virtual time: no memory");
}
