/* cuda_impl.h -- types and functions that the files of the CUDA backend share; private to
 * common/cuda. The code that is the same for all accelerators is in common/accel.
 *
 *   cuda_runtime.c  fills accel_api with CUDA's calls
 *   nccl.c          fills native_api with NCCL's calls
 *   issue.c         issues work of operations; CUDA's errors
 *   host_task.c     host work in stream order
 *   matmul.c        products by cuBLASLt            complaint.c  errors found by kernels
 *   tables.c        the op tables                   plugin.c     the plug-in's exported symbol
 *   *.cu            kernels, launched through launch.h */
#pragma once
#include <cuda_runtime_api.h>
#include "common/accel/accel_impl.h"
#include "common/cuda/complaint.h"
#include "common/cuda/issue.h"

EXTERN_C_BEGIN

/* How many host tasks a stream has reached, and how many of these are over. */
typedef struct cuda_counts {
    _Atomic uint32_t n_reached, n_over;
} cuda_counts;

/* Host memory that the host and the GPU use at the same time. */
typedef struct cuda_shared {
    complaint_box complaint;          /* complaint.c */
    cuda_counts tasks[ACCEL_STREAMS]; /* host_task.c, by number of the stream */
} cuda_shared;

/* The data of the CUDA side of a device. */
typedef struct cuda_own {
    cudaMemPool_t pool;
    struct cuda_matmul *matmul;  /* matmul.c */
    cuda_shared *shared;         /* its address on the host */
    cuda_shared *shared_on_gpu;  /* its address on the GPU, which may differ */
    void *counts[ACCEL_STREAMS]; /* issue.c: by number of the stream; NULL: none yet */
} cuda_own;

/* cuda_own_of -- the data of the CUDA side of d. */
static inline cuda_own *cuda_own_of(device *d)
{
    return (cuda_own *)accel_own(d);
}

/* cuda_status -- FSDP_OK, or FSDP_ENOMEM or FSDP_EDEVICE with CUDA's message. what: the call, or
 * the operation. */
fsdp_status cuda_status(int error, const char *what);
/* cuda_code_of -- a CUDA error as a code of accel_api; clears CUDA's last error. */
int cuda_code_of(cudaError_t error);

/* cuda_task_put, cuda_tasks_end -- task_put and tasks_end of accel_api. */
fsdp_status cuda_task_put(accel_stream *s, accel_task *t);
void cuda_tasks_end(accel_stream *s);

/* device_cuda -- the backend. */
extern const device_backend device_cuda;
/* cuda_n_devices -- the number of GPUs of this host, 0 without a driver. */
int cuda_n_devices(void);
/* ops_cuda_fast, ops_cuda_portable -- the op tables. */
const ops *ops_cuda_fast(void);
const ops *ops_cuda_portable(void);
/* nccl_transport -- NCCL between GPUs. */
extern const struct comm_transport nccl_transport;

EXTERN_C_END
