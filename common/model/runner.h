/* runner.h -- runs a model's layers over one micro-batch, and calls the units' hooks around them.
 *
 *   runner_create -> per micro-step: runner_forward, runner_backward -> runner_free
 *
 * The runner owns activations, scratch and the token buffers; parameters and gradients belong to
 * whoever filled the views. In canonical mode a layer is computed leaf by leaf (one sequence a
 * call) between its hooks, and the leaves' gradients and losses are added in a tree; in fast mode a
 * layer is one call over all sequences. The rest is the same. */
#pragma once
#include "common/model/unit.h"
#include "common/sum/grad_acc.h"

typedef struct runner runner;

typedef struct runner_config {
    const model *m;
    const ops *ops;
    device *dev;
    size_t batch;   /* sequences per micro-step: b; a power of two in canonical mode */
    size_t seq_len; /* T */
    grad_acc_mode mode;
    dtype param_type;      /* of the parameter views */
    dtype reduce_type;     /* DTYPE_BF16: leaves and nodes of the sum over leaves are rounded */
    const int *layer_unit; /* [n_layers], borrowed */
    int n_units;
    unit_hooks hooks;         /* copied */
    const model_views *views; /* borrowed; read at each call of a layer */
} runner_config;

fsdp_status runner_create(const runner_config *config, runner **out);
void runner_free(runner *r); /* NULL is accepted */

/* runner_forward -- tokens, targets [b,T] (host, read before return). *loss (device, [1]): sum over
 * the b*T tokens. training: keep what backward needs. */
fsdp_status runner_forward(runner *r, const int32_t *tokens, const int32_t *targets, bool training,
                           float *loss);
/* runner_backward -- gradients of the SUM over tokens of the micro-batch of the last training
 * forward, written to the gradient views (what they held is not read). In canonical mode no two
 * views may be the same array. A gradient of one call (a micro-batch, in canonical mode a leaf) is
 * not rounded yet, whatever reduce_type is: who takes the views rounds. */
fsdp_status runner_backward(runner *r);

/* runner_activation_bytes -- what stands under MEM_ACTIVATIONS for this shape: what runner_create
 * allocates, and what the matrix product with the largest operands takes to round them. */
size_t runner_activation_bytes(const model *m, size_t batch, size_t seq_len, grad_acc_mode mode,
                               dtype param_type);
/* runner_leaf_bytes -- canonical mode: most bytes of leaf gradients beside the views (log2(b) of
 * the largest layer's, MEM_GRADS_FULL), 0 otherwise. */
size_t runner_leaf_bytes(const model *m, size_t batch, grad_acc_mode mode);
