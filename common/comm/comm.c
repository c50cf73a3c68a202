/* comm.c -- the collectives that move bytes.
 *
 *   transport_begin (number, recorder, statistics) -> own slice copied on the stream
 *   -> the transport on the stream
 *
 * Sums are in comm_sum.c; groups are made and closed in comm_group.c. source [MPI-4 §6] */
#include "common/comm/comm_impl.h"

fsdp_status comm_alloc(comm *c, stream *s, mem_category category, size_t bytes, const char *label,
                       void **out)
{
    if (!c->data->table->shares || !device_memory_is_host(c->team.dev))
        return device_alloc(s, category, bytes, label, out);
    return device_alloc_host(s, category, bytes, label, out);
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

fsdp_status comm_stream_create(device *d, const char *name, stream **out)
{
    return stream_create(d, &(stream_config){.name = name, .priority = 1}, out);
}

fsdp_status comm_gather_slices(comm *c, stream *s, const comm_call *call, const void *send,
                               void *recv, size_t slice_bytes)
{
    void *own = (char *)recv + (size_t)c->team.rank * slice_bytes;
    if (send != own && slice_bytes > 0)
        TRY(device_copy(s, own, send, slice_bytes));
    transport_group *g = c->data;
    if (g->table->all_gather != NULL)
        return g->table->all_gather(g, s, call, recv, slice_bytes);
    comm_part *parts = transport_parts(g);
    for (int r = 0; r < c->team.size; r++)
        parts[r] = (comm_part){.send = send,
                               .send_bytes = slice_bytes,
                               .recv = (char *)recv + (size_t)r * slice_bytes,
                               .recv_bytes = slice_bytes};
    return g->table->exchange(g, s, call, parts, NULL);
}

fsdp_status comm_all_gather(comm *c, stream *s, const char *label, dtype t, const void *send,
                            void *recv, size_t elems)
{
    size_t slice_bytes, total_bytes;
    TRY(size_mul(elems, dtype_bytes(t), "all-gather slice", &slice_bytes));
    TRY(size_mul(slice_bytes, (size_t)c->team.size, "all-gather buffer", &total_bytes));
    comm_issue i = {.op = COMM_OP_ALL_GATHER,
                    .type = t,
                    .label = label,
                    .elems = elems,
                    .agreed_elems = elems,
                    .sent_bytes = total_bytes - slice_bytes};
    comm_call call;
    TRY(transport_begin(c->data, s, &i, &call));
    return comm_gather_slices(c, s, &call, send, recv, slice_bytes);
}

/* The data of an all-to-all: send_elems[r] elements go to rank r, recv_elems[r] come from it. */
typedef struct comm_pairs {
    const void *send;
    const size_t *send_elems;
    void *recv;
    const size_t *recv_elems;
} comm_pairs;

/* The bytes of W slices, checked for overflow. */
static fsdp_status lengths_sum(const comm *c, const size_t *elems, dtype t, const char *what,
                               size_t *bytes)
{
    size_t sum = 0;
    for (int r = 0; r < c->team.size; r++) {
        if (__builtin_add_overflow(sum, elems[r], &sum))
            return fsdp_error(FSDP_EINVAL, "", "%s: the slices' lengths do not fit a size_t", what);
    }
    return size_mul(sum, dtype_bytes(t), what, bytes);
}

/* Issue either all-to-all. i has agreed_elems for equal slices, or a shape_hash that is not 0 for
 * all_to_allv. */
static fsdp_status all_to_all(comm *c, stream *s, comm_issue i, const comm_pairs *x)
{
    size_t elem_bytes = dtype_bytes(i.type), sent_bytes = 0, received_bytes = 0;
    size_t to_self = x->send_elems[c->team.rank], from_self = x->recv_elems[c->team.rank];
    TRY(lengths_sum(c, x->send_elems, i.type, "all-to-all send", &sent_bytes));
    TRY(lengths_sum(c, x->recv_elems, i.type, "all-to-all recv", &received_bytes));
    if (to_self != from_self)
        return fsdp_error(FSDP_EINVAL,
                          "a rank receives all that it sends to itself: pass equal lengths",
                          "all-to-all '%s': %zu elements sent to this rank, %zu received", i.label,
                          to_self, from_self);
    i.op = COMM_OP_ALL_TO_ALL;
    i.elems = i.shape_hash != 0 ? sent_bytes / elem_bytes : i.agreed_elems;
    i.sent_bytes = sent_bytes - to_self * elem_bytes;
    comm_call call;
    TRY(transport_begin(c->data, s, &i, &call));
    comm_part *parts = transport_parts(c->data);
    const char *from = x->send;
    char *to = x->recv;
    for (int r = 0; r < c->team.size; r++) {
        parts[r] = (comm_part){.send = from,
                               .send_bytes = x->send_elems[r] * elem_bytes,
                               .recv = to,
                               .recv_bytes = x->recv_elems[r] * elem_bytes};
        from += parts[r].send_bytes;
        to += parts[r].recv_bytes;
    }
    const comm_part *own = &parts[c->team.rank];
    if (own->send_bytes > 0)
        TRY(device_copy(s, own->recv, own->send, own->send_bytes));
    return c->data->table->exchange(c->data, s, &call, parts, NULL);
}

fsdp_status comm_all_to_all(comm *c, stream *s, const char *label, dtype t, const void *send,
                            void *recv, size_t elems)
{
    for (int r = 0; r < c->team.size; r++)
        c->lengths[r] = elems;
    return all_to_all(c, s, (comm_issue){.type = t, .label = label, .agreed_elems = elems},
                      &(comm_pairs){send, c->lengths, recv, c->lengths});
}

fsdp_status comm_all_to_allv(comm *c, stream *s, const char *label, dtype t, const void *send,
                             const size_t *send_elems, void *recv, const size_t *recv_elems)
{
    return all_to_all(c, s, (comm_issue){.type = t, .label = label, .shape_hash = 1},
                      &(comm_pairs){send, send_elems, recv, recv_elems});
}

fsdp_status comm_barrier(comm *c, stream *s, const char *label)
{
    comm_issue i = {.op = COMM_OP_BARRIER, .type = DTYPE_U8, .label = label};
    comm_call call;
    TRY(transport_begin(c->data, s, &i, &call));
    void *block; /* a byte received from each rank, then the byte this rank sends */
    TRY(device_alloc(s, MEM_COMM, (size_t)c->team.size + 1, "barrier", &block));
    char *tokens = block;
    comm_part *parts = transport_parts(c->data);
    for (int r = 0; r < c->team.size; r++)
        parts[r] = (comm_part){
            .send = tokens + c->team.size, .send_bytes = 1, .recv = tokens + r, .recv_bytes = 1};
    fsdp_status status = device_zero(s, tokens + c->team.size, 1);
    IF_OK(status, c->data->table->exchange(c->data, s, &call, parts, NULL));
    device_free(s, tokens);
    return status;
}
