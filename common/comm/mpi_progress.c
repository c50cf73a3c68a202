/* mpi_progress.c -- the one thread that talks to MPI.
 *
 *   MPI_Init_thread -> loop: take jobs, post them, test all that is active, watch -> MPI_Finalize
 *
 * An exchange is a set of MPI_Isend / MPI_Irecv between every pair that has something to say, cut into
 * chunks that fit an int. The tag comes from the call's number, so operations may be posted in any
 * order. Messages are never waited for in MPI: MPI_Testsome in turn, with a growing pause, because
 * MPICH's waiting burns the core that a peer needs [measured: a barrier of 4 ranks on 2 cores, 8 ms].
 *
 * Disagreement. With every call its descriptor goes to the next rank, and the previous rank's is
 * compared. Data of a wrong length (MPI_ERR_TRUNCATE, or a short message) is held back for a moment,
 * because the descriptor explains it better. A rank that fails tells all others in a notice, for which
 * each has a receive posted from the start; so nobody waits for a rank that gave up.              */
#ifdef FSDP_HAVE_MPI

#include "common/comm/mpi_impl.h"
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* MPI guarantees tags up to 32767 only: 8192 calls of a group can be told apart, four kinds each. */
enum { TAG_SEQS = 8192, TAG_DATA = 0 /* phase 0; 1 is phase 1 */, TAG_DESC = 2, TAG_NOTICE = 32767 };
enum { REQ_DESC_OUT = 0, REQ_DESC_IN = 1, REQ_FIRST_RECEIVE = 2 };

/* The pause between tests: none, then a yield, then sleeps from the shortest to the longest. */
enum { BURST_TESTS = 20, YIELD_TESTS = 60, SHORTEST_SLEEP_US = 10, LONGEST_SLEEP_US = 150 };
enum { IDLE_SLEEP_US = 100000 }; /* nothing active: only peers' notices can come */
enum { WATCH_EVERY_TESTS = 32 };

static const double HELD_ERROR_S = 1.0;  /* how long a descriptor may be later than the data */
static const double NOTICE_OUT_S = 1.0;  /* how long a failing rank tries to tell its peers */

/* ---- errors ------------------------------------------------------------------------------------ */

static void mpi_explain(int code, const char *what, fsdp_error_info *info)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    (void)fsdp_error(FSDP_ECOMM, "see the other ranks' messages; a rank may have died",
                     "%s: %s", what, text);
    *info = *fsdp_error_get();
}

static void job_end(mpi_job *job, const fsdp_error_info *info)
{
    free(job->requests);
    free(job->peers);
    free(job->bytes);
    job->requests = NULL;
    job->peers = job->bytes = NULL;
    mpi_job_finish(job, info);
}

/* Tell every rank, and give the notices a moment to leave. */
static void notices_send(void)
{
    mpi_engine *e = &mpi_shared;
    e->notice_out = (mpi_notice){.from = e->world_rank, .why = e->why};
    for (int r = 0; r < e->world_size; r++) {
        e->notice_sends[r] = MPI_REQUEST_NULL;
        if (r != e->world_rank)
            MPI_Isend(&e->notice_out, sizeof e->notice_out, MPI_BYTE, r, TAG_NOTICE, e->notice_comm,
                      &e->notice_sends[r]);
    }
    double until_s = comm_now_s() + NOTICE_OUT_S;
    for (int r = 0; r < e->world_size;) {
        int sent = 0;
        if (MPI_Test(&e->notice_sends[r], &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || sent)
            r++;
        else if (comm_now_s() > until_s)
            return;
        else
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

/* The transport is dead from here on. The notices go first: while they are sent messages still move,
 * and the active jobs' buffers are still ours. What is posted is never completed.                */
static void engine_kill(const fsdp_error_info *why, bool tell_peers)
{
    mpi_engine *e = &mpi_shared;
    if (e->dead)
        return;
    pthread_mutex_lock(&e->lock);
    e->why = *why;
    e->dead = true;
    pthread_mutex_unlock(&e->lock);
    if (tell_peers)
        notices_send();
    while (e->active != NULL) {
        mpi_job *job = e->active;
        e->active = job->next;
        job_end(job, &e->why);
    }
}

/* The same with this thread's error record. */
static void engine_kill_recorded(void)
{
    fsdp_error_info why = *fsdp_error_get();
    engine_kill(&why, true);
}

/* ---- posting ----------------------------------------------------------------------------------- */

static int tag_of(const comm_call *call, int kind)
{
    return (int)(call->desc.seq % (TAG_SEQS - 1)) * 4 + kind;
}

static size_t chunks_of(size_t bytes)
{
    return (bytes + mpi_shared.chunk_bytes - 1) / mpi_shared.chunk_bytes;
}

static bool requests_alloc(mpi_job *job)
{
    const comm *c = job->group->front;
    size_t n_receives = 0, n_sends = 0;
    for (int r = 0; r < c->size; r++) {
        if (r != c->rank) {
            n_receives += chunks_of(job->parts[r].recv_bytes);
            n_sends += chunks_of(job->parts[r].send_bytes);
        }
    }
    size_t n = REQ_FIRST_RECEIVE + n_receives + n_sends;
    job->n_receives = elems_to_int(n_receives);
    job->n_requests = elems_to_int(n);
    job->requests = malloc(n * sizeof *job->requests);
    job->peers = malloc(n * sizeof *job->peers);
    job->bytes = malloc(n * sizeof *job->bytes);
    mpi_engine *e = &mpi_shared;
    if (job->n_requests > e->done_capacity) {
        free(e->done_index);
        free(e->done_status);
        e->done_index = malloc(n * sizeof *e->done_index);
        e->done_status = malloc(n * sizeof *e->done_status);
        bool got = e->done_index != NULL && e->done_status != NULL;
        e->done_capacity = got ? job->n_requests : 0;
    }
    if (job->requests == NULL || job->peers == NULL || job->bytes == NULL || e->done_capacity == 0)
        return false;
    for (size_t i = 0; i < n; i++)
        job->requests[i] = MPI_REQUEST_NULL;
    return true;
}

/* Post `bytes` from or to one peer as requests *next ...; chunks keep their order by MPI's rule that
 * messages of one pair and tag do not overtake.                                                  */
static int message_post(mpi_job *job, int *next, bool receive, int peer, char *at, size_t bytes)
{
    int tag = tag_of(&job->call, TAG_DATA + job->call.phase);
    while (bytes > 0) {
        size_t piece = bytes < mpi_shared.chunk_bytes ? bytes : mpi_shared.chunk_bytes;
        MPI_Request *request = &job->requests[*next];
        job->peers[*next] = peer;
        job->bytes[*next] = (int)piece;
        ++*next;
        int rc = receive ? MPI_Irecv(at, (int)piece, MPI_BYTE, peer, tag, job->group->comm, request)
                         : MPI_Isend(at, (int)piece, MPI_BYTE, peer, tag, job->group->comm, request);
        if (rc != MPI_SUCCESS)
            return rc;
        at += piece;
        bytes -= piece;
    }
    return MPI_SUCCESS;
}

static int desc_post(mpi_job *job)
{
    const comm *c = job->group->front;
    int next = (c->rank + 1) % c->size, previous = (c->rank + c->size - 1) % c->size;
    int tag = tag_of(&job->call, TAG_DESC);
    MPI_Comm on = job->group->comm;
    job->peers[REQ_DESC_OUT] = next;
    job->peers[REQ_DESC_IN] = previous;
    job->bytes[REQ_DESC_OUT] = job->bytes[REQ_DESC_IN] = sizeof(comm_desc);
    job->desc_expected = job->call.phase == 0 && c->size > 1;
    if (!job->desc_expected)
        return MPI_SUCCESS;
    int rc = MPI_Irecv(&job->desc_in, sizeof job->desc_in, MPI_BYTE, previous, tag, on,
                       &job->requests[REQ_DESC_IN]);
    if (rc == MPI_SUCCESS)
        rc = MPI_Isend(&job->call.desc, sizeof job->call.desc, MPI_BYTE, next, tag, on,
                       &job->requests[REQ_DESC_OUT]);
    return rc;
}

/* Everyone starts with its neighbour, so that no rank is everybody's first target. */
static int exchange_post(mpi_job *job)
{
    const comm *c = job->group->front;
    int next = REQ_FIRST_RECEIVE;
    int rc = desc_post(job);
    for (int d = 1; d < c->size && rc == MPI_SUCCESS; d++) {
        int peer = (c->rank + c->size - d) % c->size;
        comm_part *p = &job->parts[peer];
        rc = message_post(job, &next, true, peer, p->recv, p->recv_bytes);
    }
    for (int d = 1; d < c->size && rc == MPI_SUCCESS; d++) {
        int peer = (c->rank + d) % c->size;
        comm_part *p = &job->parts[peer];
        rc = message_post(job, &next, false, peer, (char *)(uintptr_t)p->send, p->send_bytes);
    }
    return rc;
}

static void exchange_start(mpi_job *job)
{
    mpi_engine *e = &mpi_shared;
    job->begun_s = comm_now_s();
    job->next = e->active;
    e->active = job;
    if (!requests_alloc(job)) {
        (void)fsdp_error(FSDP_ENOMEM, "", "mpi: no memory for an exchange");
        engine_kill_recorded();
        return;
    }
    int rc = exchange_post(job);
    if (rc != MPI_SUCCESS) {
        fsdp_error_info info;
        mpi_explain(rc, "posting a message", &info);
        engine_kill(&info, true);
    }
}

/* ---- testing ----------------------------------------------------------------------------------- */

/* "rank 1 called all-gather #17 'h.0' of 320 f32" */
static void call_text(int world_rank, const comm_desc *desc, char *text, size_t text_bytes)
{
    char call[160];
    comm_desc_print(desc, call, sizeof call);
    snprintf(text, text_bytes, "rank %d called %s", world_rank, call);
}

/* The previous rank's descriptor is here. */
static fsdp_status desc_compare(mpi_job *job)
{
    const comm *c = job->group->front;
    const comm_desc *mine = &job->call.desc, *theirs = &job->desc_in;
    job->desc_expected = false;
    if (memcmp(mine, theirs, sizeof *mine) == 0)
        return FSDP_OK;
    char text_mine[208], text_theirs[208];
    call_text(c->world_ranks[c->rank], mine, text_mine, sizeof text_mine);
    call_text(c->world_ranks[job->peers[REQ_DESC_IN]], theirs, text_theirs, sizeof text_theirs);
    const char *detail = "";
    if (strcmp(strchr(text_mine, ' ') + 1, strchr(text_theirs, ' ') + 1) != 0)
        detail = mine->shape_hash != theirs->shape_hash ? " (with other slice lengths)" : "";
    return fsdp_error(FSDP_EMISMATCH, "all ranks must issue the same calls in the same order",
                      "ranks disagree: %s, %s%s", text_theirs, text_mine, detail);
}

/* A message of another length than expected: remember it, a descriptor may explain it. */
static void data_hold(mpi_job *job, int index, int got_bytes)
{
    if (job->held_since_s > 0)
        return;
    const comm *c = job->group->front;
    char call[160], got[48] = "more";
    comm_desc_print(&job->call.desc, call, sizeof call);
    if (got_bytes >= 0)
        snprintf(got, sizeof got, "%d", got_bytes);
    (void)fsdp_error(FSDP_EMISMATCH, "all ranks must pass slice lengths that fit each other",
                     "%s: rank %d sent %s bytes, rank %d expected %d", call,
                     c->world_ranks[job->peers[index]], got, c->world_ranks[c->rank],
                     job->bytes[index]);
    job->held = *fsdp_error_get();
    job->held_since_s = comm_now_s();
}

/* One request of the job has completed. */
static fsdp_status request_done(mpi_job *job, int index, const MPI_Status *status, int code)
{
    int error_class = MPI_SUCCESS, got_bytes = 0;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &error_class);
    bool is_data = index >= REQ_FIRST_RECEIVE && index < REQ_FIRST_RECEIVE + job->n_receives;
    if (error_class == MPI_ERR_TRUNCATE && is_data) {
        data_hold(job, index, -1);
        return FSDP_OK;
    }
    if (code != MPI_SUCCESS) {
        char what[64];
        fsdp_error_info info;
        snprintf(what, sizeof what, "message %s rank %d",
                 is_data || index == REQ_DESC_IN ? "from" : "to",
                 job->group->front->world_ranks[job->peers[index]]);
        mpi_explain(code, what, &info);
        return info.status;
    }
    if (index == REQ_DESC_IN)
        return desc_compare(job);
    if (is_data) {
        MPI_Get_count(status, MPI_BYTE, &got_bytes);
        if (got_bytes != job->bytes[index])
            data_hold(job, index, got_bytes);
    }
    return FSDP_OK;
}

/* Test the job once. *moved: something completed. *all_done: everything has. On failure the record of
 * this thread says why.                                                                        */
static fsdp_status exchange_test(mpi_job *job, bool *moved, bool *all_done)
{
    mpi_engine *e = &mpi_shared;
    int n_done = 0;
    int rc = MPI_Testsome(job->n_requests, job->requests, &n_done, e->done_index, e->done_status);
    if (rc != MPI_SUCCESS && rc != MPI_ERR_IN_STATUS) {
        int error_class = MPI_SUCCESS;
        MPI_Error_class(rc, &error_class);
        if (error_class != MPI_ERR_IN_STATUS) {
            fsdp_error_info info;
            mpi_explain(rc, "testing messages", &info);
            return info.status;
        }
    }
    *all_done = n_done == MPI_UNDEFINED; /* no request is active */
    for (int i = 0; i < n_done && n_done != MPI_UNDEFINED; i++) {
        *moved = true;
        const MPI_Status *status = &e->done_status[i];
        TRY(request_done(job, e->done_index[i], status,
                         rc == MPI_SUCCESS ? MPI_SUCCESS : status->MPI_ERROR));
    }
    if (job->held_since_s > 0) {
        *all_done = false;
        if (comm_now_s() - job->held_since_s > HELD_ERROR_S) {
            fsdp_error_set(&job->held);
            return job->held.status;
        }
    }
    return FSDP_OK;
}

/* Test every active job once; returns whether anything completed. */
static bool jobs_test(void)
{
    mpi_engine *e = &mpi_shared;
    bool moved = false;
    mpi_job **link = &e->active;
    while (*link != NULL) {
        mpi_job *job = *link;
        bool all_done = false;
        if (exchange_test(job, &moved, &all_done) != FSDP_OK) {
            engine_kill_recorded();
            return true; /* no job is left */
        }
        if (!all_done) {
            link = &job->next;
            continue;
        }
        *link = job->next;
        job_end(job, NULL);
        moved = true;
    }
    return moved;
}

/* ---- watching ---------------------------------------------------------------------------------- */

/* World ranks whose data or descriptor has not come: "1 3". */
static void missing_text(const mpi_job *job, char *text, size_t text_bytes)
{
    const comm *c = job->group->front;
    size_t used = 0;
    text[0] = '\0';
    for (int r = 0; r < c->size; r++) {
        bool missing = false;
        for (int i = REQ_DESC_IN; i < REQ_FIRST_RECEIVE + job->n_receives; i++)
            missing |= job->requests[i] != MPI_REQUEST_NULL && job->peers[i] == r;
        if (missing && used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", used > 0 ? " " : "",
                                     c->world_ranks[r]);
    }
    if (used == 0)
        snprintf(text, text_bytes, "none; peers have not taken this rank's");
}

static void report(void)
{
    if (mpi_shared.recorder != NULL)
        comm_recorder_print(mpi_shared.recorder, stderr, mpi_shared.world_rank);
}

static void job_expire(mpi_job *job)
{
    char call[160], missing[200];
    comm_desc_print(&job->call.desc, call, sizeof call);
    missing_text(job, missing, sizeof missing);
    report();
    (void)fsdp_error(FSDP_ETIMEOUT,
                     "compare the ranks' last calls above; FSDP_TIMEOUT_S sets the limit",
                     "rank %d waited %.1f s in %s; missing data of ranks: %s",
                     mpi_shared.world_rank, job->group->front->timeout_s, call, missing);
    engine_kill_recorded();
}

/* A peer says that it has failed. */
static void notice_take(void)
{
    const mpi_notice *n = &mpi_shared.notice_in;
    if (n->why.status == FSDP_ETIMEOUT)
        report();
    (void)fsdp_error(n->why.status, n->why.hint, "rank %d reports: %.700s", n->from, n->why.what);
    fsdp_error_info why = *fsdp_error_get();
    engine_kill(&why, false);
}

/* Peers' notices, and calls that wait too long. */
static void watch(void)
{
    mpi_engine *e = &mpi_shared;
    int came = 0;
    if (e->dead)
        return;
    if (e->world_size > 1 &&
        MPI_Test(&e->notice_recv, &came, MPI_STATUS_IGNORE) == MPI_SUCCESS && came) {
        notice_take();
        return;
    }
    double now_s = comm_now_s();
    for (mpi_job *job = e->active; job != NULL; job = job->next) {
        if (now_s - job->begun_s > job->group->front->timeout_s) {
            job_expire(job);
            return;
        }
    }
}

/* ---- groups ------------------------------------------------------------------------------------ */

/* Blocking, but all ranks have just met in comm_split's host call: nothing else is waited for. */
static void split_run(mpi_job *job)
{
    fsdp_error_info info;
    MPI_Comm parent = job->group != NULL ? job->group->comm : MPI_COMM_WORLD;
    MPI_Comm made = MPI_COMM_NULL;
    int rc = MPI_Comm_split(parent, job->color, job->key, &made);
    if (rc != MPI_SUCCESS) {
        mpi_explain(rc, "MPI_Comm_split", &info);
        mpi_job_finish(job, &info);
        return;
    }
    if (job->group != NULL && job->child->front->size == 1) {
        MPI_Comm_free(&made);
    } else {
        MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
        job->child->comm = made;
        if (mpi_shared.recorder == NULL)
            mpi_shared.recorder = job->child->front->recorder;
    }
    mpi_job_finish(job, NULL);
}

static void close_run(mpi_job *job)
{
    mpi_engine *e = &mpi_shared;
    mpi_group *g = job->group;
    if (g->front->owns_recorder && g->front->recorder == e->recorder)
        e->recorder = NULL;
    if (!e->dead)
        MPI_Comm_free(&g->comm);
    mpi_job_finish(job, NULL);
}

/* ---- the thread -------------------------------------------------------------------------------- */

static struct timespec deadline_in_us(long us)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += us * 1000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* What has been handed over, in order; pauses first as long as nothing has completed for n_quiet
 * tests. A new job ends the pause.                                                               */
static mpi_job *inbox_take(int n_quiet)
{
    mpi_engine *e = &mpi_shared;
    if (e->active != NULL && n_quiet >= BURST_TESTS && n_quiet < YIELD_TESTS)
        sched_yield();
    long sleep_us = 0;
    if (e->active == NULL)
        sleep_us = IDLE_SLEEP_US;
    else if (n_quiet >= YIELD_TESTS)
        sleep_us = SHORTEST_SLEEP_US + 2 * (n_quiet - YIELD_TESTS);
    if (e->active != NULL && sleep_us > LONGEST_SLEEP_US)
        sleep_us = LONGEST_SLEEP_US;
    pthread_mutex_lock(&e->lock);
    if (e->inbox == NULL && sleep_us > 0) {
        struct timespec deadline = deadline_in_us(sleep_us);
        pthread_cond_timedwait(&e->wake, &e->lock, &deadline);
    }
    mpi_job *taken = e->inbox;
    e->inbox = NULL;
    e->inbox_tail = &e->inbox;
    pthread_mutex_unlock(&e->lock);
    return taken;
}

static void job_start(mpi_job *job)
{
    bool needs_peers = job->kind == JOB_EXCHANGE || job->kind == JOB_SPLIT;
    if (mpi_shared.dead && needs_peers) {
        mpi_job_finish(job, &mpi_shared.why);
        return;
    }
    switch (job->kind) {
    case JOB_EXCHANGE:
        exchange_start(job);
        break;
    case JOB_SPLIT:
        split_run(job);
        break;
    case JOB_CLOSE:
        close_run(job);
        break;
    case JOB_ABORT:
        MPI_Abort(MPI_COMM_WORLD, job->exit_code);
        break;
    case JOB_STOP:
        mpi_shared.stopping = true;
        mpi_job_finish(job, NULL);
        break;
    }
}

/* MPI must be ended by the thread that started it, so it is this one. */
static fsdp_status transport_start(void)
{
    mpi_engine *e = &mpi_shared;
    int provided = MPI_THREAD_SINGLE;
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (rc != MPI_SUCCESS || provided < MPI_THREAD_SERIALIZED)
        return fsdp_error(FSDP_ECOMM, "use an MPI built with threads (Debian's mpich is)",
                          "MPI_Init_thread: code %d, thread level %d", rc, provided);
    MPI_Comm host;
    MPI_Comm_rank(MPI_COMM_WORLD, &e->world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &e->world_size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &e->local_rank);
    MPI_Comm_size(host, &e->local_size);
    MPI_Comm_free(&host);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &e->notice_comm);
    e->notice_sends = calloc((size_t)e->world_size, sizeof *e->notice_sends);
    if (e->notice_sends == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "mpi: no memory for %d ranks", e->world_size);
    if (e->world_size > 1)
        MPI_Irecv(&e->notice_in, sizeof e->notice_in, MPI_BYTE, MPI_ANY_SOURCE, TAG_NOTICE,
                  e->notice_comm, &e->notice_recv);
    return FSDP_OK;
}

/* In order when nothing failed; else MPI is left as it is, since ending it would wait for peers. */
static void transport_end(void)
{
    mpi_engine *e = &mpi_shared;
    if (!e->dead) {
        if (e->world_size > 1) {
            MPI_Cancel(&e->notice_recv);
            MPI_Wait(&e->notice_recv, MPI_STATUS_IGNORE);
        }
        MPI_Comm_free(&e->notice_comm);
        MPI_Finalize();
        free(e->notice_sends); /* else MPI may still read the notices */
    }
    free(e->done_index);
    free(e->done_status);
}

void *mpi_progress_main(void *arg)
{
    mpi_engine *e = &mpi_shared;
    pthread_setname_np(pthread_self(), "mpi progress");
    prctl(PR_SET_TIMERSLACK, 1000); /* ns; else every short sleep takes 50 us more */
    fsdp_status status = transport_start();
    mpi_job_finish(arg, status == FSDP_OK ? NULL : fsdp_error_get());
    if (status != FSDP_OK)
        return NULL;
    int n_quiet = 0;
    while (!e->stopping) {
        bool was_idle = e->active == NULL;
        mpi_job *job = inbox_take(n_quiet);
        if (job != NULL)
            n_quiet = 0;
        while (job != NULL) {
            mpi_job *next = job->next; /* a job started may be freed by its caller */
            job_start(job);
            job = next;
        }
        n_quiet = jobs_test() ? 0 : n_quiet < 1 << 20 ? n_quiet + 1 : n_quiet;
        if (was_idle || n_quiet % WATCH_EVERY_TESTS == 0)
            watch();
    }
    transport_end();
    return NULL;
}

#else
typedef int mpi_progress_not_built; /* ISO C wants a declaration in every file */
#endif
