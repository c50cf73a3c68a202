/* op_work.h -- what a call of each operation of ops.h is, costs and touches, by its arguments: the
 * same on every backend. A launch carries it (stream_launch_work), so that a watch of the device
 * can count, and check the order of streams. */
#pragma once
#include "common/device/device.h"
#include "common/ops/ops.h"

enum { OP_MAX_ACCESSES = 10 };

EXTERN_C_BEGIN

typedef struct op_work {
    work_info info;
    mem_access accesses[OP_MAX_ACCESSES]; /* [n_accesses] */
    int n_accesses;
} op_work;

/* op_reads, op_writes -- the operation touches that range too. Nothing is added for 0 bytes or
 * NULL, an array that is not there. */
void op_reads(op_work *w, const void *ptr, size_t bytes);
void op_writes(op_work *w, const void *ptr, size_t bytes);

/* matmul_work ... sgd_work -- the name, FLOPs, bytes and accesses of ops->matmul(s, a) ...
 * ops->sgd(s, a). The formulas stand in op_work.c. Rows that lie apart, as the heads of attention
 * do in a [B,T,3C] array, are accessed from the first to the last. */
op_work matmul_work(const matmul_args *a);
op_work bias_backward_work(const bias_backward_args *a);
op_work embedding_work(const embedding_args *a);
op_work embedding_backward_work(const embedding_backward_args *a);
op_work layernorm_work(const layernorm_args *a);
op_work layernorm_backward_work(const layernorm_backward_args *a);
op_work gelu_work(const gelu_args *a);
op_work gelu_backward_work(const gelu_backward_args *a);
op_work attention_work(const attention_args *a);
op_work attention_backward_work(const attention_backward_args *a);
op_work cross_entropy_work(const cross_entropy_args *a);
op_work cast_work(const cast_args *a);
op_work add_work(const add_args *a);
op_work scale_work(const scale_args *a);
op_work sum_squares_work(const sum_squares_args *a);
op_work clip_coef_work(const clip_coef_args *a);
op_work adamw_work(const adamw_args *a);
op_work sgd_work(const sgd_args *a);

EXTERN_C_END
