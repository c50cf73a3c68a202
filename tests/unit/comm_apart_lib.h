/* comm_apart_lib.h -- a CPU device that says its memory is not the host's, for tests of what
 * collectives do then; beside device_separate, which sees every access but needs a machine for it.
 *
 * All its streams are worker threads. It refuses a launch that waits for ranks and is not for the
 * host, and one that is for the host and says that it touches device memory. */
#pragma once
#include "common/device/device_impl.h"

/* apart_backend -- valid until the process ends. */
const device_backend *apart_backend(void);

/* comm_test_backend -- what COMM_TEST_DEVICE says: cpu (not set), apart or separate. */
const device_backend *comm_test_backend(void);

/* apart_fail_host -- the n-th device_alloc_host from now on fails (1: the next); 0: none does. */
void apart_fail_host(int n);
