/* acl_stream.c -- streams of the stand-in, and the errors of their tasks.
 *
 * A task that fails does not fail its CPU stream, which has other rules. The ACL stream keeps the
 * first error until a synchronisation reports it, once, and goes on. If a stream of the context has
 * ACL_STOP_ON_FAILURE, all later tasks of all streams of the context are skipped, and every call
 * for one of these streams returns the error [CANN aclrtSetStreamFailureMode]. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "tests/sim/ascend/acl_impl.h"

/* ---- find a stream --------------------------------------------------------------------------- */

aclError acl_stream_of(aclrtStream handle, const char *call, acl_stream **out)
{
    acl_context *c;
    acl_stream *q = handle;
    TRY_ACL(acl_enter(call, &c));
    if (handle == NULL)
        sim_die("%s on the default stream: the NPU's backend names every stream", call);
    (void)sim_live(q, ACL_STREAM, call, "a stream");
    FAIL_IF(q->context != c, ACL_ERROR_RT_STREAM_CONTEXT, call,
            "stream %d is not of this thread's context", q->number);
    *out = q;
    return ACL_SUCCESS;
}

aclError acl_stream_working(aclrtStream handle, const char *call, acl_stream **out)
{
    TRY_ACL(acl_stream_of(handle, call, out));
    return acl_check_context((*out)->context, call);
}

aclError sim_acl_stream(aclrtStream handle, const char *call, stream **out)
{
    acl_stream *q;
    TRY_ACL(acl_stream_working(handle, call, &q));
    *out = sim_queue_use(&q->q);
    return ACL_SUCCESS;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

typedef struct task {
    acl_stream *q;
    const char *name;
    bool faults;
    stream_fn fn;
    max_align_t args[];
} task;

/* Record the error of task t; the text comes from this thread's fsdp_error. */
static void task_failed(const task *t, fsdp_status status)
{
    acl_stream *q = t->q;
    const char *what =
        fsdp_error_get()->status == status ? fsdp_error_get()->what : fsdp_status_name(status);
    acl_exception error = {.code = ACL_ERROR_RT_AICORE_EXCEPTION};
    snprintf(error.text, sizeof error.text, "%s on stream %d ended in an exception: %.400s",
             t->name, q->number, what);
    pthread_mutex_lock(&acl_lock);
    if (q->error.code == ACL_SUCCESS)
        q->error = error;
    if (q->context->stops && !atomic_load(&q->context->stopped)) {
        q->context->error = error;
        atomic_store(&q->context->stopped, true);
    }
    pthread_mutex_unlock(&acl_lock);
}

static fsdp_status run_task(void *args, int n_threads)
{
    task *t = args;
    if (atomic_load(&t->q->context->stopped))
        return FSDP_OK;
    fsdp_status status = t->faults ? fsdp_error(FSDP_EDEVICE, "", "FSDP_SIM_FAULT names it")
                                   : t->fn(t->args, n_threads);
    if (status != FSDP_OK)
        task_failed(t, status);
    return FSDP_OK;
}

aclError acl_issue(acl_stream *q, const char *name, const launch_config *l)
{
    const size_t bytes = sizeof(task) + l->args_bytes;
    task *t = malloc(bytes);
    FAIL_IF(t == NULL, ACL_ERROR_BAD_ALLOC, name, "no memory");
    *t = (task){.q = q, .name = name, .faults = sim_launch_note(name), .fn = l->fn};
    if (l->args_bytes > 0)
        memcpy(t->args, l->args, l->args_bytes);
    launch_config wrapped = {.fn = run_task,
                             .args = t,
                             .args_bytes = bytes,
                             .waits_for = l->waits_for,
                             .on_host = l->on_host};
    fsdp_status status = stream_launch_work(sim_queue_use(&q->q), &wrapped);
    free(t);
    return acl_status(status, name);
}

aclError sim_acl_launch_work(aclrtStream handle, const char *name, const launch_config *l)
{
    acl_stream *q;
    TRY_ACL(acl_stream_working(handle, name, &q));
    return acl_issue(q, name, l);
}

aclError sim_acl_launch(aclrtStream handle, const char *name, stream_fn fn, const void *args,
                        size_t args_bytes)
{
    return sim_acl_launch_work(handle, name,
                               &(launch_config){.fn = fn, .args = args, .args_bytes = args_bytes});
}

/* ---- life ------------------------------------------------------------------------------------ */

enum { MOST_FLAGS = ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC, LEAST_PRIORITY = 7 };

aclError aclrtDeviceGetStreamPriorityRange(int32_t *least, int32_t *greatest)
{
    TRY_ACL(acl_enter(__func__, NULL));
    FAIL_IF(least == NULL || greatest == NULL, ACL_ERROR_INVALID_PARAM, __func__,
            "a pointer is NULL");
    *least = LEAST_PRIORITY;
    *greatest = 0;
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream *out, uint32_t priority, uint32_t flag)
{
    static atomic_int n_made;
    const int most = (int)sim_number("FSDP_SIM_STREAMS", 1984);
    acl_context *c;
    TRY_ACL(acl_enter(__func__, &c));
    FAIL_IF(out == NULL, ACL_ERROR_INVALID_PARAM, __func__, "stream is NULL");
    FAIL_IF(priority > LEAST_PRIORITY || (flag & ~(uint32_t)MOST_FLAGS), ACL_ERROR_RT_PARAM_INVALID,
            __func__, "priority %u of 0 to %d, flag %#x of %#x", priority, LEAST_PRIORITY, flag,
            (unsigned)MOST_FLAGS);
    FAIL_IF(atomic_load(&acl_n_streams) >= most, ACL_ERROR_RT_NO_STREAM_RESOURCE, __func__,
            "%d streams are there", most);
    acl_stream *q = calloc(1, sizeof *q);
    FAIL_IF(q == NULL, ACL_ERROR_BAD_ALLOC, __func__, "no memory");
    *q = (acl_stream){.handle = {ACL_STREAM}, .context = c, .priority = priority, .flags = flag};
    q->number = atomic_fetch_add(&n_made, 1);
    const fsdp_status status = sim_queue_open(&q->q, LEAST_PRIORITY - (int)priority);
    if (status != FSDP_OK) {
        free(q);
        return acl_status(status, __func__);
    }
    atomic_fetch_add(&acl_n_streams, 1);
    pthread_mutex_lock(&acl_lock);
    c->n_streams++;
    pthread_mutex_unlock(&acl_lock);
    *out = q;
    return ACL_SUCCESS;
}

void sim_acl_stream_made(aclrtStream handle, uint32_t *priority, uint32_t *flags)
{
    const acl_stream *q = handle;
    *priority = q->priority;
    *flags = q->flags;
}

aclError aclrtDestroyStream(aclrtStream handle)
{
    acl_stream *q;
    TRY_ACL(acl_stream_of(handle, __func__, &q));
    pthread_mutex_lock(&acl_lock);
    if (q->thread != 0)
        sim_die("aclrtDestroyStream of stream %d before aclrtUnSubscribeReport", q->number);
    q->context->n_streams--;
    pthread_mutex_unlock(&acl_lock);
    sim_queue_close(&q->q);
    atomic_fetch_sub(&acl_n_streams, 1);
    sim_handle_destroy(q);
    return ACL_SUCCESS;
}

aclError aclrtSetStreamFailureMode(aclrtStream handle, uint64_t mode)
{
    acl_stream *q;
    TRY_ACL(acl_stream_working(handle, __func__, &q));
    FAIL_IF(mode > ACL_STOP_ON_FAILURE, ACL_ERROR_RT_PARAM_INVALID, __func__, "mode %llu",
            (unsigned long long)mode);
    FAIL_IF(q->has_mode, ACL_ERROR_RT_PARAM_INVALID, __func__, "stream %d has a mode already",
            q->number);
    q->has_mode = true;
    pthread_mutex_lock(&acl_lock);
    q->context->stops = q->context->stops || mode == ACL_STOP_ON_FAILURE;
    pthread_mutex_unlock(&acl_lock);
    return ACL_SUCCESS;
}

/* ---- waits of the host ----------------------------------------------------------------------- */

aclError acl_take_error(acl_stream *q, const char *call)
{
    aclError error = ACL_SUCCESS;
    TRY_ACL(acl_check_context(q->context, call));
    pthread_mutex_lock(&acl_lock);
    if (q->error.code != ACL_SUCCESS)
        error = FAIL_IN(call, q->error.code, "%s", q->error.text);
    q->error.code = ACL_SUCCESS;
    pthread_mutex_unlock(&acl_lock);
    return error;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t timeout_ms)
{
    acl_stream *q;
    TRY_ACL(acl_stream_of(handle, __func__, &q));
    FAIL_IF(timeout_ms < -1, ACL_ERROR_RT_PARAM_INVALID, __func__, "%d ms", timeout_ms);
    const double until_s = clock_now_s() + timeout_ms * 1e-3;
    if (timeout_ms == -1)
        (void)stream_sync(sim_queue_use(&q->q));
    while (timeout_ms != -1 && !sim_queue_done(&q->q)) {
        FAIL_IF(clock_now_s() > until_s, ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, __func__,
                "stream %d has work after %d ms", q->number, timeout_ms);
        usleep(50);
    }
    return acl_take_error(q, __func__);
}

aclError aclrtSynchronizeStream(aclrtStream handle)
{
    return aclrtSynchronizeStreamWithTimeout(handle, -1);
}

static atomic_long n_queries;

long sim_stream_queries(void)
{
    return atomic_load(&n_queries);
}

aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus *status)
{
    acl_stream *q;
    atomic_fetch_add(&n_queries, 1);
    TRY_ACL(acl_stream_working(handle, __func__, &q));
    FAIL_IF(status == NULL, ACL_ERROR_INVALID_PARAM, __func__, "status is NULL");
    *status = sim_queue_done(&q->q) ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return ACL_SUCCESS;
}
