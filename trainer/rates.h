/* rates.h -- what this machine can do, measured in half a second, for --plan-device this. */
#pragma once
#include "common/model/run_context.h"
#include "common/observe/virtual_time.h"

/* What one rank can do while the others do the same. */
typedef struct rates {
    double flops_per_s, bytes_per_s; /* matrix products; memory (profile_roof.h) */
    virtual_link link;               /* of an all-gather; zero with one rank */
} rates;

/* rates_measure -- measure, on all ranks at once.
 *   run         with dev and world
 *   *out        rank 0's figures, the same on all ranks
 *   collective  all ranks; the host waits
 *   errors      FSDP_ENOMEM, those of a collective */
fsdp_status rates_measure(const run_context *run, rates *out);
