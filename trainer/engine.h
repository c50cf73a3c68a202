/* engine.h -- labs 1 to 4 put together as an engine for the training loop. Lab 5's hooks are given
 * to it from outside.
 *
 *   fsdp_engine_create -> engine (common/train/engine.h) -> out->free(out->self) */
#pragma once
#include "common/train/engine.h"
#include "lab4_optimizer/checkpoint.h"

/* Where the table of hooks of a training pass comes from. Whoever fills in this struct owns self.
 *   make  fills in *out for the units of r->f; it may give r->f streams and groups of its own
 *   free  undoes make, including streams and groups; called before the reducer is freed, also after
 *         a make that failed */
typedef struct hook_source {
    void *self;
    fsdp_status (*make)(void *self, reducer *r, unit_hooks *out);
    void (*free)(void *self);
} hook_source;

typedef struct fsdp_engine_config {
    fsdp_config fsdp; /* fsdp.mesh has the strategy's shard groups */
    sharding_strategy sharding;
    hook_source hooks; /* make NULL: fsdp_backward_hooks, without overlap */
} fsdp_engine_config;

/* fsdp_engine_create -- all that labs 1 to 4 create, as one engine. out->free(out->self) frees it.
 *   config  fsdp.mesh is copied; its groups and the world must outlive the engine
 *   errors  those of the parts' create functions and of hooks.make; nothing is left behind */
fsdp_status fsdp_engine_create(const fsdp_engine_config *config, engine *out);
