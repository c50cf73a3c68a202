/* device.c -- a GPU as a device of device.h: streams, events and copies are CUDA's, one for one.
 *
 * [CUDA cudaStreamCreateWithPriority, cudaEventRecord, cudaMemcpyAsync] */
#include <stdlib.h>
#include "common/cuda/cuda_impl.h"
#include "common/cuda/fast_kernels.h"

fsdp_status cuda_status(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return FSDP_OK;
    if (error == cudaErrorMemoryAllocation)
        return fsdp_error(FSDP_ENOMEM, "use a smaller --batch-size, --seq-len or model", "%s: %s",
                          what, cudaGetErrorString(error));
    return fsdp_error(FSDP_EDEVICE, "", "%s: %s (%s)", what, cudaGetErrorString(error),
                      cudaGetErrorName(error));
}

int cuda_n_devices(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

/* ---- streams --------------------------------------------------------------------------------- */

static fsdp_status cuda_stream_create(device *d, const stream_config *config, stream **out)
{
    int least, greatest;
    TRY(cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities"));
    cuda_stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "stream_create: no memory for '%s'", config->name);
    s->base.device = d;
    s->base.n_threads = 1;
    snprintf(s->base.name, sizeof s->base.name, "%s", config->name);
    int priority = -config->priority; /* CUDA's go the other way */
    priority = priority > least ? least : priority < greatest ? greatest : priority;
    fsdp_status status = cuda_status(
        cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking, priority), "stream_create");
    if (status == FSDP_OK)
        *out = &s->base;
    else
        free(s);
    return status;
}

static fsdp_status cuda_stream_sync(stream *s)
{
    return cuda_status(cudaStreamSynchronize(cuda_stream_of(s)), s->name);
}

static void cuda_stream_free(stream *s)
{
    (void)cudaStreamSynchronize(cuda_stream_of(s));
    (void)cudaStreamDestroy(cuda_stream_of(s));
    free(s);
}

/* ---- events ---------------------------------------------------------------------------------- */

static fsdp_status cuda_event_create(device *d, bool timed, event **out)
{
    cuda_event *e = calloc(1, sizeof *e);
    if (e == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "event_create: no memory");
    e->base = (event){.device = d, .timed = timed};
    fsdp_status status = cuda_status(
        cudaEventCreateWithFlags(&e->handle, timed ? cudaEventDefault : cudaEventDisableTiming),
        "event_create");
    if (status == FSDP_OK)
        *out = &e->base;
    else
        free(e);
    return status;
}

static void cuda_event_free(event *e)
{
    (void)cudaEventDestroy(((cuda_event *)e)->handle);
    free(e);
}

static fsdp_status cuda_event_record(event *e, stream *s)
{
    return cuda_status(cudaEventRecord(((cuda_event *)e)->handle, cuda_stream_of(s)),
                       "event_record");
}

static fsdp_status cuda_stream_wait_event(stream *s, event *e, const device_act *act)
{
    (void)act;
    return cuda_status(cudaStreamWaitEvent(cuda_stream_of(s), ((cuda_event *)e)->handle, 0),
                       "stream_wait_event");
}

static fsdp_status cuda_event_sync(event *e)
{
    return cuda_status(cudaEventSynchronize(((cuda_event *)e)->handle), "event_sync");
}

static bool cuda_event_done(event *e)
{
    return cudaEventQuery(((cuda_event *)e)->handle) == cudaSuccess;
}

static fsdp_status cuda_event_elapsed_s(event *begin, event *end, double *out)
{
    float ms = 0;
    TRY(cuda_status(
        cudaEventElapsedTime(&ms, ((cuda_event *)begin)->handle, ((cuda_event *)end)->handle),
        "event_elapsed_s"));
    *out = (double)ms * 1e-3;
    return FSDP_OK;
}

/* ---- copies and launches --------------------------------------------------------------------- */

static fsdp_status cuda_move(stream *s, const device_act *act)
{
    cudaStream_t handle = cuda_stream_of(s);
    if (act->kind == ACT_FILL)
        return cuda_status(cudaMemsetAsync(act->dst, act->byte, act->bytes, handle), "fill");
    return cuda_status(cudaMemcpyAsync(act->dst, act->src, act->bytes, cudaMemcpyDefault, handle),
                       "copy");
}

/* The work that fn issues is the device's own: fn runs now. */
static fsdp_status cuda_launch(stream *s, const launch_config *l, const device_act *act)
{
    (void)act;
    (void)s;
    FSDP_ASSERT(l->issues && "a launch on the host is not there yet");
    return l->fn((void *)(uintptr_t)l->args, 1);
}

typedef struct issue_args {
    cuda_issue_fn fn;
    cudaStream_t stream;
    const void *args;
    const char *name;
} issue_args;

static fsdp_status issue_now(void *args, int n_threads)
{
    const issue_args *a = args;
    (void)n_threads;
    return cuda_status(a->fn(a->stream, a->args), a->name);
}

fsdp_status cuda_issue(stream *s, cuda_issue_fn fn, const void *args, op_work work)
{
    const issue_args a = {fn, cuda_stream_of(s), args, work.info.key.name};
    return stream_launch_work(s, &(launch_config){.fn = issue_now,
                                                  .args = &a,
                                                  .args_bytes = sizeof a,
                                                  .issues = true,
                                                  .work = work.info,
                                                  .accesses = work.accesses,
                                                  .n_accesses = work.n_accesses});
}

/* ---- device ---------------------------------------------------------------------------------- */

static void cuda_close(device *d)
{
    if (d->compute != NULL)
        cuda_stream_free(d->compute);
    matmul_close(cuda_device_of(d)->matmul);
    cuda_memory_close(cuda_device_of(d));
    ledger_free(d->host_ledger);
    ledger_free(d->ledger);
    free(d);
}

static fsdp_status cuda_open(const device_config *config, device **out)
{
    int n = cuda_n_devices();
    if (n == 0)
        return fsdp_error(FSDP_ESKIP, "install NVIDIA's driver, or run it with --device cpu",
                          "--device cuda: this machine has no GPU that CUDA can use");
    if (config->index >= n || config->index < 0)
        return fsdp_error(FSDP_EINVAL, "", "device_open: GPU %d of %d", config->index, n);
    cuda_device *d = calloc(1, sizeof *d);
    if (d == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_open: no memory");
    d->base = (device){.backend = &device_cuda,
                       .config = *config,
                       .ledger = ledger_create(),
                       .host_ledger = ledger_create()};
    fsdp_status status = d->base.ledger == NULL || d->base.host_ledger == NULL
                             ? fsdp_error(FSDP_ENOMEM, "", "device_open: no memory")
                             : cuda_status(cudaSetDevice(config->index), "cudaSetDevice");
    if (status == FSDP_OK)
        status = cuda_memory_open(d);
    if (status == FSDP_OK)
        status = matmul_open(&d->matmul);
    if (status == FSDP_OK)
        status =
            cuda_stream_create(&d->base, &(stream_config){.name = "compute"}, &d->base.compute);
    if (status == FSDP_OK)
        *out = &d->base;
    else
        cuda_close(&d->base);
    return status;
}

const device_backend device_cuda = {.name = "cuda",
                                    .open = cuda_open,
                                    .close = cuda_close,
                                    .stream_create = cuda_stream_create,
                                    .stream_free = cuda_stream_free,
                                    .stream_sync = cuda_stream_sync,
                                    .event_create = cuda_event_create,
                                    .event_free = cuda_event_free,
                                    .event_record = cuda_event_record,
                                    .stream_wait_event = cuda_stream_wait_event,
                                    .event_sync = cuda_event_sync,
                                    .event_done = cuda_event_done,
                                    .event_elapsed_s = cuda_event_elapsed_s,
                                    .alloc = cuda_alloc,
                                    .alloc_host = cuda_alloc_host,
                                    .free = cuda_free,
                                    .move = cuda_move,
                                    .launch = cuda_launch,
                                    .mem_available = cuda_mem_available};
