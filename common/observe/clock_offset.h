/* clock_offset.h -- measure how far the clocks of ranks on different hosts are apart. Ranks of one
 * host share a clock (clock.h). */
#pragma once
#include "common/comm/comm.h"

/* clock_offset_measure -- compare this rank's clock with rank 0's in a series of barriers.
 *   offset_s    receives the seconds to add to this rank's clock to get rank 0's; 0 on rank 0
 *   bound_s     receives the largest possible error of *offset_s, in seconds
 *   collective  all ranks of c; the host waits
 *   errors      any error of comm_host_gather */
fsdp_status clock_offset_measure(comm *c, double *offset_s, double *bound_s);
