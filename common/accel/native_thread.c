/* native_thread.c -- the thread that makes the library's calls for a job.
 *
 *   native_thread_start -> native_ask ... -> native_thread_end
 *
 * Some calls block until all ranks have made them: the call that creates a communicator, and the
 * first call of each kind on it, which connects the ranks. While the host waits for the thread, it
 * gives up the call if a rank has died or the time limit is over. It cannot cancel the call: NCCL
 * allows an abort only while no thread is in a call. A thread that does not return is abandoned
 * with its communicators. When its call returns, it only touches its native_thread. */
#include <stdlib.h>
#include "common/accel/accel_impl.h"
#include "common/accel/native_impl.h"

static const double ABORT_PATIENCE_S = 10;
/* How long to wait for a call whose peers have died; some libraries notice that by themselves. */
static const double CALL_PATIENCE_S = 1;

/* THREAD_LEFT: nobody waits for the thread's call any more. After it, the thread frees itself. */
typedef enum thread_state { THREAD_IDLE, THREAD_ASKED, THREAD_LEFT, THREAD_ENDS } thread_state;

struct native_thread {
    const native_api *api;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_int state;
    native_request now; /* owned by the host in THREAD_IDLE, else by the thread */
    fsdp_status status; /* the result of `now`; its error is `why` */
    fsdp_error_info why;
    char id[]; /* see native_thread_id */
};

static void thread_free(native_thread *t)
{
    (void)pthread_cond_destroy(&t->changed);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
}

static void state_set(native_thread *t, thread_state state)
{
    atomic_store(&t->state, state);
    (void)pthread_cond_broadcast(&t->changed);
}

static fsdp_status request_run(const native_api *api, native_request *r)
{
    switch (r->kind) {
    case ASK_START:
        return api->start(r->c.team->dev, r->c.team, r->id, &r->handle);
    case ASK_SPLIT:
        return api->split(r->handle, r->color, r->rank, &r->child);
    case ASK_ISSUE:
        return r->issue(r->handle, &r->c, r->queue);
    case ASK_DESTROY:
        api->destroy(r->handle);
        break;
    case ASK_ABORT:
        api->abort(r->handle);
    }
    return FSDP_OK;
}

static void *thread_main(void *arg)
{
    native_thread *t = arg;
    (void)pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->state == THREAD_IDLE)
            (void)pthread_cond_wait(&t->changed, &t->lock);
        if (t->state == THREAD_ENDS)
            break;
        (void)pthread_mutex_unlock(&t->lock);
        t->status = request_run(t->api, &t->now);
        if (t->status != FSDP_OK)
            t->why = *fsdp_error_get();
        (void)pthread_mutex_lock(&t->lock);
        if (t->state == THREAD_LEFT)
            break;
        state_set(t, THREAD_IDLE);
    }
    const bool is_left = t->state == THREAD_LEFT;
    (void)pthread_mutex_unlock(&t->lock);
    if (is_left)
        thread_free(t);
    return NULL;
}

fsdp_status native_thread_start(const native_api *api, native_thread **out)
{
    pthread_condattr_t attr;
    native_thread *t = calloc(1, sizeof *t + api->id_bytes);
    if (t == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for a thread", api->name);
    t->api = api;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&t->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    const fsdp_status status = accel_thread_start(thread_main, t, api->name, &t->thread);
    if (status == FSDP_OK)
        *out = t;
    else
        thread_free(t);
    return status;
}

void *native_thread_id(native_thread *t)
{
    return t->id;
}

void native_thread_end(native_thread *t)
{
    if (t == NULL)
        return;
    (void)pthread_mutex_lock(&t->lock);
    const bool is_left = t->state == THREAD_ASKED;
    const pthread_t thread = t->thread;
    state_set(t, is_left ? THREAD_LEFT : THREAD_ENDS);
    (void)pthread_mutex_unlock(&t->lock);
    if (is_left) {
        (void)pthread_detach(thread);
        return;
    }
    (void)pthread_join(thread, NULL);
    thread_free(t);
}

/* Wait for up to a millisecond. Returns whether the call is over. Most calls are short, so the
 * first looks only yield. */
static bool is_over(native_thread *t, int looks)
{
    const struct timespec until = clock_deadline(1e-3);
    if (looks < 100) {
        sched_yield();
        return atomic_load(&t->state) != THREAD_ASKED;
    }
    (void)pthread_mutex_lock(&t->lock);
    if (t->state == THREAD_ASKED)
        (void)pthread_cond_timedwait(&t->changed, &t->lock, &until);
    (void)pthread_mutex_unlock(&t->lock);
    return atomic_load(&t->state) != THREAD_ASKED;
}

/* Give the thread a request. Returns false if it is still in another call. */
static bool put(native_thread *t, const native_request *r)
{
    (void)pthread_mutex_lock(&t->lock);
    const bool is_free = t->state != THREAD_ASKED;
    if (is_free) {
        t->now = *r;
        state_set(t, THREAD_ASKED);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return is_free;
}

/* Wait until the thread is in no call. Returns false if it is still in one after patience_s. */
static bool settle(native_thread *t, double patience_s)
{
    clock_wait waited = clock_wait_begin();
    for (int looks = 0; !is_over(t, looks); looks++)
        if (clock_wait_s(&waited) > patience_s)
            return false;
    return true;
}

/* Have the thread run *r even after failures, and wait until it has. Returns false if the thread
 * was in another call, or has not returned from this one after patience_s. */
static bool tell(native_thread *t, const native_request *r, double patience_s)
{
    return put(t, r) && settle(t, patience_s);
}

/* The library does not tell which ranks are missing. */
fsdp_status native_late(const native_job *j, const comm_team *team, const comm_desc *desc)
{
    char unknown[32];
    snprintf(unknown, sizeof unknown, "unknown to %s", j->api->library);
    return comm_desc_timeout(team, desc, comm_limit_s(team), unknown);
}

/* The error for a call that has reached its time limit. */
static fsdp_status took_too_long(const native_job *j, const native_request *r,
                                 const comm_desc *desc)
{
    if (desc != NULL)
        return native_late(j, r->c.team, desc);
    return fsdp_error(FSDP_ETIMEOUT, "see the other ranks' last lines",
                      "%s: %s took longer than %.1f s", j->api->library, r->c.what,
                      comm_limit_s(r->c.team));
}

fsdp_status native_ask(native_job *j, native_request *r, const comm_desc *desc)
{
    native_thread *t = j->thread;
    if (!put(t, r))
        return fsdp_error(FSDP_ECOMM, "see the first error of this rank",
                          "%s: %s: an earlier call has not come back", j->api->library, r->c.what);
    clock_wait waited = clock_wait_begin();
    for (int looks = 0; !is_over(t, looks); looks++) {
        TRY(transport_failed(j->control));
        if (clock_wait_s(&waited) > comm_limit_s(r->c.team))
            return took_too_long(j, r, desc);
    }
    *r = t->now;
    if (t->status != FSDP_OK)
        fsdp_error_set(&t->why);
    return t->status;
}

/* ---- ending groups by force ------------------------------------------------------------------ */

bool native_group_abort(native_group *g)
{
    const native_request r = {.kind = ASK_ABORT, .handle = g->comm};
    g->comm = NULL;
    return r.handle == NULL || tell(g->job->thread, &r, ABORT_PATIENCE_S);
}

void native_abort(native_job *j)
{
    bool is_free = settle(j->thread, CALL_PATIENCE_S);
    native_group *g;
    LIST_FOREACH(g, &j->groups, link)
    {
        is_free = is_free && native_group_abort(g);
        g->comm = NULL;
    }
}
