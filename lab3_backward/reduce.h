/* reduce.h -- lab 3, provided: how a unit is reduced. */
#pragma once
#include "lab3_backward/backward.h"

/* What reduce_begin, reduce_wait, grad_finish and grad_all_gather call after their checks. All are
 * NULL in REDUCE_NONE, the way of a frozen unit: it has no gradient and no memory for one. */
typedef struct reduce_way {
    fsdp_status (*begin)(reducer *r, int u);
    fsdp_status (*wait)(reducer *r, int u);
    fsdp_status (*finish)(reducer *r, int u, float scale);
    fsdp_status (*all_gather)(reducer *r, int u);
} reduce_way;

extern const reduce_way REDUCE_NONE, REDUCE_FLAT, REDUCE_ROWS;

/* grad_sum -- shard_grad = this rank's slice of the unit's sum: everything in acc, plus the sum of
 * the second use. The accumulators are empty afterwards. */
fsdp_status grad_sum(reducer *r, int u);
