/* self.c -- the transport of one rank: there is nobody to exchange with. The front copies what a
 * rank sends to itself, so every function here is trivial. */
#include "common/comm/transport_help.h"

static fsdp_status self_open(comm_team *team, transport_group **out)
{
    TRY(comm_team_fill(team, 0, 1, 0, 1));
    return transport_group_new(&self_transport, team, out);
}

static fsdp_status self_exchange(transport_group *group, stream *s, const comm_call *call,
                                 const comm_part *parts)
{
    (void)s;
    (void)parts;
    comm_recorder_mark(group->team->recorder, call->ticket, COMM_DONE);
    return FSDP_OK;
}

static fsdp_status self_failed(transport_group *group)
{
    (void)group;
    return FSDP_OK;
}

static fsdp_status self_split(transport_group *group, int color, const comm_team *child,
                              transport_group **out)
{
    (void)group;
    (void)color;
    (void)child;
    *out = NULL;
    return FSDP_OK;
}

static bool self_close(transport_group *group)
{
    (void)group;
    return true;
}

const comm_transport self_transport = {.name = "self",
                                       .carries_host = true,
                                       .open = self_open,
                                       .exchange = self_exchange,
                                       .failed = self_failed,
                                       .split = self_split,
                                       .close = self_close};
