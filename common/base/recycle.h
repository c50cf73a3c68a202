/* recycle.h -- host memory for small records that every step allocates and frees: entries of a
 * stream's queue, arguments of a call in flight.
 *
 *   recycle_get ... recycle_put         from any thread; a record may be put by another thread
 *
 * A record that was put is kept for the next get of its size class (a power of two) and never
 * returned to the system. So a step that needs no more than the step before allocates nothing;
 * tests/cli/alloc.sh checks this for the trainer. The process keeps the most memory that was ever
 * in use at once: for a small model, one slab of 32 kB for each of six size classes.
 *
 * Do not use it for arrays: the memory of a device has its own cache, which the ledger counts
 * (cpu_memory.c). */
#pragma once
#include <stddef.h>

/* recycle_get -- a record of `bytes` bytes, aligned for any type, contents undefined. The caller
 * owns it until recycle_put. NULL: out of memory. */
void *recycle_get(size_t bytes);
/* recycle_put -- give a record back; do not free() it. NULL is accepted. */
void recycle_put(void *record);
