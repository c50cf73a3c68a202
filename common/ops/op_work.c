/* op_work.c -- see op_work.h.
 *
 * What a call costs, by its arguments. FLOPs: every addition, multiplication, division, root and
 * exponential counts 1. Elements moved: every array once per call, however often a kernel reads it,
 * and twice where it is read and written; 4 bytes each, 2 for what is stored in bf16. n = rows *
 * cols, B T C or elems; R = rows; P = cols or T C; letters of ops.h. [..] only if the argument is
 * there; what is "twice" of a gradient of parameters is once with overwrite.
 *
 *   operation            FLOPs                     elements moved
 *   matmul               2 m n k                   m k + k n + m n [+ m n accumulate]
 *     [bias]             + m n                     + n
 *     [residual]         + m n                     + m n
 *   bias_backward        n                         n + twice P
 *   embedding            [n wpe]                   2 n + B T [+ P wpe]
 *   embedding_backward   n [+ n d_wpe]             3 n + B T [+ 2 P d_wpe] [+ all rows overwrite]
 *   layernorm            8 n                       2 n + 2 P + 2 R
 *   layernorm_backward   18 n [+ n d_residual]     3 n + P + twice 2 P + 2 R [+ n d_residual]
 *   gelu                 9 n                       2 n
 *   gelu_backward        19 n                      3 n
 *   attention            4 B H T^2 D / 2           B T D (2 H + 2 Hkv) + B H T
 *   attention_backward   10 B H T^2 D / 2          B T D (4 H + 4 Hkv) + B H T
 *   cross_entropy        4 n [+ n d_logits]        n + R + 1 [+ n d_logits]
 *   cast                 0                         2 n
 *   add                  n                         3 n
 *   scale                n                         2 n
 *   sum_squares          2 n                       n
 *   clip_coef            4                         2 + sizeof(rsum) / 4
 *   adamw                16 n                      7 n: param, m, v twice, grad
 *   sgd                  5 n                       3 n: param twice, grad
 *
 * Attention: two matrix products forward, five backward, over the half of the T x T scores that the
 * causal mask leaves; the softmax between them is left out (its part is about 1 / D). */
#include "common/ops/op_work.h"

/* elems: of fp32, and of half of one where an element is stored in bf16. */
static op_work cost(const char *name, double flops, double elems)
{
    return (op_work){
        .info = {.key = {.name = name}, .cost = {.flops = flops, .bytes = 4.0 * elems}}};
}

/* `elems` elements stored as t, counted in elements of fp32. */
static double stored(double elems, dtype t)
{
    return elems * (double)dtype_bytes(t) / 4.0;
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

/* Arrays of t. */
static void reads(op_work *w, const void *array, size_t elems, dtype t)
{
    op_reads(w, array, elems * dtype_bytes(t));
}

static void writes(op_work *w, const void *array, size_t elems, dtype t)
{
    op_writes(w, array, elems * dtype_bytes(t));
}

/* Elements from the first to the last of `rows` rows, which begin `stride` elements apart. */
static size_t extent(size_t rows, size_t stride, size_t row_elems)
{
    return rows == 0 ? 0 : (rows - 1) * stride + row_elems;
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

op_work matmul_work(const matmul_args *a)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    double bias = a->bias ? n : 0, residual = a->residual ? m * n : 0, products = 2 * m * n * k;
    op_work w = cost("matmul", products + m * bias + residual,
                     stored(m * k + k * n + bias + residual, a->type) +
                         stored(m * n * (a->accumulate ? 2 : 1), a->out_type));
    w.info.cost.bf16_flops = a->type == DTYPE_BF16 ? products : 0;
    w.info.key = (work_key){"matmul", matmul_form(a), a->m, a->n, a->k};
    writes(&w, a->out, a->m * a->n, a->out_type);
    reads(&w, a->a, a->m * a->k, a->type);
    reads(&w, a->b, a->k * a->n, a->type);
    reads(&w, a->bias, a->n, a->type);
    reads(&w, a->residual, a->m * a->n, a->type);
    return w;
}

op_work bias_backward_work(const bias_backward_args *a)
{
    double n = (double)a->rows * (double)a->cols;
    op_work w =
        cost("bias_backward", n, stored(n, a->type) + (a->overwrite ? 1 : 2) * (double)a->cols);
    writes(&w, a->d_bias, a->cols, DTYPE_F32);
    reads(&w, a->d_out, a->rows * a->cols, a->type);
    return w;
}

op_work embedding_work(const embedding_args *a)
{
    double rows = (double)a->batch * (double)a->seq_len, n = rows * (double)a->width;
    double wpe = a->wpe ? (double)a->seq_len * (double)a->width : 0;
    op_work w = cost("embedding", a->wpe ? n : 0, stored(2 * n + wpe, a->type) + rows);
    size_t tokens = a->batch * a->seq_len;
    writes(&w, a->out, tokens * a->width, a->type);
    reads(&w, a->wte, a->vocab * a->width, a->type);
    reads(&w, a->wpe, a->seq_len * a->width, a->type);
    op_reads(&w, a->tokens, tokens * sizeof *a->tokens);
    return w;
}

op_work embedding_backward_work(const embedding_backward_args *a)
{
    double rows = (double)a->batch * (double)a->seq_len, width = (double)a->width, n = rows * width;
    double d_wpe = a->d_wpe ? (double)a->seq_len * width : 0;
    size_t all_positions = a->positions ? a->positions : a->seq_len;
    size_t positions = a->d_wpe ? all_positions : 0, tokens = a->batch * a->seq_len;
    double zeroed = a->overwrite ? (double)(a->vocab + positions) * width : 0;
    op_work w = cost("embedding_backward", a->d_wpe ? 2 * n : n,
                     stored(n, a->type) + 2 * n + rows + 2 * d_wpe + zeroed);
    writes(&w, a->d_wte, a->vocab * a->width, DTYPE_F32);
    writes(&w, a->d_wpe, (a->overwrite ? all_positions : a->seq_len) * a->width, DTYPE_F32);
    reads(&w, a->d_out, tokens * a->width, a->type);
    op_reads(&w, a->tokens, tokens * sizeof *a->tokens);
    return w;
}

op_work layernorm_work(const layernorm_args *a)
{
    double rows = (double)a->rows, cols = (double)a->cols, n = rows * cols;
    op_work w = cost("layernorm", 8 * n, stored(2 * n + 2 * cols, a->type) + 2 * rows);
    writes(&w, a->out, a->rows * a->cols, a->type);
    writes(&w, a->mean, a->rows, DTYPE_F32);
    writes(&w, a->rstd, a->rows, DTYPE_F32);
    reads(&w, a->in, a->rows * a->cols, a->type);
    reads(&w, a->gain, a->cols, a->type);
    reads(&w, a->bias, a->cols, a->type);
    return w;
}

op_work layernorm_backward_work(const layernorm_backward_args *a)
{
    double rows = (double)a->rows, cols = (double)a->cols, n = rows * cols;
    double residual = a->d_residual ? n : 0, grads = (a->overwrite ? 2 : 4) * cols;
    op_work w = cost("layernorm_backward", 18 * n + residual,
                     stored(3 * n + cols + residual, a->type) + grads + 2 * rows);
    writes(&w, a->d_in, a->rows * a->cols, a->type);
    writes(&w, a->d_gain, a->cols, DTYPE_F32);
    writes(&w, a->d_bias, a->cols, DTYPE_F32);
    reads(&w, a->d_out, a->rows * a->cols, a->type);
    reads(&w, a->in, a->rows * a->cols, a->type);
    reads(&w, a->gain, a->cols, a->type);
    reads(&w, a->mean, a->rows, DTYPE_F32);
    reads(&w, a->rstd, a->rows, DTYPE_F32);
    reads(&w, a->d_residual, a->rows * a->cols, a->type);
    return w;
}

op_work gelu_work(const gelu_args *a)
{
    op_work w = cost("gelu", 9 * (double)a->elems, stored(2 * (double)a->elems, a->type));
    writes(&w, a->out, a->elems, a->type);
    reads(&w, a->in, a->elems, a->type);
    return w;
}

op_work gelu_backward_work(const gelu_backward_args *a)
{
    op_work w = cost("gelu_backward", 19 * (double)a->elems, stored(3 * (double)a->elems, a->type));
    writes(&w, a->d_in, a->elems, a->type);
    reads(&w, a->d_out, a->elems, a->type);
    reads(&w, a->in, a->elems, a->type);
    return w;
}

static op_work attention_cost(const char *name, const attention_shape *x, double products,
                              double arrays)
{
    double B = (double)x->batch, T = (double)x->seq_len, H = (double)x->n_head;
    double D = (double)x->head_dim;
    return cost(name, products * B * H * T * T * D,
                stored(arrays * B * T * D * (H + (double)x->n_kv_head), x->type) + B * H * T);
}

/* What q, k and v hold, from the first to the last of their rows. */
typedef struct qkv_elems {
    size_t q, k, v;
} qkv_elems;

static qkv_elems qkv_elems_of(const attention_shape *x)
{
    size_t rows = x->batch * x->seq_len;
    size_t width = x->n_head * x->head_dim, kv_width = x->n_kv_head * x->head_dim;
    return (qkv_elems){extent(rows, x->q_stride, width), extent(rows, x->k_stride, kv_width),
                       extent(rows, x->v_stride, kv_width)};
}

op_work attention_work(const attention_args *a)
{
    const attention_shape *x = &a->shape;
    op_work w = attention_cost("attention", x, 2, 2);
    size_t rows = x->batch * x->seq_len;
    qkv_elems n = qkv_elems_of(x);
    writes(&w, a->out, rows * x->n_head * x->head_dim, x->type);
    writes(&w, a->lse, rows * x->n_head, DTYPE_F32);
    reads(&w, a->q, n.q, x->type);
    reads(&w, a->k, n.k, x->type);
    reads(&w, a->v, n.v, x->type);
    return w;
}

op_work attention_backward_work(const attention_backward_args *a)
{
    const attention_shape *x = &a->shape;
    op_work w = attention_cost("attention_backward", x, 5, 4);
    size_t rows = x->batch * x->seq_len, out_elems = rows * x->n_head * x->head_dim;
    qkv_elems n = qkv_elems_of(x);
    writes(&w, a->d_q, n.q, x->type);
    writes(&w, a->d_k, n.k, x->type);
    writes(&w, a->d_v, n.v, x->type);
    reads(&w, a->d_out, out_elems, x->type);
    reads(&w, a->out, out_elems, x->type);
    reads(&w, a->lse, rows * x->n_head, DTYPE_F32);
    reads(&w, a->q, n.q, x->type);
    reads(&w, a->k, n.k, x->type);
    reads(&w, a->v, n.v, x->type);
    return w;
}

op_work cross_entropy_work(const cross_entropy_args *a)
{
    double n = (double)a->rows * (double)a->vocab, grad = a->d_logits ? n : 0;
    op_work w =
        cost("cross_entropy", 4 * n + grad, stored(n + grad, a->type) + (double)a->rows + 1);
    writes(&w, a->loss, 1, DTYPE_F32);
    writes(&w, a->d_logits, a->rows * a->vocab, a->type);
    reads(&w, a->logits, a->rows * a->vocab, a->type);
    op_reads(&w, a->targets, a->rows * sizeof *a->targets);
    return w;
}

op_work cast_work(const cast_args *a)
{
    double n = (double)a->elems;
    op_work w = cost("cast", 0, stored(n, a->out_type) + stored(n, a->in_type));
    writes(&w, a->out, a->elems, a->out_type);
    reads(&w, a->in, a->elems, a->in_type);
    return w;
}

op_work add_work(const add_args *a)
{
    const bool only_rounds = a->round_to != DTYPE_F32 && a->b == NULL;
    op_work w = cost("add", (double)a->elems, (only_rounds ? 2 : 3) * (double)a->elems);
    writes(&w, a->out, a->elems, DTYPE_F32);
    reads(&w, a->a, a->elems, DTYPE_F32);
    reads(&w, a->b, a->elems, DTYPE_F32);
    return w;
}

op_work scale_work(const scale_args *a)
{
    op_work w = cost("scale", (double)a->elems, 2 * (double)a->elems);
    writes(&w, a->x, a->elems, DTYPE_F32);
    reads(&w, a->device_factor, 1, DTYPE_F32);
    return w;
}

op_work sum_squares_work(const sum_squares_args *a)
{
    op_work w = cost("sum_squares", 2 * (double)a->elems, (double)a->elems);
    op_writes(&w, a->sum, sizeof *a->sum);
    reads(&w, a->x, a->elems, DTYPE_F32);
    return w;
}

op_work clip_coef_work(const clip_coef_args *a)
{
    op_work w = cost("clip_coef", 4, 2 + (double)sizeof(rsum) / 4);
    writes(&w, a->norm, 1, DTYPE_F32);
    writes(&w, a->coef, 1, DTYPE_F32);
    op_reads(&w, a->sum, sizeof *a->sum);
    return w;
}

op_work adamw_work(const adamw_args *a)
{
    op_work w = cost("adamw", 16 * (double)a->elems, 7 * (double)a->elems);
    writes(&w, a->param, a->elems, DTYPE_F32);
    writes(&w, a->m, a->elems, DTYPE_F32);
    writes(&w, a->v, a->elems, DTYPE_F32);
    reads(&w, a->grad, a->elems, DTYPE_F32);
    reads(&w, a->grad_coef, 1, DTYPE_F32);
    return w;
}

op_work sgd_work(const sgd_args *a)
{
    op_work w = cost("sgd", 5 * (double)a->elems, 3 * (double)a->elems);
    writes(&w, a->param, a->elems, DTYPE_F32);
    reads(&w, a->grad, a->elems, DTYPE_F32);
    reads(&w, a->grad_coef, 1, DTYPE_F32);
    return w;
}
