/* clock_offset.c -- see clock_offset.h. */
#include "common/observe/clock_offset.h"
#include <float.h>
#include <stdlib.h>
#include "common/base/clock.h"

enum { ROUNDS = 32 };

void clock_range_narrow(clock_range *range, clock_barrier mine, clock_barrier rank_0)
{
    double least_s = rank_0.enter_s - mine.exit_s, most_s = rank_0.exit_s - mine.enter_s;
    range->least_s = least_s > range->least_s ? least_s : range->least_s;
    range->most_s = most_s < range->most_s ? most_s : range->most_s;
}

/* A gather is a barrier: it ends nowhere before all ranks have begun it. Each brings the times of
 * the one before. */
fsdp_status clock_offset_measure(comm *c, double *offset_s, double *bound_s)
{
    clock_range range = {-DBL_MAX, DBL_MAX};
    clock_barrier mine = {0};
    void *all;
    for (int i = 0; i <= ROUNDS; i++) {
        const double enter_s = clock_now_s();
        TRY(comm_host_gather(c, "clocks", &mine, sizeof mine, &all));
        const double exit_s = clock_now_s();
        if (i > 0)
            clock_range_narrow(&range, mine, *(const clock_barrier *)all);
        free(all);
        mine = (clock_barrier){enter_s, exit_s};
    }
    const bool differs = comm_rank(c) != 0;
    *offset_s = differs ? (range.least_s + range.most_s) / 2 : 0;
    *bound_s = differs ? (range.most_s - range.least_s) / 2 : 0;
    return FSDP_OK;
}
