/* model_lib.h -- a model with parameters, gradients and activations for tests: runs the layers in
 * order and back, with a canary behind every array.
 *
 *   rig_open -> rig_forward -> rig_backward -> rig_close */
#pragma once
#include "common/model/gpt2.h"

typedef struct rig {
    model m;
    device *dev;
    stream *s;
    const ops *o;
    model_views views;
    size_t batch, seq_len;
    float **out, **saved; /* [n_layers] */
    float *scratch[2];    /* not training, training: each the least that the layers ask for */
    float *d_a, *d_b, *loss, *logits;
    int32_t *tokens, *targets; /* [B,T] */
} rig;

/* rig_open -- every parameter random (weights 0.25 z, gains 1 + 0.25 z, biases 0.25 z), tokens too.
 * The tied gradient view is the array of wte. */
void rig_open(rig *r, const model_config *config, const ops *o, size_t batch, size_t seq_len);
/* rig_forward -- returns the loss. keep_saved false: `saved` is NULL (only when not training). */
float rig_forward(rig *r, bool training, bool keep_saved);
void rig_backward(rig *r);
/* rig_zero_grads, rig_check_canaries (also called by every pass). */
void rig_zero_grads(rig *r);
void rig_check_canaries(const rig *r);
void rig_close(rig *r);
