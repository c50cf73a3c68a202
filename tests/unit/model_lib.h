/* model_lib.h -- a model with parameters, gradients and activations for tests: runs the layers in
 * order and back, with a canary after every array. Arrays begin at multiples of LAYER_ALIGN_BYTES.
 *
 *   rig_open -> rig_forward -> rig_backward -> rig_close */
#pragma once
#include "common/model/family.h"

typedef struct rig {
    model m;
    device *dev;
    stream *s;
    const ops *o;
    model_views views;
    size_t batch, seq_len;
    dtype type;          /* of parameters, activations and gradients of activations */
    void **out, **saved; /* [n_layers] */
    void *scratch[2];    /* not training; training: as small as the layers allow */
    void **d_out;        /* [n_layers] gradient of out, kept after rig_backward */
    float *loss;
    void *logits;
    int32_t *tokens, *targets; /* [B,T] */
} rig;

typedef struct rig_config {
    const model_config *model;
    const ops *ops;
    dtype type;
    bool rounded; /* parameters are bf16 numbers, which either type can store */
    size_t batch, seq_len, chunk_rows;
} rig_config;

/* A GPT-2 whose sizes share no factors where possible, so that a wrong stride shows. */
extern const model_config RIG_SMALL;

/* rig_array -- NaNs with a canary after them, like every array of a rig; freed by free(3). */
void *rig_array(size_t bytes);
/* rig_open -- every parameter random (weights 0.25 z, gains 1 + 0.25 z, biases 0.25 z), tokens too.
 * The tied gradient view is the array of wte. */
void rig_open(rig *r, const rig_config *c);
/* rig_io -- the arguments of layer i in any pass. */
layer_io rig_io(rig *r, int i);
/* rig_forward -- returns the loss. keep_saved false: `saved` is NULL (only when not training). */
float rig_forward(rig *r, bool training, bool keep_saved);
void rig_backward(rig *r);
/* rig_run -- rig_open, and both passes of a training step. */
void rig_run(rig *r, const rig_config *c);
/* rig_at -- element i of an array of activations or parameters. */
float rig_at(const rig *r, const void *array, size_t i);
/* rig_expect_same_grads -- fails if gradients of parameters that are not frozen in `got` differ. */
void rig_expect_same_grads(const rig *got, const rig *want);
/* rig_zero_grads, rig_check_canaries (also called by every pass). */
void rig_zero_grads(rig *r);
void rig_check_canaries(const rig *r);
void rig_close(rig *r);
