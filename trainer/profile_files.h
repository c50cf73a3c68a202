/* profile_files.h -- what a run with --profile leaves in its directory. */
#pragma once
#include <stdio.h>
#include "common/comm/comm.h"
#include "common/observe/profile.h"
#include "common/observe/timeline_chrome.h"

/* Three steps show what is the same in every step and what is not. One of GPT-2 124m is some 850
 * items on each of 2 ranks: 0.15 MB of memory, 0.2 MB of JSON. */
enum { TRACED_STEPS = 3 };
#define PROFILE_HINT "pass a --profile directory that can be written"

typedef struct profile_files {
    const char *dir;
    comm *world;
    profile *profile;
    timeline_view traced; /* of the first TRACED_STEPS steps, on rank 0's clock */
    timeline_job job;
} profile_files;

/* profile_files_write -- write the files of every rank and, on rank 0, the job's:
 *   profile-rank-R.csv  all figures of a rank
 *   trace-rank-R.json   its traced steps, for Perfetto
 *   profile.md          rank 0's profile, and a line for each traced step and rank
 *   timeline.txt        the traced steps of all ranks; without any it is removed, as is
 *   timeline.svg        the last of these steps, of the first ranks
 *   out         rank 0 prints there what was written
 *   collective  all ranks of world; all fail or none
 *   errors      FSDP_EIO, FSDP_ENOMEM, those of comm_host_gather */
fsdp_status profile_files_write(const profile_files *f, FILE *out);
