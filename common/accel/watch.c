/* watch.c -- measures when work of a device began and ended, and tells the device's watch.
 *
 *   accel_watch_begin -> the work is issued -> accel_watch_end        two timed events around it
 *   accel_watch_tell, at a later call: tells finished work, in order of the stream
 *
 * No call waits for these events: after a sync all of them are reached. The library only gives the
 * time between two events. One event, `clock`, was reached at a known time of the host; the time of
 * another event is that time plus the time between the two. The library gives it as a float in
 * milliseconds, and the clocks drift; so a sync replaces a `clock` that is some seconds old.
 * `clock` has a queue of its own, which is otherwise idle. */
#include <stdlib.h>
#include "common/base/clock.h"
#include "common/accel/accel_impl.h"

static const double CLOCK_LASTS_S = 2, CLOCK_WITHIN_S = 100e-6, CLOCK_FIRST_S = 10;

struct accel_watched {
    STAILQ_ENTRY(accel_watched) link;
    SLIST_ENTRY(accel_watched) spare;
    device_act act;
    const void *self; /* the watch that gave act.token */
    void *begin, *end;
};

/* ---- the clock ------------------------------------------------------------------------------- */

/* Record e on the idle queue and wait for it. Returns 0 and its time *at_s if e was reached within
 * patience_s. */
static int clock_read(const accel_device *d, void *e, double patience_s, double *at_s)
{
    clock_wait waited = clock_wait_begin();
    int code = d->api->event_record(e, d->clock_queue);
    if (code != 0)
        return code;
    do {
        code = d->api->event_look(e);
        *at_s = clock_now_s();
    } while (code == ACCEL_NOT_READY && clock_wait_s(&waited) < patience_s);
    return code;
}

/* Read the clock. If the event takes too long, its time is inexact and the old clock is kept. */
static int clock_take(accel_device *d)
{
    const double patience_s = d->clock != NULL ? CLOCK_WITHIN_S : CLOCK_FIRST_S;
    void *e, *unused;
    double at_s;
    int code = d->api->event_create(d, ACCEL_TIMES, &e);
    if (code != 0)
        return code;
    unused = e;
    code = clock_read(d, e, patience_s, &at_s);
    if (code == 0) {
        unused = d->clock;
        d->clock = e;
        d->clock_s = at_s;
    }
    if (unused != NULL)
        (void)d->api->event_destroy(unused);
    return code == ACCEL_NOT_READY ? 0 : code;
}

fsdp_status accel_watch_open(accel_device *d)
{
    TRY(d->api->explain(d->api->queue_create(d, 0, &d->clock_queue), "device_open"));
    TRY(d->api->explain(clock_take(d), "device_open"));
    if (d->clock != NULL)
        return FSDP_OK;
    return fsdp_error(FSDP_EDEVICE, d->api->hint, "device_open: %s %d has no clock", d->api->word,
                      d->base.config.index);
}

static void watched_free(const accel_api *api, accel_watched *w)
{
    if (w->begin != NULL)
        (void)api->event_destroy(w->begin);
    if (w->end != NULL)
        (void)api->event_destroy(w->end);
    free(w);
}

void accel_watch_close(accel_device *d)
{
    accel_watched *w;
    while ((w = SLIST_FIRST(&d->spare)) != NULL) {
        SLIST_REMOVE_HEAD(&d->spare, spare);
        watched_free(d->api, w);
    }
    if (d->clock != NULL)
        (void)d->api->event_destroy(d->clock);
    if (d->clock_queue != NULL)
        (void)d->api->queue_destroy(d->clock_queue);
}

double accel_event_at_s(device *base, void *e)
{
    const accel_device *d = accel_device_of(base);
    float ms = 0;
    if (d->api->elapsed_ms(&ms, d->clock, e) != 0)
        return clock_now_s();
    return d->clock_s + (double)ms * 1e-3;
}

/* ---- one act --------------------------------------------------------------------------------- */

static accel_watched *watched_get(accel_device *d)
{
    accel_watched *w = SLIST_FIRST(&d->spare);
    if (w != NULL) {
        SLIST_REMOVE_HEAD(&d->spare, spare);
        return w;
    }
    w = calloc(1, sizeof *w);
    if (w == NULL)
        return NULL;
    if (d->api->event_create(d, ACCEL_TIMES, &w->begin) == 0 &&
        d->api->event_create(d, ACCEL_TIMES, &w->end) == 0)
        return w;
    watched_free(d->api, w);
    return NULL;
}

accel_watched *accel_watch_begin(accel_stream *s, const device_act *act)
{
    accel_device *d = accel_device_of(s->base.device);
    if (act->token == 0)
        return NULL;
    accel_watch_tell(s);
    accel_watched *w = watched_get(d);
    if (w == NULL)
        return NULL;
    w->act = *act;
    w->self = d->base.watch.self;
    w->act.accesses = NULL; /* the caller's memory, no longer valid when the act is told */
    w->act.n_accesses = 0;
    if (d->api->event_record(w->begin, s->queue) == 0)
        return w;
    SLIST_INSERT_HEAD(&d->spare, w, spare);
    return NULL;
}

void accel_watch_end(accel_stream *s, accel_watched *w, fsdp_status status)
{
    if (w == NULL)
        return;
    if (status == FSDP_OK && accel_api_at(s)->event_record(w->end, s->queue) == 0)
        STAILQ_INSERT_TAIL(&s->watched, w, link);
    else
        SLIST_INSERT_HEAD(&accel_device_of(s->base.device)->spare, w, spare);
}

/* ---- telling --------------------------------------------------------------------------------- */

static void tell(accel_stream *s, accel_watched *w)
{
    accel_device *d = accel_device_of(s->base.device);
    const device_watch *watch = &d->base.watch;
    float ms = 0;
    if (watch->ran == NULL || watch->self != w->self || atomic_load(&d->has_error) ||
        d->api->elapsed_ms(&ms, w->begin, w->end) != 0)
        return;
    w->act.begin_s = accel_event_at_s(&d->base, w->begin);
    w->act.end_s = w->act.begin_s + (double)ms * 1e-3;
    if (w->act.begin_s < s->told_s) /* the clock was replaced in between */
        w->act.begin_s = s->told_s;
    if (w->act.end_s < w->act.begin_s)
        w->act.end_s = w->act.begin_s;
    s->told_s = w->act.end_s;
    watch->ran(watch->self, &w->act);
}

void accel_watch_tell(accel_stream *s)
{
    accel_watched *w;
    while ((w = STAILQ_FIRST(&s->watched)) != NULL) {
        const int code = accel_api_at(s)->event_look(w->end);
        if (code == ACCEL_NOT_READY)
            return;
        STAILQ_REMOVE_HEAD(&s->watched, link);
        if (code == 0)
            tell(s, w);
        SLIST_INSERT_HEAD(&accel_device_of(s->base.device)->spare, w, spare);
    }
}

void accel_watch_tell_all(accel_device *d)
{
    bool any = false;
    for (int i = 0; i < ACCEL_STREAMS; i++) {
        accel_stream *s = d->streams[i];
        if (s == NULL)
            continue;
        any = any || !STAILQ_EMPTY(&s->watched);
        accel_watch_tell(s);
    }
    if (any && clock_now_s() - d->clock_s > CLOCK_LASTS_S)
        (void)clock_take(d);
}
