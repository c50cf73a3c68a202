/* fsdp_engine.h -- labs 1 to 5 put together as an engine for the training loop.
 *
 *   fsdp_engine_create -> engine (common/steps/engine.h) -> out->free(out->self) */
#pragma once
#include "common/steps/engine.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/reducer_setup.h"
#include "lab4_optimizer/optimizer_setup.h"
#include "lab5_prefetch/prefetch_setup.h"

/* fsdp_engine_create -- all that labs 1 to 5 create, as one engine. out->free(out->self) frees it.
 *   config   mesh has the strategy's shard groups and is copied; its groups and the world must
 *            outlive the engine
 *   overlap  zeroed: fsdp_backward_hooks, without overlap
 *   errors   errors of the create functions of the labs; nothing is left behind */
fsdp_status fsdp_engine_create(const fsdp_config *config, sharding_strategy sharding,
                               const prefetch_config *overlap, engine *out);
