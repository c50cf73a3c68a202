/* grad_acc.h -- the running sum of a reduction: device vectors of one length.
 *
 *   grad_acc_init -> grad_acc_push ... (all micro-steps of a step) -> grad_acc_finish
 *   -> device_free the sum -> ... next step ... -> grad_acc_free
 *
 * In mode GRAD_ACC_FAST a push is a plain addition, in the order of the calls. In mode
 * GRAD_ACC_CANONICAL a push goes into a tree_sum, whose shape depends only on `level`. Code that
 * pushes is the same for both. Each call decides at once which vectors it adds; the copies and
 * additions run in stream order. So use one stream, or events between streams.
 *
 * With sum_dtype = DTYPE_BF16 every pushed vector and every sum of two vectors is rounded to bf16,
 * and reductions send bf16. The vectors held and returned stay fp32 arrays of bf16 values: an
 * addition is done in fp32 and rounded once. */
#pragma once
#include <stdbool.h>
#include "common/device/device_calls.h"
#include "common/sum/sum_kernels.h"
#include "common/sum/tree_sum.h"

EXTERN_C_BEGIN

typedef enum grad_acc_mode { GRAD_ACC_FAST, GRAD_ACC_CANONICAL } grad_acc_mode;

typedef struct grad_acc {
    tree_sum tree;
    grad_acc_mode mode;
    const sum_kernels *kernels;
    struct stream *stream; /* the stream of the call in progress */
    size_t elems;
    mem_category category;
    const char *label;
    dtype sum_dtype;   /* DTYPE_F32 by default; set it before the first push */
    int n_pushed;      /* contributions since the last finish */
    uint64_t parked;   /* for the owner: bit k is set while it keeps slot k's vector elsewhere */
    unsigned n_parked; /* for the owner: the number of its last such move */
} grad_acc;

/* grad_acc_init -- an empty sum of vectors [elems]. The struct must not move afterwards, because
 * the tree points back to it.
 *   kernels, label  kept by reference: ops->sums, a literal */
void grad_acc_init(grad_acc *g, grad_acc_mode mode, const sum_kernels *kernels, size_t elems,
                   mem_category category, const char *label);

/* grad_acc_push -- add vec [elems] (fp32), the next node of `level`, which covers 2^level
 * sequences.
 *   vec     borrowed until the work has run on s
 *   errors  of device_alloc and the kernels; then the sum is undefined until grad_acc_free */
fsdp_status grad_acc_push(grad_acc *g, stream *s, int level, const float *vec);

/* grad_acc_give -- grad_acc_push of a vector from device_alloc that the caller no longer needs.
 *   *vec  NULL if the accumulator kept the vector, which saves a copy; otherwise the vector was
 *         added and still belongs to the caller */
fsdp_status grad_acc_give(grad_acc *g, stream *s, int level, float **vec);

/* grad_acc_finish -- *sum [elems] = the sum of all pushed vectors; zeros if there are none. The
 * accumulator is empty afterwards.
 *   *sum  owned by the caller (device_free on s) */
fsdp_status grad_acc_finish(grad_acc *g, stream *s, float **sum);

/* grad_acc_finish_into -- like grad_acc_finish, but the last vector becomes the sum: vec [elems] is
 * added as the last node, of any level, in place. The accumulator is empty afterwards.
 *   errors  of the kernels; then vec is undefined */
fsdp_status grad_acc_finish_into(grad_acc *g, stream *s, float *vec);

/* grad_acc_free -- free all vectors held, in order of s; a zeroed struct is accepted. */
void grad_acc_free(grad_acc *g, stream *s);

EXTERN_C_END
