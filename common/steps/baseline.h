/* baseline.h -- the two runs that FSDP is compared with: one device, and data parallel (DDP).
 *
 * Every rank holds all parameters, all gradients and all optimizer state. DDP sums gradients by one
 * reduce-scatter per micro-step and one all-gather per step. With one rank it is the single-device
 * baseline. The update uses ops->adamw over whole parameters. [DDP §3] */
#pragma once
#include "common/steps/engine.h"

/* baseline_create -- an engine whose parameters are made by param_init_range; out->free(out->self)
 * frees it.
 *   run     copied; what it points to must outlive the engine
 *   errors  FSDP_ENOMEM; nothing is left behind */
fsdp_status baseline_create(const run_context *run, engine *out);
