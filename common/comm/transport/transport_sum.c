/* transport_sum.c -- add all ranks' contributions to this rank. If the transport shows peers'
 * memory, they are read in place. Otherwise:
 *
 *   staging allocated on the stream -> table->exchange -> one launch that adds -> staging freed */
#include "common/base/recycle.h"
#include "common/comm/transport/transport_help.h"

/* Runs in the task of the exchange, on a device whose memory is the host's. */
static fsdp_status add_in_place(const void *ctx, const void *const *from, int n_threads)
{
    const comm_sum *x = ctx;
    return sum_run_cpu(&x->run, from + x->first, n_threads);
}

/* The same for a shard that is several pieces of the memory each rank shows. */
static fsdp_status add_pieces(const void *ctx, const void *const *from, int n_threads)
{
    const comm_sum *x = ctx;
    const size_t elem_bytes = dtype_bytes(x->run.sum_dtype);
    const comm_pieces *p = x->pieces;
    const void **in = recycle_get((size_t)x->run.n_in * sizeof *in);
    if (in == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a sum over %d ranks", x->run.n_in);
    fsdp_status status = FSDP_OK;
    for (size_t i = 0; i < p->n && status == FSDP_OK; i++) {
        const comm_piece *piece = &p->list[i];
        if (piece->at / p->shard_elems != (size_t)x->rank)
            continue;
        const sum_run part = sum_run_part(&x->run, piece->at % p->shard_elems, piece->elems);
        for (int r = 0; r < x->run.n_in; r++)
            in[r] = (const char *)from[r] + piece->begin * elem_bytes;
        status = sum_run_cpu(&part, in, n_threads);
    }
    recycle_put(in);
    return status;
}

static fsdp_status read_in_place(transport_group *g, stream *s, const comm_call *call,
                                 const comm_part *parts, const comm_sum *x)
{
    FSDP_ASSERT_EQ(x->step, 1); /* only hier_run.c passes larger steps, over mpi, which
                                   has no peer_read */
    mem_access accesses[SUM_RUN_MAX_ACCESSES];
    const size_t shown_elems = x->pieces ? pieces_extent(x->pieces) : 0;
    return g->table->exchange(
        g, s, call, parts,
        &(comm_peer_read){.fn = x->pieces ? add_pieces : add_in_place,
                          .shown_bytes = shown_elems * dtype_bytes(x->run.sum_dtype),
                          .ctx = x,
                          .ctx_bytes = sizeof *x,
                          .accesses = accesses,
                          .n_accesses = sum_run_accesses(&x->run, accesses)});
}

/* Launch the additions, after the exchange. */
static fsdp_status add_staged(const comm_team *team, stream *s, const comm_call *call,
                              const comm_part *parts, const comm_sum *x)
{
    const void **in = recycle_get((size_t)x->run.n_in * sizeof *in);
    if (in == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm: no memory for a sum over %d ranks", team->size);
    for (int i = 0; i < x->run.n_in; i++) {
        int r = x->first + i * x->step;
        in[i] = r == team->rank ? parts[r].send : parts[r].recv;
    }
    fsdp_status status =
        sum_run_launch(x->kernels, s, &x->run, in, comm_desc_name(&call->desc), call->desc.label);
    recycle_put(in);
    return status;
}

fsdp_status transport_sum(transport_group *g, stream *s, const comm_call *call, comm_part *parts,
                          const comm_sum *x)
{
    const comm_team *team = g->team;
    if (transport_shows(g))
        return read_in_place(g, s, call, parts, x);
    void *staging = NULL;
    size_t stage_bytes = 0;
    for (int r = 0; r < team->size; r++)
        stage_bytes += r != team->rank ? parts[r].recv_bytes : 0;
    if (team->size > 1)
        TRY(device_alloc(s, MEM_COMM, stage_bytes, "contributions", &staging));
    char *next = staging;
    for (int r = 0; r < team->size; r++) {
        if (r == team->rank)
            continue;
        parts[r].recv = next;
        next += parts[r].recv_bytes;
    }
    fsdp_status status = g->table->exchange(g, s, call, parts, NULL);
    IF_OK(status, add_staged(team, s, call, parts, x));
    device_free(s, staging);
    return status;
}

/* ---- reduce-scatter -------------------------------------------------------------------------- */

void transport_scatter_parts(const transport_group *g, comm_part *parts, const void *send,
                             const comm_slice *slices, size_t elem_bytes)
{
    size_t own_bytes = slices[g->team->rank].elems * elem_bytes;
    for (int r = 0; r < g->team->size; r++)
        parts[r] = (comm_part){.send = (const char *)send + slices[r].begin * elem_bytes,
                               .send_bytes = slices[r].elems * elem_bytes,
                               .recv_bytes = own_bytes};
}

/* Whether the slices are equal and lie side by side in rank order. */
static bool side_by_side(const comm_team *team, const comm_slice *slices)
{
    for (int r = 0; r < team->size; r++)
        if (slices[r].elems != slices[0].elems ||
            slices[r].begin != slices[0].begin + (size_t)r * slices[0].elems)
            return false;
    return true;
}

/* Let the transport add, and push its sum as one node. */
static fsdp_status scatter_whole(transport_group *g, stream *s, const comm_call *call,
                                 const comm_scatter *x)
{
    grad_acc *acc = x->acc;
    sum_run run;
    void *sum = NULL;
    TRY(sum_run_begin(acc, s, x->level, 1, &run));
    acc->n_pushed += g->team->size - 1; /* n_pushed counts contributions */
    fsdp_status status = device_alloc(s, MEM_COMM, acc->elems * dtype_bytes(acc->sum_dtype),
                                      "sum of all ranks", &sum);
    IF_OK(status, g->table->add(g, s, call, x, sum));
    if (status == FSDP_OK)
        status = sum_run_launch(acc->kernels, s, &run, (const void *const[]){sum},
                                comm_desc_name(&call->desc), call->desc.label);
    sum_run_end(&run, s);
    device_free(s, sum);
    return status;
}

fsdp_status transport_scatter(transport_group *g, stream *s, const comm_call *call,
                              const comm_scatter *x)
{
    /* in canonical mode a sum in the transport's order would have the wrong bits */
    if (g->table->add != NULL && x->acc->mode == GRAD_ACC_FAST && side_by_side(g->team, x->slices))
        return scatter_whole(g, s, call, x);
    const size_t elem_bytes = dtype_bytes(x->acc->sum_dtype);
    comm_sum sum = {
        .kernels = x->acc->kernels, .step = 1, .pieces = x->pieces, .rank = g->team->rank};
    TRY(sum_run_begin(x->acc, s, x->level, g->team->size, &sum.run));
    comm_part *parts = transport_parts(g);
    transport_scatter_parts(g, parts, x->send, x->slices, elem_bytes);
    for (int r = 0; x->pieces != NULL && r < g->team->size; r++)
        parts[r].send = x->send; /* each peer picks its pieces out itself */
    fsdp_status status = transport_sum(g, s, call, parts, &sum);
    sum_run_end(&sum.run, s);
    return status;
}
