/* acl_event.c -- events of the stand-in. There are three kinds, of which each has rules of its own:
 *
 *                        aclrtCreateEvent   ...WithFlag             ...ExWithFlag
 *   wait, not recorded   107000             blocks until recorded   no wait
 *   recorded again       stands for that    after aclrtResetEvent   stands for that
 *   query, not recorded  not ready          not ready               complete
 *   aclrtResetEvent      ends the process   on the waiting stream   207000
 *
 * An event of aclrtCreateEventWithFlag is a word of the hardware: a task sets it, tasks wait until
 * it is set, and aclrtResetEvent is a task that clears it. A wait that nothing ever ends, and a
 * record of what is set already, end the process. */
#include <errno.h>
#include <stdlib.h>
#include "tests/sim/ascend/acl_impl.h"

typedef enum event_kind { BY_CREATE, BY_FLAG, BY_EX } event_kind;

typedef struct acl_event {
    sim_handle handle;
    event_kind kind;
    uint32_t flags;
    event *e;
    bool recorded; /* and, BY_FLAG, not reset since */
    bool is_set;   /* the word of BY_FLAG; guarded by acl_lock */
} acl_event;

static pthread_cond_t word_set = PTHREAD_COND_INITIALIZER;

static acl_event *live(aclrtEvent handle, const char *call)
{
    const char *is = sim_handle_is_not(handle, ACL_EVENT);
    if (is != NULL)
        sim_die("%s of an event that is %s", call, is);
    return handle;
}

/* ---- life ------------------------------------------------------------------------------------ */

static aclError event_new(aclrtEvent *out, event_kind kind, uint32_t flags, const char *call)
{
    const uint32_t known = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS |
                           ACL_EVENT_TIME_LINE | ACL_EVENT_EXTERNAL;
    const int most = (int)sim_number("FSDP_SIM_EVENTS", 65536);
    acl_context *c;
    aclError error = acl_enter(call, &c);
    if (error != ACL_SUCCESS)
        return error;
    if (out == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "%s: event is NULL", call);
    if (flags == 0 || (flags & ~known) != 0)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: flag %#x", call, flags);
    if (kind != BY_EX && (flags & ACL_EVENT_SYNC) && atomic_load(&acl_n_events) >= most)
        return sim_acl_fail(ACL_ERROR_RT_NO_EVENT_RESOURCE, "%s: %d events are there", call, most);
    acl_event *w = calloc(1, sizeof *w);
    if (w == NULL)
        return sim_acl_fail(ACL_ERROR_BAD_ALLOC, "%s: no memory", call);
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
    return event_new(out, BY_CREATE, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE, "aclrtCreateEvent");
}

aclError aclrtCreateEventWithFlag(aclrtEvent *out, uint32_t flag)
{
    return event_new(out, BY_FLAG, flag, "aclrtCreateEventWithFlag");
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *out, uint32_t flag)
{
    return event_new(out, BY_EX, flag, "aclrtCreateEventExWithFlag");
}

aclError aclrtDestroyEvent(aclrtEvent handle)
{
    acl_context *c;
    aclError error = acl_enter("aclrtDestroyEvent", &c);
    if (error != ACL_SUCCESS)
        return error;
    event_free(live(handle, "aclrtDestroyEvent")->e);
    atomic_fetch_sub(&acl_n_events, 1);
    sim_handle_destroy(handle);
    return ACL_SUCCESS;
}

/* ---- in a stream ----------------------------------------------------------------------------- */

typedef struct word_args {
    acl_event *w;
    bool sets;
    int stream; /* its number */
} word_args;

static fsdp_status run_word(void *args, int n_threads)
{
    const word_args *a = args;
    (void)n_threads;
    pthread_mutex_lock(&acl_lock);
    a->w->is_set = a->sets;
    pthread_cond_broadcast(&word_set);
    pthread_mutex_unlock(&acl_lock);
    return FSDP_OK;
}

static fsdp_status run_word_wait(void *args, int n_threads)
{
    const word_args *a = args;
    const struct timespec until = acl_deadline();
    (void)n_threads;
    pthread_mutex_lock(&acl_lock);
    while (!a->w->is_set)
        if (pthread_cond_timedwait(&word_set, &acl_lock, &until) == ETIMEDOUT)
            sim_die("stream %d waits for an event that nobody records", a->stream);
    pthread_mutex_unlock(&acl_lock);
    return FSDP_OK;
}

static aclError issue_word(acl_stream *q, acl_event *w, stream_fn fn, bool sets, const char *call)
{
    const word_args a = {w, sets, q->number};
    return acl_issue(
        q, call,
        &(launch_config){.fn = fn,
                         .args = &a,
                         .args_bytes = sizeof a,
                         .on_host = true,
                         .waits_for = fn == run_word_wait ? WAITS_FOR_HOST : WAITS_FOR_NOBODY});
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream s)
{
    static const char CALL[] = "aclrtRecordEvent";
    acl_stream *q;
    aclError error = acl_stream_working(s, CALL, &q);
    if (error != ACL_SUCCESS)
        return error;
    acl_event *w = live(handle, CALL);
    if (w->kind == BY_FLAG && w->recorded)
        sim_die("%s of an event of aclrtCreateEventWithFlag that is recorded, before "
                "aclrtResetEvent: who waits would not wait for this",
                CALL);
    w->recorded = true;
    error = acl_status(event_record(w->e, sim_queue_use(&q->q)), CALL);
    if (error == ACL_SUCCESS && w->kind == BY_FLAG)
        error = issue_word(q, w, run_word, true, CALL);
    return error;
}

aclError aclrtResetEvent(aclrtEvent handle, aclrtStream s)
{
    static const char CALL[] = "aclrtResetEvent";
    acl_stream *q;
    aclError error = acl_stream_working(s, CALL, &q);
    if (error != ACL_SUCCESS)
        return error;
    acl_event *w = live(handle, CALL);
    if (w->kind == BY_CREATE)
        sim_die("%s of an event of aclrtCreateEvent, which CANN does not define", CALL);
    if (w->kind == BY_EX || !(w->flags & ACL_EVENT_SYNC))
        return sim_acl_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s of such an event", CALL);
    w->recorded = false;
    return issue_word(q, w, run_word, false, CALL);
}

aclError aclrtStreamWaitEvent(aclrtStream s, aclrtEvent handle)
{
    static const char CALL[] = "aclrtStreamWaitEvent";
    acl_stream *q;
    aclError error = acl_stream_working(s, CALL, &q);
    if (error != ACL_SUCCESS)
        return error;
    acl_event *w = live(handle, CALL);
    if (!(w->flags & ACL_EVENT_SYNC))
        return sim_acl_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                            "%s for an event without ACL_EVENT_SYNC", CALL);
    if (w->kind == BY_CREATE && !w->recorded)
        return sim_acl_fail(ACL_ERROR_RT_PARAM_INVALID, "%s for an event that is not recorded",
                            CALL);
    if (w->kind == BY_FLAG)
        return issue_word(q, w, run_word_wait, false, CALL);
    return acl_status(stream_wait_event(sim_queue_use(&q->q), w->e), CALL);
}

/* ---- for the host ---------------------------------------------------------------------------- */

/* The event, if no error has stopped the context. */
static aclError event_of(aclrtEvent handle, const char *call, acl_event **out)
{
    acl_context *c;
    aclError error = acl_enter(call, &c);
    if (error != ACL_SUCCESS)
        return error;
    *out = live(handle, call);
    return acl_check_context(c, call);
}

aclError aclrtSynchronizeEvent(aclrtEvent handle)
{
    static const char CALL[] = "aclrtSynchronizeEvent";
    acl_context *c;
    aclError error = acl_enter(CALL, &c);
    if (error != ACL_SUCCESS)
        return error;
    acl_event *w = live(handle, CALL);
    if (w->kind != BY_EX && !w->recorded)
        sim_die("%s of an event that is not recorded", CALL);
    error = acl_status(event_sync(w->e), CALL);
    return error == ACL_SUCCESS ? acl_check_context(c, CALL) : error;
}

aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus *status)
{
    static const char CALL[] = "aclrtQueryEventStatus";
    acl_event *w;
    aclError error = event_of(handle, CALL, &w);
    if (error != ACL_SUCCESS)
        return error;
    if (status == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "%s: status is NULL", CALL);
    const bool reached = (w->recorded || w->kind == BY_EX) && event_done(w->e);
    *status = reached ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent begin, aclrtEvent end)
{
    static const char CALL[] = "aclrtEventElapsedTime";
    acl_event *from, *to;
    double seconds;
    aclError error = event_of(begin, CALL, &from);
    if (error == ACL_SUCCESS)
        error = event_of(end, CALL, &to);
    if (error != ACL_SUCCESS)
        return error;
    if (ms == NULL)
        return sim_acl_fail(ACL_ERROR_INVALID_PARAM, "%s: ms is NULL", CALL);
    if (!from->recorded || !to->recorded)
        return sim_acl_fail(ACL_ERROR_RT_INTERNAL_ERROR, "%s of an event that is not recorded",
                            CALL);
    if (!(from->flags & to->flags & ACL_EVENT_TIME_LINE) || !event_done(from->e) ||
        !event_done(to->e))
        return sim_acl_fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                            "%s of an event that is not reached, or has no ACL_EVENT_TIME_LINE",
                            CALL);
    (void)event_elapsed_s(from->e, to->e, &seconds);
    *ms = (float)(seconds * 1e3);
    return ACL_SUCCESS;
}
