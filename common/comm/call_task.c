/* call_task.c -- run a call as a task of its stream, and list the memory that the task accesses for
 * a watch of the device. */
#include <string.h>
#include "common/base/recycle.h"
#include "common/comm/transport/transport_help.h"

/* ---- memory that a call accesses ------------------------------------------------------------ */

touched touched_begin(const comm_team *team, const comm_peer_read *v)
{
    size_t n = v != NULL ? (size_t)v->n_accesses : 0;
    touched t = {.list = recycle_get((2 * (size_t)team->size + 1 + n) * sizeof *t.list)};
    if (t.list != NULL && n > 0) {
        memcpy(t.list, v->accesses, n * sizeof *t.list);
        t.n = (int)n;
    }
    return t;
}

void touched_add(touched *t, const void *ptr, size_t bytes, bool writes)
{
    if (t->list == NULL || bytes == 0)
        return;
    mem_access *last = t->n > 0 ? &t->list[t->n - 1] : NULL;
    if (last != NULL && last->writes == writes && (const char *)last->ptr + last->bytes == ptr)
        last->bytes += bytes;
    else
        t->list[t->n++] = (mem_access){ptr, bytes, writes};
}

void touched_sent(touched *t, const comm_team *team, const comm_part *parts)
{
    for (int r = 0; r < team->size; r++)
        if (r != team->rank)
            touched_add(t, parts[r].send, parts[r].send_bytes, false);
}

void touched_received(touched *t, const comm_team *team, const comm_part *parts)
{
    for (int r = 0; r < team->size; r++)
        if (r != team->rank)
            touched_add(t, parts[r].recv, parts[r].recv_bytes, true);
}

fsdp_status touched_launch(touched *t, stream *s, const comm_call *call, launch_config l)
{
    if (t->list == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for the ranges of a call");
    l.name = comm_desc_name(&call->desc);
    l.label = call->desc.label;
    l.on_host = !l.issues;
    l.accesses = t->list;
    l.n_accesses = t->n;
    fsdp_status status = stream_launch_work(s, &l);
    recycle_put(t->list);
    t->list = NULL;
    return status;
}

/* ---- the task ------------------------------------------------------------------------------- */

/* Does not use the team after a failure: its group may be closed. If this fails in the issuer's
 * thread, the launch returns the error, and transport_task decrements n_unfinished instead. */
static fsdp_status task_run(void *args, int n_threads)
{
    const comm_task *t = args;
    transport_group *g = t->group;
    fsdp_status status = transport_failed(g);
    if (status == FSDP_OK) {
        comm_recorder *recorder = g->team->recorder;
        comm_recorder_mark(recorder, t->call.ticket, COMM_RUNNING);
        status = t->run(t, n_threads);
        comm_recorder_mark(recorder, t->call.ticket, status == FSDP_OK ? COMM_DONE : COMM_FAILED);
    }
    if (status == FSDP_OK || !pthread_equal(t->issuer, pthread_self()))
        atomic_fetch_sub(&g->n_unfinished, 1);
    return status;
}

static fsdp_status task_launch(stream *s, const comm_task *t, size_t bytes, const comm_peer_read *v)
{
    const comm_team *team = t->group->team;
    launch_config l = {
        .fn = task_run, .args = t, .args_bytes = bytes, .waits_for = WAITS_FOR_RANKS};
    if (t->only_waits) {
        l.accesses = TOUCHES_NOTHING;
        l.on_host = true;
        return stream_launch_work(s, &l);
    }
    touched x = touched_begin(team, v);
    if (t->shown != NULL)
        touched_add(&x, t->shown, t->shown_bytes, false);
    else
        touched_sent(&x, team, t->parts);
    const comm_part *own = &t->parts[team->rank];
    if (v != NULL) /* send_bytes of pieces count padding, which the array lacks */
        touched_add(&x, own->send, v->shown_bytes > 0 ? v->shown_bytes : own->send_bytes, false);
    else
        touched_received(&x, team, t->parts);
    return touched_launch(&x, s, &t->call, l);
}

fsdp_status transport_task(const comm_task *head, stream *s, const comm_part *parts,
                           const comm_peer_read *v)
{
    transport_group *g = head->group;
    size_t parts_bytes = (size_t)g->team->size * sizeof *parts, ctx_bytes = v ? v->ctx_bytes : 0;
    size_t bytes = sizeof(comm_task) + parts_bytes + ctx_bytes;
    comm_task *t = recycle_get(bytes);
    if (t == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for a call of %d ranks", g->table->name,
                          g->team->size);
    *t = *head;
    t->dev = s != NULL ? stream_device(s) : NULL;
    t->fn = v != NULL ? v->fn : NULL;
    t->issuer = pthread_self();
    memcpy(t->parts, parts, parts_bytes);
    if (ctx_bytes > 0)
        memcpy(t->parts + g->team->size, v->ctx, ctx_bytes);
    atomic_fetch_add(&g->n_unfinished, 1);
    fsdp_status status = s != NULL ? task_launch(s, t, bytes, v) : task_run(t, 1);
    if (status != FSDP_OK)
        atomic_fetch_sub(&g->n_unfinished, 1);
    recycle_put(t);
    return status;
}
