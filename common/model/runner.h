/* runner.h -- runs a model's layers over one micro-batch, and calls the units' hooks around them.
 *
 *   runner_create -> per micro-step: runner_forward, runner_backward -> runner_free
 *
 * The two loops that call the hooks are common/model/loop.c. The runner owns activations, scratch
 * and the token buffers (activations.c); parameters and gradients belong to whoever filled the
 * views. In canonical mode a layer is computed leaf by leaf (one sequence a call) between its
 * hooks, and the leaves' gradients and losses are added in a tree (leaf_sum.c); in fast mode a
 * layer is one call over all sequences. The rest is the same. */
#pragma once
#include "common/model/run_context.h"

typedef struct runner runner;

typedef struct runner_config {
    run_context run;
    const int *layer_unit; /* [n_layers], borrowed */
    int n_units;
    unit_hooks hooks;         /* copied */
    const model_views *views; /* borrowed; read at each call of a layer */
} runner_config;

/* One micro-batch of this rank on its way through the model. */
typedef struct micro_step {
    const int32_t *tokens, *targets; /* [b,T], host; read before runner_forward returns */
    int a, n_micro; /* its number in the optimizer step, 0 ... n_micro-1 (the texts' A) */
    bool training;  /* forward keeps what backward needs, and a backward follows */
    float *loss;    /* device, [1]: forward writes the SUM over the b*T tokens */
} micro_step;

/* runner_create -- allocates all that forward and backward need. views and layer_unit must outlive
 * the runner.
 *   errors  FSDP_ENOMEM */
fsdp_status runner_create(const runner_config *config, runner **out);
void runner_free(runner *r); /* NULL is accepted */

/* runner_forward -- *ms->loss = sum of the micro-batch's losses. A unit's hooks are called before
 * its first layer and after its last.
 *   order   stream-ordered on the compute stream; hooks are called by the host as it issues
 *   errors  those of layers and hooks */
fsdp_status runner_forward(runner *r, const micro_step *ms);
/* runner_backward -- gradients of the SUM over tokens of the micro-batch of the last training
 * forward, written to the gradient views (what they held is not read). In canonical mode no two
 * views may be the same array. A gradient of one call (a micro-batch, in canonical mode a leaf) is
 * not rounded yet, whatever reduce_dtype is: who takes the views rounds.
 *   order   as runner_forward; end_backward is called last
 *   errors  those of layers and hooks */
fsdp_status runner_backward(runner *r);

/* runner_activation_bytes -- what stands under MEM_ACTIVATIONS for this run: what runner_create
 * allocates, and what the matrix product with the largest operands takes to round them. */
size_t runner_activation_bytes(const run_context *run);
/* runner_layer_elems -- elements of the gradients of a layer's own parameters: a leaf's. */
size_t runner_layer_elems(const model *m, const layer *l);
/* runner_leaf_bytes -- canonical mode: most bytes of leaf gradients beside the views (log2(b) of
 * the largest layer's, MEM_GRADS_FULL), 0 otherwise. */
size_t runner_leaf_bytes(const run_context *run);
