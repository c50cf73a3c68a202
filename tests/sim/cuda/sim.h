/* sim.h -- what the parts of the stand-in share. */
#pragma once
#include <cuda_runtime_api.h>
#include "common/device/device.h"

EXTERN_C_BEGIN

/* sim_stream -- the stream of the CPU that stands for one of CUDA's. */
stream *sim_stream(cudaStream_t stream);

EXTERN_C_END
