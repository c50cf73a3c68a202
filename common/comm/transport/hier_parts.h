/* hier_parts.h -- functions of shm and mpi that the hier transport calls besides their tables: shm
 * groups among some of the ranks that can talk to each other, and notification of failures. */
#pragma once
#include "common/comm/transport/transport.h"

/* ---- shm ------------------------------------------------------------------------------------ */

/* shm_open_among -- a group of `host`, the ranks of `talk` on this host. If some rank of any host
 * cannot map its peers' memory, *out is NULL on all ranks. collective over talk, which carries host
 * calls */
fsdp_status shm_open_among(transport_group *talk, const comm_team *host, transport_group **out);
/* shm_split -- shm_open_among in a job that was already joined. It is the transport's own split;
 * talk may be any group that has the ranks of `host`. */
fsdp_status shm_split(transport_group *talk, const comm_team *host, transport_group **out);

/* shm_on_failure -- have `tell` called once when this process learns that its host's job has
 * failed, with the failure as the calling thread's record; NULL: call nothing. Set it before the
 * job begins. `tell` must then also report the last calls of a timeout. */
void shm_on_failure(void (*tell)(void));
/* shm_tell -- make this thread's record the failure of its host's job, unless the job has one
 * already. */
void shm_tell(void);

/* ---- mpi ------------------------------------------------------------------------------------ */

/* mpi_fail -- fail the mpi transport with this thread's record; all its ranks are told. Does not
 * wait. */
void mpi_fail(void);
/* mpi_on_failure -- have `tell` called when the mpi transport fails, or now if it has failed, with
 * the failure as the calling thread's record. NULL: stop; on return no call of the old function is
 * running. */
void mpi_on_failure(void (*tell)(void));
/* mpi_speak_last -- calls on this mpi group time out a moment later than others. If a rank is late,
 * its peers on the same host then report it first. They know which rank is late; ranks of other
 * hosts wait for all of them. */
void mpi_speak_last(transport_group *group);
