/* watch.c -- when work of a GPU began and ended, for a watch of the device.
 *
 *   cuda_watch_begin -> the work is issued -> cuda_watch_end        two timed events around it
 *   cuda_watch_tell, at a later call: what is over is told, in order of the stream
 *
 * Nobody waits for these events: a sync finds that all is over. CUDA gives the time between two
 * events. One event, `clock`, was reached at a known time of the host; the others are told by their
 * distance from it. That is a float of milliseconds, and clocks drift: so it is taken anew at a
 * sync when it is some seconds old. It stands on a stream of its own, which is idle.
 *
 * [CUDA cudaEventElapsedTime] */
#include <stdlib.h>
#include "common/base/clock.h"
#include "common/cuda/cuda_impl.h"

static const double CLOCK_LASTS_S = 2, CLOCK_WITHIN_S = 100e-6, CLOCK_FIRST_S = 10;

struct cuda_watched {
    STAILQ_ENTRY(cuda_watched) link;
    SLIST_ENTRY(cuda_watched) spare;
    device_act act;
    const void *self; /* of the watch that knows act.token */
    cuda_reach reach; /* what it depends on: what failed has not run */
    cudaEvent_t begin, end;
};

/* ---- the clock ------------------------------------------------------------------------------- */

/* Whether `e`, recorded now on an idle stream, was reached within patience_s, and *at_s when. */
static bool clock_read(cudaStream_t idle, cudaEvent_t e, double patience_s, double *at_s)
{
    const double begin_s = clock_now_s();
    cudaError_t error = cudaEventRecord(e, idle);
    if (error != cudaSuccess)
        return false;
    do {
        error = cuda_look(NULL, e);
        *at_s = clock_now_s();
    } while (error == cudaErrorNotReady && *at_s - begin_s < patience_s);
    return error == cudaSuccess;
}

/* Take the clock anew. An event that takes long tells nothing, so then the old one stays. */
static void clock_take(cuda_device *d)
{
    const double patience_s = d->clock != NULL ? CLOCK_WITHIN_S : CLOCK_FIRST_S;
    cudaEvent_t e, unused;
    double at_s;
    if (cudaEventCreateWithFlags(&e, cudaEventDefault) != cudaSuccess)
        return;
    unused = e;
    if (clock_read(d->clock_stream, e, patience_s, &at_s)) {
        unused = d->clock;
        d->clock = e;
        d->clock_s = at_s;
    }
    if (unused != NULL)
        (void)cudaEventDestroy(unused);
}

fsdp_status cuda_watch_open(cuda_device *d)
{
    TRY(cuda_status(cudaStreamCreateWithPriority(&d->clock_stream, cudaStreamNonBlocking, 0),
                    "device_open"));
    clock_take(d);
    return d->clock != NULL ? FSDP_OK : cuda_status(cudaErrorUnknown, "device_open: no clock");
}

static void watched_free(cuda_watched *w)
{
    if (w->begin != NULL)
        (void)cudaEventDestroy(w->begin);
    if (w->end != NULL)
        (void)cudaEventDestroy(w->end);
    free(w);
}

void cuda_watch_close(cuda_device *d)
{
    cuda_watched *w;
    while ((w = SLIST_FIRST(&d->spare)) != NULL) {
        SLIST_REMOVE_HEAD(&d->spare, spare);
        watched_free(w);
    }
    if (d->clock != NULL)
        (void)cudaEventDestroy(d->clock);
    if (d->clock_stream != NULL)
        (void)cudaStreamDestroy(d->clock_stream);
}

double cuda_event_at_s(const cuda_device *d, cudaEvent_t e)
{
    float ms = 0;
    if (cudaEventElapsedTime(&ms, d->clock, e) != cudaSuccess)
        return clock_now_s();
    return d->clock_s + (double)ms * 1e-3;
}

/* ---- one act --------------------------------------------------------------------------------- */

static cuda_watched *watched_get(cuda_device *d)
{
    cuda_watched *w = SLIST_FIRST(&d->spare);
    if (w != NULL) {
        SLIST_REMOVE_HEAD(&d->spare, spare);
        return w;
    }
    w = calloc(1, sizeof *w);
    if (w == NULL)
        return NULL;
    if (cudaEventCreateWithFlags(&w->begin, cudaEventDefault) == cudaSuccess &&
        cudaEventCreateWithFlags(&w->end, cudaEventDefault) == cudaSuccess)
        return w;
    watched_free(w);
    return NULL;
}

cuda_watched *cuda_watch_begin(cuda_stream *s, const device_act *act)
{
    cuda_device *d = cuda_device_of(s->base.device);
    if (act->token == 0)
        return NULL;
    cuda_watch_tell(s);
    cuda_watched *w = watched_get(d);
    if (w == NULL)
        return NULL;
    w->act = *act;
    w->self = d->base.watch.self;
    w->act.accesses = NULL; /* the caller's, gone by then */
    w->act.n_accesses = 0;
    if (cudaEventRecord(w->begin, s->handle) == cudaSuccess)
        return w;
    SLIST_INSERT_HEAD(&d->spare, w, spare);
    return NULL;
}

void cuda_watch_end(cuda_stream *s, cuda_watched *w, fsdp_status status)
{
    if (w == NULL)
        return;
    w->reach = s->reach;
    if (status == FSDP_OK && cudaEventRecord(w->end, s->handle) == cudaSuccess)
        STAILQ_INSERT_TAIL(&s->watched, w, link);
    else
        SLIST_INSERT_HEAD(&cuda_device_of(s->base.device)->spare, w, spare);
}

/* ---- telling --------------------------------------------------------------------------------- */

static void tell(cuda_stream *s, cuda_watched *w)
{
    cuda_device *d = cuda_device_of(s->base.device);
    const device_watch *watch = &d->base.watch;
    float ms = 0;
    if (watch->ran == NULL || watch->self != w->self ||
        cuda_reach_error(d, &w->reach, s->number) != NULL ||
        cudaEventElapsedTime(&ms, w->begin, w->end) != cudaSuccess)
        return;
    w->act.begin_s = cuda_event_at_s(d, w->begin);
    w->act.end_s = w->act.begin_s + (double)ms * 1e-3;
    if (w->act.begin_s < s->told_s) /* the clock was taken anew in between */
        w->act.begin_s = s->told_s;
    if (w->act.end_s < w->act.begin_s)
        w->act.end_s = w->act.begin_s;
    s->told_s = w->act.end_s;
    watch->ran(watch->self, &w->act);
}

void cuda_watch_tell(cuda_stream *s)
{
    cuda_watched *w;
    while ((w = STAILQ_FIRST(&s->watched)) != NULL) {
        const cudaError_t error = cuda_look(NULL, w->end);
        if (error == cudaErrorNotReady)
            return;
        STAILQ_REMOVE_HEAD(&s->watched, link);
        if (error == cudaSuccess)
            tell(s, w);
        SLIST_INSERT_HEAD(&cuda_device_of(s->base.device)->spare, w, spare);
    }
}

void cuda_watch_tell_all(cuda_device *d)
{
    bool any = false;
    for (int i = 0; i < CUDA_STREAMS; i++) {
        cuda_stream *s = d->fates[i].stream;
        if (s == NULL)
            continue;
        any = any || !STAILQ_EMPTY(&s->watched);
        cuda_watch_tell(s);
    }
    if (any && clock_now_s() - d->clock_s > CLOCK_LASTS_S)
        clock_take(d);
}
