/* device.c -- a GPU as a device of device.h: opening it, and launches. */
#include <stdlib.h>
#include "common/cuda/complaint.h"
#include "common/cuda/cuda_impl.h"
#include "common/cuda/fast_kernels.h"

int cuda_n_devices(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess)
        return n;
    (void)cudaGetLastError();
    return 0;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* What issues work of the GPU's own runs now. */
static fsdp_status cuda_launch(stream *base, const launch_config *l, const device_act *act)
{
    cuda_stream *s = cuda_stream_at(base);
    TRY(cuda_stream_status(s));
    cuda_stream_recent(s, l->work.key.name != NULL ? l->work.key.name : l->name, l->label);
    cuda_watched *watched = cuda_watch_begin(s, act);
    fsdp_status status = l->issues ? l->fn((void *)(uintptr_t)l->args, base->n_threads)
                                   : cuda_host_task(s, l->fn, l->args, l->args_bytes);
    cuda_watch_end(s, watched, status);
    return status;
}

typedef struct issue_args {
    cuda_issue_fn fn;
    cuda_stream *stream;
    const void *args;
    const char *name;
} issue_args;

static fsdp_status issue_now(void *args, int n_threads)
{
    const issue_args *a = args;
    (void)n_threads;
    return cuda_stream_check(a->stream, a->fn(a->stream->handle, a->args), a->name);
}

fsdp_status cuda_issue_as(stream *s, cuda_issue_fn fn, const void *args, const launch_config *what)
{
    const issue_args a = {fn, cuda_stream_at(s), args,
                          what->name ? what->name : what->work.key.name};
    launch_config l = *what;
    l.fn = issue_now;
    l.args = &a;
    l.args_bytes = sizeof a;
    l.issues = true;
    return stream_launch_work(s, &l);
}

fsdp_status cuda_issue(stream *s, cuda_issue_fn fn, const void *args, op_work work)
{
    return cuda_issue_as(s, fn, args,
                         &(launch_config){.work = work.info,
                                          .accesses = work.accesses,
                                          .n_accesses = work.n_accesses});
}

/* ---- device ---------------------------------------------------------------------------------- */

static void cuda_close(device *d)
{
    for (int i = CUDA_STREAMS - 1; i >= 0; i--)
        if (cuda_device_of(d)->fates[i].stream != NULL)
            cuda_stream_free(&cuda_device_of(d)->fates[i].stream->base);
    matmul_close(cuda_device_of(d)->matmul);
    complaint_close(cuda_device_of(d)->complaint);
    cuda_memory_close(cuda_device_of(d));
    cuda_watch_close(cuda_device_of(d));
    pthread_mutex_destroy(&cuda_device_of(d)->lock);
    ledger_free(d->host_ledger);
    ledger_free(d->ledger);
    free(d);
}

/* error: what cudaGetDeviceCount says, cudaSuccess where it found none. */
static fsdp_status no_gpu(cudaError_t error)
{
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver > 0)
        return fsdp_error(
            FSDP_ESKIP,
            "update NVIDIA's driver, or build the plug-in with an older toolkit: make "
            "cuda CUDA_HOME=...",
            "--device cuda: the driver is for CUDA %d.%d, and the plug-in was built "
            "with CUDA %d.%d",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return fsdp_error(FSDP_ESKIP, "install NVIDIA's driver, or run it with --device cpu",
                      "--device cuda: this machine has no GPU that CUDA can use (%s)",
                      cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice));
}

static fsdp_status parts_open(cuda_device *d)
{
    const stream_config compute = {.name = "compute", .n_threads = d->base.config.n_threads};
    TRY(cuda_memory_open(d));
    TRY(matmul_open(d->base.config.index, &d->matmul));
    TRY(complaint_open(&d->complaint));
    TRY(cuda_watch_open(d));
    return cuda_stream_create(&d->base, &compute, &d->base.compute);
}

static fsdp_status cuda_open(const device_config *config, device **out)
{
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n == 0)
        return no_gpu(error);
    if (config->index >= n || config->index < 0)
        return fsdp_error(FSDP_EINVAL,
                          "nvidia-smi -L lists the GPUs; CUDA_VISIBLE_DEVICES may hide some",
                          "device_open: GPU %d, expected one from 0 to %d", config->index, n - 1);
    cuda_device *d = calloc(1, sizeof *d);
    if (d == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "device_open: no memory");
    d->base = (device){.backend = &device_cuda,
                       .config = *config,
                       .ledger = ledger_create(),
                       .host_ledger = ledger_create()};
    pthread_mutex_init(&d->lock, NULL);
    fsdp_status status = d->base.ledger == NULL || d->base.host_ledger == NULL
                             ? fsdp_error(FSDP_ENOMEM, "", "device_open: no memory")
                             : cuda_status(cudaSetDevice(config->index), "cudaSetDevice");
    if (status == FSDP_OK)
        status = parts_open(d);
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
                                    .share_find = cuda_share_find,
                                    .share_fd = cuda_share_fd,
                                    .free = cuda_free,
                                    .move = cuda_move,
                                    .launch = cuda_launch,
                                    .mem_available = cuda_mem_available};
