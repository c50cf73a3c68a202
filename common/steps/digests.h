/* digests.h -- --digests FILE: hashes of what a run computes, so that the first step, unit and
 * array in which two runs differ can be found. digest_file.h says what the file holds.
 *
 *   digests_create (after the engine) -> runner_create with digests_hooks, digests_after_layer
 *   [-> digests_keep_values] -> per step: digests_begin_step, micro-steps, engine's optimizer_step,
 * digests_end_step -> digests_end -> digests_free
 *
 * An element's hash is XXH3 of its array, its index there, and its bits. So a sum of hashes does
 * not depend on who held the element. The host waits for the device and hashes there: a run with
 * digests is slow, and takes the same device memory. The functions below are collective: all ranks
 * call them. Evaluations are left out. */
#pragma once
#include <stdio.h>
#include "common/model/runner.h"
#include "common/steps/engine.h"

typedef struct digests digests;

/* digests_create -- begin the table of rows.
 *   run, e  borrowed until digests_free
 *   out     rank 0: the file, in which the title and the facts stand; borrowed; NULL elsewhere
 *   errors  FSDP_ENOMEM */
fsdp_status digests_create(const run_context *run, const engine *e, FILE *out, digests **d);
/* digests_hooks -- the engine's hooks, with a look at the views after pre_forward, pre_backward. */
unit_hooks digests_hooks(digests *d);
/* digests_keep_values -- write the elements of one unit in one step, too: parameters as forward
 * gathers them in micro-step 0, and reduced gradients.
 *   first, end  the run's steps
 *   errors      FSDP_EINVAL naming the units there are, or the steps; FSDP_ENOMEM */
fsdp_status digests_keep_values(digests *d, int64_t step, const char *unit, int64_t first,
                                int64_t end);

/* digests_begin_step -- step `step` begins. */
void digests_begin_step(digests *d, int64_t step);
/* digests_after_layer -- runner_config.after_layer of self, a digests *: add the outputs of layer i
 * and, with those of the first layer, the micro-step's tokens. */
fsdp_status digests_after_layer(void *self, const runner *r, const micro_step *ms, int i);
/* digests_end_step -- add the reduced gradients, after optimizer_step. */
fsdp_status digests_end_step(digests *d);

/* digests_end -- write the last line. Returns how many rows there are. */
size_t digests_end(digests *d);
/* digests_free -- NULL is accepted. */
void digests_free(digests *d);
