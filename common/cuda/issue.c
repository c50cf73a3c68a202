/* issue.c -- see issue.h. Also turns CUDA's errors into a status and a hint. */
#include "common/cuda/cuda_impl.h"

static const char *hint_for(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "use a smaller --batch-size, --seq-len or model";
    case cudaErrorNoKernelImageForDevice:
        return "build the plug-in for this GPU too: make cuda CUDA_ARCHS=...";
    case cudaErrorUnsupportedPtxVersion: /* the driver cannot compile the plug-in's PTX */
        return "build the plug-in for this GPU too, make cuda CUDA_ARCHS=..., or update NVIDIA's "
               "driver";
    default:
        return "";
    }
}

fsdp_status cuda_status(int code, const char *what)
{
    const cudaError_t error = (cudaError_t)code;
    if (error == cudaSuccess)
        return FSDP_OK;
    return fsdp_error(error == cudaErrorMemoryAllocation ? FSDP_ENOMEM : FSDP_EDEVICE,
                      hint_for(error), "%s: %s (%s)", what, cudaGetErrorString(error),
                      cudaGetErrorName(error));
}

/* CUDA keeps a call's error, and the next launch would report it. So clear it. */
int cuda_code_of(cudaError_t error)
{
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error == cudaErrorNotReady ? ACCEL_NOT_READY : (int)error;
}

typedef struct issue_args {
    cuda_issue_fn fn;
    const void *args;
    const char *name;
} issue_args;

static fsdp_status issue(stream *s, const void *args)
{
    const issue_args *a = args;
    (void)cudaGetLastError(); /* clear a library's error, which a launch would return */
    const int code = cuda_code_of(a->fn(s, a->args));
    return accel_stream_check(accel_stream_at(s), code, a->name);
}

fsdp_status cuda_issue_as(stream *s, cuda_issue_fn fn, const void *args, const launch_config *what)
{
    return accel_issue_as(s, issue, &(issue_args){fn, args, what->name}, what);
}

fsdp_status cuda_issue(stream *s, cuda_issue_fn fn, const void *args, op_work work)
{
    return accel_issue(s, issue, &(issue_args){fn, args, work.info.key.name}, work);
}

fsdp_status cuda_counts_of(stream *base, unsigned **out)
{
    accel_stream *s = accel_stream_at(base);
    void **counts = &cuda_own_of(base->device)->counts[s->number];
    const size_t bytes = CUDA_COUNTS * sizeof **out;
    if (*counts == NULL) {
        void *made = NULL;
        cudaError_t error = cudaMallocAsync(&made, bytes, s->queue);
        if (error == cudaSuccess)
            error = cudaMemsetAsync(made, 0, bytes, s->queue);
        TRY(accel_stream_check(s, cuda_code_of(error), "cudaMallocAsync"));
        *counts = made;
    }
    *out = *counts;
    return FSDP_OK;
}
