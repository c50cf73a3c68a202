/* acl_stream.c -- streams of the stand-in, and the errors of what runs on them.
 *
 * A task that fails does not fail its stream of the CPU, whose rules are others. The stream keeps
 * the error until a synchronisation reports it, once, and goes on; unless a stream of the context
 * has ACL_STOP_ON_FAILURE: then all later tasks of all streams of the context are skipped, and
 * every call for one of them returns the error [CANN aclrtSetStreamFailureMode]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "tests/sim/ascend/acl_impl.h"

/* ---- finding --------------------------------------------------------------------------------- */

aclError acl_stream_of(aclrtStream handle, const char *call, acl_stream **out)
{
    acl_context *c;
    acl_stream *q = handle;
    aclError error = acl_enter(call, &c);
    if (error != ACL_SUCCESS)
        return error;
    if (handle == NULL)
        sim_die("%s on the default stream: the NPU's backend names every stream", call);
    const char *is = sim_handle_is_not(q, ACL_STREAM);
    if (is != NULL)
        sim_die("%s on a stream that is %s", call, is);
    if (q->context != c)
        return sim_acl_fail(ACL_ERROR_RT_STREAM_CONTEXT,
                            "%s: stream %d is not of this thread's context", call, q->number);
    *out = q;
    return ACL_SUCCESS;
}

aclError acl_stream_working(aclrtStream handle, const char *call, acl_stream **out)
{
    aclError error = acl_stream_of(handle, call, out);
    return error == ACL_SUCCESS ? acl_check_context((*out)->context, call) : error;
}

aclError sim_acl_stream(aclrtStream handle, const char *call, stream **out)
{
    acl_stream *q;
    aclError error = acl_stream_working(handle, call, &q);
    if (error == ACL_SUCCESS)
        *out = sim_queue_use(&q->q);
    return error;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

typedef struct task {
    acl_stream *q;
    const char *name;
    bool faults;
    stream_fn fn;
    max_align_t args[];
} task;

/* What the thread's fsdp_error says has happened in t. */
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
    if (t == NULL)
        return sim_acl_fail(ACL_ERROR_BAD_ALLOC, "%s: no memory", name);
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
    aclError error = acl_stream_working(handle, name, &q);
    return error == ACL_SUCCESS ? acl_issue(q, name, l) : error;
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
    acl_context *c;
    aclError error = acl_enter("aclrtDeviceGetStreamPriorityRange", &c);
    if (error != ACL_SUCCESS)
        return error;
    if (least == NULL || greatest == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM,
                            "aclrtDeviceGetStreamPriorityRange: a pointer is NULL");
    *least = LEAST_PRIORITY;
    *greatest = 0;
    return ACL_SUCCESS;
}

static aclError stream_new(acl_context *c, uint32_t priority, uint32_t flags, aclrtStream *out)
{
    static const char CALL[] = "aclrtCreateStream";
    static atomic_int n_made;
    const int most = (int)sim_number("FSDP_SIM_STREAMS", 1984);
    if (atomic_load(&acl_n_streams) >= most)
        return sim_acl_fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "%s: %d streams are there", CALL,
                            most);
    acl_stream *q = calloc(1, sizeof *q);
    if (q == NULL)
        return sim_acl_fail(ACL_ERROR_BAD_ALLOC, "%s: no memory", CALL);
    q->handle.what = ACL_STREAM;
    q->context = c;
    q->number = atomic_fetch_add(&n_made, 1);
    q->priority = priority;
    q->flags = flags;
    const fsdp_status status = sim_queue_open(&q->q, LEAST_PRIORITY - (int)priority);
    if (status != FSDP_OK) {
        free(q);
        return acl_status(status, CALL);
    }
    atomic_fetch_add(&acl_n_streams, 1);
    pthread_mutex_lock(&acl_lock);
    c->n_streams++;
    pthread_mutex_unlock(&acl_lock);
    *out = q;
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream *out, uint32_t priority, uint32_t flag)
{
    static const char CALL[] = "aclrtCreateStreamWithConfig";
    acl_context *c;
    aclError error = acl_enter(CALL, &c);
    if (error == ACL_SUCCESS && out == NULL)
        error = sim_acl_fail(ACL_ERROR_INVALID_PARAM, "%s: stream is NULL", CALL);
    if (error == ACL_SUCCESS && (priority > LEAST_PRIORITY || (flag & ~(uint32_t)MOST_FLAGS)))
        error =
            sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: priority %u of 0 to %d, flag %#x of %#x",
                         CALL, priority, LEAST_PRIORITY, flag, (unsigned)MOST_FLAGS);
    return error == ACL_SUCCESS ? stream_new(c, priority, flag, out) : error;
}

aclError aclrtCreateStream(aclrtStream *out)
{
    return aclrtCreateStreamWithConfig(out, 0, 0);
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
    aclError error = acl_stream_of(handle, "aclrtDestroyStream", &q);
    if (error != ACL_SUCCESS)
        return error;
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
    static const char CALL[] = "aclrtSetStreamFailureMode";
    acl_stream *q;
    aclError error = acl_stream_working(handle, CALL, &q);
    if (error != ACL_SUCCESS)
        return error;
    if (mode > ACL_STOP_ON_FAILURE)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: mode %llu", CALL,
                            (unsigned long long)mode);
    if (q->has_mode)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: stream %d has a mode already", CALL,
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
    aclError error = acl_check_context(q->context, call);
    if (error != ACL_SUCCESS)
        return error;
    pthread_mutex_lock(&acl_lock);
    if (q->error.code != ACL_SUCCESS)
        error = sim_acl_fail(q->error.code, "%s: %s", call, q->error.text);
    q->error.code = ACL_SUCCESS;
    pthread_mutex_unlock(&acl_lock);
    return error;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t timeout_ms)
{
    static const char CALL[] = "aclrtSynchronizeStream";
    acl_stream *q;
    aclError error = acl_stream_of(handle, CALL, &q);
    if (error != ACL_SUCCESS)
        return error;
    if (timeout_ms < -1)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%sWithTimeout: %d ms", CALL, timeout_ms);
    const double until_s = clock_now_s() + timeout_ms * 1e-3;
    if (timeout_ms == -1)
        (void)stream_sync(sim_queue_use(&q->q));
    while (timeout_ms != -1 && !sim_queue_done(&q->q)) {
        if (clock_now_s() > until_s)
            return sim_acl_fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
                                "%sWithTimeout: stream %d has work after %d ms", CALL, q->number,
                                timeout_ms);
        usleep(50);
    }
    return acl_take_error(q, CALL);
}

aclError aclrtSynchronizeStream(aclrtStream handle)
{
    return aclrtSynchronizeStreamWithTimeout(handle, -1);
}

/* It reports the error of the context, if that has stopped; of the streams each says its own. */
aclError aclrtSynchronizeDevice(void)
{
    acl_context *c;
    aclError error = acl_enter("aclrtSynchronizeDevice", &c);
    if (error != ACL_SUCCESS)
        return error;
    sim_queues_wait();
    return acl_check_context(c, "aclrtSynchronizeDevice");
}

aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus *status)
{
    acl_stream *q;
    aclError error = acl_stream_working(handle, "aclrtStreamQuery", &q);
    if (error != ACL_SUCCESS)
        return error;
    if (status == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "aclrtStreamQuery: status is NULL");
    *status = sim_queue_done(&q->q) ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return ACL_SUCCESS;
}
