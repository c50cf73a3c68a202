/* virtual_time_cost.c -- the costs of transfers and of work; see virtual_time.h. */
#include <math.h>
#include "common/simulate/virtual_time.h"

static double link_s(virtual_link link, double bytes)
{
    return link.latency_s + (link.bytes_per_s > 0 ? bytes / link.bytes_per_s : 0.0);
}

int virtual_group_stride(const timeline_item *item)
{
    return (item->last_rank - item->first_rank) / (item->group_ranks - 1);
}

double virtual_collective_s(const virtual_config *config, const timeline_item *item,
                            bool *over_hosts)
{
    const int k = config->ranks_per_host;
    *over_hosts = k > 0 && item->first_rank / k != item->last_rank / k;
    if (item->group_ranks < 2)
        return 0;
    if (!*over_hosts)
        return link_s(config->link, item->bytes);
    const int stride = virtual_group_stride(item);
    return link_s(config->host_link, item->bytes * (stride < k ? stride : k));
}

double virtual_copy_s(const virtual_config *config, const timeline_item *item)
{
    return link_s(item->way == TO_DEVICE ? config->upload : config->download, item->bytes);
}

/* ---- devices --------------------------------------------------------------------------------- */

/* The latencies and the shares of the peaks are assumptions, not published figures: a good training
 * program reaches half the peaks of products and memory, and 80% of the links. */
static const double REACHED = 0.5, NETWORK_REACHED = 0.8;
static const double PEER_LATENCY_S = 20e-6, NETWORK_LATENCY_S = 100e-6, COPY_LATENCY_S = 10e-6;

/* Sources: the data sheets "NVIDIA H100 Tensor Core GPU" (SXM; 900 GB/s of NVLink and
 * 128 GB/s of PCIe are both directions together; ConnectX-7, 400 Gbit/s), "NVIDIA A100" (80 GB SXM;
 * NVLink 600 GB/s, PCIe 64 GB/s; ConnectX-6, 200 Gbit/s) and "NVIDIA T4" (PCIe 32 GB/s both ways,
 * no bf16 in its tensor cores; a host of 4 with one adapter of 100 Gbit/s is assumed). Huawei has
 * published no data sheet of the 910B; these figures are from the press (about 320 TFLOP/s in 16
 * bits, a quarter of that in fp32, 64 GB at 1.6 TB/s; 7 HCCS links of 56 GB/s both ways; 200
 * Gbit/s). */
static const virtual_device DEVICES[] = {
    /* in the order of VIRTUAL_DEVICE_CHOICES */
    {"NVIDIA H100 SXM", 66.9e12, 989.4e12, 3.35e12, 80e9, 450e9, 50e9, 64e9, 8, 0, false},
    {"NVIDIA A100 SXM", 19.5e12, 312e12, 2.039e12, 80e9, 300e9, 25e9, 32e9, 8, 0, false},
    {"NVIDIA T4", 8.1e12, 8.1e12, 300e9, 16e9, 16e9, 3.125e9, 16e9, 4, 0, false},
    {"Ascend 910B", 80e12, 320e12, 1.6e12, 64e9, 196e9, 25e9, 0, 8, 0, false},
};

void virtual_device_of(int number, virtual_device *out, virtual_config *config)
{
    const virtual_device *d = &DEVICES[number];
    *out = *d;
    out->reached = REACHED;
    config->ranks_per_host = d->per_host;
    config->link = (virtual_link){PEER_LATENCY_S, NETWORK_REACHED * d->peer_bytes_per_s};
    config->host_link =
        (virtual_link){NETWORK_LATENCY_S, NETWORK_REACHED * d->per_host * d->network_bytes_per_s};
    config->upload = (virtual_link){COPY_LATENCY_S, NETWORK_REACHED * d->host_bytes_per_s};
    config->download = config->upload;
}

double virtual_work_roof(const virtual_device *d, const timeline_item *item)
{
    double peak = d->is_bf16 ? d->bf16_flops_per_s : d->f32_flops_per_s;
    return fmax(item->flops / peak, item->bytes / d->bytes_per_s) / d->reached;
}
