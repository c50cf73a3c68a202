/* virtual_time.h -- compute what a schedule costs instead of measuring it: simulate the timelines
 * of some ranks of a job in virtual time.
 *
 *   timelines of a dry device -> virtual_time_run -> their times are virtual: timeline_next_step
 *
 * The result depends only on the input: equal input gives equal bits. The rules:
 *  - The host of a rank issues the items in the order of their indices, in no time. A SYNC blocks
 *    the host. With inline_compute the host itself runs the items of the stream "compute", so that
 *    an item after a matmul is issued when the matmul has ended; otherwise the host runs ahead.
 *  - A stream runs its items in order, each no earlier than it was issued. A RECORD takes no time;
 *    a WAIT lasts until its RECORD was reached. A WORK takes config->work_s; a copy between host
 *    and device (timeline_way) takes virtual_copy_s instead. All copies of one direction are
 *    assumed to be on one stream, so they do not contend for the link.
 *  - A collective is named by (group, seq) on all its ranks. It is ready when the last of its ranks
 *    that have a timeline has reached it. Then it waits for its turn on their links, moves data for
 *    virtual_collective_s, and ends on all of them at the same time. All other ranks of the job are
 *    assumed to do the same at the same time, so no rank waits for them. A group of one rank moves
 *    nothing and takes no time.
 *  - A link is serial and full-duplex. Collectives use it in the order in which they became ready;
 *    at equal times the lower group goes first, then the lower seq. No collective overtakes
 *    another, even if the other one still waits for the link of another rank.
 *
 * Links. If ranks_per_host = k > 0, ranks 0..k-1 are one host, k..2k-1 the next, and so on. A group
 * inside a host uses config->link of its ranks; a group over several hosts uses only host_link of
 * those hosts. A ring leaves and enters each host once, so the bytes of one rank pass a host's
 * link, however many ranks the group has there. The ranks of a group are equally far apart; its
 * first and last rank tell whether it is inside a host. Interleaved groups (0 8 16, 1 9 17, ...)
 * are assumed to take turns on a host's link, so each takes as long as all of them together. Each
 * rank with a timeline is assumed to be on a host of its own. */
#pragma once
#include <stdbool.h>
#include "common/device/work.h"
#include "common/observe/timeline.h"

typedef struct virtual_config {
    /* the seconds that a WORK of views[view] takes; at least 0 */
    double (*work_s)(const void *self, int view, const timeline_item *item);
    const void *self;
    virtual_link link, host_link;
    virtual_link upload, download; /* between the host and its device */
    int ranks_per_host;            /* 0: every rank is a host of its own with `link` */
    bool inline_compute;
} virtual_config;

/* virtual_time_run -- simulate timelines; virtual time begins at 0.
 *   views   [n_views] of different ranks of the job, complete (n_lost 0). issued_s, begin_s and
 *           end_s of all items are replaced; they are undefined after an error. begin_s of a
 *           collective is when its rank reaches it.
 *   costs   O(items * streams + collectives * (n_views * streams)^2)
 *   errors  FSDP_EINVAL: a timeline lost items; FSDP_EMISMATCH: some collectives can never begin
 *           (the message names their items); FSDP_ENOMEM */
fsdp_status virtual_time_run(const timeline_view *views, int n_views, const virtual_config *config);

/* virtual_collective_s -- the seconds that a collective holds its links; 0 in a group of one rank.
 * *over_hosts = whether it uses host_link. */
double virtual_collective_s(const virtual_config *config, const timeline_item *item,
                            bool *over_hosts);
/* virtual_copy_s -- the seconds that a copy between host and device takes. */
double virtual_copy_s(const virtual_config *config, const timeline_item *item);
/* virtual_group_stride -- the distance between neighbouring ranks in the group of a collective,
 * which must have at least 2 ranks. */
int virtual_group_stride(const timeline_item *item);

/* virtual_time_floor -- *floor_s = the least exposed communication of a step under any schedule:
 * the step takes at least this plus all its computation. Let G(i) be the time of the gathers that
 * computation i or an earlier one waits for, and R(k) the time of the reductions that wait for
 * computation k or a later one. Links are serial, so
 *
 *     step >= max over i <= k of  G(i) + (computations i to k) + R(k)     and  >= all collectives
 *
 * The bound is computed for links inside hosts and between hosts separately; the larger one counts.
 * Memory is assumed unlimited, and the host takes no time.
 *   first   index of the step's first item; the view ends with the step
 *   errors  FSDP_ENOMEM */
fsdp_status virtual_time_floor(const timeline_view *view, int64_t first,
                               const virtual_config *config, double *floor_s);

/* ---- devices -------------------------------------------------------------------------------- */

/* The published peaks of a device, and of the host in which it is usually sold. */
typedef struct virtual_device {
    const char *model;          /* "NVIDIA H100 SXM" */
    double f32_flops_per_s;     /* dense matrix products */
    double bf16_flops_per_s;    /* the same in bf16 */
    double bytes_per_s;         /* device memory bandwidth */
    double memory_bytes;        /* device memory capacity */
    double peer_bytes_per_s;    /* to devices of the same host, in one direction */
    double network_bytes_per_s; /* to other hosts, in one direction, per device */
    double host_bytes_per_s;    /* to and from host memory, in each direction; 0: not published */
    int per_host;               /* devices of a host */
    double reached;             /* the share of the peaks that work is assumed to reach */
    bool is_bf16;               /* matrix products are in bf16 */
} virtual_device;

/* Choices for an OPT_ENUM option; the option's value is a row of the table of devices. */
#define VIRTUAL_DEVICE_CHOICES "h100|a100|t4|910b"

/* virtual_device_of -- *out = row `number` of the table in virtual_time_cost.c, which names its
 * sources. Also set ranks_per_host and the links of *config: between devices of a host, between
 * hosts (shared by all devices of a host), and between a device and its host. */
void virtual_device_of(int number, virtual_device *out, virtual_config *config);

/* virtual_work_roof -- the seconds of a WORK on a device: the larger of flops / peak and bytes /
 * bandwidth, divided by `reached`. */
double virtual_work_roof(const virtual_device *d, const timeline_item *item);
