/* runner_impl.h -- what loop.c, activations.c and leaf_sum.c share. Private to them. */
#pragma once
#include "common/model/runner.h"

struct runner {
    runner_config cfg;
    stream *s;
    size_t call_batch, n_calls; /* sequences per call of a layer; calls per micro-step */
    size_t row_elems;           /* elements of one sequence between layers: T*C */
    float **outs;               /* [n_layers] [b,T,C]; the last layer has none */
    float **saved;              /* [n_layers] [n_calls * saved_elems] */
    size_t *saved_elems;        /* [n_layers] of one call */
    float *d_ping, *d_pong;     /* [b,T,C] gradients between layers */
    float *scratch;
    float *leaf_loss;              /* [n_calls] */
    int32_t *tokens, *targets;     /* [b,T] */
    int *first_layer, *last_layer; /* [n_units] in forward order; -1 for a unit without layers */
    grad_acc loss_acc;
};

/* runner_load -- copy the micro-batch's tokens and targets to the device. */
fsdp_status runner_load(runner *r, const micro_step *ms);
/* runner_call -- the arguments of call `leaf` of layer i: slices of the micro-batch's arrays. */
layer_io runner_call(const runner *r, int i, size_t leaf, bool training);
/* runner_layer_forward -- all calls of layer i. */
fsdp_status runner_layer_forward(runner *r, int i, bool training);
/* runner_layer_backward -- all calls of layer i; its parameters' gradients go to the views.
 *   d_out  [b,T,C] gradient of its output, NULL for the last layer
 *   d_in   [b,T,C] gradient of its input, NULL for the first layer */
fsdp_status runner_layer_backward(runner *r, int i, const float *d_out, float *d_in);
/* runner_unit_done -- layer i has been issued; last [n_units]: after which layer of each unit a
 * host that waits (host_sync) does so. */
fsdp_status runner_unit_done(runner *r, int i, const int *last);
/* runner_sum_losses -- *loss = the sum of the calls' losses, with leaves numbered by sequence. */
fsdp_status runner_sum_losses(runner *r, float *loss);
