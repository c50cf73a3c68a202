/* host_task.c -- work of the host in order of a stream.
 *
 *   cuda_task_put:  record an event -> the stream waits until the worker has counted up to it
 *                   -> queue the task for the stream's worker
 *   the worker:     waits for the event, runs the task, counts
 *
 * CUDA loads code when it is first used, and may wait for the GPU with a lock that the worker's
 * calls need: a stream that waits for the worker would wait for ever. So what uses code that may
 * not be loaded calls cuda_tasks_await before.
 *
 * Not by cudaLaunchHostFunc: CUDA may run the functions of independent streams one after the other.
 *
 * The count stands in memory that the GPU knows by an address of its own (cuda_shared).
 *
 * [CUDA cuStreamWaitValue32] is a call of the driver, which is asked for by name: the plug-in needs
 * no libcuda to be linked. */
#include <stdlib.h>
#include <string.h>
#include "common/cuda/cuda_impl.h"

typedef struct cuda_worker {
    accel_stream *stream;
    _Atomic uint32_t *n_over;
    uint32_t n_put;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;
    STAILQ_HEAD(, accel_task) queue;
    bool stopping;
} cuda_worker;

/* ---- the driver's call ----------------------------------------------------------------------- */

/* CUresult cuStreamWaitValue32(CUstream, CUdeviceptr, cuuint32_t value, unsigned flags) */
typedef int (*wait_value_fn)(cudaStream_t, unsigned long long, uint32_t, unsigned);
enum { WAIT_VALUE_GEQ = 0 }; /* until (int32_t)(*addr - value) >= 0 */

static fsdp_status wait_value_find(wait_value_fn *out)
{
    static _Atomic(wait_value_fn) found;
    void *fn = NULL;
    if ((*out = atomic_load(&found)) != NULL)
        return FSDP_OK;
        /* A function that the driver lacks is NULL. */
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &fn, 12000,
                                                         cudaEnableDefault, NULL);
#elif CUDART_VERSION >= 12000
    cudaError_t error =
        cudaGetDriverEntryPoint("cuStreamWaitValue32", &fn, cudaEnableDefault, NULL);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuStreamWaitValue32", &fn, cudaEnableDefault);
#endif
    if (error != cudaSuccess || fn == NULL)
        return fsdp_error(FSDP_EDEVICE, "install a newer driver of NVIDIA",
                          "the driver has no cuStreamWaitValue32, which work of the host between "
                          "that of a GPU needs");
    memcpy(out, &fn, sizeof *out);
    atomic_store(&found, *out);
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

static void *worker_main(void *arg)
{
    cuda_worker *w = arg;
    accel_task *t;
    (void)cudaSetDevice(w->stream->base.device->config.index);
    while ((t = next_task(w)) != NULL) {
        cudaEvent_t before = t->before;
        accel_task_run(t, cudaEventSynchronize(before)); /* an error: the GPU is lost */
        atomic_fetch_add(w->n_over, 1);
        (void)cudaEventDestroy(before);
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
    w->n_over = &cuda_own_of(s->base.device)->shared->n_tasks[s->number];
    atomic_store(w->n_over, 0); /* no stream waits for an older count of this number */
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

/* An event for what is issued on s so far. A worker sleeps for it. */
static cudaError_t event_now(accel_stream *s, void **out)
{
    cudaEvent_t e;
    cudaError_t error =
        cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventBlockingSync);
    if (error != cudaSuccess)
        return error;
    error = cudaEventRecord(e, s->queue);
    if (error != cudaSuccess)
        (void)cudaEventDestroy(e);
    *out = e;
    return error;
}

/* All ranks put tasks in the same order, so these end without a later one of this rank. */
fsdp_status cuda_tasks_await(accel_device *d)
{
    for (int i = 0; i < ACCEL_STREAMS; i++) {
        accel_stream *s = d->fates[i].stream;
        const cuda_worker *w = s != NULL ? s->tasks : NULL;
        if (w != NULL && atomic_load(w->n_over) != w->n_put)
            TRY(accel_wait(s, NULL));
    }
    return FSDP_OK;
}

/* The worker gets the task last: one whose launch fails must never run. */
fsdp_status cuda_task_put(accel_stream *s, accel_task *t)
{
    wait_value_fn wait_value;
    fsdp_status status = wait_value_find(&wait_value);
    if (status == FSDP_OK)
        status = worker_need(s);
    if (status == FSDP_OK)
        status = accel_stream_check(s, event_now(s, &t->before), "stream_launch");
    if (status != FSDP_OK) {
        accel_task_run(t, -1);
        return status;
    }
    cuda_worker *w = s->tasks;
    cuda_shared *on_gpu = cuda_own_of(s->base.device)->shared_on_gpu;
    const int code =
        wait_value(s->queue, (uintptr_t)&on_gpu->n_tasks[s->number], w->n_put + 1, WAIT_VALUE_GEQ);
    if (code != 0) {
        (void)cudaEventDestroy(t->before);
        accel_task_run(t, -1);
        return accel_stream_check(s, code, "cuStreamWaitValue32");
    }
    w->n_put++;
    queue_task(w, t); /* whose thread frees it */
    return FSDP_OK;
}
