/* comm_impl.h -- what the core (comm.c, comm_group.c) and the transports share; internal.
 *
 * The core does all that must be alike on every transport: sequence numbers, statistics, argument
 * checks, staging, sums. A transport moves bytes between ranks and notices that ranks disagree,
 * died or do not come. Every collective is one or two calls of its `exchange`, or of `peer_read`
 * where ranks can read each other's memory:
 *
 *   transport_open -> exchange, peer_read ... / split -> close         abort ends the job at any
 * time
 *
 * One thread at a time issues calls on a group; the work runs on streams. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "common/base/clock.h"
#include "common/comm/comm.h"

enum { COMM_LABEL_BYTES = 48 };

/* Calls of the host (comm_agree, comm_same, comm_split, comm_close): numbered and compared like the
 * collectives, but no operation of the statistics; the label says which.                         */
enum { COMM_OP_HOST = COMM_OPS };

/* What all ranks of a group must agree on in one call. Sent between ranks: zero it before filling,
 * it is compared as bytes.                                                                       */
typedef struct comm_desc {
    uint64_t seq;        /* number of the call on its group, from 1 */
    uint64_t elems;      /* per rank as the caller passed them; total for reduce_scatterv */
    uint64_t shape_hash; /* of reduce_scatterv's slices; 1: all_to_allv; else 0 */
    uint64_t label_hash; /* of the whole label */
    int32_t op, dtype, root, reserved;
    char label[COMM_LABEL_BYTES]; /* cut if longer, for messages */
} comm_desc;

typedef struct comm_call {
    comm_desc desc;
    uint64_t ticket; /* of the flight recorder */
    uint64_t number; /* of the transport's group: desc.seq, but for a part of a larger call */
    int phase;       /* 0; 1 for the all-gather of an all-reduce (not compared again) */
    bool more;       /* another phase follows */
    bool met;        /* the ranks of this host have compared it: see comm_hier.c */
} comm_call;

/* What moves between this rank and one peer; zero bytes move nothing. */
typedef struct comm_part {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;
} comm_part;

/* What is done with the bytes of all ranks where they lie; see comm_transport.peer_read. */
typedef struct comm_peer_read {
    fsdp_status (*fn)(const void *ctx, const void *const *from, int n_threads);
    const void *ctx;
    size_t ctx_bytes;
} comm_peer_read;

typedef struct comm_transport {
    const char *name;
    bool shares; /* peers read device_alloc_shared's memory in place: what comm_alloc gives */

    /* exchange -- parts [W], copied before return; the entry of this rank itself is ignored (the
     * core copies). In stream order on s; s NULL: host memory, the caller waits. Marks
     * call->ticket. errors  FSDP_EMISMATCH, FSDP_ETIMEOUT, FSDP_ECOMM; each ends the group */
    fsdp_status (*exchange)(void *group, stream *s, const comm_call *call, const comm_part *parts);

    /* peer_read -- exchange for those who only read: fn(ctx, from, n_threads) runs in stream order
     * while the peers' parts for this rank can be read where they are. from [W]: by rank,
     * from[rank] is parts[rank].send. recv is ignored, recv_bytes are compared; ctx is copied. A
     * peer's memory is not read after the peer's stream has passed the call. NULL: the core stages
     * what exchange brings. errors  as exchange, and fn's */
    fsdp_status (*peer_read)(void *group, stream *s, const comm_call *call, const comm_part *parts,
                             const comm_peer_read *v);

    /* failed -- FSDP_OK, or the error that ended the group (its record is set for this thread). */
    fsdp_status (*failed)(void *group);

    /* split -- called by every rank of `group` at once. color: >= 0, equal in a new group; *child
     * has rank, size and world_ranks filled. *out is NULL for a group of one. */
    fsdp_status (*split)(void *group, int color, const comm *child, void **out);

    /* close -- the core has synchronised the ranks, or the group has failed. Must not hang. */
    void (*close)(void *group);

    /* abort -- end the job, or return if that cannot be done. */
    void (*abort)(void *group, int exit_code);
} comm_transport;

/* ---- flight recorder (watch.c): the last calls of this process, for the report at a timeout  */

typedef struct comm_recorder comm_recorder;
typedef struct comm_hier comm_hier;
typedef enum comm_state { COMM_ISSUED, COMM_RUNNING, COMM_DONE, COMM_FAILED } comm_state;

/* NULL when there is no memory. Thread-safe. */
comm_recorder *comm_recorder_create(void);
void comm_recorder_free(comm_recorder *r);
/* comm_recorder_issue -- enter a call; returns its ticket. group_ranks: size of its group. */
uint64_t comm_recorder_issue(comm_recorder *r, const comm_desc *desc, int group_ranks);
/* comm_recorder_mark -- a call that has left the ring is ignored. */
void comm_recorder_mark(comm_recorder *r, uint64_t ticket, comm_state state);
/* comm_recorder_print -- the last calls and every older one that is unfinished, in one write. */
void comm_recorder_print(comm_recorder *r, FILE *out, int world_rank);

/* ---- what launchers say (launched.c) -------------------------------------------------------- */

#define COMM_RUN_ENV "FSDP_RUN" /* set by fsdp_run for each rank: "rank size job_fd area_fd" */
typedef struct comm_run_start {
    int rank, size, job_fd, area_fd;
} comm_run_start;
/* comm_run_started -- whether fsdp_run started this process; how. */
bool comm_run_started(comm_run_start *start);
/* comm_launcher_present -- whether some launcher did, also of one rank. */
bool comm_launcher_present(void);

/* comm_desc_print -- "all-gather #17 'h.0' of 320 f32" into text. */
void comm_desc_print(const comm_desc *desc, char *text, size_t text_bytes);

/* comm_desc_mismatch -- FSDP_EMISMATCH that names two calls which differ, and their world ranks. */
fsdp_status comm_desc_mismatch(const comm_desc *theirs, int their_rank, const comm_desc *mine,
                               int my_rank);

/* comm_hash -- FNV-1a, 64 bits. */
uint64_t comm_hash(const void *bytes, size_t n_bytes);

/* ---- the core's object -------------------------------------------------------------------- */

struct comm {
    const comm_transport *transport;
    void *group;     /* the transport's */
    comm_hier *hier; /* several hosts with several ranks each: the same group, else NULL */
    device *dev;
    int rank, size, local_rank, local_size;
    int *world_ranks; /* [size] rank of each member in the first group; messages use these */
    double timeout_s;
    comm_recorder *recorder; /* of the group opened first; shared by its splits */
    bool owns_recorder;

    uint64_t next_seq;
    comm_stats stats;
    comm_stats *job_stats; /* of all groups of the job; owned by the group opened first */
    comm_observer observer;
    void *observer_self;
    comm_part *parts;   /* [size] scratch of the call being issued */
    size_t *lengths;    /* [size] scratch: slice lengths */
    comm_slice *slices; /* [size] scratch: slices */
};

/* What the core knows of a call when it is issued. */
typedef struct comm_issue {
    comm_op op;
    dtype type;
    const char *label;
    size_t elems;        /* the observer's figure: per rank */
    size_t agreed_elems; /* the figure that all ranks must share */
    uint64_t shape_hash;
    int root;
    size_t sent_bytes; /* payload */
} comm_issue;

/* comm_call_begin -- number and announce a call, or return the error that ended the group. After it
 * the call counts as issued even if it fails.                                                    */
fsdp_status comm_call_begin(comm *c, const comm_issue *i, comm_call *call);
/* comm_parts_cleared -- the group's scratch, all zero. */
comm_part *comm_parts_cleared(comm *c);
/* comm_lengths_sum -- checked sum of W slice lengths, in elements and in bytes. */
fsdp_status comm_lengths_sum(const comm *c, const size_t *elems, dtype t, const char *what,
                             size_t *total_elems, size_t *bytes);

/* comm_peer_read_run -- transport->peer_read; where there is none, exchange into staging, then fn.
 *   parts        [W] send, send_bytes and recv_bytes are filled; recv is filled here
 *   stage_bytes  sum of the peers' recv_bytes */
fsdp_status comm_peer_read_run(comm *c, stream *s, const comm_call *call, comm_part *parts,
                               size_t stage_bytes, const comm_peer_read *v);

/* comm_group_new -- a core for n ranks of *c, which are the world_ranks; this one is their number
 * `rank`. It has no transport. NULL when there is no memory; comm_group_free accepts that. */
comm *comm_group_new(const comm *c, int rank, const int *world_ranks, int n);
void comm_group_free(comm *c);

/* comm_host_gather -- the host waits: recv [W*bytes] = every rank's send [bytes]; host memory. */
fsdp_status comm_host_gather(comm *c, const char *label, const void *send, void *recv,
                             size_t bytes);

/* The transports. Each fills transport, group, rank, size, local_rank, local_size and world_ranks.
 */
fsdp_status comm_self_open(comm *c);
fsdp_status comm_mpi_open(comm *c);
/* comm_mpi_fail -- the mpi transport ends with this thread's record, and all its ranks hear of it.
 * Does not wait. */
void comm_mpi_fail(void);
/* comm_mpi_on_failure -- `tell` is called when the mpi transport fails (or has failed), the failure
 * being the calling thread's record; NULL: not any more, and no call is on its way. */
void comm_mpi_on_failure(void (*tell)(void));
/* comm_self_use -- make *c, whose rank and size (1) are set, a group of the self transport. */
void comm_self_use(comm *c);

/* ---- several hosts with several ranks each (comm_hier.c) ------------------------------------ */

/* comm_hier_over_mpi -- *c is open over MPI: where its hosts have equally many ranks, more than
 * one, numbered host by host, these go over to shared memory inside each host; *c has hier then.
 * *unmapped: only that the memory cannot be mapped is in the way. collective */
fsdp_status comm_hier_over_mpi(comm *c, bool *unmapped);
/* comm_hier_split -- transport->split of a group with hier: fills transport and group of *child,
 * which has hier again, is one of shared memory, or goes by MPI alone. group NULL: one rank. */
fsdp_status comm_hier_split(comm *parent, int color, comm *child);

/* What collectives do on a group with hier, behind comm_call_begin. recv of the all-gather holds
 * this rank's slice already. */
fsdp_status comm_hier_all_gather(comm *c, stream *s, const comm_call *call, void *recv,
                                 size_t slice_bytes);
fsdp_status comm_hier_broadcast(comm *c, stream *s, const comm_call *call, void *buf, size_t bytes);

/* comm_hier_sums -- whether a host's contributions may be added up before they are pushed as one
 * node: always in fast mode, else where they are a whole subtree. The same on all ranks. */
bool comm_hier_sums(const comm *c, const grad_acc *acc, int level);
/* comm_fast_run -- how many ranks' contributions, side by side, fast mode adds first. */
int comm_fast_run(const comm *c);
typedef struct comm_scatter {
    const void *send;
    const comm_slice *slices; /* [W] */
    grad_acc *acc;
    int level;
} comm_scatter;
fsdp_status comm_hier_reduce_scatter(comm *c, stream *s, const comm_call *call,
                                     const comm_scatter *x);
