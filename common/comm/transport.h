/* transport.h -- what a transport is and what it is given; internal.
 *
 *   open (by the launcher) or open_over (another group) -> exchange ... / split -> close
 *                                                          abort ends the job at any time
 *
 * The front (comm.c, comm_sum.c, comm_group.c) does all that must be alike on every transport:
 * argument checks, statistics, sums. A transport moves bytes between ranks and notices that ranks
 * disagree, died or do not come. Every collective is one or two calls of its `exchange`, in which
 * a rank may read its peers' memory where that can be, unless it offers the whole collective. The
 * front reaches a transport through its table alone; a transport calls back what transport_help.h
 * declares and nothing else.
 *
 * A communicator is a chain of groups of the same ranks. The top one moves the data, each other one
 * is what the group above it was opened on:
 *
 *   mpi        shm over mpi        shm+mpi over mpi
 *
 * each with link.c over it (FSDP_LINK), and over that, on a device whose memory the host cannot
 * read, staged.c. A device's own transport stands over the first of these in place of staged.c.
 *
 * Backends: `self` (one rank), `mpi` (MPICH: one thread talks to it and keeps many operations in
 * flight), `shm` (ranks of one host: they read each other's memory), `shm+mpi` (several hosts with
 * equally many ranks, at least two, numbered host by host: shm inside a host, mpi between hosts; a
 * slice of an all-gather or a reduce-scatter crosses the network once, not once for every rank of
 * the host).
 *
 * These move memory of the host. On a device whose memory is another (device_memory_is_host), what
 * a rank sends is copied to the host and what arrives is copied back, in order of the call's stream
 * (`shm+staged`). A call then also holds one block of host memory (device_host_ledger, MEM_COMM):
 * what it sends to other ranks, then what arrives from them. Parts that lie side by side on the
 * device are one piece, what goes to several ranks is there once, and each piece begins at a
 * multiple of 64 bytes. Over several hosts the block of an all-gather is as large as its result,
 * and a reduce-scatter is done, and adds, as over mpi. The seconds of a comm_record are without
 * these copies, which a watch of the device is told of.
 *
 * A device's own transport stands over one of the first, which carries what hosts settle: `nccl`
 * for GPUs, `hccl` for NPUs, of which each rank has its own. What goes wrong is found when the host
 * issues a call or waits for the device.
 *
 * What hosts settle (comm_agree, comm_same, comm_range, comm_close, and the opening of a group over
 * another) goes over the control group: the topmost that can move host memory while a host waits.
 *
 * One thread at a time issues calls on a communicator; the work runs on streams. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/comm/comm.h"

/* ---- a call --------------------------------------------------------------------------------- */

enum { COMM_LABEL_BYTES = 48 };

/* Calls of hosts: numbered and compared like the collectives, but no operation of the statistics;
 * the label says which. */
enum { COMM_OP_HOST = COMM_OPS };

/* What all ranks of a group must agree on in one call. Sent between ranks: zero it before filling,
 * it is compared as bytes. */
typedef struct comm_desc {
    uint64_t seq;        /* number of the call on its group, from 1 */
    uint64_t elems;      /* per rank as the caller passed them; total for reduce_scatterv */
    uint64_t shape_hash; /* of reduce_scatterv's slices, or of pieces; 1: all_to_allv; else 0 */
    uint64_t label_hash; /* of the whole label */
    int32_t op, dtype, root, reserved;
    char label[COMM_LABEL_BYTES]; /* cut if longer, for messages */
} comm_desc;

typedef struct comm_call {
    comm_desc desc;
    uint64_t ticket; /* of the flight recorder */
    uint64_t number; /* of the group that runs it: desc.seq, but for a part of another's call */
    int phase;       /* 0; 1 for the all-gather of an all-reduce (not compared again) */
    bool more;       /* another phase follows */
} comm_call;

/* What moves between this rank and one peer; zero bytes move nothing. */
typedef struct comm_part {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;
} comm_part;

/* What is done with the bytes of all ranks where they lie; see comm_transport.exchange. */
typedef struct comm_peer_read {
    fsdp_status (*fn)(const void *ctx, const void *const *from, int n_threads);
    const void *ctx;
    size_t ctx_bytes;
    const mem_access *accesses; /* [n_accesses] what fn touches beside `from` */
    int n_accesses;
    size_t shown_bytes; /* 0, or the bytes that a rank shows, from its parts' send on, which is the
                           same for all peers; fn reads send_bytes of them */
} comm_peer_read;

/* A reduce-scatter: the ranks' contributions to this one's slice become nodes of `level`. */
typedef struct comm_scatter {
    const void *send;         /* of acc->sum_dtype */
    const comm_slice *slices; /* [W] */
    grad_acc *acc;
    int level;
    size_t extent_elems;       /* where the last slice or piece of `send` ends */
    const comm_pieces *pieces; /* NULL, or the pieces of `send` that a rank reads in place of its
                                  slice, which has only its length; set if peers' memory is read */
} comm_scatter;

/* ---- a group -------------------------------------------------------------------------------- */

typedef struct comm_recorder comm_recorder;

/* Who is in a group: ranks first, first + step, ... of the first group, `size` of them. A copy may
 * outlive the group; recorder and dev may not be used then. */
typedef struct comm_team {
    int rank, size, local_rank, local_size;
    int first, step; /* see comm_world_rank */
    uint64_t number; /* comm_group_number; 0: comm_open opened the group, else a split made it */
    double timeout_s;
    double start_s;          /* how long ranks wait for one that has not started */
    comm_recorder *recorder; /* of the job */
    device *dev;
    comm_dry dry; /* of COMM_DRY */
} comm_team;

/* comm_world_rank -- rank r of the team in the first group; messages use these. */
static inline int comm_world_rank(const comm_team *team, int r)
{
    return team->first + r * team->step;
}

typedef struct transport_group {
    const comm_transport *table;
    void *state; /* the transport's */
    const comm_team *team;
    struct transport_group *below; /* which this one was opened on and ends after it; NULL */
    uint64_t next_seq;
    int fast_run; /* ranks side by side whose contributions fast mode adds first; 1: none */
    atomic_int n_unfinished; /* tasks of calls that were issued and have not run */
    comm_part parts[];       /* [size] scratch of the call being issued */
} transport_group;

struct comm_transport {
    const char *name;
    bool shares;       /* peers read device_alloc_host's memory in place: what comm_alloc gives */
    bool carries_host; /* exchange takes host memory, s being NULL */
    bool peer_read;    /* exchange takes v; else what it brings is staged (transport_sum) */

    /* open -- the group of all ranks that the launcher started; fills rank, size, local_* and
     * first and step of *team (comm_team_fill). NULL: it can only be opened over another. */
    fsdp_status (*open)(comm_team *team, transport_group **out);

    /* open_over -- a group of the ranks of `below`, which stays below. *out and *why_not are NULL
     * before. *out stays NULL when that cannot be, on all ranks; *why_not may then say why, in
     * words for the user. */
    fsdp_status (*open_over)(transport_group *below, transport_group **out, const char **why_not);

    /* exchange -- move bytes between this rank and each peer, in stream order on s; marks
     * call->ticket.
     *   parts   [W], copied before return; this rank's own entry is ignored (the front copies)
     *   s       NULL: host memory, and the caller waits
     *   v       NULL, or, if the table has peer_read: v->fn(ctx, from, n_threads) runs in stream
     *           order while this rank can read the parts that its peers send where they lie; ctx is
     *           copied. from [W] is by rank, and from[rank] is parts[rank].send. recv is ignored,
     *           recv_bytes are compared. No peer's memory is read after that peer's stream has
     *           passed the call
     *   errors  FSDP_EMISMATCH, FSDP_ETIMEOUT, FSDP_ECOMM, errors of v->fn; each ends the group */
    fsdp_status (*exchange)(transport_group *group, stream *s, const comm_call *call,
                            const comm_part *parts, const comm_peer_read *v);

    /* Whole collectives, where the transport has better ones than exchange gives; NULL: it has
     * none. recv of the all-gather holds this rank's slice already. */
    fsdp_status (*all_gather)(transport_group *group, stream *s, const comm_call *call, void *recv,
                              size_t slice_bytes);
    fsdp_status (*broadcast)(transport_group *group, stream *s, const comm_call *call, void *buf,
                             size_t bytes);
    fsdp_status (*reduce_scatter)(transport_group *group, stream *s, const comm_call *call,
                                  const comm_scatter *x);
    /* sum [acc->elems] of acc->sum_dtype = all ranks' contributions to this one, added in an order
     * of the transport's own. For transport_scatter, which pushes that as one node. */
    fsdp_status (*add)(transport_group *group, stream *s, const comm_call *call,
                       const comm_scatter *x, void *sum);
    /* buf [elems] i64 = the sum over ranks: integers add exactly, in any order. */
    fsdp_status (*all_reduce)(transport_group *group, stream *s, const comm_call *call, void *buf,
                              size_t elems);

    /* failed -- FSDP_OK, or the error that ended the group (its record is set for this thread).
     * NULL: it fails as the group below does, or cannot fail. */
    fsdp_status (*failed)(transport_group *group);

    /* fail -- this thread's record ends the job; every rank hears of it. Does not wait. For those
     * that stand over a group which carries hosts' calls; NULL: it cannot. */
    void (*fail)(void);

    /* split -- called by every rank of `group`, of two or more, at once, after a host call on its
     * control group. child: members of this rank's part, which are every step-th rank of `group`;
     * parts do not overlap. *out is NULL before, and stays NULL for a part of one rank; else it
     * gets the group with all that this needs below it. */
    fsdp_status (*split)(transport_group *group, const comm_team *child, transport_group **out);

    /* close -- the front has synchronised the ranks, or the group has failed. Must not hang.
     * Returns whether the group below may be closed too: not after a failure that it does not know
     * of. NULL: nothing is to be done, and it may. */
    bool (*close)(transport_group *group);

    /* abort -- end the job, or return if that cannot be done. NULL: it cannot. */
    void (*abort)(transport_group *group, int exit_code);
};

extern const comm_transport self_transport, mpi_transport, shm_transport, hier_transport,
    link_transport, staged_transport, dry_transport;
