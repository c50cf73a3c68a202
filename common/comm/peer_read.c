/* peer_read.c -- reading what all ranks have for this one, on transports that can show it and
 * on those that can only bring it.
 *
 *   staging allocated on the stream -> table->exchange -> fn on the stream -> staging freed */
#include <string.h>
#include "common/base/recycle.h"
#include "common/comm/transport_help.h"
#include "common/sum/sum_run.h"

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
static fsdp_status staged_launch(const comm_team *team, stream *s, const comm_call *call,
                                 const comm_part *parts, const comm_peer_read *v)
{
    size_t bytes = sizeof(staged_args) + (size_t)team->size * sizeof(void *) + v->ctx_bytes;
    staged_args *a = recycle_get(bytes);
    if (a == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a sum over %d ranks", team->size);
    touched t = touched_begin(team, v);
    a->fn = v->fn;
    a->size = team->size;
    for (int r = 0; r < team->size; r++) {
        bool own = r == team->rank;
        a->from[r] = own ? parts[r].send : parts[r].recv;
        touched_add(&t, a->from[r], own ? parts[r].send_bytes : parts[r].recv_bytes, false);
    }
    memcpy(a->from + team->size, v->ctx, v->ctx_bytes);
    fsdp_status status = touched_launch(
        &t, s, call, (launch_config){.fn = staged_task, .args = a, .args_bytes = bytes});
    recycle_put(a);
    return status;
}

fsdp_status transport_peer_read(transport_group *g, stream *s, const comm_call *call,
                                comm_part *parts, size_t stage_bytes, const comm_peer_read *v)
{
    const comm_team *team = g->team;
    if (g->table->peer_read != NULL && team->size > 1)
        return g->table->peer_read(g, s, call, parts, v);
    char *staging = NULL, *next;
    if (team->size > 1)
        TRY(device_alloc(s, MEM_COMM, stage_bytes, "contributions", (void **)&staging));
    next = staging;
    for (int r = 0; r < team->size; r++) {
        if (r == team->rank)
            continue;
        parts[r].recv = next;
        next += parts[r].recv_bytes;
    }
    fsdp_status status = g->table->exchange(g, s, call, parts);
    if (status == FSDP_OK)
        status = staged_launch(team, s, call, parts, v);
    device_free(s, staging);
    return status;
}

/* ---- the plain reduce-scatter --------------------------------------------------------------- */

size_t transport_scatter_parts(const transport_group *g, comm_part *parts, const void *send,
                               const comm_slice *slices, size_t elem_bytes)
{
    size_t own_bytes = slices[g->team->rank].elems * elem_bytes;
    for (int r = 0; r < g->team->size; r++)
        parts[r] = (comm_part){.send = (const char *)send + slices[r].begin * elem_bytes,
                               .send_bytes = slices[r].elems * elem_bytes,
                               .recv_bytes = own_bytes};
    return own_bytes * (size_t)(g->team->size - 1);
}

static fsdp_status push_all(const void *ctx, const void *const *from, int n_threads)
{
    const sum_run *run = ctx;
    return run->kernels->run(run, from, n_threads);
}

fsdp_status transport_scatter(transport_group *g, stream *s, const comm_call *call,
                              const comm_scatter *x)
{
    sum_run run;
    TRY(sum_run_begin(x->acc, s, x->level, g->team->size, &run));
    comm_part *parts = transport_parts(g);
    size_t stage_bytes =
        transport_scatter_parts(g, parts, x->send, x->slices, dtype_bytes(x->acc->sum_dtype));
    mem_access accesses[SUM_RUN_MAX_ACCESSES];
    comm_peer_read v = {.fn = push_all,
                        .ctx = &run,
                        .ctx_bytes = sizeof run,
                        .accesses = accesses,
                        .n_accesses = sum_run_accesses(&run, accesses)};
    fsdp_status status = transport_peer_read(g, s, call, parts, stage_bytes, &v);
    sum_run_end(&run, s);
    return status;
}
