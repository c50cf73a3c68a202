/* virtual_time.h -- what a schedule costs, computed instead of measured: a discrete-event simulator
 * over the timelines of W ranks.
 *
 *   virtual_time_run(views, n_ranks, &config, &result) -> result.views, result.totals
 *   -> virtual_time_free
 *
 * The result depends on nothing but its input: equal input gives equal bits. The rules:
 *  - The host of a rank issues the items in the order of their indices; each costs host_issue_s. A
 *    SYNC holds it up. With inline_compute the host itself runs the compute stream's items, so what
 *    is issued behind a matmul is issued after it has run; without it the host runs ahead.
 *  - A stream runs its items in order, each no sooner than it was issued. A RECORD takes no time; a
 *    WAIT lasts until its RECORD was reached; a WORK costs what config->work_s says.
 *  - A collective ((group, seq) names it on all its ranks) is ready when its last rank has come to
 *    it. It then takes its turn on the links of all its ranks, lasts latency_s + bytes /
 *    bytes_per_s, and ends on all of them at the same time.
 *  - A link is serial and full-duplex. Collectives use it in the order in which they became ready
 *    (at the same moment: lower group, then lower seq, first). None overtakes another, not even
 *    while that one waits for a link of another rank.
 *
 * Links. Each rank has one, config->link. With ranks_per_host = k > 0 ranks 0..k-1 are a host,
 * k..2k-1 the next and so on: a group within a host uses its ranks' links, one over several hosts
 * uses only the links of those hosts, host_link. As a ring leaves and enters each host once, the
 * bytes of one rank pass a host's link, however many ranks the group has there; 8 groups over
 * the same hosts share it in turns. A group of one rank moves nothing and takes no time.
 *
 * Part of a job (config->is_part). The views belong to a few of the job's ranks. The other ranks
 * are taken to do the same at the same time, so nobody waits for them. Whether a group is inside a
 * host follows from its first and last rank; neighbours in a group are equally far apart. Groups
 * that lie between each other (0 8 16, 1 9 17, ...) are all taken to use a host's link in turns, so
 * each takes as long as all of them. */
#pragma once
#include <stdbool.h>
#include "common/observe/timeline.h"

typedef struct virtual_link {
    double latency_s;
    double bytes_per_s; /* in each direction; 0: bytes take no time */
} virtual_link;

typedef struct virtual_config {
    /* seconds that a WORK takes when nothing disturbs it; NULL: end_s - begin_s, as recorded */
    double (*work_s)(const void *self, int rank, const timeline_item *item);
    const void *self;
    virtual_link link, host_link;
    int ranks_per_host; /* 0: every rank is a host of its own with `link` */
    double host_issue_s;
    bool inline_compute;
    bool is_part; /* see above */
    /* The share of its speed, in [0, 1), that a rank's compute stream loses while a collective of
     * that rank is under way: where the cores that compute also copy. 0: they do not. */
    double steals;
    const char *compute; /* name of the compute stream; NULL: "compute" */
} virtual_config;

/* One step of one rank: the items from its STEP mark to the next one. What stands before the first
 * mark belongs to the first step; without marks all is one step.
 *
 * The compute stream always does one of four things, so from its end in the step before to its end
 * in this one are compute_s + exposed_s + waited_s + idle_s. */
typedef struct virtual_totals {
    uint64_t step; /* as its mark says */
    double begin_s, end_s;
    double compute_s;       /* WORK on the compute stream */
    double exposed_s;       /* it waited for a collective: a WAIT for a RECORD whose stream had one
                               before it, or a collective on the compute stream */
    double waited_s;        /* it waited for something else */
    double idle_s;          /* the host had not issued the next item yet */
    double communication_s; /* collectives of the rank, without their waits for peers or links */
    double sync_s;          /* the host waited in SYNCs */
} virtual_totals;

typedef struct virtual_result {
    int n_ranks;
    /* [n_ranks] the input in virtual time: issued_s, begin_s and end_s are replaced. A collective
     * begins when its rank comes to it. Names of streams are the input's. */
    timeline_view *views;
    double **moved_s; /* [n_ranks][n_items] when the collective's bytes began to move, else 0 */
    virtual_totals *totals; /* [n_ranks * n_steps], rank by rank */
    size_t n_steps;         /* most of any rank */
    double end_s;           /* of the last item of all */
    timeline_item *items;   /* of all ranks: what views point into */
    double *moved;          /* the same of moved_s */
} virtual_result;

/* virtual_time_run -- run W ranks' timelines in virtual time.
 *   views   [n_ranks] views[r] is world rank r, whole (n_lost 0)
 *   result  owned by the caller until virtual_time_free; empty after an error
 *   costs   O(items * log(ranks * streams + collectives))
 *   errors  FSDP_EINVAL an item or a cost that cannot be; FSDP_EMISMATCH collectives that can never
 *           begin, with their items; FSDP_ENOMEM */
fsdp_status virtual_time_run(const timeline_view *views, int n_ranks, const virtual_config *config,
                             virtual_result *result);
/* virtual_time_free -- a zeroed or freed result is accepted. */
void virtual_time_free(virtual_result *result);

/* virtual_link_s -- how long `bytes` take over an idle link. */
double virtual_link_s(virtual_link link, double bytes);
/* virtual_collective_s -- how long a collective moves bytes that has its links to itself, in part
 * of a job; 0 in a group of one rank. *over_hosts: it uses host_link. */
double virtual_collective_s(const virtual_config *config, const timeline_item *item,
                            bool *over_hosts);

/* virtual_time_floor -- the least time that any schedule of the last step of a view leaves exposed,
 * in part of a job: its own length is at least this plus all computation. With G(i) the gathers
 * that computation i, or one before it, waits for, and R(k) the reductions that wait for
 * computation k or a later one,
 *
 *     step >= max over i <= k of  G(i) + (computations i to k) + R(k)     and  >= all collectives
 *
 * because a link is serial; the links between hosts and inside one are looked at by themselves.
 * Memory is no limit here, and the host costs nothing.
 *   errors  FSDP_ENOMEM */
fsdp_status virtual_time_floor(const timeline_view *view, const virtual_config *config,
                               double *floor_s);

/* ---- costs of WORK -------------------------------------------------------------------------- */

typedef struct virtual_price {
    const char *name; /* of the item; NULL: of any other; the last entry of every table */
    double seconds;
} virtual_price;

/* virtual_work_price -- for work_s: a price per name. With {{NULL, 1}} and a link of latency 1 and
 * rate 0 every operation and every collective takes 1.
 *   self  a table of virtual_price */
double virtual_work_price(const void *self, int rank, const timeline_item *item);

/* A device by published peaks, in the host that it is usually sold in. */
typedef struct virtual_device {
    const char *name, *model;        /* "h100", "NVIDIA H100 SXM" */
    double f32_flops_per_s;          /* products of matrices, dense */
    double bf16_flops_per_s;         /* the same in bf16 */
    double bytes_per_s;              /* device memory */
    double memory_bytes;             /* how much there is */
    double peer_bytes_per_s;         /* to devices of the same host, in one direction */
    double network_bytes_per_s;      /* to other hosts, in one direction, per device */
    int per_host;                    /* devices of a host */
    double reached, network_reached; /* the share of peaks that is taken to be reached */
    bool is_bf16;                    /* products are bf16 */
} virtual_device;

/* virtual_device_named -- a row of the table in virtual_time_cost.c, which names its sources;
 * false: there is none of that name. */
bool virtual_device_named(const char *name, virtual_device *out);

/* virtual_device_links -- the links of *config: of a host's devices, and of hosts, which all
 * devices of the host share. */
void virtual_device_links(const virtual_device *d, virtual_config *config);

/* virtual_work_roof -- for work_s: the longer of flops / peak and bytes / peak, over `reached`.
 *   self  a virtual_device */
double virtual_work_roof(const void *self, int rank, const timeline_item *item);
