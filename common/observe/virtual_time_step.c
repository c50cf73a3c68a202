/* virtual_time_step.c -- writes the schedule of a step; see virtual_time_step.h. */
#include "common/observe/virtual_time_step.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPUTE, GATHER, REDUCE, N_STREAMS, ROOT = 0 };
enum { GATHER_GROUP = 1, REDUCE_GROUP = 2 };

static const char *const TWO_STREAMS[] = {"compute", "gather", "reduce"};
static const char *const ONE_STREAM[] = {"compute", "comm"};

/* At most 9 items of a unit in forward and 14 in backward; the root has fewer, and the 3 of the
 * micro-step. */
enum { ITEMS_PER_UNIT = 24, ITEMS_PER_STEP = 4 };

typedef struct writer {
    const virtual_step_config *c;
    timeline_item *items;
    int64_t n_items;
    virtual_hold *holds;
    size_t n_holds;
    size_t n_awaited; /* the host knows that so many holds are over: the first ones */
    int64_t *ready;   /* [n_units] the RECORD behind a gather; TIMELINE_NONE: not gathered */
    size_t *hold;     /* [n_units] the unit's last one */
    uint64_t seq[3];  /* of the next call of a group */
    int64_t reduced;  /* the RECORD behind the last reduction */
} writer;

static int micro_steps(const virtual_step_config *c)
{
    return c->grad_accum > 0 ? c->grad_accum : 1;
}

/* ---- items ---------------------------------------------------------------------------------- */

static int64_t put(writer *w, timeline_item item)
{
    w->items[w->n_items] = item;
    return w->n_items++;
}

static int stream_of(const writer *w, int stream)
{
    return stream == REDUCE && w->c->one_stream ? GATHER : stream;
}

static int64_t record(writer *w, int stream)
{
    return put(w, (timeline_item){.kind = TIMELINE_RECORD, .stream = stream_of(w, stream)});
}

static void wait_for(writer *w, int stream, int64_t after)
{
    put(w, (timeline_item){.kind = TIMELINE_WAIT, .stream = stream_of(w, stream), .after = after});
}

static void sync_with(writer *w, int stream, int64_t after)
{
    put(w, (timeline_item){.kind = TIMELINE_SYNC, .stream = stream, .after = after});
}

static void name_item(timeline_item *item, const char *name, const char *unit)
{
    snprintf(item->name, sizeof item->name, "%s", name);
    snprintf(item->unit, sizeof item->unit, "%s", unit);
}

static void work(writer *w, int u, char phase, double seconds)
{
    timeline_item item = {
        .kind = TIMELINE_WORK, .stream = COMPUTE, .phase = phase, .end_s = seconds};
    const char *name = phase == 'f' ? "forward" : phase == 'b' ? "backward" : "optimizer";
    name_item(&item, name, phase == '-' ? "" : w->c->units[u].name);
    put(w, item);
}

/* A collective and the RECORD behind it; returns that. */
static int64_t call(writer *w, int stream, int group, int u)
{
    const virtual_unit *unit = &w->c->units[u];
    bool is_gather = group == GATHER_GROUP;
    timeline_item item = {.kind = TIMELINE_COLLECTIVE,
                          .stream = stream_of(w, stream),
                          .group = (uint64_t)group,
                          .seq = w->seq[group]++,
                          .group_ranks = w->c->n_ranks,
                          .bytes = is_gather ? unit->gather_bytes : unit->reduce_bytes};
    name_item(&item, is_gather ? "all-gather" : "reduce-scatter", unit->name);
    put(w, item);
    return record(w, stream);
}

/* ---- units ---------------------------------------------------------------------------------- */

static bool is_limited(const writer *w, int u)
{
    return u != ROOT && !w->c->units[u].stays;
}

/* May one more unit be gathered? The host waits for drops that were issued until it may. */
static bool make_room(writer *w)
{
    if (w->c->limit <= 0)
        return true;
    while (w->n_holds - w->n_awaited > (size_t)w->c->limit) {
        int64_t dropped = w->holds[w->n_awaited].dropped;
        if (dropped == TIMELINE_NONE)
            return false;
        sync_with(w, TIMELINE_HOST, dropped);
        w->n_awaited++;
    }
    return true;
}

/* Issue the gather of a unit, unless it was or there is no room for it. */
static void gather(writer *w, int u)
{
    if (w->c->units[u].gather_bytes <= 0 || w->ready[u] != TIMELINE_NONE ||
        (is_limited(w, u) && !make_room(w)))
        return;
    if (w->c->prefetch == VIRTUAL_PREFETCH_NONE)
        wait_for(w, GATHER, record(w, COMPUTE));
    if (is_limited(w, u)) {
        w->hold[u] = w->n_holds;
        w->holds[w->n_holds++] = (virtual_hold){.gather = w->n_items, .dropped = TIMELINE_NONE};
    }
    w->ready[u] = call(w, GATHER, GATHER_GROUP, u);
}

/* The compute stream goes on when the unit is there. */
static void need(writer *w, int u)
{
    gather(w, u);
    if (w->c->units[u].gather_bytes <= 0)
        return;
    FSDP_ASSERT(w->ready[u] != TIMELINE_NONE); /* at most two units are gathered and not dropped */
    wait_for(w, COMPUTE, w->ready[u]);
}

static void drop(writer *w, int u)
{
    if (w->ready[u] == TIMELINE_NONE)
        return;
    int64_t dropped = record(w, COMPUTE);
    if (is_limited(w, u))
        w->holds[w->hold[u]].dropped = dropped;
    w->ready[u] = TIMELINE_NONE;
}

static void reduce(writer *w, int u)
{
    if (w->c->units[u].reduce_bytes <= 0)
        return;
    wait_for(w, REDUCE, record(w, COMPUTE));
    w->reduced = call(w, REDUCE, REDUCE_GROUP, u);
    if (w->c->prefetch == VIRTUAL_PREFETCH_NONE)
        wait_for(w, COMPUTE, w->reduced);
}

/* ---- passes --------------------------------------------------------------------------------- */

static void maybe_sync(writer *w, int u)
{
    if (u == w->c->sync_after && u != ROOT)
        sync_with(w, COMPUTE, TIMELINE_NONE);
}

static void forward(writer *w, bool prefetch)
{
    const virtual_step_config *c = w->c;
    for (int u = 0; u < c->n_units; u++) {
        gather(w, u);
        if (prefetch && u + 1 < c->n_units)
            gather(w, u + 1);
        need(w, u);
        work(w, u, 'f', c->units[u].forward_s);
        if (is_limited(w, u))
            drop(w, u);
        maybe_sync(w, u);
    }
    work(w, ROOT, 'f', c->head_forward_s);
}

static void backward(writer *w, bool prefetch)
{
    const virtual_step_config *c = w->c;
    if (prefetch && c->n_units > 1)
        gather(w, c->n_units - 1);
    work(w, ROOT, 'b', c->head_backward_s);
    for (int u = c->n_units - 1; u >= 0; u--) {
        gather(w, u);
        if (prefetch && u > 1)
            gather(w, u - 1);
        need(w, u);
        work(w, u, 'b', c->units[u].backward_s);
        drop(w, u);
        reduce(w, u);
        maybe_sync(w, u);
    }
    if (w->reduced != TIMELINE_NONE)
        wait_for(w, COMPUTE, w->reduced);
}

static void write_step(writer *w)
{
    virtual_prefetch p = w->c->prefetch;
    put(w, (timeline_item){.kind = TIMELINE_STEP, .stream = TIMELINE_HOST});
    for (int a = 0; a < micro_steps(w->c); a++) {
        forward(w, p == VIRTUAL_PREFETCH_FORWARD || p == VIRTUAL_PREFETCH_BOTH);
        backward(w, p == VIRTUAL_PREFETCH_BACKWARD || p == VIRTUAL_PREFETCH_BOTH);
    }
    work(w, ROOT, '-', w->c->optimizer_s);
}

/* ---- a step --------------------------------------------------------------------------------- */

fsdp_status virtual_step_create(const virtual_step_config *config, virtual_step *out)
{
    *out = (virtual_step){0};
    if (config->n_ranks < 1 || config->n_units < 1)
        return fsdp_error(FSDP_EINVAL, "give at least one rank and the root unit",
                          "virtual step: got %d ranks and %d units", config->n_ranks,
                          config->n_units);
    size_t n_units = (size_t)config->n_units, uses = n_units * (size_t)micro_steps(config);
    writer w = {.c = config, .reduced = TIMELINE_NONE};
    w.items = out->items = calloc(uses * ITEMS_PER_UNIT + ITEMS_PER_STEP, sizeof *w.items);
    w.holds = out->holds = calloc(2 * uses, sizeof *w.holds);
    w.ready = calloc(n_units, sizeof *w.ready);
    w.hold = calloc(n_units, sizeof *w.hold);
    out->views = calloc((size_t)config->n_ranks, sizeof *out->views);
    bool has_all = w.items && w.holds && w.ready && w.hold && out->views;
    for (size_t u = 0; has_all && u < n_units; u++)
        w.ready[u] = TIMELINE_NONE;
    if (has_all)
        write_step(&w);
    free(w.ready);
    free(w.hold);
    if (!has_all) {
        virtual_step_free(out);
        return fsdp_error(FSDP_ENOMEM, "plan fewer ranks or micro-steps",
                          "virtual step: no memory");
    }
    out->n_holds = w.n_holds;
    for (int r = 0; r < config->n_ranks; r++)
        out->views[r] = (timeline_view){.rank = r,
                                        .n_streams = config->one_stream ? 2 : N_STREAMS,
                                        .streams = config->one_stream ? ONE_STREAM : TWO_STREAMS,
                                        .items = w.items,
                                        .n_items = w.n_items};
    return FSDP_OK;
}

void virtual_step_free(virtual_step *step)
{
    free(step->views);
    free(step->items);
    free(step->holds);
    *step = (virtual_step){0};
}

/* Both run through the holds in the order of issue, which is the order of drops as well: units are
 * used in the order in which they are gathered. */
int virtual_step_peak(const virtual_step *step, const virtual_result *result)
{
    const timeline_item *items = result->views[0].items;
    size_t most = 0, n_over = 0;
    for (size_t i = 0; i < step->n_holds; i++) {
        double now_s = items[step->holds[i].gather].issued_s;
        while (n_over < i && items[step->holds[n_over].dropped].end_s <= now_s)
            n_over++;
        most = i + 1 - n_over > most ? i + 1 - n_over : most;
    }
    return (int)most;
}

/* ---- the floor ------------------------------------------------------------------------------ */

typedef struct lower_bound {
    double gathered_s; /* G(i) */
    double best_s;     /* max over i of G(i) + computations i to the last one */
    double left_s;     /* R(k) */
    double step_s;     /* max so far */
} lower_bound;

/* The next computation in the order of the step, with the gather before it and the reduction
 * behind it. */
static void add_computation(lower_bound *b, double gather_s, double compute_s, double reduce_s)
{
    b->gathered_s += gather_s;
    b->best_s = fmax(b->best_s, b->gathered_s) + compute_s;
    b->step_s = fmax(b->step_s, b->best_s + b->left_s);
    b->left_s -= reduce_s;
}

static double moving_s(const virtual_step_config *c, const virtual_config *costs, double bytes)
{
    if (c->n_ranks < 2 || bytes <= 0)
        return 0.0;
    bool over_hosts = costs->ranks_per_host > 0 && c->n_ranks > costs->ranks_per_host;
    return virtual_link_s(over_hosts ? costs->host_link : costs->link, bytes);
}

double virtual_time_floor(const virtual_step_config *c, const virtual_config *costs)
{
    double compute_s = 0, collectives_s = 0;
    lower_bound b = {0};
    for (int u = 0; u < c->n_units; u++) {
        const virtual_unit *unit = &c->units[u];
        bool again = u != ROOT && !unit->stays;
        b.left_s += micro_steps(c) * moving_s(c, costs, unit->reduce_bytes);
        collectives_s += micro_steps(c) * (again ? 2 : 1) * moving_s(c, costs, unit->gather_bytes);
        compute_s += micro_steps(c) * (unit->forward_s + unit->backward_s);
    }
    compute_s += micro_steps(c) * (c->head_forward_s + c->head_backward_s);
    collectives_s += b.left_s;
    for (int a = 0; a < micro_steps(c); a++) {
        for (int u = 0; u < c->n_units; u++)
            add_computation(&b, moving_s(c, costs, c->units[u].gather_bytes), c->units[u].forward_s,
                            0);
        add_computation(&b, 0, c->head_forward_s + c->head_backward_s, 0);
        for (int u = c->n_units - 1; u >= 0; u--) {
            bool again = u != ROOT && !c->units[u].stays;
            add_computation(&b, again ? moving_s(c, costs, c->units[u].gather_bytes) : 0,
                            c->units[u].backward_s, moving_s(c, costs, c->units[u].reduce_bytes));
        }
    }
    return fmax(0.0, fmax(b.step_s, collectives_s) - compute_s);
}

fsdp_status virtual_step_predict(const virtual_step_config *config, const virtual_config *costs,
                                 virtual_figures *out)
{
    virtual_step step;
    virtual_result result = {0};
    TRY(virtual_step_create(config, &step));
    fsdp_status status = virtual_time_run(step.views, config->n_ranks, costs, &result);
    if (status == FSDP_OK)
        *out = (virtual_figures){.step_s = result.totals[0].end_s,
                                 .compute_s = result.totals[0].compute_s,
                                 .communication_s = result.totals[0].communication_s,
                                 .exposed_s = result.totals[0].exposed_s,
                                 .floor_s = virtual_time_floor(config, costs),
                                 .peak_units = virtual_step_peak(&step, &result)};
    virtual_time_free(&result);
    virtual_step_free(&step);
    return status;
}
