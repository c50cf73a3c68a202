/* touched.c -- the launch of a call's task, and what it tells a watch of the device. */
#include <string.h>
#include "common/base/recycle.h"
#include "common/comm/transport_help.h"

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

fsdp_status touched_launch(touched *t, stream *s, const comm_call *call, launch_config l)
{
    if (t->list == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for the ranges of a call");
    l.name = comm_op_name((comm_op)call->desc.op);
    l.label = call->desc.label;
    l.on_host = !l.issues;
    l.accesses = t->list;
    l.n_accesses = t->n;
    fsdp_status status = stream_launch_work(s, &l);
    recycle_put(t->list);
    t->list = NULL;
    return status;
}
