/* shm_launch.h -- what the launcher fsdp_run does for the ranks that it starts. */
#pragma once
#include <sys/types.h>
#include "common/comm/comm.h" /* COMM_RUN_ENV */

/* shm_launch_prepare -- make the job's memory for n_ranks. Children inherit the two files and learn
 * their numbers from COMM_RUN_ENV. NULL, with errno, on failure. */
struct shm_job *shm_launch_prepare(int n_ranks, int *job_fd, int *area_fd);
/* shm_member_ended -- the process of a member has ended. Unless it left in order or the job had
 * already failed, that is the job's failure, and ranks that wait for it are told. pid: used in the
 * message for a member that has not joined. */
void shm_member_ended(struct shm_job *job, int member, int world_rank, pid_t pid);
/* shm_launch_free -- NULL is accepted. */
void shm_launch_free(struct shm_job *job);
