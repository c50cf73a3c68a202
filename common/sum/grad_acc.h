/* grad_acc.h -- where reductions deliver: a running sum of device vectors of one length.
 *
 *   grad_acc_init -> grad_acc_push ... (all micro-steps of a step) -> grad_acc_finish
 *   -> device_free the sum -> ... next step ... -> grad_acc_free
 *
 * In mode GRAD_ACC_FAST a push is a plain addition in the order of the calls. In mode
 * GRAD_ACC_CANONICAL it goes into a tree_sum, whose shape depends on `level` alone. Code that
 * pushes is the same for both. Counter decisions are made when a call is issued; copies and
 * additions run in stream order, so use one stream, or events between streams.
 *
 * sum_dtype = DTYPE_BF16 is a sum in bf16: every vector that is pushed and every sum of two is
 * rounded to bf16, and reductions send bf16. What is held and what finish returns stays fp32
 * (holding bf16 values): an addition is done in fp32 and rounded once. */
#pragma once
#include <stdbool.h>
#include "common/device/device.h"
#include "common/sum/sum_kernels.h"
#include "common/sum/tree_sum.h"

typedef enum grad_acc_mode { GRAD_ACC_FAST, GRAD_ACC_CANONICAL } grad_acc_mode;

typedef struct grad_acc {
    tree_sum tree;
    grad_acc_mode mode;
    const sum_kernels *kernels;
    stream *stream; /* of the call in progress */
    size_t elems;
    mem_category category;
    const char *label;
    dtype sum_dtype; /* DTYPE_F32; to be set before the first push */
    int n_pushed;    /* since the last finish */
} grad_acc;

/* grad_acc_init -- an empty sum of vectors [elems]; label: literal, kept by reference, as the
 * kernels are (ops->sums). The struct must not move afterwards (the tree points back to it). */
void grad_acc_init(grad_acc *g, grad_acc_mode mode, const sum_kernels *kernels, size_t elems,
                   mem_category category, const char *label);

/* grad_acc_push -- add vec [elems] (fp32), the next node of `level` (log2 of the number of
 * sequences below it). vec is borrowed until the work has run on s. */
fsdp_status grad_acc_push(grad_acc *g, stream *s, int level, const float *vec);

/* grad_acc_give -- grad_acc_push of a vector from device_alloc that the caller no longer needs:
 * *vec becomes NULL when the accumulator has kept it (nothing is copied then, it is rounded in
 * place); else it was added and is still the caller's. */
fsdp_status grad_acc_give(grad_acc *g, stream *s, int level, float **vec);

/* grad_acc_finish -- *sum [elems]: everything pushed; the caller owns it (device_free). With
 * nothing pushed: a zeroed vector. The accumulator is empty afterwards. */
fsdp_status grad_acc_finish(grad_acc *g, stream *s, float **sum);

/* grad_acc_free -- give back what is held, in order of s; a zeroed struct is accepted. */
void grad_acc_free(grad_acc *g, stream *s);
