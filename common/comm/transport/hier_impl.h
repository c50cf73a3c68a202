/* hier_impl.h -- what the two halves of the hier transport share; internal.
 *
 * hier.c      the transport and its groups
 * hier_run.c  the collectives that know of hosts */
#pragma once
#include "common/comm/transport_help.h"

/* A host's sum for one rank. */
typedef struct hier_sum {
    grad_acc acc;
    sum_run run;
    size_t skip_bytes; /* where the rank's slice begins in what a peer shows */
    void *rounded;     /* what is sent of it when that is a copy, else NULL */
} hier_sum;

typedef struct hier_group {
    comm_team team;         /* of this host's L ranks */
    transport_group *local; /* shm between them */
    int hosts, host;        /* H and this one */

    hier_sum sum[]; /* [hosts] scratch of the reduce-scatter being issued: of the rank on each host
                       that has this local rank */
} hier_group;

/* hier_all_gather, hier_reduce_scatter -- the table's functions of these names: transport.h. */
fsdp_status hier_all_gather(transport_group *group, stream *s, const comm_call *call, void *recv,
                            size_t slice_bytes);
fsdp_status hier_reduce_scatter(transport_group *group, stream *s, const comm_call *call,
                                const comm_scatter *x);
