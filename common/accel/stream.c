/* stream.c -- streams and events, which are the library's one for one, what went wrong on them, and
 * how the host waits.
 *
 * Errors. The library knows errors of the whole device only. A host task (task.c) fails alone, and
 * with it what comes after it: on its stream, and on streams that wait for an event of it. So each
 * stream and each event knows how many tasks of each stream come before it, and has failed if one
 * of these has. Kernels behind a failure are not skipped, but no call of the host says that all is
 * well.
 *
 * Waits. The host looks, sleeps a little and looks again; the library's own waits would leave no
 * time to see that a peer has died, for whom a native collective waits forever. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include "common/base/clock.h"
#include "common/accel/accel_impl.h"

/* ---- errors ---------------------------------------------------------------------------------- */

void accel_fate_fail(accel_device *d, accel_fate *fate, uint32_t at)
{
    pthread_mutex_lock(&d->lock);
    if (atomic_load(&fate->failed_at) == 0) {
        fate->error = *fsdp_error_get();
        atomic_store(&fate->failed_at, at);
    }
    pthread_mutex_unlock(&d->lock);
}

void accel_device_fail(device *base)
{
    accel_device *d = accel_device_of(base);
    pthread_mutex_lock(&d->lock);
    if (!atomic_load(&d->failed)) {
        d->error = *fsdp_error_get();
        atomic_store(&d->failed, true);
    }
    pthread_mutex_unlock(&d->lock);
}

static bool has_failed(accel_device *d, const accel_reach *reach, int i)
{
    const uint32_t at = atomic_load(&d->fates[i].failed_at);
    return at != 0 && at <= reach->tasks[i];
}

const fsdp_error_info *accel_reach_error(accel_device *d, const accel_reach *reach, int own)
{
    if (has_failed(d, reach, own))
        return &d->fates[own].error;
    for (int i = 0; i < ACCEL_STREAMS; i++)
        if (has_failed(d, reach, i))
            return &d->fates[i].error;
    return atomic_load(&d->failed) ? &d->error : NULL;
}

static fsdp_status status_of(const fsdp_error_info *error)
{
    if (error == NULL)
        return FSDP_OK;
    fsdp_error_set(error);
    return error->status;
}

fsdp_status accel_stream_status(accel_stream *s)
{
    if (s->error == NULL)
        s->error = accel_reach_error(accel_device_of(s->base.device), &s->reach, s->number);
    return status_of(s->error);
}

void accel_stream_recent(accel_stream *s, const char *name, const char *label)
{
    char text[ACCEL_RECENT_CHARS];
    snprintf(text, sizeof text, "%s%s%s", name != NULL ? name : "a launch",
             label != NULL ? " " : "", label != NULL ? label : "");
    if (s->n_recent == 0 || strcmp(text, s->recent[(s->n_recent - 1) % ACCEL_RECENT]) != 0)
        strcpy(s->recent[s->n_recent++ % ACCEL_RECENT], text);
}

/* What the device says of itself: an error of it stays until the process ends. */
static fsdp_status device_failed(accel_stream *s, int code)
{
    accel_device *d = accel_device_of(s->base.device);
    char failed[32];
    char list[ACCEL_RECENT * (ACCEL_RECENT_CHARS + 2) + 1] = "nothing";
    const unsigned n = s->n_recent < ACCEL_RECENT ? s->n_recent : ACCEL_RECENT;
    for (unsigned i = 0, chars = 0; i < n; i++)
        chars += (unsigned)snprintf(list + chars, sizeof list - chars, "%s%s", i > 0 ? ", " : "",
                                    s->recent[(s->n_recent - n + i) % ACCEL_RECENT]);
    snprintf(failed, sizeof failed, "%s %d failed", d->api->word, d->base.config.index);
    const fsdp_status status = d->api->explain(code, failed);
    (void)fsdp_error(status, d->api->hint, "%s; issued last on stream '%s': %s",
                     fsdp_error_get()->what, s->base.name, list);
    accel_device_fail(&d->base);
    return accel_stream_status(s);
}

fsdp_status accel_stream_check(accel_stream *s, int code, const char *what)
{
    accel_device *d = accel_device_of(s->base.device);
    if (code == 0)
        return FSDP_OK;
    (void)d->api->explain(code, what); /* first: a look may take the library's message */
    const fsdp_error_info of_call = *fsdp_error_get();
    const int of_device = d->api->queue_look(s->queue);
    if (of_device != 0 && of_device != ACCEL_NOT_READY)
        return device_failed(s, of_device);
    fsdp_error_set(&of_call);
    accel_fate *fate = &d->fates[s->number];
    s->reach.tasks[s->number] = ++fate->n_tasks;
    accel_fate_fail(d, fate, fate->n_tasks);
    return accel_stream_status(s);
}

/* ---- waits of the host ----------------------------------------------------------------------- */

fsdp_status accel_device_set_poll(device *base, fsdp_status (*poll)(void *self), void *self)
{
    accel_device *d = accel_device_of(base);
    if (poll == NULL) {
        for (int i = 0; i < d->n_polls; i++)
            if (d->polls[i].self == self)
                d->polls[i--] = d->polls[--d->n_polls];
        return FSDP_OK;
    }
    if (d->n_polls == ACCEL_POLLS)
        return fsdp_error(FSDP_ENOMEM, "", "device: more than %d polls", ACCEL_POLLS);
    d->polls[d->n_polls++] = (accel_poll){poll, self};
    return FSDP_OK;
}

static void poll_all(accel_device *d)
{
    for (int i = 0; i < d->n_polls; i++)
        if (d->polls[i].poll(d->polls[i].self) != FSDP_OK)
            accel_device_fail(&d->base);
}

/* Sleeps are short against a step, and long against a look. A thread's timers may be late by its
 * slack, 50 us unless it says otherwise: *slack_ns is what it had before, once it has slept. */
static void pause_between_looks(double begin_s, int *slack_ns)
{
    const double SPIN_S = 20e-6;
    if (clock_now_s() - begin_s < SPIN_S) {
        sched_yield();
        return;
    }
    if (*slack_ns == 0) {
        *slack_ns = prctl(PR_GET_TIMERSLACK);
        (void)prctl(PR_SET_TIMERSLACK, 1ul);
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static fsdp_status look_until(accel_stream *s, void *e, int *slack_ns)
{
    accel_device *d = accel_device_of(s->base.device);
    const accel_api *api = d->api;
    const double begin_s = clock_now_s();
    for (;;) {
        if (atomic_load(&d->failed))
            return status_of(&d->error);
        const int code = e != NULL ? api->event_look(e) : api->queue_look(s->queue);
        if (code != 0 && code != ACCEL_NOT_READY)
            return device_failed(s, code);
        poll_all(d); /* once more when it has come: they may find that what they watch has ended */
        if (code == ACCEL_NOT_READY)
            pause_between_looks(begin_s, slack_ns);
        else if (!atomic_load(&d->failed)) {
            accel_memory_look(d);
            return api->complaints != NULL ? api->complaints(d) : FSDP_OK;
        }
    }
}

fsdp_status accel_wait(accel_stream *s, void *e)
{
    int slack_ns = 0;
    fsdp_status status = look_until(s, e, &slack_ns);
    if (slack_ns > 0)
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns);
    return status;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* A number for s; the first stream of a device gets 0. */
static bool number_take(accel_device *d, accel_stream *s)
{
    for (int i = 0; i < ACCEL_STREAMS; i++) {
        accel_fate *fate = &d->fates[i];
        if (fate->stream != NULL || atomic_load(&fate->failed_at) != 0)
            continue;
        fate->stream = s;
        s->number = i;
        return true;
    }
    return false;
}

fsdp_status accel_stream_create(device *base, const stream_config *config, stream **out)
{
    accel_device *d = accel_device_of(base);
    accel_stream *s = calloc(1, sizeof *s);
    if (s == NULL || !number_take(d, s)) {
        free(s);
        return fsdp_error(FSDP_ENOMEM, "", "stream_create: no room for '%s'", config->name);
    }
    s->base = (stream){.device = base, .n_threads = config->n_threads > 0 ? config->n_threads : 1};
    snprintf(s->base.name, sizeof s->base.name, "%s", config->name);
    STAILQ_INIT(&s->watched);
    fsdp_status status =
        d->api->explain(d->api->queue_create(d, config->priority, &s->queue), "stream_create");
    if (status == FSDP_OK) {
        *out = &s->base;
        return FSDP_OK;
    }
    d->fates[s->number].stream = NULL;
    free(s);
    return status;
}

fsdp_status accel_stream_sync(stream *base)
{
    accel_stream *s = accel_stream_at(base);
    (void)accel_wait(s, NULL);
    accel_watch_tell_all(accel_device_of(base->device));
    return accel_stream_status(s);
}

/* A queue that has work after all is one of a device that has failed: a call that no peer will join
 * may stand there, for which a library would wait. It is left to the system. */
void accel_stream_free(stream *base)
{
    accel_stream *s = accel_stream_at(base);
    (void)accel_wait(s, NULL);
    accel_watch_tell(s);
    accel_api_at(s)->tasks_end(s);
    if (s->tasks == NULL && accel_api_at(s)->queue_look(s->queue) != ACCEL_NOT_READY)
        (void)accel_api_at(s)->queue_destroy(s->queue);
    accel_device_of(base->device)->fates[s->number].stream = NULL;
    free(s);
}

/* ---- events ---------------------------------------------------------------------------------- */

fsdp_status accel_event_create(device *base, bool timed, event **out)
{
    accel_device *d = accel_device_of(base);
    accel_event *e = calloc(1, sizeof *e);
    if (e == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "event_create: no memory for an event");
    e->base = (event){.device = base, .timed = timed};
    fsdp_status status = d->api->explain(
        d->api->event_create(d, timed ? ACCEL_TIMES : ACCEL_ORDERS, &e->handle), "event_create");
    if (status == FSDP_OK)
        *out = &e->base;
    else
        free(e);
    return status;
}

void accel_event_free(event *base)
{
    (void)accel_api_of(base->device)->event_destroy(((accel_event *)base)->handle);
    free(base);
}

fsdp_status accel_event_record(event *base, stream *on)
{
    accel_event *e = (accel_event *)base;
    accel_stream *s = accel_stream_at(on);
    TRY(accel_stream_check(s, accel_api_at(s)->event_record(e->handle, s->queue), "event_record"));
    e->recorded = true;
    e->reach = s->reach;
    return accel_stream_status(s);
}

static void reach_add(accel_reach *to, const accel_reach *more)
{
    for (int i = 0; i < ACCEL_STREAMS; i++)
        if (to->tasks[i] < more->tasks[i])
            to->tasks[i] = more->tasks[i];
}

fsdp_status accel_stream_wait_event(stream *on, event *base, const device_act *act)
{
    accel_event *e = (accel_event *)base;
    accel_stream *s = accel_stream_at(on);
    if (!e->recorded)
        return accel_stream_status(s);
    (void)accel_stream_status(s); /* its own error is the first */
    accel_watched *watched = accel_watch_begin(s, act);
    fsdp_status status = accel_stream_check(s, accel_api_at(s)->queue_wait(s->queue, e->handle),
                                            "stream_wait_event");
    reach_add(&s->reach, &e->reach);
    accel_watch_end(s, watched, status);
    return accel_stream_status(s);
}

fsdp_status accel_event_sync(event *base)
{
    accel_event *e = (accel_event *)base;
    accel_device *d = accel_device_of(base->device);
    (void)accel_wait(accel_stream_at(d->base.compute), e->handle);
    accel_watch_tell_all(d);
    return status_of(accel_reach_error(d, &e->reach, 0));
}

/* Where the device is lost all is over: who asks until it is must come to an end. */
bool accel_event_done(event *base)
{
    accel_device *d = accel_device_of(base->device);
    const int code = d->api->event_look(((accel_event *)base)->handle);
    if (code == ACCEL_NOT_READY)
        poll_all(d);
    return code != ACCEL_NOT_READY || atomic_load(&d->failed);
}

static fsdp_status expect_reached(const accel_event *e, const char *which)
{
    if (e->recorded && accel_api_of(e->base.device)->event_look(e->handle) == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_ESTATE, "record both, then event_sync the second",
                      "event_elapsed_s: the %s event has not been reached", which);
}

fsdp_status accel_event_elapsed_s(event *begin, event *end, double *out)
{
    const accel_event *from = (accel_event *)begin, *to = (accel_event *)end;
    float ms = 0;
    TRY(expect_reached(from, "first"));
    TRY(expect_reached(to, "second"));
    const accel_api *api = accel_api_of(end->device);
    TRY(api->explain(api->elapsed_ms(&ms, from->handle, to->handle), "event_elapsed_s"));
    *out = (double)ms * 1e-3;
    return FSDP_OK;
}
