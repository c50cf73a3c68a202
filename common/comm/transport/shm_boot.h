/* shm_boot.h -- how the shm transport is started; for comm_group.c and for the launcher fsdp_run.
 */
#pragma once
#include "common/comm/comm_impl.h"

/* comm_shm_over_mpi -- *c is open over MPI; *host: its ranks on this host, *c itself when these are
 * all. Make *host a group of shared memory when every rank can map every other's of its host.
 * *used: whether that is so, the same on all ranks; if not, *host is as it was. When it is *c, its
 * MPI group stays open below and ends with the job. collective over *c */
fsdp_status comm_shm_over_mpi(comm *c, comm *host, bool *used);

/* comm_shm_split -- *host, whose ranks are on this host and in *parent, becomes a group of shared
 * memory; with one rank it is left alone and this rank only takes part. collective over *parent */
fsdp_status comm_shm_split(comm *parent, comm *host);

/* comm_shm_on_failure -- `tell` is called once when this process learns that its host's job has
 * failed, the failure being the calling thread's record; NULL: nobody. Set it before the job
 * begins. Who is told also reports a timeout's last calls. */
void comm_shm_on_failure(void (*tell)(void));
/* comm_shm_fail -- the record of this thread becomes the failure of its host's job. */
void comm_shm_fail(void);

/* comm_shm_open -- the first group of a process that fsdp_run started. */
fsdp_status comm_shm_open(comm *c);

/* shm_launch_prepare -- for the launcher: make the job's memory for n_ranks; the two files are
 * inherited by its children. */
bool shm_launch_prepare(int n_ranks, int *job_fd, int *area_fd);
