/* virtual_time_sim.c -- the simulation of virtual_time.h once its input is loaded.
 *
 * Each rank has agents: agent 0 is its host, agent 1 + s its stream s. An agent does one item at a
 * time. When it knows the moment at which it will be done, an event for that moment stands in a
 * heap; while it does not (a WAIT for a RECORD not reached, a collective whose peers have not come)
 * there is none, and whoever brings it about adds the event. Events are taken in the order of time,
 * and at the same time first those of agents, then collectives by (group, seq): so all that become
 * ready at one moment are known before the first of them gets a link.
 *
 * When the heap is empty and an agent still waits, no event can ever end that wait. All waits but
 * those of collectives are for items with lower indices, so a collective is among what waits. */
#include <math.h>
#include "common/observe/virtual_time_impl.h"

/* ---- events --------------------------------------------------------------------------------- */

static bool comes_before(const event_entry *a, const event_entry *b)
{
    if (a->at_s != b->at_s)
        return a->at_s < b->at_s;
    if (a->kind != b->kind)
        return a->kind < b->kind;
    return a->key1 != b->key1 ? a->key1 < b->key1 : a->key2 < b->key2;
}

static void push_event(sim *m, event_entry e)
{
    size_t i = m->n_events++;
    while (i > 0 && comes_before(&e, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = e;
}

static event_entry pop_event(sim *m)
{
    event_entry top = m->heap[0], last = m->heap[--m->n_events];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < m->n_events) {
        if (child + 1 < m->n_events && comes_before(&m->heap[child + 1], &m->heap[child]))
            child++;
        if (!comes_before(&m->heap[child], &last))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* The agent goes on at that time. */
static void wake(sim *m, agent *a, agent_state state, double at_s)
{
    size_t id = (size_t)(a - m->agents);
    a->state = state;
    a->version++;
    push_event(m, (event_entry){.at_s = at_s, .key1 = id, .what = id, .version = a->version});
}

/* ---- collectives ---------------------------------------------------------------------------- */

static int host_of(const sim *m, int rank)
{
    return m->config->ranks_per_host > 0 ? rank / m->config->ranks_per_host : rank;
}

/* Is the item on no stream? A SYNC names the stream that it waits for. */
static bool is_of_host(const timeline_item *it)
{
    return it->stream == TIMELINE_HOST || it->kind == TIMELINE_SYNC || it->kind == TIMELINE_STEP;
}

/* Does the host itself run the item? */
static bool host_runs(const sim *m, const rank_state *r, const timeline_item *it)
{
    return is_of_host(it) || (m->config->inline_compute && it->stream == r->compute);
}

/* Where it is written from when on the link is free that a collective uses at one of its ranks. */
static double *link_of(sim *m, const member *at, bool over_hosts)
{
    if (over_hosts) /* of a part the ranks are on hosts of their own */
        return &m->ranks[m->config->is_part ? at->rank : host_of(m, at->rank)].host_free_s;
    return &m->ranks[at->rank].link_free_s;
}

static bool spans_hosts(const sim *m, const collective *c)
{
    return m->config->ranks_per_host > 0 &&
           host_of(m, c->members[0].rank) != host_of(m, c->members[c->n_members - 1].rank);
}

/* Has the collective's group one rank, which needs no link? */
static bool is_alone(const sim *m, const collective *c)
{
    return (m->config->is_part ? item_of(m, c->members)->group_ranks : c->n_members) == 1;
}

/* How long the bytes of a ready collective move, and over which kind of link. */
static double moves_s(const sim *m, const collective *c, bool *over_hosts)
{
    double bytes = 0;
    *over_hosts = false;
    if (m->config->is_part)
        return virtual_collective_s(m->config, item_of(m, c->members), over_hosts);
    *over_hosts = spans_hosts(m, c);
    for (int i = 0; i < c->n_members; i++)
        bytes = fmax(bytes, item_of(m, &c->members[i])->bytes);
    return virtual_link_s(*over_hosts ? m->config->host_link : m->config->link, bytes);
}

/* Give a ready collective its links: from here on it is known when it ends. */
static void begin_moving(sim *m, collective *c)
{
    const bool alone = is_alone(m, c);
    bool over_hosts = false;
    double begin_s = c->ready_s, lasts_s = alone ? 0 : moves_s(m, c, &over_hosts);
    if (!alone) {
        for (int i = 0; i < c->n_members; i++)
            begin_s = fmax(begin_s, *link_of(m, &c->members[i], over_hosts));
    }
    for (int i = 0; i < c->n_members; i++) {
        const member *at = &c->members[i];
        rank_state *r = &m->ranks[at->rank];
        const timeline_item *it = item_of(m, at);
        agent *a = &r->agents[host_runs(m, r, it) ? 0 : 1 + it->stream];
        r->moved_s[at->item] = begin_s;
        wake(m, a, DOING, begin_s + lasts_s);
        if (alone)
            continue;
        *link_of(m, at, over_hosts) = begin_s + lasts_s;
        if (m->config->steals > 0) {
            event_entry e = {.at_s = begin_s, .kind = EVENT_MOVE_BEGINS};
            e.key1 = e.what = (size_t)at->rank;
            push_event(m, e);
            e.at_s += lasts_s, e.kind = EVENT_MOVE_ENDS;
            push_event(m, e);
        }
    }
}

static void come_to(sim *m, int rank, int64_t item, double at_s)
{
    size_t id = (size_t)m->ranks[rank].call[item];
    collective *c = &m->calls[id];
    for (int low = 0, high = c->n_members; low < high;) {
        int middle = (low + high) / 2;
        if (c->members[middle].rank == rank)
            c->members[middle].has_come = true;
        if (c->members[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    const bool lacks = c->n_members < item_of(m, c->members)->group_ranks;
    if (++c->n_come < c->n_members || (lacks && !m->config->is_part))
        return;
    c->ready_s = at_s;
    if (is_alone(m, c)) {
        begin_moving(m, c);
        return;
    }
    push_event(m, (event_entry){.at_s = at_s,
                                .kind = EVENT_READY,
                                .key1 = c->members->group,
                                .key2 = c->members->seq,
                                .what = id});
}

/* ---- agents --------------------------------------------------------------------------------- */

/* How fast the compute stream of a rank works now. */
static double speed(const sim *m, const rank_state *r)
{
    return r->n_moving > 0 ? 1.0 - m->config->steals : 1.0;
}

static void begin_work(sim *m, agent *a, double at_s)
{
    const rank_state *r = &m->ranks[a->rank];
    const timeline_item *it = &r->items[a->item];
    a->left_s = it->end_s; /* its cost, until it is done */
    a->since_s = at_s;
    bool is_compute = r->compute != TIMELINE_NONE && it->stream == r->compute;
    wake(m, a, DOING, at_s + a->left_s / (is_compute ? speed(m, r) : 1.0));
}

/* A collective of the rank begins or ends to move: its compute stream gets slower or faster. */
static void change_speed(sim *m, rank_state *r, int n_more, double at_s)
{
    double before = speed(m, r);
    r->n_moving += n_more;
    if (before == speed(m, r) || r->compute == TIMELINE_NONE)
        return;
    agent *a = &r->agents[m->config->inline_compute ? 0 : 1 + r->compute];
    if (a->state != DOING || r->items[a->item].kind != TIMELINE_WORK ||
        r->items[a->item].stream != r->compute)
        return;
    a->left_s = fmax(0.0, a->left_s - (at_s - a->since_s) * before);
    a->since_s = at_s;
    wake(m, a, DOING, at_s + a->left_s / speed(m, r));
}

/* What a WAIT or SYNC of the host waits for: an item, or TIMELINE_NONE. */
static int64_t awaited(const rank_state *r, const timeline_item *it)
{
    if (it->kind == TIMELINE_SYNC && it->after == TIMELINE_NONE && it->stream >= 0)
        return r->agents[1 + it->stream].last;
    return it->after;
}

/* The agent comes to its item, which was issued. */
static void begin_item(sim *m, agent *a, double at_s)
{
    rank_state *r = &m->ranks[a->rank];
    timeline_item *it = &r->items[a->item];
    it->begin_s = at_s;
    switch (it->kind) {
    case TIMELINE_WORK:
        begin_work(m, a, at_s);
        return;
    case TIMELINE_COLLECTIVE:
        a->state = CALLING;
        come_to(m, a->rank, a->item, at_s);
        return;
    case TIMELINE_WAIT:
    case TIMELINE_SYNC:
        a->until = awaited(r, it);
        if (a->until != TIMELINE_NONE && !r->done[a->until]) {
            a->state = BLOCKED;
            return;
        }
        break;
    case TIMELINE_RECORD:
    case TIMELINE_STEP:
        break;
    }
    a->state = DOING; /* and done at once: see go_on */
}

/* The item that the agent did is done; those who wait for it go on. */
static void end_item(sim *m, agent *a, double at_s)
{
    rank_state *r = &m->ranks[a->rank];
    r->items[a->item].end_s = at_s;
    r->done[a->item] = true;
    for (agent *b = r->agents; b <= r->agents + r->n_streams; b++)
        if (b->state == BLOCKED && b->until == a->item)
            wake(m, b, DOING, at_s);
    a->item++;
    a->state = AT_REST;
}

/* The host has issued its item: it runs the item or hands it to a stream. */
static void issue(sim *m, agent *host, double at_s)
{
    rank_state *r = &m->ranks[host->rank];
    timeline_item *it = &r->items[host->item];
    it->issued_s = at_s;
    if (!is_of_host(it))
        r->agents[1 + it->stream].last = host->item;
    if (host_runs(m, r, it)) {
        begin_item(m, host, at_s);
        return;
    }
    agent *s = &r->agents[1 + it->stream];
    host->item++;
    host->state = AT_REST;
    if (s->state == AT_REST)
        wake(m, s, ISSUING, at_s);
}

/* The next item of a stream, if it is issued. */
static bool find_next(const rank_state *r, agent *s)
{
    int64_t n_issued = r->agents[0].item;
    for (; s->item < n_issued; s->item++) {
        const timeline_item *it = &r->items[s->item];
        if (it->stream == s->stream && !is_of_host(it))
            return true;
    }
    return false;
}

/* An agent at rest begins what comes next; true: it may have more to do at this moment. */
static bool begin_next(sim *m, agent *a, double at_s)
{
    rank_state *r = &m->ranks[a->rank];
    if (a->stream != TIMELINE_HOST) {
        if (!find_next(r, a))
            return false;
        begin_item(m, a, at_s);
        return true;
    }
    if (a->item == r->n_items)
        return false;
    bool is_free = is_of_host(&r->items[a->item]) || !(m->config->host_issue_s > 0);
    if (is_free)
        issue(m, a, at_s);
    else
        wake(m, a, ISSUING, at_s + m->config->host_issue_s);
    return is_free;
}

/* Has the item that the agent is doing taken no time? Then it has no event. */
static bool is_instant(const sim *m, const agent *a)
{
    if (a->state != DOING)
        return false;
    timeline_kind k = m->ranks[a->rank].items[a->item].kind;
    return k != TIMELINE_WORK && k != TIMELINE_COLLECTIVE;
}

/* The event of an agent: it ends what it did and does what it can at this moment. */
static void go_on(sim *m, agent *a, double at_s)
{
    if (a->state == DOING)
        end_item(m, a, at_s);
    else if (a->stream == TIMELINE_HOST && a->state == ISSUING)
        issue(m, a, at_s);
    else
        a->state = AT_REST;
    for (;;) {
        if (is_instant(m, a))
            end_item(m, a, at_s);
        if (a->state != AT_REST || !begin_next(m, a, at_s))
            return;
    }
}

void virtual_sim_run(sim *m)
{
    for (int r = 0; r < m->n_ranks; r++)
        go_on(m, &m->ranks[r].agents[0], 0.0);
    while (m->n_events > 0) {
        event_entry e = pop_event(m);
        if (e.kind == EVENT_READY)
            begin_moving(m, &m->calls[e.what]);
        else if (e.kind != EVENT_AGENT)
            change_speed(m, &m->ranks[e.what], e.kind == EVENT_MOVE_BEGINS ? 1 : -1, e.at_s);
        else if (e.version == m->agents[e.what].version)
            go_on(m, &m->agents[e.what], e.at_s);
    }
}
