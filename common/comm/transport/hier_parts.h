/* hier_parts.h -- what the hier transport asks of the two that it is made of, besides their tables:
 * of shm, groups of shared memory among some of the ranks that can talk to each other; of both,
 * word of failures. */
#pragma once
#include "common/comm/transport.h"

/* ---- shm ------------------------------------------------------------------------------------ */

/* shm_open_among -- a group of `host`, the ranks on this host among those of `talk`, when every
 * rank of every host can map its peers' memory; else *out is NULL, on all. collective over talk,
 * which carries host calls */
fsdp_status shm_open_among(transport_group *talk, const comm_team *host, transport_group **out);
/* shm_split -- the same in a job that is joined already: the transport's own split, for which any
 * group serves over which its ranks can talk. */
fsdp_status shm_split(transport_group *talk, const comm_team *host, transport_group **out);

/* shm_on_failure -- `tell` is called once when this process learns that its host's job has failed,
 * the failure being the calling thread's record; NULL: nobody. Set it before the job begins. Who is
 * told also reports a timeout's last calls. */
void shm_on_failure(void (*tell)(void));
/* shm_tell -- the record of this thread becomes the failure of its host's job, unless there is one
 * already. */
void shm_tell(void);

/* ---- mpi ------------------------------------------------------------------------------------ */

/* mpi_fail -- the mpi transport ends with this thread's record, and all its ranks hear of it. Does
 * not wait. */
void mpi_fail(void);
/* mpi_on_failure -- `tell` is called when the mpi transport fails (or has failed), the failure
 * being the calling thread's record; NULL: not any more, and no call is on its way. */
void mpi_on_failure(void (*tell)(void));
/* mpi_speak_last -- a call on this group of mpi waits a moment longer than others: a rank that
 * misses one of its own host knows better who is late than those on other hosts, who await both. */
void mpi_speak_last(transport_group *group);
