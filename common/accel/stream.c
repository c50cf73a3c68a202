/* stream.c -- streams and events; each wraps one queue or event of the library. Errors: fate.c. */
#include <stdlib.h>
#include "common/accel/accel_impl.h"

/* ---- streams --------------------------------------------------------------------------------- */

/* Give s a number. The first stream of a device gets 0. */
static bool number_take(accel_device *d, accel_stream *s)
{
    for (int i = 0; i < ACCEL_STREAMS; i++) {
        if (d->streams[i] != NULL)
            continue;
        d->streams[i] = s;
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
    stream_init(&s->base, base, config);
    STAILQ_INIT(&s->watched);
    TAILQ_INIT(&s->leaving);
    TAILQ_INIT(&s->free_blocks);
    fsdp_status status =
        d->api->explain(d->api->queue_create(d, config->priority, &s->queue), "stream_create");
    if (status == FSDP_OK) {
        *out = &s->base;
        return FSDP_OK;
    }
    d->streams[s->number] = NULL;
    free(s);
    return status;
}

fsdp_status accel_stream_sync(stream *base)
{
    accel_stream *s = accel_stream_at(base);
    (void)accel_wait(s, NULL);
    accel_memory_look(accel_device_of(base->device));
    accel_watch_tell_all(accel_device_of(base->device));
    return accel_device_status(accel_device_of(base->device));
}

/* If work is still queued after the wait, the device has failed. The work may be a collective that
 * no peer will join, and destroying the queue could wait for it. So the queue is leaked. */
void accel_stream_free(stream *base)
{
    accel_stream *s = accel_stream_at(base);
    accel_free_blocks_end(s);
    (void)accel_wait(s, NULL);
    accel_memory_look(accel_device_of(base->device));
    accel_watch_tell(s);
    accel_api_at(s)->tasks_end(s);
    if (s->tasks == NULL && accel_api_at(s)->queue_look(s->queue) != ACCEL_NOT_READY)
        (void)accel_api_at(s)->queue_destroy(s->queue);
    accel_device_of(base->device)->streams[s->number] = NULL;
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
    (void)accel_device_of(base->device)->api->event_destroy(((accel_event *)base)->handle);
    free(base);
}

fsdp_status accel_event_record(event *base, stream *on)
{
    accel_event *e = (accel_event *)base;
    accel_stream *s = accel_stream_at(on);
    TRY(accel_stream_check(s, accel_api_at(s)->event_record(e->handle, s->queue), "event_record"));
    e->recorded = true;
    return accel_device_status(accel_device_of(on->device));
}

fsdp_status accel_stream_wait_event(stream *on, event *base, const device_act *act)
{
    accel_event *e = (accel_event *)base;
    accel_stream *s = accel_stream_at(on);
    if (!e->recorded)
        return accel_device_status(accel_device_of(base->device));
    accel_watched *watched = accel_watch_begin(s, act);
    fsdp_status status = accel_stream_check(s, accel_api_at(s)->queue_wait(s->queue, e->handle),
                                            "stream_wait_event");
    accel_watch_end(s, watched, status);
    return accel_device_status(accel_device_of(base->device));
}

fsdp_status accel_event_sync(event *base)
{
    accel_event *e = (accel_event *)base;
    accel_device *d = accel_device_of(base->device);
    (void)accel_wait(accel_stream_at(d->base.compute), e->handle);
    accel_memory_look(d);
    accel_watch_tell_all(d);
    return accel_device_status(d);
}

/* Also returns true if the device has failed, so that a caller that polls does not poll forever. */
bool accel_event_done(event *base)
{
    accel_device *d = accel_device_of(base->device);
    const int code = d->api->event_look(((accel_event *)base)->handle);
    if (code == ACCEL_NOT_READY)
        accel_polls_run(d);
    return code != ACCEL_NOT_READY || atomic_load(&d->failed);
}

static fsdp_status expect_reached(const accel_event *e, const char *which)
{
    if (e->recorded && accel_device_of(e->base.device)->api->event_look(e->handle) == 0)
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
    const accel_api *api = accel_device_of(end->device)->api;
    TRY(api->explain(api->elapsed_ms(&ms, from->handle, to->handle), "event_elapsed_s"));
    *out = (double)ms * 1e-3;
    return FSDP_OK;
}
