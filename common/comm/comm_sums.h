/* comm_sums.h -- the collectives that add, as the labs call them. comm_calls.h has the rules. */
#pragma once
#include "common/comm/comm_calls.h"
#include "common/sum/grad_acc.h"

EXTERN_C_BEGIN

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

/* comm_reduce_own -- the first half of comm_all_reduce: slice r of buf [W*elems] becomes, on rank
 * r, the sum of that slice over all ranks. The other slices stay as they are. moves  (W-1)*elems
 * sent per rank */
fsdp_status comm_reduce_own(comm *c, stream *s, const char *label, float *buf, size_t elems);

EXTERN_C_END
