/* run_context.h -- what every part of a run shares. Whoever sets up the run fills it in once; those
 * who keep it copy it. All pointers are borrowed and outlive the run's parts. */
#pragma once
#include "common/comm/comm_calls.h"
#include "common/model/unit.h"

typedef enum optimizer_kind { OPTIMIZER_ADAMW, OPTIMIZER_SGD } optimizer_kind;

typedef struct run_context {
    const model *m;
    const ops *ops;
    device *dev;        /* NULL while a run is only planned */
    comm *world;        /* all ranks; NULL while a run is only planned */
    grad_acc_mode mode; /* GRAD_ACC_CANONICAL: batch is a power of two */
    size_t batch;       /* b: sequences per rank and micro-step */
    size_t seq_len;     /* T: tokens of a sequence */
    int grad_accum;     /* A: micro-steps of a step */
    uint64_t seed;      /* seed of the initial weights */
    dtype param_dtype;  /* of all that the model computes with: activations and their gradients too;
                           DTYPE_BF16: parameters are a rounded copy of fp32 masters */
    dtype reduce_dtype; /* the type in which gradients are summed, see grad_acc.h */
    optimizer_kind optimizer;
} run_context;

/* run_batch_level -- the level of the sum's tree at which a micro-batch of this rank is one node:
 * log2(batch) in canonical mode, 0 in fast mode, which has no tree. */
static inline int run_batch_level(const run_context *run)
{
    int level = 0;
    while (run->mode == GRAD_ACC_CANONICAL && (size_t)1 << level < run->batch)
        level++;
    return level;
}
