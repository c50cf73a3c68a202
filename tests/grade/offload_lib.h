/* offload_lib.h -- task 4.7: state that lives in host memory. */
#pragma once
#include "lab2_forward/offload.h"
#include "tests/grade/handmade_lib.h"

/* offload_runs -- train with and without offload on a device with memory of its own: the same bits,
 * and what the ledgers say of the device and of the host. */
fsdp_status offload_runs(grade *g);

/* uploads_watch -- from now on count what the offload's upload stream of fx has copied. */
void uploads_watch(fixture *fx);
/* uploads_expect -- note whether that becomes n copies, while compute is held up. */
void uploads_expect(fixture *fx, int n);
