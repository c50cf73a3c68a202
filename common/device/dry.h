/* dry.h -- a device that computes nothing: it gives out addresses that nobody maps, runs no launch
 * and copies no byte. What is issued on it is told to its watch and counted in its ledgers, so a
 * program that runs on it shows what it would do, in milliseconds and without the memory.
 *
 *   device_open({.backend = device_dry(kind)}) -> anything that device.h offers -> device_close
 *
 * A download gives zeros. No time passes: event_elapsed_s gives 0, and a watch hears of work when
 * it is issued, never that it ran. Launches count as C functions (device_runs_c), whatever device
 * is imitated, so the operations of the CPU describe the work.
 *
 * The ledger's issued figures equal the imitated device's, to the byte. Its peaks in time are an
 * upper bound of that device's peaks, because a stream of a dry device reaches a free only
 * when the host waits for it (or, on a CPU's compute stream, at once). */
#pragma once
#include "common/device/device.h"

typedef enum dry_kind {
    DRY_CPU, /* memory is the host's; the compute stream is inline unless async_compute is set */
    DRY_SEPARATE, /* the CPU's queues and blocks, memory is not the host's */
    DRY_POOL,     /* an accelerator: a stream gets back at once what it has freed itself */
    DRY_KINDS
} dry_kind;

/* device_dry -- the backend that imitates such a device. Any number of devices may be open, in one
 * thread each. */
const device_backend *device_dry(dry_kind kind);

/* dry_is_on_host -- whether ptr lies in a block of a dry device's device_alloc_host, where that is
 * not device memory. Addresses of other devices are never mistaken for such blocks. */
bool dry_is_on_host(const void *ptr);
