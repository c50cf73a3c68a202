/* virtual_time_floor.c -- virtual_time_floor: what no schedule can hide; see virtual_time.h.
 *
 * One pass over the items, in the order of issue. Each stream and each RECORD has a mark: how many
 * computations and how many seconds of gathers precede the next item there. A WAIT merges the mark
 * of its RECORD into the mark of its stream. */
#include <math.h>
#include <stdlib.h>
#include "common/simulate/virtual_time.h"

/* What precedes a point of a stream. */
typedef struct mark {
    int64_t computations; /* number of computations */
    double gathers_s;
} mark;

/* A computation. Entry 0 of `all` stands for no computation. */
typedef struct computation {
    double until_s;      /* time of this and all earlier computations */
    double gathers_s;    /* time of the gathers that it waits for */
    double reductions_s; /* time of the reductions that wait for it and no later one */
} computation;

typedef struct floors {
    const timeline_view *view;
    const virtual_config *config;
    bool over_hosts; /* which links count: between hosts, or inside a host */
    mark streams[TIMELINE_MAX_STREAMS];
    mark *records;    /* [n_items] */
    computation *all; /* [n_items + 1] */
    int64_t n;        /* number of computations */
    double calls_s;   /* time of all collectives on these links */
} floors;

static mark later(mark a, mark b)
{
    return (mark){a.computations > b.computations ? a.computations : b.computations,
                  fmax(a.gathers_s, b.gathers_s)};
}

/* Count a collective on these links: a gather precedes the computations that wait for it; a
 * reduction waits for the computations before it. */
static void add_collective(floors *f, const timeline_item *item, mark *at)
{
    bool over_hosts;
    double s = virtual_collective_s(f->config, item, &over_hosts);
    if (over_hosts != f->over_hosts)
        return;
    f->calls_s += s;
    if (item->reduces)
        f->all[at->computations].reductions_s += s;
    else
        at->gathers_s += s;
}

static void add_item(floors *f, int64_t i)
{
    const timeline_item *item = &f->view->items[i];
    if (item->kind == TIMELINE_STEP || item->kind == TIMELINE_SYNC || item->stream == TIMELINE_HOST)
        return;
    mark *at = &f->streams[item->stream];
    if (item->kind == TIMELINE_RECORD)
        f->records[i] = *at;
    else if (item->kind == TIMELINE_WAIT && item->after != TIMELINE_NONE)
        *at = later(*at, f->records[item->after]);
    else if (item->kind == TIMELINE_COLLECTIVE)
        add_collective(f, item, at);
    else if (item->kind == TIMELINE_WORK && item->stream == TIMELINE_COMPUTE) {
        double before_s = f->all[f->n++].until_s;
        f->all[f->n].until_s = before_s + f->config->work_s(f->config->self, 0, item);
        f->all[f->n].gathers_s = at->gathers_s;
        at->computations = f->n;
    }
}

/* The least time of the step, with the collectives on these links: see virtual_time_floor. */
static double longest(const floors *f)
{
    double most = f->calls_s, before = -INFINITY, reductions = 0;
    for (int64_t k = 0; k <= f->n; k++)
        reductions += f->all[k].reductions_s;
    reductions -= f->all[0].reductions_s; /* these wait for no computation */
    for (int64_t k = 1; k <= f->n; k++) {
        before = fmax(before, f->all[k].gathers_s - f->all[k - 1].until_s);
        most = fmax(most, before + f->all[k].until_s + reductions);
        reductions -= f->all[k].reductions_s;
    }
    return most;
}

/* Raise *floor_s to the floor of these links, if that is higher. */
static fsdp_status raise_floor(floors f, int64_t first, double *floor_s)
{
    const size_t n = (size_t)f.view->n_items;
    f.records = calloc(n + 1, sizeof *f.records);
    f.all = calloc(n + 1, sizeof *f.all);
    bool has_all = f.records && f.all;
    for (int64_t i = first; has_all && i < f.view->n_items; i++)
        add_item(&f, i);
    if (has_all)
        *floor_s = fmax(*floor_s, longest(&f) - f.all[f.n].until_s);
    free(f.records);
    free(f.all);
    return has_all ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "virtual time: no memory");
}

fsdp_status virtual_time_floor(const timeline_view *view, int64_t first,
                               const virtual_config *config, double *floor_s)
{
    floors f = {.view = view, .config = config};
    *floor_s = 0;
    TRY(raise_floor(f, first, floor_s));
    f.over_hosts = true;
    return raise_floor(f, first, floor_s);
}
