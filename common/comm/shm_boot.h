/* shm_boot.h -- how the shm transport is started; for comm_group.c and for the launcher fsdp_run.
 */
#pragma once
#include "common/comm/comm_impl.h"

#define SHM_LAUNCH_ENV                                                                             \
    "FSDP_RUN" /* "rank size job_fd area_fd", set by the launcher for each rank */

/* comm_shm_over_mpi -- *c is open over MPI and all its ranks are on this host: move it to shared
 * memory when every rank can map every other's. *used: whether it was; if not, *c goes on with MPI.
 * The MPI group stays open below and ends with the job. collective */
fsdp_status comm_shm_over_mpi(comm *c, bool *used);

/* comm_shm_launched -- whether fsdp_run started this process; *rank and *size then. */
bool comm_shm_launched(int *rank, int *size);
/* comm_shm_open -- the first group of a process that fsdp_run started. */
fsdp_status comm_shm_open(comm *c);

/* shm_launch_prepare -- for the launcher: make the job's memory for n_ranks; the two files are
 * inherited by its children. */
bool shm_launch_prepare(int n_ranks, int *job_fd, int *area_fd);
