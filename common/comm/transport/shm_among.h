/* shm_among.h -- what the hier transport asks of shm: groups of shared memory among some of the
 * ranks that can talk to each other, and word of failures. */
#pragma once
#include "common/comm/transport.h"

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
