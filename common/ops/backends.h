/* backends.h -- the table of the devices that --device names. A new device needs one row.
 *
 *   backend_check (the option's value) -> backend_of -> device_open, ops, transport
 *
 * Plug-ins are found by file name, so this table needs none of their headers. */
#pragma once
#include "common/ops/backend.h"

/* For an option of kind OPT_ENUM. Its value is a row number, which the functions below take. */
#define BACKEND_CHOICES "cpu|separate|cuda|cuda-sim|npu|npu-sim"
#define BACKEND_HELP                                                                               \
    "where to compute (for tests: separate, a CPU whose device memory the host cannot touch, and " \
    "cuda-sim and npu-sim, which run the backends of cuda and npu on the CPU)"

/* backend_check -- check that row `number` is available. Opens its plug-in once per process.
 *   errors  FSDP_ESKIP: the plug-in does not exist; FSDP_EINVAL: it does not load, or was built
 *           from other sources */
fsdp_status backend_check(int number);
/* backend_of -- the backend of row `number`, after backend_check succeeded; never freed. */
const backend *backend_of(int number);
/* backend_ops -- the operations of row `number` for --ops: its fast or its portable table.
 *   errors  FSDP_EINVAL: the backend has no portable table */
fsdp_status backend_ops(int number, bool portable, const ops **out);
/* backend_device_index -- which of the host's devices a rank of that host computes on. Devices are
 * dealt out in turn: 4 ranks, 2 devices -> 0,1,0,1. The CPU is one device that all ranks share. */
int backend_device_index(int local_rank, int n_devices);
