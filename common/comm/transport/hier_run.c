/* hier_run.c -- the collectives that distinguish hosts; see hier.c.
 *
 *   reduce-scatter, all issued at once: sums inside the host (in `local`, reading peers' memory)
 *   -> in bf16 a rounded copy -> exchange between hosts -> pushes
 *
 * Each collective is a sequence of calls on the two groups of a hier_group, in the order of the
 * caller's stream. */
#include <string.h>
#include "common/base/bytes_copy.h"
#include "common/base/recycle.h"
#include "common/comm/transport/hier_impl.h"

/* The rank on `host` that has this rank's local rank. */
static int rank_on(const hier_group *h, int host)
{
    return host * h->team.size + h->team.rank;
}

/* ---- all-gather ------------------------------------------------------------------ */

/* Copy the slices that peers of the host received from other hosts. A peer shows the range from the
 * first to the last slice of its local rank; the other slices in that range are not read. */
typedef struct spread_args {
    char *recv;
    size_t slice_bytes;
    int hosts, host, ranks, local_rank;
} spread_args;

static int first_other_host(int host)
{
    return host == 0 ? 1 : 0;
}

static size_t slice_at(const spread_args *a, int host, int local_rank)
{
    return (size_t)(host * a->ranks + local_rank) * a->slice_bytes;
}

/* The slices of all ranks of hosts first ... last-1. */
static mem_access slices_of(const spread_args *a, int first, int last)
{
    return (mem_access){a->recv + slice_at(a, first, 0),
                        slice_at(a, last, 0) - slice_at(a, first, 0), true};
}

static fsdp_status spread_copy(const void *ctx, const void *const *from, int n_threads)
{
    const spread_args *a = ctx;
    int first = first_other_host(a->host);
    (void)n_threads;
    for (int d = 1; d < a->ranks && a->slice_bytes > 0; d++) {
        int local_rank = (a->local_rank + d) % a->ranks;
        const char *theirs = from[local_rank];
        for (int k = 0; k < a->hosts; k++)
            if (k != a->host)
                bytes_copy(a->recv + slice_at(a, k, local_rank),
                           theirs + (slice_at(a, k, local_rank) - slice_at(a, first, local_rank)),
                           a->slice_bytes);
    }
    return FSDP_OK;
}

static fsdp_status spread(hier_group *h, stream *s, const comm_call *call, char *recv,
                          size_t slice_bytes)
{
    spread_args a = {recv, slice_bytes, h->hosts, h->host, h->team.size, h->team.rank};
    int first = first_other_host(h->host), last = h->hosts - 1 - (h->host == h->hosts - 1);
    size_t bytes = slice_at(&a, last, 0) - slice_at(&a, first, 0) + slice_bytes;
    comm_part *parts = transport_parts(h->local);
    for (int p = 0; p < h->team.size; p++)
        parts[p] = (comm_part){.send = recv + slice_at(&a, first, h->team.rank),
                               .send_bytes = bytes,
                               .recv_bytes = bytes};
    const mem_access others[] = {slices_of(&a, 0, h->host), slices_of(&a, h->host + 1, h->hosts)};
    return transport_pass(h->local, s, call, parts,
                          &(comm_peer_read){.fn = spread_copy,
                                            .ctx = &a,
                                            .ctx_bytes = sizeof a,
                                            .accesses = others,
                                            .n_accesses = 2});
}

fsdp_status hier_all_gather(transport_group *group, stream *s, const comm_call *call, void *recv,
                            size_t slice_bytes)
{
    hier_group *h = group->state;
    char *to = recv;
    comm_part mine = {.send = to + (size_t)group->team->rank * slice_bytes,
                      .send_bytes = slice_bytes,
                      .recv_bytes = slice_bytes};
    comm_part *parts = transport_parts(h->local);
    for (int p = 0; p < h->team.size; p++) {
        parts[p] = mine;
        parts[p].recv = to + (size_t)(h->host * h->team.size + p) * slice_bytes;
    }
    TRY(transport_pass(h->local, s, call, parts, NULL)); /* here they also compare the call */
    parts = transport_parts(group->below);
    for (int k = 0; k < h->hosts; k++) {
        parts[rank_on(h, k)] = mine;
        parts[rank_on(h, k)].recv = to + (size_t)rank_on(h, k) * slice_bytes;
    }
    TRY(group->below->table->exchange(group->below, s, call, parts, NULL));
    return spread(h, s, call, to, slice_bytes);
}

/* ---- reduce-scatter ------------------------------------------------------------------------- */

/* log2 of a power of two, else -1. */
static int log2_of(int n)
{
    return (n & (n - 1)) == 0 ? __builtin_ctz((unsigned)n) : -1;
}

/* Whether a host's contributions may be added up and pushed as one node. In fast mode always;
 * otherwise if they are a whole subtree: a node of a larger level can only be pushed when no node
 * of a smaller level waits. The same on all ranks. */
static bool may_sum(const hier_group *h, const grad_acc *acc, int level)
{
    if (acc->mode == GRAD_ACC_FAST)
        return true;
    int raised = log2_of(h->team.size);
    if (raised < 0 || level + raised >= TREE_SUM_LEVELS)
        return false;
    for (int k = 0; k < level + raised; k++)
        if (acc->tree.slot[k] != NULL)
            return false;
    return true;
}

/* Runs in the task of the exchange, on the sums for all hosts. */
static fsdp_status sums_add(const void *ctx, const void *const *from, int n_threads)
{
    const hier_group *h = ctx;
    const int ranks = h->team.size;
    const void **in = recycle_get((size_t)ranks * sizeof *in);
    if (in == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a sum over %d ranks", ranks);
    fsdp_status status = FSDP_OK;
    for (int k = 0; k < h->hosts && status == FSDP_OK; k++) {
        const sum_run *run = &h->sum[k].run;
        for (int p = 0; p < ranks && run->elems > 0; p++)
            in[p] = (const char *)from[p] + h->sum[k].skip_bytes;
        if (run->elems > 0)
            status = sum_run_cpu(run, in, n_threads);
    }
    recycle_put(in);
    return status;
}

/* Begin the sums for the ranks with this local rank, one per host. The accumulators are empty, so
 * there are no surplus vectors. */
static fsdp_status sums_begin(transport_group *group, stream *s, const comm_scatter *x)
{
    hier_group *h = group->state;
    size_t elem_bytes = dtype_bytes(x->acc->sum_dtype);
    memset(h->sum, 0, (size_t)h->hosts * sizeof *h->sum);
    for (int k = 0; k < h->hosts; k++) {
        const comm_slice *to = &x->slices[rank_on(h, k)];
        hier_sum *sum = &h->sum[k];
        sum->skip_bytes = to->begin * elem_bytes;
        grad_acc_init(&sum->acc, x->acc->mode, x->acc->kernels, to->elems, MEM_COMM,
                      "sum of a host");
        sum->acc.sum_dtype = x->acc->sum_dtype;
        TRY(sum_run_begin(&sum->acc, s, 0, h->team.size, &sum->run));
    }
    return FSDP_OK;
}

/* First half: add up the contributions of this host's ranks to the ranks with this local rank. A
 * peer shows all of its send. */
static fsdp_status sums_run(transport_group *group, stream *s, const comm_call *call,
                            const comm_scatter *x)
{
    hier_group *h = group->state;
    comm_part *parts = transport_parts(h->local);
    size_t bytes = x->extent_elems * dtype_bytes(x->acc->sum_dtype);
    for (int p = 0; p < h->team.size; p++)
        parts[p] = (comm_part){.send = x->send, .send_bytes = bytes, .recv_bytes = bytes};
    mem_access *accesses = recycle_get((size_t)h->hosts * SUM_RUN_MAX_ACCESSES * sizeof *accesses);
    if (accesses == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for sums over %d hosts", h->hosts);
    comm_peer_read v = {.fn = sums_add,
                        .ctx = h,
                        .ctx_bytes = sizeof *h + (size_t)h->hosts * sizeof *h->sum,
                        .accesses = accesses};
    for (int k = 0; k < h->hosts; k++)
        v.n_accesses += sum_run_accesses(&h->sum[k].run, accesses + v.n_accesses);
    fsdp_status status = transport_pass(h->local, s, call, parts, &v);
    recycle_put(accesses);
    return status;
}

/* Make the data for the network: the sums themselves, or in bf16 a copy (exact, because the sums
 * are rounded). The sum of a host's contributions is one node, in slot run->top. */
static fsdp_status sums_round(transport_group *group, stream *s, const comm_scatter *x)
{
    hier_group *h = group->state;
    const grad_acc *acc = x->acc;
    for (int k = 0; k < h->hosts; k++) {
        const sum_run *run = &h->sum[k].run;
        const float *sum = run->after[run->top];
        if (acc->sum_dtype == DTYPE_F32 || run->elems == 0)
            continue;
        TRY(device_alloc(s, MEM_COMM, run->elems * dtype_bytes(acc->sum_dtype), "rounded sum",
                         &h->sum[k].rounded));
        TRY(acc->kernels->cast(s, &(cast_args){.out = h->sum[k].rounded,
                                               .in = sum,
                                               .out_type = DTYPE_BF16,
                                               .elems = run->elems}));
    }
    return FSDP_OK;
}

/* Second half: send each sum to its rank, and push the received sums in order of hosts. */
static fsdp_status sums_push(transport_group *group, stream *s, const comm_call *call,
                             const comm_scatter *x, const comm_sum *sum)
{
    hier_group *h = group->state;
    comm_part *parts = transport_parts(group->below);
    size_t elem_bytes = dtype_bytes(x->acc->sum_dtype);
    size_t own_bytes = x->slices[group->team->rank].elems * elem_bytes;
    for (int k = 0; k < h->hosts; k++) {
        const hier_sum *own = &h->sum[k];
        parts[rank_on(h, k)] =
            (comm_part){.send = own->rounded != NULL ? own->rounded : own->run.after[own->run.top],
                        .send_bytes = x->slices[rank_on(h, k)].elems * elem_bytes,
                        .recv_bytes = own_bytes};
    }
    return transport_sum(group->below, s, call, parts, sum);
}

fsdp_status hier_reduce_scatter(transport_group *group, stream *s, const comm_call *call,
                                const comm_scatter *x)
{
    hier_group *h = group->state;
    grad_acc *acc = x->acc;
    if (!may_sum(h, acc, x->level))
        return transport_scatter(group, s, call, x);
    comm_sum sum = {.kernels = acc->kernels, .first = h->team.rank, .step = h->team.size};
    fsdp_status status;
    GOTO_ON_FAIL(status, sums_begin(group, s, x), out);
    GOTO_ON_FAIL(status, sums_run(group, s, call, x), out);
    GOTO_ON_FAIL(status, sums_round(group, s, x), out);
    int level = acc->mode == GRAD_ACC_FAST ? x->level : x->level + log2_of(h->team.size);
    GOTO_ON_FAIL(status, sum_run_begin(acc, s, level, h->hosts, &sum.run), out);
    acc->n_pushed += group->team->size - h->hosts; /* n_pushed counts contributions */
    status = sums_push(group, s, call, x, &sum);
    sum_run_end(&sum.run, s);
out:
    for (int k = 0; k < h->hosts; k++) {
        grad_acc_free(&h->sum[k].acc, s);
        device_free(s, h->sum[k].rounded);
    }
    return status;
}
