/* comm.h -- the second seam: collectives between ranks, stream-ordered, labelled and numbered.
 *
 *   comm_open -> collectives on streams -> comm_close
 *
 * comm_calls.h has the calls that the labs make and the rules for all collectives. comm_pieces.h
 * has collectives whose shards are several pieces. This header has the rest. Sums are done by this
 * project, in rank order, never by the transport: so every backend that moves bytes gives the same
 * bits. (Exceptions: `shm+mpi`, and `nccl` and `hccl` in GRAD_ACC_FAST, see comm_reduce_scatter.)
 * transport.h says what the backends are made of.
 *
 * Over a device's own transport (`nccl`, `hccl`) all ranks issue the calls of several groups in one
 * order, and none begins before one issued earlier, on whatever stream. With FSDP_CHECK=1 in the
 * environment of all ranks the hosts meet at each call and compare it; without it calls that do not
 * match are a wait that is too long, or bring wrong values. */
#pragma once
#include <stdint.h>
#include "common/comm/comm_calls.h"
#include "common/comm/comm_pieces.h"
#include "common/device/device.h"

EXTERN_C_BEGIN

typedef struct comm_transport comm_transport;

/* ---- the job -------------------------------------------------------------------------------- */

typedef enum comm_backend {
    COMM_AUTO,
    COMM_SELF,
    COMM_MPI,
    COMM_SHM,
    COMM_NATIVE, /* the device's own, or an error */
    COMM_DRY     /* nothing moves: see comm_dry */
} comm_backend;

/* How the transport that a dry group imitates moves data, for what that costs in memory. */
typedef enum comm_dry_moves {
    DRY_SHOWS,  /* ranks read each other's memory, as in shm */
    DRY_BRINGS, /* contributions are staged, as in mpi */
    DRY_NATIVE  /* whole collectives, as in nccl and hccl */
} comm_dry_moves;

/* A group of COMM_DRY: this process stands for one rank of any number. Calls are checked, numbered,
 * counted and told to watches, and move nothing. What hosts settle is settled as if all ranks had
 * passed what this one does. On a device whose memory is not the host's, data goes through copies
 * on the host, unless `moves` is DRY_NATIVE. */
typedef struct comm_dry {
    int rank, size;
    comm_dry_moves moves;
} comm_dry;

typedef struct comm_config {
    comm_backend backend; /* AUTO: what FSDP_COMM of the environment says, else self for one rank,
                             the device's own transport if it has one (an error when it cannot
                             be had), shm when all ranks are on this host and can map each other's
                             memory, shm+mpi when they can on each of several hosts, else mpi */
    double timeout_s;     /* 0: FSDP_TIMEOUT_S of the environment, else 300. Ranks that have not
                             started yet are waited for at least 10 */
    /* The kernels that all-reduces add with, borrowed. NULL: functions of this program. */
    const sum_kernels *sums;
    /* The device's own transport, such as NCCL's; FSDP_COMM knows it by its name. NULL: the device
     * has none. */
    const comm_transport *native;
    /* SIGTERM and SIGUSR1 are for comm_signal_came and do nothing else; see comm_take_signals. */
    bool keeps_signals;
    comm_dry dry; /* of COMM_DRY, which launchers and the environment have no say in */
} comm_config;

#define COMM_RUN_ENV "FSDP_RUN" /* how fsdp_run tells a rank its number; nobody else sets it */

/* comm_launched_ranks -- world size that the launcher's environment announces: COMM_RUN_ENV,
 * PMI_SIZE, OMPI_COMM_WORLD_SIZE, PMIX_SIZE or SLURM_STEP_NUM_TASKS; 1 when there is none. Usable
 * before comm_open. */
int comm_launched_ranks(void);
/* comm_launched_rank -- this process's rank by it, 0 when there is none. */
int comm_launched_rank(void);
/* comm_launched_local_rank -- this process's rank within its host: COMM_RUN_ENV, MPI_LOCALRANKID,
 * OMPI_COMM_WORLD_LOCAL_RANK, PMIX_LOCAL_RANK or SLURM_LOCALID; when none is set
 * comm_launched_rank, which is right on one host. */
int comm_launched_local_rank(void);
/* comm_schedule_seed -- for device_config.schedule_seed: what FSDP_SCHEDULE says, another one on
 * each rank; 0 when it is not set or 0.
 *   errors  FSDP_EINVAL FSDP_SCHEDULE is no number of 32 bits */
fsdp_status comm_schedule_seed(uint64_t *seed);

/* comm_take_signals -- from comm_open to comm_close SIGUSR2 prints this rank's last calls, or where
 * FSDP_HANG_DIR names a directory writes them there, as a failure does. With that variable SIGTERM
 * writes as well, before it does what it would have done. Before comm_open both wait. Call it in
 * main, before anything starts a thread; a second call may say that signals are kept.
 *   keeps  as comm_config.keeps_signals will be: SIGTERM and SIGUSR1 wait, too, and never end the
 *          process; launchers may send them again while it does what the first one asked for */
void comm_take_signals(bool keeps);
/* comm_signal_came -- whether SIGTERM or SIGUSR1, which the job's first group keeps, has come to
 * this rank since the last call that asked for it. */
bool comm_signal_came(comm *world, int signo);

/* comm_open -- the group of all ranks that the launcher started. The first call of a process starts
 * the transport and (mpi) asks the kernel to end this process when its parent ends.
 *   d           what collectives move is in its memory; borrowed until comm_close
 *   config      read during the call
 *   *out        owned by the caller; untouched after an error
 *   collective  all ranks of the job, same config; the host waits. A rank that fails before it has
 *               met its peers, such as for want of memory, cannot tell them: they wait until its
 *               process ends, or as long as for a rank that has not started (timeout_s, at least
 *               10)
 *   errors      FSDP_EINVAL backend, or what the environment says of it; FSDP_ESKIP a backend
 *               that is not built or cannot be had here; FSDP_ESTATE opened again after the first
 *               was closed; FSDP_EMISMATCH the ranks' FSDP_LINK; FSDP_ENOMEM; FSDP_ETIMEOUT;
 *               FSDP_ECOMM */
fsdp_status comm_open(device *d, const comm_config *config, comm **out);

/* comm_close -- wait for what is in flight, then free the group. NULL is accepted. The group opened
 * first is closed last and ends the transport.
 *   collective  all ranks of c; after a failure no rank waits for another */
void comm_close(comm *c);

/* comm_range -- ranks first, first + step, ... of c, n of them, form a group, in that order. Ranks
 * of one group pass the same range, and groups do not overlap.
 *   *out        owned by the caller, closed before c; untouched after an error
 *   collective  all ranks of c; the host waits
 *   costs       O(ranks of c), and no more memory than that
 *   errors      FSDP_EINVAL this rank is not in its range, or the range not in c; FSDP_EMISMATCH
 *               ranks of the range passed another; FSDP_ENOMEM; FSDP_ETIMEOUT; FSDP_ECOMM */
fsdp_status comm_range(comm *c, int first, int step, int n, comm **out);

/* comm_set_patience -- from now on the waits of this process, in any group of the job, may last
 * `times` as long as timeout_s: for what peers do meanwhile without a call, such as writing files.
 * A rank that dies ends them all the same. */
void comm_set_patience(comm *c, double times);

/* comm_abort -- end the whole job after the error was printed: MPI_Abort, or _exit without MPI.
 * Never returns. c may be NULL: then only this process ends, and the launcher the others. */
__attribute__((noreturn)) void comm_abort(comm *c, int exit_code);

/* comm_local_rank, comm_local_size -- this rank's number among the job's ranks on its host, and how
 * many these are; of a split too. */
int comm_local_rank(const comm *c);
int comm_local_size(const comm *c);
/* comm_backend_name -- "self", "mpi", "shm" or "shm+mpi", or the device's own transport; "+link"
 * behind it when FSDP_LINK simulates a network, "+staged" when the data goes through copies on the
 * host. A split may go by another than c does. */
const char *comm_backend_name(const comm *c);
/* comm_group_number -- tells the groups of a job apart; the same on all ranks of the group. The
 * group opened first is 0. */
uint64_t comm_group_number(const comm *c);

/* ---- streams -------------------------------------------------------------------------------- */

/* comm_stream_create -- a stream for collectives, which goes before compute where the two compete:
 * kernels that move data are small, and other ranks wait for them. As stream_create otherwise. */
fsdp_status comm_stream_create(device *d, const char *name, stream **out);

/* ---- collectives that move ------------------------------------------------------------------ */

/* comm_broadcast -- buf [elems] of root to all.
 *   buf         device memory, caller owns; unchanged on root
 *   order       stream-ordered on s
 *   collective  all ranks of c, same order, label, dtype, elems and root
 *   moves       (W-1)*elems, counted on root
 *   errors      FSDP_EINVAL root, sizes that overflow; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM
 *   source      [MPI-4 §6] */
fsdp_status comm_broadcast(comm *c, stream *s, const char *label, dtype t, void *buf, size_t elems,
                           int root);

/* comm_all_to_all -- slice r of send [W*elems] goes to rank r; recv [W*elems] by source rank.
 *   send, recv  device memory, caller owns; they must not overlap
 *   order       stream-ordered on s
 *   collective  all ranks of c, same order, label, dtype and elems
 *   moves       (W-1)*elems sent per rank
 *   errors      FSDP_EINVAL sizes that overflow; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM
 *   source      [MPI-4 §6] */
fsdp_status comm_all_to_all(comm *c, stream *s, const char *label, dtype t, const void *send,
                            void *recv, size_t elems);

/* comm_all_to_allv -- the same with slices of any length, which lie one behind the other.
 *   send_elems, recv_elems  [W] lengths, read during the call; what rank a sends to b is what b
 *                           receives from a
 *   send, recv  device memory, caller owns; they must not overlap
 *   order       stream-ordered on s
 *   collective  all ranks of c, same order, label and dtype
 *   moves       what goes to other ranks
 *   errors      FSDP_EINVAL sizes that overflow, or that differ for this rank itself;
 *               FSDP_EMISMATCH, lengths of two ranks included; FSDP_ETIMEOUT; FSDP_ECOMM
 *   source      [MPI-4 §6] */
fsdp_status comm_all_to_allv(comm *c, stream *s, const char *label, dtype t, const void *send,
                             const size_t *send_elems, void *recv, const size_t *recv_elems);

/* comm_barrier -- no rank's stream passes before all ranks' streams have reached it.
 *   order       stream-ordered on s; the host goes on
 *   collective  all ranks of c, same order and label
 *   moves       nothing that is counted
 *   errors      FSDP_ENOMEM; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM
 *   source      [MPI-4 §6] */
fsdp_status comm_barrier(comm *c, stream *s, const char *label);

/* ---- collectives that add ------------------------------------------------------------------- */

/* comm_reduce_scatter -- comm_reduce_scatterv with W equal slices of `elems`, in rank order: slice
 * r of send [W*elems] goes to rank r.
 *   holds       vectors of acc: the more of what it held before and what it holds after (see
 *               sum_run.h); staging (W-1)*elems where the transport cannot show peers' memory, and
 *               the rounded copy W*elems, both of acc->sum_dtype; over several hosts one f32 vector
 *               a host, and its rounded copy
 * Over several hosts (shm+mpi) a host's contributions are added first where that gives the same
 * bits: when they are a whole subtree; and always in GRAD_ACC_FAST, where the bits are then
 * ((r0+r1)+(r2+r3)) and no longer those of mpi. With acc->sum_dtype = DTYPE_BF16 a copy of send,
 * rounded, is what all ranks read (this one and a group of one rank too): the sum is one of bf16
 * values. In GRAD_ACC_FAST nccl and hccl add equal slices that lie side by side, in an order of its
 * own and of bf16 with a rounding each time; acc gets that as one node. All this holds for
 * comm_reduce_scatterv too. */
fsdp_status comm_reduce_scatter(comm *c, stream *s, const char *label, const float *send,
                                size_t elems, grad_acc *acc, int level);

/* ---- what hosts settle ---------------------------------------------------------------------- */

/* comm_agree -- every rank passes its own status (with its error record); if any is not OK, every
 * rank returns a failure: its own, or one that names the lowest failing rank and quotes its
 * message. Keeps ranks together after a step that may fail on one of them only.
 *   order       none: the host waits, streams go on
 *   collective  all ranks of c
 *   errors      those passed; FSDP_ENOMEM; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM */
fsdp_status comm_agree(comm *c, fsdp_status mine);

/* comm_same -- whether all ranks passed the same text; what: its name, for the message.
 *   order       none: the host waits, streams go on
 *   collective  all ranks of c
 *   errors      FSDP_EMISMATCH on every rank, naming the first differing rank, `what` and both
 *               texts (which ends nothing); FSDP_ENOMEM; FSDP_ETIMEOUT; FSDP_ECOMM */
fsdp_status comm_same(comm *c, const char *what, const char *text);

/* comm_host_gather -- what every rank's host passed, in rank order; the caller frees *all.
 *   mine        [bytes], the same number on every rank, at most 2048
 *   order       none: the host waits, streams go on
 *   collective  all ranks of c
 *   errors      FSDP_ENOMEM; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM; *all is NULL then */
fsdp_status comm_host_gather(comm *c, const char *label, const void *mine, size_t bytes,
                             void **all);

/* ---- figures -------------------------------------------------------------------------------- */

typedef enum comm_op {
    COMM_OP_ALL_GATHER,
    COMM_OP_REDUCE_SCATTER,
    COMM_OP_ALL_REDUCE,
    COMM_OP_BROADCAST,
    COMM_OP_ALL_TO_ALL,
    COMM_OP_BARRIER,
    COMM_OPS
} comm_op;
/* comm_op_name -- "all-gather", ...; a literal. */
const char *comm_op_name(comm_op op);

/* What this rank has issued since the last reset. Payload only, not descriptors. An all-reduce
 * counts as one all-reduce, not also as the two collectives it is made of. */
typedef struct comm_stats {
    uint64_t calls[COMM_OPS];
    uint64_t bytes_sent[COMM_OPS];
} comm_stats;
/* comm_job_stats_read, comm_job_stats_reset -- over the group opened first and all its splits. Any
 * of them may be passed, in any thread. */
comm_stats comm_job_stats_read(const comm *c);
void comm_job_stats_reset(comm *c);

/* A collective as a watch is told of it. Ranks' records of one call have the same (group, seq). */
typedef struct comm_record {
    comm_op op;
    dtype type;
    const char *label; /* cut at 47 characters; valid while the watch is told */
    size_t elems;      /* per rank, as the caller passed them; in the v forms those of this rank */
    uint64_t group;    /* comm_group_number */
    int group_ranks;
    int first_rank, last_rank; /* in the job, of the group's first and last rank */
    uint64_t seq;              /* number of the call on its group */
    const struct stream *stream;
    unsigned calls; /* 1; 0 for a later part (an all-reduce has two, a call over several hosts up to
                       three, FSDP_LINK adds one to each), whose first part was told before */
    double begin_s; /* by clock_now_s: issued; when ended, the moment that its stream reached it */
    double seconds; /* from there to the end, waits for peers included; 0 on one rank */
    double bytes;   /* payload sent by a rank, on average over the ranks of its group; 0 for
                       comm_all_to_allv */
    uint64_t token; /* in `ended`: what `issued` of the same watch returned; else 0 */
} comm_record;

typedef struct comm_watch {
    void *self;
    /* issued -- in the caller's thread. Returns a token for `ended`. May be NULL. */
    uint64_t (*issued)(void *self, const comm_record *r);
    void (*ended)(void *self, const comm_record *r); /* well, in its stream's thread; or NULL */
} comm_watch;

/* comm_set_watch -- *w is told of every collective of the job (of the group opened first and all
 * its splits), from whichever of them it is set, until the next one is set. NULL: nobody is. *w is
 * copied; calls to the one before may still be on their way. */
void comm_set_watch(comm *c, const comm_watch *w);

EXTERN_C_END
