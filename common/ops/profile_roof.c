/* profile_roof.c -- the rates that nothing here can beat: a large matmul, in fp32 and in bf16, and
 * addition of arrays that no cache holds. The best call counts: whatever disturbs one makes it
 * slower, never faster. */
#include "common/ops/ops_profiled.h"

enum { ROOF_M = 768, ROOF_N = 768, ROOF_K = 768, ROOF_ELEMS = 8 << 20, ROOF_MIN_CALLS = 3 };
static const double ROOF_S = 0.1; /* for each of them */
static const double ROOF_FLOPS = 2.0 * ROOF_M * ROOF_N * ROOF_K;

/* One of the calls; x [3][ROOF_ELEMS], zeros, which are 0 in bf16 too. */
typedef fsdp_status (*roof_fn)(const ops *o, stream *s, float *x);

static fsdp_status call_add(const ops *o, stream *s, float *x)
{
    return o->add(s, &(add_args){.out = x,
                                 .a = x + ROOF_ELEMS,
                                 .b = x + 2 * (size_t)ROOF_ELEMS,
                                 .elems = ROOF_ELEMS});
}

static fsdp_status call_product(const ops *o, stream *s, float *x, dtype type)
{
    return o->matmul(s, &(matmul_args){.out = x,
                                       .a = x + ROOF_ELEMS,
                                       .b = x + 2 * (size_t)ROOF_ELEMS,
                                       .m = ROOF_M,
                                       .n = ROOF_N,
                                       .k = ROOF_K,
                                       .a_type = type,
                                       .b_type = type,
                                       .compute = type});
}

static fsdp_status call_matmul(const ops *o, stream *s, float *x)
{
    return call_product(o, s, x, DTYPE_F32);
}

static fsdp_status call_matmul_bf16(const ops *o, stream *s, float *x)
{
    return call_product(o, s, x, DTYPE_BF16);
}

/* *rate: `amount` by the fastest call; one before is not timed. */
static fsdp_status best_rate(const ops *o, stream *s, float *x, roof_fn call, double amount,
                             double *rate)
{
    TRY(call(o, s, x));
    TRY(stream_sync(s));
    double end_s = profile_now_s() + ROOF_S, best_s = 1e30;
    for (int n = 0; n < ROOF_MIN_CALLS || profile_now_s() < end_s; n++) {
        double begun_s = profile_now_s();
        TRY(call(o, s, x));
        TRY(stream_sync(s));
        double took_s = profile_now_s() - begun_s;
        best_s = took_s < best_s ? took_s : best_s;
    }
    *rate = amount / best_s;
    return FSDP_OK;
}

static fsdp_status all_rates(const ops *o, stream *s, float *x, bool with_bf16, profile_roof *out)
{
    *out = (profile_roof){0};
    TRY(device_zero(s, x, 3 * (size_t)ROOF_ELEMS * sizeof *x));
    TRY(best_rate(o, s, x, call_add, 12.0 * ROOF_ELEMS, &out->bytes_per_s));
    TRY(best_rate(o, s, x, call_matmul, ROOF_FLOPS, &out->flops_per_s));
    return with_bf16 ? best_rate(o, s, x, call_matmul_bf16, ROOF_FLOPS, &out->bf16_flops_per_s)
                     : FSDP_OK;
}

fsdp_status ops_profile_roof(const ops *o, stream *s, bool with_bf16, profile_roof *out)
{
    float *x;
    TRY(device_alloc_f32(s, MEM_OTHER, 3 * (size_t)ROOF_ELEMS, "profile roof", &x));
    fsdp_status status = all_rates(o, s, x, with_bf16, out);
    device_free(s, x);
    if (status == FSDP_OK)
        status = stream_sync(s); /* given back before the caller goes on */
    return status;
}
