/* baseline.h -- the engine that FSDP is compared with: data parallel (DDP), or with one rank the
 * single-device baseline.
 *
 * Every rank holds all parameters, gradients and optimizer states. DDP sums gradients by one
 * reduce-scatter per micro-step (with no_sync, per step) and one all-gather per step. The optimizer
 * updates whole parameters. [DDP §3] */
#pragma once
#include "common/steps/engine.h"

/* baseline_create -- create an engine whose parameters param_init_range initialises; free it with
 * out->free(out->self).
 *   run     copied; what it points to must outlive the engine
 *   errors  FSDP_ENOMEM; nothing remains allocated */
fsdp_status baseline_create(const run_context *run, engine *out);
