/* native.h -- the table of calls that an accelerator's library of collectives must provide.
 *
 * native.c and native_call.c make a transport of transport.h from this table. They add what all
 * libraries share: groups over a control group, comparing calls between ranks, tracking calls that
 * are in flight, time limits, dead peers. common/cuda/nccl.c fills the table with NCCL's calls,
 * lab6_npu/hccl.c with HCCL's.
 *
 * Calls of the library may block until all ranks have made them. One thread makes the calls of a
 * group and of all groups split from it, in one order, while the thread that issues the device's
 * work waits (native_thread.c). A communicator is an opaque handle of the library's side. */
#pragma once
#include "common/accel/accel.h"
#include "common/comm/transport/transport_help.h"

/* What each rank tells the others before the library makes a communicator. */
typedef struct native_row {
    char unit[64];  /* identifies the device among all devices of all hosts */
    char model[96]; /* the maker's name of the model */
    int32_t index, version;
    bool shares; /* the library lets ranks share a device */
} native_row;

/* The arguments of one call. */
typedef struct native_call {
    const comm_team *team;
    const char *what; /* for messages */
    const void *from;
    void *to;
    size_t elems;           /* per rank */
    dtype type;             /* DTYPE_U8: bytes */
    const comm_part *parts; /* [W] of an exchange; the entry of this rank itself is ignored */
} native_call;
typedef fsdp_status (*native_issue_fn)(void *handle, const native_call *c, void *queue);

typedef struct native_api {
    const char *name, *library; /* "nccl", and for messages "NCCL" */
    const char *to_share;       /* ", or " and what ranks need to share a device; "": they cannot */
    const char *start_name, *split_name, *end_name; /* the library's calls, for messages */
    size_t id_bytes;

    /* prepare -- called before a communicator is opened. *chains: set it if the library does not
     * order calls on different queues, so that each call must wait for the previous one. */
    fsdp_status (*prepare)(bool *chains);
    fsdp_status (*describe)(device *d, native_row *row); /* *row is zero */
    /* too_old -- whether the library version in *row is too old; then words gets both versions:
     * "NCCL 2.17; it takes 2.18". NULL: every version will do. */
    bool (*too_old)(const native_row *row, char *words, size_t bytes);

    /* id_make -- on rank 0: make id [id_bytes], by which the ranks of a communicator find each
     * other. */
    fsdp_status (*id_make)(void *id);
    /* look -- return an error that the library found in the communicator since the last look.
     * Called in the thread that issues the device's work, while the other thread is in no call. */
    fsdp_status (*look)(void *handle, const char *what);

    /* The calls below are made in the thread of native_thread.c. After the library has returned,
     * they must not touch the caller's data: the caller may have given up the call.
     *
     * start -- make d the current device of this thread, then make the team's communicator. *handle
     * is NULL after an error. */
    fsdp_status (*start)(device *d, const comm_team *team, const void *id, void **handle);
    /* split -- make the communicators of the parts of `parent`; all ranks of `parent` call it.
     * rank: this rank's number in its part, in the order of `parent`; -1: this rank is alone in its
     * part, and *child is NULL. If split itself is NULL, `start` makes each part's communicator. */
    fsdp_status (*split)(void *parent, int color, int rank, void **child);

    /* Stream-ordered: on return the call is on the queue. all_gather: this rank's slice is at
     * `from`, which is its place in `to`.  reduce_scatter (f32 or bf16):
     * rank r's `to` [elems] becomes the sum of slice r of all ranks' `from` [W*elems]. all_reduce
     * (i64): `to`, which is `from` [elems], becomes the sum over all ranks. */
    native_issue_fn exchange, all_gather, reduce_scatter, all_reduce;

    /* destroy -- no work is left on the communicator. */
    void (*destroy)(void *handle);
    /* abort -- end work that peers will not join, if the library can do that; then destroy the
     * communicator. */
    void (*abort)(void *handle);
} native_api;

/* native_open_over -- the `open_over` of a transport `table` over api. */
fsdp_status native_open_over(const native_api *api, const comm_transport *table,
                             transport_group *below, transport_group **out, const char **why_not);
/* native_exchange ... native_close -- functions of a comm_transport, of the same names. */
fsdp_status native_exchange(transport_group *group, stream *s, const comm_call *call,
                            const comm_part *parts, const comm_peer_read *v);
fsdp_status native_all_gather(transport_group *group, stream *s, const comm_call *call, void *recv,
                              size_t slice_bytes);
fsdp_status native_add(transport_group *group, stream *s, const comm_call *call,
                       const comm_scatter *x, void *sum);
fsdp_status native_all_reduce(transport_group *group, stream *s, const comm_call *call, void *buf,
                              size_t elems);
fsdp_status native_failed(transport_group *group);
fsdp_status native_split(transport_group *group, const comm_team *child, transport_group **out);
bool native_close(transport_group *group);

/* A comm_transport's functions except open_over. */
#define NATIVE_TRANSPORT                                                                           \
    .moves = MOVES_NATIVELY, .exchange = native_exchange, .all_gather = native_all_gather,         \
    .add = native_add, .all_reduce = native_all_reduce, .failed = native_failed,                   \
    .split = native_split, .close = native_close
