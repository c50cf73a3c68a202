/* accel_device.c -- an accelerator as a device of device.h: opening it, and launches. */
#include "common/accel/accel_impl.h"

const accel_api *accel_api_of(const device *d)
{
    return ((const accel_device *)d)->api;
}

void *accel_own(const device *d)
{
    return ((const accel_device *)d)->own;
}

void *accel_queue_of(stream *s)
{
    return accel_stream_at(s)->queue;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* If l->issues, fn issues device work and is called now. Otherwise fn becomes a host task. */
fsdp_status accel_launch(stream *base, const launch_config *l, const device_act *act)
{
    accel_stream *s = accel_stream_at(base);
    TRY(accel_device_status(accel_device_of(base->device)));
    accel_stream_recent(s, l->work.key.name != NULL ? l->work.key.name : l->name, l->label);
    accel_watched *watched = accel_watch_begin(s, act);
    fsdp_status status = l->issues ? l->fn((void *)(uintptr_t)l->args, base->n_threads)
                                   : accel_host_task(s, l->fn, l->args, l->args_bytes);
    accel_watch_end(s, watched, status);
    return status;
}

typedef struct issue_args {
    stream *s;
    accel_issue_fn fn;
    const void *args;
} issue_args;

static fsdp_status issue_now(void *args, int n_threads)
{
    const issue_args *a = args;
    (void)n_threads;
    return a->fn(a->s, a->args);
}

fsdp_status accel_issue_as(stream *s, accel_issue_fn fn, const void *args,
                           const launch_config *what)
{
    const issue_args a = {s, fn, args};
    launch_config l = *what;
    l.fn = issue_now;
    l.args = &a;
    l.args_bytes = sizeof a;
    l.issues = true;
    return stream_launch_work(s, &l);
}

fsdp_status accel_issue(stream *s, accel_issue_fn fn, const void *args, op_work work)
{
    return work.ends ? work.status
                     : accel_issue_as(s, fn, args,
                                      &(launch_config){.work = work.info,
                                                       .accesses = work.accesses,
                                                       .n_accesses = work.n_accesses});
}

/* ---- device ---------------------------------------------------------------------------------- */

void accel_close(device *base)
{
    accel_device *d = accel_device_of(base);
    for (int i = ACCEL_STREAMS - 1; i >= 0; i--)
        if (d->streams[i] != NULL)
            accel_stream_free(&d->streams[i]->base);
    accel_memory_close(d);
    accel_watch_close(d);
    d->api->close(d);
    pthread_mutex_destroy(&d->lock);
    device_delete(base);
}

static fsdp_status parts_open(accel_device *d)
{
    const stream_config compute = {.name = "compute", .n_threads = d->base.config.n_threads};
    TRY(d->api->open(d, &d->own));
    TRY(accel_watch_open(d));
    return accel_stream_create(&d->base, &compute, &d->base.compute);
}

fsdp_status accel_open(const accel_api *api, const device_config *config, device **out)
{
    accel_device *d = device_new(config, sizeof *d);
    if (d == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_open: no memory");
    d->api = api;
    TAILQ_INIT(&d->kept);
    TAILQ_INIT(&d->idle);
    pthread_mutex_init(&d->lock, NULL);
    fsdp_status status = parts_open(d);
    if (status == FSDP_OK)
        *out = &d->base;
    else
        accel_close(&d->base);
    return status;
}
