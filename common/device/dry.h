/* dry.h -- a device that computes nothing: it gives out addresses that are not mapped, runs no
 * launch and copies no byte. Its watch is told of all issued work and its ledgers count the memory.
 * So a program on it shows what it would do, in milliseconds and without using the memory.
 *
 *   device_open({.backend = device_dry(kind)}) -> anything that device.h offers -> device_close
 *
 * A download returns zeros. No time passes: event_elapsed_s returns 0, and of a watch only `issued`
 * is called. device_runs_c is true whatever device is imitated, so the operations of the CPU
 * describe the work.
 *
 * The ledger's issued figures equal the imitated device's, to the byte. The live peaks are upper
 * bounds for that device, because a stream of a dry device reaches a free only when the host waits
 * for the stream (or at once, on an inline compute stream). */
#pragma once
#include "common/device/device.h"

typedef enum dry_kind {
    DRY_CPU,      /* host memory; the compute stream is inline unless async_compute is set */
    DRY_SEPARATE, /* the CPU's queues and blocks, but device memory is not host memory */
    DRY_POOL,     /* an accelerator: a stream can reuse at once what it allocated and freed */
    DRY_KINDS
} dry_kind;

/* device_dry -- the backend that imitates such a device. Any number of devices may be open; each
 * must be used by one thread. */
const device_backend *device_dry(dry_kind kind);

/* dry_is_on_host -- whether ptr is in a block of device_alloc_host of a dry device whose device
 * memory is not host memory. False for all addresses of other devices. */
bool dry_is_on_host(const void *ptr);
