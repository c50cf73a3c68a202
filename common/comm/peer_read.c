/* peer_read.c -- reading what all ranks have for this one, on transports that can show it and
 * on those that can only bring it.
 *
 *   staging allocated on the stream -> transport->exchange -> fn on the stream -> staging freed */
#include "common/comm/comm_impl.h"
#include <string.h>
#include "common/base/recycle.h"

/* Arguments of fn behind an exchange: from [size], then ctx. */
typedef struct staged_args {
    fsdp_status (*fn)(const void *ctx, const void *const *from, int n_threads);
    int size;
    const void *from[];
} staged_args;

static fsdp_status staged_task(void *args, int n_threads)
{
    const staged_args *a = args;
    return a->fn(a->from + a->size, a->from, n_threads);
}

/* Issue fn over the staged parts. */
static fsdp_status staged_launch(comm *c, stream *s, const comm_part *parts,
                                 const comm_peer_read *v)
{
    size_t bytes = sizeof(staged_args) + (size_t)c->size * sizeof(void *) + v->ctx_bytes;
    staged_args *a = recycle_get(bytes);
    if (a == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a sum over %d ranks", c->size);
    a->fn = v->fn;
    a->size = c->size;
    for (int r = 0; r < c->size; r++)
        a->from[r] = r == c->rank ? parts[r].send : parts[r].recv;
    memcpy(a->from + c->size, v->ctx, v->ctx_bytes);
    fsdp_status status = stream_launch(s, staged_task, a, bytes);
    recycle_put(a);
    return status;
}

fsdp_status comm_peer_read_run(comm *c, stream *s, const comm_call *call, comm_part *parts,
                               size_t stage_bytes, const comm_peer_read *v)
{
    if (c->transport->peer_read != NULL && c->size > 1)
        return c->transport->peer_read(c->group, s, call, parts, v);
    char *staging = NULL, *next;
    if (c->size > 1)
        TRY(device_alloc(s, MEM_COMM, stage_bytes, "contributions", (void **)&staging));
    next = staging;
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank)
            continue;
        parts[r].recv = next;
        next += parts[r].recv_bytes;
    }
    fsdp_status status = c->transport->exchange(c->group, s, call, parts);
    if (status == FSDP_OK)
        status = staged_launch(c, s, parts, v);
    device_free(s, staging);
    return status;
}
