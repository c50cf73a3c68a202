/* clock_offset.c -- see clock_offset.h. */
#include "common/observe/clock_offset.h"
#include <float.h>
#include <stdlib.h>
#include "common/base/clock.h"

enum { ROUNDS = 32, WORDS = 2 /* a clock_barrier is as large as two i64 */ };
_Static_assert(sizeof(clock_barrier) == WORDS * sizeof(int64_t), "collectives move it as i64");

void clock_range_narrow(clock_range *range, clock_barrier mine, clock_barrier rank_0)
{
    double least_s = rank_0.enter_s - mine.exit_s, most_s = rank_0.exit_s - mine.enter_s;
    range->least_s = least_s > range->least_s ? least_s : range->least_s;
    range->most_s = most_s < range->most_s ? most_s : range->most_s;
}

/* One barrier; all [W] on the device and `host` [W] become when the ranks were in it. */
static fsdp_status measure_once(comm *c, stream *s, clock_barrier *all, clock_barrier *host)
{
    const size_t rank = (size_t)comm_rank(c), world_size = (size_t)comm_size(c);
    clock_barrier mine = {.enter_s = clock_now_s()};
    TRY(comm_barrier(c, s, "clocks"));
    TRY(stream_sync(s));
    mine.exit_s = clock_now_s();
    TRY(device_upload(s, all + rank, &mine, sizeof mine));
    TRY(comm_all_gather(c, s, "clocks", DTYPE_I64, all + rank, all, WORDS));
    TRY(device_download(s, host, all, world_size * sizeof *host));
    return stream_sync(s);
}

fsdp_status clock_offset_measure(comm *c, stream *s, double *offset_s, double *bound_s)
{
    const size_t rank = (size_t)comm_rank(c), world_size = (size_t)comm_size(c);
    clock_barrier *host = calloc(world_size, sizeof *host);
    clock_range range = {-DBL_MAX, DBL_MAX};
    void *all = NULL;
    fsdp_status status = host
                             ? device_alloc(s, MEM_OTHER, world_size * sizeof *host, "clocks", &all)
                             : fsdp_error(FSDP_ENOMEM, "", "clocks: no host memory");
    for (int i = 0; i < ROUNDS && status == FSDP_OK; i++) {
        status = measure_once(c, s, all, host);
        if (status == FSDP_OK)
            clock_range_narrow(&range, host[rank], host[0]);
    }
    device_free(s, all);
    free(host);
    TRY(status);
    *offset_s = rank == 0 ? 0 : (range.least_s + range.most_s) / 2;
    *bound_s = rank == 0 ? 0 : (range.most_s - range.least_s) / 2;
    return FSDP_OK;
}
