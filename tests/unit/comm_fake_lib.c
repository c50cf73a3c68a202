/* comm_fake_lib.c -- see comm_fake_lib.h.
 *
 * The transport passes every exchange on to the group below. The ranks of a new group tell each
 * other a number through its control group, as a library needs an identifier. */
#include "tests/unit/comm_fake_lib.h"
#include <stdlib.h>

fake_figures fake_count; /* not atomic: one thread issues calls */

/* Sends the number of rank 0 to every rank. */
static fsdp_status identify(transport_group *below)
{
    int32_t mine = 1000 + comm_world_rank(below->team, below->team->rank);
    void *all;
    TRY(transport_gather(transport_control(below), "fake: identifier", &mine, sizeof mine, &all));
    int32_t first = *(const int32_t *)all;
    free(all);
    if (first != 1000 + below->team->first)
        return fsdp_error(FSDP_ECOMM, "", "fake: got identifier %d", (int)first);
    return FSDP_OK;
}

static fsdp_status fake_open_over(transport_group *below, transport_group **out,
                                  const char **why_not)
{
    *why_not = NULL;
    TRY(identify(below));
    TRY(transport_group_new(&fake_transport, below->team, 0, out));
    fake_count.open_groups++;
    return FSDP_OK;
}

static fsdp_status fake_exchange(transport_group *group, stream *s, const comm_call *call,
                                 const comm_part *parts, const comm_peer_read *v)
{
    if (s == NULL) {
        fake_count.host_calls++;
        return fsdp_error(FSDP_ECOMM, "", "fake: %s: cannot move a host's memory",
                          call->desc.label);
    }
    fake_count.exchanges++;
    return transport_pass(group->below, s, call, parts, NULL);
}

static fsdp_status fake_failed(transport_group *group)
{
    return transport_failed(group->below);
}

static fsdp_status fake_split(transport_group *group, const comm_team *child, transport_group **out)
{
    transport_group *below = NULL;
    *out = NULL;
    TRY(group->below->table->split(group->below, child, &below));
    if (below == NULL)
        return FSDP_OK;
    fsdp_status status = identify(below);
    if (status == FSDP_OK)
        status = transport_group_new(&fake_transport, child, 0, out);
    if (status != FSDP_OK) {
        transport_group_close(below);
        return status;
    }
    (*out)->below = below;
    fake_count.splits++;
    fake_count.open_groups++;
    return FSDP_OK;
}

static bool fake_close(transport_group *group)
{
    fake_count.open_groups--;
    return true;
}

const comm_transport fake_transport = {.name = "fake",
                                       .moves = MOVES_BY_BRINGING,
                                       .open_over = fake_open_over,
                                       .exchange = fake_exchange,
                                       .failed = fake_failed,
                                       .split = fake_split,
                                       .close = fake_close};
