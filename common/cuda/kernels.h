/* kernels.h -- the operations of the CUDA backend: what tables.c makes op tables of. Private to
 * common/cuda. Each is the operation of ops.h, or of sum/sum_kernels.h, that has its name. */
#pragma once
#include "common/ops/check_type.h"
#include "common/ops/ops.h"

EXTERN_C_BEGIN

/* cuda_gelu ... cuda_adamw -- of both tables. */
fsdp_status cuda_gelu(stream *s, const gelu_args *a);
fsdp_status cuda_adamw(stream *s, const adamw_args *a);

EXTERN_C_END
