/* cuda_impl.h -- the types that the parts of the CUDA backend share; private to common/cuda. What
 * is no different with another library is in common/accel.
 *
 *   cuda_runtime.c  CUDA's calls as common/accel wants them
 *   issue.c      operations that issue work, and what CUDA's errors mean
 *   host_task.c  work of the host in a stream's order
 *   nccl.c       NCCL's calls likewise
 *   tables.c     the op tables                      plugin.c  what the program gets to see
 *   *.cu         kernels, launched through launch.h */
#pragma once
#include <cuda_runtime_api.h>
#include "common/accel/accel_impl.h"
#include "common/cuda/complaint.h"
#include "common/cuda/issue.h"

EXTERN_C_BEGIN

/* Tasks of one stream, counted: the stream has come to so many, and so many are over. */
typedef struct cuda_counts {
    _Atomic uint32_t n_reached, n_over;
} cuda_counts;

/* Memory of the host that the GPU uses while the host does. */
typedef struct cuda_shared {
    complaint_box complaint;          /* of complaint.c */
    cuda_counts tasks[ACCEL_STREAMS]; /* of host_task.c, by streams' numbers */
} cuda_shared;

/* What a device has of CUDA's own. */
typedef struct cuda_own {
    cudaMemPool_t pool;
    struct cuda_matmul *matmul; /* of matmul.c */
    cuda_shared *shared;        /* at the host's address */
    cuda_shared *shared_on_gpu; /* the same at the GPU's, which may be another */
} cuda_own;

/* cuda_own_of -- of d. */
static inline cuda_own *cuda_own_of(device *d)
{
    return (cuda_own *)accel_own(d);
}

/* cuda_status -- FSDP_OK, or what CUDA's error means here, with its words: FSDP_ENOMEM or
 * FSDP_EDEVICE. what: the call, or the operation. */
fsdp_status cuda_status(int error, const char *what);
/* cuda_code_of -- the number of a call's error, which CUDA does not keep then. */
int cuda_code_of(cudaError_t error);

/* cuda_task_put, cuda_tasks_end -- the functions of accel_api that have these names. */
fsdp_status cuda_task_put(accel_stream *s, accel_task *t);
void cuda_tasks_end(accel_stream *s);

/* device_cuda -- the backend. */
extern const device_backend device_cuda;
/* cuda_n_devices -- GPUs of this host, 0 where there is no driver. */
int cuda_n_devices(void);
/* ops_cuda_fast, ops_cuda_portable -- the op tables. */
const ops *ops_cuda_fast(void);
const ops *ops_cuda_portable(void);
/* nccl_transport -- NCCL between GPUs. */
extern const struct comm_transport nccl_transport;

EXTERN_C_END
