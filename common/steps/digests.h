/* digests.h -- --digests FILE: hash what a run computes, to find the first step, unit and array in
 * which two runs differ. digest_file.h describes the file.
 *
 *   digests_create (after the engine) -> runner_create with digests_look [-> digests_keep_values]
 *   -> per step: micro-steps, engine's optimizer_step, digests_end_step
 *   -> digests_end -> digests_free
 *
 * An element's hash is XXH3 of its array, its index in the array, and its bits. So a sum of hashes
 * does not depend on which rank held an element. The host waits for the device and computes the
 * hashes: a run with digests is slow, but takes no more device memory. The functions below are
 * collective: all ranks call them. Evaluations are not hashed. */
#pragma once
#include <stdio.h>
#include "common/checkpoint/ckpt_manifest.h"
#include "common/model/runner.h"
#include "common/steps/engine.h"

typedef struct digests digests;

/* digests_create -- allocate host memory for the largest array, and begin the file.
 *   run, e  borrowed until digests_free
 *   about   facts about the run for the file; NULL: none
 *   out     rank 0: the file, written from its current position, borrowed; other ranks: NULL
 *   errors  FSDP_ENOMEM; the caller passes *d to digests_free after an error too */
fsdp_status digests_create(const run_context *run, const engine *e, const ckpt_about *about,
                           FILE *out, digests **d);
/* digests_keep_values -- also write the elements of one unit's parameters in one step.
 *   text        STEP:UNIT
 *   first, end  the run's steps are first to end - 1
 *   errors      FSDP_EINVAL, with the run's units and steps in the message */
fsdp_status digests_keep_values(digests *d, const char *text, int64_t first, int64_t end);

/* digests_look -- for runner_config.look; self is a digests *. Writes the rows of the parameters or
 * of the output of layer i. */
fsdp_status digests_look(void *self, const runner *r, const micro_step *ms, runner_moment when,
                         int i);
/* digests_end_step -- write the rows of the reduced gradients; call it after optimizer_step. */
fsdp_status digests_end_step(digests *d);

/* digests_end -- write the last line. Returns the number of rows. */
size_t digests_end(digests *d);
/* digests_free -- NULL is accepted. */
void digests_free(digests *d);
