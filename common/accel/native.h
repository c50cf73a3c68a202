/* native.h -- what the collectives of an accelerator's own library have to be able to do: a table
 * of its calls.
 *
 * A transport of transport.h is this table and what native.c and native_call.c make of it, which is
 * alike for all: groups over a control group, the comparison of calls, what has become of them,
 * time that is up, peers that died. common/cuda/nccl.c fills the table with NCCL's calls,
 * lab6_npu/hccl.c with HCCL's.
 *
 * Calls of the library may block until all ranks have come to them. One thread of the group makes
 * them, in one order, while the thread that issues everything waits beside it (native_thread.c).
 * A communicator is whatever the library's side makes of it. */
#pragma once
#include "common/accel/accel.h"
#include "common/comm/transport_help.h"

/* What a rank tells the others before any of them asks the library for a communicator. */
typedef struct native_row {
    char unit[64];  /* which device it is, of all devices of all hosts */
    char model[96]; /* what its maker calls it */
    int32_t index, version;
} native_row;

/* One call, as the library gets it. */
typedef struct native_call {
    const comm_team *team;
    const char *what; /* for messages */
    const void *from;
    void *to;
    size_t elems; /* of each rank */
    dtype type;   /* DTYPE_U8: bytes */
    int root;
    const comm_part *parts; /* [W] of an exchange; the entry of this rank itself is ignored */
} native_call;
typedef fsdp_status (*native_issue_fn)(void *handle, const native_call *c, void *queue);

typedef struct native_api {
    const char *name, *library;                     /* "nccl", and what people call it */
    const char *start_name, *split_name, *end_name; /* the library's calls, for messages */
    size_t id_bytes;

    /* prepare -- before this process makes a communicator. *chains: the library leaves the order of
     * calls on several queues to its callers, so that each has to wait for the one before. */
    fsdp_status (*prepare)(bool *chains);
    fsdp_status (*describe)(device *d, native_row *row); /* *row is zero */
    /* too_old -- whether the library of that row will not do, and then both versions in words:
     * "NCCL 2.17; it takes 2.18". NULL: every one will. */
    bool (*too_old)(const native_row *row, char *words, size_t bytes);

    /* id_make -- on rank 0: id [id_bytes], by which all ranks of a communicator find each other. */
    fsdp_status (*id_make)(void *id);
    /* look -- what the library found wrong with the communicator since the last look. In the thread
     * that issues everything, while no other call is made. */
    fsdp_status (*look)(void *handle, const char *what);

    /* The calls from here on are made in the thread of the group. It touches nothing of a caller
     * after the library has come back: the caller may have given up, and be gone.
     *
     * start -- make the team's communicator, and d the device of this thread. *handle is NULL after
     * an error. */
    fsdp_status (*start)(device *d, const comm_team *team, const void *id, void **handle);
    /* split -- the same for parts of a communicator; all ranks of `parent` call it. rank: of this
     * one in its part; -1: it is in none, *child is NULL then. Ranks of a part are in the order of
     * `parent`. NULL: each part is started. */
    fsdp_status (*split)(void *parent, int color, int rank, void **child);

    /* In stream order: the call is on the queue when they return. The slice of this rank is in `to`
     * already, at `from` (all_gather). `from` is `to` (broadcast). The sum of slice r of all ranks'
     * `from` [W*elems] is rank r's `to` [elems] (reduce_scatter; f32 or bf16). The sum of
     * all ranks' `from` [elems] is `to`, which is `from` (all_reduce; i64). */
    native_issue_fn exchange, all_gather, broadcast, reduce_scatter, all_reduce;

    /* destroy -- no work is left on it. */
    void (*destroy)(void *handle);
    /* abort -- work that its peers will not join leaves the streams, where the library can do that;
     * then as destroy. */
    void (*abort)(void *handle);
} native_api;

/* native_open_over -- the `open_over` of a transport `table` over api. */
fsdp_status native_open_over(const native_api *api, const comm_transport *table,
                             transport_group *below, transport_group **out, const char **why_not);
/* native_exchange ... native_close -- the functions of a comm_transport that have these names. */
fsdp_status native_exchange(transport_group *group, stream *s, const comm_call *call,
                            const comm_part *parts, const comm_peer_read *v);
fsdp_status native_all_gather(transport_group *group, stream *s, const comm_call *call, void *recv,
                              size_t slice_bytes);
fsdp_status native_broadcast(transport_group *group, stream *s, const comm_call *call, void *buf,
                             size_t bytes);
fsdp_status native_add(transport_group *group, stream *s, const comm_call *call,
                       const comm_scatter *x, void *sum);
fsdp_status native_all_reduce(transport_group *group, stream *s, const comm_call *call, void *buf,
                              size_t elems);
fsdp_status native_failed(transport_group *group);
fsdp_status native_split(transport_group *group, const comm_team *child, transport_group **out);
bool native_close(transport_group *group);

/* What a table has beside its name and its open_over. */
#define NATIVE_TRANSPORT                                                                           \
    .exchange = native_exchange, .all_gather = native_all_gather, .broadcast = native_broadcast,   \
    .add = native_add, .all_reduce = native_all_reduce, .failed = native_failed,                   \
    .split = native_split, .close = native_close
