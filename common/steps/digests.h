/* digests.h -- --digests FILE: hashes of what a run computes, so that the first step, unit and
 * array in which two runs differ can be found. digest_file.h says what the file holds.
 *
 *   digests_create (after the engine) -> runner_create with digests_look [-> digests_keep_values]
 *   -> per step: micro-steps, engine's optimizer_step, digests_end_step
 *   -> digests_end -> digests_free
 *
 * An element's hash is XXH3 of its array, its index there, and its bits. So a sum of hashes does
 * not depend on who held the element. The host waits for the device and hashes there: a run with
 * digests is slow, and takes the same device memory. The functions below are collective: all ranks
 * call them. Evaluations are left out. */
#pragma once
#include <stdio.h>
#include "common/checkpoint/ckpt_manifest.h"
#include "common/model/runner.h"
#include "common/steps/engine.h"

typedef struct digests digests;

/* digests_create -- make room on the host for the largest parameter, and begin the file.
 *   run, e  borrowed until digests_free
 *   about   what the run is; NULL: nothing is said
 *   out     rank 0: the file, from where it stands; borrowed; NULL elsewhere
 *   errors  FSDP_ENOMEM; *d is for digests_free then, too */
fsdp_status digests_create(const run_context *run, const engine *e, const ckpt_about *about,
                           FILE *out, digests **d);
/* digests_keep_values -- write the elements of one unit's parameters in one step, too.
 *   text        STEP:UNIT
 *   first, end  the run's steps
 *   errors      FSDP_EINVAL naming the units there are, and the steps */
fsdp_status digests_keep_values(digests *d, const char *text, int64_t first, int64_t end);

/* digests_look -- runner_config.look of self, a digests *: add the parameters or the
 * outputs of layer i. */
fsdp_status digests_look(void *self, const runner *r, const micro_step *ms, runner_moment when,
                         int i);
/* digests_end_step -- write the rows of the reduced gradients, after optimizer_step. */
fsdp_status digests_end_step(digests *d);

/* digests_end -- write the last line. Returns how many rows there are. */
size_t digests_end(digests *d);
/* digests_free -- NULL is accepted. */
void digests_free(digests *d);
