/* comm_sum.c -- the collectives that add: reduce-scatter and all-reduce.
 *
 *   sum_run_begin (when the call is issued) -> transport_sum -> the additions run on the stream,
 *   block by block, over all ranks' contributions to this rank's slice
 *
 * A transport only moves bytes or shows them. The sums are done here, contribution by contribution
 * in rank order, so the bits are the same on all transports. This rank's own contribution is read
 * in place. So are the peers', if the transport can show them; otherwise they are received into
 * staging (transport_sum.c). */
#include "common/comm/comm_impl.h"

/* Copy a piece of send to its place in `ordered`, rounded to the type of the sum. */
static fsdp_status piece_copy(stream *s, const comm_scatter *x, const comm_piece *piece,
                              char *ordered)
{
    const dtype t = x->acc->sum_dtype;
    const float *from = (const float *)x->send + piece->begin;
    void *to = ordered + piece->at * dtype_bytes(t);
    if (t == DTYPE_F32)
        return device_copy(s, to, from, piece->elems * sizeof *from);
    return x->acc->kernels->cast(
        s, &(cast_args){.out = to, .in = from, .out_type = t, .elems = piece->elems});
}

/* Set x->send to the memory that ranks read: send itself, or *copy, which the caller frees in order
 * of s. A copy is made to round to bf16. It is also made to put pieces into rank order (described
 * by x->slices), if ranks do not read their peers' memory. */
static fsdp_status copy_send(comm *c, stream *s, comm_scatter *x, void **copy)
{
    const bool orders = x->pieces != NULL && !transport_shows(c->data);
    const comm_piece whole = {.elems = x->extent_elems};
    const comm_pieces one = {.list = &whole, .n = 1}, *pieces = orders ? x->pieces : &one;
    const dtype t = x->acc->sum_dtype;
    *copy = NULL;
    if (t == DTYPE_F32 && !orders)
        return FSDP_OK;
    if (orders)
        x->extent_elems = pieces->shard_elems * (size_t)c->team.size;
    TRY(comm_alloc(c, s, MEM_COMM, x->extent_elems * dtype_bytes(t),
                   orders ? "gradient in rank order" : "rounded gradient", copy));
    fsdp_status status = FSDP_OK;
    for (size_t k = 0; k < pieces->n && status == FSDP_OK; k++)
        status = piece_copy(s, x, &pieces->list[k], *copy);
    if (status != FSDP_OK)
        device_free(s, *copy);
    x->send = *copy;
    x->pieces = orders ? NULL : x->pieces;
    return status;
}

/* Add up the elements of all slices, and find the end of the last one. */
static fsdp_status slices_sum(const comm *c, const char *label, const comm_slice *slices,
                              size_t *total_elems, size_t *extent_elems)
{
    size_t end, bytes;
    *total_elems = *extent_elems = 0;
    for (int r = 0; r < c->team.size; r++) {
        if (__builtin_add_overflow(slices[r].begin, slices[r].elems, &end) ||
            __builtin_add_overflow(*total_elems, slices[r].elems, total_elems))
            return fsdp_error(FSDP_EINVAL, "", "reduce-scatter '%s': slice %d ends beyond a size_t",
                              label, r);
        *extent_elems = end > *extent_elems ? end : *extent_elems;
    }
    return size_mul(*total_elems, sizeof(float), "reduce-scatter buffer", &bytes);
}

/* Run a reduce-scatter whose issue and scatter are filled in. */
static fsdp_status scatter_run(comm *c, stream *s, const comm_issue *i, comm_scatter *x)
{
    size_t staging_elems;
    if (x->acc->elems != i->elems)
        return fsdp_error(FSDP_EINVAL, "grad_acc_init takes the elements of this rank's slice",
                          "reduce-scatter '%s': accumulator of %zu elements, slice of %zu",
                          i->label, x->acc->elems, i->elems);
    TRY(size_mul(i->elems, (size_t)(c->team.size - 1), "reduce-scatter staging", &staging_elems));
    comm_call call;
    TRY(transport_begin(c->data, s, i, &call));
    void *copy;
    TRY(copy_send(c, s, x, &copy));
    fsdp_status (*own)(transport_group *, stream *, const comm_call *, const comm_scatter *) =
        c->data->table->reduce_scatter;
    fsdp_status status = (own != NULL ? own : transport_scatter)(c->data, s, &call, x);
    device_free(s, copy);
    return status;
}

/* Either reduce-scatter of slices. i.shape_hash is 0 for equal slices. */
static fsdp_status reduce_scatter(comm *c, stream *s, comm_issue i, comm_scatter x)
{
    size_t total_elems;
    TRY(slices_sum(c, i.label, x.slices, &total_elems, &x.extent_elems));
    i.op = COMM_OP_REDUCE_SCATTER;
    i.type = x.acc->sum_dtype;
    i.elems = x.slices[c->team.rank].elems;
    i.agreed_elems = i.shape_hash != 0 ? total_elems : i.elems;
    i.sent_bytes = (total_elems - i.elems) * dtype_bytes(i.type);
    return scatter_run(c, s, &i, &x);
}

/* Cut an array into c->slices: the first elems % W ranks get one element more (n=10, W=4:
 * 3,3,2,2). */
static void slices_cut(const comm *c, size_t elems)
{
    size_t world = (size_t)c->team.size, begin = 0;
    for (size_t r = 0; r < world; r++) {
        c->slices[r] =
            (comm_slice){.begin = begin, .elems = elems / world + (r < elems % world ? 1 : 0)};
        begin += c->slices[r].elems;
    }
}

fsdp_status comm_reduce_scatter(comm *c, stream *s, const char *label, const float *send,
                                size_t elems, grad_acc *acc, int level)
{
    size_t total_elems;
    TRY(size_mul(elems, (size_t)c->team.size, "reduce-scatter buffer", &total_elems));
    slices_cut(c, total_elems);
    return reduce_scatter(c, s, (comm_issue){.label = label},
                          (comm_scatter){send, c->slices, acc, level, 0, NULL});
}

fsdp_status comm_reduce_scatterv(comm *c, stream *s, const char *label, const float *send,
                                 const comm_slice *slices, grad_acc *acc, int level)
{
    uint64_t shape_hash = hash_bytes(slices, (size_t)c->team.size * sizeof *slices);
    return reduce_scatter(c, s, (comm_issue){.label = label, .shape_hash = shape_hash},
                          (comm_scatter){send, slices, acc, level, 0, NULL});
}

/* If ranks read their peers' memory, slices only give the length of the shards. Otherwise they are
 * the slices of the copy in rank order. */
fsdp_status comm_reduce_scatter_pieces(comm *c, stream *s, const char *label, const float *send,
                                       const comm_pieces *pieces, grad_acc *acc, int level)
{
    comm_issue i = {.op = COMM_OP_REDUCE_SCATTER, .type = acc->sum_dtype, .label = label};
    TRY(comm_pieces_begin(c, pieces, &i));
    i.agreed_elems = i.elems * (size_t)c->team.size;
    slices_cut(c, i.agreed_elems);
    return scatter_run(c, s, &i,
                       &(comm_scatter){send, c->slices, acc, level, pieces_extent(pieces), pieces});
}

/* ---- all-reduce ---------------------------------------------------------------------------- */

/* The parts of the second phase, which gathers every rank's summed slice on all ranks, in place. */
static void slices_parts(const comm *c, comm_part *parts, char *buf, size_t elem_bytes)
{
    const comm_slice own = c->slices[c->team.rank];
    for (int r = 0; r < c->team.size; r++)
        parts[r] = (comm_part){.send = buf + own.begin * elem_bytes,
                               .send_bytes = own.elems * elem_bytes,
                               .recv = buf + c->slices[r].begin * elem_bytes,
                               .recv_bytes = c->slices[r].elems * elem_bytes};
}

/* The first phase: this rank's slice of buf becomes the sum over all ranks, in place. */
static fsdp_status sum_own(comm *c, stream *s, const comm_call *call, dtype type, char *buf)
{
    const size_t elem_bytes = dtype_bytes(type);
    const comm_slice own = c->slices[c->team.rank];
    comm_part *parts = transport_parts(c->data);
    transport_scatter_parts(c->data, parts, buf, c->slices, elem_bytes);
    comm_sum sum = {.kernels = c->sums,
                    .run =
                        sum_run_root(buf + own.begin * elem_bytes, own.elems, c->team.size, type),
                    .step = 1};
    return transport_sum(c->data, s, call, parts, &sum);
}

fsdp_status comm_reduce_own(comm *c, stream *s, const char *label, float *buf, size_t elems)
{
    size_t bytes;
    comm_call call;
    TRY(size_mul(elems, (size_t)c->team.size * sizeof *buf, "reduce-scatter buffer", &bytes));
    const comm_issue i = {.op = COMM_OP_REDUCE_SCATTER,
                          .type = DTYPE_F32,
                          .label = label,
                          .elems = elems,
                          .agreed_elems = elems,
                          .sent_bytes = bytes - elems * sizeof *buf};
    slices_cut(c, elems * (size_t)c->team.size);
    TRY(transport_begin(c->data, s, &i, &call));
    if (c->team.size == 1)
        return c->data->table->exchange(c->data, s, &call, transport_parts(c->data), NULL);
    return sum_own(c, s, &call, DTYPE_F32, (char *)buf);
}

static fsdp_status all_reduce_run(comm *c, stream *s, comm_call *call, const comm_issue *i,
                                  char *buf)
{
    const size_t elem_bytes = dtype_bytes(i->type);
    call->more = true;
    TRY(sum_own(c, s, call, i->type, buf));
    comm_part *parts = transport_parts(c->data);
    slices_parts(c, parts, buf, elem_bytes);
    call->phase = 1;
    call->more = false;
    return c->data->table->exchange(c->data, s, call, parts, NULL);
}

fsdp_status comm_all_reduce(comm *c, stream *s, const char *label, dtype t, void *buf, size_t elems)
{
    if (t != DTYPE_F32 && t != DTYPE_I64)
        return fsdp_error(FSDP_EINVAL, "sum in f32 or i64", "all-reduce '%s': no sums of %s", label,
                          dtype_name(t));
    size_t bytes;
    TRY(size_mul(elems, dtype_bytes(t), "all-reduce buffer", &bytes));
    slices_cut(c, elems);
    size_t own_bytes = c->slices[c->team.rank].elems * dtype_bytes(t);
    size_t peers_bytes = own_bytes * (size_t)(c->team.size - 1); /* <= bytes + W elements */
    comm_issue i = {.op = COMM_OP_ALL_REDUCE,
                    .type = t,
                    .label = label,
                    .elems = elems,
                    .agreed_elems = elems,
                    .sent_bytes = bytes - own_bytes + peers_bytes};
    comm_call call;
    TRY(transport_begin(c->data, s, &i, &call));
    if (t == DTYPE_I64 && c->data->table->all_reduce != NULL)
        return c->data->table->all_reduce(c->data, s, &call, buf, elems);
    if (c->team.size == 1)
        return c->data->table->exchange(c->data, s, &call, transport_parts(c->data), NULL);
    return all_reduce_run(c, s, &call, &i, buf);
}
