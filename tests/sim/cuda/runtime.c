/* runtime.c -- streams, events, memory and copies of the stand-in: those of a device whose memory
 * the host cannot touch (common/device/separate.h), or where there is no such thing of a CPU whose
 * streams are threads. A process sees SIM_GPUS equal GPUs, of which it uses one. */
#include <stdlib.h>
#include <string.h>
#include "common/device/separate.h"
#include "tests/sim/cuda/sim.h"

enum { SIM_GPUS = 16 };

struct CUstream_st {
    stream *s;
    event *tail; /* stands for all work issued, unless `changed` */
    bool changed;
};
struct CUevent_st {
    event *e;
};

static device *gpu;
static __thread cudaError_t last_error;

static cudaError_t fail(cudaError_t error)
{
    return last_error = error;
}

static cudaError_t from_status(fsdp_status status)
{
    if (status == FSDP_OK)
        return cudaSuccess;
    return fail(status == FSDP_ENOMEM ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure);
}

/* For one more call on it. */
stream *sim_stream(cudaStream_t q)
{
    if (q == NULL)
        return device_compute_stream(gpu);
    q->changed = true;
    return q->s;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    default:
        return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* ---- device ---------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = SIM_GPUS;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    device_config config = {.backend = &device_separate, .n_threads = 1, .async_compute = true};
    if (index < 0 || index >= SIM_GPUS)
        return fail(cudaErrorInvalidDevice);
    if (gpu != NULL)
        return cudaSuccess;
    fsdp_status status = device_open(&config, &gpu);
    if (status == FSDP_ESKIP) {
        config.backend = &device_cpu;
        status = device_open(&config, &gpu);
    }
    return from_status(status);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = device_mem_available(gpu);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* ---- streams and events ---------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *q, unsigned flags, int priority)
{
    (void)flags;
    *q = calloc(1, sizeof **q);
    if (*q == NULL)
        return fail(cudaErrorMemoryAllocation);
    fsdp_status status =
        stream_create(gpu, &(stream_config){.name = "CUDA", .priority = -priority}, &(*q)->s);
    return from_status(status == FSDP_OK ? event_create(gpu, &(*q)->tail) : status);
}

cudaError_t cudaStreamDestroy(cudaStream_t q)
{
    stream_free(q->s);
    event_free(q->tail);
    free(q);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t q)
{
    if (q->changed)
        (void)event_record(q->tail, q->s);
    q->changed = false;
    return event_done(q->tail) ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t q)
{
    return from_status(stream_sync(sim_stream(q)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t q, cudaEvent_t w, unsigned flags)
{
    (void)flags;
    return from_status(stream_wait_event(sim_stream(q), w->e));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *w, unsigned flags)
{
    *w = calloc(1, sizeof **w);
    if (*w == NULL)
        return fail(cudaErrorMemoryAllocation);
    return from_status(
        (flags & cudaEventDisableTiming ? event_create : event_create_timed)(gpu, &(*w)->e));
}

cudaError_t cudaEventDestroy(cudaEvent_t w)
{
    event_free(w->e);
    free(w);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t w, cudaStream_t q)
{
    return from_status(event_record(w->e, sim_stream(q)));
}

cudaError_t cudaEventSynchronize(cudaEvent_t w)
{
    return from_status(event_sync(w->e));
}

cudaError_t cudaEventQuery(cudaEvent_t w)
{
    return event_done(w->e) ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    double seconds;
    if (event_elapsed_s(begin->e, end->e, &seconds) != FSDP_OK)
        return fail(cudaErrorInvalidResourceHandle);
    *ms = (float)(seconds * 1e3);
    return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device_index)
{
    (void)device_index;
    *pool = (cudaMemPool_t)&gpu;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attr, void *value)
{
    (void)pool;
    (void)attr;
    (void)value;
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **ptr, size_t bytes, cudaStream_t q)
{
    return from_status(device_alloc(sim_stream(q), MEM_OTHER, bytes, "cudaMallocAsync", ptr));
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t q)
{
    device_free(sim_stream(q), ptr);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    return posix_memalign(ptr, 4096, bytes) == 0 ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *ptr)
{
    free(ptr);
    return cudaSuccess;
}

typedef struct copy_args {
    void *dst;
    const void *src;
    size_t bytes;
} copy_args;

static fsdp_status copy_now(void *args, int n_threads)
{
    const copy_args *a = args;
    (void)n_threads;
    memcpy(a->dst, a->src, a->bytes);
    return FSDP_OK;
}

/* Memory of the host is taken for pageable: such a copy begins when the stream is idle and is over
 * when the call returns. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t q)
{
    const copy_args a = {dst, src, bytes};
    (void)kind;
    fsdp_status status = stream_launch(sim_stream(q), copy_now, &a, sizeof a);
    return from_status(status == FSDP_OK ? stream_sync(sim_stream(q)) : status);
}

typedef struct fill_args {
    void *dst;
    int byte;
    size_t bytes;
} fill_args;

static fsdp_status fill_now(void *args, int n_threads)
{
    const fill_args *a = args;
    (void)n_threads;
    memset(a->dst, a->byte, a->bytes);
    return FSDP_OK;
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t q)
{
    const fill_args a = {dst, byte, bytes};
    return from_status(stream_launch(sim_stream(q), fill_now, &a, sizeof a));
}
