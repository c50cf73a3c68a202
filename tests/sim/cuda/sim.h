/* sim.h -- what the parts of the stand-in share.
 *
 * It reads these variables of the environment, and nobody else does:
 *   FSDP_SIM_GPUS=n          GPUs of the host (16)
 *   FSDP_SIM_MEMORY_MIB=n    memory of each (65536)
 *   FSDP_SIM_DRIVER=12080    version of the driver (that of the runtime)
 *   FSDP_SIM_FAULT=kernel:n  the n-th launch of that kernel touches memory that is not there
 *   FSDP_SIM_MODEL=name      of the GPU (CUDA stand-in)
 *   FSDP_SIM_SM=75           its compute capability (90); before 75 there is no code for it, and
 *                            before 80 cuBLASLt has no bf16
 *   FSDP_SIM_NO_WAIT=1       the driver refuses cuStreamWaitValue32 (0)
 *   FSDP_SIM_LT_EPILOGUE=0   no algorithm of cuBLASLt adds a bias (1: all do)
 *   FSDP_SIM_LT_ALIGNMENT=16 none takes a matrix that is promised less (1)
 *   FSDP_SIM_LT_MISSING=3    the first 3 of its proposals cannot be had (0)
 *   FSDP_SIM_NCCL=22500      version of NCCL (that of its header)
 *   FSDP_SIM_HANGS=1         where NCCL would hang the stand-in does, once it has said why; else
 * the process ends */
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include "tests/sim/core/memory.h"

EXTERN_C_BEGIN

/* sim_sm -- FSDP_SIM_SM. */
int sim_sm(void);

/* sim_stream -- the stream of the CPU that stands for one of CUDA's, for one more call. */
stream *sim_stream(cudaStream_t handle);
/* sim_fail -- error is the thread's last error now; returned. sim_status: of a call of the CPU. */
cudaError_t sim_fail(cudaError_t error);
cudaError_t sim_status(fsdp_status status);
/* sim_sticky -- the error that every call returns since the GPU found it; cudaSuccess. */
cudaError_t sim_sticky(void);
#define UNLESS_STICKY()                                                                            \
    do {                                                                                           \
        if (sim_sticky() != cudaSuccess)                                                           \
            return sim_sticky();                                                                   \
    } while (0)
/* sim_before_launch -- of a kernel: it is noted for messages. Anything but cudaSuccess is to be
 * returned instead of launching. sim_after_launch: behind it. */
cudaError_t sim_before_launch(const char *kernel);
void sim_after_launch(cudaStream_t handle);

/* sim_load -- code [any address, never read] is used. CUDA loads it when that is the first time,
 * and may wait for the GPU: so does this. CUDA_MODULE_LOADING=EAGER: all is loaded before. */
void sim_load(const void *code);

EXTERN_C_END
