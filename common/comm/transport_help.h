/* transport_help.h -- all that a transport may call outside its own files; internal.
 *
 * transport_group.c  groups and teams; calls of hosts
 * transport_sum.c    sums on any transport
 * comm_pieces.c      shards of several pieces
 * call_task.c        the task of a call: what it touches, how it ends
 * recorder.c         the flight recorder
 * hang.c             its files, and the signals that ask for them
 * describe.c         calls in words
 * launched.c         what launchers say
 *
 * These files call a transport through a table only. */
#pragma once
#include <pthread.h>
#include <stdio.h>
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/comm/transport.h"
#include "common/sum/sum_run.h"

/* ---- groups and teams ----------------------------------------------------------------------- */

/* comm_team_fill -- *team is all `size` ranks of the job; its other fields stay. */
void comm_team_fill(comm_team *team, int rank, int size, int local_rank, int local_size);
/* comm_team_part -- *out: ranks first, first + step, ... of `of`, n of them and this one among
 * them; what it has besides is as in `of`. */
void comm_team_part(const comm_team *of, int first, int step, int n, comm_team *out);
/* comm_team_find -- the rank in team of a rank of the job, which is in it. */
int comm_team_find(const comm_team *team, int world_rank);

/* transport_group_new -- a group with nothing below. (*out)->state has state_bytes of zeros, which
 * table->close frees, or is NULL for 0 bytes. transport_group_close frees the group. If it fails,
 * *out is unchanged. */
fsdp_status transport_group_new(const comm_transport *table, const comm_team *team,
                                size_t state_bytes, transport_group **out);
/* transport_group_close -- g, then what is below it. NULL is accepted. */
void transport_group_close(transport_group *g);

/* transport_failed -- table->failed, of g or of the topmost group below it that has one. */
fsdp_status transport_failed(transport_group *g);
/* transport_fail -- table->fail: this rank cannot make a call that its peers would wait in. Returns
 * why. */
fsdp_status transport_fail(transport_group *g, fsdp_status why);
/* transport_drain -- wait for what streams still have to do on the group; false: not all of it is
 * done. When a stream failed for another reason its tasks never run: patience ends the wait, which
 * on a failed group is failed_patience_s. */
bool transport_drain(transport_group *g, double failed_patience_s);
/* transport_linger -- after a failure, of which this process heard at died_s, the first rank to end
 * takes the others with it (the launcher kills them), so all stay for a moment, in which each can
 * print what it saw. 0: there was none. */
void transport_linger(double died_s);

/* transport_control -- the topmost of g and what is below it that carries host calls. */
transport_group *transport_control(transport_group *g);
/* transport_parts -- the group's scratch, all zero. */
comm_part *transport_parts(transport_group *g);

/* ---- calls ---------------------------------------------------------------------------------- */

/* What the front knows of a call when it is issued. */
typedef struct comm_issue {
    comm_op op;
    dtype type;
    const char *label;
    size_t elems;        /* what a watch is told: per rank */
    size_t agreed_elems; /* the figure that all ranks must share */
    uint64_t shape_hash;
    int root;
    size_t sent_bytes; /* payload */
} comm_issue;

/* transport_begin -- number and announce a call of the group, or return the error that ended it.
 * After transport_begin the call counts as issued even if it fails. */
fsdp_status transport_begin(transport_group *g, stream *s, const comm_issue *i, comm_call *call);
/* transport_pass -- run a call of a group above as one on g, which numbers it for itself. v NULL:
 * an exchange. */
fsdp_status transport_pass(transport_group *g, stream *s, const comm_call *call,
                           const comm_part *parts, const comm_peer_read *v);

/* transport_call_below -- a call of `group` as one of the group below, which runs all of it and
 * numbers it for itself: once, if it has two phases. */
comm_call transport_call_below(const transport_group *group, const comm_call *call);

/* What the task of a call touches on this rank. While the task runs, peers may read the ranges that
 * it tells as read: a call is over on a rank only when its peers have read them.
 *
 *   touched_begin -> touched_add ... -> touched_launch */
typedef struct touched {
    mem_access *list; /* [n]; NULL: no memory */
    int n;
} touched;
/* touched_begin -- room for two ranges a rank and one more. v's accesses, unless v is NULL, are in
 * it. */
touched touched_begin(const comm_team *team, const comm_peer_read *v);
/* touched_add -- nothing for 0 bytes; a range that goes on where the last one ends joins it. */
void touched_add(touched *t, const void *ptr, size_t bytes, bool writes);
/* touched_sent, touched_received -- what the parts send to other ranks, and receive from them. */
void touched_sent(touched *t, const comm_team *team, const comm_part *parts);
void touched_received(touched *t, const comm_team *team, const comm_part *parts);
/* touched_launch -- launch l, which has fn and arguments, as a part of the call; unless it issues
 * work of the device, it touches host memory only. t is gone then. errors  stream_launch_work's;
 * FSDP_ENOMEM */
fsdp_status touched_launch(touched *t, stream *s, const comm_call *call, launch_config l);

/* A call as a task of its stream, on a transport that moves memory of the host. */
typedef struct comm_task comm_task;
struct comm_task {
    /* run -- in the stream's thread, on a group that has not failed; marks nothing itself */
    fsdp_status (*run)(const comm_task *t, int n_threads);
    transport_group *group;
    comm_call call;
    const void *shown; /* [shown_bytes] which peers read; NULL: they read the parts' send */
    size_t shown_bytes;
    bool only_waits; /* touches nothing, and a watch is not told its name */

    /* filled by transport_task */
    device *dev; /* whose memory the data is in; NULL: the host's */
    fsdp_status (*fn)(const void *ctx, const void *const *from, int n_threads); /* of v, or NULL */
    pthread_t issuer;
    comm_part parts[]; /* [W], then v's ctx */
};
/* transport_task -- launch a copy of *head with parts [W] and v, which may be NULL. s NULL: it has
 * run on return. Until a task has run, group->n_unfinished counts it, and the group stays.
 *   errors  FSDP_ENOMEM; stream_launch_work's; run's, where the stream runs it at once */
fsdp_status transport_task(const comm_task *head, stream *s, const comm_part *parts,
                           const comm_peer_read *v);

/* transport_gather -- the host waits: *all [W*bytes] = every rank's `mine` [bytes], host memory,
 * which the caller frees; NULL after a failure. g carries host calls; so it does in
 * transport_agree, which is comm_agree on it. */
fsdp_status transport_gather(transport_group *g, const char *label, const void *mine, size_t bytes,
                             void **all);
fsdp_status transport_agree(transport_group *g, fsdp_status mine);

/* A sum of what ranks have for this one: input i of the run is what rank first + i*step has. */
typedef struct comm_sum {
    const sum_kernels *kernels;
    sum_run run;
    int first, step;           /* 0, 1: of all ranks */
    const comm_pieces *pieces; /* NULL, or the sum is over this rank's pieces of what ranks show */
    int rank;                  /* of pieces: this rank */
} comm_sum;

/* transport_sum -- the run over the ranks' parts: where they lie, if the transport shows them; else
 * exchange into staging, then one launch.
 *   parts   [W] send, send_bytes and recv_bytes are filled; recv is filled here
 *   holds   staging of the peers' recv_bytes, in device memory, where the transport has no
 *           peer_read */
fsdp_status transport_sum(transport_group *g, stream *s, const comm_call *call, comm_part *parts,
                          const comm_sum *x);
/* transport_scatter_parts -- parts that deliver slice r of `send` to rank r. */
void transport_scatter_parts(const transport_group *g, comm_part *parts, const void *send,
                             const comm_slice *slices, size_t elem_bytes);
/* transport_shows -- whether ranks read their peers' memory in place. */
bool transport_shows(const transport_group *g);
/* pieces_extent -- where in the caller's array the last piece ends. */
size_t pieces_extent(const comm_pieces *p);
/* transport_scatter -- a reduce-scatter that pushes every rank's contribution by itself; or, in
 * GRAD_ACC_FAST and for equal slices side by side in order of ranks, the sum that table->add makes
 * of them, if the table has it. It holds that sum in device memory then. */
fsdp_status transport_scatter(transport_group *g, stream *s, const comm_call *call,
                              const comm_scatter *x);

/* ---- flight recorder: the last calls, for a watch and for the report at a timeout ----------- */

typedef enum comm_state { COMM_ISSUED, COMM_RUNNING, COMM_DONE, COMM_FAILED } comm_state;

/* comm_recorder_create -- an empty one, with the times of d; NULL when there is no memory. All of
 * it is thread-safe. */
comm_recorder *comm_recorder_create(const device *d);
/* comm_recorder_free -- NULL is accepted. */
void comm_recorder_free(comm_recorder *r);
/* comm_recorder_issue -- enter a call of the team in its recorder; returns the call's ticket. via:
 * the name, a literal, of the transport that has numbered it. */
uint64_t comm_recorder_issue(const comm_team *team, const char *via, stream *s, const comm_issue *i,
                             const comm_desc *desc);
/* comm_recorder_mark -- a call that has left the ring is ignored. _at: that was so at_s. */
void comm_recorder_mark(comm_recorder *r, uint64_t ticket, comm_state state);
void comm_recorder_mark_at(comm_recorder *r, uint64_t ticket, comm_state state, double at_s);
/* comm_limit_s -- what a wait may take now: timeout_s, or as often as comm_set_patience says. */
double comm_limit_s(const comm_team *team);
/* comm_recorder_print -- the last calls and every older one that is unfinished, in one write to
 * stderr. */
void comm_recorder_print(comm_recorder *r);

/* comm_recorder_write -- groups, this rank and the last calls as text, a line each, sorted as
 * `sort` does in the C locale; of `why` its first line. Returns the rank in the job. */
int comm_recorder_write(comm_recorder *r, FILE *out, const char *why);

/* ---- files of the flight recorder, for sort -m and diff -------------------------------------- */

typedef struct comm_hang comm_hang;
/* comm_hang_write -- the last calls become FSDP_HANG_DIR/rank-00003.txt, if that variable is set.
 * This thread's record stays; where the file cannot be written stderr says so. */
void comm_hang_write(comm_recorder *r, const char *why);
/* comm_hang_settle -- wait for a file that is being written, not for ever. */
void comm_hang_settle(void);
/* comm_hang_open -- the thread that answers to what comm_take_signals has blocked in the caller;
 * NULL when that is nothing, or there can be no thread. keeps_signals: see comm_config. */
comm_hang *comm_hang_open(comm_recorder *r, bool keeps_signals);
/* comm_hang_close -- what has come is answered first. NULL is accepted. */
void comm_hang_close(comm_hang *h);

/* ---- calls in words ------------------------------------------------------------------------- */

/* comm_desc_print -- "all-gather #17 'h.0' of 320 f32" into text. */
void comm_desc_print(const comm_desc *desc, char *text, size_t text_bytes);
/* comm_desc_compare -- FSDP_EMISMATCH that names two calls which differ, and their world ranks. */
fsdp_status comm_desc_compare(const comm_team *team, const comm_desc *mine, const comm_desc *theirs,
                              int peer);
/* comm_desc_lengths -- FSDP_EMISMATCH unless the peer sent as many bytes as were expected; -1: too
 * many to receive. */
fsdp_status comm_desc_lengths(const comm_team *team, const comm_desc *desc, int peer,
                              int64_t sent_bytes, size_t expected_bytes);
/* comm_desc_timeout -- FSDP_ETIMEOUT of a call that waited for limit_s; missing: comm_rank_add. */
fsdp_status comm_desc_timeout(const comm_team *team, const comm_desc *desc, double limit_s,
                              const char *missing);
/* comm_rank_add -- one more rank of a list: "1 3". */
void comm_rank_add(char *list, size_t list_bytes, int rank);

/* ---- what launchers say --------------------------------------------------------------------- */

/* What fsdp_run sets COMM_RUN_ENV to for each rank: "rank size job_fd area_fd". */
typedef struct comm_run_start {
    int rank, size, job_fd, area_fd;
} comm_run_start;
/* comm_run_started -- whether fsdp_run started this process; how. */
bool comm_run_started(comm_run_start *start);
/* comm_launcher_present -- whether some launcher did, also of one rank. */
bool comm_launcher_present(void);
/* comm_launched_ranks -- see comm.h. */
int comm_launched_ranks(void);
/* comm_launched_local_ranks -- how many of the launched ranks are on this host: COMM_RUN_ENV,
 * MPI_LOCALNRANKS or OMPI_COMM_WORLD_LOCAL_SIZE; all of them when it does not say. */
int comm_launched_local_ranks(void);
