/* freeze.h -- lab 2, provided: units that train only some of their parameters.
 *
 * Such a unit has two flat arrays, each cut for all ranks: its own, of trained parameters, and that
 * of its companion, a unit of its frozen parameters ("h.0 (frozen)"). So no rank has more than its
 * part of what is trained, and a reduction carries nothing else. To labs 2 to 5 a companion is a
 * frozen unit like any other. It has no layers. Lab 3's freeze.h calls hooks for it. */
#pragma once
#include "lab2_forward/fsdp.h"

/* freeze_split -- append a companion for each unit of f that trains some of its parameters only,
 * and set forward_only of units whose parameters no layer from model_border on has.
 *   f       wrapped, not laid out yet: units, and the maps from layers and parameters to them
 *   errors  FSDP_ENOMEM */
fsdp_status freeze_split(fsdp *f);
