/* fsdp_engine.h -- combine labs 1 to 5 into an engine for the training loop.
 *
 *   fsdp_engine_create -> engine (common/steps/engine.h) -> out->free(out->self) */
#pragma once
#include "common/steps/engine.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/reducer_setup.h"
#include "lab4_optimizer/optimizer_setup.h"
#include "lab5_prefetch/prefetch_setup.h"

/* fsdp_engine_create -- create the parts of labs 1 to 5 as one engine; free it with
 * out->free(out->self).
 *   config   copied; config->mesh must have the strategy's shard groups. The groups and the world
 *            must outlive the engine
 *   overlap  zeroed: fsdp_backward_hooks, without overlap
 *   errors   any error of the labs' create functions; nothing remains allocated */
fsdp_status fsdp_engine_create(const fsdp_config *config, sharding_strategy sharding,
                               const prefetch_config *overlap, engine *out);
