/* transport.h -- the interface of a transport; internal.
 *
 *   open (by the launcher) or open_over (another group) -> exchange ... / split -> close
 *                                                          abort ends the job at any time
 *
 * The front (comm.c, comm_sum.c, comm_group.c) does everything that must be the same on every
 * transport: argument checks, statistics, sums. A transport moves bytes between ranks and detects
 * ranks that disagree, that died or that do not come. The front makes each collective of one or two
 * calls of `exchange`, unless the transport offers the whole collective. During an exchange a rank
 * may read its peers' memory, if the transport allows that. The front calls a transport only
 * through its table; a transport calls back only the functions that transport_help.h declares.
 *
 * A communicator is a chain of groups of the same ranks. The top group moves the data. Every group
 * but the last was opened over the group below it:
 *
 *   self       mpi       shm       shm over mpi       shm+mpi over mpi
 *
 * Up to two more groups stand on such a chain: the device's own transport, if it has one, then
 * link.c, if FSDP_LINK is set. If the host cannot read the device's memory and the device's own
 * transport is not used, staged.c is on top.
 *
 * Backends: `self` (one rank), `mpi` (MPICH: one thread calls it and keeps many operations in
 * flight), `shm` (ranks of one host, which read each other's memory), `shm+mpi` (several hosts with
 * equally many ranks, at least two, numbered host by host: shm inside a host, mpi between hosts; a
 * slice of an all-gather or a reduce-scatter crosses the network once, not once for every rank of
 * the host).
 *
 * These backends move host memory. If the device's memory is not the host's
 * (device_memory_is_host), staged.c copies what a rank sends to the host, and copies what arrives
 * back, in order of the call's stream (`shm+staged`). A call then also holds one block of host
 * memory (device_host_ledger, MEM_COMM): first the data sent to other ranks, then the data received
 * from them. Parts that lie side by side on the device form one piece, data sent to several ranks
 * is held once, and each piece begins at a multiple of 64 bytes. Over several hosts the block of an
 * all-gather is as large as its result, and a reduce-scatter forwards contributions as mpi does.
 * The seconds of a comm_record do not include these copies; a watch of the device is told of them.
 *
 * A device's own transport, `nccl` for GPUs or `hccl` for NPUs (one device per rank), stands on one
 * of these backends, which carries the host calls. It finds errors when the host issues a call or
 * waits for the device.
 *
 * Host calls (comm_agree, comm_same, comm_range, comm_close, and opening a group over another) use
 * the control group: the topmost group of the chain that can move host memory while a host waits.
 *
 * One thread at a time issues calls on a communicator; the work runs on streams. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/comm/comm.h"

/* ---- a call --------------------------------------------------------------------------------- */

enum { COMM_LABEL_BYTES = 48 };

/* Host calls are numbered and compared like collectives, but are not in the statistics; their label
 * says which call it is. */
enum { COMM_OP_HOST = COMM_OPS };

/* What all ranks of a group must agree on in one call. It is sent between ranks and compared as
 * bytes, so zero it before filling it. */
typedef struct comm_desc {
    uint64_t seq;        /* number of the call on its group, from 1 */
    uint64_t elems;      /* per rank, as the caller passed them; for reduce_scatterv the total */
    uint64_t shape_hash; /* of reduce_scatterv's slices, or of pieces; 1: all_to_allv; else 0 */
    uint64_t label_hash; /* of the whole label */
    int32_t op, dtype;
    char label[COMM_LABEL_BYTES]; /* cut if longer, for messages */
} comm_desc;

typedef struct comm_call {
    comm_desc desc;
    uint64_t ticket; /* in the flight recorder */
    uint64_t number; /* in the group that runs it: desc.seq, unless it is part of another group's
                        call */
    int phase;       /* 0; 1 for the all-gather of an all-reduce (not compared again) */
    bool more;       /* another phase follows */
} comm_call;

/* The data that moves between this rank and one peer; zero bytes move nothing. */
typedef struct comm_part {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;
} comm_part;

/* A function that works on the bytes of all ranks in place; see comm_transport.exchange. */
typedef struct comm_peer_read {
    fsdp_status (*fn)(const void *ctx, const void *const *from, int n_threads);
    const void *ctx;
    size_t ctx_bytes;
    const mem_access *accesses; /* [n_accesses] memory that fn accesses besides `from` */
    int n_accesses;
    size_t shown_bytes; /* 0, or how many bytes each rank shows from `send` on: all its parts then
                           have one `send`, and a peer reads at most send_bytes of them */
} comm_peer_read;

/* A reduce-scatter: all ranks' contributions to this rank's slice become nodes of `level`. */
typedef struct comm_scatter {
    const void *send;         /* of acc->sum_dtype */
    const comm_slice *slices; /* [W] */
    grad_acc *acc;
    int level;
    size_t extent_elems;       /* end of the last slice or piece of `send` */
    const comm_pieces *pieces; /* NULL, or, if peers' memory is read in place, the pieces of `send`
                                  that form the shards; `slices` then only gives the shards'
                                  lengths */
} comm_scatter;

/* ---- a group -------------------------------------------------------------------------------- */

typedef struct comm_recorder comm_recorder;

/* The members of a group, ascending, by their numbers in the first group: `size` ranks first, first
 * + step, ...; or, if run > 0, runs of so many ranks, which begin outer_step apart. A copy may
 * outlive the group, but then recorder and dev must not be used. */
typedef struct comm_team {
    int rank, size, local_rank, local_size;
    int first, step, run, outer_step; /* see comm_world_rank */
    uint64_t number; /* comm_group_number; 0: opened by comm_open, else by a split */
    double timeout_s;
    double start_s;          /* how long ranks wait for a rank that has not started */
    comm_recorder *recorder; /* the job's */
    device *dev;
    comm_dry dry; /* for COMM_DRY */
} comm_team;

/* comm_world_rank -- the number in the first group of rank r of the team; messages use it. */
static inline int comm_world_rank(const comm_team *team, int r)
{
    const int outer = team->run > 0 ? r / team->run : 0;
    return team->first + outer * team->outer_step + (r - outer * team->run) * team->step;
}

typedef struct transport_group {
    const comm_transport *table;
    void *state; /* owned by the transport */
    const comm_team *team;
    struct transport_group *below; /* the group it was opened on, which ends after it; or NULL */
    uint64_t next_seq;
    int fast_run; /* consecutive ranks whose contributions are added first in fast mode; 1: none */
    atomic_int n_unfinished; /* tasks of issued calls that have not run yet */
    comm_part parts[];       /* [size] scratch of the call being issued */
} transport_group;

struct comm_transport {
    const char *name;
    comm_moves moves;
    bool shares;       /* peers read memory of device_alloc_host in place, so comm_alloc uses it */
    bool carries_host; /* exchange takes host memory if s is NULL */
    bool peer_read;    /* exchange takes v; otherwise transport_sum receives contributions into
                          staging */

    /* open -- the group of all ranks that the launcher started. Fills rank, size, local_*, first
     * and step of *team (comm_team_fill). NULL: the transport can only be opened over another. */
    fsdp_status (*open)(comm_team *team, transport_group **out);

    /* open_over -- a group of the ranks of `below`, which stays open. *out and *why_not are NULL
     * before. If the transport cannot be used, *out stays NULL on all ranks, and *why_not may give
     * the reason, in words for the user. */
    fsdp_status (*open_over)(transport_group *below, transport_group **out, const char **why_not);

    /* exchange -- move bytes between this rank and each peer, in stream order on s; marks
     * call->ticket.
     *   parts   [W], copied before return; this rank's own entry is ignored (the front copies)
     *   s       NULL: host memory, and the caller waits
     *   v       NULL, or, if the table has peer_read, a function: v->fn(ctx, from, n_threads) runs
     *           in stream order while this rank can read the peers' parts in place. ctx is copied.
     *           from [W] is indexed by rank, and from[rank] is parts[rank].send. recv is ignored,
     *           recv_bytes are compared. No rank reads a peer's memory after the peer's stream has
     *           passed the call
     *   errors  FSDP_EMISMATCH, FSDP_ETIMEOUT, FSDP_ECOMM, errors of v->fn; each ends the group */
    fsdp_status (*exchange)(transport_group *group, stream *s, const comm_call *call,
                            const comm_part *parts, const comm_peer_read *v);

    /* Whole collectives, for transports that have better ones than the front makes of exchange;
     * NULL: it has none. recv of the all-gather already holds this rank's slice. */
    fsdp_status (*all_gather)(transport_group *group, stream *s, const comm_call *call, void *recv,
                              size_t slice_bytes);
    fsdp_status (*reduce_scatter)(transport_group *group, stream *s, const comm_call *call,
                                  const comm_scatter *x);
    /* sum [acc->elems] of acc->sum_dtype = all ranks' contributions to this rank, added in the
     * transport's own order. transport_scatter pushes that sum as one node. */
    fsdp_status (*add)(transport_group *group, stream *s, const comm_call *call,
                       const comm_scatter *x, void *sum);
    /* buf [elems] i64 = the sum over ranks, in any order: integer addition is exact. */
    fsdp_status (*all_reduce)(transport_group *group, stream *s, const comm_call *call, void *buf,
                              size_t elems);

    /* failed -- FSDP_OK, or the error that ended the group (this thread's record is set to it).
     * NULL: the group fails when the group below does, or cannot fail. */
    fsdp_status (*failed)(transport_group *group);

    /* fail -- end the job with this thread's error record; every rank is told. Does not wait. For
     * groups that carry host calls. NULL: it cannot. */
    void (*fail)(void);

    /* split -- called by all ranks of `group`, which are two or more, after a host call on its
     * control group. child: the members of this rank's part, which are every step-th rank of
     * `group`; parts do not overlap. *out is NULL before and stays NULL for a part of one rank;
     * otherwise it is set to the new group, with its own chain below it. */
    fsdp_status (*split)(transport_group *group, const comm_team *child, transport_group **out);

    /* close -- the front has synchronised the ranks, or the group has failed. Must not hang.
     * Returns whether the group below may be closed too: false after a failure that the group below
     * does not know of. NULL: there is nothing to do, and the group below may be closed. */
    bool (*close)(transport_group *group);

    /* abort -- end the job; return if that is not possible. NULL: it is not possible. */
    void (*abort)(transport_group *group, int exit_code);
};

extern const comm_transport self_transport, mpi_transport, shm_transport, hier_transport,
    link_transport, staged_transport, dry_transport;
