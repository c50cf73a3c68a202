/* cpu_tables.c -- the two maths libraries of the CPU.
 *
 * They share all operations that multiply no matrices. The others get a gemm: gemm_dnnl in "fast",
 * gemm_portable, whose bits are the same on every machine, in "portable". */
#include "common/ops/cpu_kernels.h"

/* Define fast_op and portable_op: op_launch with the gemm of each table. */
#define WITH_GEMM_BOTH(op)
#define WITH_GEMM_EACH(op)                                                                         \
    static fsdp_status fast_##op(stream *s, const op##_args *a)                                    \
    {                                                                                              \
        return op##_launch(s, a, gemm_dnnl);                                                       \
    }                                                                                              \
    static fsdp_status portable_##op(stream *s, const op##_args *a)                                \
    {                                                                                              \
        return op##_launch(s, a, gemm_portable);                                                   \
    }
#define OP(op, on_cpu, ...) WITH_GEMM_##on_cpu(op)
#include "common/ops/op_list.h"

static const sum_kernels SUMS = {.add = cpu_add, .cast = cpu_cast, .launch = sum_launch_cpu};

static bool any_by_rows(dtype type)
{
    (void)type;
    return true; /* portable products are sums in order of k */
}

static const ops FAST = {
#ifdef FSDP_HAVE_DNNL
    .name = "fast",
#else
    .name = "fast (without oneDNN)",
#endif
    .sums = &SUMS,
    .leaves_sum = gemm_dnnl_by_rows,
#define OP(op, on_cpu, ...) OP_##on_cpu(op, cpu, fast)
#include "common/ops/op_list.h"
};

static const ops PORTABLE = {
    .name = "portable",
    .sums = &SUMS,
    .leaves_sum = any_by_rows,
#define OP(op, on_cpu, ...) OP_##on_cpu(op, cpu, portable)
#include "common/ops/op_list.h"
};

const ops *ops_cpu_fast(void)
{
    return &FAST;
}

const ops *ops_cpu_portable(void)
{
    return &PORTABLE;
}
