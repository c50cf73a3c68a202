/* comm_impl.h -- declarations that the files of the front (see transport.h) share; internal.
 *
 * comm.c         collectives that move bytes
 * comm_sum.c     collectives that add
 * comm_pieces.c  shards of several pieces: checks, all-gather
 * comm_group.c   groups: open, split, close
 * comm_host.c    host calls
 * recorder.c     statistics, the watch, timeouts
 * hang.c         signals */
#pragma once
#include "common/comm/transport/transport_help.h"

struct comm {
    transport_group *data; /* top of the chain (see transport.h): moves the data */
    comm_team team;
    const sum_kernels *sums; /* for all-reduces */
    comm_hang *hang;         /* in the group that comm_open opened; NULL: no signal is taken */

    size_t *lengths;    /* [size] scratch: slice lengths */
    comm_slice *slices; /* [size] scratch: slices */
};

/* comm_gather_slices -- the transfer of an all-gather after transport_begin: slice r of recv = rank
 * r's send. */
fsdp_status comm_gather_slices(comm *c, stream *s, const comm_call *call, const void *send,
                               void *recv, size_t slice_bytes);
/* comm_pieces_begin -- check the pieces, and that the bytes of all shards fit a size_t. Complete
 * *i, whose type and label are set, for a call with these pieces. errors FSDP_EINVAL */
fsdp_status comm_pieces_begin(comm *c, const comm_pieces *p, comm_issue *i);

/* comm_put_over -- open `over` on top of c->data, to move the data of *c from now on; collective.
 * If it cannot be used, c->data stays as it was; see comm_transport.open_over. */
fsdp_status comm_put_over(comm *c, const comm_transport *over, const char **why_not);
