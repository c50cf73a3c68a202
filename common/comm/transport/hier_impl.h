/* hier_impl.h -- declarations that the two files of the hier transport share; internal.
 *
 * hier.c       the transport and its groups
 * hier_run.c   the collectives that distinguish hosts */
#pragma once
#include "common/comm/transport/transport_help.h"

/* A host's sum of its ranks' contributions to one rank. */
typedef struct hier_sum {
    grad_acc acc;
    sum_run run;
    size_t skip_bytes; /* where that rank's slice begins in the memory that a peer shows */
    void *rounded;     /* the bf16 copy that is sent in its place; else NULL */
} hier_sum;

typedef struct hier_group {
    comm_team team;         /* this host's L ranks */
    transport_group *local; /* shm between them */
    int hosts, host;        /* H and the number of this one */

    hier_sum sum[]; /* [hosts] scratch of the reduce-scatter being issued: the sum for the rank on
                       each host that has this rank's local rank */
} hier_group;

/* hier_all_gather, hier_reduce_scatter -- the functions of a comm_transport with these names. */
fsdp_status hier_all_gather(transport_group *group, stream *s, const comm_call *call, void *recv,
                            size_t slice_bytes);
fsdp_status hier_reduce_scatter(transport_group *group, stream *s, const comm_call *call,
                                const comm_scatter *x);
