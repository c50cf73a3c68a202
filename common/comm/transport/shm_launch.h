/* shm_launch.h -- what the launcher fsdp_run does for the ranks that it starts. */
#pragma once
#include <sys/types.h>
#include "common/comm/comm.h" /* COMM_RUN_ENV */

/* shm_launch_prepare -- make the job's memory for n_ranks; the two files are inherited by its
 * children, which it tells their numbers in COMM_RUN_ENV. NULL: that cannot be, see errno. */
struct shm_job *shm_launch_prepare(int n_ranks, int *job_fd, int *area_fd);
/* shm_member_ended -- the process of a member is gone, and ranks that wait for it hear of it.
 * Unless it left in order, or the job had failed before, that is the job's failure. pid: of one
 * that has not joined. */
void shm_member_ended(struct shm_job *job, int member, int world_rank, pid_t pid);
/* shm_launch_free -- NULL is accepted. */
void shm_launch_free(struct shm_job *job);
