/* clock_offset.h -- how the clocks of ranks on several hosts differ. Ranks of one host share theirs
 * (clock.h). */
#pragma once
#include "common/comm/comm.h"

/* What is known of what must be added to a clock to get rank 0's, in seconds. */
typedef struct clock_range {
    double least_s, most_s;
} clock_range;

/* When a rank entered a barrier and when it was through, by its own clock. */
typedef struct clock_barrier {
    double enter_s, exit_s;
} clock_barrier;

/* clock_range_narrow -- use one barrier: neither rank was through before the other had entered.
 *   enters at 5.0, exits at 5.3; rank 0: 2.1 and 2.2 -> from 2.1-5.3 = -3.2 to 2.2-5.0 = -2.8 */
void clock_range_narrow(clock_range *range, clock_barrier mine, clock_barrier rank_0);

/* clock_offset_measure -- by some barriers.
 *   offset_s    becomes what must be added to this rank's clock to get rank 0's; 0 on rank 0
 *   bound_s     becomes how far off that may be
 *   collective  all ranks of c; the host waits
 *   errors      those of comm_host_gather */
fsdp_status clock_offset_measure(comm *c, double *offset_s, double *bound_s);
