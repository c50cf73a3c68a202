/* recycle.h -- host memory for what every step makes and drops again: entries of a stream's queue,
 * arguments of a call in flight.
 *
 *   recycle_get ... recycle_put         from any thread; a record may be put by another thread
 *
 * A record that was put waits for the next get of its size class (a power of two) and never goes
 * back to the system. So a step that needs what the step before it needed allocates nothing;
 * tests/cli/alloc.sh checks that for the trainer. The process keeps the most that was ever in use
 * at once: for a small model, one slab of 32 kB for each of six size classes.
 *
 * Not for data: a device's blocks have their own cache, which the ledger counts (cpu_memory.c). */
#pragma once
#include <stddef.h>

/* recycle_get -- `bytes` bytes, aligned for any type, contents undefined; the caller owns them
 * until recycle_put. NULL: no memory. */
void *recycle_get(size_t bytes);
/* recycle_put -- give a record back, which free() must never see; NULL is accepted. */
void recycle_put(void *record);
