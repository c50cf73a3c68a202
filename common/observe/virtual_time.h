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
 * the same hosts share it in turns. A group of one rank moves nothing and takes no time. */
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

/* ---- costs of WORK -------------------------------------------------------------------------- */

typedef struct virtual_price {
    const char *name; /* of the item; NULL: of any other; the last entry of every table */
    double seconds;
} virtual_price;

/* virtual_work_price -- for work_s: a price per name. With {{NULL, 1}} and a link of latency 1 and
 * rate 0 every operation and every collective takes 1.
 *   self  a table of virtual_price */
double virtual_work_price(const void *self, int rank, const timeline_item *item);

/* A device, by published peaks. */
typedef struct virtual_device {
    const char *name;
    double flops_per_s, bytes_per_s; /* dense bf16 products; device memory */
    double peer_bytes_per_s;         /* to the devices of the same host, in one direction */
    double network_bytes_per_s;      /* to other hosts, in one direction */
    double reached;                  /* the share of flops_per_s and bytes_per_s that is reached */
} virtual_device;

/* virtual_device_h100 -- NVIDIA H100 SXM in an HGX host: 989.4 TFLOP/s and 3.35 TB/s (H100 data
 * sheet), NVLink 4 with 900 GB/s in both directions together, one 400 Gbit/s adapter per device.
 *   reached  the caller's assumption, in (0, 1] */
virtual_device virtual_device_h100(double reached);

/* virtual_work_roof -- for work_s: the longer of flops / peak and bytes / peak, over `reached`.
 *   self  a virtual_device */
double virtual_work_roof(const void *self, int rank, const timeline_item *item);
