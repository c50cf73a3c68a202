/* comm.h -- collectives between ranks: stream-ordered, labelled and numbered.
 *
 *   comm_open -> collectives on streams -> comm_close
 *
 * comm_calls.h has the calls that the labs make and the rules for all collectives. comm_pieces.h
 * has collectives whose shards are several pieces. This header has the rest. This project adds
 * contributions itself, in rank order, and leaves no sum to the transport, so all backends give the
 * same bits. (Exceptions, in GRAD_ACC_FAST only: `shm+mpi`, `nccl` and `hccl`; see
 * comm_reduce_scatter.) transport.h describes the backends.
 *
 * On a device's own transport (`nccl`, `hccl`) all ranks must issue the calls of all groups in one
 * order, and a call begins only after every call issued before it, on any stream. If FSDP_CHECK=1
 * is set on all ranks, the hosts meet at each call and compare it. Otherwise calls that do not
 * match end in a timeout or in wrong values. */
#pragma once
#include <stdint.h>
#include "common/comm/comm_sums.h"
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
    COMM_NATIVE, /* the device's own transport, or an error */
    COMM_DRY     /* moves no data: see comm_dry */
} comm_backend;

/* How a transport moves data. It determines how much memory a call holds. */
typedef enum comm_moves {
    MOVES_BY_SHOWING,  /* shm: ranks read each other's memory */
    MOVES_BY_BRINGING, /* mpi: contributions are received into staging */
    MOVES_NATIVELY,    /* nccl, hccl: the transport has whole collectives */
    MOVES_BY_BOTH,     /* shm+mpi: shows inside a host, brings between hosts */
    MOVES_NOTHING      /* self: there is one rank */
} comm_moves;

/* A group of COMM_DRY: this process plays one rank of any number. Calls are checked, numbered,
 * counted and reported to watches, but they move no data. Host calls such as comm_agree behave as
 * if every rank had passed what this rank passes. If the device's memory is not the host's, data is
 * copied through the host, unless `moves` is MOVES_NATIVELY. */
typedef struct comm_dry {
    int rank, size;
    comm_moves moves; /* what the group imitates: one of the first three */
} comm_dry;

typedef struct comm_config {
    comm_backend backend; /* AUTO: the value of FSDP_COMM; if it is not set, self without a
                             launcher; else the device's own transport if it has one (an error if it
                             cannot be opened); else, if the ranks of each host can map each other's
                             memory, shm on one host or shm+mpi on several (see transport.h);
                             else mpi */
    double timeout_s;     /* 0: the value of FSDP_TIMEOUT_S, else 300. A rank that has not started
                             is waited for at least 10 s */
    /* The kernels that add in all-reduces; borrowed. NULL: functions of this program. */
    const sum_kernels *sums;
    /* The device's own transport, such as NCCL's; FSDP_COMM selects it by its name. NULL: the
     * device has none. */
    const comm_transport *native;
    /* SIGTERM and SIGUSR1 only make comm_signal_came return true; see comm_take_signals. */
    bool keeps_signals;
    comm_dry dry; /* for COMM_DRY, which ignores launchers and the environment */
} comm_config;

#define COMM_RUN_ENV "FSDP_RUN" /* set only by fsdp_run: a rank's number */

/* comm_launched_ranks -- world size from the environment of a launcher whose job this program may
 * be able to join (launched.c); 1 if there is none. May be called before comm_open. */
int comm_launched_ranks(void);
/* comm_launched_rank -- this process's rank from the launcher's environment; 0 if there is none. */
int comm_launched_rank(void);
/* comm_launched_local_rank -- this process's rank within its host; if the launcher does not say it,
 * comm_launched_rank, which is right on one host. */
int comm_launched_local_rank(void);
/* comm_launched_apart -- whether the environment announces several ranks, but may be one that a
 * script passed on, such as the environment of a SLURM step. A program that was told to run alone
 * may do so then: it opens COMM_SELF. */
bool comm_launched_apart(void);
/* comm_schedule_seed -- a value for device_config.schedule_seed, made of FSDP_SCHEDULE and the
 * rank, so that it differs between ranks; 0 if FSDP_SCHEDULE is unset or 0.
 *   errors  FSDP_EINVAL FSDP_SCHEDULE is not a number of 32 bits */
fsdp_status comm_schedule_seed(uint64_t *seed);

/* comm_take_signals -- block the signals that are answered from comm_open to comm_close. SIGUSR2
 * prints this rank's last calls or, if FSDP_HANG_DIR is set, writes them to that directory, as a
 * failure does. If FSDP_HANG_DIR is set, SIGTERM also writes them and then has its usual effect.
 * Signals that come before comm_open stay pending. Call it in main, before any thread is started. A
 * second call may pass keeps = true.
 *   keeps  as comm_config.keeps_signals will be. If true, SIGTERM and SIGUSR1 are blocked too and
 *          never end the process: a launcher may repeat them while the process still does what the
 *          first one asked for */
void comm_take_signals(bool keeps);
/* comm_signal_came -- whether signo, SIGTERM or SIGUSR1, has come to this rank since the last call
 * for that signal. world is the group opened first; false unless it was opened with
 * keeps_signals. */
bool comm_signal_came(comm *world, int signo);

/* comm_open -- the group of all ranks that the launcher started. The first call of a process starts
 * the transport and (mpi) asks the kernel to end this process when its parent ends.
 *   d           the device whose memory collectives work on; borrowed until comm_close
 *   config      read during the call
 *   *out        owned by the caller; untouched after an error
 *   collective  all ranks of the job, same config; the host waits. A rank that fails before it
 *               meets its peers, for example for lack of memory, cannot tell them. They wait until
 *               its process ends, or as long as for a rank that has not started (timeout_s, at
 *               least 10 s)
 *   errors      FSDP_EINVAL the backend, or a variable of the environment; FSDP_ESKIP a backend
 *               that was not built or cannot be used here; FSDP_ESTATE opened again after the first
 *               group was closed; FSDP_EMISMATCH ranks differ in FSDP_LINK; FSDP_ENOMEM;
 *               FSDP_ETIMEOUT; FSDP_ECOMM */
fsdp_status comm_open(device *d, const comm_config *config, comm **out);

/* comm_close -- wait for the calls in flight, then free the group. NULL is accepted. The group
 * opened first is closed last and ends the transport.
 *   collective  all ranks of c; after a failure no rank waits for another */
void comm_close(comm *c);

/* Some ranks of a group: a run of n, from `first` on, `step` apart; and the same run again, n_outer
 * times in all, outer_step apart, where outer_step is longer than a run. All ranks that differ from
 * this one only along two axes of a mesh have this form. */
typedef struct comm_ranks {
    int32_t first, step, n, outer_step, n_outer; /* n_outer 1: one run */
} comm_ranks;
/* comm_subset -- a new group of the ranks of c that *ranks names, in ascending order. All ranks of
 * the new group pass the same, and different groups do not overlap.
 *   *out        owned by the caller, closed before c; untouched after an error
 *   collective  all ranks of c; the host waits
 *   costs       time and memory O(ranks of c)
 *   errors      FSDP_EINVAL this rank is not among them, they are not in c, or they cannot be named
 *               as ranks of the first group in this form; FSDP_EMISMATCH its ranks passed others;
 *               FSDP_ENOMEM; FSDP_ETIMEOUT; FSDP_ECOMM; all end the job */
fsdp_status comm_subset(comm *c, const comm_ranks *ranks, comm **out);
/* comm_range -- comm_subset of n ranks of c: first, first + step, ... */
fsdp_status comm_range(comm *c, int first, int step, int n, comm **out);

/* comm_set_patience -- from now on, waits of this process in any group of the job time out after
 * times * timeout_s. For phases in which peers work without making calls, such as writing files.
 * The death of a rank still ends a wait at once. */
void comm_set_patience(comm *c, double times);

/* comm_abort -- end the whole job, after the caller has printed the error: MPI_Abort, or _exit
 * without MPI. Never returns. If c is NULL, only this process ends; the launcher then ends the
 * others. */
__attribute__((noreturn)) void comm_abort(comm *c, int exit_code);

/* comm_local_rank, comm_local_size -- this rank's number among the job's ranks on its host, and the
 * number of those ranks. The same for all groups of the job. */
int comm_local_rank(const comm *c);
int comm_local_size(const comm *c);
/* comm_backend_name -- "self", "mpi", "shm", "shm+mpi", "dry" or the name of the device's own
 * transport; followed by "+link" if FSDP_LINK simulates a network, and by "+staged" if data is
 * copied through the host. A group made by comm_range may have another backend than c. */
const char *comm_backend_name(const comm *c);
/* comm_moves_of -- how the group moves data. Neither FSDP_LINK nor copies through the host change
 * that. */
comm_moves comm_moves_of(const comm *c);
/* comm_group_number -- identifies a group within the job; the same on all ranks of the group. The
 * group opened first is 0. */
uint64_t comm_group_number(const comm *c);

/* ---- streams -------------------------------------------------------------------------------- */

/* comm_stream_create -- stream_create, with a higher priority than compute streams have: kernels
 * that move data are small, and other ranks wait for them. */
fsdp_status comm_stream_create(device *d, const char *name, stream **out);

/* ---- collectives that move ------------------------------------------------------------------ */

/* comm_all_to_all -- slice r of send [W*elems] goes to rank r; recv [W*elems] by source rank.
 *   send, recv  device memory, caller owns; they must not overlap
 *   order       stream-ordered on s
 *   collective  all ranks of c, same order, label, dtype and elems
 *   moves       (W-1)*elems sent per rank
 *   errors      FSDP_EINVAL sizes that overflow; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM
 *   source      [MPI-4 §6] */
fsdp_status comm_all_to_all(comm *c, stream *s, const char *label, dtype t, const void *send,
                            void *recv, size_t elems);

/* comm_all_to_allv -- comm_all_to_all with slices of any length, which lie one after the other.
 *   send_elems, recv_elems  [W] lengths, read during the call. Rank a's send_elems[b] equals rank
 *                           b's recv_elems[a]
 *   send, recv  device memory, caller owns; they must not overlap
 *   order       stream-ordered on s
 *   collective  all ranks of c, same order, label and dtype
 *   moves       the slices for other ranks
 *   errors      FSDP_EINVAL sizes that overflow, or different lengths for this rank itself;
 *               FSDP_EMISMATCH, also if two ranks' lengths differ; FSDP_ETIMEOUT; FSDP_ECOMM
 *   source      [MPI-4 §6] */
fsdp_status comm_all_to_allv(comm *c, stream *s, const char *label, dtype t, const void *send,
                             const size_t *send_elems, void *recv, const size_t *recv_elems);

/* comm_barrier -- no rank's stream passes the call before all ranks' streams have reached it.
 *   order       stream-ordered on s; the host does not wait
 *   collective  all ranks of c, same order and label
 *   moves       nothing that is counted
 *   errors      FSDP_ENOMEM; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM
 *   source      [MPI-4 §6] */
fsdp_status comm_barrier(comm *c, stream *s, const char *label);

/* ---- collectives that add ------------------------------------------------------------------- */

/* comm_reduce_scatter -- comm_reduce_scatterv with W equal slices of `elems`, in rank order: slice
 * r of send [W*elems] goes to rank r.
 *   holds       max(vectors of acc before, after), see sum_run.h. Staging of (W-1)*elems if peers'
 *               memory cannot be read in place, and for bf16 a rounded copy of W*elems, both of
 *               acc->sum_dtype. Over several hosts one f32 vector per host, and for bf16 its
 *               rounded copy
 * The following holds for comm_reduce_scatterv too. Over several hosts (shm+mpi) a host's
 * contributions are added first if that gives the same bits, which it does if they form a whole
 * subtree. In GRAD_ACC_FAST they are always added first: the bits are then ((r0+r1)+(r2+r3)),
 * unlike over mpi. If acc->sum_dtype is DTYPE_BF16, send is rounded into a copy that all ranks
 * read, this one too, even in a group of one rank: the sum is one of bf16 values. In GRAD_ACC_FAST
 * nccl and hccl themselves add equal slices that lie side by side, in their own order, and round
 * each bf16 sum; acc gets the result as one node. */
fsdp_status comm_reduce_scatter(comm *c, stream *s, const char *label, const float *send,
                                size_t elems, grad_acc *acc, int level);

/* ---- host calls ----------------------------------------------------------------------------- */

/* comm_agree -- every rank passes its own status (with its error record). If any is not OK, every
 * rank returns a failure: its own, or one that names the lowest failing rank and quotes its
 * message. Keeps ranks together after a step that may fail on only some of them.
 *   order       none: the host waits, streams go on
 *   collective  all ranks of c
 *   errors      the statuses passed; FSDP_ENOMEM; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM */
fsdp_status comm_agree(comm *c, fsdp_status mine);

/* comm_same -- check that all ranks passed the same text. what: its name, for the message.
 *   order       none: the host waits, streams go on
 *   collective  all ranks of c
 *   errors      FSDP_EMISMATCH on every rank, with the first differing rank, `what` and both texts;
 *               the group can still be used. FSDP_ENOMEM; FSDP_ETIMEOUT; FSDP_ECOMM */
fsdp_status comm_same(comm *c, const char *what, const char *text);

/* comm_host_gather -- *all = the bytes that each rank passed, in rank order; the caller frees *all.
 *   mine        [bytes], the same number on every rank, at most 2048
 *   order       none: the host waits, streams go on
 *   collective  all ranks of c
 *   errors      FSDP_ENOMEM; FSDP_EMISMATCH; FSDP_ETIMEOUT; FSDP_ECOMM; *all is NULL then */
fsdp_status comm_host_gather(comm *c, const char *label, const void *mine, size_t bytes,
                             void **all);

/* ---- statistics and the watch --------------------------------------------------------------- */

typedef enum comm_op {
    COMM_OP_ALL_GATHER,
    COMM_OP_REDUCE_SCATTER,
    COMM_OP_ALL_REDUCE,
    COMM_OP_ALL_TO_ALL,
    COMM_OP_BARRIER,
    COMM_OPS
} comm_op;
/* comm_op_name -- "all-gather", ...; a literal. */
const char *comm_op_name(comm_op op);

/* What this rank has issued since the last reset. Only payload bytes count, not descriptors. An
 * all-reduce counts as one all-reduce, not as a reduce-scatter and an all-gather. */
typedef struct comm_stats {
    uint64_t calls[COMM_OPS];
    uint64_t bytes_sent[COMM_OPS];
} comm_stats;
/* comm_job_stats_read, comm_job_stats_reset -- for the group opened first and all its splits
 * together. c may be any of them. Any thread may call. */
comm_stats comm_job_stats_read(const comm *c);
void comm_job_stats_reset(comm *c);

/* A collective, as reported to a watch. All ranks' records of one call have the same (group,
 * seq). */
typedef struct comm_record {
    comm_op op;
    dtype type;
    const char *label; /* at most 47 characters; valid during the watch's function */
    size_t elems;      /* per rank, as the caller passed them; in the v forms this rank's */
    uint64_t group;    /* comm_group_number */
    int group_ranks;
    int first_rank, last_rank; /* of the group; numbered as in the job */
    uint64_t seq;              /* number of the call on its group */
    const struct stream *stream;
    unsigned calls; /* 1; 0 for a later part of a call whose first part was reported before: an
                       all-reduce has two parts, a call over several hosts up to three, and
                       FSDP_LINK adds one to each */
    double begin_s; /* by clock_now_s. In `issued` the time of issue; in `ended` the time its stream
                       reached it */
    double seconds; /* from begin_s to the end, including waits for peers; 0 on one rank */
    double bytes;   /* payload that a rank sends, averaged over the ranks of the group; 0 for
                       comm_all_to_allv */
    uint64_t token; /* in `ended`: the value that `issued` of the same watch returned; else 0 */
} comm_record;

typedef struct comm_watch {
    void *self;
    /* issued -- in the caller's thread. Returns a token for `ended`. May be NULL. */
    uint64_t (*issued)(void *self, const comm_record *r);
    void (*ended)(void *self, const comm_record *r); /* The call succeeded. Called in its stream's
                                                        thread. May be NULL. */
} comm_watch;

/* comm_set_watch -- report every collective of the job to *w until the next call. The job is the
 * group opened first and all its splits, any of which may be passed as c. NULL: no watch. *w is
 * copied; calls of the previous watch may still be running. */
void comm_set_watch(comm *c, const comm_watch *w);

EXTERN_C_END
