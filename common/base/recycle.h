/* recycle.h -- host memory for what a step makes and drops again and again: entries of a stream's
 * queue, arguments of a call on their way.
 *
 *   recycle_get ... recycle_put         any thread; put by another thread than got it is usual
 *
 * A record that was put waits for the next get of its size class (a power of two) and never goes
 * back to the system. So a step that needs what the step before it needed allocates nothing, which
 * tests/cli/alloc.sh holds the trainer to. The process keeps the most that was ever out at once:
 * for a small model, one slab of 32 kB for each of six size classes.
 *
 * Not for data: blocks of a device have a cache of their own that the
 * ledger counts (cpu_memory.c). */
#pragma once
#include <stddef.h>

/* recycle_get -- `bytes` bytes, aligned for any type, contents undefined; the caller owns them
 * until recycle_put. NULL: no memory. */
void *recycle_get(size_t bytes);
/* recycle_put -- give it back; NULL does nothing. Not free(). */
void recycle_put(void *record);
