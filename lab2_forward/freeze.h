/* freeze.h -- lab 2, provided: units that train only some of their parameters.
 *
 * Such a unit has two flat arrays, each cut for all ranks: its own, of trained parameters, and that
 * of its companion, a unit of its frozen parameters ("h.0 (frozen)"). So no rank has more than its
 * part of what is trained, and a reduction carries nothing else. A companion is a frozen unit like
 * any other, but it has no layers and therefore no hooks. unshard_begin, unshard_wait and reshard
 * of its unit do the same to the companion first. So an event that lab 5's limiter records after
 * the unit's free covers both frees. */
#pragma once
#include "lab2_forward/fsdp.h"

/* freeze_split -- append a companion for each unit of f that trains some of its parameters only,
 * and set forward_only of units whose parameters no layer from model_border on has.
 *   f       wrapped, not laid out yet: units, and the maps from layers and parameters to them
 *   errors  FSDP_ENOMEM */
fsdp_status freeze_split(fsdp *f);
/* unit_is_used -- whether the pass in progress computes with u's parameters, if it comes to u. */
bool unit_is_used(const fsdp *f, int u);
