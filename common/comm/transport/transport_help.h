/* transport_help.h -- all functions that a transport may call outside its own files; internal.
 *
 * transport_group.c  groups and teams; host calls
 * transport_sum.c    sums on any transport
 * comm_pieces.c      shards of several pieces
 * call_task.c        the task of a call: the memory it accesses, how it ends
 * recorder.c         the flight recorder
 * hang.c             its files, and the signals that request them
 * describe.c         descriptions of calls, for messages
 * launched.c         variables that launchers set
 *
 * These files call a transport only through its table. */
#pragma once
#include <pthread.h>
#include <stdio.h>
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/comm/transport/transport.h"
#include "common/sum/sum_run.h"

/* ---- groups and teams ----------------------------------------------------------------------- */

/* comm_team_fill -- set *team to all `size` ranks of the job; its other fields stay. */
void comm_team_fill(comm_team *team, int rank, int size, int local_rank, int local_size);
/* comm_team_part -- set *out to some ranks of `of`, this rank among them. Its other fields are
 * copied from `of`. */
void comm_team_part(const comm_team *of, const comm_ranks *x, comm_team *out);
/* comm_team_find -- the rank within team of world_rank, which must be a member. */
int comm_team_find(const comm_team *team, int world_rank);

/* transport_group_new -- a group with no group below. (*out)->state has state_bytes of zeros, which
 * table->close frees, or is NULL for 0 bytes. transport_group_close frees the group. If it fails,
 * *out is unchanged. */
fsdp_status transport_group_new(const comm_transport *table, const comm_team *team,
                                size_t state_bytes, transport_group **out);
/* transport_group_close -- close g, then the groups below it. NULL is accepted. */
void transport_group_close(transport_group *g);

/* transport_failed -- table->failed of g, or of the topmost group below it that has that
 * function. */
fsdp_status transport_failed(transport_group *g);
/* transport_fail -- call table->fail, because this rank cannot make a call that its peers would
 * wait in. Returns why. */
fsdp_status transport_fail(transport_group *g, fsdp_status why);
/* transport_drain -- wait until streams have run all calls issued on the group; false if they have
 * not. A failed stream never runs its tasks, so the wait ends 10 s after the last task ended, or
 * after failed_patience_s if the group has failed. */
bool transport_drain(transport_group *g, double failed_patience_s);
/* transport_linger -- delay the end of this process after a failure that it learned of at died_s
 * (0: no failure). When the first rank ends, the launcher kills the others, so all ranks stay for a
 * moment, in which each can print what it saw. */
void transport_linger(double died_s);

/* transport_control -- the topmost of g and the groups below it that carries host calls. */
transport_group *transport_control(transport_group *g);
/* transport_parts -- the group's scratch array of parts, zeroed. */
comm_part *transport_parts(transport_group *g);

/* ---- calls ---------------------------------------------------------------------------------- */

/* What the front knows about a call when it issues it. */
typedef struct comm_issue {
    comm_op op;
    dtype type;
    const char *label;
    size_t elems;        /* per rank, for the watch */
    size_t agreed_elems; /* the number that must be equal on all ranks */
    uint64_t shape_hash;
    size_t sent_bytes; /* payload */
} comm_issue;

/* transport_begin -- give a call of the group its number and enter it in the recorder; or return
 * the error that ended the group. After transport_begin the call counts as issued, even if it fails
 * later. */
fsdp_status transport_begin(transport_group *g, stream *s, const comm_issue *i, comm_call *call);
/* transport_pass -- run a call of a group above as a call of g, which gives it a number of its own.
 * v NULL: a plain exchange. */
fsdp_status transport_pass(transport_group *g, stream *s, const comm_call *call,
                           const comm_part *parts, const comm_peer_read *v);

/* transport_call_below -- *call of `group` as a call of the group below, which runs all of it and
 * gives it a number of its own: one number, even if the call has two phases. */
comm_call transport_call_below(const transport_group *group, const comm_call *call);

/* The memory that the task of a call accesses on this rank. Peers may read the ranges listed as
 * read while the task runs: a call ends on a rank only after its peers have read them.
 *
 *   touched_begin -> touched_add ... -> touched_launch */
typedef struct touched {
    mem_access *list; /* [n]; NULL: out of memory */
    int n;
} touched;
/* touched_begin -- a list with room for two ranges per rank and one more. It begins with v's
 * accesses, unless v is NULL. */
touched touched_begin(const comm_team *team, const comm_peer_read *v);
/* touched_add -- add a range; merge it with the last one if it begins where that one ends. Does
 * nothing for 0 bytes. */
void touched_add(touched *t, const void *ptr, size_t bytes, bool writes);
/* touched_sent, touched_received -- add the memory that the parts send to other ranks, or receive
 * from them. */
void touched_sent(touched *t, const comm_team *team, const comm_part *parts);
void touched_received(touched *t, const comm_team *team, const comm_part *parts);
/* touched_launch -- launch l, whose fn and arguments are set, as a part of the call, and free t.
 * Unless l issues device work, it is marked on_host. errors stream_launch_work's;
 * FSDP_ENOMEM */
fsdp_status touched_launch(touched *t, stream *s, const comm_call *call, launch_config l);

/* A call as a task of its stream, on a transport that moves host memory. */
typedef struct comm_task comm_task;
struct comm_task {
    /* run -- called in the stream's thread if the group has not failed; does not mark the call
     * itself */
    fsdp_status (*run)(const comm_task *t, int n_threads);
    transport_group *group;
    comm_call call;
    const void *shown; /* [shown_bytes] memory that peers read; NULL: they read the parts' send */
    size_t shown_bytes;
    bool only_waits; /* accesses no memory, and a watch is not told its name */

    /* filled by transport_task */
    device *dev; /* the device that holds the data; NULL: the host */
    fsdp_status (*fn)(const void *ctx, const void *const *from, int n_threads); /* of v, or NULL */
    pthread_t issuer;
    comm_part parts[]; /* [W], then v's ctx */
};
/* transport_task -- launch a copy of *head with parts [W] and v, which may be NULL. If s is NULL,
 * it has run on return. Until the task has run, group->n_unfinished counts it and the group is not
 * freed.
 *   errors  FSDP_ENOMEM; stream_launch_work's; run's, if the stream runs it at once */
fsdp_status transport_task(const comm_task *head, stream *s, const comm_part *parts,
                           const comm_peer_read *v);

/* transport_gather -- *all [W*bytes] = every rank's `mine` [bytes], in host memory that the caller
 * frees; NULL after a failure. The host waits. transport_agree is comm_agree on g. g must carry
 * host calls in both. */
fsdp_status transport_gather(transport_group *g, const char *label, const void *mine, size_t bytes,
                             void **all);
fsdp_status transport_agree(transport_group *g, fsdp_status mine);

/* A sum of ranks' contributions to this rank: input i of the run comes from rank first + i*step. */
typedef struct comm_sum {
    const sum_kernels *kernels;
    sum_run run;
    int first, step;           /* 0, 1: all ranks */
    const comm_pieces *pieces; /* NULL, or the pieces that each rank shows; the sum is over this
                                  rank's */
    int rank;                  /* this rank; set if pieces is */
} comm_sum;

/* transport_sum -- do the run on the ranks' parts: in place if the transport shows them; otherwise
 * exchange into staging, then one launch.
 *   parts   [W] send, send_bytes and recv_bytes are filled in; recv is filled in here
 *   holds   staging of the peers' recv_bytes, in device memory, if the transport has no
 *           peer_read */
fsdp_status transport_sum(transport_group *g, stream *s, const comm_call *call, comm_part *parts,
                          const comm_sum *x);
/* transport_scatter_parts -- fill in parts that deliver slice r of `send` to rank r. */
void transport_scatter_parts(const transport_group *g, comm_part *parts, const void *send,
                             const comm_slice *slices, size_t elem_bytes);
/* transport_shows -- whether ranks read their peers' memory in place. */
bool transport_shows(const transport_group *g);
/* pieces_extent -- where the pieces end in the caller's array. Empty pieces do not count. */
size_t pieces_extent(const comm_pieces *p);
/* transport_scatter -- a reduce-scatter that pushes every rank's contribution separately. In
 * GRAD_ACC_FAST, if the slices are equal and lie side by side in rank order, it pushes the sum that
 * table->add makes of them, if the table has that function; it holds that sum in device memory. */
fsdp_status transport_scatter(transport_group *g, stream *s, const comm_call *call,
                              const comm_scatter *x);

/* ---- flight recorder: the last calls, for a watch and for the report at a timeout ----------- */

typedef enum comm_state { COMM_ISSUED, COMM_RUNNING, COMM_DONE, COMM_FAILED } comm_state;

/* comm_recorder_create -- an empty recorder, with the clock of d; NULL if there is no memory. All
 * functions of a recorder are thread-safe. */
comm_recorder *comm_recorder_create(const device *d);
/* comm_recorder_free -- NULL is accepted. */
void comm_recorder_free(comm_recorder *r);
/* comm_recorder_issue -- enter a call of the team in its recorder; returns the call's ticket. via:
 * the name (a literal) of the transport that numbered the call. */
uint64_t comm_recorder_issue(const comm_team *team, const char *via, stream *s, const comm_issue *i,
                             const comm_desc *desc);
/* comm_recorder_mark -- set the state of a call; calls that the ring no longer holds are ignored.
 * _at: with the time at_s instead of now. */
void comm_recorder_mark(comm_recorder *r, uint64_t ticket, comm_state state);
void comm_recorder_mark_at(comm_recorder *r, uint64_t ticket, comm_state state, double at_s);
/* comm_limit_s -- how long a wait may take now: timeout_s times the factor of comm_set_patience. */
double comm_limit_s(const comm_team *team);
/* comm_recorder_print -- print the last calls and every older unfinished one, in one write to
 * stderr. */
void comm_recorder_print(comm_recorder *r);

/* comm_recorder_write -- write the groups, this rank with the first line of `why`, and the last
 * calls as text: one line each, sorted as `sort` does in the C locale. Returns the rank in the
 * job. */
int comm_recorder_write(comm_recorder *r, FILE *out, const char *why);

/* ---- files of the flight recorder, for sort -m and diff -------------------------------------- */

typedef struct comm_hang comm_hang;
/* comm_hang_write -- write the last calls to FSDP_HANG_DIR/rank-00003.txt, if that variable is set.
 * Keeps this thread's error record; if the file cannot be written, says so on stderr. */
void comm_hang_write(comm_recorder *r, const char *why);
/* comm_hang_settle -- wait a bounded time for a file that is being written. */
void comm_hang_settle(void);
/* comm_hang_open -- start the thread that answers the signals that comm_take_signals blocked in the
 * calling thread; NULL if it blocked none or no thread can be started. keeps_signals: see
 * comm_config. */
comm_hang *comm_hang_open(comm_recorder *r, bool keeps_signals);
/* comm_hang_close -- answer pending signals, then end the thread. NULL is accepted. */
void comm_hang_close(comm_hang *h);

/* ---- descriptions of calls ------------------------------------------------------------------ */

/* comm_desc_name -- "all-gather", ...; "host call". A literal. */
const char *comm_desc_name(const comm_desc *desc);
/* comm_desc_print -- print "all-gather #17 'h.0' of 320 f32" into text. */
void comm_desc_print(const comm_desc *desc, char *text, size_t text_bytes);
/* comm_desc_compare -- FSDP_EMISMATCH if the two calls differ; the message names both calls and
 * their world ranks. */
fsdp_status comm_desc_compare(const comm_team *team, const comm_desc *mine, const comm_desc *theirs,
                              int peer);
/* comm_desc_lengths -- FSDP_EMISMATCH unless the peer sent expected_bytes. sent_bytes -1: more than
 * were expected, so they could not be received. */
fsdp_status comm_desc_lengths(const comm_team *team, const comm_desc *desc, int peer,
                              int64_t sent_bytes, size_t expected_bytes);
/* comm_desc_timeout -- FSDP_ETIMEOUT for a call that waited for limit_s. missing: a list made with
 * comm_rank_add. */
fsdp_status comm_desc_timeout(const comm_team *team, const comm_desc *desc, double limit_s,
                              const char *missing);
/* comm_rank_add -- append a rank to a list such as "1 3". */
void comm_rank_add(char *list, size_t list_bytes, int rank);

/* ---- variables of launchers ----------------------------------------------------------------- */

/* The value that fsdp_run sets COMM_RUN_ENV to for each rank: "rank size job_fd area_fd". */
typedef struct comm_run_start {
    int rank, size, job_fd, area_fd;
} comm_run_start;
/* comm_run_started -- whether fsdp_run started this process; if so, *start is filled in. */
bool comm_run_started(comm_run_start *start);
/* comm_launcher_variable -- the variable in which an MPI launcher that started this process, even
 * as the only rank, has set its rank; NULL: there is none. */
const char *comm_launcher_variable(void);
/* comm_launched_check -- FSDP_ECOMM unless `size`, the number of ranks that `seer` sees, equals
 * what the launcher's environment says. The launcher may belong to another MPI, or be unable to
 * start ranks of this program, such as torchrun. Then each rank sees itself as the only one. */
fsdp_status comm_launched_check(int size, const char *seer);
/* comm_launched_ranks -- see comm.h. */
int comm_launched_ranks(void);
/* comm_launched_local_ranks -- how many of the launched ranks are on this host; if the launcher
 * does not say it, comm_launched_ranks. */
int comm_launched_local_ranks(void);
