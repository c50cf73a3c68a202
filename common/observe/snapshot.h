/* snapshot.h -- the blocks of device and host memory that are alive at some time of one step, as a
 * file to look at: a page for a browser, or CSV.
 *
 *   snapshot_open (before the first block) -> snapshot_step, snapshot_end_step ... of every step
 *   -> snapshot_write (the latest step) -> the device is closed -> snapshot_free
 *
 * A timeline holds what is issued in a step and forgets the step before. Most of the memory of a
 * step is older than that, so a snapshot keeps every block that is alive, and forgets freed blocks
 * when a step begins.
 *
 * Time is counted in calls of device_alloc and device_free, from 1 in each step. A block is alive
 * from the call that makes it to the call that frees it, as in the issued figures of the ledger, so
 * every run gives the same rows. CSV has one row per block:
 *
 *   label,category,scope,phase,stream,bytes,birth,death,reserved,memory
 *
 * `birth` is 0 or less if the block is older than the step; `death` is empty if the block outlives
 * the step. scope is the unit that the block is for, where a collective tells, else the layer.
 * phase is what the host issued when it asked: forward, recompute or backward. Both may be empty.
 * reserved is device_mem_reserved with this block, 0 for a block of the host. memory is `host` for
 * what device_alloc_host gave where device memory is not the host's, else `device`.
 *
 * The page holds the same rows and a script of its own that draws them (snapshot_page.html), host
 * memory below device memory. It needs no network. Of a step of more than SNAPSHOT_MOST_CALLS calls
 * it has those around the peak of the device, and says so. */
#pragma once
#include "common/device/device.h"

enum { SNAPSHOT_MOST_CALLS = 50000 };

typedef struct snapshot snapshot;

/* snapshot_open -- note what is allocated and freed on d from now on.
 *   errors  FSDP_ENOMEM */
fsdp_status snapshot_open(device *d, snapshot **out);
/* snapshot_free -- when the device is closed. NULL is accepted. */
void snapshot_free(snapshot *s);
/* snapshot_step -- step `step` begins. snapshot_end_step -- it has been issued; what follows
 * belongs to no step. NULL is accepted. */
void snapshot_step(snapshot *s, int64_t step);
void snapshot_end_step(snapshot *s);
/* snapshot_write -- write the latest step of this rank: CSV if path ends in .csv, else the page.
 *   errors  FSDP_EIO with the path; FSDP_ENOMEM, also if there was no memory for some blocks */
fsdp_status snapshot_write(snapshot *s, const char *path, int rank, int n_ranks);
