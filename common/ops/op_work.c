/* op_work.c -- see op_work.h.
 *
 * The cost of a call, from its arguments. FLOPs: each addition, multiplication, division, root and
 * exponential counts 1. Elements moved: each array counts once per call, however often a kernel
 * reads it, and twice if it is read and written. An element is 4 bytes, or 2 in bf16. n = rows *
 * cols, B T C or elems; R = rows; P = cols or T C; other letters as in ops.h. [..]: only if that
 * argument is not NULL. "twice" on a gradient of parameters is once with overwrite. The bytes are
 * summed while the accesses are listed.
 *
 *   operation            FLOPs                     elements moved
 *   matmul               2 m n k                   m k + k n + m n [+ m n accumulate]
 *     [bias]             + m n                     + n
 *     [residual]         + m n                     + m n
 *   bias_backward        n                         n + twice P
 *   embedding            [n wpe]                   2 n + B T [+ P wpe]
 *   embedding_backward   n [+ n d_wpe]             3 n + B T [+ 2 P d_wpe]
 *   layernorm            8 n                       2 n + 2 P + 2 R
 *   layernorm_backward   18 n [+ n d_residual]     3 n + P + twice 2 P + 2 R [+ n d_residual]
 *   rmsnorm              4 n                       2 n + P + R
 *   rmsnorm_backward     12 n [+ n d_residual]     3 n + P + twice P + R [+ n d_residual]
 *   rope                 3 n + 8 B T D             2 n
 *   swiglu               5 n                       3 n
 *   swiglu_backward      14 n                      5 n
 *   gelu                 9 n                       2 n
 *   gelu_backward        19 n                      3 n
 *   conv2d               n (2 q + 1)               n + i + w + Cout
 *   conv2d_backward                                n
 *     [d_in]             + 2 n q                   + i + w
 *     [d_weight]         + 2 n q                   + i + twice w
 *     [d_bias]           + n                       + twice Cout
 *   max_pool2d           0                         i + n
 *   max_pool2d_backward  0                         2 i + n
 *   relu                 0                         2 n
 *   relu_backward        0                         3 n
 *   dropout              n                         2 n
 *   attention            B H T^2 (2 D + 2 Dv) / 2  B T (D + Dv) (H + Hkv) + B H T
 *   attention_backward   B H T^2 (6 D + 4 Dv) / 2  2 B T (D + Dv) (H + Hkv) + B H T
 *   cross_entropy        4 n [+ n d_logits]        n + R + 1 [+ n d_logits]
 *   cast                 0                         2 n
 *   add                  n                         2 n [+ n b]
 *   scale                n                         2 n
 *   sum_squares          2 n                       n
 *   clip_coef            4                         2 + sizeof(rsum) / 4
 *   adamw                16 n                      7 n: param, m, v twice, grad
 *   sgd                  5 n                       3 n: param twice, grad
 *     [momentum_buffer]  + 2 n [+ 2 n nesterov]    + 2 n
 *   adadelta             19 n                      7 n: param, averages twice, grad
 *
 * Images: n and i are the elements of forward's output and of its input; q = Cin K^2, w = Cout q.
 *
 * Attention: two matrix products forward, five backward, over the half of the T x T scores that the
 * causal mask leaves. The softmax between them is not counted (its share is about 1 / D). */
#include "common/ops/op_work.h"

/* FSDP_EINVAL unless the operation's arrays may be stored as t. */
static fsdp_status check_type(const char *op, dtype t)
{
    if (t == DTYPE_F32 || t == DTYPE_BF16)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass DTYPE_F32 or DTYPE_BF16",
                      "%s: elements stored as %s, expected f32 or bf16", op, dtype_name(t));
}

/* type: how the caller's arrays are stored; elems: the number of elements to compute. */
static op_work begin(const char *name, dtype type, size_t elems, double flops)
{
    const fsdp_status status = check_type(name, type);
    return (op_work){.ends = elems == 0 || status != FSDP_OK,
                     .status = status,
                     .info = {.key = {.name = name}, .cost = {.flops = flops}}};
}

/* Record the status of a further check of the arguments. */
static void add_check(op_work *w, fsdp_status status)
{
    w->status = status;
    w->ends = w->ends || status != FSDP_OK;
}

static void add_access(op_work *w, const void *ptr, size_t bytes, bool writes)
{
    if (ptr == NULL || bytes == 0)
        return;
    FSDP_ASSERT(w->n_accesses < OP_MAX_ACCESSES);
    w->accesses[w->n_accesses++] = (mem_access){ptr, bytes, writes};
}

void op_reads(op_work *w, const void *ptr, size_t bytes)
{
    add_access(w, ptr, bytes, false);
}

void op_writes(op_work *w, const void *ptr, size_t bytes)
{
    add_access(w, ptr, bytes, true);
}

/* Add to the bytes of the cost; the functions below do so for each access that they list. The bytes
 * of a layer's arrays stay far below 2^53, so the sums in double are exact. */
static void moves(op_work *w, size_t elems, dtype t)
{
    w->info.cost.bytes += (double)elems * (double)dtype_bytes(t);
}

static void reads(op_work *w, const void *array, size_t elems, dtype t)
{
    moves(w, elems, t);
    op_reads(w, array, elems * dtype_bytes(t));
}

static void writes(op_work *w, const void *array, size_t elems, dtype t)
{
    moves(w, elems, t);
    op_writes(w, array, elems * dtype_bytes(t));
}

/* List an output: read and written if `adds`, else only written. */
static void delivers(op_work *w, const void *array, size_t elems, dtype t, bool adds)
{
    moves(w, adds ? elems : 0, t);
    writes(w, array, elems, t);
}

/* Tokens are int32, as large as an fp32. */
static void reads_tokens(op_work *w, const int32_t *tokens, size_t n)
{
    reads(w, tokens, n, DTYPE_F32);
}

/* The elements of an optional array: 0 if it is NULL. */
static size_t if_there(const void *array, size_t elems)
{
    return array != NULL ? elems : 0;
}

/* NN, NT, TN, TT: which of a and b is stored transposed; + when it accumulates. */
static const char *matmul_form(const matmul_args *a)
{
    static const char *const FORMS[2][8] = {{"NN", "NN+", "NT", "NT+", "TN", "TN+", "TT", "TT+"},
                                            {"NN bf16", "NN+ bf16", "NT bf16", "NT+ bf16",
                                             "TN bf16", "TN+ bf16", "TT bf16", "TT+ bf16"}};
    return FORMS[a->type == DTYPE_BF16]
                [(a->trans_a ? 4 : 0) + (a->trans_b ? 2 : 0) + (a->accumulate ? 1 : 0)];
}

/* Whether a matmul takes these types, bias and residual. */
static fsdp_status check_matmul(const matmul_args *a)
{
    if (a->out_type != a->type && a->out_type != DTYPE_F32)
        return fsdp_error(FSDP_EINVAL, "store what a matmul makes as its operands, or in fp32",
                          "matmul: out as %s, expected f32 or %s", dtype_name(a->out_type),
                          dtype_name(a->type));
    if (a->accumulate && (a->out_type != DTYPE_F32 || a->bias || a->residual))
        return fsdp_error(FSDP_EINVAL, "accumulate in fp32; add bias and residual by another call",
                          "matmul: accumulates in %s %s bias or residual, expected f32 without",
                          dtype_name(a->out_type), a->bias || a->residual ? "with" : "without");
    return FSDP_OK;
}

op_work matmul_work(const matmul_args *a)
{
    size_t bias = if_there(a->bias, a->n), residual = if_there(a->residual, a->m * a->n);
    double products = 2 * (double)a->m * (double)a->n * (double)a->k;
    op_work w = begin("matmul", a->type, a->m * a->n * (a->accumulate ? a->k : 1),
                      products + (double)(a->m * bias) + (double)residual);
    if (w.status == FSDP_OK)
        add_check(&w, check_matmul(a));
    w.info.cost.bf16_flops = a->type == DTYPE_BF16 ? products : 0;
    w.info.key = (work_key){"matmul", matmul_form(a), a->m, a->n, a->k};
    delivers(&w, a->out, a->m * a->n, a->out_type, a->accumulate);
    reads(&w, a->a, a->m * a->k, a->type);
    reads(&w, a->b, a->k * a->n, a->type);
    reads(&w, a->bias, bias, a->type);
    reads(&w, a->residual, residual, a->type);
    return w;
}

op_work bias_backward_work(const bias_backward_args *a)
{
    size_t n = a->rows * a->cols;
    op_work w = begin("bias_backward", a->type, a->overwrite ? a->cols : n, (double)n);
    delivers(&w, a->d_bias, a->cols, DTYPE_F32, !a->overwrite);
    reads(&w, a->d_out, n, a->type);
    return w;
}

/* Any row of wte may be read, so the access is all of wte; the moved bytes are a row for each
 * token. */
op_work embedding_work(const embedding_args *a)
{
    size_t tokens = a->batch * a->seq_len, n = tokens * a->width;
    op_work w = begin("embedding", a->type, n, a->wpe ? (double)n : 0);
    writes(&w, a->out, n, a->type);
    moves(&w, n, a->type);
    op_reads(&w, a->wte, a->vocab * a->width * dtype_bytes(a->type));
    reads(&w, a->wpe, if_there(a->wpe, a->seq_len * a->width), a->type);
    reads_tokens(&w, a->tokens, tokens);
    return w;
}

op_work embedding_backward_work(const embedding_backward_args *a)
{
    size_t tokens = a->batch * a->seq_len, n = tokens * a->width;
    size_t d_wpe = if_there(a->d_wpe, a->seq_len * a->width);
    op_work w = begin("embedding_backward", a->type, n, a->d_wpe ? 2 * (double)n : (double)n);
    moves(&w, 2 * n, DTYPE_F32);
    op_writes(&w, a->d_wte, a->vocab * a->width * sizeof(float));
    delivers(&w, a->d_wpe, d_wpe, DTYPE_F32, true);
    reads(&w, a->d_out, n, a->type);
    reads_tokens(&w, a->tokens, tokens);
    return w;
}

op_work layernorm_work(const layernorm_args *a)
{
    size_t n = a->rows * a->cols;
    op_work w = begin("layernorm", a->type, n, 8 * (double)n);
    writes(&w, a->out, n, a->type);
    writes(&w, a->mean, a->rows, DTYPE_F32);
    writes(&w, a->rstd, a->rows, DTYPE_F32);
    reads(&w, a->in, n, a->type);
    reads(&w, a->gain, a->cols, a->type);
    reads(&w, a->bias, a->cols, a->type);
    return w;
}

op_work layernorm_backward_work(const layernorm_backward_args *a)
{
    size_t n = a->rows * a->cols, residual = if_there(a->d_residual, n);
    op_work w = begin("layernorm_backward", a->type, a->overwrite ? a->cols : n,
                      18 * (double)n + (double)residual);
    writes(&w, a->d_in, n, a->type);
    delivers(&w, a->d_gain, a->cols, DTYPE_F32, !a->overwrite);
    delivers(&w, a->d_bias, a->cols, DTYPE_F32, !a->overwrite);
    reads(&w, a->d_out, n, a->type);
    reads(&w, a->in, n, a->type);
    reads(&w, a->gain, a->cols, a->type);
    reads(&w, a->mean, a->rows, DTYPE_F32);
    reads(&w, a->rstd, a->rows, DTYPE_F32);
    reads(&w, a->d_residual, residual, a->type);
    return w;
}

op_work rmsnorm_work(const rmsnorm_args *a)
{
    size_t n = a->rows * a->cols;
    op_work w = begin("rmsnorm", a->type, n, 4 * (double)n);
    writes(&w, a->out, n, a->type);
    writes(&w, a->rstd, a->rows, DTYPE_F32);
    reads(&w, a->in, n, a->type);
    reads(&w, a->gain, a->cols, a->type);
    return w;
}

op_work rmsnorm_backward_work(const rmsnorm_backward_args *a)
{
    size_t n = a->rows * a->cols, residual = if_there(a->d_residual, n);
    op_work w = begin("rmsnorm_backward", a->type, a->overwrite ? a->cols : n,
                      12 * (double)n + (double)residual);
    writes(&w, a->d_in, n, a->type);
    delivers(&w, a->d_gain, a->cols, DTYPE_F32, !a->overwrite);
    reads(&w, a->d_out, n, a->type);
    reads(&w, a->in, n, a->type);
    reads(&w, a->gain, a->cols, a->type);
    reads(&w, a->rstd, a->rows, DTYPE_F32);
    reads(&w, a->d_residual, residual, a->type);
    return w;
}

op_work rope_work(const rope_args *a)
{
    const size_t rows = a->batch * a->seq_len, width = a->n_head * a->head_dim, n = rows * width;
    op_work w = begin("rope", a->type, n, 3 * (double)n + 8 * (double)(rows * a->head_dim));
    FSDP_ASSERT(w.ends || (a->head_dim % 2 == 0 && a->head_dim <= 2 * ROPE_MAX_PAIRS));
    moves(&w, 2 * n, a->type);
    op_writes(&w, a->x, rows ? ((rows - 1) * a->stride + width) * dtype_bytes(a->type) : 0);
    return w;
}

op_work swiglu_work(const swiglu_args *a)
{
    op_work w = begin("swiglu", a->type, a->elems, 5 * (double)a->elems);
    writes(&w, a->out, a->elems, a->type);
    reads(&w, a->gate, a->elems, a->type);
    reads(&w, a->up, a->elems, a->type);
    return w;
}

op_work swiglu_backward_work(const swiglu_backward_args *a)
{
    op_work w = begin("swiglu_backward", a->type, a->elems, 14 * (double)a->elems);
    writes(&w, a->d_gate, a->elems, a->type);
    writes(&w, a->d_up, a->elems, a->type);
    reads(&w, a->d_out, a->elems, a->type);
    reads(&w, a->gate, a->elems, a->type);
    reads(&w, a->up, a->elems, a->type);
    return w;
}

op_work gelu_work(const gelu_args *a)
{
    op_work w = begin("gelu", a->type, a->elems, 9 * (double)a->elems);
    writes(&w, a->out, a->elems, a->type);
    reads(&w, a->in, a->elems, a->type);
    return w;
}

op_work gelu_backward_work(const gelu_backward_args *a)
{
    op_work w = begin("gelu_backward", a->type, a->elems, 19 * (double)a->elems);
    writes(&w, a->d_in, a->elems, a->type);
    reads(&w, a->d_out, a->elems, a->type);
    reads(&w, a->in, a->elems, a->type);
    return w;
}

/* Elements of a batch of input images. */
static size_t conv_in_elems(const conv_shape *x)
{
    return x->batch * x->in_channels * x->height * x->width;
}

static size_t conv_out_elems(const conv_shape *x)
{
    return x->batch * x->out_channels * (x->height + 1 - x->kernel) * (x->width + 1 - x->kernel);
}

static size_t conv_weight_elems(const conv_shape *x)
{
    return x->out_channels * x->in_channels * x->kernel * x->kernel;
}

/* products: how many matrix products of forward's size the call computes. elems: the number of
 * elements to compute; ignored if the shape is refused. */
static op_work begin_conv(const char *name, const conv_shape *x, double products, size_t elems)
{
    const double macs =
        products * (double)conv_out_elems(x) * (double)(x->in_channels * x->kernel * x->kernel);
    op_work w = begin(name, x->type, elems, 2 * macs);
    w.info.cost.bf16_flops = x->type == DTYPE_BF16 ? 2 * macs : 0;
    if (w.status == FSDP_OK && (x->kernel == 0 || x->kernel > x->height || x->kernel > x->width))
        add_check(&w, fsdp_error(FSDP_EINVAL, "use a kernel that fits into the image",
                                 "%s: a kernel of %zu x %zu, expected 1 to %zu rows and columns, "
                                 "for images of %zu x %zu",
                                 name, x->kernel, x->kernel,
                                 x->height < x->width ? x->height : x->width, x->height, x->width));
    if (w.status == FSDP_OK && (x->in_channels == 0 || x->out_channels == 0))
        add_check(&w, fsdp_error(FSDP_EINVAL, "use at least one channel on both sides",
                                 "%s: %zu channels to %zu, expected 1 or more", name,
                                 x->in_channels, x->out_channels));
    return w;
}

op_work conv2d_work(const conv2d_args *a)
{
    const conv_shape *x = &a->shape;
    const size_t n = conv_out_elems(x);
    op_work w = begin_conv("conv2d", x, 1, n);
    w.info.cost.flops += (double)n;
    writes(&w, a->out, n, x->type);
    reads(&w, a->in, conv_in_elems(x), x->type);
    reads(&w, a->weight, conv_weight_elems(x), x->type);
    reads(&w, a->bias, x->out_channels, x->type);
    return w;
}

op_work conv2d_backward_work(const conv2d_backward_args *a)
{
    const conv_shape *x = &a->shape;
    const size_t n = conv_out_elems(x), in = conv_in_elems(x), weight = conv_weight_elems(x);
    const int products = (a->d_in != NULL) + (a->d_weight != NULL);
    op_work w = begin_conv("conv2d_backward", x, products, a->overwrite ? weight : n);
    w.info.cost.flops += (double)if_there(a->d_bias, n);
    writes(&w, a->d_in, if_there(a->d_in, in), x->type);
    delivers(&w, a->d_weight, if_there(a->d_weight, weight), DTYPE_F32, !a->overwrite);
    delivers(&w, a->d_bias, if_there(a->d_bias, x->out_channels), DTYPE_F32, !a->overwrite);
    reads(&w, a->d_out, n, x->type);
    reads(&w, a->in, if_there(a->d_weight, in), x->type);
    reads(&w, a->weight, if_there(a->d_in, weight), x->type);
    return w;
}

op_work max_pool2d_work(const max_pool2d_args *a)
{
    const size_t n = a->planes * (a->height / 2) * (a->width / 2);
    op_work w = begin("max_pool2d", a->type, n, 0);
    writes(&w, a->out, n, a->type);
    reads(&w, a->in, a->planes * a->height * a->width, a->type);
    return w;
}

op_work max_pool2d_backward_work(const max_pool2d_backward_args *a)
{
    const size_t in = a->planes * a->height * a->width;
    op_work w = begin("max_pool2d_backward", a->type, in, 0);
    writes(&w, a->d_in, in, a->type);
    reads(&w, a->d_out, a->planes * (a->height / 2) * (a->width / 2), a->type);
    reads(&w, a->in, in, a->type);
    return w;
}

op_work relu_work(const relu_args *a)
{
    op_work w = begin("relu", a->type, a->elems, 0);
    writes(&w, a->out, a->elems, a->type);
    reads(&w, a->in, a->elems, a->type);
    return w;
}

op_work relu_backward_work(const relu_backward_args *a)
{
    op_work w = begin("relu_backward", a->type, a->elems, 0);
    writes(&w, a->d_in, a->elems, a->type);
    reads(&w, a->d_out, a->elems, a->type);
    reads(&w, a->in, a->elems, a->type);
    return w;
}

op_work dropout_work(const dropout_args *a)
{
    const size_t n = a->samples * a->width;
    op_work w = begin("dropout", a->type, n, (double)n);
    if (w.status == FSDP_OK && !(a->p >= 0.0f && a->p < 1.0f))
        add_check(&w, fsdp_error(FSDP_EINVAL, "drop with a probability from 0 to below 1",
                                 "dropout: p is %g, expected 0 <= p < 1", (double)a->p));
    writes(&w, a->out, n, a->type);
    reads(&w, a->in, n, a->type);
    return w;
}

/* Attention with `products` and `v_products` matrix products, of width D and of width Dv, over the
 * half of the scores that the mask leaves. n_head must be a multiple of n_kv_head. */
static op_work begin_attention(const char *name, const attention_shape *x, double products,
                               double v_products)
{
    const double heads = (double)(x->batch * x->n_head), T = (double)x->seq_len;
    const double widths = products * (double)x->head_dim + v_products * (double)x->v_head_dim;
    op_work w = begin(name, x->type, x->batch * x->n_head * x->seq_len, heads * T * T * widths);
    if (!w.ends && (x->head_dim == 0 || x->v_head_dim == 0))
        add_check(&w,
                  fsdp_error(FSDP_EINVAL, "set both widths, v_head_dim too where they are equal",
                             "%s: heads of q and k are %zu wide and heads of v %zu, expected "
                             "at least 1",
                             name, x->head_dim, x->v_head_dim));
    FSDP_ASSERT(w.ends || (x->n_kv_head > 0 && x->n_head % x->n_kv_head == 0));
    return w;
}

/* List an access to all rows of heads: `width` elements each, beginning `stride` elements apart.
 * The accessed range includes the elements between the rows, but these are not counted as moved. */
static void heads_access(op_work *w, const attention_shape *x, const void *array, size_t stride,
                         size_t width, bool writes)
{
    size_t rows = x->batch * x->seq_len;
    size_t extent = rows == 0 ? 0 : (rows - 1) * stride + width;
    moves(w, rows * width, x->type);
    add_access(w, array, extent * dtype_bytes(x->type), writes);
}

op_work attention_work(const attention_args *a)
{
    const attention_shape *x = &a->shape;
    const size_t H = x->n_head, KV = x->n_kv_head, rows = x->batch * x->seq_len;
    op_work w = begin_attention("attention", x, 1, 1);
    writes(&w, a->out, rows * H * x->v_head_dim, x->type);
    writes(&w, a->lse, rows * H, DTYPE_F32);
    heads_access(&w, x, a->q, x->q_stride, H * x->head_dim, false);
    heads_access(&w, x, a->k, x->k_stride, KV * x->head_dim, false);
    heads_access(&w, x, a->v, x->v_stride, KV * x->v_head_dim, false);
    return w;
}

op_work attention_backward_work(const attention_backward_args *a)
{
    const attention_shape *x = &a->shape;
    const size_t H = x->n_head, KV = x->n_kv_head, rows = x->batch * x->seq_len;
    op_work w = begin_attention("attention_backward", x, 3, 2);
    heads_access(&w, x, a->d_q, x->q_stride, H * x->head_dim, true);
    heads_access(&w, x, a->d_k, x->k_stride, KV * x->head_dim, true);
    heads_access(&w, x, a->d_v, x->v_stride, KV * x->v_head_dim, true);
    reads(&w, a->d_out, rows * H * x->v_head_dim, x->type);
    reads(&w, a->out, rows * H * x->v_head_dim, x->type);
    reads(&w, a->lse, rows * H, DTYPE_F32);
    heads_access(&w, x, a->q, x->q_stride, H * x->head_dim, false);
    heads_access(&w, x, a->k, x->k_stride, KV * x->head_dim, false);
    heads_access(&w, x, a->v, x->v_stride, KV * x->v_head_dim, false);
    return w;
}

op_work cross_entropy_work(const cross_entropy_args *a)
{
    size_t n = a->rows * a->vocab, grad = if_there(a->d_logits, n);
    op_work w = begin("cross_entropy", a->type, 1, 4 * (double)n + (double)grad);
    writes(&w, a->loss, 1, DTYPE_F32);
    op_writes(&w, a->total, a->total ? sizeof *a->total : 0);
    writes(&w, a->d_logits, grad, a->type);
    reads(&w, a->logits, n, a->type);
    reads_tokens(&w, a->targets, a->rows);
    return w;
}

op_work cast_work(const cast_args *a)
{
    op_work w = begin("cast", a->in_type, a->elems, 0);
    if (w.status == FSDP_OK)
        add_check(&w, check_type("cast", a->out_type));
    writes(&w, a->out, a->elems, a->out_type);
    reads(&w, a->in, a->elems, a->in_type);
    return w;
}

op_work add_work(const add_args *a)
{
    op_work w = begin("add", DTYPE_F32, a->elems, (double)a->elems);
    FSDP_ASSERT(w.ends || a->round_to == DTYPE_BF16 || (a->round_to == DTYPE_F32 && a->b));
    writes(&w, a->out, a->elems, DTYPE_F32);
    reads(&w, a->a, a->elems, DTYPE_F32);
    reads(&w, a->b, if_there(a->b, a->elems), DTYPE_F32);
    return w;
}

op_work scale_work(const scale_args *a)
{
    op_work w = begin("scale", DTYPE_F32, a->elems, (double)a->elems);
    delivers(&w, a->x, a->elems, DTYPE_F32, true);
    return w;
}

op_work sum_squares_work(const sum_squares_args *a)
{
    op_work w = begin("sum_squares", DTYPE_F32, a->elems, 2 * (double)a->elems);
    op_writes(&w, a->sum, sizeof *a->sum);
    reads(&w, a->x, a->elems, DTYPE_F32);
    return w;
}

op_work clip_coef_work(const clip_coef_args *a)
{
    op_work w = begin("clip_coef", DTYPE_F32, 1, 4);
    writes(&w, a->norm, 1, DTYPE_F32);
    writes(&w, a->coef, 1, DTYPE_F32);
    reads(&w, a->sum, RSUM_BINS, DTYPE_I64);
    return w;
}

op_work adamw_work(const adamw_args *a)
{
    op_work w = begin("adamw", DTYPE_F32, a->elems, 16 * (double)a->elems);
    delivers(&w, a->param, a->elems, DTYPE_F32, true);
    delivers(&w, a->m, a->elems, DTYPE_F32, true);
    delivers(&w, a->v, a->elems, DTYPE_F32, true);
    reads(&w, a->grad, a->elems, DTYPE_F32);
    op_reads(&w, a->grad_coef, sizeof *a->grad_coef);
    return w;
}

op_work sgd_work(const sgd_args *a)
{
    const double flops = a->momentum_buffer == NULL ? 5 : a->nesterov ? 9 : 7;
    op_work w = begin("sgd", DTYPE_F32, a->elems, flops * (double)a->elems);
    delivers(&w, a->param, a->elems, DTYPE_F32, true);
    delivers(&w, a->momentum_buffer, if_there(a->momentum_buffer, a->elems), DTYPE_F32, true);
    reads(&w, a->grad, a->elems, DTYPE_F32);
    op_reads(&w, a->grad_coef, sizeof *a->grad_coef);
    return w;
}

op_work adadelta_work(const adadelta_args *a)
{
    op_work w = begin("adadelta", DTYPE_F32, a->elems, 19 * (double)a->elems);
    delivers(&w, a->param, a->elems, DTYPE_F32, true);
    delivers(&w, a->square_avg, a->elems, DTYPE_F32, true);
    delivers(&w, a->acc_delta, a->elems, DTYPE_F32, true);
    reads(&w, a->grad, a->elems, DTYPE_F32);
    op_reads(&w, a->grad_coef, sizeof *a->grad_coef);
    return w;
}
