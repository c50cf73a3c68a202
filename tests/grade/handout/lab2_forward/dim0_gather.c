/* dim0_gather.c -- the gather of a unit whose shards are rows (task 1.6). It is not in this tree,
 * because it shows task 2.1; the matching reduction shows 3.2a and 3.3. */
#include "lab2_forward/fsdp.h"

static fsdp_status not_here(fsdp *f, fsdp_unit *u)
{
    (void)f, (void)u;
    return fsdp_error(FSDP_EINVAL, "train with --layout flat",
                      "--layout per-param: a learner's tree has no gather of rows");
}

const gather_way GATHER_ROWS = {.make = not_here};
