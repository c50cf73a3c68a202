/* comm_pieces.c -- shards that are several pieces of an array: checks, and the all-gather.
 *
 *   peers' memory is read in place   each piece is copied directly to its place, in one task
 *   otherwise                        an all-gather of slices into an array in rank order
 *                                    -> each piece is copied to its place -> the array is freed
 *
 * The reduce-scatter of pieces is in comm_sum.c; transport_sum.c adds pieces in place. */
#include "common/base/bytes_copy.h"
#include "common/comm/comm_impl.h"

bool transport_shows(const transport_group *g)
{
    return g->table->peer_read && g->team->size > 1;
}

size_t pieces_extent(const comm_pieces *p)
{
    size_t extent = 0;
    for (size_t i = 0; i < p->n; i++) {
        const comm_piece *x = &p->list[i];
        if (x->elems > 0 && x->begin + x->elems > extent)
            extent = x->begin + x->elems;
    }
    return extent;
}

fsdp_status comm_pieces_begin(comm *c, const comm_pieces *p, comm_issue *i)
{
    const size_t elem_bytes = dtype_bytes(i->type);
    size_t total_elems, total_bytes, next = 0, end;
    TRY(size_mul(p->shard_elems, (size_t)c->team.size, "array in rank order", &total_elems));
    TRY(size_mul(total_elems, elem_bytes, "array in rank order", &total_bytes));
    for (size_t k = 0; k < p->n; k++) {
        const comm_piece *x = &p->list[k];
        const size_t in_shard = p->shard_elems > 0 ? x->at % p->shard_elems : 0;
        if (x->at < next || x->at >= total_elems || x->elems > p->shard_elems - in_shard ||
            __builtin_add_overflow(x->begin, x->elems, &end))
            return fsdp_error(FSDP_EINVAL, "pieces ascend, and each lies in one shard",
                              "'%s': piece %zu has %zu elements at %zu, shards have %zu of %zu",
                              i->label, k, x->elems, x->at, p->shard_elems, total_elems);
        next = x->at + x->elems;
    }
    i->elems = i->agreed_elems = p->shard_elems;
    i->shape_hash = hash_bytes(p->list, p->n * sizeof *p->list);
    i->sent_bytes = total_bytes - p->shard_elems * elem_bytes;
    return FSDP_OK;
}

/* ---- all-gather ----------------------------------------------------------------------------- */

typedef struct gather_args {
    char *recv;
    const comm_pieces *pieces;
    size_t elem_bytes;
    int rank;
} gather_args;

/* Runs in the task of the exchange. Each rank begins with its own pieces, so that not all ranks
 * read the same rank's memory at once. */
static fsdp_status gather_read(const void *ctx, const void *const *from, int n_threads)
{
    const gather_args *a = ctx;
    const comm_pieces *p = a->pieces;
    size_t first = 0;
    (void)n_threads;
    while (first < p->n && p->list[first].at < (size_t)a->rank * p->shard_elems)
        first++;
    for (size_t i = 0; i < p->n; i++) {
        const comm_piece *x = &p->list[(first + i) % p->n];
        bytes_copy(a->recv + x->begin * a->elem_bytes,
                   (const char *)from[x->at / p->shard_elems] +
                       x->at % p->shard_elems * a->elem_bytes,
                   x->elems * a->elem_bytes);
    }
    return FSDP_OK;
}

static fsdp_status gather_in_place(comm *c, stream *s, const comm_call *call, const void *send,
                                   const gather_args *a)
{
    const size_t bytes = a->pieces->shard_elems * a->elem_bytes;
    const mem_access all = {a->recv, pieces_extent(a->pieces) * a->elem_bytes, true};
    comm_part *parts = transport_parts(c->data);
    for (int r = 0; r < c->team.size; r++)
        parts[r] = (comm_part){.send = send, .send_bytes = bytes, .recv_bytes = bytes};
    return c->data->table->exchange(c->data, s, call, parts,
                                    &(comm_peer_read){.fn = gather_read,
                                                      .ctx = a,
                                                      .ctx_bytes = sizeof *a,
                                                      .accesses = &all,
                                                      .n_accesses = 1});
}

fsdp_status comm_all_gather_pieces(comm *c, stream *s, const char *label, dtype t, const void *send,
                                   void *recv, const comm_pieces *pieces)
{
    comm_issue i = {.op = COMM_OP_ALL_GATHER, .type = t, .label = label};
    const gather_args a = {recv, pieces, dtype_bytes(t), c->team.rank};
    TRY(comm_pieces_begin(c, pieces, &i));
    const size_t shard_bytes = i.elems * a.elem_bytes, bytes = shard_bytes * (size_t)c->team.size;
    comm_call call;
    TRY(transport_begin(c->data, s, &i, &call));
    if (transport_shows(c->data))
        return gather_in_place(c, s, &call, send, &a);
    void *ordered;
    TRY(comm_alloc(c, s, MEM_COMM, bytes, "array in rank order", &ordered));
    fsdp_status status = comm_gather_slices(c, s, &call, send, ordered, shard_bytes);
    for (size_t k = 0; k < pieces->n && status == FSDP_OK; k++) {
        const comm_piece *x = &pieces->list[k];
        status = device_copy(s, a.recv + x->begin * a.elem_bytes,
                             (const char *)ordered + x->at * a.elem_bytes, x->elems * a.elem_bytes);
    }
    device_free(s, ordered);
    return status;
}
