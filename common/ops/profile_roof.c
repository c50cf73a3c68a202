/* profile_roof.c -- the two rates that nothing here can beat: a large matmul, and addition of
 * arrays that no cache holds. The best call counts: whatever disturbs one makes it slower, never
 * faster. */
#include "common/ops/ops_profiled.h"

enum { ROOF_M = 768, ROOF_N = 768, ROOF_K = 768, ROOF_ELEMS = 8 << 20, ROOF_MIN_CALLS = 3 };
static const double ROOF_S = 0.1; /* for each of the two */

static fsdp_status one_call(const ops *o, stream *s, float *x, bool multiply)
{
    float *out = x, *a = x + ROOF_ELEMS, *b = x + 2 * (size_t)ROOF_ELEMS;
    if (multiply)
        return o->matmul(
            s, &(matmul_args){.out = out, .a = a, .b = b, .m = ROOF_M, .n = ROOF_N, .k = ROOF_K});
    return o->add(s, &(add_args){.out = out, .a = a, .b = b, .elems = ROOF_ELEMS});
}

/* Seconds of the fastest call, one that is not timed before. */
static fsdp_status fastest_call(const ops *o, stream *s, float *x, bool multiply, double *best_s)
{
    TRY(one_call(o, s, x, multiply));
    TRY(stream_sync(s));
    double end_s = profile_now_s() + ROOF_S;
    *best_s = 1e30;
    for (int n = 0; n < ROOF_MIN_CALLS || profile_now_s() < end_s; n++) {
        double begun_s = profile_now_s();
        TRY(one_call(o, s, x, multiply));
        TRY(stream_sync(s));
        double took_s = profile_now_s() - begun_s;
        *best_s = took_s < *best_s ? took_s : *best_s;
    }
    return FSDP_OK;
}

fsdp_status ops_profile_roof(const ops *o, stream *s, profile_roof *out)
{
    float *x;
    double matmul_s = 0, add_s = 0;
    TRY(device_alloc_f32(s, MEM_OTHER, 3 * (size_t)ROOF_ELEMS, "profile roof", &x));
    fsdp_status status = device_zero(s, x, 3 * (size_t)ROOF_ELEMS * sizeof *x);
    if (status == FSDP_OK)
        status = fastest_call(o, s, x, false, &add_s);
    if (status == FSDP_OK)
        status = fastest_call(o, s, x, true, &matmul_s);
    device_free(s, x);
    if (status == FSDP_OK)
        status = stream_sync(s); /* given back before the caller goes on */
    if (status == FSDP_OK)
        *out = (profile_roof){.flops_per_s = 2.0 * ROOF_M * ROOF_N * ROOF_K / matmul_s,
                              .bytes_per_s = 12.0 * ROOF_ELEMS / add_s};
    return status;
}
