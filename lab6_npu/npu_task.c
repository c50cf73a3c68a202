/* npu_task.c -- host work in stream order: task 6.3.
 *
 *   npu_task_put -> aclrtLaunchCallback ... the stream's reporter: run_task -> npu_tasks_end
 *
 * ACL runs the callbacks of a stream in the thread that is subscribed to it, while that thread is
 * in aclrtProcessReport. Without such a thread, the stream waits forever at its first callback.
 * Each stream has its own reporter, because a task may block until other ranks reach theirs.
 *
 * [CANN aclrtSubscribeReport, aclrtProcessReport, aclrtLaunchCallback] */
#include <stdlib.h>
#include <unistd.h>
#include "acl/acl.h"
#include "common/accel/accel_impl.h"
#include "lab6_npu/npu_impl.h"

typedef struct npu_reporter {
    const npu_own *own;
    pthread_t thread;
    pthread_mutex_t subscribed; /* held until the thread is subscribed */
    atomic_bool stopping;
} npu_reporter;

/* A stream's end may wait this long for its reporter to return. */
enum { REPORT_TIMEOUT_MS = 20 };

static void *reporter_main(void *arg)
{
    npu_reporter *r = arg;
    pthread_mutex_lock(&r->subscribed);
    pthread_mutex_unlock(&r->subscribed);
    /* SOLUTION BEGIN 6.3 */
    /* STUB: */
    (void)aclrtSetCurrentContext(r->own->context);
    while (!atomic_load(&r->stopping))
        (void)aclrtProcessReport(REPORT_TIMEOUT_MS); /* not 0: there was nothing to do */
    /* SOLUTION END 6.3 */
    return NULL;
}

static uint64_t thread_id(const npu_reporter *r)
{
    return (uint64_t)r->thread;
}

/* Start the reporter of s if this is the first task of s. */
static fsdp_status reporter_need(accel_stream *s)
{
    if (s->tasks != NULL)
        return FSDP_OK;
    npu_reporter *r = calloc(1, sizeof *r);
    if (r == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "stream '%s': no memory for host tasks", s->base.name);
    r->own = npu_own_of(s->base.device);
    pthread_mutex_init(&r->subscribed, NULL);
    pthread_mutex_lock(&r->subscribed);
    fsdp_status status = accel_thread_start(reporter_main, r, s->base.name, &r->thread);
    if (status != FSDP_OK) {
        free(r);
        return status;
    }
    s->tasks = r;
    const int code = aclrtSubscribeReport(thread_id(r), s->queue);
    pthread_mutex_unlock(&r->subscribed);
    return accel_stream_check(s, code, "aclrtSubscribeReport");
}

/* Wait about a second for the work on s; returns whether it is done. If the device has failed, a
 * task may still sleep, or a collective may wait forever for a dead peer. */
static bool is_over_soon(const accel_stream *s)
{
    enum { LOOKS = 10000, BETWEEN_US = 100 };
    for (int i = 0; i < LOOKS; i++) {
        if (accel_api_at(s)->queue_look(s->queue) != ACCEL_NOT_READY)
            return true;
        usleep(BETWEEN_US);
    }
    return false;
}

void npu_tasks_end(accel_stream *s)
{
    npu_reporter *r = s->tasks;
    if (r == NULL)
        return;
    const bool is_over = is_over_soon(s);
    if (is_over)
        (void)aclrtUnSubscribeReport(thread_id(r), s->queue);
    atomic_store(&r->stopping, true);
    pthread_join(r->thread, NULL);
    if (!is_over)
        return;
    pthread_mutex_destroy(&r->subscribed);
    free(r);
    s->tasks = NULL;
}

static void run_task(void *task)
{
    accel_task_run(task, ACL_SUCCESS);
}

/* The stream waits until run_task has returned. */
static int task_launch(accel_stream *s, accel_task *t)
{
    /* SOLUTION BEGIN 6.3 */
    /* STUB: (void)run_task; */
    /* STUB: return NPU_TODO_6_3; */
    return aclrtLaunchCallback(run_task, t, ACL_CALLBACK_BLOCK, s->queue);
    /* SOLUTION END 6.3 */
}

fsdp_status npu_task_put(accel_stream *s, accel_task *t)
{
    fsdp_status status = reporter_need(s);
    IF_OK(status, accel_stream_check(s, task_launch(s, t), "host task"));
    if (status != FSDP_OK)
        accel_task_run(t, -1); /* no callback will free t */
    return status;
}
