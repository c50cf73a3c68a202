/* cpu_event.c -- events of the CPU backend.
 *
 * An event holds a *capture*: "all work issued on stream s up to this point". event_record makes a
 * new capture and queues it on s like any task; it is complete when the worker reaches it. A wait
 * takes a reference to the capture that the event holds at that moment, so recording or freeing the
 * event later does not change the wait [CUDA cudaStreamWaitEvent]. A stream can only wait for a
 * capture that was queued before. So every wait is for older work, and a cycle of waits (a
 * deadlock) cannot arise. */
#include <stdlib.h>
#include "common/base/clock.h"
#include "common/base/recycle.h"
#include "common/device/cpu_impl.h"

/* ---- captures ------------------------------------------------------------------------------- */
typedef struct capture {
    cpu_task task;   /* its place in the producer's queue */
    atomic_int refs; /* the event, the queue entry, and each wait */
    pthread_mutex_t lock;
    pthread_cond_t reached;
    bool done, failed, timed;
    double reached_s;      /* valid when timed and done */
    fsdp_error_info error; /* valid when failed */
} capture;

typedef struct cpu_event {
    event base;
    pthread_mutex_t lock;
    capture *current; /* NULL: never recorded */
} cpu_event;

static void capture_put(capture *c)
{
    if (!c || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) > 1)
        return;
    pthread_cond_destroy(&c->reached);
    pthread_mutex_destroy(&c->lock);
    recycle_put(c);
}

/* The producer's worker has reached the capture. */
static void capture_run(cpu_stream *s, cpu_task *task)
{
    capture *c = (capture *)task;
    pthread_mutex_lock(&c->lock);
    if (cpu_stream_failed(s)) {
        c->failed = true;
        c->error = s->error;
    }
    c->done = true;
    c->reached_s = c->timed ? clock_now_s() : 0;
    pthread_cond_broadcast(&c->reached);
    pthread_mutex_unlock(&c->lock);
    capture_put(c);
}

static const cpu_task_kind CAPTURE = {.run = capture_run};

static capture *capture_new(bool timed)
{
    capture *c = recycle_get(sizeof *c);
    if (!c)
        return NULL;
    c->task.kind = &CAPTURE;
    atomic_init(&c->refs, 2); /* the event and the queue entry */
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->reached, NULL);
    c->done = c->failed = false;
    c->timed = timed;
    return c;
}

/* A capture that is done never changes again. */
static bool capture_done(capture *c)
{
    pthread_mutex_lock(&c->lock);
    bool done = c->done;
    pthread_mutex_unlock(&c->lock);
    return done;
}

/* Sleep until c is reached. Returns false if its stream had failed; c->error is then the error. */
static bool capture_wait(capture *c)
{
    pthread_mutex_lock(&c->lock);
    while (!c->done)
        pthread_cond_wait(&c->reached, &c->lock);
    bool failed = c->failed;
    pthread_mutex_unlock(&c->lock);
    return !failed;
}

typedef struct event_wait {
    cpu_task task;
    capture *capture; /* a reference */
    device_act act;   /* for the watch */
} event_wait;

static void wait_run(cpu_stream *s, cpu_task *task)
{
    event_wait *wait = (event_wait *)task;
    device_act *act = &wait->act;
    const device_watch *w = act->token != 0 ? &s->base.device->watch : NULL;
    act->begin_s = w ? clock_now_s() : 0;
    if (!capture_wait(wait->capture))
        cpu_stream_fail(s, &wait->capture->error);
    act->end_s = w ? clock_now_s() : 0;
    if (w && w->ran)
        w->ran(w->self, act);
    capture_put(wait->capture);
    recycle_put(wait);
}

static bool wait_is_ready(const cpu_task *task)
{
    return capture_done(((const event_wait *)task)->capture);
}

static const cpu_task_kind WAIT = {wait_run, wait_is_ready};

/* ---- events --------------------------------------------------------------------------------- */
fsdp_status cpu_event_create(device *d, bool timed, event **out)
{
    cpu_event *e = calloc(1, sizeof *e);
    if (!e)
        return fsdp_error(FSDP_ENOMEM, "", "event_create: no memory for an event");
    e->base = (event){.device = d, .timed = timed};
    pthread_mutex_init(&e->lock, NULL);
    *out = &e->base;
    return FSDP_OK;
}

/* A reference to the event's current capture, or NULL. */
static capture *event_get(cpu_event *e)
{
    pthread_mutex_lock(&e->lock);
    capture *c = e->current;
    if (c)
        atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&e->lock);
    return c;
}

void cpu_event_free(event *base)
{
    cpu_event *e = (cpu_event *)base;
    capture_put(e->current);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

fsdp_status cpu_event_record(event *base_event, stream *base_stream)
{
    cpu_event *e = (cpu_event *)base_event;
    cpu_stream *s = (cpu_stream *)base_stream;
    capture *c = capture_new(base_event->timed);
    if (!c)
        return fsdp_error(FSDP_ENOMEM, "", "event_record: no memory on stream '%s'", s->base.name);
    pthread_mutex_lock(&e->lock);
    capture *before = e->current;
    e->current = c;
    pthread_mutex_unlock(&e->lock);
    capture_put(before);
    cpu_stream_issue(s, &c->task);
    return cpu_stream_status(s);
}

fsdp_status cpu_stream_wait_event(stream *base, event *e, const device_act *act)
{
    cpu_stream *s = (cpu_stream *)base;
    capture *c = event_get((cpu_event *)e);
    if (!c)
        return cpu_stream_status(s);
    if (s->is_worker && capture_done(c) && !c->failed) { /* a failure must go through the queue */
        capture_put(c);
        return cpu_stream_status(s);
    }
    event_wait *w = recycle_get(sizeof *w);
    if (!w) {
        capture_put(c);
        return fsdp_error(FSDP_ENOMEM, "", "stream_wait_event: no memory on stream '%s'",
                          s->base.name);
    }
    w->task.kind = &WAIT;
    w->capture = c;
    w->act = *act;
    cpu_stream_issue(s, &w->task);
    return cpu_stream_status(s);
}

static bool is_reached(void *self)
{
    return capture_done(self);
}

fsdp_status cpu_event_sync(event *e)
{
    capture *c = event_get((cpu_event *)e);
    cpu_schedule *schedule = ((cpu_device *)e->device)->schedule;
    fsdp_status status = FSDP_OK;
    if (c && schedule)
        cpu_schedule_wait(schedule, is_reached, c);
    if (c && !capture_wait(c))
        status = fsdp_error_set(&c->error);
    capture_put(c);
    return status;
}

bool cpu_event_done(event *e)
{
    capture *c = event_get((cpu_event *)e);
    cpu_schedule *schedule = ((cpu_device *)e->device)->schedule;
    bool done = !c || capture_done(c);
    capture_put(c);
    if (!done && schedule) /* the caller may poll until the event is reached */
        cpu_schedule_polled(schedule);
    return done;
}

/* When the event's capture was reached; 0: never recorded, or not reached yet. */
static double event_reached_s(event *e)
{
    capture *c = event_get((cpu_event *)e);
    double at_s = c && capture_done(c) ? c->reached_s : 0;
    capture_put(c);
    return at_s;
}

fsdp_status cpu_event_elapsed_s(event *begin, event *end, double *out)
{
    double begin_s = event_reached_s(begin), end_s = event_reached_s(end);
    if (begin_s == 0 || end_s == 0)
        return fsdp_error(FSDP_ESTATE, "record both, then event_sync the second",
                          "event_elapsed_s: the %s event has not been reached",
                          begin_s == 0 ? "first" : "second");
    *out = end_s - begin_s;
    return FSDP_OK;
}
