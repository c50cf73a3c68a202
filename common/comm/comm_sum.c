/* comm_sum.c -- the collectives that add: reduce-scatter and all-reduce.
 *
 *   staging allocated on the stream -> transport->exchange -> sums on the stream -> staging freed
 *
 * A transport only moves bytes. Sums happen here, contribution by contribution in rank order, so
 * the bits are the same whatever moved them. This rank's own contribution is read where it is; only
 * the peers' are staged. */
#include "common/comm/comm_impl.h"
#include <string.h>

/* Parts that deliver slice r of `send` to rank r, and the peers' contributions to this rank's slice
 * into `staging`, one behind the other by rank, this rank's own left out.                        */
static void scatter_parts(const comm *c, comm_part *parts, const void *send, void *staging,
                          const size_t *lengths, size_t elem_bytes)
{
    const char *from = send;
    char *to = staging;
    size_t own_bytes = lengths[c->rank] * elem_bytes;
    for (int r = 0; r < c->size; r++) {
        size_t slice_bytes = lengths[r] * elem_bytes;
        parts[r] = (comm_part){.send = from, .send_bytes = slice_bytes};
        from += slice_bytes;
        if (r == c->rank)
            continue;
        parts[r].recv = to;
        parts[r].recv_bytes = own_bytes;
        to += own_bytes;
    }
}

/* Contribution of rank r to this rank's slice, after an exchange of scatter_parts. */
static const void *contribution(const comm *c, int r, const void *own, const void *staging,
                                size_t slice_bytes)
{
    if (r == c->rank)
        return own;
    return (const char *)staging + (size_t)(r < c->rank ? r : r - 1) * slice_bytes;
}

static fsdp_status push_contributions(comm *c, stream *s, const void *own, const void *staging,
                                      grad_acc *acc, int level)
{
    for (int r = 0; r < c->size; r++) {
        const void *vec = contribution(c, r, own, staging, acc->elems * sizeof(float));
        TRY(grad_acc_push(acc, s, level, vec));
    }
    return FSDP_OK;
}

static fsdp_status reduce_scatter(comm *c, stream *s, const comm_issue *i, const float *send,
                                  const size_t *lengths, grad_acc *acc, int level)
{
    size_t slice_elems = lengths[c->rank], own_offset = 0, staging_elems;
    if (acc->elems != slice_elems)
        return fsdp_error(FSDP_EINVAL, "grad_acc_init takes the elements of this rank's slice",
                          "reduce-scatter '%s': accumulator of %zu elements, slice of %zu",
                          i->label, acc->elems, slice_elems);
    for (int r = 0; r < c->rank; r++)
        own_offset += lengths[r];
    TRY(size_mul(slice_elems, (size_t)(c->size - 1), "reduce-scatter staging", &staging_elems));
    comm_call call;
    TRY(comm_call_begin(c, i, &call));
    float *staging = NULL;
    if (c->size > 1)
        TRY(device_alloc_f32(s, MEM_COMM, staging_elems, "reduce-scatter staging", &staging));
    comm_part *parts = comm_parts_cleared(c);
    scatter_parts(c, parts, send, staging, lengths, sizeof(float));
    fsdp_status status = c->transport->exchange(c->group, s, &call, parts);
    if (status == FSDP_OK)
        status = push_contributions(c, s, send + own_offset, staging, acc, level);
    device_free(s, staging);
    return status;
}

fsdp_status comm_reduce_scatter(comm *c, stream *s, const char *label, const float *send,
                                size_t elems, grad_acc *acc, int level)
{
    size_t total_elems, total_bytes;
    TRY(size_mul(elems, (size_t)c->size, "reduce-scatter buffer", &total_elems));
    TRY(size_mul(total_elems, sizeof(float), "reduce-scatter buffer", &total_bytes));
    for (int r = 0; r < c->size; r++)
        c->lengths[r] = elems;
    comm_issue i = {.op = COMM_OP_REDUCE_SCATTER,
                    .type = DTYPE_F32,
                    .label = label,
                    .elems = elems,
                    .agreed_elems = elems,
                    .sent_bytes = total_bytes - elems * sizeof(float)};
    return reduce_scatter(c, s, &i, send, c->lengths, acc, level);
}

fsdp_status comm_reduce_scatterv(comm *c, stream *s, const char *label, const float *send,
                                 const size_t *elems, grad_acc *acc, int level)
{
    size_t total_elems, total_bytes;
    TRY(comm_lengths_sum(c, elems, DTYPE_F32, "reduce-scatter buffer", &total_elems, &total_bytes));
    comm_issue i = {.op = COMM_OP_REDUCE_SCATTER,
                    .type = DTYPE_F32,
                    .label = label,
                    .elems = elems[c->rank],
                    .agreed_elems = total_elems,
                    .shape_hash = comm_hash(elems, (size_t)c->size * sizeof *elems),
                    .sent_bytes = total_bytes - elems[c->rank] * sizeof(float)};
    return reduce_scatter(c, s, &i, send, elems, acc, level);
}

/* ---- all-reduce ---------------------------------------------------------------------------- */

/* Arguments of the summing task. Contribution of rank r: `own` for this rank, else in staging. */
typedef struct sum_args {
    char *own;
    char *staging;
    size_t elems;
    int rank, size;
    dtype type;
} sum_args;

static void add_f32(float *left, const float *right, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        left[i] += right[i];
}

static void add_i64(uint64_t *left, const uint64_t *right, size_t elems)
{
    for (size_t i = 0; i < elems; i++) /* unsigned: wraps as two's complement does */
        left[i] += right[i];
}

static char *sum_vec(const sum_args *a, int r, size_t slice_bytes)
{
    if (r == a->rank)
        return a->own;
    return a->staging + (size_t)(r < a->rank ? r : r - 1) * slice_bytes;
}

/* The balanced tree of tree_sum.h over the ranks: stride 1, 2, 4 ...; a node without a right child
 * stays as it is. The root ends in rank 0's place.                                               */
static fsdp_status sum_contributions(void *args, int n_threads)
{
    const sum_args *a = args;
    (void)n_threads;
    size_t slice_bytes = a->elems * dtype_bytes(a->type);
    for (int stride = 1; stride < a->size; stride *= 2) {
        for (int r = 0; r + stride < a->size; r += 2 * stride) {
            void *left = sum_vec(a, r, slice_bytes);
            const void *right = sum_vec(a, r + stride, slice_bytes);
            if (a->type == DTYPE_F32)
                add_f32(left, right, a->elems);
            else
                add_i64(left, right, a->elems);
        }
    }
    if (a->rank != 0 && slice_bytes > 0)
        memcpy(a->own, sum_vec(a, 0, slice_bytes), slice_bytes);
    return FSDP_OK;
}

/* Slices of an all-reduce: the first elems % W ranks have one element more (n=10, W=4: 3,3,2,2). */
static size_t all_reduce_slices(const comm *c, size_t elems, size_t *lengths)
{
    size_t world = (size_t)c->size, own_offset = 0;
    for (size_t r = 0; r < world; r++) {
        lengths[r] = elems / world + (r < elems % world ? 1 : 0);
        if (r < (size_t)c->rank)
            own_offset += lengths[r];
    }
    return own_offset;
}

/* Second phase: everyone's summed slice to everyone, in place. */
static void slices_parts(const comm *c, comm_part *parts, char *buf, size_t own_offset_bytes,
                         const size_t *lengths, size_t elem_bytes)
{
    char *at = buf;
    for (int r = 0; r < c->size; r++) {
        parts[r] = (comm_part){.send = buf + own_offset_bytes,
                               .send_bytes = lengths[c->rank] * elem_bytes,
                               .recv = at,
                               .recv_bytes = lengths[r] * elem_bytes};
        at += parts[r].recv_bytes;
    }
}

static fsdp_status all_reduce_run(comm *c, stream *s, comm_call *call, const comm_issue *i,
                                  char *buf, size_t own_offset, char *staging)
{
    size_t elem_bytes = dtype_bytes(i->type);
    comm_part *parts = comm_parts_cleared(c);
    scatter_parts(c, parts, buf, staging, c->lengths, elem_bytes);
    TRY(c->transport->exchange(c->group, s, call, parts));
    sum_args sum = {.own = buf + own_offset * elem_bytes,
                    .staging = staging,
                    .elems = c->lengths[c->rank],
                    .rank = c->rank,
                    .size = c->size,
                    .type = i->type};
    TRY(stream_launch(s, sum_contributions, &sum, sizeof sum));
    slices_parts(c, parts, buf, own_offset * elem_bytes, c->lengths, elem_bytes);
    call->phase = 1;
    return c->transport->exchange(c->group, s, call, parts);
}

fsdp_status comm_all_reduce(comm *c, stream *s, const char *label, dtype t, void *buf, size_t elems)
{
    if (t != DTYPE_F32 && t != DTYPE_I64)
        return fsdp_error(FSDP_EINVAL, "sum in f32 or i64", "all-reduce '%s': no sums of %s", label,
                          dtype_name(t));
    size_t bytes;
    TRY(size_mul(elems, dtype_bytes(t), "all-reduce buffer", &bytes));
    size_t own_offset = all_reduce_slices(c, elems, c->lengths);
    size_t own_bytes = c->lengths[c->rank] * dtype_bytes(t);
    size_t staging_bytes = own_bytes * (size_t)(c->size - 1); /* <= bytes + W elements */
    comm_issue i = {.op = COMM_OP_ALL_REDUCE,
                    .type = t,
                    .label = label,
                    .elems = elems,
                    .agreed_elems = elems,
                    .sent_bytes = bytes - own_bytes + staging_bytes};
    comm_call call;
    TRY(comm_call_begin(c, &i, &call));
    if (c->size == 1)
        return c->transport->exchange(c->group, s, &call, comm_parts_cleared(c));
    void *staging;
    TRY(device_alloc(s, MEM_COMM, staging_bytes, "all-reduce staging", &staging));
    fsdp_status status = all_reduce_run(c, s, &call, &i, buf, own_offset, staging);
    device_free(s, staging);
    return status;
}
