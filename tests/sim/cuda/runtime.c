/* runtime.c -- errors, devices, streams and events of the stand-in, on top of tests/sim/core. A
 * process sees several equal GPUs and uses one of them. */
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
};

static int gpu_index;
static __thread cudaError_t last_error;
static _Atomic int sticky;
static void *loaded; /* a tree of addresses for tsearch; only the issuing thread uses it */

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

/* A driver serves runtimes of its own major version only. */
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

/* FSDP_SIM_MODEL gives this rank another model than the other ranks. */
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

void sim_load(const void *code)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    if ((mode != NULL && strcmp(mode, "EAGER") == 0) || tfind(code, &loaded, code_compare) != NULL)
        return;
    (void)tsearch(code, &loaded, code_compare);
    sim_queues_wait();
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    UNLESS_STICKY();
    if (sim_sm() < 75)
        return sim_fail(cudaErrorNoKernelImageForDevice);
    *attributes = (struct cudaFuncAttributes){0};
    sim_load(kernel);
    return cudaSuccess;
}

/* ---- handles --------------------------------------------------------------------------------- */

static struct CUevent_st *live(cudaEvent_t w, const char *call)
{
    return sim_live(w, EVENT, call, "an event");
}

stream *sim_stream(cudaStream_t q)
{
    if (q == NULL)
        sim_die("a call on the default stream, which waits for all others");
    (void)sim_live(q, STREAM, "a call", "a stream");
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

typedef struct word_args {
    _Atomic uint32_t *word;
    uint32_t value;
    bool waits;
} word_args;

static fsdp_status run_word(void *args, int n_threads)
{
    const word_args *a = args;
    (void)n_threads;
    if (!a->waits)
        atomic_store(a->word, a->value);
    for (unsigned us = 10; a->waits && (int32_t)(atomic_load(a->word) - a->value) < 0;
         us += us < 200 ? us / 8 + 1 : 0)
        usleep(us);
    return FSDP_OK;
}

static int issue_word(cudaStream_t q, unsigned long long addr, uint32_t value, bool waits)
{
    const word_args a = {(_Atomic uint32_t *)(uintptr_t)addr, value, waits};
    if (sim_sticky() != cudaSuccess)
        return (int)last_error;
    if (addr % 4 != 0 || sim_range_at(a.word).kind != SIM_MAPPED)
        return cudaErrorInvalidValue; /* CUDA_ERROR_INVALID_VALUE has the same number */
    const launch_config l = {.fn = run_word,
                             .args = &a,
                             .args_bytes = sizeof a,
                             .on_host = true,
                             .waits_for = waits ? WAITS_FOR_HOST : 0};
    return (int)sim_status(stream_launch_work(sim_stream(q), &l));
}

/* CUresult cuStreamWriteValue32(...), cuStreamWaitValue32(...). */
static int write_value(cudaStream_t q, unsigned long long addr, uint32_t value, unsigned flags)
{
    return flags != 0 ? cudaErrorInvalidValue : issue_word(q, addr, value, false);
}

static int wait_value(cudaStream_t q, unsigned long long addr, uint32_t value, unsigned flags)
{
    if (flags != 0 || sim_number("FSDP_SIM_NO_WAIT", 0) != 0)
        return cudaErrorInvalidValue;
    return issue_word(q, addr, value, true);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    int (*fn)(cudaStream_t, unsigned long long, uint32_t, unsigned) =
        version < 12000                               ? NULL
        : strcmp(symbol, "cuStreamWaitValue32") == 0  ? wait_value
        : strcmp(symbol, "cuStreamWriteValue32") == 0 ? write_value
                                                      : NULL;
    if (result != NULL)
        *result = fn != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
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
    *out = w;
    return sim_status((w->timed ? event_create_timed : event_create)(sim_device(), &w->e));
}

cudaError_t cudaEventDestroy(cudaEvent_t w)
{
    event_free(live(w, "cudaEventDestroy")->e);
    sim_handle_destroy(w);
    return sim_sticky();
}

cudaError_t cudaEventRecord(cudaEvent_t w, cudaStream_t q)
{
    UNLESS_STICKY();
    live(w, "cudaEventRecord")->recorded = true;
    return sim_status(event_record(w->e, sim_stream(q)));
}

cudaError_t cudaEventSynchronize(cudaEvent_t w)
{
    UNLESS_STICKY();
    return sim_status(event_sync(live(w, "cudaEventSynchronize")->e));
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
