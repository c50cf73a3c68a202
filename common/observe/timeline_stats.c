/* timeline_stats.c -- see timeline_stats.h. */
#include "common/observe/timeline_stats.h"
#include <math.h>
#include <stdio.h>

int64_t timeline_cause(const timeline_view *v, int64_t i)
{
    const timeline_item *item = &v->items[i];
    if (item->kind != TIMELINE_WAIT || item->stream != TIMELINE_COMPUTE || item->after < 0)
        return TIMELINE_NONE;
    int stream = v->items[item->after].stream;
    for (int64_t k = item->after; k >= 0 && stream != TIMELINE_COMPUTE; k--)
        if ((v->items[k].kind == TIMELINE_COLLECTIVE || v->items[k].way != STAYS_INSIDE) &&
            v->items[k].stream == stream)
            return k;
    return TIMELINE_NONE;
}

static double duration(const timeline_item *item)
{
    return item->end_s - item->begin_s;
}

/* When the first item after the previous RECORD on the stream of `record` was issued. The item is
 * the collective, or work that prepares it, such as the copy of this rank's own shard. */
static double first_issued_s(const timeline_view *v, int64_t record)
{
    double first_s = 0;
    for (int64_t k = record - 1; k >= 0; k--) {
        const timeline_item *item = &v->items[k];
        if (item->stream != v->items[record].stream || item->kind == TIMELINE_SYNC)
            continue;
        if (item->kind == TIMELINE_RECORD)
            break;
        if (item->kind != TIMELINE_WAIT)
            first_s = item->issued_s;
    }
    return first_s;
}

/* Fill in the stall of WAIT i. It includes the time before the WAIT in which the collective was in
 * flight and the compute stream had no work. */
static void find_wait(const timeline_view *v, int64_t i, double busy_until_s, timeline_stall *stall)
{
    const timeline_item *item = &v->items[i];
    double from_s = fmax(first_issued_s(v, item->after), busy_until_s);
    double to_s = fmin(v->items[stall->cause].end_s, item->begin_s);
    bool held_up = item->end_s > 0 && to_s > from_s;
    stall->begin_s = held_up ? from_s : item->begin_s;
    stall->seconds = duration(item) + (held_up ? to_s - from_s : 0);
}

/* The stall of item i of the compute stream; if it is no stall, the cause is TIMELINE_NONE. */
static timeline_stall stall_at(const timeline_view *v, int64_t i, double busy_until_s)
{
    const timeline_item *item = &v->items[i];
    timeline_stall stall = {.item = i, .cause = timeline_cause(v, i)};
    if (item->kind == TIMELINE_COLLECTIVE) {
        stall.cause = i;
        stall.begin_s = item->begin_s;
        stall.seconds = duration(item);
    } else if (stall.cause != TIMELINE_NONE) {
        find_wait(v, i, busy_until_s, &stall);
    }
    if (stall.cause != TIMELINE_NONE)
        snprintf(stall.cause_name, sizeof stall.cause_name, "%s %s", v->items[stall.cause].name,
                 v->items[stall.cause].unit);
    return stall;
}

bool timeline_next_stall(const timeline_view *v, timeline_cursor *c, int64_t end,
                         timeline_stall *stall)
{
    while (c->at < end) {
        int64_t i = c->at++;
        const timeline_item *item = &v->items[i];
        if (item->stream != TIMELINE_COMPUTE || item->kind == TIMELINE_SYNC)
            continue;
        *stall = stall_at(v, i, c->busy_until_s);
        c->busy_until_s = fmax(c->busy_until_s, item->end_s);
        if (stall->cause != TIMELINE_NONE)
            return true;
    }
    return false;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The first item from i on that is communication on stream s; step->end: none. Bit s of `mask` is
 * set if stream s has a collective in the step and is not the compute stream. */
static int64_t next_comm(const timeline_view *v, const timeline_step *step, uint64_t mask, int s,
                         int64_t i)
{
    for (; i < step->end; i++) {
        const timeline_item *item = &v->items[i];
        bool helps = item->kind == TIMELINE_WORK && (mask >> s & 1) != 0;
        if (item->stream == s && (item->kind == TIMELINE_COLLECTIVE || helps))
            break;
    }
    return i;
}

/* The time in which any stream had communication in flight: the length of the union of all spans.
 * Each stream runs its items in order, so the earliest of their next items is the next overall. */
static double comm_time(const timeline_view *v, const timeline_step *step)
{
    uint64_t mask = 0;
    double sum_s = 0, until_s = 0;
    int64_t at[TIMELINE_MAX_STREAMS];
    for (int64_t i = step->first; i < step->end; i++)
        if (v->items[i].kind == TIMELINE_COLLECTIVE && v->items[i].stream != TIMELINE_COMPUTE)
            mask |= UINT64_C(1) << v->items[i].stream;
    for (int s = 0; s < v->n_streams; s++)
        at[s] = next_comm(v, step, mask, s, step->first);
    for (;;) {
        int next = TIMELINE_NONE;
        for (int s = 0; s < v->n_streams; s++)
            if (at[s] < step->end &&
                (next < 0 || v->items[at[s]].begin_s < v->items[at[next]].begin_s))
                next = s;
        if (next < 0)
            return sum_s;
        const timeline_item *item = &v->items[at[next]];
        if (item->end_s > until_s) {
            sum_s += item->end_s - (item->begin_s > until_s ? item->begin_s : until_s);
            until_s = item->end_s;
        }
        at[next] = next_comm(v, step, mask, next, at[next] + 1);
    }
}

static void add_stalls(const timeline_view *v, timeline_step *step)
{
    timeline_cursor c = {step->first, step->begin_s};
    timeline_stall stall;
    while (timeline_next_stall(v, &c, step->end, &stall)) {
        step->exposed_s += stall.seconds;
        if (stall.seconds > step->stall.seconds)
            step->stall = stall;
    }
}

/* Find the end of the step, and add up the times of its items. */
static void add_items(const timeline_view *v, timeline_step *step)
{
    int64_t i = step->first + 1;
    for (; i < v->n_items && v->items[i].kind != TIMELINE_STEP; i++) {
        const timeline_item *item = &v->items[i];
        step->end_s = fmax(step->end_s, item->end_s);
        if (item->stream != TIMELINE_COMPUTE || item->kind == TIMELINE_SYNC)
            continue;
        step->compute_end_s = fmax(step->compute_end_s, item->end_s);
        if (item->kind == TIMELINE_WORK)
            *(item->is_move ? &step->move_s : &step->compute_s) += duration(item);
        else if (item->kind == TIMELINE_WAIT && timeline_cause(v, i) == TIMELINE_NONE)
            step->wait_s += duration(item);
    }
    step->end = i;
}

bool timeline_next_step(const timeline_view *v, int64_t from, timeline_step *step)
{
    while (from < v->n_items && v->items[from].kind != TIMELINE_STEP)
        from++;
    if (from >= v->n_items)
        return false;
    double begin_s = v->items[from].issued_s;
    *step = (timeline_step){.step = v->items[from].seq,
                            .first = from,
                            .begin_s = begin_s,
                            .end_s = begin_s,
                            .stall = {.item = TIMELINE_NONE, .cause = TIMELINE_NONE}};
    add_items(v, step);
    add_stalls(v, step);
    step->comm_s = comm_time(v, step);
    return true;
}

double timeline_overlap(const timeline_step *step)
{
    double hidden_s = step->comm_s - step->exposed_s;
    if (!(step->comm_s > 0))
        return 1.0;
    return hidden_s > 0 ? hidden_s / step->comm_s : 0.0;
}
