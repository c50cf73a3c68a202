/* rates.c -- see rates.h. */
#include "trainer/rates.h"
#include <math.h>
#include <stdlib.h>
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/comm/comm.h"
#include "common/ops/profile_roof.h"

enum { SMALL_BYTES = 1 << 10, LARGE_BYTES = 4 << 20, GATHERS = 8 };

/* Time all-gathers in which every rank sends SMALL_BYTES, then LARGE_BYTES. *small_s and *large_s =
 * the shortest of GATHERS each. */
static fsdp_status time_gathers(const run_context *run, stream *s, char *buf, double *small_s,
                                double *large_s)
{
    const size_t w = (size_t)comm_size(run->world), rank = (size_t)comm_rank(run->world);
    *small_s = *large_s = 1e9;
    for (int i = 0; i < 2 * GATHERS; i++) {
        const size_t slice = (i < GATHERS ? SMALL_BYTES : LARGE_BYTES) / (w - 1);
        double *least_s = i < GATHERS ? small_s : large_s;
        TRY(comm_barrier(run->world, s, "calibrate"));
        TRY(stream_sync(s));
        double begun_s = clock_now_s();
        TRY(comm_all_gather(run->world, s, "calibrate", DTYPE_U8, buf + rank * slice, buf, slice));
        TRY(stream_sync(s));
        *least_s = fmin(*least_s, clock_now_s() - begun_s);
    }
    return FSDP_OK;
}

/* Measure seconds = latency + bytes / rate. A small all-gather gives the latency. */
static fsdp_status time_link(const run_context *run, stream *s, virtual_link *out)
{
    size_t w = (size_t)comm_size(run->world);
    double large_s;
    void *buf;
    *out = (virtual_link){0};
    if (w == 1)
        return FSDP_OK;
    fsdp_status status =
        comm_alloc(run->world, s, MEM_COMM, LARGE_BYTES / (w - 1) * w, "calibration", &buf);
    TRY(comm_agree(run->world, status));
    status = time_gathers(run, s, buf, &out->latency_s, &large_s);
    device_free(s, buf);
    TRY(status);
    /* if other programs slowed down every small all-gather, the rate is without the latency */
    out->bytes_per_s = large_s > out->latency_s
                           ? (LARGE_BYTES - SMALL_BYTES) / (large_s - out->latency_s)
                           : LARGE_BYTES / large_s;
    return FSDP_OK;
}

fsdp_status rates_measure(const run_context *run, virtual_device *machine, virtual_config *config)
{
    stream *s = device_compute_stream(run->dev);
    struct rates {
        profile_roof roof;
        virtual_link link;
    } rates;
    void *all;
    TRY(comm_agree(run->world,
                   ops_profile_roof(run->ops, s, run->param_dtype == DTYPE_BF16, &rates.roof)));
    TRY(time_link(run, s, &rates.link));
    TRY(comm_host_gather(run->world, "rates", &rates, sizeof rates, &all));
    rates = *(const struct rates *)all;
    free(all);
    const profile_roof *roof = &rates.roof;
    double flops = roof->bf16_flops_per_s > 0 ? roof->bf16_flops_per_s : roof->flops_per_s;
    *machine = (virtual_device){.f32_flops_per_s = flops,
                                .bf16_flops_per_s = flops,
                                .bytes_per_s = roof->bytes_per_s,
                                .reached = 1};
    config->link = rates.link;
    config->upload = roof->upload;
    config->download = roof->download;
    ledger_reset_peaks(device_ledger(run->dev)); /* report the run's peaks, not these */
    ledger_reset_peaks(device_host_ledger(run->dev));
    return FSDP_OK;
}
