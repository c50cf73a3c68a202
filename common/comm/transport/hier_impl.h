/* hier_impl.h -- what the two halves of the hier transport share; internal.
 *
 * hier.c      the transport and its groups
 * hier_run.c  the collectives that know of hosts */
#pragma once
#include "common/comm/comm_impl.h"

struct comm_hier {
    const comm_transport *net;
    void *net_group;
    comm *local;
    int hosts, host;       /* H and this one */
    int ranks, local_rank; /* L and this one's */
    bool opened;           /* by comm_open, not by a split */

    /* [hosts] scratch of the reduce-scatter being issued; entry k: of the sum for the rank on host
     * k that has this local rank */
    grad_acc *host_sum;
    const void **shown; /* what is sent of it */
    void **rounded;     /* that when it is a copy, else NULL */
};

/* comm_hier_rank -- the rank on a host that has this local rank. */
int comm_hier_rank(const comm_hier *h, int host);

/* Parts of a call. comm_hier_local: between the ranks of this host, parts [ranks]; v NULL: an
 * exchange. comm_hier_net: between all, parts [W]. comm_hier_meet: a local one that moves nothing,
 * for a call that has no other to begin with. */
fsdp_status comm_hier_local(comm_hier *h, stream *s, const comm_call *call, const comm_part *parts,
                            const comm_peer_read *v);
fsdp_status comm_hier_net(comm_hier *h, stream *s, const comm_call *call, const comm_part *parts);
fsdp_status comm_hier_meet(comm_hier *h, stream *s, const comm_call *call);
