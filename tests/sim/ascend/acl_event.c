/* acl_event.c -- events of the stand-in. There are three kinds, and each has its own rules:
 *
 *                        aclrtCreateEvent   ...WithFlag             ...ExWithFlag
 *   wait, not recorded   107000             blocks until recorded   no wait
 *   recorded again       replaces the first after aclrtResetEvent   replaces the first
 *   query, not recorded  not ready          not ready               complete
 *   aclrtResetEvent      ends the process   on the waiting stream   207000
 *
 * An event of aclrtCreateEventWithFlag is a word of the hardware. A task sets the word, tasks wait
 * until it is set, and aclrtResetEvent is a task that clears it. A wait that nothing ever ends and
 * a second record before a reset end the process. */
#include <errno.h>
#include <stdlib.h>
#include "tests/sim/ascend/acl_impl.h"

typedef enum event_kind { BY_CREATE, BY_FLAG, BY_EX } event_kind;

typedef struct acl_event {
    sim_handle handle;
    event_kind kind;
    uint32_t flags;
    event *e;
    bool recorded; /* and, if BY_FLAG, not reset since then */
    bool is_set;   /* the word of a BY_FLAG event; guarded by acl_lock */
} acl_event;

static pthread_cond_t word_set = PTHREAD_COND_INITIALIZER;

static acl_event *live(aclrtEvent handle, const char *call)
{
    return sim_live(handle, ACL_EVENT, call, "an event");
}

/* ---- life ------------------------------------------------------------------------------------ */

static aclError event_new(aclrtEvent *out, event_kind kind, uint32_t flags, const char *call)
{
    const uint32_t known = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS |
                           ACL_EVENT_TIME_LINE | ACL_EVENT_EXTERNAL;
    const int most = (int)sim_number("FSDP_SIM_EVENTS", 65536);
    TRY_ACL(acl_enter(call, NULL));
    FAIL_IF(out == NULL, ACL_ERROR_INVALID_PARAM, call, "event is NULL");
    FAIL_IF(flags == 0 || (flags & ~known), ACL_ERROR_RT_PARAM_INVALID, call, "flag %#x", flags);
    FAIL_IF(kind != BY_EX && (flags & ACL_EVENT_SYNC) && atomic_load(&acl_n_events) >= most,
            ACL_ERROR_RT_NO_EVENT_RESOURCE, call, "%d events are there", most);
    acl_event *w = calloc(1, sizeof *w);
    FAIL_IF(w == NULL, ACL_ERROR_BAD_ALLOC, call, "no memory");
    *w = (acl_event){.handle = {ACL_EVENT}, .kind = kind, .flags = flags};
    const bool timed = (flags & ACL_EVENT_TIME_LINE) != 0;
    fsdp_status status = (timed ? event_create_timed : event_create)(sim_device(), &w->e);
    if (status != FSDP_OK) {
        free(w);
        return acl_status(status, call);
    }
    atomic_fetch_add(&acl_n_events, 1);
    *out = w;
    return ACL_SUCCESS;
}

aclError aclrtCreateEvent(aclrtEvent *out)
{
    return event_new(out, BY_CREATE, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE, __func__);
}

aclError aclrtCreateEventWithFlag(aclrtEvent *out, uint32_t flag)
{
    return event_new(out, BY_FLAG, flag, __func__);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *out, uint32_t flag)
{
    return event_new(out, BY_EX, flag, __func__);
}

aclError aclrtDestroyEvent(aclrtEvent handle)
{
    TRY_ACL(acl_enter(__func__, NULL));
    event_free(live(handle, __func__)->e);
    atomic_fetch_sub(&acl_n_events, 1);
    sim_handle_destroy(handle);
    return ACL_SUCCESS;
}

/* ---- in a stream ----------------------------------------------------------------------------- */

/* What a task does to an event's word. */
typedef enum word_action { SET, CLEAR, AWAIT } word_action;
typedef struct word_args {
    acl_event *w;
    word_action action;
    int stream; /* for messages */
} word_args;

static fsdp_status run_word(void *args, int n_threads)
{
    const word_args *a = args;
    const struct timespec until = acl_patience();
    (void)n_threads;
    pthread_mutex_lock(&acl_lock);
    while (a->action == AWAIT && !a->w->is_set)
        if (pthread_cond_timedwait(&word_set, &acl_lock, &until) == ETIMEDOUT)
            sim_die("stream %d waits for an event that nobody records", a->stream);
    if (a->action != AWAIT)
        a->w->is_set = a->action == SET;
    pthread_cond_broadcast(&word_set);
    pthread_mutex_unlock(&acl_lock);
    return FSDP_OK;
}

static aclError issue_word(acl_stream *q, acl_event *w, word_action action, const char *call)
{
    const word_args a = {w, action, q->number};
    return acl_issue(
        q, call,
        &(launch_config){.fn = run_word,
                         .args = &a,
                         .args_bytes = sizeof a,
                         .on_host = true,
                         .waits_for = action == AWAIT ? WAITS_FOR_HOST : WAITS_FOR_NOBODY});
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream s)
{
    acl_stream *q;
    TRY_ACL(acl_stream_working(s, __func__, &q));
    acl_event *w = live(handle, __func__);
    if (w->kind == BY_FLAG && w->recorded)
        sim_die("%s of an event of aclrtCreateEventWithFlag that is recorded, before "
                "aclrtResetEvent: who waits would not wait for this",
                __func__);
    w->recorded = true;
    TRY_ACL(acl_status(event_record(w->e, sim_queue_use(&q->q)), __func__));
    return w->kind == BY_FLAG ? issue_word(q, w, SET, __func__) : ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent handle, aclrtStream s)
{
    acl_stream *q;
    TRY_ACL(acl_stream_working(s, __func__, &q));
    acl_event *w = live(handle, __func__);
    if (w->kind == BY_CREATE)
        sim_die("%s of an event of aclrtCreateEvent, which CANN does not define", __func__);
    FAIL_IF(w->kind == BY_EX || !(w->flags & ACL_EVENT_SYNC), ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
            __func__, "an event of another kind, or without ACL_EVENT_SYNC");
    w->recorded = false;
    return issue_word(q, w, CLEAR, __func__);
}

aclError aclrtStreamWaitEvent(aclrtStream s, aclrtEvent handle)
{
    acl_stream *q;
    TRY_ACL(acl_stream_working(s, __func__, &q));
    acl_event *w = live(handle, __func__);
    FAIL_IF(!(w->flags & ACL_EVENT_SYNC), ACL_ERROR_RT_FEATURE_NOT_SUPPORT, __func__,
            "an event without ACL_EVENT_SYNC");
    FAIL_IF(w->kind == BY_CREATE && !w->recorded, ACL_ERROR_RT_PARAM_INVALID, __func__,
            "an event that is not recorded");
    if (w->kind == BY_FLAG)
        return issue_word(q, w, AWAIT, __func__);
    return acl_status(stream_wait_event(sim_queue_use(&q->q), w->e), __func__);
}

/* ---- for the host ---------------------------------------------------------------------------- */

/* The event, unless an error has stopped the context. */
static aclError event_of(aclrtEvent handle, const char *call, acl_event **out)
{
    acl_context *c;
    TRY_ACL(acl_enter(call, &c));
    *out = live(handle, call);
    return acl_check_context(c, call);
}

aclError aclrtSynchronizeEvent(aclrtEvent handle)
{
    acl_context *c;
    TRY_ACL(acl_enter(__func__, &c));
    acl_event *w = live(handle, __func__);
    if (w->kind != BY_EX && !w->recorded)
        sim_die("%s of an event that is not recorded", __func__);
    TRY_ACL(acl_status(event_sync(w->e), __func__));
    return acl_check_context(c, __func__);
}

aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus *status)
{
    acl_event *w;
    TRY_ACL(event_of(handle, __func__, &w));
    FAIL_IF(status == NULL, ACL_ERROR_INVALID_PARAM, __func__, "status is NULL");
    const bool reached = (w->recorded || w->kind == BY_EX) && event_done(w->e);
    *status = reached ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent begin, aclrtEvent end)
{
    acl_event *from, *to;
    double seconds;
    TRY_ACL(event_of(begin, __func__, &from));
    TRY_ACL(event_of(end, __func__, &to));
    FAIL_IF(ms == NULL, ACL_ERROR_INVALID_PARAM, __func__, "ms is NULL");
    FAIL_IF(!from->recorded || !to->recorded, ACL_ERROR_RT_INTERNAL_ERROR, __func__,
            "an event that is not recorded");
    FAIL_IF(!(from->flags & to->flags & ACL_EVENT_TIME_LINE) || !event_done(from->e) ||
                !event_done(to->e),
            ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, __func__,
            "an event that is not reached, or has no ACL_EVENT_TIME_LINE");
    (void)event_elapsed_s(from->e, to->e, &seconds);
    *ms = (float)(seconds * 1e3);
    return ACL_SUCCESS;
}
