/* freeze.h -- which parameters of a model are not trained. */
#pragma once
#include "common/model/unit.h"

/* model_freeze -- set `frozen` of the parameters whose names match. Either name of a tied weight
 * freezes the storage, and so both.
 *   patterns  as --freeze has them: globs (fnmatch(3)) with commas between; NULL: nothing is frozen
 *   errors    FSDP_EINVAL: an empty pattern, one that matches no name, nothing is left to train */
fsdp_status model_freeze(model *m, const char *patterns);
