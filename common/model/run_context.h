/* run_context.h -- the settings that all parts of a run share. The code that sets up the run fills
 * it in once, and each part copies it. All pointers are borrowed and outlive the run's parts. */
#pragma once
#include "common/comm/mesh.h"
#include "common/model/unit.h"
#include "common/ops/optimizers.h"
#include "common/sum/grad_acc.h"

typedef struct run_context {
    const model *m;
    const ops *ops;
    device *dev;      /* NULL while a run is only planned */
    comm *world;      /* all ranks; NULL while a run is only planned */
    comm *kv;         /* tp ranks whose blocks share keys and values with this one's; NULL: none */
    comm *tp;         /* the ranks that share out the model's blocks; NULL: this one has all */
    mesh_shape shape; /* this rank's place among them */
    grad_acc_mode mode; /* GRAD_ACC_CANONICAL: batch is a power of two */
    size_t batch;       /* b: sequences per rank and micro-step */
    size_t seq_len;     /* T: tokens of a sequence */
    int grad_accum;     /* A: micro-steps of a step */
    bool no_sync;       /* a rank sums the gradients of its micro-steps before it reduces them; its
                           sequences of a step are then adjacent in the global batch;
                           GRAD_ACC_CANONICAL: A*batch is a power of two */
    uint64_t seed;      /* seed of the initial weights and of dropout */
    dtype param_dtype;  /* of parameters, activations and gradients of activations;
                           DTYPE_BF16: parameters are a rounded copy of fp32 masters */
    dtype reduce_dtype; /* the type in which gradients are summed, see grad_acc.h */
    optimizer_kind optimizer;
    bool forward_only; /* nothing is trained: no backward, no gradients, no optimizer */
    bool no_norm;      /* the gradients' norm is not computed: plain SGD needs none */
} run_context;

/* run_level -- the level of the sum's tree at which n sequences are one node: log2(n) in canonical
 * mode, 0 in fast mode, which has no tree. */
static inline int run_level(const run_context *run, size_t n)
{
    int level = 0;
    while (run->mode == GRAD_ACC_CANONICAL && (size_t)1 << level < n)
        level++;
    return level;
}

/* run_batch_level -- run_level of a micro-batch. */
static inline int run_batch_level(const run_context *run)
{
    return run_level(run, run->batch);
}

/* run_reduce_level -- run_level of the sequences whose gradients a rank gives to one reduction. */
static inline int run_reduce_level(const run_context *run)
{
    return run_level(run, run->no_sync ? run->batch * (size_t)run->grad_accum : run->batch);
}

/* run_batch_number -- the number of micro-batch a of part `rank` of `size` of a global batch. */
static inline size_t run_batch_number(const run_context *run, size_t a, int rank, int size)
{
    return run->no_sync ? (size_t)rank * (size_t)run->grad_accum + a
                        : a * (size_t)size + (size_t)rank;
}

/* run_batch_begin -- the first sequence, in the global batch, of this data rank's micro-batch a. */
static inline size_t run_batch_begin(const run_context *run, size_t a)
{
    const int rank = mesh_data_rank(&run->shape), size = mesh_data_size(&run->shape);
    return run_batch_number(run, a, rank, size) * run->batch;
}

/* run_batch_node -- the node of the sum's tree at run_batch_level that is micro-batch a of a leaf
 * rank. */
static inline size_t run_batch_node(const run_context *run, size_t a, int leaf_rank)
{
    return run_batch_number(run, a, leaf_rank, mesh_leaf_size(&run->shape));
}
