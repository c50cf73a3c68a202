/* mpi.c -- the mpi transport as its callers see it.
 *
 *   mpi_open (starts the progress thread, which starts MPI) -> exchange ... split ...
 *   -> close (the last one ends MPI and the thread)
 *
 * A collective on a stream is a task of that stream: it hands an operation to the progress thread
 * and sleeps until the operation is done. So operations of several streams are in flight at once
 * and finish in any order; ranks need not reach them in the same order in time. A build without MPI
 * has no_mpi.c in its place. */
#include "common/comm/transport/mpi_impl.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "common/base/environment.h"

static const double CLOSE_PATIENCE_S = 10;   /* until the progress thread answers */
static const double FINALIZE_PATIENCE_S = 5; /* after all ranks have reached MPI_Finalize */
static const double LATER_S = 0.5;           /* see mpi_speak_last */

/* ---- exchange ------------------------------------------------------------------------------ */

static fsdp_status mpi_failed(transport_group *group)
{
    (void)group; /* all groups fail together */
    return atomic_load(&mpi_shared.dead) ? fsdp_error_set(&mpi_shared.why) : FSDP_OK;
}

void mpi_fail(void)
{
    mpi_engine *e = &mpi_shared;
    fsdp_error_info why = *fsdp_error_get();
    mpi_operation *op = mpi_operation_new(OP_FAIL, NULL, 0);
    if (op == NULL)
        return;
    op->error = why;
    pthread_mutex_lock(&e->lock);
    bool taken = e->running && !e->dead;
    if (taken)
        mpi_inbox_add(op);
    pthread_mutex_unlock(&e->lock);
    if (!taken)
        mpi_operation_free(op);
}

void mpi_on_failure(void (*tell)(void))
{
    mpi_engine *e = &mpi_shared;
    pthread_mutex_lock(&e->tell_lock);
    e->tell = tell;
    if (tell != NULL && mpi_failed(NULL) != FSDP_OK)
        tell();
    pthread_mutex_unlock(&e->tell_lock);
}

static fsdp_status exchange_run(const comm_task *t, int n_threads)
{
    mpi_group *g = t->group->state;
    (void)n_threads;
    mpi_operation *op = mpi_operation_new(OP_EXCHANGE, g, g->team->size);
    if (op == NULL)
        return FSDP_ENOMEM;
    op->call = t->call;
    memcpy(op->parts, t->parts, (size_t)g->team->size * sizeof t->parts[0]);
    return mpi_operation_run(op, 0);
}

static fsdp_status mpi_exchange(transport_group *group, stream *s, const comm_call *call,
                                const comm_part *parts, const comm_peer_read *v)
{
    (void)v;
    return transport_task(&(comm_task){.run = exchange_run, .group = group, .call = *call}, s,
                          parts, NULL);
}

/* ---- groups -------------------------------------------------------------------------------- */

/* group NULL: make the group of all ranks, even if there is only one. */
static fsdp_status mpi_split(transport_group *group, const comm_team *team, transport_group **out)
{
    mpi_group *parent = group != NULL ? group->state : NULL, *g = calloc(1, sizeof *g);
    mpi_operation *op = g != NULL ? mpi_operation_new(OP_SPLIT, parent, 0) : NULL;
    if (op == NULL) {
        free(g);
        return fsdp_error(FSDP_ENOMEM, "", "mpi: no memory for a group of %d ranks", team->size);
    }
    *g = (mpi_group){.team = team, .comm = MPI_COMM_NULL};
    if (parent != NULL)
        op->color = team->size > 1 ? team->first : MPI_UNDEFINED;
    op->child = g;
    fsdp_status status =
        mpi_operation_run(op, parent == NULL ? team->start_s : parent->team->timeout_s);
    if (status == FSDP_ETIMEOUT)
        return status; /* the thread may still be using g */
    bool is_member = status == FSDP_OK && g->comm != MPI_COMM_NULL;
    if (is_member)
        status = transport_group_new(&mpi_transport, team, 0, out);
    if (status != FSDP_OK || !is_member) {
        free(g);
        return status;
    }
    (*out)->state = g;
    pthread_mutex_lock(&mpi_shared.lock);
    mpi_shared.n_groups++;
    pthread_mutex_unlock(&mpi_shared.lock);
    return FSDP_OK;
}

void mpi_speak_last(transport_group *group)
{
    FSDP_ASSERT(group->table == &mpi_transport);
    ((mpi_group *)group->state)->later_s = LATER_S;
}

/* MPI_Finalize waits for all ranks, which may be many on few cores, so it gets a call's timeout.
 * Over TCP it can hang forever: MPICH 4.0.2 flushes UCX connections while peers that have closed
 * theirs no longer answer (seen in one exit of six on a link of 300 Mbit/s). Once all ranks have
 * reached MPI_Finalize their work is done, so from then on the wait is short. */
static void engine_stop(double patience_s)
{
    mpi_engine *e = &mpi_shared;
    transport_linger(mpi_shared.died_s);
    mpi_operation *op = mpi_operation_new(OP_STOP, NULL, 0);
    if (op != NULL)
        (void)mpi_operation_run(op, CLOSE_PATIENCE_S);
    clock_wait waited = clock_wait_begin();
    bool ended = false, bounded = false;
    while (op != NULL && !ended && clock_wait_s(&waited) < patience_s) {
        usleep(1000);
        ended = pthread_tryjoin_np(e->thread, NULL) == 0;
        if (!bounded && atomic_load(&e->finalizing)) {
            bounded = true;
            patience_s = fmin(patience_s, clock_wait_s(&waited) + FINALIZE_PATIENCE_S);
        }
    }
    if (!ended)
        pthread_detach(e->thread);
    e->running = false;
}

static bool mpi_close(transport_group *group)
{
    mpi_group *g = group->state;
    double timeout_s = g->team->timeout_s;
    /* on a dead engine tasks do nothing, so do not wait for them */
    bool unused = transport_drain(group, 0);
    mpi_operation *op = mpi_operation_new(OP_CLOSE, g, 0);
    if (op == NULL || mpi_operation_run(op, CLOSE_PATIENCE_S) != FSDP_OK)
        unused = false;
    if (unused) /* else a stream's task may still use it, so it is leaked */
        free(g);
    pthread_mutex_lock(&mpi_shared.lock);
    bool last = --mpi_shared.n_groups == 0;
    pthread_mutex_unlock(&mpi_shared.lock);
    if (last)
        engine_stop(timeout_s);
    return true;
}

static void mpi_abort(transport_group *group, int exit_code)
{
    transport_linger(mpi_shared.died_s);
    mpi_operation *op = mpi_operation_new(OP_ABORT, group->state, 0);
    if (op == NULL)
        return;
    op->exit_code = exit_code;
    /* MPI_Abort does not return. If it hangs, comm_abort ends the process. */
    (void)mpi_operation_run(op, 5);
}

/* ---- start --------------------------------------------------------------------------------- */

/* MPICH's UCX needs about 4 MB of /dev/shm per rank, under MPICH 4.2 another 13 MB, and fails
 * without them (16 ranks in a container's usual 64 MB). If /dev/shm is short of space or cannot be
 * written, disable UCX's transport that uses it. UCX then uses System V segments, which /dev/shm
 * does not limit. A value set by the user wins. */
static void choose_transports(void)
{
    enum { NEEDED_BYTES = 16 << 20, NEEDED_BYTES_PER_RANK = 8 << 20 };
    struct statvfs fs;
    const bool usable = access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &fs) == 0;
    double free_bytes = usable ? (double)fs.f_bavail * (double)fs.f_frsize : 0;
    if (free_bytes < NEEDED_BYTES + (double)comm_launched_local_ranks() * NEEDED_BYTES_PER_RANK)
        setenv("UCX_TLS", "^posix", 0);
}

/* Ask the kernel to end this process when its parent (the launcher) ends, and end it now if the
 * parent has just ended. */
static void die_with_parent(void)
{
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        raise(SIGKILL);
}

/* Create the thread with all signals blocked, so that the caller's threads receive them. */
static fsdp_status engine_start(double timeout_s)
{
    mpi_engine *e = &mpi_shared;
    if (e->was_started)
        return fsdp_error(FSDP_ESTATE, "keep the first group open until the end",
                          "comm_open: MPI was ended and cannot be started twice in a process");
    choose_transports();
    die_with_parent();
    e->inbox_tail = &e->inbox;
    e->chunk_bytes = (size_t)environment_number("FSDP_MPI_CHUNK_BYTES");
    mpi_operation *op = mpi_operation_new(OP_SPLIT, NULL, 0);
    if (op == NULL)
        return FSDP_ENOMEM;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&e->thread, NULL, mpi_progress_main, op);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err != 0) {
        mpi_operation_free(op);
        return fsdp_error(FSDP_ECOMM, "", "comm_open: cannot start the progress thread: %s",
                          strerror(err));
    }
    fsdp_status status = mpi_operation_await(op, timeout_s);
    pthread_mutex_lock(&e->lock);
    e->was_started = true;
    e->running = status == FSDP_OK;
    pthread_mutex_unlock(&e->lock);
    if (status == FSDP_ETIMEOUT)
        return fsdp_error(FSDP_ETIMEOUT,
                          "see the ranks' last lines: one may have ended before MPI_Init; "
                          "FSDP_TIMEOUT_S sets the limit, if it is above 10",
                          "comm_open: MPI_Init has waited %.1f s", timeout_s);
    if (status != FSDP_OK)
        pthread_join(e->thread, NULL);
    return status;
}

static fsdp_status mpi_open(comm_team *team, transport_group **out)
{
    mpi_engine *e = &mpi_shared;
    if (!e->running)
        TRY(engine_start(team->start_s));
    comm_team_fill(team, e->world_rank, e->world_size, e->local_rank, e->local_size);
    return mpi_split(NULL, team, out);
}

const comm_transport mpi_transport = {.name = "mpi",
                                      .moves = MOVES_BY_BRINGING,
                                      .carries_host = true,
                                      .open = mpi_open,
                                      .exchange = mpi_exchange,
                                      .failed = mpi_failed,
                                      .fail = mpi_fail,
                                      .split = mpi_split,
                                      .close = mpi_close,
                                      .abort = mpi_abort};
