/* shm_launch.h -- what the launcher fsdp_run does for the ranks that it starts. */
#pragma once
#include <stdbool.h>
#include "common/comm/comm.h" /* COMM_RUN_ENV */

/* shm_launch_prepare -- make the job's memory for n_ranks; the two files are inherited by its
 * children, which it tells their numbers in COMM_RUN_ENV. */
bool shm_launch_prepare(int n_ranks, int *job_fd, int *area_fd);
