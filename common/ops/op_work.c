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
 *   bias_add             n                         2 n + P
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

/* Arrays of fp32. */
static void reads(op_work *w, const float *array, size_t elems)
{
    op_reads(w, array, elems * sizeof *array);
}

static void writes(op_work *w, const float *array, size_t elems)
{
    op_writes(w, array, elems * sizeof *array);
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
    return FORMS[a->compute == DTYPE_BF16]
                [(a->trans_a ? 4 : 0) + (a->trans_b ? 2 : 0) + (a->accumulate ? 1 : 0)];
}

op_work matmul_work(const matmul_args *a)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    op_work w =
        cost("matmul", 2 * m * n * k,
             stored(m * k, a->a_type) + stored(k * n, a->b_type) + m * n * (a->accumulate ? 2 : 1));
    w.info.cost.bf16_flops = a->compute == DTYPE_BF16 ? w.info.cost.flops : 0;
    w.info.key = (work_key){"matmul", matmul_form(a), a->m, a->n, a->k};
    writes(&w, a->out, a->m * a->n);
    op_reads(&w, a->a, a->m * a->k * dtype_bytes(a->a_type));
    op_reads(&w, a->b, a->k * a->n * dtype_bytes(a->b_type));
    return w;
}

op_work bias_add_work(const bias_add_args *a)
{
    double n = (double)a->rows * (double)a->cols;
    op_work w = cost("bias_add", n, 2 * n + stored((double)a->cols, a->param_type));
    writes(&w, a->out, a->rows * a->cols);
    reads(&w, a->in, a->rows * a->cols);
    op_reads(&w, a->bias, a->cols * dtype_bytes(a->param_type));
    return w;
}

op_work bias_backward_work(const bias_backward_args *a)
{
    double n = (double)a->rows * (double)a->cols;
    op_work w = cost("bias_backward", n, n + (a->overwrite ? 1 : 2) * (double)a->cols);
    writes(&w, a->d_bias, a->cols);
    reads(&w, a->d_out, a->rows * a->cols);
    return w;
}

op_work embedding_work(const embedding_args *a)
{
    double rows = (double)a->batch * (double)a->seq_len, n = rows * (double)a->width;
    double wpe = a->wpe ? (double)a->seq_len * (double)a->width : 0;
    op_work w = cost("embedding", a->wpe ? n : 0, n + stored(n + wpe, a->param_type) + rows);
    size_t tokens = a->batch * a->seq_len, param_bytes = a->width * dtype_bytes(a->param_type);
    writes(&w, a->out, tokens * a->width);
    op_reads(&w, a->wte, a->vocab * param_bytes);
    op_reads(&w, a->wpe, a->seq_len * param_bytes);
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
    op_work w = cost("embedding_backward", a->d_wpe ? 2 * n : n, 3 * n + rows + 2 * d_wpe + zeroed);
    writes(&w, a->d_wte, a->vocab * a->width);
    writes(&w, a->d_wpe, (a->overwrite ? all_positions : a->seq_len) * a->width);
    reads(&w, a->d_out, tokens * a->width);
    op_reads(&w, a->tokens, tokens * sizeof *a->tokens);
    return w;
}

op_work layernorm_work(const layernorm_args *a)
{
    double rows = (double)a->rows, cols = (double)a->cols, n = rows * cols;
    op_work w = cost("layernorm", 8 * n, 2 * n + stored(2 * cols, a->param_type) + 2 * rows);
    writes(&w, a->out, a->rows * a->cols);
    writes(&w, a->mean, a->rows);
    writes(&w, a->rstd, a->rows);
    reads(&w, a->in, a->rows * a->cols);
    op_reads(&w, a->gain, a->cols * dtype_bytes(a->param_type));
    op_reads(&w, a->bias, a->cols * dtype_bytes(a->param_type));
    return w;
}

op_work layernorm_backward_work(const layernorm_backward_args *a)
{
    double rows = (double)a->rows, cols = (double)a->cols, n = rows * cols;
    double residual = a->d_residual ? n : 0, grads = (a->overwrite ? 2 : 4) * cols;
    op_work w = cost("layernorm_backward", 18 * n + residual,
                     3 * n + stored(cols, a->param_type) + grads + 2 * rows + residual);
    writes(&w, a->d_in, a->rows * a->cols);
    writes(&w, a->d_gain, a->cols);
    writes(&w, a->d_bias, a->cols);
    reads(&w, a->d_out, a->rows * a->cols);
    reads(&w, a->in, a->rows * a->cols);
    op_reads(&w, a->gain, a->cols * dtype_bytes(a->param_type));
    reads(&w, a->mean, a->rows);
    reads(&w, a->rstd, a->rows);
    reads(&w, a->d_residual, a->rows * a->cols);
    return w;
}

op_work gelu_work(const gelu_args *a)
{
    op_work w = cost("gelu", 9 * (double)a->elems, 2 * (double)a->elems);
    writes(&w, a->out, a->elems);
    reads(&w, a->in, a->elems);
    return w;
}

op_work gelu_backward_work(const gelu_backward_args *a)
{
    op_work w = cost("gelu_backward", 19 * (double)a->elems, 3 * (double)a->elems);
    writes(&w, a->d_in, a->elems);
    reads(&w, a->d_out, a->elems);
    reads(&w, a->in, a->elems);
    return w;
}

static op_work attention_cost(const char *name, const attention_args *a, double products,
                              double arrays)
{
    double B = (double)a->batch, T = (double)a->seq_len, H = (double)a->n_head;
    double D = (double)a->head_dim;
    return cost(name, products * B * H * T * T * D,
                arrays * B * T * D * (H + (double)a->n_kv_head) + B * H * T);
}

op_work attention_work(const attention_args *a)
{
    op_work w = attention_cost("attention", a, 2, 2);
    size_t rows = a->batch * a->seq_len;
    size_t width = a->n_head * a->head_dim, kv_width = a->n_kv_head * a->head_dim;
    writes(&w, a->out, rows * width);
    writes(&w, a->lse, rows * a->n_head);
    reads(&w, a->q, extent(rows, a->q_stride, width));
    reads(&w, a->k, extent(rows, a->k_stride, kv_width));
    reads(&w, a->v, extent(rows, a->v_stride, kv_width));
    return w;
}

op_work attention_backward_work(const attention_backward_args *a)
{
    const attention_args shape = {.batch = a->batch,
                                  .seq_len = a->seq_len,
                                  .n_head = a->n_head,
                                  .n_kv_head = a->n_kv_head,
                                  .head_dim = a->head_dim};
    op_work w = attention_cost("attention_backward", &shape, 5, 4);
    size_t rows = a->batch * a->seq_len;
    size_t width = a->n_head * a->head_dim, kv_width = a->n_kv_head * a->head_dim;
    size_t q_elems = extent(rows, a->q_stride, width);
    size_t k_elems = extent(rows, a->k_stride, kv_width);
    size_t v_elems = extent(rows, a->v_stride, kv_width);
    writes(&w, a->d_q, q_elems);
    writes(&w, a->d_k, k_elems);
    writes(&w, a->d_v, v_elems);
    reads(&w, a->d_out, rows * width);
    reads(&w, a->out, rows * width);
    reads(&w, a->lse, rows * a->n_head);
    reads(&w, a->q, q_elems);
    reads(&w, a->k, k_elems);
    reads(&w, a->v, v_elems);
    return w;
}

op_work cross_entropy_work(const cross_entropy_args *a)
{
    double n = (double)a->rows * (double)a->vocab, grad = a->d_logits ? n : 0;
    op_work w = cost("cross_entropy", 4 * n + grad, n + grad + (double)a->rows + 1);
    writes(&w, a->loss, 1);
    writes(&w, a->d_logits, a->rows * a->vocab);
    reads(&w, a->logits, a->rows * a->vocab);
    op_reads(&w, a->targets, a->rows * sizeof *a->targets);
    return w;
}

op_work cast_work(const cast_args *a)
{
    double n = (double)a->elems;
    op_work w = cost("cast", 0, stored(n, a->out_type) + stored(n, a->in_type));
    op_writes(&w, a->out, a->elems * dtype_bytes(a->out_type));
    op_reads(&w, a->in, a->elems * dtype_bytes(a->in_type));
    return w;
}

op_work add_work(const add_args *a)
{
    const bool only_rounds = a->round_to != DTYPE_F32 && a->b == NULL;
    op_work w = cost("add", (double)a->elems, (only_rounds ? 2 : 3) * (double)a->elems);
    writes(&w, a->out, a->elems);
    reads(&w, a->a, a->elems);
    reads(&w, a->b, a->elems);
    return w;
}

op_work scale_work(const scale_args *a)
{
    op_work w = cost("scale", (double)a->elems, 2 * (double)a->elems);
    writes(&w, a->x, a->elems);
    reads(&w, a->device_factor, 1);
    return w;
}

op_work sum_squares_work(const sum_squares_args *a)
{
    op_work w = cost("sum_squares", 2 * (double)a->elems, (double)a->elems);
    op_writes(&w, a->sum, sizeof *a->sum);
    reads(&w, a->x, a->elems);
    return w;
}

op_work clip_coef_work(const clip_coef_args *a)
{
    op_work w = cost("clip_coef", 4, 2 + (double)sizeof(rsum) / 4);
    writes(&w, a->norm, 1);
    writes(&w, a->coef, 1);
    op_reads(&w, a->sum, sizeof *a->sum);
    return w;
}

op_work adamw_work(const adamw_args *a)
{
    op_work w = cost("adamw", 16 * (double)a->elems, 7 * (double)a->elems);
    writes(&w, a->param, a->elems);
    writes(&w, a->m, a->elems);
    writes(&w, a->v, a->elems);
    reads(&w, a->grad, a->elems);
    reads(&w, a->grad_coef, 1);
    return w;
}

op_work sgd_work(const sgd_args *a)
{
    op_work w = cost("sgd", 5 * (double)a->elems, 3 * (double)a->elems);
    writes(&w, a->param, a->elems);
    reads(&w, a->grad, a->elems);
    reads(&w, a->grad_coef, 1);
    return w;
}
