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
#include "common/sum/grad_acc.h"

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

/* A range of an array: elements begin ... begin+elems-1. */
typedef struct comm_slice {
    size_t begin, elems;
} comm_slice;
/* comm_reduce_scatterv -- slices[r] of every rank's send goes to rank r, which pushes the W
 * contributions into acc, in rank order, as nodes of `level`. The slices may lie in any order;
 * elements outside all slices are not sent.
 *   send        f32, unchanged
 *   slices      [W] the same on every rank, read during the call; they must not overlap
 *   acc         vectors of slices[rank].elems, else FSDP_EINVAL; its counter advances when the call
 *               is issued. After any other error it is undefined until grad_acc_free
 *   collective  also the same level and kind of acc
 *   moves       the elements of the other ranks' slices, as acc->sum_dtype, sent per rank */
fsdp_status comm_reduce_scatterv(comm *c, stream *s, const char *label, const float *send,
                                 const comm_slice *slices, grad_acc *acc, int level);

/* comm_all_reduce -- buf [elems] = sum over ranks, in place. f32: contributions added in rank order
 * in a balanced tree, by slices (reduce-scatter, then all-gather). i64: exact. Another dtype is
 * FSDP_EINVAL.
 *   moves       2(W-1)/W*elems sent per rank
 *   holds       staging of (W-1)/W*elems, unless peers' memory is read in place or (i64) the
 *               transport itself adds */
fsdp_status comm_all_reduce(comm *c, stream *s, const char *label, dtype t, void *buf,
                            size_t elems);

EXTERN_C_END
