/* offload_lib.h -- task 4.7: state that lives in host memory. */
#pragma once
#include "lab2_forward/host_state.h"
#include "tests/grade/handmade_lib.h"

/* offload_runs -- train with and without offload on a device with its own memory. The bits must be
 * equal, and the ledgers of the device and the host must show the moved state. */
fsdp_status offload_runs(grade *g);

/* offload_pieces -- the slices that gathers make of shards on the host, several pieces long. */
fsdp_status offload_pieces(grade *g);

/* uploads_watch -- from now on count the copies on the offload's upload stream of fx. */
void uploads_watch(fixture *fx);
/* uploads_expect -- note if the count does not become n while compute is held up. */
void uploads_expect(fixture *fx, int n);
