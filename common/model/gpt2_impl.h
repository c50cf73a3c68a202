/* gpt2_impl.h -- what gpt2.c (lists), gpt2_layers.c (embedding, head, norms) and gpt2_block.c
 * (attention, MLP) share. Private to them.
 *
 * Each kind of layer has one small struct that says where its arrays are in layer_io.saved, and one
 * function that lays them out and tells their bytes. Between forward and backward a layer keeps, in
 * elements a token (C width, F MLP width, H heads, V tokens):
 *     embed  nothing
 *     attn   5 C     norm's output, q k v, attention's output; H + 2 fp32: log-sum-exp, mean, rstd
 *     mlp    C + F   norm's output, c_fc's output; 2 fp32: mean, rstd. gelu is computed again in
 *            backward (the same operation on the same values, so the same bits): one pass of
 *            element-wise work saves F elements a token
 *     head   C + V   norm's output, and the gradient of the logits; 2 fp32: mean, rstd.
 *            Cross-entropy puts it where the logits were, so that backward is two matmuls
 * A forward pass that does not train may leave `saved` out; the same arrays are then in scratch.
 * Functions issue work on the stream and return: nothing here reads device memory. Letters are
 * those of ops.h; rows = B*T. */
#pragma once
#include "common/model/gpt2.h"

/* A layer's own parameter order: indices into layer_io.params and .grads. */
enum { EMBED_WTE, EMBED_WPE, EMBED_N_PARAMS };
enum {
    ATTN_LN_GAIN,
    ATTN_LN_BIAS,
    ATTN_QKV_WEIGHT, /* [C, 3C] */
    ATTN_QKV_BIAS,
    ATTN_PROJ_WEIGHT, /* [C, C] */
    ATTN_PROJ_BIAS,
    ATTN_N_PARAMS
};
enum {
    MLP_LN_GAIN,
    MLP_LN_BIAS,
    MLP_FC_WEIGHT, /* [C, F] */
    MLP_FC_BIAS,
    MLP_PROJ_WEIGHT, /* [F, C] */
    MLP_PROJ_BIAS,
    MLP_N_PARAMS
};
enum { HEAD_LN_GAIN, HEAD_LN_BIAS, HEAD_WEIGHT, HEAD_N_PARAMS };

/* The functions of each kind of layer; the other members are zero. */
extern const layer GPT2_EMBED, GPT2_ATTN, GPT2_MLP, GPT2_HEAD;

/* gpt2_room -- memory that is cut into arrays, one behind the other. */
typedef struct gpt2_room {
    char *base;   /* NULL: arrays are only measured, and gpt2_take returns NULL */
    size_t bytes; /* taken so far */
} gpt2_room;

/* gpt2_take -- the next `elems` elements; what follows begins at a multiple of
 * LAYER_ALIGN_BYTES. */
void *gpt2_take(gpt2_room *room, size_t elems, dtype type);
/* gpt2_adds -- whether a gradient is added to what its view holds; otherwise it overwrites it. */
bool gpt2_adds(const layer_io *io, int param);
/* gpt2_kept -- where this call of a forward function keeps its arrays: saved, else scratch. */
void *gpt2_kept(const layer_io *io);

/* What the norm of io->in keeps. attn, mlp and head begin with it. */
typedef struct gpt2_norm {
    float *mean, *rstd; /* [rows] */
    void *out;          /* [rows, C] */
} gpt2_norm;

/* gpt2_take_norm -- gpt2_take for the arrays of a norm. */
gpt2_norm gpt2_take_norm(gpt2_room *room, size_t rows, size_t width, dtype type);
/* gpt2_norm_forward -- n->out = norm(io->in). Gain and bias are the layer's parameters 0 and 1. */
fsdp_status gpt2_norm_forward(const layer *l, const ops *o, stream *s, const layer_io *io,
                              const gpt2_norm *n);

typedef struct gpt2_norm_grad {
    const void *d_out;      /* gradient of the norm's output */
    const void *d_residual; /* the gradient that reaches io->in past the norm, or NULL */
    float *sink; /* [2C] takes the gradients of a frozen gain and bias, which nobody reads */
} gpt2_norm_grad;

/* gpt2_norm_backward -- io->d_in, and the gradients of gain and bias. */
fsdp_status gpt2_norm_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                               const gpt2_norm *n, const gpt2_norm_grad *grad);
