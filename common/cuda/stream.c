/* stream.c -- streams and events, which are CUDA's one for one, what went wrong on them, and how
 * the host waits.
 *
 * Errors. CUDA knows errors of the whole GPU only. A host task (host_task.c) fails alone, and with
 * it what comes after it: on its stream, and on streams that wait for an event of it. So each
 * stream and each event knows how many tasks of each stream come before it, and has failed if one
 * of these has. Kernels behind a failure are not skipped, but no call of the host says that all is
 * well.
 *
 * Waits. The host looks, sleeps a little and looks again; cudaEventSynchronize would leave no time
 * to see that a peer has died, for whom a collective of NCCL waits forever.
 *
 * [CUDA cudaStreamCreateWithPriority, cudaEventRecord, cudaEventQuery] */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/base/clock.h"
#include "common/cuda/complaint.h"
#include "common/cuda/cuda_impl.h"

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *hint_for(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "use a smaller --batch-size, --seq-len or model";
    case cudaErrorNoKernelImageForDevice:
        return "build the plug-in for this GPU too: make cuda CUDA_ARCHS=...";
    default:
        return "";
    }
}

fsdp_status cuda_status(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return FSDP_OK;
    return fsdp_error(error == cudaErrorMemoryAllocation ? FSDP_ENOMEM : FSDP_EDEVICE,
                      hint_for(error), "%s: %s (%s)", what, cudaGetErrorString(error),
                      cudaGetErrorName(error));
}

void cuda_fate_fail(cuda_device *d, cuda_fate *fate, uint32_t at)
{
    pthread_mutex_lock(&d->lock);
    if (atomic_load(&fate->failed_at) == 0) {
        fate->error = *fsdp_error_get();
        atomic_store(&fate->failed_at, at);
    }
    pthread_mutex_unlock(&d->lock);
}

void cuda_device_fail(cuda_device *d)
{
    pthread_mutex_lock(&d->lock);
    if (!atomic_load(&d->failed)) {
        d->error = *fsdp_error_get();
        atomic_store(&d->failed, true);
    }
    pthread_mutex_unlock(&d->lock);
}

static bool has_failed(cuda_device *d, const cuda_reach *reach, int i)
{
    const uint32_t at = atomic_load(&d->fates[i].failed_at);
    return at != 0 && at <= reach->tasks[i];
}

const fsdp_error_info *cuda_reach_error(cuda_device *d, const cuda_reach *reach, int own)
{
    if (has_failed(d, reach, own))
        return &d->fates[own].error;
    for (int i = 0; i < CUDA_STREAMS; i++)
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

fsdp_status cuda_stream_status(cuda_stream *s)
{
    if (s->error == NULL)
        s->error = cuda_reach_error(cuda_device_of(s->base.device), &s->reach, s->number);
    return status_of(s->error);
}

void cuda_stream_recent(cuda_stream *s, const char *name, const char *label)
{
    char text[CUDA_RECENT_CHARS];
    snprintf(text, sizeof text, "%s%s%s", name != NULL ? name : "a launch",
             label != NULL ? " " : "", label != NULL ? label : "");
    if (s->n_recent == 0 || strcmp(text, s->recent[(s->n_recent - 1) % CUDA_RECENT]) != 0)
        strcpy(s->recent[s->n_recent++ % CUDA_RECENT], text);
}

/* What the GPU says of itself: an error of it stays until the process ends. */
static fsdp_status gpu_failed(cuda_stream *s, cudaError_t error)
{
    char list[CUDA_RECENT * (CUDA_RECENT_CHARS + 2) + 1] = "nothing";
    const unsigned n = s->n_recent < CUDA_RECENT ? s->n_recent : CUDA_RECENT;
    for (unsigned i = 0, chars = 0; i < n; i++)
        chars += (unsigned)snprintf(list + chars, sizeof list - chars, "%s%s", i > 0 ? ", " : "",
                                    s->recent[(s->n_recent - n + i) % CUDA_RECENT]);
    (void)fsdp_error(FSDP_EDEVICE,
                     "compute-sanitizer names the kernel and its access; --check-order finds a "
                     "missing wait between streams",
                     "GPU %d failed: %s (%s); issued last on stream '%s': %s",
                     s->base.device->config.index, cudaGetErrorString(error),
                     cudaGetErrorName(error), s->base.name, list);
    cuda_device_fail(cuda_device_of(s->base.device));
    return cuda_stream_status(s);
}

/* cudaErrorNotReady is no error, but CUDA keeps it as the last one, which the next launch would
 * find. */
cudaError_t cuda_look(cudaStream_t handle, cudaEvent_t e)
{
    const cudaError_t error = e != NULL ? cudaEventQuery(e) : cudaStreamQuery(handle);
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError();
    return error;
}

fsdp_status cuda_stream_check(cuda_stream *s, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return FSDP_OK;
    (void)cudaGetLastError();
    const cudaError_t of_gpu = cuda_look(s->handle, NULL);
    if (of_gpu != cudaSuccess && of_gpu != cudaErrorNotReady)
        return gpu_failed(s, of_gpu);
    (void)cuda_status(error, what);
    cuda_device *d = cuda_device_of(s->base.device);
    cuda_fate *fate = &d->fates[s->number];
    s->reach.tasks[s->number] = ++fate->n_tasks;
    cuda_fate_fail(d, fate, fate->n_tasks);
    return cuda_stream_status(s);
}

/* ---- waits of the host ----------------------------------------------------------------------- */

fsdp_status cuda_device_set_poll(device *base, fsdp_status (*poll)(void *self), void *self)
{
    cuda_device *d = cuda_device_of(base);
    if (poll == NULL) {
        for (int i = 0; i < d->n_polls; i++)
            if (d->polls[i].self == self)
                d->polls[i--] = d->polls[--d->n_polls];
        return FSDP_OK;
    }
    if (d->n_polls == CUDA_POLLS)
        return fsdp_error(FSDP_ENOMEM, "", "device: more than %d polls", CUDA_POLLS);
    d->polls[d->n_polls++] = (cuda_poll){poll, self};
    return FSDP_OK;
}

static void poll_all(cuda_device *d)
{
    for (int i = 0; i < d->n_polls; i++)
        if (d->polls[i].poll(d->polls[i].self) != FSDP_OK)
            cuda_device_fail(d);
}

/* Sleeps are short against a step, and long against a look. */
static void pause_between_looks(double begin_s)
{
    const double SPIN_S = 20e-6;
    if (clock_now_s() - begin_s < SPIN_S)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

fsdp_status cuda_wait(cuda_stream *s, cudaEvent_t e)
{
    cuda_device *d = cuda_device_of(s->base.device);
    const double begin_s = clock_now_s();
    for (;;) {
        if (atomic_load(&d->failed))
            return status_of(&d->error);
        const cudaError_t error = cuda_look(s->handle, e);
        if (error != cudaSuccess && error != cudaErrorNotReady)
            return gpu_failed(s, error);
        poll_all(d); /* once more when it has come: they may find that what they watch has ended */
        if (error == cudaErrorNotReady)
            pause_between_looks(begin_s);
        else if (!atomic_load(&d->failed)) {
            cuda_memory_look(d);
            return cuda_complaints(&d->base);
        }
    }
}

/* ---- streams --------------------------------------------------------------------------------- */

/* A number for s; the first stream of a device gets 0. */
static bool number_take(cuda_device *d, cuda_stream *s)
{
    for (int i = 0; i < CUDA_STREAMS; i++) {
        cuda_fate *fate = &d->fates[i];
        if (fate->stream != NULL || atomic_load(&fate->failed_at) != 0)
            continue;
        fate->stream = s;
        s->number = i;
        return true;
    }
    return false;
}

fsdp_status cuda_stream_create(device *d, const stream_config *config, stream **out)
{
    int least, greatest;
    TRY(cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities"));
    cuda_stream *s = calloc(1, sizeof *s);
    if (s == NULL || !number_take(cuda_device_of(d), s)) {
        free(s);
        return fsdp_error(FSDP_ENOMEM, "", "stream_create: no room for '%s'", config->name);
    }
    s->base = (stream){.device = d, .n_threads = config->n_threads > 0 ? config->n_threads : 1};
    snprintf(s->base.name, sizeof s->base.name, "%s", config->name);
    STAILQ_INIT(&s->watched);
    int priority = -config->priority; /* CUDA's go the other way */
    priority = priority > least ? least : priority < greatest ? greatest : priority;
    fsdp_status status = cuda_status(
        cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking, priority), "stream_create");
    if (status == FSDP_OK) {
        *out = &s->base;
        return FSDP_OK;
    }
    cuda_device_of(d)->fates[s->number].stream = NULL;
    free(s);
    return status;
}

fsdp_status cuda_stream_sync(stream *base)
{
    cuda_stream *s = cuda_stream_at(base);
    (void)cuda_wait(s, NULL);
    cuda_watch_tell_all(cuda_device_of(base->device));
    return cuda_stream_status(s);
}

void cuda_stream_free(stream *base)
{
    cuda_stream *s = cuda_stream_at(base);
    (void)cuda_wait(s, NULL);
    cuda_watch_tell(s);
    cuda_worker_free(s);
    (void)cudaStreamDestroy(s->handle);
    cuda_device_of(base->device)->fates[s->number].stream = NULL;
    free(s);
}

/* ---- events ---------------------------------------------------------------------------------- */

fsdp_status cuda_event_create(device *d, bool timed, event **out)
{
    cuda_event *e = calloc(1, sizeof *e);
    if (e == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "event_create: no memory for an event");
    e->base = (event){.device = d, .timed = timed};
    fsdp_status status = cuda_status(
        cudaEventCreateWithFlags(&e->handle, timed ? cudaEventDefault : cudaEventDisableTiming),
        "event_create");
    if (status == FSDP_OK)
        *out = &e->base;
    else
        free(e);
    return status;
}

void cuda_event_free(event *base)
{
    (void)cudaEventDestroy(((cuda_event *)base)->handle);
    free(base);
}

fsdp_status cuda_event_record(event *base, stream *on)
{
    cuda_event *e = (cuda_event *)base;
    cuda_stream *s = cuda_stream_at(on);
    TRY(cuda_stream_check(s, cudaEventRecord(e->handle, s->handle), "event_record"));
    e->recorded = true;
    e->reach = s->reach;
    return cuda_stream_status(s);
}

static void reach_add(cuda_reach *to, const cuda_reach *more)
{
    for (int i = 0; i < CUDA_STREAMS; i++)
        if (to->tasks[i] < more->tasks[i])
            to->tasks[i] = more->tasks[i];
}

fsdp_status cuda_stream_wait_event(stream *on, event *base, const device_act *act)
{
    cuda_event *e = (cuda_event *)base;
    cuda_stream *s = cuda_stream_at(on);
    if (!e->recorded)
        return cuda_stream_status(s);
    (void)cuda_stream_status(s); /* its own error is the first */
    cuda_watched *watched = cuda_watch_begin(s, act);
    fsdp_status status =
        cuda_stream_check(s, cudaStreamWaitEvent(s->handle, e->handle, 0), "stream_wait_event");
    reach_add(&s->reach, &e->reach);
    cuda_watch_end(s, watched, status);
    return cuda_stream_status(s);
}

fsdp_status cuda_event_sync(event *base)
{
    cuda_event *e = (cuda_event *)base;
    cuda_device *d = cuda_device_of(base->device);
    (void)cuda_wait(cuda_stream_at(d->base.compute), e->handle);
    cuda_watch_tell_all(d);
    return status_of(cuda_reach_error(d, &e->reach, 0));
}

/* Where the GPU is lost all is over: who asks until it is must come to an end. */
bool cuda_event_done(event *base)
{
    cuda_device *d = cuda_device_of(base->device);
    const cudaError_t error = cuda_look(NULL, ((cuda_event *)base)->handle);
    if (error == cudaErrorNotReady)
        poll_all(d);
    return error != cudaErrorNotReady || atomic_load(&d->failed);
}

static fsdp_status expect_reached(const cuda_event *e, const char *which)
{
    if (e->recorded && cuda_look(NULL, e->handle) == cudaSuccess)
        return FSDP_OK;
    return fsdp_error(FSDP_ESTATE, "record both, then event_sync the second",
                      "event_elapsed_s: the %s event has not been reached", which);
}

fsdp_status cuda_event_elapsed_s(event *begin, event *end, double *out)
{
    const cuda_event *from = (cuda_event *)begin, *to = (cuda_event *)end;
    float ms = 0;
    TRY(expect_reached(from, "first"));
    TRY(expect_reached(to, "second"));
    TRY(cuda_status(cudaEventElapsedTime(&ms, from->handle, to->handle), "event_elapsed_s"));
    *out = (double)ms * 1e-3;
    return FSDP_OK;
}
