/* rates.h -- measure the rates of this machine for --plan-device this. It takes half a second, or
 * one second if copies are measured too. */
#pragma once
#include "common/model/run_context.h"
#include "common/simulate/virtual_time.h"

/* rates_measure -- measure on all ranks at once, so that each is measured while others work too.
 *   run         needs dev and world
 *   *machine    receives rank 0's rates of products and memory (profile_roof.h), on all ranks
 *   *config     receives link: of an all-gather, by rank 0's clock (zero with one rank); upload and
 *               download: of rank 0's copies (zero if the device uses host memory)
 *   collective  all ranks; the host waits
 *   errors      FSDP_ENOMEM; any error of a collective */
fsdp_status rates_measure(const run_context *run, virtual_device *machine, virtual_config *config);
