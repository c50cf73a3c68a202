/* dry_lib.h -- a training run once more on a dry device (dry.h) and a dry group: memory, calls and
 * bytes must be those that were measured. */
#pragma once
#include "tests/equivalence/run_lib.h"

/* dry_compare_training -- run_training; then the same, dry. What differs first goes into differs
 * [chars], which stays empty when nothing does. */
fsdp_status dry_compare_training(device *dev, comm *group, const run_config *config,
                                 run_result *out, char *differs, size_t chars);
