/* kernels.h -- the operations of the CUDA backend, which tables.c collects in op tables. Private to
 * common/cuda. Each implements the operation of the same name in ops.h or sum/sum_kernels.h. */
#pragma once
#include "common/ops/ops.h"

EXTERN_C_BEGIN

/* cuda_sum_launch -- the `launch` of sum_kernels. */
fsdp_status cuda_sum_launch(stream *s, const sum_launch *l);

/* matmul_open -- open cuBLASLt for GPU number `index`, the thread's current device, with an empty
 * set of plans. matmul_close -- no stream has work; NULL is accepted.
 *   errors  FSDP_ENOMEM; FSDP_EDEVICE an error of cuBLASLt */
struct cuda_matmul;
fsdp_status matmul_open(int index, struct cuda_matmul **out);
void matmul_close(struct cuda_matmul *m);

/* cuda_embedding ... -- in both tables. portable_matmul ... portable_cross_entropy --
 * in the portable table. fast_matmul ... fast_cross_entropy -- in the fast table. op_list.h says
 * which operation is which. */
#define DECLARE_BOTH(op) fsdp_status cuda_##op(stream *s, const op##_args *a);
#define DECLARE_EACH(op)                                                                           \
    fsdp_status portable_##op(stream *s, const op##_args *a);                                      \
    fsdp_status fast_##op(stream *s, const op##_args *a);
#define OP(op, on_cpu, on_cuda, ...) DECLARE_##on_cuda(op)
#include "common/ops/op_list.h"
#undef DECLARE_BOTH
#undef DECLARE_EACH

EXTERN_C_END
