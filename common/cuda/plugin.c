/* plugin.c -- the symbol of this shared object that the program looks up. */
#include "common/cuda/cuda_impl.h"
#include "common/ops/backend.h"

const backend_plugin fsdp_backend = {.abi = BACKEND_ABI,
                                     .backend = {.name = "cuda",
                                                 .device = &device_cuda,
                                                 .n_devices = cuda_n_devices,
                                                 .fast = ops_cuda_fast,
                                                 .portable = ops_cuda_portable,
                                                 .native = &nccl_transport}};
