/* timeline_watch.c -- see timeline_watch.h.
 *
 * A token holds the index of an item and the number of its timeline. If timeline_watch_to is called
 * before work ends, the work's token has an older number, and the work changes no item. */
#include "common/observe/timeline_watch.h"
#include <pthread.h>
#include <stdlib.h>
#include "common/base/hash.h"
#include "common/device/dry.h"

enum { INDEX_BITS = 32, BUCKETS = 1 << 12 };

struct timeline_watch {
    device *dev;
    profile *profile;     /* or NULL */
    order_check *order;   /* or NULL */
    pthread_mutex_t lock; /* guards all below */
    timeline *t;          /* NULL: nothing is recorded */
    uint64_t number;      /* of t: calls of timeline_watch_to so far */
    char phase;           /* of the act issued last */
    int64_t
        latest[BUCKETS]; /* the last RECORD since timeline_watch_to of an event with this hash */
};

void timeline_watch_to(timeline_watch *w, timeline *t)
{
    pthread_mutex_lock(&w->lock);
    w->t = t;
    w->number++;
    w->phase = '-';
    for (int i = 0; i < BUCKETS; i++)
        w->latest[i] = TIMELINE_NONE;
    pthread_mutex_unlock(&w->lock);
}

void timeline_watch_step(timeline_watch *w, int64_t step)
{
    timeline_item item = {.kind = TIMELINE_STEP,
                          .stream = TIMELINE_HOST,
                          .phase = '-',
                          .after = TIMELINE_NONE,
                          .seq = (uint64_t)step,
                          .issued_s = device_now_s(w->dev)};
    pthread_mutex_lock(&w->lock);
    if (w->t)
        timeline_add(w->t, &item);
    pthread_mutex_unlock(&w->lock);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The place in w->latest of the events with e's hash. */
static int64_t *latest_of(timeline_watch *w, const event *e)
{
    return &w->latest[hash_bytes(&e, sizeof e) % BUCKETS];
}

/* The index of the last RECORD of e, or TIMELINE_NONE. */
static int64_t record_of(timeline_watch *w, const event *e)
{
    const timeline_item *items = timeline_read(w->t).items;
    int64_t i = *latest_of(w, e);
    while (i != TIMELINE_NONE && items[i].event != e)
        i = items[i].earlier;
    return i;
}

/* Forget the address of event e, which was freed: another event may get it. */
static void forget_event(timeline_watch *w, const event *e)
{
    timeline_item *items = timeline_read(w->t).items;
    for (int64_t i = record_of(w, e); i != TIMELINE_NONE; i = record_of(w, e))
        items[i].event = NULL;
}

/* ---- the device ------------------------------------------------------------------------------ */

static void set_text(char *to, size_t to_bytes, const char *from)
{
    snprintf(to, to_bytes, "%s", from ? from : "");
}

/* Fill in the fields of *item that depend on the kind of act; false: do not record the act. */
static bool describe(timeline_watch *w, const device_act *act, timeline_item *item)
{
    const bool is_move = act->kind >= ACT_COPY && act->kind <= ACT_FILL;
    const char *name = is_move ? act->name : act->work.key.name;
    if (name) { /* WORK */
        set_text(item->name, sizeof item->name, name);
        item->is_move = is_move;
        item->way = dry_is_on_host(act->src)   ? TO_DEVICE
                    : dry_is_on_host(act->dst) ? TO_HOST
                                               : STAYS_INSIDE;
        item->flops = act->work.cost.flops;
        item->bytes = is_move ? (double)act->bytes : act->work.cost.bytes;
        return true;
    }
    if (act->kind != ACT_RECORD && act->kind != ACT_WAIT && act->kind != ACT_SYNC)
        return false;
    item->kind = act->kind == ACT_RECORD ? TIMELINE_RECORD
                 : act->kind == ACT_WAIT ? TIMELINE_WAIT
                                         : TIMELINE_SYNC;
    if (act->kind == ACT_RECORD) {
        item->event = act->event;
        item->earlier = *latest_of(w, act->event); /* a list for each place in latest */
    } else if (act->event) {
        item->after = record_of(w, act->event);
    }
    return true;
}

static uint64_t token_of(const timeline_watch *w, int64_t item)
{
    return (w->number << INDEX_BITS) + (uint64_t)(item + 1);
}

static void item_ran(timeline_watch *w, uint64_t token, double begin_s, double end_s)
{
    const int64_t item = (int64_t)(token & UINT32_MAX) - 1;
    pthread_mutex_lock(&w->lock);
    if (w->t && token >> INDEX_BITS == w->number && item != TIMELINE_NONE)
        timeline_ran(w->t, item, begin_s, end_s);
    pthread_mutex_unlock(&w->lock);
}

static uint64_t act_issued(void *self, const device_act *act)
{
    timeline_watch *w = self;
    uint64_t token = 0;
    if (w->order)
        (void)order_check_issued(w->order, act);
    timeline_item item = {.phase = act->phase ? act->phase[0] : '-',
                          .after = TIMELINE_NONE,
                          .issued_s = device_now_s(w->dev)};
    set_text(item.unit, sizeof item.unit, act->scope);
    pthread_mutex_lock(&w->lock);
    w->phase = item.phase;
    if (w->t && act->kind == ACT_EVENT_FREE)
        forget_event(w, act->event);
    if (w->t && describe(w, act, &item)) {
        item.stream = act->stream ? timeline_stream(w->t, stream_name(act->stream)) : TIMELINE_HOST;
        int64_t i = timeline_add(w->t, &item);
        if (item.kind == TIMELINE_RECORD && i != TIMELINE_NONE)
            *latest_of(w, act->event) = i;
        token = item.kind == TIMELINE_RECORD ? 0 : token_of(w, i);
    }
    pthread_mutex_unlock(&w->lock);
    return token;
}

static void act_ran(void *self, const device_act *act)
{
    timeline_watch *w = self;
    item_ran(w, act->token, act->begin_s, act->end_s);
    if (!w->profile || act->kind != ACT_LAUNCH || !act->work.key.name)
        return;
    bool computes = act->stream == device_compute_stream(w->dev);
    profile_add(w->profile, computes ? PROFILE_COMPUTE : PROFILE_SIDE, &act->work.key, 1,
                act->end_s - act->begin_s, act->work.cost);
}

/* ---- collectives ----------------------------------------------------------------------------- */

static uint64_t collective_issued(void *self, const comm_record *r)
{
    uint64_t token = 0;
    timeline_watch *w = self;
    timeline_item item = {.kind = TIMELINE_COLLECTIVE,
                          .after = TIMELINE_NONE,
                          .reduces = r->op == COMM_OP_REDUCE_SCATTER || r->op == COMM_OP_ALL_REDUCE,
                          .group = r->group,
                          .seq = r->seq,
                          .group_ranks = r->group_ranks,
                          .first_rank = r->first_rank,
                          .last_rank = r->last_rank,
                          .bytes = r->bytes,
                          .issued_s = r->begin_s};
    set_text(item.name, sizeof item.name, comm_op_name(r->op));
    set_text(item.unit, sizeof item.unit, r->label);
    pthread_mutex_lock(&w->lock);
    if (w->t) {
        item.stream = timeline_stream(w->t, stream_name(r->stream));
        item.phase = w->phase; /* a collective has none; use the last act's */
        token = token_of(w, timeline_add(w->t, &item));
    }
    pthread_mutex_unlock(&w->lock);
    return token;
}

/* A part of a collective after the first one (r->calls is 0) extends the item. */
static void collective_ended(void *self, const comm_record *r)
{
    timeline_watch *w = self;
    item_ran(w, r->token, r->begin_s, r->begin_s + r->seconds);
    if (w->profile)
        profile_add(w->profile, PROFILE_COLLECTIVE, &(work_key){.name = comm_op_name(r->op)},
                    r->calls, r->seconds, (work_cost){.bytes = r->bytes});
}

/* ---- life ------------------------------------------------------------------------------------ */

timeline_watch *timeline_watch_create(device *d, comm *c, profile *p, order_check *order)
{
    timeline_watch *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    *w = (timeline_watch){.dev = d, .profile = p, .order = order};
    pthread_mutex_init(&w->lock, NULL);
    device_set_watch(d, &(device_watch){w, act_issued, act_ran});
    comm_set_watch(c, &(comm_watch){w, collective_issued, collective_ended});
    return w;
}

void timeline_watch_free(timeline_watch *w)
{
    if (!w)
        return;
    pthread_mutex_destroy(&w->lock);
    free(w);
}
