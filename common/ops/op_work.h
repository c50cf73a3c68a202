/* op_work.h -- what a call of each operation of ops.h is and costs, by its arguments: the same on
 * every backend. A launch carries it (stream_launch), so that a watch of the device can count. */
#pragma once
#include "common/observe/work.h"
#include "common/ops/ops.h"

/* matmul_work ... sgd_work -- the name, FLOPs and bytes of ops->matmul(s, a) ... ops->sgd(s, a).
 * The formulas stand in op_work.c. */
work_info matmul_work(const matmul_args *a);
work_info bias_add_work(const bias_add_args *a);
work_info bias_backward_work(const bias_backward_args *a);
work_info embedding_work(const embedding_args *a);
work_info embedding_backward_work(const embedding_backward_args *a);
work_info layernorm_work(const layernorm_args *a);
work_info layernorm_backward_work(const layernorm_backward_args *a);
work_info gelu_work(const gelu_args *a);
work_info gelu_backward_work(const gelu_backward_args *a);
work_info attention_work(const attention_args *a);
work_info attention_backward_work(const attention_backward_args *a);
work_info cross_entropy_work(const cross_entropy_args *a);
work_info cast_work(const cast_args *a);
work_info add_work(const add_args *a);
work_info scale_work(const scale_args *a);
work_info sum_squares_work(const sum_squares_args *a);
work_info clip_coef_work(const clip_coef_args *a);
work_info adamw_work(const adamw_args *a);
work_info sgd_work(const sgd_args *a);
