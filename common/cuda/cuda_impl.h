/* cuda_impl.h -- the types that the parts of the CUDA backend share; private to common/cuda.
 *
 *   device.c   device, streams, events, copies      memory.c  blocks of device and of pinned memory
 *   tables.c   the op tables                        plugin.c  what the program gets to see
 *   *.cu       kernels, launched through launch.h
 *
 * Everything of one device is issued by one host thread. */
#pragma once
#include <cuda_runtime_api.h>
#include "common/cuda/issue.h"
#include "common/device/device_impl.h"

EXTERN_C_BEGIN

typedef struct cuda_device {
    device base;
    cudaMemPool_t pool;
    void *blocks; /* of memory.c: a tree (tsearch) of what is handed out, by address */
    struct cuda_matmul *matmul; /* of matmul.c */
} cuda_device;

typedef struct cuda_stream {
    stream base;
    cudaStream_t handle;
} cuda_stream;

typedef struct cuda_event {
    event base;
    cudaEvent_t handle;
} cuda_event;

/* cuda_device_of, cuda_stream_of -- CUDA's side of them. */
static inline cuda_device *cuda_device_of(device *d)
{
    return (cuda_device *)d;
}
static inline cudaStream_t cuda_stream_of(stream *s)
{
    return ((cuda_stream *)s)->handle;
}

/* cuda_status -- FSDP_OK, or what CUDA's error means here, with its words: FSDP_ENOMEM or
 * FSDP_EDEVICE. what: the call, or the operation. */
fsdp_status cuda_status(cudaError_t error, const char *what);

/* cuda_alloc, cuda_alloc_host, cuda_free -- the functions of device_backend that have these names.
 * cuda_memory_open, cuda_memory_close -- the pool of a device. cuda_mem_available -- as that of
 * device_backend. */
fsdp_status cuda_memory_open(cuda_device *d);
void cuda_memory_close(cuda_device *d);
fsdp_status cuda_alloc(stream *s, mem_category category, size_t bytes, const char *label,
                       void **out);
fsdp_status cuda_alloc_host(stream *s, mem_category category, size_t bytes, const char *label,
                            void **out);
void cuda_free(stream *s, void *ptr);
size_t cuda_mem_available(device *d);

/* device_cuda -- the backend. */
extern const device_backend device_cuda;
/* cuda_n_devices -- GPUs of this host, 0 where there is no driver. */
int cuda_n_devices(void);
/* ops_cuda_fast, ops_cuda_portable -- the op tables. */
const ops *ops_cuda_fast(void);
const ops *ops_cuda_portable(void);

EXTERN_C_END
