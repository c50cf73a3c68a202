/* ops.h -- the operations of a model, as a table of functions.
 *
 *     const ops *o = ops_cpu_fast();              vector code and oneDNN
 *     const ops *o = ops_cpu_portable();          plain C, one fixed order: same bits everywhere
 *     TRY(o->matmul(s, &(matmul_args){.out = y, .a = x, .b = w, .m = BT, .n = N, .k = K}));
 *
 * Every operation takes the stream it runs on and one struct of named arguments (copied, so the
 * struct may live on the caller's stack; the arrays must live until the work has run). All arrays
 * are row-major, in device memory, and do not overlap unless said.
 *
 * `type` says how parameters, activations and gradients of activations are stored: DTYPE_F32 or
 * DTYPE_BF16, else FSDP_EINVAL. For both types, operations compute in fp32 and round each stored
 * element once (bf16_from_f32). Statistics (mean, rstd, lse), losses and gradients of parameters
 * are always fp32 arrays.
 *
 * Rules that hold for every backend:
 *   - No result depends on the number of threads: an output is cut into a fixed tiling, each tile
 *     is computed by one single-threaded call.
 *   - Gradients of parameters are ADDED to what the array holds (the caller zeroes it first) unless
 *     `overwrite` (matmul: no `accumulate`) is set. Then the old contents are not read, and the
 *     result has the bits that zeroing and adding would give (matmul by `fast`: except for the
 *     order of its sums). Gradients of activations are overwritten.
 *   - Element-wise operations (add, scale, cast, updates) give an element the same bits at every
 *     index of the array: compiled without contraction, no fast-math.
 *   - A count of 0 is allowed and does nothing; a sum over nothing that is to be overwritten is 0.
 *   - `leaves` of an operation that sums over rows: above 1, the rows are that many groups of equal
 *     size, a power of two. Each group is summed as in a call of its own, and the sums are added in
 *     a tree (tree_sum.h). Only after leaves_sum has returned true, and only to overwrite.
 * B: sequences, T: tokens of a sequence, C: model width, V: vocabulary, H: heads, D: head width,
 * Dv: width of the heads of v. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/dtype.h"
#include "common/device/device_calls.h"
#include "common/ops/optim.h"
#include "common/ops/update_rules.h"
#include "common/sum/sum_kernels.h"

EXTERN_C_BEGIN

/* row_stride -- the elements from one row to the next, of an argument that is 0 for dense rows. */
ROW_FN size_t row_stride(size_t stride, size_t width)
{
    return stride ? stride : width;
}

/* out[m,n] = op(a)[m,k] * op(b)[k,n], + out when accumulate, then + bias[n], then + residual[m,n].
 * trans_a: a is stored [k,m]; trans_b: b is stored [n,k].
 *
 * a, b, bias and residual are stored as `type`, out as out_type: `type` or DTYPE_F32. Products are
 * summed in fp32, and rounding comes last: with type DTYPE_BF16, an fp32 out is not rounded to
 * bf16 at all, and each product of two bf16 numbers is exact in fp32. With DTYPE_BF16, `fast` may
 * take denormal numbers for 0, because bf16 instructions do.
 *
 *   a_stride, out_stride
 *                   elements from one stored row of a, and of out and residual, to the next; 0:
 *                   dense, as b always is. No less than a row's width, which is asserted. Elements
 *                   between rows change no result and are not written
 *   bias, residual  NULL: none; residual == out is allowed, if both are stored alike
 *   accumulate      out_type is DTYPE_F32, and there is neither bias nor residual
 *   leaves          for trans_a: of the k rows
 *   errors          FSDP_EINVAL: another type or out_type, or another use of accumulate */
typedef struct matmul_args {
    void *out;
    const void *a, *b, *bias, *residual;
    size_t m, n, k, leaves;
    size_t a_stride, out_stride;
    bool trans_a, trans_b, accumulate;
    dtype type, out_type;
} matmul_args;

/* The end of a matmul whose products were added up elsewhere: of.out = products, + bias, then +
 * residual, rounded last. Only out, bias, residual, m, n, out_stride and the two types of `of` are
 * read.
 *   products  [m,n], with the row stride of out; may be out. The call may change it */
typedef struct matmul_finish_args {
    matmul_args of;
    float *products;
} matmul_finish_args;

/* Which tokens a table holds, of a vocabulary that is cut into blocks: those from `first` on, of
 * `all`. Zeroed: it holds all of them. */
typedef struct vocab_cut {
    size_t first, all;
} vocab_cut;

/* d_bias[c] += sum over rows of d_out[r,c]; = with overwrite. */
typedef struct bias_backward_args {
    float *d_bias;
    const void *d_out;
    size_t rows, cols, leaves;
    bool overwrite;
    dtype type;
} bias_backward_args;

/* out[b,t,:] = wte[tokens[b,t],:] + wpe[t,:]; wpe NULL: no positions. out [B,T,C], tokens [B,T].
 *   cut  wte [vocab,C] holds these tokens. For any other token, all bits of the row are 0 */
typedef struct embedding_args {
    void *out;
    const void *wte, *wpe;
    const int32_t *tokens;
    size_t batch, seq_len, width, vocab;
    dtype type;
    vocab_cut cut;
} embedding_args;

/* d_wte[tokens[b,t],:] += d_out[b,t,:]; d_wpe[t,:] += sum over b. Rows in (b,t) order. d_wpe NULL:
 * no positions.
 *   leaves above 1: groups of sequences; d_wte and d_wpe hold zeros. order: [B,T], scratch for
 *   them, else NULL
 *   cut    d_wte [vocab,C] is of these tokens; others change only d_wpe */
typedef struct embedding_backward_args {
    float *d_wte, *d_wpe;
    const void *d_out;
    const int32_t *tokens;
    size_t batch, seq_len, width, vocab, leaves;
    uint64_t *order;
    dtype type;
    vocab_cut cut;
} embedding_backward_args;

/* out = (in - mean) * rstd * gain + bias by row; mean, rstd [rows] are kept for backward. */
typedef struct layernorm_args {
    void *out;
    float *mean, *rstd;
    const void *in, *gain, *bias;
    size_t rows, cols;
    float eps;
    dtype type;
} layernorm_args;

/* d_in is overwritten; d_gain, d_bias are added to (with overwrite: overwritten). d_residual (may
 * be NULL) is added to d_in: the gradient that flows past the norm. */
typedef struct layernorm_backward_args {
    void *d_in;
    float *d_gain, *d_bias;
    const void *d_out, *in, *gain, *d_residual;
    const float *mean, *rstd;
    size_t rows, cols, leaves;
    bool overwrite;
    dtype type;
} layernorm_backward_args;

/* out = in * rstd * gain by row, rstd = 1 / sqrt(mean of in^2 + eps); rstd [rows] is kept for
 * backward. [Zhang & Sennrich 2019] */
typedef struct rmsnorm_args {
    void *out;
    float *rstd;
    const void *in, *gain;
    size_t rows, cols;
    float eps;
    dtype type;
} rmsnorm_args;

/* d_in is overwritten; d_gain is added to (with overwrite: overwritten). d_residual: as in
 * layernorm_backward. */
typedef struct rmsnorm_backward_args {
    void *d_in;
    float *d_gain;
    const void *d_out, *in, *gain, *d_residual;
    const float *rstd;
    size_t rows, cols, leaves;
    bool overwrite;
    dtype type;
} rmsnorm_backward_args;

/* Rotary positions, in place. Pair i of a head at position t is (a, b). With the angle
 * t * inv_freq[i], an fp32 product, it becomes
 *
 *     a cos - b sin
 *     a sin + b cos
 *
 * With `inverse` the angle is negated, which computes the gradient. A pair is elements i and i +
 * D/2 of a head or, interleaved, 2i and 2i + 1. Row (b,t) starts at x + (b*T+t)*stride, and its
 * heads are adjacent. [Su et al. 2021] */
enum { ROPE_MAX_PAIRS = 128 };
typedef struct rope_args {
    void *x;
    size_t stride;
    size_t batch, seq_len, n_head, head_dim; /* head_dim: even, at most 2 ROPE_MAX_PAIRS */
    bool inverse, interleaved;
    dtype type;
    float inv_freq[ROPE_MAX_PAIRS]; /* [D/2] */
} rope_args;

/* out = silu(gate) * up, silu(x) = x / (1 + exp(-x)); out == gate or up allowed. [Shazeer 2020] */
typedef struct swiglu_args {
    void *out;
    const void *gate, *up;
    size_t elems;
    dtype type;
} swiglu_args;

/* d_gate = d_out * up * silu'(gate), d_up = d_out * silu(gate); either may be d_out. */
typedef struct swiglu_backward_args {
    void *d_gate, *d_up;
    const void *d_out, *gate, *up;
    size_t elems;
    dtype type;
} swiglu_backward_args;

/* A convolution of images with stride 1 and without padding. B images have Cin channels of height x
 * width, the result has Cout channels of (height - K + 1) x (width - K + 1); a weight is [Cout,
 * Cin, K, K].
 *
 *   errors  FSDP_EINVAL: K is 0 or larger than an image; Cin or Cout is 0 */
typedef struct conv_shape {
    size_t batch, in_channels, out_channels, height, width, kernel;
    dtype type;
} conv_shape;

/* out[b,o,y,x] = sum over c, i, j of in[b,c,y+i,x+j] * weight[o,c,i,j], + bias[o]. */
typedef struct conv2d_args {
    void *out;
    const void *in, *weight, *bias;
    conv_shape shape;
} conv2d_args;

/* d_in is overwritten, d_weight and d_bias are added to (with overwrite: overwritten). A NULL
 * gradient is not computed. */
typedef struct conv2d_backward_args {
    void *d_in;
    float *d_weight, *d_bias;
    const void *d_out, *in, *weight;
    bool overwrite;
    conv_shape shape;
} conv2d_backward_args;

/* out = the largest of each 2 x 2 elements of a plane; a last row or column that has no partner is
 * left out. in [planes, height, width], out [planes, height/2, width/2]. A NaN is the largest. */
typedef struct max_pool2d_args {
    void *out;
    const void *in;
    size_t planes, height, width;
    dtype type;
} max_pool2d_args;

/* d_in: d_out where the largest element was (of equals the first, of NaNs the last, in row order);
 * else 0. */
typedef struct max_pool2d_backward_args {
    void *d_in;
    const void *d_out, *in;
    size_t planes, height, width;
    dtype type;
} max_pool2d_backward_args;

/* out = in where in > 0, else 0; a NaN stays. out == in allowed. */
typedef struct relu_args {
    void *out;
    const void *in;
    size_t elems;
    dtype type;
} relu_args;

/* d_in = d_out where in > 0 or is NaN, else 0; d_in == d_out allowed. `in` may be relu's output
 * instead of its input. */
typedef struct relu_backward_args {
    void *d_in;
    const void *d_out, *in;
    size_t elems;
    dtype type;
} relu_backward_args;

/* out = in / (1 - p) with probability 1 - p, else 0; out == in allowed. in [samples, width]. Its
 * gradient is the same call on the gradient of out.
 *
 * Element e of sample first_sample + i is dropped if its random word is below p * 2^32, rounded
 * down: word e%4 of the call {counter: first_sample + i, stream: e/4 + 2^32 (layer + 1)} with the
 * key `seed`. So the choice does not depend on which samples a call has. Streams below
 * 2^32 belong to the initial weights. [Srivastava et al. 2014]
 *
 *   width, layer  below 2^32
 *   errors        FSDP_EINVAL: p is not in [0, 1) */
typedef struct dropout_args {
    void *out;
    const void *in;
    size_t samples, width;
    float p;
    uint64_t seed, first_sample, layer;
    dtype type;
} dropout_args;

/* GELU, tanh form: out = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). out == in allowed. */
typedef struct gelu_args {
    void *out;
    const void *in;
    size_t elems;
    dtype type;
} gelu_args;

/* d_in = d_out * gelu'(in); d_in == d_out allowed. */
typedef struct gelu_backward_args {
    void *d_in;
    const void *d_out, *in;
    size_t elems;
    dtype type;
} gelu_backward_args;

/* Where queries, keys and values are: row (b,t) of q starts at q + (b*T+t)*q_stride, head h at +
 * h*D (k likewise, v with h*Dv), so they may be slices of one [B,T,3C] array. Strides are in
 * elements. */
typedef struct attention_shape {
    size_t q_stride, k_stride, v_stride;
    size_t batch, seq_len, n_head, n_kv_head;
    size_t head_dim, v_head_dim; /* D of q and k, Dv of v and out; neither is 0 */
    float scale;
    dtype type;
} attention_shape;

/* Causal attention, softmax(scale * q k^T) v, by head; key/value head of query head h is
 * h / (n_head / n_kv_head). out [B,T,n_head*Dv] dense; lse [B,n_head,T]: log of the softmax's
 * denominator (after scaling), kept for backward. O(T) memory beyond these. Scores and
 * probabilities are fp32; but `fast` with DTYPE_BF16 may round probabilities and, in backward, the
 * gradients of scores to bf16. */
typedef struct attention_args {
    void *out;
    float *lse;
    const void *q, *k, *v;
    attention_shape shape;
} attention_args;

/* d_q, d_k, d_v are overwritten, with the same strides as q, k, v.
 *   wide_kv  d_k and d_v are fp32 arrays, whatever the type, and not rounded */
typedef struct attention_backward_args {
    void *d_q, *d_k, *d_v;
    const void *d_out, *out, *q, *k, *v;
    const float *lse;
    attention_shape shape;
    bool wide_kv;
} attention_backward_args;

/* attention_backward_scratch_bytes -- device memory (MEM_OTHER) that attention_backward allocates
 * for partial sums in fp32. 0 if the outputs are fp32. */
size_t attention_backward_scratch_bytes(const attention_shape *shape);

/* What cross_entropy needs to know of each row of one block of a vocabulary: the largest logit, the
 * sum of exp(logit - top), and the logit of the target, if it is one of the block's tokens. */
typedef struct vocab_part {
    float top, sum, target;
} vocab_part;
enum { VOCAB_PART_LEVELS = 8, MOST_VOCAB_PARTS = 1 << (VOCAB_PART_LEVELS - 1) };

/* parts[r] describes row r of logits [rows,vocab], whose columns are the tokens of `cut`.
 *   stride  as a_stride of matmul */
typedef struct vocab_part_args {
    vocab_part *parts;
    const void *logits;
    const int32_t *targets;
    size_t rows, vocab, stride;
    dtype type;
    vocab_cut cut;
} vocab_part_args;

/* *loss = sum over rows of -log softmax(logits[r,:])[targets[r]] (accumulated in double, in
 * row order or, by `fast`, in one other order that depends on the shape alone; rounded once). When
 * d_logits is not NULL it becomes softmax - onehot (the gradient of that SUM, not of a mean);
 * d_logits == logits allowed. A row whose target is NO_TARGET adds nothing, and its gradient is 0.
 *
 *   logits_stride, d_logits_stride
 *          as a_stride of matmul; equal if d_logits == logits
 *   total  NULL, or [1], the sum over several calls, each for some of the rows: these rows are
 *          added to *total, one after the other (`fast` may sum them first), and *loss is *total
 *          rounded. The caller zeroes it before the first call; rows > 0
 *   leaves above 1: loss is [leaves], and each group of rows has its own; total is NULL
 *   parts  NULL, or [n_parts,rows] of all blocks of a vocabulary, of which logits is one (cut).
 *          Block i has ceil(cut.all / n_parts) tokens from that many times i on, as far as there
 *          are any. loss is that of the whole vocabulary, or NULL. The denominator is a tree over
 *          the blocks: n_parts is a power of two, at most MOST_VOCAB_PARTS */
enum { NO_TARGET = -100 }; /* ignore_index of PyTorch's cross_entropy */
typedef struct cross_entropy_args {
    float *loss;
    void *d_logits;
    const void *logits;
    const int32_t *targets;
    size_t rows, vocab, leaves;
    dtype type;
    double *total;
    size_t logits_stride, d_logits_stride;
    const vocab_part *parts;
    size_t n_parts;
    vocab_cut cut;
} cross_entropy_args;

/* cut_all -- how many tokens the vocabulary has of which a table holds `vocab`. cut_place -- the
 * row of a token in the table; vocab or more: it is not there. */
ROW_FN size_t cut_all(vocab_cut cut, size_t vocab)
{
    return cut.all ? cut.all : vocab;
}
ROW_FN size_t cut_place(vocab_cut cut, int32_t token)
{
    return (size_t)token - cut.first;
}

/* x[i] *= factor. */
typedef struct scale_args {
    float *x;
    float factor;
    size_t elems;
} scale_args;

/* A member for each operation: fsdp_status (*matmul)(stream *s, const matmul_args *a) ... The
 * arguments of cast and add are in sum_kernels.h, of norm, clip and AdamW in optim.h, and of the
 * other updates in update_rules.h. */
typedef struct ops {
    const char *name;
#define OP(op, ...) fsdp_status (*op)(stream *, const op##_args *);
#include "common/ops/op_list.h"
    const sum_kernels *sums; /* the kernels of running sums for this table */
    /* whether operations of `type` take `leaves`, and a row's results do not depend on the number
     * of rows in a call; NULL: no */
    bool (*leaves_sum)(dtype type);
} ops;

/* ops_cpu_fast -- the table of vector code and oneDNN; ops_cpu_portable -- the table of plain
 * C. Static: never freed. */
const ops *ops_cpu_fast(void);
const ops *ops_cpu_portable(void);
/* ops_cpu_library -- describe what multiplies matrices in ops_cpu_fast: the version of oneDNN,
 * which of this processor's instructions it uses, and which of our kernels stand in for it. */
void ops_cpu_library(char *text, size_t text_bytes);

/* adamw_scalars -- fill the scalar fields of *a from doubles, in one written order (powers by
 * repeated multiplication), each rounded to fp32 once. */
void adamw_scalars(adamw_args *a, const optim_config *c);

EXTERN_C_END
