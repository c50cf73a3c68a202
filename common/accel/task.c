/* task.c -- host work in stream order: collectives over shm or MPI, and the last step of a
 * download.
 *
 *   accel_host_task:  {fn, args} -> the api's task_put ... its thread: accel_task_run
 *
 * A task may block until other ranks have reached their task. So each stream has a thread for its
 * tasks: with one thread for all streams, two ranks whose streams run in different orders would
 * wait for each other. Streams may share one hardware queue, where one stream's wait delays
 * the others. This is safe: the awaited work was issued before the wait, in the same order on all
 * ranks. */
#include <string.h>
#include "common/accel/accel_impl.h"
#include "common/base/recycle.h"

static void run(const accel_task *t)
{
    accel_stream *s = t->stream;
    accel_device *d = accel_device_of(s->base.device);
    if (atomic_load(&d->has_error))
        return; /* skipped */
    fsdp_status status = t->fn((void *)(uintptr_t)t->args, s->base.n_threads);
    if (status == FSDP_OK)
        return;
    if (fsdp_error_get()->status != status)
        (void)fsdp_error(status, "", "work on stream '%s' failed: %s", s->base.name,
                         fsdp_status_name(status));
    accel_work_fail(d);
}

void accel_task_run(accel_task *t, int before)
{
    if (before == 0)
        run(t);
    recycle_put(t);
}

fsdp_status accel_host_task(accel_stream *s, stream_fn fn, const void *args, size_t args_bytes)
{
    accel_task *t = recycle_get(sizeof *t + args_bytes);
    if (t == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "stream_launch: no memory for %zu bytes of arguments",
                          args_bytes);
    *t = (accel_task){.stream = s, .fn = fn};
    if (args_bytes > 0)
        memcpy(t->args, args, args_bytes);
    return accel_api_at(s)->task_put(s, t);
}

fsdp_status accel_thread_start(void *(*main)(void *), void *arg, const char *name, pthread_t *out)
{
    if (device_thread_start(out, main, arg, name) == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_ENOMEM, "raise the limit on threads (ulimit -u)",
                      "'%s': cannot start a host thread", name);
}
