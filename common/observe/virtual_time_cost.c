/* virtual_time_cost.c -- what a transfer and a piece of work cost; see virtual_time.h. */
#include <math.h>
#include <string.h>
#include "common/observe/virtual_time.h"

double virtual_link_s(virtual_link link, double bytes)
{
    return link.latency_s + (link.bytes_per_s > 0 ? bytes / link.bytes_per_s : 0.0);
}

double virtual_work_price(const void *self, int rank, const timeline_item *item)
{
    (void)rank;
    const virtual_price *p = self;
    while (p->name && strcmp(p->name, item->name) != 0)
        p++;
    return p->seconds;
}

virtual_device virtual_device_h100(double reached)
{
    return (virtual_device){.name = "H100 SXM",
                            .flops_per_s = 989.4e12,
                            .bytes_per_s = 3.35e12,
                            .peer_bytes_per_s = 450e9,
                            .network_bytes_per_s = 50e9,
                            .reached = reached};
}

double virtual_work_roof(const void *self, int rank, const timeline_item *item)
{
    (void)rank;
    const virtual_device *d = self;
    return fmax(item->flops / d->flops_per_s, item->bytes / d->bytes_per_s) / d->reached;
}
