/* reshard_to.h -- lab 2, provided: units that are resharded into smaller groups after forward, as
 * hpZ does [ZeRO++ §3.2] and FSDP2 with an integer for reshard_after_forward.
 *
 *   near_keep (after forward, before reshard) -> near_gather (in unshard_begin) -> near_drop
 *
 * A near group is N neighbouring ranks of the shard group, such as the ranks of a host. When
 * forward has used a unit, each of them keeps 1/N of the gathered array, and the unit's later
 * gathers of the step stay inside the group. That takes padded_elems/N elements more of each such
 * unit, rounded up to the slots' alignment. The copies are dropped when a step begins, because the
 * optimizer has changed the masters. */
#pragma once
#include "lab2_forward/fsdp.h"

/* near_keep -- keep this rank's part of u's gathered array, in order of compute. Nothing happens
 * outside of training, without near groups, and if the unit stays after forward or is kept already.
 *   owner  unit->own.near, until near_drop */
fsdp_status near_keep(fsdp *f, int u);
/* near_gather -- unshard_begin of a unit that is kept.
 *   moves  (N-1)/N*padded_elems*dtype_bytes(param_dtype) sent per rank, in the near group */
fsdp_status near_gather(fsdp *f, int u);
/* near_drop -- free what is kept of all units. */
void near_drop(fsdp *f);
