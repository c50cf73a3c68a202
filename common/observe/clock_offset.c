/* clock_offset.c -- see clock_offset.h. */
#include "common/observe/clock_offset.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include "common/base/clock.h"

enum { ROUNDS = 32 };

/* When a rank entered a barrier and when it left the barrier, by its own clock. */
typedef struct clock_barrier {
    double enter_s, exit_s;
} clock_barrier;

/* A gather is a barrier: no rank leaves it before all ranks have entered. Each gather carries the
 * times of the gather before it. Since neither this rank nor rank 0 left before the other entered,
 * the offset lies between rank 0's enter - this rank's exit and rank 0's exit - this rank's enter:
 *   this rank 5.0 to 5.3, rank 0 2.1 to 2.2 -> from 2.1-5.3 = -3.2 to 2.2-5.0 = -2.8 */
fsdp_status clock_offset_measure(comm *c, double *offset_s, double *bound_s)
{
    double least_s = -DBL_MAX, most_s = DBL_MAX;
    clock_barrier mine = {0};
    void *all;
    for (int i = 0; i <= ROUNDS; i++) {
        const double enter_s = clock_now_s();
        TRY(comm_host_gather(c, "clocks", &mine, sizeof mine, &all));
        const double exit_s = clock_now_s();
        const clock_barrier *rank_0 = all;
        if (i > 0) {
            least_s = fmax(least_s, rank_0->enter_s - mine.exit_s);
            most_s = fmin(most_s, rank_0->exit_s - mine.enter_s);
        }
        free(all);
        mine = (clock_barrier){enter_s, exit_s};
    }
    const bool differs = comm_rank(c) != 0;
    *offset_s = differs ? (least_s + most_s) / 2 : 0;
    *bound_s = differs ? (most_s - least_s) / 2 : 0;
    return FSDP_OK;
}
