/* rates.c -- see rates.h. */
#include "trainer/rates.h"
#include <stdlib.h>
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/comm/comm.h"
#include "common/ops/profile_roof.h"

enum { SMALL_BYTES = 1 << 10, LARGE_BYTES = 4 << 20, GATHERS = 8 };

/* The shortest of GATHERS all-gathers in which every rank sends `bytes` in all. */
static fsdp_status time_gather(const run_context *run, stream *s, char *buf, size_t bytes,
                               double *seconds)
{
    size_t w = (size_t)comm_size(run->world), slice = bytes / (w - 1);
    *seconds = 1e9;
    for (int i = 0; i < GATHERS; i++) {
        TRY(comm_barrier(run->world, s, "calibrate"));
        TRY(stream_sync(s));
        double begun_s = clock_now_s();
        TRY(comm_all_gather(run->world, s, "calibrate", DTYPE_U8,
                            buf + (size_t)comm_rank(run->world) * slice, buf, slice));
        TRY(stream_sync(s));
        double now_s = clock_now_s() - begun_s;
        *seconds = now_s < *seconds ? now_s : *seconds;
    }
    return FSDP_OK;
}

/* seconds = latency + bytes / rate through two points. */
static fsdp_status time_link(const run_context *run, stream *s, virtual_link *out)
{
    size_t w = (size_t)comm_size(run->world);
    double small_s, large_s;
    void *buf;
    *out = (virtual_link){0};
    if (w == 1)
        return FSDP_OK;
    fsdp_status status =
        comm_alloc(run->world, s, MEM_COMM, LARGE_BYTES / (w - 1) * w, "calibration", &buf);
    TRY(comm_agree(run->world, status));
    status = time_gather(run, s, buf, SMALL_BYTES, &small_s);
    if (status == FSDP_OK)
        status = time_gather(run, s, buf, LARGE_BYTES, &large_s);
    device_free(s, buf);
    TRY(status);
    double slope = (large_s - small_s) / (LARGE_BYTES - SMALL_BYTES);
    out->bytes_per_s = slope > 0 ? 1 / slope : 0;
    out->latency_s = small_s;
    return FSDP_OK;
}

fsdp_status rates_measure(const run_context *run, virtual_device *machine, virtual_link *link)
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
    *machine = (virtual_device){.name = "this",
                                .f32_flops_per_s = flops,
                                .bf16_flops_per_s = flops,
                                .bytes_per_s = roof->bytes_per_s,
                                .reached = 1};
    *link = rates.link;
    ledger_reset_peaks(device_ledger(run->dev)); /* the run's peaks are reported, not these */
    return FSDP_OK;
}
