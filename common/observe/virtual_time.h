/* virtual_time.h -- what a schedule costs, computed instead of measured: the timelines of some
 * ranks of a job run in virtual time.
 *
 *   timelines of a dry device -> virtual_time_run -> their times are virtual: timeline_next_step
 *
 * The result depends on nothing but the input: equal input gives equal bits. The rules:
 *  - The host of a rank issues the items in the order of their indices, which takes no time. A SYNC
 *    holds it up. With inline_compute the host itself runs the items of the stream "compute", so
 *    what is issued after a matmul is issued when the matmul has run; without it the host runs
 *    ahead.
 *  - A stream runs its items in order, each no sooner than it was issued. A RECORD takes no time; a
 *    WAIT lasts until its RECORD was reached; a WORK costs what config->work_s says, and a copy
 *    between host and device (timeline_way) what its link does. The copies of a direction are
 *    taken to be on one stream.
 *  - A collective ((group, seq) names it on all its ranks) is ready when the last of its ranks that
 *    have a timeline has come to it. It then takes its turn on their links, moves for
 *    virtual_collective_s, and ends on all of them at the same time. All other ranks of the job are
 *    taken to do the same at the same time, so nobody waits for them. A group of one rank moves
 *    nothing and takes no time.
 *  - A link is serial and full-duplex. Collectives use it in the order in which they became ready
 *    (at the same moment: lower group, then lower seq, first). None overtakes another, not even
 *    while that one waits for a link of another rank.
 *
 * Links. With ranks_per_host = k > 0 ranks 0..k-1 are a host, k..2k-1 the next and so on. A group
 * inside a host uses config->link of its ranks, a group over several hosts uses only the links of
 * those hosts, host_link. As a ring leaves and enters each host once, the bytes of one rank pass a
 * host's link, however many ranks the group has there. The first and the last rank of a group tell
 * whether it is inside a host; neighbours in a group are equally far apart. Groups that lie between
 * each other (0 8 16, 1 9 17, ...) are all taken to use a host's link in turns, so each takes as
 * long as all of them. Ranks with a timeline are taken to be on hosts of their own. */
#pragma once
#include <stdbool.h>
#include "common/observe/timeline.h"

typedef struct virtual_link {
    double latency_s;
    double bytes_per_s; /* in each direction; 0: bytes take no time */
} virtual_link;

typedef struct virtual_config {
    /* seconds that a WORK of views[view] takes, from 0 */
    double (*work_s)(const void *self, int view, const timeline_item *item);
    const void *self;
    virtual_link link, host_link;
    virtual_link upload, download; /* between the host and its device */
    int ranks_per_host;            /* 0: every rank is a host of its own with `link` */
    bool inline_compute;
} virtual_config;

/* virtual_time_run -- run timelines in virtual time, which begins at 0.
 *   views   [n_views] each of another rank of the job, whole (n_lost 0). issued_s, begin_s and
 *           end_s of all items are replaced, and undefined after an error. A collective begins when
 *           its rank comes to it.
 *   costs   O(items * streams + collectives * (n_views * streams)^2)
 *   errors  FSDP_EINVAL a timeline that lost items; FSDP_EMISMATCH collectives that can never
 *           begin, with their items */
fsdp_status virtual_time_run(const timeline_view *views, int n_views, const virtual_config *config);

/* virtual_collective_s -- how long a collective moves bytes once it has its links; 0 in a group of
 * one rank. *over_hosts: it uses host_link. */
double virtual_collective_s(const virtual_config *config, const timeline_item *item,
                            bool *over_hosts);
/* virtual_copy_s -- how long a copy between host and device takes. */
double virtual_copy_s(const virtual_config *config, const timeline_item *item);
/* virtual_group_stride -- how far apart neighbours in the group of a collective are; the group has
 * several ranks. */
int virtual_group_stride(const timeline_item *item);

/* virtual_time_floor -- the least time that any schedule of a step leaves exposed: the step lasts
 * at least this plus all its computation. With G(i) the gathers that computation i, or one before
 * it, waits for, and R(k) the reductions that wait for computation k or a later one,
 *
 *     step >= max over i <= k of  G(i) + (computations i to k) + R(k)     and  >= all collectives
 *
 * because a link is serial; the links between hosts and inside one are looked at by themselves.
 * Memory is no limit here, and the host costs nothing.
 *   first   the step's first item; the view ends with the step
 *   errors  FSDP_ENOMEM */
fsdp_status virtual_time_floor(const timeline_view *view, int64_t first,
                               const virtual_config *config, double *floor_s);

/* ---- devices -------------------------------------------------------------------------------- */

/* A device by published peaks, in the host that it is usually sold in. */
typedef struct virtual_device {
    const char *model;          /* "NVIDIA H100 SXM" */
    double f32_flops_per_s;     /* products of matrices, dense */
    double bf16_flops_per_s;    /* the same in bf16 */
    double bytes_per_s;         /* device memory */
    double memory_bytes;        /* how much there is */
    double peer_bytes_per_s;    /* to devices of the same host, in one direction */
    double network_bytes_per_s; /* to other hosts, in one direction, per device */
    double host_bytes_per_s;    /* to and from memory of the host, each; 0: not published */
    int per_host;               /* devices of a host */
    double reached;             /* the share of peaks that is taken to be reached */
    bool is_bf16;               /* products are bf16 */
} virtual_device;

/* Choices for an OPT_ENUM option. The value of the option is the number of the row. */
#define VIRTUAL_DEVICE_CHOICES "h100|a100|t4|910b"

/* virtual_device_of -- fill in *out from row `number` of the table in virtual_time_cost.c, which
 * names its sources, and the links of *config: between a host's devices, between hosts, which all
 * devices of a host share, and between a device and its host. */
void virtual_device_of(int number, virtual_device *out, virtual_config *config);

/* virtual_work_roof -- what a WORK takes on a device: the longer of flops / peak and bytes / peak,
 * over `reached`. */
double virtual_work_roof(const virtual_device *d, const timeline_item *item);
