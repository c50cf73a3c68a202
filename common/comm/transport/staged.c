/* staged.c -- a host transport for a device whose memory the host cannot read.
 *
 *   open_over (a transport of host memory) -> exchange ... split ... -> close
 *
 *   exchange: the data this rank sends is copied from the device into a block of host memory -> the
 *   transport below moves it to the peers' blocks -> received data is copied to the device
 *
 * All of this is issued at once, in order of the caller's stream. The call gets its number in the
 * group below only when nothing before it can fail any more, because numbers have no gaps. The
 * block comes from device_alloc_host, so that shm can read peers' blocks in place.
 *
 * The data that a call sends lies in one array, and so does the data it receives. Parts that lie
 * side by side or overlap in the array form one piece: an all-gather sends the same slice to all
 * ranks, and it is copied once. Worked example, W=4, an all-gather of slices of 100 bytes in place
 * on rank 1: the block holds this rank's slice at 0, rank 0's at 128, and at 256 one piece of 200
 * bytes, the slices of ranks 2 and 3. */
#include <stdlib.h>
#include "common/comm/transport/transport_help.h"

enum { SENT, RECEIVED };
enum { PIECE_ALIGN_BYTES = 64 };

/* A range of bytes on the device, and its offset in the block. */
typedef struct piece {
    const char *at;
    size_t bytes, offset;
} piece;

/* Where the data of one direction of a call is in the block. */
typedef struct layout {
    piece *pieces;  /* [size] */
    size_t *offset; /* [size] of each rank's part in the block */
    int n_pieces;
} layout;

typedef struct staged_group {
    comm_transport table; /* this group's: has an all_gather if the table below has one */
    char name[32];
    layout sides[2];    /* SENT, RECEIVED; scratch of the call being issued */
    size_t block_bytes; /* size for both sides */
    piece pieces[];     /* both sides' pieces, then their offsets */
} staged_group;

/* ---- pieces --------------------------------------------------------------------------------- */

static const char *part_at(const comm_part *part, int side)
{
    return side == SENT ? part->send : part->recv;
}

static size_t part_bytes(const comm_part *part, int side)
{
    return side == SENT ? part->send_bytes : part->recv_bytes;
}

/* Append the parts of one direction to the block. Callers pass parts nearly in order of their
 * addresses; a part with a lower address becomes a piece of its own. */
static void lay_out(const transport_group *group, const comm_part *parts, int side)
{
    staged_group *g = group->state;
    layout *l = &g->sides[side];
    piece *p = NULL;
    l->n_pieces = 0;
    for (int r = 0; r < group->team->size; r++) {
        const char *at = part_at(&parts[r], side), *end = at + part_bytes(&parts[r], side);
        if (r == group->team->rank || at == end)
            continue;
        if (p == NULL || at < p->at || at > p->at + p->bytes) {
            p = &l->pieces[l->n_pieces++];
            *p = (piece){.at = at, .offset = size_round_up(g->block_bytes, PIECE_ALIGN_BYTES)};
        }
        if (end > p->at + p->bytes)
            p->bytes = (size_t)(end - p->at);
        l->offset[r] = p->offset + (size_t)(at - p->at);
        g->block_bytes = p->offset + p->bytes;
    }
}

static fsdp_status pieces_copy(const layout *l, stream *s, char *block, int side)
{
    for (int i = 0; i < l->n_pieces; i++) {
        const piece *p = &l->pieces[i];
        char *on_device = (char *)(uintptr_t)p->at, *on_host = block + p->offset;
        if (side == SENT)
            TRY(device_copy(s, on_host, on_device, p->bytes));
        else
            TRY(device_copy(s, on_device, on_host, p->bytes));
    }
    return FSDP_OK;
}

/* ---- collectives ---------------------------------------------------------------------------- */

static fsdp_status block_get(stream *s, size_t bytes, char **block)
{
    void *ptr = NULL;
    if (bytes > 0)
        TRY(device_alloc_host(s, MEM_COMM, bytes, "copy on the host", &ptr));
    *block = ptr;
    return FSDP_OK;
}

/* The parts of the call below. */
static const comm_part *host_parts(const transport_group *group, const comm_part *parts,
                                   char *block)
{
    const staged_group *g = group->state;
    comm_part *host = transport_parts(group->below);
    for (int r = 0; r < group->team->size; r++) {
        if (r == group->team->rank)
            continue;
        host[r].send_bytes = parts[r].send_bytes;
        host[r].recv_bytes = parts[r].recv_bytes;
        if (host[r].send_bytes > 0)
            host[r].send = block + g->sides[SENT].offset[r];
        if (host[r].recv_bytes > 0)
            host[r].recv = block + g->sides[RECEIVED].offset[r];
    }
    return host;
}

static fsdp_status staged_exchange(transport_group *group, stream *s, const comm_call *call,
                                   const comm_part *parts, const comm_peer_read *v)
{
    staged_group *g = group->state;
    char *block;
    (void)v;
    g->block_bytes = 0;
    lay_out(group, parts, SENT);
    lay_out(group, parts, RECEIVED);
    TRY(block_get(s, g->block_bytes, &block));
    fsdp_status status = pieces_copy(&g->sides[SENT], s, block, SENT);
    if (status == FSDP_OK) {
        comm_call below = transport_call_below(group, call);
        const comm_part *host = host_parts(group, parts, block);
        status = group->below->table->exchange(group->below, s, &below, host, NULL);
    }
    IF_OK(status, pieces_copy(&g->sides[RECEIVED], s, block, RECEIVED));
    device_free(s, block);
    return status;
}

static fsdp_status staged_all_gather(transport_group *group, stream *s, const comm_call *call,
                                     void *recv, size_t slice_bytes)
{
    size_t own = (size_t)group->team->rank * slice_bytes, behind = own + slice_bytes;
    size_t bytes = (size_t)group->team->size * slice_bytes;
    char *block, *to = recv;
    TRY(block_get(s, bytes, &block));
    fsdp_status status = device_copy(s, block + own, to + own, slice_bytes);
    if (status == FSDP_OK) {
        comm_call below = transport_call_below(group, call);
        status = group->below->table->all_gather(group->below, s, &below, block, slice_bytes);
    }
    IF_OK(status, device_copy(s, to, block, own));
    IF_OK(status, device_copy(s, to + behind, block + behind, bytes - behind));
    device_free(s, block);
    return status;
}

/* ---- groups --------------------------------------------------------------------------------- */

/* No stream's task uses this group: copies belong to the device, calls to the group below. */
static bool staged_close(transport_group *group)
{
    free(group->state);
    return true;
}

static fsdp_status staged_split(transport_group *group, const comm_team *child,
                                transport_group **out);

/* Make a group of *team over `below`; the new group owns it if there is no error. */
static fsdp_status staged_new(const comm_team *team, transport_group *below, transport_group **out)
{
    size_t size = (size_t)team->size, side_bytes = size * (sizeof(piece) + sizeof(size_t));
    TRY(transport_group_new(below->table, team, sizeof(staged_group) + 2 * side_bytes, out));
    staged_group *g = (*out)->state;
    for (int side = SENT; side <= RECEIVED; side++) {
        layout *l = &g->sides[side];
        l->pieces = g->pieces + (size_t)side * size;
        l->offset = (size_t *)(g->pieces + 2 * size) + (size_t)side * size;
    }
    snprintf(g->name, sizeof g->name, "%s+staged", below->table->name);
    g->table = (comm_transport){.name = g->name,
                                .moves = below->table->moves,
                                .exchange = staged_exchange,
                                .split = staged_split,
                                .close = staged_close};
    if (below->table->all_gather != NULL)
        g->table.all_gather = staged_all_gather;
    (*out)->table = &g->table;
    (*out)->below = below;
    return FSDP_OK;
}

static fsdp_status staged_split(transport_group *group, const comm_team *child,
                                transport_group **out)
{
    transport_group *below = NULL;
    TRY(group->below->table->split(group->below, child, &below));
    if (below == NULL)
        return FSDP_OK;
    fsdp_status status = staged_new(child, below, out);
    if (status != FSDP_OK)
        transport_group_close(below);
    return status;
}

static fsdp_status staged_open_over(transport_group *below, transport_group **out,
                                    const char **why_not)
{
    (void)why_not;
    return below->team->size > 1 ? staged_new(below->team, below, out) : FSDP_OK;
}

const comm_transport staged_transport = {.name = "staged", .open_over = staged_open_over};
