/* backends.h -- the devices that --device names, each with what belongs to it. A new one is a row.
 *
 *   backend_check (of the option) -> backend_of -> device_open, ops, transport
 *
 * Plug-ins are found by file name, so this table needs none of their headers. */
#pragma once
#include "common/ops/backend.h"

/* For an option of kind OPT_ENUM: its value is the number of the row, as of all functions here. */
#define BACKEND_CHOICES "cpu|separate|cuda|cuda-sim|npu|npu-sim"
#define BACKEND_HELP                                                                               \
    "where to compute (for tests: separate, a CPU whose device memory the host cannot touch, and " \
    "cuda-sim and npu-sim, which run the backends of cuda and npu on the CPU)"

/* backend_check -- whether row `number` is there. Opens its plug-in, once in a process.
 *   errors  FSDP_ESKIP there is no plug-in; FSDP_EINVAL there is one that does not load or was
 * built from other sources */
fsdp_status backend_check(int number);
/* backend_of -- row `number`, as far as backend_check has found it there; valid for ever. */
const backend *backend_of(int number);
/* backend_ops -- the operations of row `number` that --ops names: its fast ones, or the portable.
 *   errors  FSDP_EINVAL it has none with the CPU's bits */
fsdp_status backend_ops(int number, bool portable, const ops **out);
/* backend_device_index -- which of the host's devices a rank of the host computes on. Ranks share
 * them in turn: 4 ranks, 2 devices -> 0,1,0,1; the CPU is one device for all. */
int backend_device_index(int local_rank, int n_devices);
