/* fate.c -- errors of a device, and waits of the host.
 *
 * Errors. The library reports some errors for the whole device only, and a rank that has failed
 * ends the job. So the first error of any work is the device's: every later call on any stream
 * returns it, and launches, copies and host tasks are skipped. Kernels that were already issued
 * still run.
 *
 * Waits. The host alternates between looks and short sleeps. The library's own waits would not
 * return if a peer dies, because a native collective waits for its peers forever. */
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include "common/base/clock.h"
#include "common/accel/accel_impl.h"

/* ---- errors ---------------------------------------------------------------------------------- */

void accel_work_fail(accel_device *d)
{
    pthread_mutex_lock(&d->lock);
    if (!atomic_load(&d->has_error)) {
        d->error = *fsdp_error_get();
        atomic_store(&d->has_error, true);
    }
    pthread_mutex_unlock(&d->lock);
}

void accel_device_fail(device *base)
{
    accel_work_fail(accel_device_of(base));
    atomic_store(&accel_device_of(base)->failed, true);
}

fsdp_status accel_device_status(const accel_device *d)
{
    return atomic_load(&d->has_error) ? fsdp_error_set(&d->error) : FSDP_OK;
}

void accel_stream_recent(accel_stream *s, const char *name, const char *label)
{
    const accel_recent *last = &s->recent[(s->n_recent + ACCEL_RECENT - 1) % ACCEL_RECENT];
    accel_recent *next = &s->recent[s->n_recent % ACCEL_RECENT];
    enum { MOST = sizeof next->label - 1 };
    label = label != NULL ? label : "";
    if (s->n_recent > 0 && name == last->name && strncmp(label, last->label, MOST) == 0)
        return;
    next->name = name;
    strncpy(next->label, label, MOST); /* the last character stays 0 */
    s->n_recent++;
}

/* The device itself has failed. Such an error lasts until the process ends. */
static fsdp_status device_failed(accel_stream *s, int code)
{
    accel_device *d = accel_device_of(s->base.device);
    char failed[32];
    char list[ACCEL_RECENT * (2 * ACCEL_RECENT_CHARS + 4)] = "nothing";
    const unsigned n = s->n_recent < ACCEL_RECENT ? s->n_recent : ACCEL_RECENT;
    for (unsigned i = 0, chars = 0; i < n; i++) {
        const accel_recent *r = &s->recent[(s->n_recent - n + i) % ACCEL_RECENT];
        chars += (unsigned)snprintf(
            list + chars, sizeof list - chars, "%s%.*s%s%s", i > 0 ? ", " : "", ACCEL_RECENT_CHARS,
            r->name != NULL ? r->name : "a launch", r->label[0] != '\0' ? " " : "", r->label);
    }
    snprintf(failed, sizeof failed, "%s %d failed", d->api->word, d->base.config.index);
    const fsdp_status status = d->api->explain(code, failed);
    (void)fsdp_error(status, d->api->hint, "%s; issued last on stream '%s': %s",
                     fsdp_error_get()->what, s->base.name, list);
    accel_device_fail(&d->base);
    return accel_device_status(d);
}

fsdp_status accel_stream_check(accel_stream *s, int code, const char *what)
{
    accel_device *d = accel_device_of(s->base.device);
    if (code == 0)
        return FSDP_OK;
    (void)d->api->explain(code, what); /* queue_look may clear the library's message */
    const fsdp_error_info of_call = *fsdp_error_get();
    const int of_device = d->api->queue_look(s->queue);
    if (of_device != 0 && of_device != ACCEL_NOT_READY)
        return device_failed(s, of_device);
    fsdp_error_set(&of_call);
    accel_work_fail(d);
    return accel_device_status(d);
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

void accel_polls_run(accel_device *d)
{
    for (int i = 0; i < d->n_polls; i++)
        if (d->polls[i].poll(d->polls[i].self) != FSDP_OK)
            accel_device_fail(&d->base);
}

/* A sleep is much longer than a look, and much shorter than the wait so far: a wait of the caller
 * ends at most 20 us or 0.4 % late. Timers of a thread may fire late by its timer slack, 50 us by
 * default; so the slack is set to 1 ns. */
void accel_pause(accel_looks *l)
{
    const double SPIN_S = 20e-6, SHORTEST_S = 20e-6, LONGEST_S = 500e-6;
    const double now_s = clock_now_s();
    if (l->begin_s == 0)
        l->begin_s = now_s;
    const double since_s = now_s - l->begin_s;
    if (since_s < SPIN_S) {
        sched_yield();
        return;
    }
    double sleep_s = since_s / (l->in_background ? 16 : 256);
    sleep_s = sleep_s < SHORTEST_S ? SHORTEST_S : sleep_s > LONGEST_S ? LONGEST_S : sleep_s;
    if (l->slack_ns == 0) {
        l->slack_ns = prctl(PR_GET_TIMERSLACK);
        (void)prctl(PR_SET_TIMERSLACK, 1ul);
    }
    nanosleep(&(struct timespec){.tv_nsec = (long)(sleep_s * 1e9)}, NULL);
}

void accel_looks_end(accel_looks *l)
{
    if (l->slack_ns > 0)
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)l->slack_ns);
}

static fsdp_status look_until(accel_stream *s, void *e, accel_looks *l)
{
    accel_device *d = accel_device_of(s->base.device);
    const accel_api *api = d->api;
    for (;;) {
        if (atomic_load(&d->failed))
            return accel_device_status(d);
        const int code = e != NULL ? api->event_look(e) : api->queue_look(s->queue);
        if (code != 0 && code != ACCEL_NOT_READY)
            return device_failed(s, code);
        accel_polls_run(d); /* also when the wait is over: polled work may have ended or failed */
        if (code == ACCEL_NOT_READY)
            accel_pause(l);
        else if (!atomic_load(&d->failed))
            return api->complaints != NULL ? api->complaints(d) : FSDP_OK;
    }
}

fsdp_status accel_wait(accel_stream *s, void *e)
{
    accel_looks looks = {0};
    fsdp_status status = look_until(s, e, &looks);
    accel_looks_end(&looks);
    return status;
}
