/* plugin.c -- the symbol of this shared object that the program looks up. */
#include "common/ops/backend.h"
#include "lab6_npu/npu_impl.h"

const backend_plugin fsdp_backend = {.abi = BACKEND_ABI,
                                     .backend = {.name = "npu",
                                                 .device = &device_npu,
                                                 .n_devices = npu_n_devices,
                                                 .fast = ops_npu_fast,
                                                 .native = &hccl_transport}};
