/* gemm_fp32.c -- our products are not in this tree, because no lab needs them: oneDNN computes. */
#include "common/ops/cpu_kernels.h"

bool gemm_fp32_open(bool has_avx512, bool has_avx2)
{
    return (void)has_avx512, (void)has_avx2, false;
}

bool gemm_amx_open(void)
{
    return false;
}

void gemm_fp32(const gemm_args *g)
{
    (void)g;
}

void gemm_amx(const gemm_args *g)
{
    (void)g;
}
