/* snapshot.h -- write the blocks of device and host memory that are alive at some time in one step
 * to a file: a page for a browser, or CSV.
 *
 *   snapshot_open (before the first block) -> snapshot_step, snapshot_end_step ... of every step
 *   -> snapshot_write (the latest step) -> the device is closed -> snapshot_free
 *
 * A timeline holds only what is issued in one step, but most of the memory that a step uses is
 * older than the step. So a snapshot keeps every block that is alive, and forgets freed blocks when
 * a step begins.
 *
 * Time is counted in calls of device_alloc and device_free, from 1 in each step. A block is alive
 * from the call that allocates it to the call that frees it, as in the issued figures of the ledger
 * (ledger.h), so every run gives the same rows. CSV has one row per block:
 *
 *   label,category,scope,phase,stream,bytes,birth,death,reserved,memory
 *
 * `birth` is 0 or less if the block is older than the step; `death` is empty if the block outlives
 * the step. `scope` is the unit of a collective that uses the block, or else the layer. `phase` is
 * the host's phase at the allocation: forward, recompute or backward. Both may be empty. `reserved`
 * is device_mem_reserved after the allocation, 0 for a block of the host. `memory` is `host` for
 * a block of device_alloc_host if the device has its own memory, else `device`.
 *
 * The page holds the same rows and a script that draws them (snapshot_page.html), host memory below
 * device memory. It needs no network. If a step has more than SNAPSHOT_MOST_CALLS calls, the page
 * shows only the calls around the peak of device memory, and says so. */
#pragma once
#include "common/device/device.h"

enum { SNAPSHOT_MOST_CALLS = 50000 };

typedef struct snapshot snapshot;

/* snapshot_open -- record every block that is allocated or freed on d from now on.
 *   errors  FSDP_ENOMEM */
fsdp_status snapshot_open(device *d, snapshot **out);
/* snapshot_free -- free s after the device was closed. NULL is accepted. */
void snapshot_free(snapshot *s);
/* snapshot_step -- begin step `step`. snapshot_end_step -- the step has been issued; what follows
 * belongs to no step. NULL is accepted. */
void snapshot_step(snapshot *s, int64_t step);
void snapshot_end_step(snapshot *s);
/* snapshot_write -- write the latest step of this rank: CSV if path ends in .csv, else the page.
 *   errors  FSDP_EIO with the path; FSDP_ENOMEM, also if memory ran out while recording */
fsdp_status snapshot_write(snapshot *s, const char *path, int rank, int n_ranks);
