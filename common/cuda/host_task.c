/* host_task.c -- work of the host in order of a stream: collectives over shm or MPI, and the last
 * step of a download.
 *
 *   cuda_host_task:  record an event -> queue {event, fn, args, number} for the stream's worker
 *                    -> the stream waits until the worker's word reaches the number
 *   the worker:      waits for the event, runs fn, writes the number
 *
 * Not by cudaLaunchHostFunc: a task may sleep until other ranks have come to theirs, and CUDA may
 * run the functions of independent streams one after the other. Two ranks whose streams come in
 * another order would then wait for each other.
 *
 * All that a stream waits for was issued before it, in the same order on all ranks; so the streams
 * may even share one queue of the hardware.
 *
 * [CUDA cuStreamWaitValue32] is a call of the driver, which is asked for by name: the plug-in needs
 * no libcuda to be linked. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/recycle.h"
#include "common/cuda/cuda_impl.h"

typedef struct host_task {
    STAILQ_ENTRY(host_task) link;
    cudaEvent_t before; /* what the stream has to do before it */
    stream_fn fn;
    uint32_t number;
    cuda_reach reach; /* what it depends on */
    max_align_t args[];
} host_task;

struct cuda_worker {
    cuda_stream *stream;
    cuda_fate *fate;
    cuda_pinned *word; /* _Atomic uint32_t: the number of the last task that is over */
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;
    STAILQ_HEAD(, host_task) queue;
    bool stopping;
};

/* ---- the driver's call ----------------------------------------------------------------------- */

/* CUresult cuStreamWaitValue32(CUstream, CUdeviceptr, cuuint32_t value, unsigned flags) */
typedef int (*wait_value_fn)(cudaStream_t, unsigned long long, uint32_t, unsigned);
enum { WAIT_VALUE_GEQ = 0 }; /* until (int32_t)(*addr - value) >= 0 */

static fsdp_status wait_value_find(wait_value_fn *out)
{
    static _Atomic(wait_value_fn) found;
    void *fn = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    if ((*out = atomic_load(&found)) != NULL)
        return FSDP_OK;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &fn, 12000,
                                                         cudaEnableDefault, &result);
#else
    cudaError_t error =
        cudaGetDriverEntryPoint("cuStreamWaitValue32", &fn, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || fn == NULL)
        return fsdp_error(FSDP_EDEVICE, "install a newer driver of NVIDIA",
                          "the driver has no cuStreamWaitValue32, which work of the host between "
                          "that of a GPU needs");
    memcpy(out, &fn, sizeof *out);
    atomic_store(&found, *out);
    return FSDP_OK;
}

/* ---- the worker ------------------------------------------------------------------------------ */

static host_task *next_task(cuda_worker *w)
{
    pthread_mutex_lock(&w->lock);
    while (STAILQ_EMPTY(&w->queue) && !w->stopping)
        pthread_cond_wait(&w->work, &w->lock);
    host_task *t = STAILQ_FIRST(&w->queue);
    if (t != NULL)
        STAILQ_REMOVE_HEAD(&w->queue, link);
    pthread_mutex_unlock(&w->lock);
    return t;
}

static void run_task(cuda_worker *w, host_task *t)
{
    cuda_stream *s = w->stream;
    cuda_device *d = cuda_device_of(s->base.device);
    if (cudaEventSynchronize(t->before) != cudaSuccess)
        return; /* the GPU is lost, as the host will find */
    if (cuda_reach_error(d, &t->reach, s->number) != NULL)
        return; /* skipped */
    fsdp_status status = t->fn(t->args, s->base.n_threads);
    if (status == FSDP_OK)
        return;
    if (fsdp_error_get()->status != status)
        (void)fsdp_error(status, "", "work on stream '%s' failed: %s", s->base.name,
                         fsdp_status_name(status));
    cuda_fate_fail(d, w->fate, t->number);
}

static void *worker_main(void *arg)
{
    cuda_worker *w = arg;
    host_task *t;
    (void)cudaSetDevice(w->stream->base.device->config.index);
    while ((t = next_task(w)) != NULL) {
        run_task(w, t);
        atomic_store((_Atomic uint32_t *)w->word->ptr, t->number);
        (void)cudaEventDestroy(t->before);
        recycle_put(t);
    }
    return NULL;
}

/* Signals are for the main thread, but for those of a fault. */
static int worker_start(cuda_worker *w)
{
    sigset_t most, before;
    char name[16]; /* the kernel's limit */
    sigfillset(&most);
    sigdelset(&most, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    int err = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    snprintf(name, sizeof name, "%.15s", w->stream->base.name);
    if (err == 0)
        pthread_setname_np(w->thread, name);
    return err;
}

static fsdp_status worker_need(cuda_stream *s)
{
    if (s->worker != NULL)
        return FSDP_OK;
    cuda_worker *w = calloc(1, sizeof *w);
    if (w == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "stream '%s': no memory for a worker", s->base.name);
    w->stream = s;
    w->fate = &cuda_device_of(s->base.device)->fates[s->number];
    STAILQ_INIT(&w->queue);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    fsdp_status status = cuda_pinned_get(s, sizeof(uint32_t), true, &w->word);
    if (status == FSDP_OK) {
        atomic_init((_Atomic uint32_t *)w->word->ptr, w->fate->n_tasks);
        if (worker_start(w) == 0) {
            s->worker = w;
            return FSDP_OK;
        }
        cuda_pinned_put(s, w->word);
        status = fsdp_error(FSDP_ENOMEM, "raise the limit on threads (ulimit -u)",
                            "stream '%s': no thread for work of the host", s->base.name);
    }
    free(w);
    return status;
}

void cuda_worker_free(cuda_stream *s)
{
    cuda_worker *w = s->worker;
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    cuda_pinned_put(s, w->word);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w);
    s->worker = NULL;
}

/* ---- issuing --------------------------------------------------------------------------------- */

static void queue_task(cuda_worker *w, host_task *t)
{
    pthread_mutex_lock(&w->lock);
    STAILQ_INSERT_TAIL(&w->queue, t, link);
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
}

/* An event for what is issued on s so far. A worker sleeps for it. */
static cudaError_t event_now(cuda_stream *s, cudaEvent_t *out)
{
    cudaError_t error =
        cudaEventCreateWithFlags(out, cudaEventDisableTiming | cudaEventBlockingSync);
    if (error != cudaSuccess)
        return error;
    error = cudaEventRecord(*out, s->handle);
    if (error != cudaSuccess)
        (void)cudaEventDestroy(*out);
    return error;
}

fsdp_status cuda_host_task(cuda_stream *s, stream_fn fn, const void *args, size_t args_bytes)
{
    wait_value_fn wait_value;
    TRY(wait_value_find(&wait_value));
    TRY(worker_need(s));
    host_task *t = recycle_get(sizeof *t + args_bytes);
    if (t == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "stream_launch: no memory for %zu bytes of arguments",
                          args_bytes);
    *t = (host_task){.fn = fn, .reach = s->reach};
    if (args_bytes > 0)
        memcpy(t->args, args, args_bytes);
    cudaError_t error = event_now(s, &t->before);
    if (error != cudaSuccess) {
        recycle_put(t);
        return cuda_stream_check(s, error, "stream_launch");
    }
    const uint32_t number = t->number = ++s->worker->fate->n_tasks;
    s->reach.tasks[s->number] = number;
    const unsigned long long word = (uintptr_t)s->worker->word->ptr;
    queue_task(s->worker, t); /* whose thread frees it */
    if (wait_value(s->handle, word, number, WAIT_VALUE_GEQ) != 0)
        return cuda_stream_check(s, cudaErrorUnknown, "cuStreamWaitValue32");
    return FSDP_OK;
}
