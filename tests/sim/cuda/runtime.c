/* runtime.c -- errors, devices, streams and events of the stand-in, by those of tests/sim/core. A
 * process sees some equal GPUs, of which it uses one. */
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/sim/cuda/sim.h"

enum { STREAM = 0x57ea, EVENT = 0xe7e9 };

const sim_words sim_stands_for = {"CUDA", "GPU", "kernels", "memory of the GPU"};

struct CUstream_st {
    sim_handle handle;
    sim_queue q;
};
struct CUevent_st {
    sim_handle handle;
    event *e;
    bool timed, recorded;
    /* Of events with cudaEventBlockingSync: how often it was recorded, and reached. Any thread may
     * wait for these, while only one may wait for `e` if there is a scheduler. */
    bool any_thread;
    unsigned n_recorded, n_reached;
};

static int gpu_index;
static __thread cudaError_t last_error;
static _Atomic int sticky;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* an n_reached, or `loading` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  /* guards both */
static const char *loading;                               /* what has the driver's lock; NULL */
static void *loaded; /* tsearch, of addresses; of the thread that issues */

/* ---- errors ---------------------------------------------------------------------------------- */

cudaError_t sim_fail(cudaError_t error)
{
    return last_error = error;
}

cudaError_t sim_status(fsdp_status status)
{
    if (status == FSDP_OK)
        return cudaSuccess;
    return sim_fail(status == FSDP_ENOMEM ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure);
}

cudaError_t sim_sticky(void)
{
    const cudaError_t error = (cudaError_t)atomic_load(&sticky);
    return error == cudaSuccess ? error : sim_fail(error);
}

#define UNLESS_STICKY()                                                                            \
    do {                                                                                           \
        if (sim_sticky() != cudaSuccess)                                                           \
            return last_error;                                                                     \
    } while (0)

#define ERRORS(X)                                                                                  \
    X(cudaSuccess, "no error")                                                                     \
    X(cudaErrorInvalidValue, "invalid argument")                                                   \
    X(cudaErrorMemoryAllocation, "out of memory")                                                  \
    X(cudaErrorInitializationError, "initialization error")                                        \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                             \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                            \
    X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device") \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
    X(cudaErrorNotReady, "device not ready")                                                       \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
    X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the memory is already mapped")         \
    X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered region")      \
    X(cudaErrorLaunchFailure, "unspecified launch failure")

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(code, text)                                                                           \
    case code:                                                                                     \
        return #code;
        ERRORS(NAME)
    default:
        return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define TEXT(code, text)                                                                           \
    case code:                                                                                     \
        return text;
        ERRORS(TEXT)
    default:
        return "unknown error";
    }
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

/* ---- faults ---------------------------------------------------------------------------------- */

static __thread bool faults;

cudaError_t sim_before_launch(const char *kernel)
{
    UNLESS_STICKY();
    faults = sim_launch_note(kernel);
    return cudaSuccess;
}

static fsdp_status run_fault(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    atomic_store(&sticky, cudaErrorIllegalAddress);
    return FSDP_OK;
}

void sim_after_launch(cudaStream_t q)
{
    if (faults)
        (void)stream_launch(sim_stream(q), run_fault, NULL, 0);
}

/* ---- device ---------------------------------------------------------------------------------- */

static int n_gpus(void)
{
    return (int)sim_number("FSDP_SIM_GPUS", 16);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)sim_number("FSDP_SIM_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* A driver serves runtimes of its own major version. */
cudaError_t cudaGetDeviceCount(int *count)
{
    int driver;
    *count = 0;
    (void)cudaDriverGetVersion(&driver);
    if (driver / 1000 < CUDART_VERSION / 1000)
        return sim_fail(cudaErrorInsufficientDriver);
    if ((*count = n_gpus()) == 0)
        return sim_fail(cudaErrorNoDevice);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    if (index < 0 || index >= n_gpus())
        return sim_fail(cudaErrorInvalidDevice);
    gpu_index = index;
    return sim_device() != NULL ? sim_sticky() : sim_status(sim_device_open());
}

cudaError_t cudaGetDevice(int *index)
{
    *index = gpu_index;
    return cudaSuccess;
}

int sim_sm(void)
{
    const char *text = getenv("FSDP_SIM_SM");
    return text != NULL ? atoi(text) : 90;
}

/* FSDP_SIM_MODEL: another one than the other ranks have. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int index)
{
    const char *model = getenv("FSDP_SIM_MODEL");
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "%s", model != NULL ? model : "CUDA stand-in");
    prop->major = sim_sm() / 10;
    prop->minor = sim_sm() % 10;
    snprintf(prop->uuid.bytes, sizeof prop->uuid.bytes, "stand-in %d", index);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* ---- lazy loading ---------------------------------------------------------------------------- */

static int code_compare(const void *a, const void *b)
{
    return ((uintptr_t)a > (uintptr_t)b) - ((uintptr_t)a < (uintptr_t)b);
}

static void loading_is(const char *name)
{
    pthread_mutex_lock(&lock);
    loading = name;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void sim_load(const void *code, const char *name)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    if ((mode != NULL && strcmp(mode, "EAGER") == 0) || tfind(code, &loaded, code_compare) != NULL)
        return;
    (void)tsearch(code, &loaded, code_compare);
    loading_is(name);
    sim_queues_wait();
    loading_is(NULL);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    UNLESS_STICKY();
    if (sim_sm() < 75)
        return sim_fail(cudaErrorNoKernelImageForDevice);
    *attributes = (struct cudaFuncAttributes){0};
    sim_load(kernel, "a kernel");
    return cudaSuccess;
}

/* ---- handles --------------------------------------------------------------------------------- */

static struct CUevent_st *live(cudaEvent_t w, const char *call)
{
    const char *is = sim_handle_is_not(w, EVENT);
    if (is != NULL)
        sim_die("%s of an event that is %s", call, is);
    return w;
}

stream *sim_stream(cudaStream_t q)
{
    if (q == NULL)
        sim_die("a call on the default stream, which waits for all others");
    if (sim_handle_is_not(q, STREAM) != NULL)
        sim_die("a call on a stream that is destroyed");
    return sim_queue_use(&q->q);
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    UNLESS_STICKY();
    cudaStream_t q = calloc(1, sizeof *q);
    if (q == NULL)
        return sim_fail(cudaErrorMemoryAllocation);
    if (flags != cudaStreamNonBlocking)
        sim_die("a stream that waits for the default stream");
    q->handle.what = STREAM;
    *out = q;
    return sim_status(sim_queue_open(&q->q, -priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t q)
{
    (void)sim_stream(q);
    sim_queue_close(&q->q);
    sim_handle_destroy(q);
    return sim_sticky();
}

cudaError_t cudaStreamQuery(cudaStream_t q)
{
    UNLESS_STICKY();
    return sim_queue_done(&q->q) ? sim_sticky() : sim_fail(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t q, cudaEvent_t w, unsigned flags)
{
    UNLESS_STICKY();
    if (flags != 0)
        return sim_fail(cudaErrorInvalidValue);
    return sim_status(stream_wait_event(sim_stream(q), live(w, "cudaStreamWaitEvent")->e));
}

typedef struct wait_args {
    const _Atomic uint32_t *word;
    uint32_t value;
} wait_args;

static fsdp_status run_wait(void *args, int n_threads)
{
    const wait_args *a = args;
    (void)n_threads;
    while ((int32_t)(atomic_load(a->word) - a->value) < 0)
        usleep(10);
    return FSDP_OK;
}

/* CUresult cuStreamWaitValue32(...); flags 0: until the word reaches the value. */
static int wait_value(cudaStream_t q, unsigned long long addr, uint32_t value, unsigned flags)
{
    const wait_args a = {(const _Atomic uint32_t *)(uintptr_t)addr, value};
    if (sim_sticky() != cudaSuccess)
        return (int)last_error;
    if (sim_number("FSDP_SIM_NO_WAIT", 0) != 0)
        return cudaErrorInvalidValue;
    if (flags != 0 || addr % 4 != 0 || sim_range_at(a.word).kind != SIM_MAPPED)
        return cudaErrorInvalidValue; /* CUDA_ERROR_INVALID_VALUE has this number too */
    const launch_config l = {.fn = run_wait,
                             .args = &a,
                             .args_bytes = sizeof a,
                             .on_host = true,
                             .waits_for = WAITS_FOR_HOST};
    return (int)sim_status(stream_launch_work(sim_stream(q), &l));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    int (*fn)(cudaStream_t, unsigned long long, uint32_t, unsigned) = wait_value;
    const bool found = strcmp(symbol, "cuStreamWaitValue32") == 0 && version >= 12000;
    if (result != NULL)
        *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    if (!found)
        fn = NULL;
    memcpy(function, &fn, sizeof fn);
    return flags == 0 ? cudaSuccess : sim_fail(cudaErrorInvalidValue);
}

/* ---- events ---------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    UNLESS_STICKY();
    cudaEvent_t w = calloc(1, sizeof *w);
    if (w == NULL)
        return sim_fail(cudaErrorMemoryAllocation);
    w->handle.what = EVENT;
    w->timed = !(flags & cudaEventDisableTiming);
    w->any_thread = flags & cudaEventBlockingSync;
    *out = w;
    return sim_status((w->timed ? event_create_timed : event_create)(sim_device(), &w->e));
}

cudaError_t cudaEventDestroy(cudaEvent_t w)
{
    event_free(live(w, "cudaEventDestroy")->e);
    sim_handle_destroy(w);
    return sim_sticky();
}

static fsdp_status run_reached(void *args, int n_threads)
{
    cudaEvent_t w = *(cudaEvent_t *)args;
    (void)n_threads;
    pthread_mutex_lock(&lock);
    w->n_reached++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return FSDP_OK;
}

cudaError_t cudaEventRecord(cudaEvent_t w, cudaStream_t q)
{
    UNLESS_STICKY();
    live(w, "cudaEventRecord")->recorded = true;
    fsdp_status status = event_record(w->e, sim_stream(q));
    if (status == FSDP_OK && w->any_thread) {
        w->n_recorded++;
        status = stream_launch_work(
            q->q.s, &(launch_config){
                        .fn = run_reached, .args = &w, .args_bytes = sizeof w, .on_host = true});
    }
    return sim_status(status);
}

cudaError_t cudaEventSynchronize(cudaEvent_t w)
{
    UNLESS_STICKY();
    if (!live(w, "cudaEventSynchronize")->any_thread)
        return sim_status(event_sync(w->e));
    pthread_mutex_lock(&lock);
    while (w->n_reached < w->n_recorded && loading == NULL)
        pthread_cond_wait(&changed, &lock);
    if (loading != NULL)
        sim_die("%s is loaded at its first use while a stream waits for a thread, which waits in "
                "cudaEventSynchronize for the driver's lock",
                loading);
    pthread_mutex_unlock(&lock);
    return sim_sticky();
}

cudaError_t cudaEventQuery(cudaEvent_t w)
{
    UNLESS_STICKY();
    return event_done(live(w, "cudaEventQuery")->e) ? sim_sticky() : sim_fail(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    double seconds;
    UNLESS_STICKY();
    const struct CUevent_st *from = live(begin, "cudaEventElapsedTime");
    const struct CUevent_st *to = live(end, "cudaEventElapsedTime");
    if (!from->timed || !to->timed || !from->recorded || !to->recorded)
        return sim_fail(cudaErrorInvalidResourceHandle);
    if (!event_done(from->e) || !event_done(to->e))
        return sim_fail(cudaErrorNotReady);
    (void)event_elapsed_s(from->e, to->e, &seconds);
    *ms = (float)(seconds * 1e3);
    return cudaSuccess;
}
