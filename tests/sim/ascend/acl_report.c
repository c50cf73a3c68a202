/* acl_report.c -- callbacks of the stand-in: host functions that run in a stream's order.
 *
 * A stream that reaches a callback posts it for the subscribed thread. With ACL_CALLBACK_BLOCK the
 * stream then sleeps until the thread has run it. The thread runs its posted callbacks inside
 * aclrtProcessReport. If nobody takes a blocking callback, an NPU's stream would hang; here the
 * process ends. [CANN aclrtSubscribeReport] */
#include <errno.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <time.h>
#include "tests/sim/ascend/acl_impl.h"

typedef struct post {
    STAILQ_ENTRY(post) link;
    acl_stream *q;
    uint64_t thread;
    aclrtCallback fn;
    void *user_data;
    bool blocks, taken, done;
} post;

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* posts or subscriptions changed */
static STAILQ_HEAD(, post) posts = STAILQ_HEAD_INITIALIZER(posts); /* not taken yet */
static LIST_HEAD(, acl_stream) subscribed; /* the streams that have a thread */

static long n_idle; /* calls that found no callback; acl_lock guards n_idle and hurries */
static bool hurries;

long sim_report_idle(bool hurry)
{
    pthread_mutex_lock(&acl_lock);
    hurries = hurry;
    const long n = n_idle;
    pthread_mutex_unlock(&acl_lock);
    return n;
}

struct timespec acl_deadline(int64_t ms)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += ms % 1000 * 1000000;
    at.tv_sec += ms / 1000 + at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

struct timespec acl_patience(void)
{
    return acl_deadline((int64_t)sim_number("FSDP_SIM_PATIENCE_S", 10) * 1000);
}

/* ---- subscriptions; acl_lock guards them ----------------------------------------------------- */

static bool is_subscribed(uint64_t thread)
{
    const acl_stream *q;
    LIST_FOREACH(q, &subscribed, subscribed)
    {
        if (q->thread == thread)
            return true;
    }
    return false;
}

aclError aclrtSubscribeReport(uint64_t thread, aclrtStream s)
{
    acl_stream *q;
    TRY_ACL(acl_stream_working(s, __func__, &q));
    FAIL_IF(thread == 0, ACL_ERROR_INVALID_PARAM, __func__, "no thread");
    aclError error = ACL_SUCCESS;
    pthread_mutex_lock(&acl_lock);
    if (q->thread != 0) {
        error = FAIL_IN(__func__, ACL_ERROR_RT_STREAM_SUBSCRIBE, "stream %d has a thread already",
                        q->number);
    } else {
        q->thread = thread;
        LIST_INSERT_HEAD(&subscribed, q, subscribed);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&acl_lock);
    return error;
}

aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream s)
{
    acl_stream *q;
    TRY_ACL(acl_stream_of(s, __func__, &q));
    aclError error = ACL_SUCCESS;
    pthread_mutex_lock(&acl_lock);
    if (q->thread == 0) {
        error = FAIL_IN(__func__, ACL_ERROR_RT_STREAM_SUBSCRIBE, "stream %d has none", q->number);
    } else if (q->thread != thread) {
        error = FAIL_IN(__func__, ACL_ERROR_RT_THREAD_SUBSCRIBE, "stream %d has another thread",
                        q->number);
    } else if (q->n_unfinished > 0 && !atomic_load(&q->context->stopped)) {
        sim_die("%s while %d callbacks of stream %d have not run", __func__, q->n_unfinished,
                q->number);
    } else {
        q->thread = 0;
        LIST_REMOVE(q, subscribed);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&acl_lock);
    return error;
}

/* ---- the stream's side ----------------------------------------------------------------------- */

/* The stream has reached the callback. The thread that takes a callback that does not block frees
 * it. */
static fsdp_status run_post(void *args, int n_threads)
{
    const struct timespec until = acl_patience();
    post *p = *(post **)args;
    const bool blocks = p->blocks;
    (void)n_threads;
    pthread_mutex_lock(&acl_lock);
    STAILQ_INSERT_TAIL(&posts, p, link);
    pthread_cond_broadcast(&changed);
    while (blocks && !p->done)
        if (p->taken)
            pthread_cond_wait(&changed, &acl_lock);
        else if (pthread_cond_timedwait(&changed, &acl_lock, &until) == ETIMEDOUT && !p->taken)
            sim_die("a callback of stream %d waits for thread %#llx, which does not come to "
                    "aclrtProcessReport: an NPU's stream would hang",
                    p->q->number, (unsigned long long)p->thread);
    pthread_mutex_unlock(&acl_lock);
    if (blocks)
        free(p);
    return FSDP_OK;
}

aclError aclrtLaunchCallback(aclrtCallback fn, void *user_data, aclrtCallbackBlockType type,
                             aclrtStream s)
{
    acl_stream *q;
    TRY_ACL(acl_stream_working(s, __func__, &q));
    FAIL_IF(fn == NULL || (unsigned)type > ACL_CALLBACK_BLOCK, ACL_ERROR_INVALID_PARAM, __func__,
            "%s, type %d", fn == NULL ? "no function" : "a function", (int)type);
    post *p = malloc(sizeof *p);
    FAIL_IF(p == NULL, ACL_ERROR_BAD_ALLOC, __func__, "no memory");
    pthread_mutex_lock(&acl_lock);
    *p = (post){.q = q,
                .thread = q->thread,
                .fn = fn,
                .user_data = user_data,
                .blocks = type == ACL_CALLBACK_BLOCK};
    q->n_unfinished += q->thread != 0;
    pthread_mutex_unlock(&acl_lock);
    if (p->thread == 0) {
        free(p);
        return FAIL_IN(__func__, ACL_ERROR_RT_STREAM_NO_CB_REG,
                       "no thread is subscribed to stream %d", q->number);
    }
    return acl_issue(q, __func__,
                     &(launch_config){.fn = run_post,
                                      .args = &p,
                                      .args_bytes = sizeof p,
                                      .on_host = true,
                                      .waits_for = p->blocks ? WAITS_FOR_HOST : WAITS_FOR_NOBODY});
}

/* ---- the thread's side ----------------------------------------------------------------------- */

/* The oldest callback posted for the thread. The caller holds acl_lock. */
static post *take(uint64_t thread)
{
    post *p;
    STAILQ_FOREACH(p, &posts, link)
    {
        if (p->thread == thread) {
            STAILQ_REMOVE(&posts, p, post, link);
            p->taken = true;
            return p;
        }
    }
    return NULL;
}

static void run_callback(post *p)
{
    acl_stream *q = p->q;
    const bool blocks = p->blocks;
    p->fn(p->user_data);
    pthread_mutex_lock(&acl_lock);
    q->n_unfinished--;
    p->done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&acl_lock);
    if (!blocks)
        free(p);
}

/* Sleep until there is a callback, *out, or return why there is none. The caller holds acl_lock. */
static aclError await_callback(uint64_t me, int32_t timeout_ms, post **out)
{
    const struct timespec until = acl_deadline(timeout_ms);
    int err = 0;
    if (!is_subscribed(me))
        return sim_acl_fail(ACL_ERROR_RT_THREAD_SUBSCRIBE,
                            "aclrtProcessReport in a thread that is not subscribed");
    while ((*out = take(me)) == NULL) {
        n_idle += err == ETIMEDOUT || hurries;
        if (err == ETIMEDOUT || hurries || !is_subscribed(me))
            return sim_acl_fail(ACL_ERROR_RT_REPORT_TIMEOUT, "aclrtProcessReport: no callback");
        err = timeout_ms < 0 ? pthread_cond_wait(&changed, &acl_lock)
                             : pthread_cond_timedwait(&changed, &acl_lock, &until);
    }
    return ACL_SUCCESS;
}

aclError aclrtProcessReport(int32_t timeout_ms)
{
    post *p = NULL;
    TRY_ACL(acl_enter(__func__, NULL));
    FAIL_IF(timeout_ms < -1 || timeout_ms == 0, ACL_ERROR_INVALID_PARAM, __func__, "%d ms",
            timeout_ms);
    pthread_mutex_lock(&acl_lock);
    const aclError error = await_callback((uint64_t)pthread_self(), timeout_ms, &p);
    pthread_mutex_unlock(&acl_lock);
    if (error == ACL_SUCCESS)
        run_callback(p);
    return error;
}
