/* profile_roof.c -- measures upper bounds of speed: a large matmul, in fp32 and in bf16, the
 * addition of large arrays, and copies. The fastest call counts, because disturbances only make
 * calls slower. Each array is a device block of its own, as in training: slices of one block, 32
 * MiB apart, would all begin at the same offset in a page, which can cost time (cpu_memory.c). If
 * the last-level cache holds all three arrays, the rate of the cache is measured. Larger arrays
 * would take too much memory, because every rank has its own. */
#include "common/ops/profile_roof.h"
#include "common/base/clock.h"
#include "common/device/device.h"

enum {
    ROOF_M = 768,
    ROOF_N = 768,
    ROOF_K = 768,
    ROOF_ELEMS = PROFILE_LARGE_COPY / sizeof(float),
    ROOF_MIN_CALLS = 3
};
/* x[ROOF_ON_HOST] is host memory, and NULL where device memory is the host's. */
enum { ROOF_ON_HOST = 3, ROOF_ARRAYS };
static const double ROOF_S = 0.1; /* time for each kind of call */
static const double ROOF_FLOPS = 2.0 * ROOF_M * ROOF_N * ROOF_K;

/* The kinds of calls, on x [ROOF_ARRAYS][ROOF_ELEMS]. Device arrays are zero, read as bf16 too. */
typedef enum roof_call {
    ROOF_ADD,
    ROOF_MATMUL,
    ROOF_MATMUL_BF16,
    ROOF_UPLOAD,
    ROOF_DOWNLOAD
} roof_call;

/* amount: bytes of a copy */
static fsdp_status run_call(const ops *o, stream *s, float *const *x, roof_call call, double amount)
{
    if (call == ROOF_UPLOAD)
        return device_copy(s, x[0], x[ROOF_ON_HOST], (size_t)amount);
    if (call == ROOF_DOWNLOAD)
        return device_copy(s, x[ROOF_ON_HOST], x[0], (size_t)amount);
    if (call == ROOF_ADD)
        return o->add(s, &(add_args){.out = x[0], .a = x[1], .b = x[2], .elems = ROOF_ELEMS});
    return o->matmul(s, &(matmul_args){.out = x[0],
                                       .a = x[1],
                                       .b = x[2],
                                       .m = ROOF_M,
                                       .n = ROOF_N,
                                       .k = ROOF_K,
                                       .type = call == ROOF_MATMUL ? DTYPE_F32 : DTYPE_BF16});
}

/* *rate = amount / seconds of the fastest call. A first call, to warm up, is not timed. */
static fsdp_status best_rate(const ops *o, stream *s, float *const *x, roof_call call,
                             double amount, double *rate)
{
    TRY(run_call(o, s, x, call, amount));
    TRY(stream_sync(s));
    double end_s = clock_now_s() + ROOF_S, best_s = 1e30;
    for (int n = 0; n < ROOF_MIN_CALLS || clock_now_s() < end_s; n++) {
        double begun_s = clock_now_s();
        TRY(run_call(o, s, x, call, amount));
        TRY(stream_sync(s));
        double took_s = clock_now_s() - begun_s;
        best_s = took_s < best_s ? took_s : best_s;
    }
    *rate = amount / best_s;
    return FSDP_OK;
}

virtual_link profile_copy_link(double small_s, double large_s)
{
    const double latency_s = small_s < large_s / 2 ? small_s : large_s / 2;
    return (virtual_link){.latency_s = latency_s,
                          .bytes_per_s =
                              (PROFILE_LARGE_COPY - PROFILE_SMALL_COPY) / (large_s - latency_s)};
}

static fsdp_status copy_rate(const ops *o, stream *s, float *const *x, roof_call call,
                             virtual_link *out)
{
    double small_rate, large_rate;
    TRY(best_rate(o, s, x, call, PROFILE_SMALL_COPY, &small_rate));
    TRY(best_rate(o, s, x, call, PROFILE_LARGE_COPY, &large_rate));
    *out = profile_copy_link(PROFILE_SMALL_COPY / small_rate, PROFILE_LARGE_COPY / large_rate);
    return FSDP_OK;
}

static fsdp_status all_rates(const ops *o, stream *s, float *const *x, bool with_bf16,
                             profile_roof *out)
{
    *out = (profile_roof){0};
    for (int i = 0; i < ROOF_ON_HOST; i++)
        TRY(device_zero(s, x[i], ROOF_ELEMS * sizeof *x[i]));
    TRY(best_rate(o, s, x, ROOF_ADD, 12.0 * ROOF_ELEMS, &out->bytes_per_s));
    TRY(best_rate(o, s, x, ROOF_MATMUL, ROOF_FLOPS, &out->flops_per_s));
    if (with_bf16)
        TRY(best_rate(o, s, x, ROOF_MATMUL_BF16, ROOF_FLOPS, &out->bf16_flops_per_s));
    if (!x[ROOF_ON_HOST])
        return FSDP_OK;
    TRY(copy_rate(o, s, x, ROOF_UPLOAD, &out->upload));
    return copy_rate(o, s, x, ROOF_DOWNLOAD, &out->download);
}

fsdp_status ops_profile_roof(const ops *o, stream *s, bool with_bf16, profile_roof *out)
{
    float *x[ROOF_ARRAYS] = {0};
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < ROOF_ON_HOST && status == FSDP_OK; i++)
        status = device_alloc_f32(s, MEM_OTHER, ROOF_ELEMS, "profile roof", &x[i]);
    if (status == FSDP_OK && !device_memory_is_host(stream_device(s)))
        status = device_alloc_host_f32(s, MEM_OTHER, ROOF_ELEMS, "profile roof", &x[ROOF_ON_HOST]);
    if (status == FSDP_OK)
        status = all_rates(o, s, x, with_bf16, out);
    for (int i = 0; i < ROOF_ARRAYS; i++)
        device_free(s, x[i]);
    if (status == FSDP_OK)
        status = stream_sync(s); /* so that the memory is free before the caller continues */
    return status;
}
