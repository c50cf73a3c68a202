/* sim.h -- shared by the parts of the stand-in.
 *
 * Only the stand-in reads these environment variables:
 *   FSDP_SIM_GPUS=n          GPUs of the host (16)
 *   FSDP_SIM_MEMORY_MIB=n    memory of each GPU (65536)
 *   FSDP_SIM_DRIVER=12080    version of the driver (the runtime's version)
 *   FSDP_SIM_FAULT=kernel:n  the n-th launch of that kernel touches memory that does not exist
 *   FSDP_SIM_MODEL=name      name of the GPU (CUDA stand-in)
 *   FSDP_SIM_SM=75           its compute capability (90); below 75 it has no code, and below 80
 *                            cuBLASLt has no bf16
 *   FSDP_SIM_NO_WAIT=1       the driver refuses cuStreamWaitValue32 (0)
 *   FSDP_SIM_LT_EPILOGUE=0   no algorithm of cuBLASLt adds a bias (1: all do)
 *   FSDP_SIM_LT_ALIGNMENT=16 no algorithm takes a matrix that is promised less alignment (1)
 *   FSDP_SIM_LT_MISSING=3    the first 3 algorithms that it proposes cannot be used (0)
 *   FSDP_SIM_NCCL=22500      version of NCCL (its header's version)
 *   FSDP_SIM_COUNTS=1        at its end a process prints its requests to the pool and its launches
 *   FSDP_SIM_HANGS=1         hang where NCCL would, after a message; else the process ends */
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include "tests/sim/core/memory.h"

EXTERN_C_BEGIN

/* sim_sm -- FSDP_SIM_SM. */
int sim_sm(void);

/* sim_stream -- the CPU stream of a CUDA stream, for one more call. */
stream *sim_stream(cudaStream_t handle);
/* sim_fail -- set the thread's last error, and return it. sim_status -- the same for the status of
 * a call to the CPU device. */
cudaError_t sim_fail(cudaError_t error);
cudaError_t sim_status(fsdp_status status);
/* sim_sticky -- the error that every call returns after a fault of the GPU, or cudaSuccess. */
cudaError_t sim_sticky(void);
#define UNLESS_STICKY()                                                                            \
    do {                                                                                           \
        if (sim_sticky() != cudaSuccess)                                                           \
            return sim_sticky();                                                                   \
    } while (0)
/* sim_before_launch -- note a kernel for messages. If the result is not cudaSuccess, return it and
 * do not launch. sim_after_launch -- to be called after the launch. */
cudaError_t sim_before_launch(const char *kernel);
void sim_after_launch(cudaStream_t handle);

/* sim_load -- use code [any address, never read]. CUDA loads code at its first use and may wait for
 * the GPU; this call always waits then. With CUDA_MODULE_LOADING=EAGER all code is loaded from the
 * start. */
void sim_load(const void *code);

EXTERN_C_END
