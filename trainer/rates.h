/* rates.h -- what this machine can do, measured in half a second (in one where copies are measured
 * too), for --plan-device this. */
#pragma once
#include "common/model/run_context.h"
#include "common/observe/virtual_time.h"

/* rates_measure -- measure, on all ranks at once, what one rank can do while the others do the
 * same.
 *   run         with dev and world
 *   *machine    rank 0's matrix products and memory (profile_roof.h), the same on all ranks
 *   *config     link: of an all-gather, by rank 0's clock; zero with one rank. upload, download: of
 *               rank 0's copies; zero where device memory is the host's
 *   collective  all ranks; the host waits
 *   errors      FSDP_ENOMEM, errors of a collective */
fsdp_status rates_measure(const run_context *run, virtual_device *machine, virtual_config *config);
