/* freeze.h -- lab 2, provided: units that train only some of their parameters.
 *
 * Such a unit has a flat array of its trained parameters. Its frozen parameters are the flat array
 * of its companion, another unit ("h.0 (frozen)"). Both arrays are sharded over the shard group. So
 * each rank has an equal part of the trained parameters, and a reduction carries only their
 * gradients. A companion is a frozen unit without layers, so it has no hooks. unshard_begin,
 * unshard_wait and reshard of its unit handle all `parts` of the unit, the companion first, so an
 * event that lab 5's limiter records after the unit's free covers both frees. */
#pragma once
#include "lab2_forward/fsdp.h"

/* freeze_split -- append a companion for each unit of f that trains only some of its parameters;
 * set `parts` of all units, and forward_only of those that backward does not use, because all
 * layers that use their parameters come before model_border, the first layer that trains one.
 *   f       wrapped but not laid out: the units, layer_unit and param_unit are set
 *   errors  FSDP_ENOMEM */
fsdp_status freeze_split(fsdp *f);
/* unit_is_used -- whether the pass in progress (forward or backward) uses u's parameters. */
bool unit_is_used(const fsdp *f, int u);
