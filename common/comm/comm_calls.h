/* comm_calls.h -- the calls of comm.h that the labs make: collectives between the ranks of a group.
 *
 * Rules for every collective:
 *   buffers     device memory, counted in elements; 0 is allowed. The collective owns them from the
 *               call until its stream has passed it; the caller owns them before and after
 *   order       stream-ordered on s; one thread at a time issues calls on a group
 *   collective  all ranks of c make the same calls in the same order, with the same label (a unit's
 *               name), dtype and elems. Issuing a call gives it the next number of its group
 *   errors      FSDP_EINVAL sizes that overflow; FSDP_ENOMEM; FSDP_EMISMATCH the call differs from
 *               a peer's, and the message names both calls and ranks; FSDP_ETIMEOUT a wait longer
 *               than timeout_s, after every rank has printed its last calls; FSDP_ECOMM a rank died
 *               or a transport broke. The last three are final: every rank is told, and from then
 *               on all groups of the job return that error. An error found while the call runs is
 *               kept by its stream (see device_calls.h) and by its group
 *   source      [MPI-4 §6] */
#pragma once
#include "common/base/dtype.h"
#include "common/device/device_calls.h"

EXTERN_C_BEGIN

typedef struct comm comm;

/* comm_rank, comm_size -- this rank's number in c, from 0, and how many ranks c has. */
int comm_rank(const comm *c);
int comm_size(const comm *c);

/* comm_alloc -- device_alloc of a buffer for collectives of this group. If the backend can, peers
 * read it in place, so that each byte is copied once. Other device memory costs one more copy.
 * comm_alloc_f32: of elems floats; also FSDP_EINVAL if elems * 4 overflows. */
fsdp_status comm_alloc(comm *c, stream *s, mem_category category, size_t bytes, const char *label,
                       void **out);
fsdp_status comm_alloc_f32(comm *c, stream *s, mem_category category, size_t elems,
                           const char *label, float **out);

/* comm_all_gather -- recv [W*elems] = every rank's send [elems], in rank order.
 *   in place    send == recv + rank*elems
 *   moves       (W-1)*elems sent per rank [MPI-4 §6.7] */
fsdp_status comm_all_gather(comm *c, stream *s, const char *label, dtype t, const void *send,
                            void *recv, size_t elems);

EXTERN_C_END
