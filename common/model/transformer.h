/* transformer.h -- the parts of transformer layers: memory of a call, norm, linear, attention; and
 * the model's first and last layer. For the files of families (family.h).
 *
 * lay_out says where a layer's arrays are in layer_io.saved and .scratch. In a forward pass that
 * keeps nothing, `saved` may be NULL; the same arrays are then in scratch. Functions issue work on
 * the stream and return: nothing here reads device memory. Letters as in ops.h; rows = B*T.
 *
 * Between forward and backward, the two ends keep, in elements per token (C width, V vocabulary):
 *
 *     embed  nothing
 *     head   C + V   norm's output, and the gradient of the logits, whose rows are padded; 2 fp32:
 *            mean, rstd.
 *            Cross-entropy replaces the logits by the gradient, so backward is two matmuls.
 *            With model.chunk_rows only C: backward computes logits and gradient in scratch */
#pragma once
#include "common/model/family.h"

/* The first and last layer. Parameters in order: embed: wte [V, C] and, if there is one, wpe
 * [positions, C]; head: the norm's parameters, then the weight [V, C]. */
extern const layer TOKEN_EMBED, LM_HEAD;

/* ---- memory of a call ------------------------------------------------------------------------ */

/* Memory from which arrays are taken, one after the other. */
typedef struct room {
    char *base;   /* NULL: only count bytes */
    size_t bytes; /* taken so far */
} room;

/* room_take -- the next `elems` elements, at a multiple of LAYER_ALIGN_BYTES. */
void *room_take(room *from, size_t elems, dtype type);

/* The arrays of one call of a layer. A layer begins with a norm, whose output is multiplied into
 * `wide`: q k v of each row, the MLP's first product, or the logits. */
typedef struct layer_arrays {
    float *mean, *rstd; /* saved, as the next four: [own rows] of the norm of the input */
    void *norm;         /* [own rows, C] the norm's output */
    void *wide; /* [rows, wide]; head: with gaps between rows, and cross-entropy replaces the logits
                   by their gradient; with model.chunk_rows only a chunk's rows, in scratch */
    float *lse; /* attention: [B, H, T] */
    void *att;  /* attention: [rows, att] its output */
    void *d_norm;  /* scratch, as the next two: [rows, max(C, att)] the gradient of norm; in
                      attention, the gradient of att before that */
    void *d_wide;  /* [rows, d_wide] */
    float *sink;   /* [2C] for the gradients of a frozen gain and bias; never read */
    float *sum;    /* [rows, C], and scratch for it: a sum over blocks */
    float *d_kv;   /* gradients of keys and values that blocks share: [rows, 2 kv] of each block */
    void *full;    /* with sequence parallelism: [rows, C] of all tp ranks' own rows */
    double *total; /* head with model.chunk_rows, else NULL: [1] the loss of the chunks so far */
    vocab_part *parts; /* head with blocks: [blocks, rows] of all blocks of the vocabulary */
} layer_arrays;

/* own_rows -- the rows that this rank has of the arrays between layers, and that its norm has. */
static inline size_t own_rows(const layer *l, const layer_io *io)
{
    return io->batch * io->seq_len / l->model->token_parts;
}
/* gather_rows -- all [rows, C] = the own rows of all tp ranks, which share out the tokens of each
 * sequence. keep_rows -- own = this rank's rows of all. */
fsdp_status gather_rows(const layer *l, stream *s, const layer_io *io, const void *own, void *all);
fsdp_status keep_rows(const layer *l, stream *s, const layer_io *io, const void *all, void *own);

/* sum_step -- the elements from one array of layer_arrays.sum to the next. */
static inline size_t sum_step(size_t elems)
{
    return size_round_up(elems, LAYER_ALIGN_BYTES / sizeof(float));
}
/* element -- the address of element i of an array; NULL stays NULL. */
static inline void *element(const void *array, size_t i, dtype type)
{
    return array ? (char *)array + i * dtype_bytes(type) : NULL;
}

/* The widths of these arrays that differ by layer. */
typedef struct layer_cols {
    size_t wide, d_wide;
    size_t heads, att; /* 0: no attention */
    size_t kv;         /* columns of keys of a block; 0: no blocks share them */
} layer_cols;

/* lay_out -- find the arrays of a call in io->saved and io->scratch, and return the bytes of the
 * two. Only batch, seq_len and type of *io must be set to learn the bytes. */
layer_bytes lay_out(const layer *l, const layer_io *io, layer_cols cols, layer_arrays *k);
/* LAYER_BYTES -- define name(), the `bytes` of a layer whose arrays, of type `arrays`, are found by
 * find(l, io, &k). */
#define LAYER_BYTES(name, find, arrays)                                                            \
    static layer_bytes name(const layer *l, size_t rows, dtype type)                               \
    {                                                                                              \
        const layer_io measured = {.batch = 1, .seq_len = rows, .type = type};                     \
        return find(l, &measured, &(arrays){0});                                                   \
    }

/* grad_adds -- whether a gradient is added to what its view holds; otherwise it overwrites it. */
static inline bool grad_adds(const layer_io *io, int param)
{
    return io->overwrite == NULL || !io->overwrite[param];
}
/* grad_wanted -- whether backward must continue past parameter `param` towards the layer's input: a
 * parameter before it has a gradient, or d_in is wanted. */
bool grad_wanted(const layer_io *io, int param);

/* transformer_add_layer -- append a layer that gives "x" [rows, C] to the next one. */
void transformer_add_layer(model *m, const layer *kind, int block);

/* transformer_check -- FSDP_EINVAL unless the sizes of a transformer fit together. It changes none,
 * so it can be the `complete` of a family without defaults. */
fsdp_status transformer_check(model_config *c);

/* ---- norm and linear ------------------------------------------------------------------------- */

/* norm_forward -- k->norm = norm(io->in). Gain and bias are the layer's parameters 0 and 1. */
fsdp_status norm_forward(const layer *l, const ops *o, stream *s, const layer_io *io,
                         const layer_arrays *k);
/* norm_backward -- io->d_in from k->d_norm, and the gradients of gain and bias. Does nothing if
 * none of the three is wanted.
 *   d_residual  the gradient that reaches the input past the norm, or NULL */
fsdp_status norm_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                          const layer_arrays *k, const void *d_residual);

/* If the weight is cut (tensor_parallel.h), x or y is this rank's blocks, each with all rows, one
 * after the other: y if the weight is cut by columns, x if by rows. The other one, and residual, is
 * [own rows, ...]. */
typedef struct linear_args {
    void *y;               /* [rows, n_out] */
    size_t y_stride;       /* as matmul_args.out_stride */
    const void *x;         /* [rows, n_in] */
    const void *residual;  /* [rows, n_out], or NULL */
    const layer_arrays *k; /* scratch of a weight that is cut */
    bool whole;            /* x has all rows, whatever the others have */
    int weight;            /* the layer's parameter */
    bool in_out;           /* w is stored [n_in, n_out], not [n_out, n_in] as PyTorch's Linear */
} linear_args;

/* linear -- y = x w + b (+ residual), for all rows of a call. The bias b is the vector that follows
 * the weight in the layer's order, if there is one.
 *   a  [n] of linears with one input x */
fsdp_status linear(const layer *l, const ops *o, stream *s, const layer_io *io,
                   const linear_args *a, int n);

typedef struct linear_grad {
    void *d_x; /* [rows, n_in], written if grad_wanted(io, weight). d_x may be x, which is read
                  first, but not d_y */
    const void *d_y, *x;
    size_t d_y_stride;     /* as matmul_args.a_stride; 0 if in_out, or if there is a bias */
    const layer_arrays *k; /* as in linear_args */
    bool whole;            /* so have x and d_x */
    int weight;
    bool in_out;
} linear_grad;

/* linear_backward -- the three gradients of linear. d_w and d_b go to the layer's views of the two
 * parameters, unless these are NULL.
 *   g  [n] of linears with one input x, whose gradient d_x is the sum of all, in this order */
fsdp_status linear_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                            const linear_grad *g, int n);

/* ---- sums over tokens ------------------------------------------------------------------------ */

/* The gradient of parameters that all tp ranks have, as a sum over rows (tensor_parallel.h). */
typedef struct token_sum {
    /* add_part -- out [elems] = the sum over own rows [first, first + rows) */
    fsdp_status (*add_part)(const struct token_sum *t, size_t first, size_t rows, float *out);
    const layer *l;
    const ops *o;
    stream *s;
    const layer_io *io;
    const void *args;
    size_t elems, cols; /* gradients of `cols` elements each, one after the other */
    int param;          /* the first of them; a frozen one is left out */
} token_sum;
/* token_sum_run -- add the sums to the layer's gradients, or overwrite these (grad_adds). */
fsdp_status token_sum_run(const token_sum *t);

/* ---- attention ------------------------------------------------------------------------------- */

/* Queries, keys and values of a call, or their gradients; strides are elements from row to row, and
 * steps those from block to block. */
typedef struct qkv {
    void *q, *k, *v;
    size_t q_stride, kv_stride, q_step, kv_step;
} qkv;

/* heads_of -- the heads of one block, or the heads of keys and values that it uses. */
size_t heads_of(const layer *l, bool kv);

/* attend -- k->att = attention(q, k, v), with the heads of the model's config. */
fsdp_status attend(const layer *l, const ops *o, stream *s, const layer_io *io,
                   const layer_arrays *k, const qkv *p);
/* attend_backward -- write the gradients of p[0] to p[1]. k->d_norm holds that of k->att. */
fsdp_status attend_backward(const layer *l, const ops *o, stream *s, const layer_io *io,
                            const layer_arrays *k, const qkv p[2]);
