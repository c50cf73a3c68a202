/* cpu_stream.c -- streams of the CPU backend; cpu_event.c has their events.
 *
 *   cpu_stream_new -> cpu_launch, record, wait ... -> cpu_stream_delete (drains, joins)
 *
 * A worker stream is a thread with a first-in-first-out queue of tasks; it sleeps on a condition
 * variable when the queue is empty. An inline stream runs each task in the call that issues it.
 *
 * Errors. The stream keeps the error of the first failing task. After that, calls (kernels, copies)
 * are skipped; frees, records and waits still run, so that memory is returned and other streams do
 * not hang. A capture that a failed stream completes carries the error, and a stream that waits for
 * that capture fails with the same error, because the work before the capture did not run.
 *
 * With a scheduler (cpu_schedule.c) there is no inline stream, and a worker takes a task only when
 * it has the turn. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "common/base/recycle.h"
#include "common/device/cpu_impl.h"
#include "common/device/guard.h"

/* ---- errors --------------------------------------------------------------------------------- */
void cpu_stream_fail(cpu_stream *s, const fsdp_error_info *info)
{
    pthread_mutex_lock(&s->lock);
    if (!atomic_load_explicit(&s->failed, memory_order_relaxed)) {
        s->error = *info;
        atomic_store_explicit(&s->failed, true, memory_order_release);
    }
    pthread_mutex_unlock(&s->lock);
}

bool cpu_stream_failed(cpu_stream *s)
{
    return atomic_load_explicit(&s->failed, memory_order_acquire);
}

fsdp_status cpu_stream_status(cpu_stream *s)
{
    return cpu_stream_failed(s) ? fsdp_error_set(&s->error) : FSDP_OK;
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
    task->kind->run(s, task);
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
        task->kind->run(s, task);
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

static uint64_t first_call(cpu_stream *s);

static bool is_ready(cpu_stream *s)
{
    pthread_mutex_lock(&s->lock);
    cpu_task *task = STAILQ_FIRST(&s->queue);
    bool ready = task && (!task->kind->is_ready || task->kind->is_ready(task));
    pthread_mutex_unlock(&s->lock);
    return ready;
}

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
    cpu_stream_fail(s, fsdp_error_get());
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
    if (!cpu_stream_failed(s)) {
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

static const cpu_task_kind CALL = {.run = call_run};

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
    call->task.kind = &CALL;
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
    return task->kind == &CALL ? ((const kernel_call *)task)->number : CPU_NO_CALL;
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
