/* comm_impl.h -- what the parts of the front share; internal.
 *
 * comm.c        collectives that move bytes
 * comm_sum.c    collectives that add
 * comm_pieces.c both, for shards of several pieces
 * comm_group.c  groups: open, split, close
 * comm_host.c   what the hosts of a group settle
 * recorder.c    statistics, the watch, patience
 * hang.c        signals */
#pragma once
#include "common/comm/transport_help.h"

struct comm {
    transport_group *data; /* on top of the chain: moves what collectives move */
    comm_team team;
    const sum_kernels *sums; /* of all-reduces */
    comm_hang *hang;         /* of the group that was opened; NULL: no signal is taken */

    size_t *lengths;    /* [size] scratch: slice lengths */
    comm_slice *slices; /* [size] scratch: slices */
};

/* comm_gather_slices -- the transfer of an all-gather that has begun: slice r = rank r's send. */
fsdp_status comm_gather_slices(comm *c, stream *s, const comm_call *call, const void *send,
                               void *recv, size_t slice_bytes);
/* comm_pieces_begin -- check the pieces, and that the bytes of all shards fit a size_t; fill in *i,
 * whose type and label are set, for a call with these pieces. errors FSDP_EINVAL */
fsdp_status comm_pieces_begin(comm *c, const comm_pieces *p, comm_issue *i);

/* comm_put_over -- let `over` move the data of *c from now on, on top of what does; collective.
 * c->data is as it was when that cannot be; see comm_transport.open_over. */
fsdp_status comm_put_over(comm *c, const comm_transport *over, const char **why_not);
