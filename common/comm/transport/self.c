/* self.c -- the transport of one rank: there is nobody to exchange with. The core copies what a
 * rank sends to itself, so every function here is trivial. */
#include "common/comm/comm_impl.h"
#include <stdlib.h>

static fsdp_status self_exchange(void *group, stream *s, const comm_call *call,
                                 const comm_part *parts)
{
    const comm *c = group;
    (void)s;
    (void)parts;
    comm_recorder_mark(c->recorder, call->ticket, COMM_DONE);
    return FSDP_OK;
}

static fsdp_status self_failed(void *group)
{
    (void)group;
    return FSDP_OK;
}

static fsdp_status self_split(void *group, int color, const comm *child, void **out)
{
    (void)group;
    (void)color;
    (void)child;
    *out = NULL;
    return FSDP_OK;
}

static void self_close(void *group)
{
    (void)group;
}

static void self_abort(void *group, int exit_code)
{
    (void)group;
    (void)exit_code; /* the core ends the process */
}

static const comm_transport self_transport = {.name = "self",
                                              .exchange = self_exchange,
                                              .failed = self_failed,
                                              .split = self_split,
                                              .close = self_close,
                                              .abort = self_abort};

void comm_self_use(comm *c)
{
    c->transport = &self_transport;
    c->group = c;
}

fsdp_status comm_self_open(comm *c)
{
    c->rank = 0;
    c->size = 1;
    c->local_rank = 0;
    c->local_size = 1;
    c->world_ranks = calloc(1, sizeof *c->world_ranks);
    if (c->world_ranks == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "comm_open: no memory for a group of one rank");
    comm_self_use(c);
    return FSDP_OK;
}
