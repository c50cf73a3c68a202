/* gemm_amx.h -- bf16 weight gradients by AMX, for gemm_dnnl.c. */
#pragma once
#include "common/ops/cpu_kernels.h"

/* gemm_amx_open -- whether gemm_amx can be called. It asks Linux for the memory of tiles, for all
 * threads of the process. */
bool gemm_amx_open(void);
/* gemm_amx -- a gemm of two bf16 operands with trans_a and without trans_b, of at most 384 columns.
 * An element's bits depend on k and on the values, not on m, n or the element's place. */
void gemm_amx(const gemm_args *g);
