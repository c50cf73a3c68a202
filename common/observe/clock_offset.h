/* clock_offset.h -- how the clocks of ranks on several hosts differ. Ranks of one host share theirs
 * (clock.h). */
#pragma once
#include "common/comm/comm.h"

/* clock_offset_measure -- by some barriers.
 *   offset_s    becomes what must be added to this rank's clock to get rank 0's; 0 on rank 0
 *   bound_s     becomes how far off that may be
 *   collective  all ranks of c; the host waits
 *   errors      those of comm_host_gather */
fsdp_status clock_offset_measure(comm *c, double *offset_s, double *bound_s);
