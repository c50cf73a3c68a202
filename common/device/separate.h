/* separate.h -- a device for tests: a CPU whose device memory is not the host's.
 *
 * It works as device_cpu does with async_compute. But only device work may touch what device_alloc
 * gives: copies, fills, and launches without on_host. A host access, and one of a launch that is
 * on_host, ends the process with a message that names the block and the place:
 *     [rank 0/2] host access to device memory: 'parameter shard' (4096 bytes), byte 12, by ...
 * A system call that is handed device memory fails with EFAULT. device_alloc_host gives memory that
 * both sides may touch; it has a ledger of its own. guard.h says what that takes, and where an
 * access may go unseen. */
#pragma once
#include "common/device/device.h"

extern const device_backend device_separate;
