/* comm_apart_lib.h -- a CPU device that says its memory is not the host's, to test what collectives
 * do then. device_separate sees every access, but some machines cannot run it.
 *
 * All its streams are worker threads. It refuses a launch that waits for ranks but is not for the
 * host, and a launch for the host that declares an access to device memory. */
#pragma once
#include "common/device/device_impl.h"

/* apart_backend -- valid until the process ends. */
const device_backend *apart_backend(void);

/* comm_test_backend -- the device that COMM_TEST_DEVICE names: cpu (not set), apart or separate. */
const device_backend *comm_test_backend(void);

/* apart_fail_host -- the n-th device_alloc_host from now on fails (1: the next); 0: none fails. */
void apart_fail_host(int n);
