/* separate.h -- a device for tests: a CPU whose device memory the host must not touch.
 *
 * It works like device_cpu with async_compute. But only device work may touch the memory of
 * device_alloc: copies, fills, and launches without on_host. An access by the host, or by a launch
 * with on_host, ends the process with a message that names the block and the place:
 *     [rank 0/2] host access to device memory: 'parameter shard' (4096 bytes), byte 12, by ...
 * In most builds a system call on device memory fails with EFAULT. Both sides may touch the memory
 * of device_alloc_host, which has its own ledger. guard.h describes the mechanism and the accesses
 * that it misses. */
#pragma once
#include "common/device/device.h"

extern const device_backend device_separate;
