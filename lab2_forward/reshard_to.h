/* reshard_to.h -- lab 2, provided: units that are resharded into smaller groups after forward, as
 * in hpZ [ZeRO++ §3.2], and in FSDP2 if reshard_after_forward is an integer.
 *
 *   near_keep (after forward, before reshard) -> near_gather (unit->given.place.way) -> near_drop
 *
 * A near group is N neighbouring ranks of the shard group, such as the ranks of a host. After
 * forward has used a unit, each rank keeps 1/N of the gathered array, and later gathers of the unit
 * in this step stay inside the group. The kept parts take padded_elems/N elements of each unit,
 * rounded up to the slots' alignment. They are dropped when the next step begins, because the
 * optimizer has changed the masters. */
#pragma once
#include "lab2_forward/fsdp.h"

/* near_keep -- keep this rank's part of u's gathered array, in order of compute. A no-op outside
 * training, without near groups, and if the unit stays after forward or is already kept.
 *   owner  unit->given.near, until near_drop */
fsdp_status near_keep(fsdp *f, int u);
/* near_gather -- as task 2.1's gather_flat, for a unit that is kept; it orders itself.
 *   moves  (N-1)/N*padded_elems*dtype_bytes(param_dtype) sent per rank, in the near group */
fsdp_status near_gather(fsdp *f, int u);
/* near_drop -- free the kept parts of all units. */
void near_drop(fsdp *f);
