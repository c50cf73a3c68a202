/* freeze.h -- which parameters of a model are not trained. */
#pragma once
#include "common/model/unit.h"

/* model_freeze -- set `frozen` of the parameters whose names match. Either name of a tied weight
 * freezes the shared storage, and so both parameters.
 *   patterns  the value of --freeze: globs (fnmatch(3)) with commas between; NULL: freeze nothing
 *   errors    FSDP_EINVAL: a pattern is empty or matches no name, or nothing is left to train */
fsdp_status model_freeze(model *m, const char *patterns);
