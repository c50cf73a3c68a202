/* cpu_stream.c -- streams and events of the CPU backend.
 *
 *   cpu_stream_new -> cpu_launch, record, wait ... -> cpu_stream_delete (drains, joins)
 *
 * A worker stream is a thread with a first-in-first-out queue of tasks; it sleeps on a condition
 * variable when the queue is empty. An inline stream runs each task in the call that issues it.
 *
 * An event holds a *capture*: "all work issued on stream s up to this point". event_record makes a
 * new capture and queues it on s like any task; it is complete when the worker reaches it. A wait
 * takes a reference to the capture that the event holds at that moment, so recording or freeing the
 * event later does not change the wait [CUDA cudaStreamWaitEvent]. A stream can only wait for a
 * capture that was queued before. So every wait is for older work, and a cycle of waits (a
 * deadlock) cannot arise.
 *
 * Errors. The stream keeps the error of the first failing task. After that, calls (kernels, copies)
 * are skipped; frees, records and waits still run, so that memory is returned and other streams do
 * not hang. A capture that a failed stream completes carries the error, and a stream that waits for
 * that capture fails with the same error, because the work before the capture did not run.
 *
 * With a scheduler (cpu_schedule.c) there is no inline stream, and a worker takes a task only when
 * it has the turn. */
#include "common/base/clock.h"
#include "common/base/recycle.h"
#include "common/device/cpu_impl.h"
#include "common/device/instruments/guard.h"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- errors --------------------------------------------------------------------------------- */
static void stream_fail(cpu_stream *s, const fsdp_error_info *info)
{
    pthread_mutex_lock(&s->lock);
    if (!atomic_load_explicit(&s->failed, memory_order_relaxed)) {
        s->error = *info;
        atomic_store_explicit(&s->failed, true, memory_order_release);
    }
    pthread_mutex_unlock(&s->lock);
}

static bool stream_failed(cpu_stream *s)
{
    return atomic_load_explicit(&s->failed, memory_order_acquire);
}

fsdp_status cpu_stream_status(cpu_stream *s)
{
    return stream_failed(s) ? fsdp_error_set(&s->error) : FSDP_OK;
}

/* ---- the queue and its worker --------------------------------------------------------------- */
static cpu_schedule *schedule_of(const cpu_stream *s)
{
    return ((cpu_device *)s->base.device)->schedule;
}

static uint64_t call_of(const cpu_task *task);

/* Wait for a first task and return it; NULL: the stream is stopping and its queue is empty. */
static cpu_task *first_task(cpu_stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (STAILQ_EMPTY(&s->queue) && !s->stopping)
        pthread_cond_wait(&s->work, &s->lock);
    cpu_task *task = STAILQ_FIRST(&s->queue);
    pthread_mutex_unlock(&s->lock);
    return task;
}

static void run_task(cpu_stream *s, cpu_task *task)
{
    uint64_t call = schedule_of(s) ? call_of(task) : CPU_NO_CALL;
    if (call != CPU_NO_CALL)
        cpu_schedule_call_begin(schedule_of(s), &s->player, call);
    task->run(s, task);
    if (call != CPU_NO_CALL)
        cpu_schedule_call_end(schedule_of(s), &s->player);
}

static void *worker_main(void *arg)
{
    cpu_stream *s = arg;
    cpu_schedule *schedule = schedule_of(s);
    cpu_task *task;
    if (s->priority < 0) /* on Linux each thread has its own niceness */
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), -s->priority);
    while ((task = first_task(s)) != NULL) {
        if (schedule)
            cpu_schedule_take(schedule, &s->player);
        pthread_mutex_lock(&s->lock);
        STAILQ_REMOVE_HEAD(&s->queue, link);
        pthread_mutex_unlock(&s->lock);
        run_task(s, task);
        pthread_mutex_lock(&s->lock);
        s->finished_tasks++;
        if (s->sync_waiters > 0 && s->finished_tasks >= s->sync_target)
            pthread_cond_broadcast(&s->idle);
        pthread_mutex_unlock(&s->lock);
        if (schedule)
            cpu_schedule_give(schedule);
    }
    return NULL;
}

void cpu_stream_issue(cpu_stream *s, cpu_task *task)
{
    if (!s->is_worker) {
        task->run(s, task);
        return;
    }
    pthread_mutex_lock(&s->lock);
    FSDP_ASSERT(!s->stopping && "work issued on a stream that is being freed");
    bool was_empty = STAILQ_EMPTY(&s->queue);
    STAILQ_INSERT_TAIL(&s->queue, task, link);
    s->issued_tasks++;
    if (was_empty) /* otherwise an earlier task woke the worker */
        pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (schedule_of(s))
        cpu_schedule_issued(schedule_of(s), &s->player);
}

/* The host waits until `tasks` tasks of s are finished. */
typedef struct drain_target {
    cpu_stream *s;
    uint64_t tasks;
} drain_target;

static bool is_drained(void *self)
{
    const drain_target *t = self;
    pthread_mutex_lock(&t->s->lock);
    bool drained = t->s->finished_tasks >= t->tasks;
    pthread_mutex_unlock(&t->s->lock);
    return drained;
}

void cpu_stream_drain(cpu_stream *s)
{
    if (!s->is_worker)
        return;
    FSDP_ASSERT(!pthread_equal(pthread_self(), s->thread) &&
                "a task may not wait for its own stream");
    pthread_mutex_lock(&s->lock);
    uint64_t target = s->issued_tasks;
    if (schedule_of(s)) {
        pthread_mutex_unlock(&s->lock);
        cpu_schedule_wait(schedule_of(s), is_drained, &(drain_target){s, target});
        return;
    }
    if (s->sync_waiters++ == 0 || target < s->sync_target)
        s->sync_target = target;
    while (s->finished_tasks < target)
        pthread_cond_wait(&s->idle, &s->lock);
    s->sync_waiters--;
    pthread_mutex_unlock(&s->lock);
}

static bool is_ready(cpu_stream *s);
static uint64_t first_call(cpu_stream *s);
static const cpu_queue_view QUEUE_VIEW = {is_ready, first_call};

fsdp_status cpu_stream_new(cpu_device *d, const stream_config *config, bool is_worker, stream **out)
{
    cpu_stream *s = calloc(1, sizeof *s);
    if (!s)
        return fsdp_error(FSDP_ENOMEM, "", "stream_create: no memory for stream '%s'",
                          config->name);
    stream_init(&s->base, &d->base, config);
    s->is_worker = is_worker;
    s->priority = config->priority;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->idle, NULL);
    STAILQ_INIT(&s->queue);
    if (d->schedule)
        cpu_player_add(d->schedule, &s->player, s, &QUEUE_VIEW);
    pthread_mutex_lock(&d->lock);
    TAILQ_INSERT_TAIL(&d->streams, s, link);
    int err = is_worker ? device_thread_start(&s->thread, worker_main, s, s->base.name) : 0;
    pthread_mutex_unlock(&d->lock);
    if (err) {
        s->is_worker = false;
        cpu_stream_delete(s);
        return fsdp_error(FSDP_ENOMEM, "raise the limit on threads (ulimit -u) or run fewer ranks",
                          "stream_create: no thread for stream '%s': %s", config->name,
                          strerror(err));
    }
    *out = &s->base;
    return FSDP_OK;
}

void cpu_stream_delete(cpu_stream *s)
{
    cpu_device *d = (cpu_device *)s->base.device;
    pthread_mutex_lock(&d->lock);
    TAILQ_REMOVE(&d->streams, s, link);
    pthread_mutex_unlock(&d->lock);
    if (s->is_worker) {
        FSDP_ASSERT(!pthread_equal(pthread_self(), s->thread));
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    if (schedule_of(s))
        cpu_player_remove(schedule_of(s), &s->player);
    pthread_cond_destroy(&s->idle);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- calls ---------------------------------------------------------------------------------- */
typedef struct kernel_call {
    cpu_task task;
    stream_fn fn;
    uint64_t number; /* the result of call_of */
    bool on_host;    /* see launch_config */
    device_act act;  /* for the watch */
    max_align_t args[];
} kernel_call;

static void call_failed(cpu_stream *s, fsdp_status status)
{
    if (fsdp_error_get()->status != status)
        (void)fsdp_error(status, "", "work on stream '%s' failed: %s", s->base.name,
                         fsdp_status_name(status));
    stream_fail(s, fsdp_error_get());
}

/* If device memory is guarded, the thread may touch it only during device work. */
static fsdp_status call_fn(cpu_stream *s, kernel_call *call)
{
    if (!((cpu_device *)s->base.device)->pool.is_guarded)
        return call->fn(call->args, s->base.n_threads);
    bool before = guard_right_set(!call->on_host);
    fsdp_status status = call->fn(call->args, s->base.n_threads);
    guard_right_set(before);
    return status;
}

static void call_run(cpu_stream *s, cpu_task *task)
{
    kernel_call *call = (kernel_call *)task;
    const device_watch *w = call->act.token != 0 ? &s->base.device->watch : NULL;
    if (!stream_failed(s)) {
        call->act.begin_s = w ? clock_now_s() : 0;
        fsdp_status status = call_fn(s, call);
        call->act.end_s = w ? clock_now_s() : 0;
        if (status != FSDP_OK)
            call_failed(s, status);
        else if (w && w->ran)
            w->ran(w->self, &call->act);
    }
    recycle_put(call);
}

static uint64_t number_of(cpu_schedule *x, const launch_config *l)
{
    if (!x || l->waits_for == WAITS_FOR_NOBODY)
        return CPU_NO_CALL;
    return l->waits_for == WAITS_FOR_HOST ? CPU_CALL_OF_HOST : cpu_schedule_number_call(x);
}

fsdp_status cpu_call_new(cpu_stream *s, const launch_config *l, const device_act *act,
                         cpu_task **out, void **args)
{
    TRY(cpu_stream_status(s));
    kernel_call *call = recycle_get(sizeof *call + l->args_bytes);
    if (!call)
        return fsdp_error(FSDP_ENOMEM, "", "stream_launch: no memory for %zu bytes of arguments",
                          l->args_bytes);
    call->task.run = call_run;
    call->fn = l->fn;
    call->number = number_of(schedule_of(s), l);
    call->on_host = l->on_host;
    call->act = *act;
    call->act.accesses = NULL; /* the caller's memory, no longer valid when the watch is told */
    call->act.n_accesses = 0;
    *out = &call->task;
    *args = call->args;
    return FSDP_OK;
}

/* The scheduler's number of a task that waits for other ranks or for the host; else CPU_NO_CALL. */
static uint64_t call_of(const cpu_task *task)
{
    return task->run == call_run ? ((const kernel_call *)task)->number : CPU_NO_CALL;
}

static uint64_t first_call(cpu_stream *s)
{
    uint64_t call = CPU_NO_CALL;
    cpu_task *task;
    pthread_mutex_lock(&s->lock);
    STAILQ_FOREACH(task, &s->queue, link)
    {
        const uint64_t next = call_of(task);
        call = next < call ? next : call;
        if (call < CPU_CALL_OF_HOST)
            break;
    }
    pthread_mutex_unlock(&s->lock);
    return call;
}

fsdp_status cpu_launch(stream *base, const launch_config *l, const device_act *act)
{
    cpu_stream *s = (cpu_stream *)base;
    cpu_task *task = NULL;
    void *copy = NULL;
    TRY(cpu_call_new(s, l, act, &task, &copy));
    if (l->args_bytes > 0)
        memcpy(copy, l->args, l->args_bytes);
    cpu_stream_issue(s, task);
    return s->is_worker ? FSDP_OK : cpu_stream_status(s);
}

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
    if (stream_failed(s)) {
        c->failed = true;
        c->error = s->error;
    }
    c->done = true;
    c->reached_s = c->timed ? clock_now_s() : 0;
    pthread_cond_broadcast(&c->reached);
    pthread_mutex_unlock(&c->lock);
    capture_put(c);
}

static capture *capture_new(bool timed)
{
    capture *c = recycle_get(sizeof *c);
    if (!c)
        return NULL;
    c->task.run = capture_run;
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
        stream_fail(s, &wait->capture->error);
    act->end_s = w ? clock_now_s() : 0;
    if (w && w->ran)
        w->ran(w->self, act);
    capture_put(wait->capture);
    recycle_put(wait);
}

static bool is_ready(cpu_stream *s)
{
    pthread_mutex_lock(&s->lock);
    cpu_task *task = STAILQ_FIRST(&s->queue);
    bool ready = task && (task->run != wait_run || capture_done(((event_wait *)task)->capture));
    pthread_mutex_unlock(&s->lock);
    return ready;
}

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
    w->task.run = wait_run;
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
