/* mpi_failure.h -- what the hier transport asks of mpi besides its table: word of failures. */
#pragma once
#include "common/comm/transport.h"

/* mpi_fail -- the mpi transport ends with this thread's record, and all its ranks hear of it. Does
 * not wait. */
void mpi_fail(void);
/* mpi_on_failure -- `tell` is called when the mpi transport fails (or has failed), the failure
 * being the calling thread's record; NULL: not any more, and no call is on its way. */
void mpi_on_failure(void (*tell)(void));
/* mpi_speak_last -- a call on this group of mpi waits a moment longer than others: a rank that
 * misses one of its own host knows better who is late than those on other hosts, who await both. */
void mpi_speak_last(transport_group *group);
