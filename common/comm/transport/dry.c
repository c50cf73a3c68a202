/* dry.c -- the transport of a group in which one process plays one rank (comm_dry): no data moves,
 * and host calls behave as if all ranks passed the same.
 *
 *   open -> exchange, all_gather, ... (each is done when it is issued) / split -> close
 *
 * The memory that a call holds depends on the imitated transport, so there are three tables. */
#include <string.h>
#include "common/comm/transport/transport_help.h"

static const comm_transport dry_shows, dry_native;

static fsdp_status nothing(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    return FSDP_OK;
}

/* Finish a call, and tell a watch of the device what memory the call would access. */
static fsdp_status done(const transport_group *group, stream *s, const comm_call *call, touched *t)
{
    comm_recorder_mark(group->team->recorder, call->ticket, COMM_DONE);
    return touched_launch(t, s, call, (launch_config){.fn = nothing});
}

static fsdp_status dry_open(comm_team *team, transport_group **out)
{
    static const comm_transport *const tables[] = {[MOVES_BY_SHOWING] = &dry_shows,
                                                   [MOVES_BY_BRINGING] = &dry_transport,
                                                   [MOVES_NATIVELY] = &dry_native};
    const comm_dry *dry = &team->dry;
    FSDP_ASSERT(dry->size >= 1 && dry->rank >= 0 && dry->rank < dry->size);
    comm_team_fill(team, dry->rank, dry->size, dry->rank, dry->size);
    /* a single rank has no peers, so it needs no memory that they can read */
    return transport_group_new(dry->size == 1 ? &self_transport : tables[dry->moves], team, 0, out);
}

/* In host calls every peer's data is what this rank sends. */
static fsdp_status host_exchange(transport_group *group, const comm_call *call,
                                 const comm_part *parts)
{
    const int mine = group->team->rank;
    for (int r = 0; r < group->team->size; r++)
        if (r != mine && parts[r].recv_bytes == parts[mine].send_bytes)
            memcpy(parts[r].recv, parts[mine].send, parts[mine].send_bytes);
    comm_recorder_mark(group->team->recorder, call->ticket, COMM_DONE);
    return FSDP_OK;
}

static fsdp_status dry_exchange(transport_group *group, stream *s, const comm_call *call,
                                const comm_part *parts, const comm_peer_read *v)
{
    if (s == NULL)
        return host_exchange(group, call, parts);
    touched t = touched_begin(group->team, v);
    touched_sent(&t, group->team, parts);
    touched_received(&t, group->team, parts);
    return done(group, s, call, &t);
}

/* An all-gather or an all-reduce. */
static fsdp_status dry_whole(transport_group *group, stream *s, const comm_call *call, void *buf,
                             size_t n)
{
    touched t = touched_begin(group->team, NULL);
    touched_add(&t, buf, n, true);
    return done(group, s, call, &t);
}

static fsdp_status dry_add(transport_group *group, stream *s, const comm_call *call,
                           const comm_scatter *x, void *sum)
{
    touched t = touched_begin(group->team, NULL);
    touched_add(&t, x->send, 1, false);
    touched_add(&t, sum, 1, true);
    return done(group, s, call, &t);
}

static fsdp_status dry_split(transport_group *group, const comm_team *child, transport_group **out)
{
    return child->size > 1 ? transport_group_new(group->table, child, 0, out) : FSDP_OK;
}

#define DRY_CALLS                                                                                  \
    .name = "dry", .carries_host = true, .open = dry_open, .exchange = dry_exchange,               \
    .split = dry_split

const comm_transport dry_transport = {DRY_CALLS, .moves = MOVES_BY_BRINGING};
static const comm_transport dry_shows = {DRY_CALLS, .moves = MOVES_BY_SHOWING, .shares = true,
                                         .peer_read = true};
static const comm_transport dry_native = {DRY_CALLS, .moves = MOVES_NATIVELY,
                                          .all_gather = dry_whole, .add = dry_add,
                                          .all_reduce = dry_whole};
