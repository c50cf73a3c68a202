/* dim0_reduce.c -- the reduction of a unit whose shards are rows. It is not in this tree, where
 * dim0_create (lab 2's dim0_gather.c) refuses such units. */
#include "lab3_backward/dim0_reduce.h"

const reduce_way REDUCE_ROWS = {.begin = dim0_reduce, .finish = dim0_finish};

static fsdp_status not_here(void)
{
    return fsdp_error(FSDP_EINVAL, "train with --layout flat",
                      "--layout per-param: a learner's tree has no reduction of rows");
}

fsdp_status dim0_reduce(reducer *r, int u)
{
    (void)r, (void)u;
    return not_here();
}

fsdp_status dim0_finish(reducer *r, int u, float scale)
{
    (void)r, (void)u, (void)scale;
    return not_here();
}
