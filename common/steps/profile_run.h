/* profile_run.h -- --profile DIR: count the operations and collectives of a run's steps, record
 * timelines of some steps, and write
 *
 *   profile-rank-R.csv  all figures of a rank
 *   trace-rank-R.json   its traced steps, for Perfetto
 *   profile.md          rank 0's profile, and a line for each traced step and rank
 *   timeline.txt        the traced steps of all ranks
 *   timeline.svg        the last of these steps on the first ranks
 *
 * If no step was traced, the two timelines of an earlier run are removed from DIR.
 *
 *   profile_run_open (before the engine) -> profile_run_step ... -> profile_run_write
 *   -> profile_run_close
 *
 * p == NULL stands for a run without --profile: the functions then do nothing. */
#pragma once
#include <stdio.h>
#include "common/device/instruments/order_check.h"
#include "common/model/run_context.h"

typedef struct profile_run profile_run;

/* profile_run_open -- measure the roof, and watch run->dev and run->world.
 *   dir         created if it is missing; borrowed until profile_run_close
 *   caption     names the run in the pictures; "": none
 *   order       also receives what is issued on run->dev; NULL: no order check
 *   *out        free it with profile_run_close, also after an error
 *   collective  all ranks
 *   errors      FSDP_EIO on all ranks: dir cannot be created; FSDP_ENOMEM; any error of
 *               ops_profile_roof and clock_offset_measure */
fsdp_status profile_run_open(const run_context *run, const char *dir, const char *caption,
                             order_check *order, profile_run **out);
/* profile_run_step -- begin step `step`. profile_run_pause -- what follows belongs to no step. */
void profile_run_step(profile_run *p, int64_t step);
void profile_run_pause(profile_run *p);
/* profile_run_write -- write the files above; rank 0 prints to out where they are.
 *   collective  all ranks; all fail or none */
fsdp_status profile_run_write(profile_run *p, FILE *out);
/* profile_run_close -- stop watching, and free p. No stream may have work. */
void profile_run_close(profile_run *p);
