/* native_call.c -- issues a transport's calls of the library and follows them until they end.
 *
 *   hosts compare the call (FSDP_CHECK=1) -> event, the library's call, event on the stream
 *   -> whenever the host waits, native_poll finds the calls that have ended, are late or failed
 *
 * The library neither compares calls between ranks nor knows our time limit: a call that peers do
 * not join stays on the device. So an event is recorded before and after each call; these events
 * show how far the streams have come. A failure aborts all communicators. */
#include <math.h>
#include <stdlib.h>
#include "common/accel/native_impl.h"

static const double LOOK_EVERY_S = 2e-4; /* for failed peers and errors of the library */

/* ---- the device's events --------------------------------------------------------------------- */

fsdp_status native_event(const native_job *j, accel_event_kind kind, void **out)
{
    return j->lib->explain(j->lib->event_create((accel_device *)j->team->dev, kind, out),
                           "event of a call");
}

void native_event_free(const native_job *j, void *e)
{
    if (e != NULL)
        (void)j->lib->event_destroy(e);
}

static fsdp_status record(const native_job *j, void *e, void *queue, const char *what)
{
    return j->lib->explain(j->lib->event_record(e, queue), what);
}

/* ---- failure --------------------------------------------------------------------------------- */

static void flight_end(native_job *j, comm_state state, double at_s)
{
    native_flight *f = STAILQ_FIRST(&j->flights);
    comm_recorder_mark_at(j->team->recorder, f->call.ticket, state, at_s);
    STAILQ_REMOVE_HEAD(&j->flights, link);
    STAILQ_INSERT_HEAD(&j->spare, f, link);
}

/* FSDP_OK, or the job's error. */
static fsdp_status why(native_job *j)
{
    return atomic_load(&j->failed) ? fsdp_error_set(&j->why) : FSDP_OK;
}

fsdp_status native_fail(native_job *j)
{
    if (!atomic_load(&j->failed)) {
        j->why = *fsdp_error_get();
        (void)transport_fail(j->control, j->why.status);
        if (transport_failed(j->control) != FSDP_OK) /* the error of the rank that failed first */
            j->why = *fsdp_error_get();
        atomic_store(&j->failed, true);
        native_abort(j);
        while (!STAILQ_EMPTY(&j->flights))
            flight_end(j, COMM_FAILED, clock_now_s());
    }
    return why(j);
}

/* ---- following the calls --------------------------------------------------------------------- */

/* Calls begin in the order of issue, by the library or by native_job.chains. So only the first
 * unfinished call can be late. */
static fsdp_status flights_look(native_job *j)
{
    for (native_flight *f; (f = STAILQ_FIRST(&j->flights)) != NULL;) {
        const comm_team *team = f->group->group->team;
        if (f->begun_s == 0 && j->lib->event_look(f->begin) == 0) {
            f->begun_s = accel_event_at_s(j->team->dev, f->begin);
            f->waited = clock_wait_begin();
            comm_recorder_mark_at(team->recorder, f->call.ticket, COMM_RUNNING, f->begun_s);
        }
        if (f->begun_s > 0 && j->lib->event_look(f->end) == 0) {
            flight_end(j, COMM_DONE, fmax(f->begun_s, accel_event_at_s(j->team->dev, f->end)));
            continue;
        }
        if (f->begun_s > 0 && clock_wait_s(&f->waited) > comm_limit_s(team))
            return native_late(j, team, &f->call.desc);
        break;
    }
    return FSDP_OK;
}

/* Look for failed peers and for errors of the library. */
static fsdp_status others_look(native_job *j)
{
    fsdp_status status = transport_failed(j->control);
    native_group *g;
    LIST_FOREACH(g, &j->groups, link)
    {
        if (g->comm != NULL && status == FSDP_OK)
            status = j->api->look(g->comm, "communicator");
    }
    return status;
}

fsdp_status native_poll(void *self)
{
    native_job *j = self;
    double now_s = clock_now_s();
    fsdp_status status = why(j);
    if (status != FSDP_OK)
        return status;
    if (now_s - j->looked_s >= LOOK_EVERY_S) {
        status = others_look(j);
        j->looked_s = now_s;
    }
    IF_OK(status, flights_look(j));
    return status == FSDP_OK ? FSDP_OK : native_fail(j);
}

fsdp_status native_failed(transport_group *group)
{
    native_job *j = ((native_group *)group->state)->job;
    TRY(why(j));
    return transport_failed(j->control);
}

/* ---- issuing --------------------------------------------------------------------------------- */

typedef struct native_work {
    native_group *group;
    stream *s;
    const comm_call *call;
    native_issue_fn issue;
    native_call c;
} native_work;

/* Add a flight, with its events, at the end of the list. */
static fsdp_status flight_add(native_job *j, const native_work *w, native_flight **out)
{
    native_flight *f = STAILQ_FIRST(&j->spare);
    if (f == NULL) {
        f = calloc(1, sizeof *f);
        if (f == NULL)
            return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for a call", j->api->name);
        STAILQ_INSERT_HEAD(&j->spare, f, link); /* f stays spare if an event cannot be made */
    }
    if (f->begin == NULL)
        TRY(native_event(j, ACCEL_TIMES, &f->begin));
    if (f->end == NULL)
        TRY(native_event(j, ACCEL_TIMES, &f->end));
    STAILQ_REMOVE_HEAD(&j->spare, link);
    f->group = w->group;
    f->call = *w->call;
    f->begun_s = 0;
    STAILQ_INSERT_TAIL(&j->flights, f, link);
    *out = f;
    return FSDP_OK;
}

static fsdp_status work_put(native_job *j, const native_work *w)
{
    void *q = accel_queue_of(w->s);
    native_group *g = w->group;
    native_flight *f = NULL;
    native_request r = {
        .kind = ASK_ISSUE, .handle = g->comm, .c = w->c, .issue = w->issue, .queue = q};
    r.c.team = g->group->team;
    r.c.what = comm_desc_name(&w->call->desc);
    TRY(flight_add(j, w, &f));
    if (j->chains && j->latest_queue != NULL && j->latest_queue != q)
        TRY(j->lib->explain(j->lib->queue_wait(q, j->behind_latest), "order of calls"));
    TRY(record(j, f->begin, q, "event before a call"));
    if (r.c.parts != NULL || r.c.elems > 0) /* otherwise nothing moves and buffers may be NULL */
        TRY(native_ask(j, &r, &w->call->desc));
    TRY(record(j, f->end, q, "event after a call"));
    j->latest_queue = q;
    return j->chains ? record(j, j->behind_latest, q, "order of calls") : FSDP_OK;
}

static fsdp_status work_issue(void *args, int n_threads)
{
    const native_work *w = args;
    native_job *j = w->group->job;
    (void)n_threads;
    TRY(native_poll(j));
    fsdp_status status = work_put(j, w);
    return status == FSDP_OK ? FSDP_OK : native_fail(j);
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Compare the bytes that each peer sends with those that this rank expects. parts NULL: the call's
 * descriptor already gives all sizes. */
static fsdp_status lengths_compare(const comm_team *team, const comm_call *call,
                                   const comm_part *parts, const uint64_t *sent)
{
    for (int r = 0; parts != NULL && r < team->size; r++)
        if (r != team->rank)
            TRY(comm_desc_lengths(team, &call->desc, r, (int64_t)sent[r], parts[r].recv_bytes));
    return FSDP_OK;
}

/* Make a host call with the same descriptor, which the transport below compares between ranks. */
static fsdp_status compare(transport_group *talk, const comm_call *call, const comm_part *parts,
                           uint64_t *send, uint64_t *sent)
{
    comm_call as_host = *call;
    as_host.ticket = UINT64_MAX; /* no such ticket: nothing is recorded */
    as_host.more = false;
    comm_part *rows = transport_parts(talk);
    for (int r = 0; parts != NULL && r < talk->team->size; r++) {
        send[r] = parts[r].send_bytes;
        rows[r] = (comm_part){.send = &send[r],
                              .send_bytes = sizeof *send,
                              .recv = &sent[r],
                              .recv_bytes = sizeof *sent};
    }
    TRY(transport_pass(talk, NULL, &as_host, rows, NULL));
    return transport_agree(talk, lengths_compare(talk->team, call, parts, sent));
}

/* Called before a phase of a call is issued; compares the call before its first phase. */
static fsdp_status check(const transport_group *group, const comm_call *call,
                         const comm_part *parts)
{
    native_job *j = ((native_group *)group->state)->job;
    if (!j->checks || call->phase > 0)
        return FSDP_OK;
    size_t n = (size_t)group->team->size;
    uint64_t *send = calloc(2 * n, sizeof *send);
    if (send == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no memory to compare a call", j->api->name);
    device_host_call_begin();
    fsdp_status status = compare(transport_control(group->below), call, parts, send, send + n);
    device_host_call_end();
    free(send);
    return status == FSDP_OK ? FSDP_OK : native_fail(j);
}

static fsdp_status work_launch(transport_group *group, stream *s, const comm_call *call,
                               native_issue_fn issue, native_call c, touched *t)
{
    const native_work w = {group->state, s, call, issue, c};
    return touched_launch(
        t, s, call,
        (launch_config){.fn = work_issue, .args = &w, .args_bytes = sizeof w, .issues = true});
}

/* ---- collectives ----------------------------------------------------------------------------- */

static const native_api *api_of(const transport_group *group)
{
    return ((const native_group *)group->state)->job->api;
}

fsdp_status native_exchange(transport_group *group, stream *s, const comm_call *call,
                            const comm_part *parts, const comm_peer_read *v)
{
    (void)v;
    const comm_team *team = group->team;
    TRY(check(group, call, parts));
    touched t = touched_begin(team, NULL);
    touched_sent(&t, team, parts);
    touched_received(&t, team, parts);
    return work_launch(group, s, call, api_of(group)->exchange,
                       (native_call){.type = DTYPE_U8, .parts = parts}, &t);
}

fsdp_status native_all_gather(transport_group *group, stream *s, const comm_call *call, void *recv,
                              size_t slice_bytes)
{
    const comm_team *team = group->team;
    TRY(check(group, call, NULL));
    touched t = touched_begin(team, NULL);
    touched_add(&t, recv, slice_bytes * (size_t)team->size, true);
    return work_launch(group, s, call, api_of(group)->all_gather,
                       (native_call){.from = (const char *)recv + (size_t)team->rank * slice_bytes,
                                     .to = recv,
                                     .elems = slice_bytes,
                                     .type = DTYPE_U8},
                       &t);
}

fsdp_status native_all_reduce(transport_group *group, stream *s, const comm_call *call, void *buf,
                              size_t elems)
{
    TRY(check(group, call, NULL));
    touched t = touched_begin(group->team, NULL);
    touched_add(&t, buf, elems * dtype_bytes(DTYPE_I64), true);
    return work_launch(group, s, call, api_of(group)->all_reduce,
                       (native_call){.from = buf, .to = buf, .elems = elems, .type = DTYPE_I64},
                       &t);
}

/* ---- the library's own sums ------------------------------------------------------------------ */

fsdp_status native_add(transport_group *group, stream *s, const comm_call *call,
                       const comm_scatter *x, void *sum)
{
    size_t elem_bytes = dtype_bytes(x->acc->sum_dtype), elems = x->acc->elems;
    TRY(check(group, call, NULL));
    const char *send = (const char *)x->send + x->slices[0].begin * elem_bytes;
    touched t = touched_begin(group->team, NULL);
    touched_add(&t, send, elems * elem_bytes * (size_t)group->team->size, false);
    touched_add(&t, sum, elems * elem_bytes, true);
    return work_launch(
        group, s, call, api_of(group)->reduce_scatter,
        (native_call){.from = send, .to = sum, .elems = elems, .type = x->acc->sum_dtype}, &t);
}
