/* comm.c -- the collectives that move bytes, and what every collective begins with.
 *
 *   comm_call_begin (number, statistics, observer, recorder) -> own slice copied on the stream
 *   -> transport->exchange on the stream
 *
 * Sums are in comm_sum.c; groups are opened, split and closed in comm_group.c.  source [MPI-4 §6]
 */
#include "common/comm/comm_impl.h"
#include <stdlib.h>
#include <string.h>

fsdp_status comm_call_begin(comm *c, const comm_issue *i, comm_call *call)
{
    TRY(c->transport->failed(c->group));
    memset(call, 0, sizeof *call);
    comm_desc *d = &call->desc;
    d->seq = call->number = ++c->next_seq;
    d->op = (int32_t)i->op;
    d->dtype = (int32_t)i->type;
    d->elems = i->agreed_elems;
    d->shape_hash = i->shape_hash;
    d->root = i->root;
    d->label_hash = comm_hash(i->label, strlen(i->label));
    snprintf(d->label, sizeof d->label, "%s", i->label);
    call->ticket = comm_recorder_issue(c->recorder, d, c->size);
    if (i->op < COMM_OPS) {
        c->stats.calls[i->op]++;
        c->stats.bytes_sent[i->op] += i->sent_bytes;
        c->job_stats->calls[i->op]++;
        c->job_stats->bytes_sent[i->op] += i->sent_bytes;
        if (c->observer != NULL)
            c->observer(c->observer_self, i->op, i->label, i->elems);
    }
    return FSDP_OK;
}

fsdp_status comm_alloc(comm *c, stream *s, mem_category category, size_t bytes, const char *label,
                       void **out)
{
    if (!c->transport->shares)
        return device_alloc(s, category, bytes, label, out);
    return device_alloc_shared(s, category, bytes, label, out);
}

fsdp_status comm_alloc_f32(comm *c, stream *s, mem_category category, size_t elems,
                           const char *label, float **out)
{
    *out = NULL;
    size_t bytes = 0;
    TRY(size_mul(elems, sizeof(float), label, &bytes));
    void *ptr = NULL;
    TRY(comm_alloc(c, s, category, bytes, label, &ptr));
    *out = ptr;
    return FSDP_OK;
}

comm_part *comm_parts_cleared(comm *c)
{
    memset(c->parts, 0, (size_t)c->size * sizeof *c->parts);
    return c->parts;
}

/* Parts of a gather of equal slices: the same bytes to everyone, each peer's bytes to its place. */
static void gather_parts(const comm *c, comm_part *parts, const void *send, void *recv,
                         size_t slice_bytes)
{
    for (int r = 0; r < c->size; r++)
        parts[r] = (comm_part){.send = send,
                               .send_bytes = slice_bytes,
                               .recv = (char *)recv + (size_t)r * slice_bytes,
                               .recv_bytes = slice_bytes};
}

fsdp_status comm_all_gather(comm *c, stream *s, const char *label, dtype t, const void *send,
                            void *recv, size_t elems)
{
    size_t slice_bytes, total_bytes;
    TRY(size_mul(elems, dtype_bytes(t), "all-gather slice", &slice_bytes));
    TRY(size_mul(slice_bytes, (size_t)c->size, "all-gather buffer", &total_bytes));
    comm_issue i = {.op = COMM_OP_ALL_GATHER,
                    .type = t,
                    .label = label,
                    .elems = elems,
                    .agreed_elems = elems,
                    .sent_bytes = total_bytes - slice_bytes};
    comm_call call;
    TRY(comm_call_begin(c, &i, &call));
    comm_part *parts = comm_parts_cleared(c);
    gather_parts(c, parts, send, recv, slice_bytes);
    void *own = parts[c->rank].recv;
    if (send != own && slice_bytes > 0)
        TRY(device_copy(s, own, send, slice_bytes));
    if (c->hier != NULL)
        return comm_hier_all_gather(c, s, &call, recv, slice_bytes);
    return c->transport->exchange(c->group, s, &call, parts);
}

fsdp_status comm_host_gather(comm *c, const char *label, const void *send, void *recv, size_t bytes)
{
    comm_issue i = {
        .op = (comm_op)COMM_OP_HOST, .type = DTYPE_U8, .label = label, .agreed_elems = bytes};
    comm_call call;
    TRY(comm_call_begin(c, &i, &call));
    comm_part *parts = comm_parts_cleared(c);
    gather_parts(c, parts, send, recv, bytes);
    memcpy(parts[c->rank].recv, send, bytes);
    return c->transport->exchange(c->group, NULL, &call, parts);
}

fsdp_status comm_broadcast(comm *c, stream *s, const char *label, dtype t, void *buf, size_t elems,
                           int root)
{
    if (root < 0 || root >= c->size)
        return fsdp_error(FSDP_EINVAL, "root is a rank of the group",
                          "broadcast '%s': root is %d, the group has %d ranks", label, root,
                          c->size);
    size_t bytes, sent_bytes;
    TRY(size_mul(elems, dtype_bytes(t), "broadcast buffer", &bytes));
    TRY(size_mul(bytes, (size_t)(c->size - 1), "broadcast traffic", &sent_bytes));
    bool is_root = c->rank == root;
    comm_issue i = {.op = COMM_OP_BROADCAST,
                    .type = t,
                    .label = label,
                    .elems = elems,
                    .agreed_elems = elems,
                    .root = root,
                    .sent_bytes = is_root ? sent_bytes : 0};
    comm_call call;
    TRY(comm_call_begin(c, &i, &call));
    if (c->hier != NULL)
        return comm_hier_broadcast(c, s, &call, buf, bytes);
    comm_part *parts = comm_parts_cleared(c);
    for (int r = 0; is_root && r < c->size; r++)
        parts[r] = (comm_part){.send = buf, .send_bytes = bytes};
    if (!is_root)
        parts[root] = (comm_part){.recv = buf, .recv_bytes = bytes};
    return c->transport->exchange(c->group, s, &call, parts);
}

/* What an all-to-all moves: send_elems[r] elements to rank r, recv_elems[r] from it. */
typedef struct comm_pairs {
    const void *send;
    const size_t *send_elems;
    void *recv;
    const size_t *recv_elems;
} comm_pairs;

/* The body of both all-to-alls. */
static fsdp_status all_to_all(comm *c, stream *s, const comm_issue *i, const comm_pairs *x)
{
    size_t elem_bytes = dtype_bytes(i->type);
    size_t own = x->send_elems[c->rank] * elem_bytes;
    if (x->send_elems[c->rank] != x->recv_elems[c->rank])
        return fsdp_error(FSDP_EINVAL, "what a rank sends to itself it also receives",
                          "all-to-all '%s': %zu elements sent to this rank, %zu received", i->label,
                          x->send_elems[c->rank], x->recv_elems[c->rank]);
    comm_call call;
    TRY(comm_call_begin(c, i, &call));
    comm_part *parts = comm_parts_cleared(c);
    const char *from = x->send;
    char *to = x->recv;
    for (int r = 0; r < c->size; r++) {
        parts[r] = (comm_part){.send = from,
                               .send_bytes = x->send_elems[r] * elem_bytes,
                               .recv = to,
                               .recv_bytes = x->recv_elems[r] * elem_bytes};
        from += parts[r].send_bytes;
        to += parts[r].recv_bytes;
    }
    if (own > 0)
        TRY(device_copy(s, parts[c->rank].recv, parts[c->rank].send, own));
    return c->transport->exchange(c->group, s, &call, parts);
}

fsdp_status comm_all_to_all(comm *c, stream *s, const char *label, dtype t, const void *send,
                            void *recv, size_t elems)
{
    size_t total_elems, total_bytes;
    TRY(size_mul(elems, (size_t)c->size, "all-to-all buffer", &total_elems));
    TRY(size_mul(total_elems, dtype_bytes(t), "all-to-all buffer", &total_bytes));
    for (int r = 0; r < c->size; r++)
        c->lengths[r] = elems;
    comm_issue i = {.op = COMM_OP_ALL_TO_ALL,
                    .type = t,
                    .label = label,
                    .elems = elems,
                    .agreed_elems = elems,
                    .sent_bytes = total_bytes - elems * dtype_bytes(t)};
    return all_to_all(c, s, &i, &(comm_pairs){send, c->lengths, recv, c->lengths});
}

fsdp_status comm_lengths_sum(const comm *c, const size_t *elems, dtype t, const char *what,
                             size_t *total_elems, size_t *bytes)
{
    size_t sum = 0;
    for (int r = 0; r < c->size; r++) {
        if (__builtin_add_overflow(sum, elems[r], &sum))
            return fsdp_error(FSDP_EINVAL, "", "%s: the slices' lengths do not fit a size_t", what);
    }
    *total_elems = sum;
    return size_mul(sum, dtype_bytes(t), what, bytes);
}

fsdp_status comm_all_to_allv(comm *c, stream *s, const char *label, dtype t, const void *send,
                             const size_t *send_elems, void *recv, const size_t *recv_elems)
{
    size_t sent_elems = 0, sent_bytes = 0, received_elems = 0, received_bytes = 0;
    TRY(comm_lengths_sum(c, send_elems, t, "all-to-all send", &sent_elems, &sent_bytes));
    TRY(comm_lengths_sum(c, recv_elems, t, "all-to-all recv", &received_elems, &received_bytes));
    comm_issue i = {.op = COMM_OP_ALL_TO_ALL,
                    .type = t,
                    .label = label,
                    .elems = sent_elems,
                    .shape_hash = 1, /* tells it from the form with equal slices */
                    .sent_bytes = sent_bytes - send_elems[c->rank] * dtype_bytes(t)};
    return all_to_all(c, s, &i, &(comm_pairs){send, send_elems, recv, recv_elems});
}

fsdp_status comm_barrier(comm *c, stream *s, const char *label)
{
    comm_issue i = {.op = COMM_OP_BARRIER, .type = DTYPE_U8, .label = label};
    comm_call call;
    TRY(comm_call_begin(c, &i, &call));
    char *tokens; /* one byte from each rank, then the byte this rank sends */
    TRY(device_alloc(s, MEM_COMM, (size_t)c->size + 1, "barrier", (void **)&tokens));
    comm_part *parts = comm_parts_cleared(c);
    for (int r = 0; r < c->size; r++)
        parts[r] = (comm_part){
            .send = tokens + c->size, .send_bytes = 1, .recv = tokens + r, .recv_bytes = 1};
    fsdp_status status = device_zero(s, tokens + c->size, 1);
    if (status == FSDP_OK)
        status = c->transport->exchange(c->group, s, &call, parts);
    device_free(s, tokens);
    return status;
}
