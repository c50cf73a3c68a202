/* runner.h -- runs a model's layers over one micro-batch, and calls the units' hooks around them.
 *
 *   runner_create -> per micro-step: runner_forward, runner_backward -> runner_free
 *
 * loop.c has the two loops that call the hooks. The runner owns activations, scratch and token
 * buffers (activations.c). Parameters and gradients belong to the code that filled the views. In
 * fast mode a layer is called once, for all sequences of the micro-batch. In canonical mode a tree
 * adds the gradients and losses of the leaves (one sequence each). If the operations do that
 * (ops.leaves_sum), a layer is still called once; if not, once for each leaf, between the same
 * hooks (leaf_sum.c). The bits and the rest are the same.
 *
 * Activation checkpointing: the layers of a segment keep nothing in forward, and run again before
 * their backward, into memory that all segments share. A segment is a run of consecutive layers of
 * one unit. The unit is gathered for backward anyway, so no hook is called for the second run. Only
 * the input of a segment is kept. The embedding and the head are in none. [Chen et al. 2016] */
#pragma once
#include "common/model/run_context.h"

typedef struct runner runner;

/* One micro-batch of this rank on its way through the model. */
typedef struct micro_step {
    const void *inputs;     /* [b,T,width] of the model's input, host; read, as targets are, before
                               runner_forward returns */
    const int32_t *targets; /* [b,T], host */
    uint64_t first_sample;  /* number of its first sample, counted over the run; its samples are
                               consecutive */
    int a, n_micro;         /* its number in the optimizer step, 0 ... n_micro-1; n_micro = A */
    void *logits;  /* device, [b,T,V] of param_dtype, which forward writes; NULL: not wanted */
    bool training; /* forward keeps what backward needs, and a backward follows */
    float *loss;   /* device, [1]: the SUM over the b*T tokens. forward writes it, or with
                      model.chunk_rows backward, if there is one */
} micro_step;

/* When `look` is called for a layer of a micro-step that trains. */
typedef enum runner_moment {
    BEFORE_FORWARD, /* the parameters of the layer are in the views */
    AFTER_FORWARD,  /* runner_output gives the layer's output; not after a segment's second run */
    BEFORE_BACKWARD /* if the last layer computes the loss in backward, AFTER_FORWARD and then
                       BEFORE_BACKWARD follow its backward */
} runner_moment;

enum { NO_SEGMENT = -1 };

typedef struct runner_config {
    run_context run;
    const int *layer_unit; /* [n_layers], borrowed */
    int n_units;
    const int *segment; /* [n_layers], borrowed: the number of each layer's segment, or NO_SEGMENT;
                           NULL: no segments */
    /* run_again -- run the segment of layers first ... last again, by runner_layer_again. Not NULL
     * if there are segments */
    fsdp_status (*run_again)(runner *r, int first, int last);
    /* look -- NULL, or called for layer i of a micro-step that trains. ms: NULL in backward */
    fsdp_status (*look)(void *observer, const runner *r, const micro_step *ms, runner_moment when,
                        int i);
    void *observer;
    unit_hooks hooks;         /* copied */
    const model_views *views; /* borrowed; read at each call of a layer */
    /* the host synchronises after every unit, like code that prints a loss there. Such a
     * host does not run ahead, so by itself it issues no gather early */
    bool host_sync;
} runner_config;

/* runner_create -- allocate the memory of forward and backward.
 *   config  copied, but views, layer_unit and segment must outlive the runner
 *   errors  FSDP_ENOMEM */
fsdp_status runner_create(const runner_config *config, runner **out);
/* runner_free -- NULL is accepted. */
void runner_free(runner *r);

/* runner_forward -- *ms->loss = the sum of the micro-batch's losses, unless that is left to
 * runner_backward (micro_step.loss). A unit's hooks are called before its first layer and after its
 * last.
 *   order   stream-ordered on compute; the host calls the hooks as it issues the layers
 *   errors  of layers and hooks */
fsdp_status runner_forward(runner *r, const micro_step *ms);
/* runner_output -- the output of layer i for sample j of the micro-batch: [T,width] of *type in
 * device memory, valid until look returns. The last layer's output is the loss [1] of a call, given
 * for the first sample of the call; *elems is 0 for the others. */
const void *runner_output(const runner *r, int i, size_t j, dtype *type, size_t *elems);
/* runner_backward -- the gradients of the SUM over tokens of the micro-batch of the last training
 * forward, written to the gradient views, whose old contents are not read. end_backward comes last.
 *   views     in canonical mode no two may be the same array
 *   rounding  gradients of a single call of a layer are not rounded, whatever reduce_dtype is:
 *             the code that reads the views rounds them
 *   order     as runner_forward
 *   errors    of layers and hooks */
fsdp_status runner_backward(runner *r);
/* runner_layer_again -- run forward of layer i again, on all leaves, and save what backward reads.
 * For config.run_again.
 *   wants_out  whether another layer of the segment reads its output; if not, the last product of
 *              layer i is left out, because backward does not need it */
fsdp_status runner_layer_again(runner *r, int i, bool wants_out);
