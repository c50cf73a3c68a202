/* mpi_progress.c -- the one thread that calls MPI.
 *
 *   MPI_Init_thread -> loop: take operations, post them, test the active ones, watch
 *   -> MPI_Finalize
 *
 * The thread never waits for a message inside MPI. It tests the active operations in turn, with
 * growing pauses, because MPICH's waits keep a core busy that a peer needs [measured: a barrier of
 * 4 ranks on 2 cores, 8 ms].
 *
 * Failure. A rank that fails sends a notice to all others. Each rank has posted a receive for
 * notices from the start; a rank that receives one fails too and answers with its own. A rank gives
 * buffers back to their callers after it has received all notices. So every rank reports before the
 * first one ends (the launcher then kills the others), and no rank still reads memory that a peer
 * has freed. */
#include "common/comm/transport/mpi_impl.h"
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "common/base/hash.h"
#include "common/base/recycle.h"

/* The pause between tests: none, then a yield, then sleeps from the shortest to the longest. */
enum { BURST_TESTS = 5, YIELD_TESTS = 15, SHORTEST_SLEEP_US = 5, LONGEST_SLEEP_US = 100 };
enum { IDLE_SLEEP_US = 100000 }; /* nothing active: only notices can arrive */
enum { WATCH_EVERY_TESTS = 32 };

static const double NOTICES_S = 2.0; /* how long a failing rank waits for its peers' notices */
/* A further wait for peers that have not received all notices. Until they have, their MPI may read
 * this rank's buffers, and UCX ends a process that reads memory that is gone. */
enum { GRACE_MS = 400 };

/* ---- failure ------------------------------------------------------------------------------- */

static void operation_end(mpi_operation *op, const fsdp_error_info *info)
{
    recycle_put(op->requests);
    recycle_put(op->message);
    recycle_put(op->done_index);
    recycle_put(op->done_status);
    mpi_operation_finish(op, info);
}

static void notice_listen(void)
{
    mpi_engine *e = &mpi_shared;
    MPI_Irecv(&e->notice_in, sizeof e->notice_in, MPI_BYTE, MPI_ANY_SOURCE, MPI_TAG_NOTICE,
              e->notice_comm, &e->notice_recv);
}

/* Whether a peer's notice has arrived since the last call; if so, it is in notice_in. */
static bool notice_came(void)
{
    mpi_engine *e = &mpi_shared;
    int came = 0;
    if (e->world_size == 1 || e->n_notices == e->world_size - 1 ||
        MPI_Test(&e->notice_recv, &came, MPI_STATUS_IGNORE) != MPI_SUCCESS || !came)
        return false;
    e->n_notices++;
    return true;
}

/* Send the reason to every rank, and receive a notice from every rank. */
static void notices_exchange(void)
{
    mpi_engine *e = &mpi_shared;
    e->notice_out = (mpi_notice){.from = e->world_rank, .why = e->why};
    for (int r = 0; r < e->world_size; r++) {
        e->notice_sends[r] = MPI_REQUEST_NULL;
        if (r != e->world_rank)
            MPI_Isend(&e->notice_out, sizeof e->notice_out, MPI_BYTE, r, MPI_TAG_NOTICE,
                      e->notice_comm, &e->notice_sends[r]);
    }
    double until_s = clock_now_s() + NOTICES_S;
    int n_sent = 0;
    while ((n_sent < e->world_size || e->n_notices < e->world_size - 1) &&
           clock_now_s() < until_s) {
        int sent = n_sent == e->world_size;
        if (!sent && MPI_Test(&e->notice_sends[n_sent], &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return;
        if (sent && n_sent < e->world_size)
            n_sent++;
        else if (notice_came() && e->n_notices < e->world_size - 1)
            notice_listen();
        else
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    nanosleep(&(struct timespec){.tv_nsec = GRACE_MS * 1000000L}, NULL);
}

/* Mark the transport dead, for the reason in this thread's error record. Active operations keep
 * their buffers until the notices are exchanged. After that MPI is not called again, so messages
 * that were posted stay as they are. */
static void engine_kill(void)
{
    mpi_engine *e = &mpi_shared;
    if (e->dead)
        return;
    pthread_mutex_lock(&e->lock);
    e->why = *fsdp_error_get();
    e->died_s = clock_now_s();
    e->dead = true;
    pthread_mutex_unlock(&e->lock);
    pthread_mutex_lock(&e->tell_lock);
    if (e->tell != NULL)
        e->tell();
    pthread_mutex_unlock(&e->tell_lock);
    notices_exchange();
    if (e->recorder != NULL)
        comm_hang_write(e->recorder, e->why.what);
    if (e->split != NULL)
        mpi_operation_finish(e->split, &e->why);
    e->split = NULL;
    while (e->active != NULL) {
        mpi_operation *op = e->active;
        e->active = op->next;
        operation_end(op, &e->why);
    }
}

/* ---- operations ---------------------------------------------------------------------------- */

static void exchange_start(mpi_operation *op)
{
    mpi_engine *e = &mpi_shared;
    op->waited = clock_wait_begin();
    op->next = e->active;
    e->active = op;
    if (mpi_exchange_post(op) != FSDP_OK)
        engine_kill();
}

/* Test every active operation once; returns whether anything completed. */
static bool operations_test(void)
{
    mpi_engine *e = &mpi_shared;
    bool moved = false;
    mpi_operation **link = &e->active;
    while (*link != NULL) {
        mpi_operation *op = *link;
        bool all_done = false;
        if (mpi_exchange_test(op, &moved, &all_done) != FSDP_OK) {
            engine_kill();
            return true; /* engine_kill ended all operations */
        }
        if (!all_done) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        operation_end(op, NULL);
        moved = true;
    }
    return moved;
}

/* ---- watching ------------------------------------------------------------------------------ */

static void report(void)
{
    if (mpi_shared.recorder != NULL)
        comm_recorder_print(mpi_shared.recorder);
}

static void operation_expire(mpi_operation *op)
{
    char missing[200];
    mpi_exchange_missing(op, missing, sizeof missing);
    report();
    const comm_team *team = op->group->team;
    (void)comm_desc_timeout(team, &op->call.desc, comm_limit_s(team), missing);
    engine_kill();
}

/* Look for peers' notices and for calls that have waited too long. */
static void watch(void)
{
    mpi_engine *e = &mpi_shared;
    if (e->dead)
        return;
    if (notice_came()) {
        mpi_notice n = e->notice_in;
        if (n.why.status == FSDP_ETIMEOUT)
            report();
        if (e->n_notices < e->world_size - 1)
            notice_listen();
        (void)fsdp_error(n.why.status, n.why.hint, "rank %d reports: %.700s", n.from, n.why.what);
        engine_kill();
        return;
    }
    for (mpi_operation *op = e->active; op != NULL; op = op->next) {
        if (clock_wait_s(&op->waited) > comm_limit_s(op->group->team) + op->group->later_s) {
            operation_expire(op);
            return;
        }
    }
}

/* ---- groups -------------------------------------------------------------------------------- */

static MPI_Comm parent_of(const mpi_operation *split)
{
    return split->group != NULL ? split->group->comm : MPI_COMM_WORLD;
}

/* MPI_Comm_split blocks, but all ranks have just met, so it does not wait for anything else. */
static void split_run(mpi_operation *op)
{
    MPI_Comm made = MPI_COMM_NULL;
    int rc = MPI_Comm_split(parent_of(op), op->color, 0, &made);
    if (rc != MPI_SUCCESS) {
        (void)mpi_explain(rc, "MPI_Comm_split");
        mpi_operation_finish(op, fsdp_error_get());
        return;
    }
    if (made != MPI_COMM_NULL) {
        MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
        op->child->comm = made;
        if (mpi_shared.recorder == NULL)
            mpi_shared.recorder = op->child->team->recorder;
    }
    mpi_operation_finish(op, NULL);
}

/* MPI_Comm_split blocks, so this thread calls it only after all ranks have come. Until then it can
 * receive a notice that a rank will not come, and run the calls that a rank makes before it
 * comes. */
static void split_start(mpi_operation *op)
{
    mpi_engine *e = &mpi_shared;
    FSDP_ASSERT(e->split == NULL && "two threads in comm_open or comm_range");
    int rc = MPI_Ibarrier(parent_of(op), &e->split_met);
    if (rc == MPI_SUCCESS) {
        e->split = op;
        return;
    }
    (void)mpi_explain(rc, "MPI_Ibarrier");
    mpi_operation_finish(op, fsdp_error_get());
}

/* Run the waiting split if all ranks have reached it. Returns whether the split has ended. */
static bool split_test(void)
{
    mpi_engine *e = &mpi_shared;
    int met = 0;
    if (e->split == NULL)
        return false;
    int rc = MPI_Test(&e->split_met, &met, MPI_STATUS_IGNORE);
    if (rc != MPI_SUCCESS) {
        (void)mpi_explain(rc, "MPI_Ibarrier");
        engine_kill();
        return true;
    }
    if (met) {
        mpi_operation *op = e->split;
        e->split = NULL;
        split_run(op);
    }
    return met;
}

static void close_run(mpi_operation *op)
{
    mpi_engine *e = &mpi_shared;
    mpi_group *g = op->group;
    if (g->team->number == 0 && g->team->recorder == e->recorder)
        e->recorder = NULL;
    if (!e->dead)
        MPI_Comm_free(&g->comm);
    mpi_operation_finish(op, NULL);
}

/* A failure that was found elsewhere: in the memory that the ranks of this host share. */
static void fail_run(mpi_operation *op)
{
    fsdp_error_set(&op->error);
    if (!mpi_shared.dead && op->error.status == FSDP_ETIMEOUT)
        report();
    engine_kill();
    mpi_operation_free(op);
}

/* ---- the thread ---------------------------------------------------------------------------- */

/* Take the operations handed over, in order. Pause first if nothing has completed for n_quiet
 * tests; a new operation ends the pause. */
static mpi_operation *inbox_take(int n_quiet)
{
    mpi_engine *e = &mpi_shared;
    bool is_idle = e->active == NULL && e->split == NULL;
    if (!is_idle && n_quiet >= BURST_TESTS && n_quiet < YIELD_TESTS)
        sched_yield();
    long sleep_us = 0;
    if (is_idle)
        sleep_us = IDLE_SLEEP_US;
    else if (n_quiet >= YIELD_TESTS)
        sleep_us = SHORTEST_SLEEP_US + 2 * (n_quiet - YIELD_TESTS);
    if (!is_idle && sleep_us > LONGEST_SLEEP_US)
        sleep_us = LONGEST_SLEEP_US;
    pthread_mutex_lock(&e->lock);
    if (e->inbox == NULL && sleep_us > 0) {
        struct timespec deadline = clock_deadline(1e-6 * (double)(sleep_us));
        pthread_cond_clockwait(&e->wake, &e->lock, CLOCK_MONOTONIC, &deadline);
    }
    mpi_operation *taken = e->inbox;
    e->inbox = NULL;
    e->inbox_tail = &e->inbox;
    pthread_mutex_unlock(&e->lock);
    return taken;
}

static void abort_run(mpi_operation *op)
{
    MPI_Abort(MPI_COMM_WORLD, op->exit_code);
}

static void stop_run(mpi_operation *op)
{
    mpi_shared.stopping = true;
    mpi_operation_finish(op, NULL);
}

static void operation_start(mpi_operation *op)
{
    static void (*const START[])(mpi_operation *) = {
        [OP_EXCHANGE] = exchange_start, [OP_SPLIT] = split_start, [OP_CLOSE] = close_run,
        [OP_FAIL] = fail_run,           [OP_ABORT] = abort_run,   [OP_STOP] = stop_run};
    bool needs_peers = op->kind == OP_EXCHANGE || op->kind == OP_SPLIT;
    if (mpi_shared.dead && needs_peers)
        mpi_operation_finish(op, &mpi_shared.why);
    else
        START[op->kind](op);
}

/* The number of this host: ranks with the same kernel and the same network have the same. */
static int host_number(void)
{
    char text[128] = {0};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!read(fd, text, 64);
        close(fd);
    }
    (void)!readlink("/proc/self/ns/net", text + 64, 64);
    return (int)(hash_bytes(text, sizeof text) & INT_MAX);
}

/* Find the ranks of this host. MPICH 5 over UCX has no shared memory of its own, so its split by
 * shared memory leaves every rank alone. */
static void find_local_ranks(mpi_engine *e)
{
    MPI_Comm host;
    if (MPICH_NUMVERSION >= 50000000)
        MPI_Comm_split(MPI_COMM_WORLD, host_number(), 0, &host);
    else
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &e->local_rank);
    MPI_Comm_size(host, &e->local_size);
    MPI_Comm_free(&host);
}

/* Runs on this thread because MPI must be ended by the thread that started it. */
static fsdp_status transport_start(void)
{
    mpi_engine *e = &mpi_shared;
    int provided = MPI_THREAD_SINGLE;
    mpi_sweep();
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (rc != MPI_SUCCESS || provided < MPI_THREAD_SERIALIZED)
        return fsdp_error(FSDP_ECOMM, "use an MPI built with threads (Debian's mpich is)",
                          "MPI_Init_thread: code %d, thread level %d", rc, provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &e->world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &e->world_size);
    find_local_ranks(e);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &e->notice_comm);
    e->notice_sends = calloc((size_t)e->world_size, sizeof *e->notice_sends);
    if (e->notice_sends == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "mpi: no memory for %d ranks", e->world_size);
    if (e->world_size > 1)
        notice_listen();
    return FSDP_OK;
}

/* End MPI if nothing has failed. After a failure leave it as it is: ending it would wait for
 * peers. */
static void transport_end(void)
{
    mpi_engine *e = &mpi_shared;
    if (!e->dead) {
        if (e->world_size > 1) {
            MPI_Cancel(&e->notice_recv);
            MPI_Wait(&e->notice_recv, MPI_STATUS_IGNORE);
        }
        MPI_Comm_free(&e->notice_comm);
        MPI_Barrier(MPI_COMM_WORLD); /* now all ranks have come: see engine_stop */
        atomic_store(&e->finalizing, true);
        MPI_Finalize();
        free(e->notice_sends); /* after a failure MPI may still read the notices */
    }
}

void *mpi_progress_main(void *arg)
{
    mpi_engine *e = &mpi_shared;
    pthread_setname_np(pthread_self(), "mpi progress");
    prctl(PR_SET_TIMERSLACK, 1000); /* in ns; by default every short sleep takes 50 us longer */
    fsdp_status status = transport_start();
    mpi_operation_finish(arg, status == FSDP_OK ? NULL : fsdp_error_get());
    if (status != FSDP_OK)
        return NULL;
    int n_quiet = 0;
    while (!e->stopping) {
        bool was_idle = e->active == NULL;
        mpi_operation *op = inbox_take(n_quiet);
        if (op != NULL)
            n_quiet = 0;
        while (op != NULL) {
            mpi_operation *next = op->next; /* once started, op may be freed by its caller */
            operation_start(op);
            op = next;
        }
        bool moved = split_test();
        n_quiet = operations_test() || moved ? 0 : n_quiet < 1 << 20 ? n_quiet + 1 : n_quiet;
        if (was_idle || n_quiet % WATCH_EVERY_TESTS == 0)
            watch();
    }
    transport_end();
    return NULL;
}
