/* host_task.c -- host work in stream order.
 *
 *   cuda_task_put:  the stream writes that it has reached task n, and waits until n tasks are over
 *                   -> queue the task for the stream's worker
 *   the worker:     waits until the stream has reached task n, runs the task, counts it
 *
 * The worker never calls CUDA. A call may need a lock of the driver, and the issuing thread may
 * hold that lock while it waits in the driver for a stream that waits for the worker. This happens
 * when code is loaded, or when many commands are queued for the GPU. (Few events with
 * cudaEventBlockingSync can be pending: an H100's driver recorded 55, then waited for the first.)
 *
 * cudaLaunchHostFunc is no alternative: CUDA may run the functions of independent streams one after
 * the other, but a task may block until a peer has run a task of another stream.
 *
 * Both counts are in memory that has another address on the GPU (cuda_shared).
 *
 * [CUDA cuStreamWriteValue32, cuStreamWaitValue32] are calls of the driver. They are looked up by
 * name, so that the plug-in need not link with libcuda. */
#include <stdlib.h>
#include <string.h>
#include "common/cuda/cuda_impl.h"

typedef struct cuda_worker {
    accel_stream *stream;
    cuda_counts *counts;
    uint32_t n_put;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;
    STAILQ_HEAD(, accel_task) queue;
    bool stopping;
} cuda_worker;

/* ---- the driver's calls ---------------------------------------------------------------------- */

/* CUresult cuStreamWriteValue32, cuStreamWaitValue32(CUstream, CUdeviceptr, cuuint32_t value,
 * unsigned flags). With flags 0, the write happens after all earlier work of the stream, and the
 * wait is for (int32_t)(*addr - value) >= 0. */
typedef int (*value_fn)(cudaStream_t, unsigned long long, uint32_t, unsigned);
enum { WRITE_VALUE, WAIT_VALUE, N_CALLS };
static const char *const CALLS[] = {"cuStreamWriteValue32", "cuStreamWaitValue32"};

static fsdp_status call_find(int call, value_fn *out)
{
    static _Atomic(value_fn) found[N_CALLS];
    const char *name = CALLS[call];
    void *fn = NULL;
    if ((*out = atomic_load(&found[call])) != NULL)
        return FSDP_OK;
        /* If the driver lacks the function, fn is NULL. */
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, NULL);
#elif CUDART_VERSION >= 12000
    cudaError_t error = cudaGetDriverEntryPoint(name, &fn, cudaEnableDefault, NULL);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &fn, cudaEnableDefault);
#endif
    if (error != cudaSuccess || fn == NULL)
        return fsdp_error(FSDP_EDEVICE, "install a newer driver of NVIDIA",
                          "the driver has no %s, which host tasks on a GPU's stream need", name);
    memcpy(out, &fn, sizeof *out);
    atomic_store(&found[call], *out);
    return FSDP_OK;
}

/* ---- the worker ------------------------------------------------------------------------------ */

static accel_task *next_task(cuda_worker *w)
{
    pthread_mutex_lock(&w->lock);
    while (STAILQ_EMPTY(&w->queue) && !w->stopping)
        pthread_cond_wait(&w->work, &w->lock);
    accel_task *t = STAILQ_FIRST(&w->queue);
    if (t != NULL)
        STAILQ_REMOVE_HEAD(&w->queue, link);
    pthread_mutex_unlock(&w->lock);
    return t;
}

/* Wait until the stream reaches task n. Returns false if the device has failed. */
static bool await_turn(const cuda_worker *w, uint32_t n)
{
    accel_looks looks = {.in_background = true};
    bool comes = true;
    while (comes && (int32_t)(atomic_load(&w->counts->n_reached) - n) < 0) {
        comes = !atomic_load(&accel_device_of(w->stream->base.device)->failed);
        accel_pause(&looks);
    }
    accel_looks_end(&looks);
    return comes;
}

static void *worker_main(void *arg)
{
    cuda_worker *w = arg;
    accel_task *t;
    for (uint32_t n = 1; (t = next_task(w)) != NULL; n++) {
        accel_task_run(t, await_turn(w, n) ? 0 : -1);
        atomic_store(&w->counts->n_over, n);
    }
    return NULL;
}

static fsdp_status worker_need(accel_stream *s)
{
    if (s->tasks != NULL)
        return FSDP_OK;
    cuda_worker *w = calloc(1, sizeof *w);
    if (w == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "stream '%s': no memory for a worker", s->base.name);
    w->stream = s;
    w->counts = &cuda_own_of(s->base.device)->shared->tasks[s->number];
    atomic_store(&w->counts->n_reached, 0); /* an earlier stream with this number left its counts */
    atomic_store(&w->counts->n_over, 0);
    STAILQ_INIT(&w->queue);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    fsdp_status status = accel_thread_start(worker_main, w, s->base.name, &w->thread);
    if (status == FSDP_OK)
        s->tasks = w;
    else
        free(w);
    return status;
}

void cuda_tasks_end(accel_stream *s)
{
    cuda_worker *w = s->tasks;
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w);
    s->tasks = NULL;
}

/* ---- issuing --------------------------------------------------------------------------------- */

static void queue_task(cuda_worker *w, accel_task *t)
{
    pthread_mutex_lock(&w->lock);
    STAILQ_INSERT_TAIL(&w->queue, t, link);
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
}

/* Make s write that it has reached task n, and wait for the end of task n. */
static fsdp_status turn_issue(accel_stream *s, uint32_t n)
{
    value_fn write_value, wait_value;
    cuda_counts *on_gpu = &cuda_own_of(s->base.device)->shared_on_gpu->tasks[s->number];
    TRY(call_find(WRITE_VALUE, &write_value));
    TRY(call_find(WAIT_VALUE, &wait_value));
    TRY(accel_stream_check(s, write_value(s->queue, (uintptr_t)&on_gpu->n_reached, n, 0),
                           CALLS[WRITE_VALUE]));
    return accel_stream_check(s, wait_value(s->queue, (uintptr_t)&on_gpu->n_over, n, 0),
                              CALLS[WAIT_VALUE]);
}

/* The worker gets the task last, because a task whose launch fails must never run. */
fsdp_status cuda_task_put(accel_stream *s, accel_task *t)
{
    fsdp_status status = worker_need(s);
    IF_OK(status, turn_issue(s, ((cuda_worker *)s->tasks)->n_put + 1));
    if (status != FSDP_OK) {
        accel_task_run(t, -1);
        return status;
    }
    cuda_worker *w = s->tasks;
    w->n_put++;
    queue_task(w, t); /* the worker's thread frees t */
    return FSDP_OK;
}
