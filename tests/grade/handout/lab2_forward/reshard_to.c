/* reshard_to.c -- units that are resharded into smaller groups. It is not in this tree, because the
 * gather shows task 2.1. */
#include "lab2_forward/reshard_to.h"

static fsdp_status not_here(void)
{
    return fsdp_error(FSDP_EINVAL, "leave out --reshard-to",
                      "--reshard-to: a learner's tree has no gather in smaller groups");
}

fsdp_status near_keep(fsdp *f, int u)
{
    return f->units[u].given.place.near_group ? not_here() : FSDP_OK;
}

fsdp_status near_gather(fsdp *f, int u)
{
    (void)f, (void)u;
    return not_here();
}

void near_drop(fsdp *f)
{
    (void)f;
}
