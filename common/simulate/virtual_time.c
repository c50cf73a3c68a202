/* virtual_time.c -- see virtual_time.h.
 *
 * Each view has lanes: lane 0 is its host, lane 1 + s its stream s. A lane runs its items in order.
 * The end of an item follows from items that ended before, except for collectives. So all lanes run
 * until each has run all its items, or waits in a collective or for one. Then the collective that
 * became ready first gets its links, and the lanes run again. No other collective can become ready
 * before that one, because every lane waits, directly or not, for a collective that is ready.
 *
 * If no collective is ready but a lane still waits in one, the wait can never end. This check finds
 * every deadlock: all other waits are for items with lower indices, so a chain of them leads to a
 * collective. */
#include "common/simulate/virtual_time.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct lane {
    int64_t at;          /* its next item, or where the search for the next item begins */
    int64_t last;        /* stream: the last item issued on it, or TIMELINE_NONE */
    double free_s;       /* when its last item ended */
    timeline_item *call; /* the collective that it waits in, or NULL */
} lane;

typedef struct rank_state {
    const timeline_view *view;
    lane lanes[1 + TIMELINE_MAX_STREAMS];
    double link_free_s[2]; /* when they are free: [0] link inside the host, [1] host_link */
} rank_state;

typedef struct sim {
    const virtual_config *config;
    rank_state *ranks; /* [n_ranks], by view */
    int n_ranks;
} sim;

/* end_s of an item that has not run yet. */
static const double NOT_RUN_S = -1;

/* ---- lanes ---------------------------------------------------------------------------------- */

/* The stream whose lane runs the item. A SYNC runs on the host; its stream is what it waits for. */
static int runs_on(const sim *m, const timeline_item *item)
{
    bool of_host = item->kind == TIMELINE_SYNC || item->kind == TIMELINE_STEP ||
                   (m->config->inline_compute && item->stream == TIMELINE_COMPUTE);
    return of_host ? TIMELINE_HOST : item->stream;
}

/* Issue items up to the next one that the host runs itself; false: there is none. */
static bool find_for_host(const sim *m, rank_state *r)
{
    lane *host = &r->lanes[0];
    for (; host->at < r->view->n_items; host->at++) {
        timeline_item *item = &r->view->items[host->at];
        int stream = runs_on(m, item);
        item->issued_s = host->free_s;
        if (stream == TIMELINE_HOST)
            return true;
        r->lanes[1 + stream].last = host->at;
    }
    return false;
}

/* Move the lane of a stream to its next item; false: that item has not been issued. */
static bool find_for_stream(const sim *m, rank_state *r, int stream)
{
    lane *l = &r->lanes[1 + stream];
    while (l->at < r->lanes[0].at && runs_on(m, &r->view->items[l->at]) != stream)
        l->at++;
    return l->at < r->lanes[0].at;
}

/* The item that a WAIT or SYNC waits for, or TIMELINE_NONE. */
static int64_t awaited(const rank_state *r, const timeline_item *item)
{
    if (item->kind == TIMELINE_SYNC && item->after == TIMELINE_NONE && item->stream >= 0)
        return r->lanes[1 + item->stream].last;
    return item->after;
}

static void end_item(lane *l, timeline_item *item, double end_s)
{
    item->end_s = l->free_s = end_s;
    l->call = NULL;
    l->at++;
}

/* Run the next item of a lane; false: the item is not issued yet, or its end is not known yet. */
static bool run_next(const sim *m, rank_state *r, int stream)
{
    lane *l = &r->lanes[1 + stream];
    if (l->call || !(stream == TIMELINE_HOST ? find_for_host(m, r) : find_for_stream(m, r, stream)))
        return false;
    timeline_item *item = &r->view->items[l->at];
    double end_s = item->begin_s = fmax(l->free_s, item->issued_s);
    if (item->kind == TIMELINE_COLLECTIVE && item->group_ranks > 1) {
        l->call = item;
        return false;
    }
    if (item->kind == TIMELINE_WORK)
        end_s += item->way != STAYS_INSIDE
                     ? virtual_copy_s(m->config, item)
                     : m->config->work_s(m->config->self, (int)(r - m->ranks), item);
    if (item->kind == TIMELINE_WAIT || item->kind == TIMELINE_SYNC) {
        int64_t until = awaited(r, item);
        if (until != TIMELINE_NONE && r->view->items[until].end_s == NOT_RUN_S)
            return false;
        if (until != TIMELINE_NONE)
            end_s = fmax(end_s, r->view->items[until].end_s);
    }
    end_item(l, item, end_s);
    return true;
}

/* Run all lanes until only collectives can go on. */
static void run_lanes(const sim *m)
{
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (rank_state *r = m->ranks; r < m->ranks + m->n_ranks; r++)
            for (int s = TIMELINE_HOST; s < r->view->n_streams; s++)
                while (run_next(m, r, s))
                    goes_on = true;
    }
}

/* ---- collectives ---------------------------------------------------------------------------- */

/* The lane of a rank that waits in the collective `call`, or NULL. */
static lane *lane_in(rank_state *r, const timeline_item *call)
{
    for (lane *l = r->lanes; l <= r->lanes + r->view->n_streams; l++)
        if (l->call && l->call->group == call->group && l->call->seq == call->seq)
            return l;
    return NULL;
}

/* Whether rank r is in the group of a call but has not reached the call. */
static bool lacks(rank_state *r, const timeline_item *call)
{
    int from_first = r->view->rank - call->first_rank;
    bool is_in_group = from_first >= 0 && r->view->rank <= call->last_rank &&
                       from_first % virtual_group_stride(call) == 0;
    return is_in_group && !lane_in(r, call);
}

/* When a call became ready; INFINITY: a rank of its group has not reached it. */
static double ready_s(const sim *m, const timeline_item *call)
{
    double last_s = 0;
    for (rank_state *r = m->ranks; r < m->ranks + m->n_ranks; r++) {
        if (lacks(r, call))
            return INFINITY;
        const lane *l = lane_in(r, call);
        last_s = l ? fmax(last_s, l->call->begin_s) : last_s;
    }
    return last_s;
}

/* Whether call a, ready at a_s, goes before call b, ready at b_s. */
static bool comes_before(const timeline_item *a, double a_s, const timeline_item *b, double b_s)
{
    if (a_s != b_s)
        return a_s < b_s;
    return a->group != b->group ? a->group < b->group : a->seq < b->seq;
}

/* The ready call that goes next, as one of its ranks issued it, or NULL. */
static const timeline_item *next_call(const sim *m, double *at_s)
{
    const timeline_item *next = NULL;
    *at_s = INFINITY;
    for (rank_state *r = m->ranks; r < m->ranks + m->n_ranks; r++)
        for (lane *l = r->lanes; l <= r->lanes + r->view->n_streams; l++) {
            double s = l->call ? ready_s(m, l->call) : INFINITY;
            if (s < INFINITY && (!next || comes_before(l->call, s, next, *at_s))) {
                next = l->call;
                *at_s = s;
            }
        }
    return next;
}

/* Give a ready call its links, which determines when it ends. */
static void move(const sim *m, const timeline_item *call, double begin_s)
{
    bool over_hosts;
    double lasts_s = virtual_collective_s(m->config, call, &over_hosts);
    for (rank_state *r = m->ranks; r < m->ranks + m->n_ranks; r++)
        if (lane_in(r, call))
            begin_s = fmax(begin_s, r->link_free_s[over_hosts]);
    for (rank_state *r = m->ranks; r < m->ranks + m->n_ranks; r++) {
        lane *l = lane_in(r, call);
        if (!l)
            continue;
        r->link_free_s[over_hosts] = begin_s + lasts_s;
        end_item(l, l->call, begin_s + lasts_s);
    }
}

/* ---- a run ---------------------------------------------------------------------------------- */

/* Refuse a deadlock: name each rank that waits, its collective, and the ranks it waits for, as far
 * as the text has room. */
static fsdp_status check_finished(const sim *m)
{
    char text[640] = "";
    FILE *out = NULL;
    for (rank_state *r = m->ranks; r < m->ranks + m->n_ranks; r++)
        for (lane *l = r->lanes; l <= r->lanes + r->view->n_streams; l++) {
            if (!l->call)
                continue;
            const char *before = out ? "; " : "";
            if (!out && !(out = fmemopen(text, sizeof text, "w")))
                return fsdp_error(FSDP_ENOMEM, "", "virtual time: no memory");
            fprintf(out, "%srank %d waits in item %lld, %s %s, call %llu of group %llx, for",
                    before, r->view->rank, (long long)l->at, l->call->name, l->call->unit,
                    (unsigned long long)l->call->seq, (unsigned long long)l->call->group);
            for (rank_state *other = m->ranks; other < m->ranks + m->n_ranks; other++)
                if (lacks(other, l->call))
                    fprintf(out, " %d", other->view->rank);
        }
    if (!out)
        return FSDP_OK;
    fclose(out);
    return fsdp_error(FSDP_EMISMATCH,
                      "issue the collectives of a stream in the same order on all ranks of a group",
                      "virtual time: deadlock: %s", text);
}

/* Prepare a view for the simulation. */
static fsdp_status load(const timeline_view *view, rank_state *r)
{
    if (view->n_lost > 0)
        return fsdp_error(FSDP_EINVAL,
                          "plan or record fewer layers or micro-steps (--n-layer, --grad-accum)",
                          "virtual time: the timeline of rank %d lost %llu items", view->rank,
                          (unsigned long long)view->n_lost);
    *r = (rank_state){.view = view};
    for (int s = 0; s < view->n_streams; s++)
        r->lanes[1 + s].last = TIMELINE_NONE;
    for (int64_t i = 0; i < view->n_items; i++)
        view->items[i].end_s = NOT_RUN_S;
    return FSDP_OK;
}

fsdp_status virtual_time_run(const timeline_view *views, int n_views, const virtual_config *config)
{
    sim m = {config, calloc((size_t)n_views, sizeof *m.ranks), n_views};
    fsdp_status status = m.ranks ? FSDP_OK : fsdp_error(FSDP_ENOMEM, "", "virtual time: no memory");
    for (int v = 0; v < n_views && status == FSDP_OK; v++)
        status = load(&views[v], &m.ranks[v]);
    if (status == FSDP_OK) {
        const timeline_item *call;
        double at_s;
        run_lanes(&m);
        while ((call = next_call(&m, &at_s))) {
            move(&m, call, at_s);
            run_lanes(&m);
        }
        status = check_finished(&m);
    }
    free(m.ranks);
    return status;
}
