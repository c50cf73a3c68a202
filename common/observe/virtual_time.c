/* virtual_time.c -- the input and the output of the simulator; see virtual_time.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/observe/virtual_time_impl.h"

/* ---- input ---------------------------------------------------------------------------------- */

static fsdp_status bad_item(const timeline_view *v, int rank, int64_t i, const char *what)
{
    const timeline_item *it = &v->items[i];
    return fsdp_error(FSDP_EINVAL, "record the whole of every rank's timeline",
                      "virtual time: item %lld of rank %d (%s %s): %s", (long long)i, rank,
                      it->name, it->unit, what);
}

static fsdp_status check_item(const timeline_view *v, int rank, int64_t i)
{
    const timeline_item *it = &v->items[i];
    if (it->stream < TIMELINE_HOST || it->stream >= v->n_streams)
        return bad_item(v, rank, i, "its stream is none of the timeline's");
    bool waits = it->kind == TIMELINE_WAIT || it->kind == TIMELINE_SYNC;
    if (waits && it->after != TIMELINE_NONE &&
        (it->after < 0 || it->after >= i || v->items[it->after].kind != TIMELINE_RECORD))
        return bad_item(v, rank, i, "what it waits for is no RECORD before it");
    if (it->kind == TIMELINE_COLLECTIVE && !(it->bytes >= 0 && isfinite(it->bytes)))
        return bad_item(v, rank, i, "its bytes are no number from 0");
    return FSDP_OK;
}

static fsdp_status check_config(const virtual_config *c, int n_ranks)
{
    const double at_least_0[] = {c->link.latency_s,      c->link.bytes_per_s,
                                 c->host_link.latency_s, c->host_link.bytes_per_s,
                                 c->host_issue_s,        c->steals};
    bool is_good = c->steals < 1.0 && c->ranks_per_host >= 0 && n_ranks > 0;
    for (size_t i = 0; i < sizeof at_least_0 / sizeof *at_least_0; i++)
        is_good = is_good && at_least_0[i] >= 0 && isfinite(at_least_0[i]);
    if (is_good)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "give times and rates from 0, steals below 1, at least one rank",
                      "virtual time: %d ranks, or a cost, that cannot be", n_ranks);
}

/* Copy a rank's items; a WORK's end_s becomes its cost. */
static fsdp_status load_items(const virtual_config *c, const timeline_view *v, int rank,
                              timeline_item *items)
{
    if (v->n_lost > 0)
        return fsdp_error(FSDP_EINVAL, "record fewer steps",
                          "virtual time: the timeline of rank %d lost %llu items", rank,
                          (unsigned long long)v->n_lost);
    for (int64_t i = 0; i < v->n_items; i++) {
        TRY(check_item(v, rank, i));
        const timeline_item *it = &v->items[i];
        items[i] = *it;
        items[i].begin_s = items[i].end_s = 0;
        if (it->kind != TIMELINE_WORK)
            continue;
        double s = c->work_s ? c->work_s(c->self, rank, it) : it->end_s - it->begin_s;
        if (!(s >= 0 && isfinite(s)))
            return bad_item(v, rank, i, "its cost is no time from 0");
        items[i].end_s = s;
    }
    return FSDP_OK;
}

static int compare_members(const void *a, const void *b)
{
    const member *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* c has its members up to `at`, the last one. */
static fsdp_status check_member(const sim *m, const collective *c, const member *at)
{
    const timeline_item *it = item_of(m, at);
    int expected = item_of(m, c->members)->group_ranks;
    bool is_twice = c->n_members > 1 && at[-1].rank == at->rank;
    if (!is_twice && it->group_ranks == expected && c->n_members <= expected)
        return FSDP_OK;
    return fsdp_error(FSDP_EMISMATCH, "give every group, and every call of a group, its own number",
                      "virtual time: %s %s, call %llu of group %llx, stands %s rank %d: got %d "
                      "ranks in the group, expected %d as on rank %d",
                      it->name, it->unit, (unsigned long long)at->seq,
                      (unsigned long long)at->group, is_twice ? "twice on" : "on", at->rank,
                      it->group_ranks, expected, c->members->rank);
}

/* Sort the members of all collectives and cut them apart. */
static fsdp_status match_collectives(sim *m)
{
    qsort(m->members, m->n_members, sizeof *m->members, compare_members);
    for (size_t i = 0; i < m->n_members; i++) {
        member *at = &m->members[i];
        collective *c = m->n_calls > 0 ? &m->calls[m->n_calls - 1] : NULL;
        if (!c || c->members->group != at->group || c->members->seq != at->seq) {
            c = &m->calls[m->n_calls++];
            *c = (collective){.members = at};
        }
        c->n_members++;
        m->ranks[at->rank].call[at->item] = c - m->calls;
        TRY(check_member(m, c, at));
    }
    return FSDP_OK;
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void sim_free(sim *m)
{
    free(m->ranks);
    free(m->agents);
    free(m->calls);
    free(m->members);
    free(m->heap);
    free(m->done);
    free(m->call);
}

static fsdp_status no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "simulate fewer ranks or steps", "virtual time: no memory");
}

/* calloc of at least one entry. */
static void *zeroed(size_t n, size_t bytes)
{
    return calloc(n > 0 ? n : 1, bytes);
}

static fsdp_status allocate(sim *m, const timeline_view *views, virtual_result *out)
{
    size_t n_items = 0;
    for (int r = 0; r < m->n_ranks; r++) {
        n_items += (size_t)views[r].n_items;
        m->n_agents += 1 + (size_t)views[r].n_streams;
        for (int64_t i = 0; i < views[r].n_items; i++)
            m->n_members += views[r].items[i].kind == TIMELINE_COLLECTIVE;
    }
    out->views = zeroed((size_t)m->n_ranks, sizeof *out->views);
    out->moved_s = zeroed((size_t)m->n_ranks, sizeof *out->moved_s);
    out->items = zeroed(n_items, sizeof *out->items);
    out->moved = zeroed(n_items, sizeof *out->moved);
    m->ranks = zeroed((size_t)m->n_ranks, sizeof *m->ranks);
    m->agents = zeroed(m->n_agents, sizeof *m->agents);
    m->calls = zeroed(m->n_members, sizeof *m->calls);
    m->members = zeroed(m->n_members, sizeof *m->members);
    m->done = zeroed(n_items, sizeof *m->done);
    m->call = zeroed(n_items, sizeof *m->call);
    /* At one time: an event of each agent and collective; per member the begin and the end of its
     * moving, and one void event of the agent that each of these disturbed. */
    m->heap = zeroed(m->n_agents + 5 * m->n_members, sizeof *m->heap);
    bool has_all = out->views && out->moved_s && out->items && out->moved && m->ranks &&
                   m->agents && m->calls && m->members && m->done && m->call && m->heap;
    return has_all ? FSDP_OK : no_memory();
}

/* Deal out the arrays to the ranks and load their items. */
static fsdp_status load(sim *m, const timeline_view *views, virtual_result *out)
{
    size_t at = 0, n_agents = 0, n_members = 0;
    for (int rank = 0; rank < m->n_ranks; rank++) {
        const timeline_view *v = &views[rank];
        m->ranks[rank] = (rank_state){.agents = m->agents + n_agents,
                                      .items = out->items + at,
                                      .moved_s = out->moved + at,
                                      .done = m->done + at,
                                      .call = m->call + at,
                                      .n_items = v->n_items,
                                      .n_streams = v->n_streams,
                                      .compute = virtual_compute_stream(v, m->config)};
        for (int s = TIMELINE_HOST; s < v->n_streams; s++)
            m->agents[n_agents++] = (agent){.rank = rank, .stream = s, .last = TIMELINE_NONE};
        TRY(load_items(m->config, v, rank, out->items + at));
        for (int64_t i = 0; i < v->n_items; i++)
            if (v->items[i].kind == TIMELINE_COLLECTIVE)
                m->members[n_members++] = (member){
                    .group = v->items[i].group, .seq = v->items[i].seq, .item = i, .rank = rank};
        out->views[rank] = *v;
        out->views[rank].items = out->items + at;
        out->moved_s[rank] = out->moved + at;
        at += (size_t)v->n_items;
    }
    return match_collectives(m);
}

/* "0 2 3", those that did not come; at most a few. */
static const char *absent_ranks(const collective *c, int group_ranks, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < c->n_members && used + 24 < bytes; i++)
        if (!c->members[i].has_come)
            used += (size_t)snprintf(text + used, bytes - used, " %d", c->members[i].rank);
    if (c->n_members < group_ranks)
        snprintf(text + used, bytes - used, " (%d without it)", group_ranks - c->n_members);
    return text;
}

/* Who waits in which collective for whom, if somebody does. */
static fsdp_status check_finished(const sim *m)
{
    char text[640];
    size_t used = 0;
    for (size_t i = 0; i < m->n_agents && used + 200 < sizeof text; i++) {
        const agent *a = &m->agents[i];
        if (a->state != CALLING)
            continue;
        const rank_state *r = &m->ranks[a->rank];
        const timeline_item *it = &r->items[a->item];
        char absent[64];
        absent_ranks(&m->calls[r->call[a->item]], it->group_ranks, absent, sizeof absent);
        used +=
            (size_t)snprintf(text + used, sizeof text - used,
                             "%srank %d waits in item %lld, %s %s, call %llu of group %llx, for%s",
                             used > 0 ? "; " : "", a->rank, (long long)a->item, it->name, it->unit,
                             (unsigned long long)it->seq, (unsigned long long)it->group, absent);
    }
    if (used == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EMISMATCH,
                      "issue the collectives of a stream in the same order on all ranks of a group",
                      "virtual time: deadlock: %s", text);
}

fsdp_status virtual_time_run(const timeline_view *views, int n_ranks, const virtual_config *config,
                             virtual_result *result)
{
    sim m = {.config = config, .n_ranks = n_ranks};
    *result = (virtual_result){.n_ranks = n_ranks};
    fsdp_status status;
    GOTO_ON_FAIL(status, check_config(config, n_ranks), done);
    GOTO_ON_FAIL(status, allocate(&m, views, result), done);
    GOTO_ON_FAIL(status, load(&m, views, result), done);
    virtual_sim_run(&m);
    GOTO_ON_FAIL(status, check_finished(&m), done);
    status = virtual_totals_fill(config, result);
done:
    sim_free(&m);
    if (status != FSDP_OK)
        virtual_time_free(result);
    return status;
}

void virtual_time_free(virtual_result *result)
{
    free(result->views);
    free(result->moved_s);
    free(result->totals);
    free(result->items);
    free(result->moved);
    *result = (virtual_result){0};
}
