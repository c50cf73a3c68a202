/* profile_run.h -- --profile DIR: counts the operations, the collectives and the steps of a run,
 * keeps a timeline of some of them, and writes
 *
 *   profile-rank-R.csv  all figures of a rank
 *   trace-rank-R.json   its traced steps, for Perfetto
 *   profile.md          rank 0's profile, and a line for each traced step and rank
 *   timeline.txt        the traced steps of all ranks
 *   timeline.svg        the last of these steps, of the first ranks
 *
 * If no step was traced, the two timelines of an earlier run are removed.
 *
 *   profile_run_open (before the engine) -> profile_run_step ... -> profile_run_write
 *   -> profile_run_close
 *
 * The functions do nothing with p == NULL, which is a run without --profile. */
#pragma once
#include <stdio.h>
#include "common/device/order_check.h"
#include "common/model/run_context.h"

typedef struct profile_run profile_run;

/* profile_run_open -- measure the roof, and watch run->dev and run->world.
 *   dir         borrowed until profile_run_close; made if it is missing
 *   caption     of the pictures: which run it is; "": none
 *   order       is told of what is issued on run->dev, too; NULL: no order check
 *   *out        profile_run_close frees it, also after an error
 *   collective  all ranks
 *   errors      FSDP_EIO: dir cannot be made, on all ranks; FSDP_ENOMEM; errors of
 *               ops_profile_roof and clock_offset_measure */
fsdp_status profile_run_open(const run_context *run, const char *dir, const char *caption,
                             order_check *order, profile_run **out);
/* profile_run_step -- step `step` begins. profile_run_pause -- what follows belongs to no step. */
void profile_run_step(profile_run *p, int64_t step);
void profile_run_pause(profile_run *p);
/* profile_run_write -- write the files above; rank 0 prints to out where they are.
 *   collective  all ranks; all fail or none */
fsdp_status profile_run_write(profile_run *p, FILE *out);
/* profile_run_close -- stop watching and free the profile, when no stream works any more. */
void profile_run_close(profile_run *p);
