/* cpu_tables.c -- the two maths libraries of the CPU.
 *
 * They share every operation except those that multiply matrices. For these, "fast" calls oneDNN,
 * and "portable" calls gemm_portable.c, whose bits are the same on every machine. */
#include "common/ops/cpu_kernels.h"

/* Define fast_op and portable_op: op_launch with the gemm of each table. */
#define WITH_GEMM(op)                                                                              \
    static fsdp_status fast_##op(stream *s, const op##_args *a)                                    \
    {                                                                                              \
        return op##_launch(s, a, gemm_dnnl);                                                       \
    }                                                                                              \
    static fsdp_status portable_##op(stream *s, const op##_args *a)                                \
    {                                                                                              \
        return op##_launch(s, a, gemm_portable);                                                   \
    }
EACH_GEMM_OP(WITH_GEMM)

static const sum_kernels SUMS = {.add = cpu_add, .cast = cpu_cast, .launch = sum_launch_cpu};

#define SHARED(op)   .op = cpu_##op,
#define FAST(op)     .op = fast_##op,
#define PORTABLE(op) .op = portable_##op,

const ops *ops_cpu_fast(void)
{
    static const ops TABLE = {
#ifdef FSDP_HAVE_DNNL
        .name = "fast",
#else
        .name = "fast (without oneDNN)",
#endif
        .sums = &SUMS,
        EACH_SHARED_OP(SHARED) EACH_GEMM_OP(FAST)};
    return &TABLE;
}

const ops *ops_cpu_portable(void)
{
    static const ops TABLE = {
        .name = "portable", .sums = &SUMS, EACH_SHARED_OP(SHARED) EACH_GEMM_OP(PORTABLE)};
    return &TABLE;
}
