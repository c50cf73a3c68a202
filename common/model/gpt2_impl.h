/* gpt2_impl.h -- what gpt2.c (lists), gpt2_layers.c (embedding, head, norms) and gpt2_block.c
 * (attention, MLP) share. Private to them.
 *
 * gpt2_lay_out says where a layer's arrays are in layer_io.saved and .scratch. Between forward and
 * backward a layer keeps, in elements a token (C width, F MLP width, H heads, V tokens):
 *
 *     embed  nothing
 *     attn   5 C     norm's output, q k v, attention's output; H + 2 fp32: log-sum-exp, mean, rstd
 *     mlp    C + F   norm's output, c_fc's output; 2 fp32: mean, rstd. gelu is computed again in
 *            backward (the same operation on the same values, so the same bits): one pass of
 *            element-wise work saves F elements a token
 *     head   C + V   norm's output, and the gradient of the logits; 2 fp32: mean, rstd.
 *            Cross-entropy puts it where the logits were, so that backward is two matmuls.
 *            With model.chunk_rows only C: backward computes logits and gradient in scratch
 *
 * In a forward pass that keeps nothing, `saved` may be NULL; the same arrays are then in scratch.
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

/* The name and the functions of each kind of layer; the other members are zero. */
extern const layer GPT2_EMBED, GPT2_ATTN, GPT2_MLP, GPT2_HEAD;

/* Where one call of attn, mlp or head has its arrays. All three begin with a norm, whose output is
 * multiplied into `wide`: q k v of each row, c_fc's output, or the logits. */
typedef struct gpt2_arrays {
    float *mean, *rstd; /* saved, as the next four: [rows] of the norm of io->in */
    void *norm;         /* [rows, C] the norm's output */
    void *wide;    /* [rows, wide]; head: cross-entropy replaces the logits by their gradient; with
                      model.chunk_rows only a chunk's rows, in scratch */
    float *lse;    /* attn: [B, H, T] */
    void *att;     /* attn: [rows, C] attention's output */
    void *d_norm;  /* scratch, as the next two: [rows, C]; attn: before that, the gradient of att */
    void *d_wide;  /* [rows, d_wide]; mlp: before that, gelu's output */
    float *sink;   /* [2C] takes the gradients of a frozen gain and bias, which nobody reads */
    double *total; /* head with model.chunk_rows, else NULL: [1] the loss of the chunks so far */
} gpt2_arrays;

/* The columns of these arrays that differ by kind. */
typedef struct gpt2_cols {
    size_t wide, d_wide;
    size_t heads; /* 0: no attention */
} gpt2_cols;

/* gpt2_lay_out -- find the arrays of a call in io->saved and io->scratch, at multiples of
 * LAYER_ALIGN_BYTES, and return the bytes of the two. Only batch, seq_len and type of *io must be
 * set to learn the bytes. */
layer_bytes gpt2_lay_out(const layer *l, const layer_io *io, gpt2_cols cols, gpt2_arrays *k);
/* gpt2_adds -- whether a gradient is added to what its view holds; otherwise it overwrites it. */
bool gpt2_adds(const layer_io *io, int param);

/* gpt2_wants -- whether backward must continue past parameter `param` towards the layer's input: a
 * parameter before it has a gradient, or d_in is wanted. */
bool gpt2_wants(const layer_io *io, int param);

/* gpt2_norm_forward -- k->norm = norm(io->in). Gain and bias are the layer's parameters 0 and 1. */
fsdp_status gpt2_norm_forward(const layer *l, const ops *o, stream *s, const layer_io *io,
                              const gpt2_arrays *k);
/* gpt2_norm_backward -- io->d_in from k->d_norm, and the gradients of gain and bias.
 *   d_residual  the gradient that reaches io->in past the norm, or NULL */
fsdp_status gpt2_norm_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                               const gpt2_arrays *k, const void *d_residual);
