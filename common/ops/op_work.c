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
static work_info cost(const char *name, double flops, double elems)
{
    return (work_info){.key = {.name = name}, .cost = {.flops = flops, .bytes = 4.0 * elems}};
}

/* `elems` elements stored as t, counted in elements of fp32. */
static double stored(double elems, dtype t)
{
    return elems * (double)dtype_bytes(t) / 4.0;
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

work_info matmul_work(const matmul_args *a)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    work_info w =
        cost("matmul", 2 * m * n * k,
             stored(m * k, a->a_type) + stored(k * n, a->b_type) + m * n * (a->accumulate ? 2 : 1));
    w.cost.bf16_flops = a->compute == DTYPE_BF16 ? w.cost.flops : 0;
    w.key = (work_key){"matmul", matmul_form(a), a->m, a->n, a->k};
    return w;
}

work_info bias_add_work(const bias_add_args *a)
{
    double n = (double)a->rows * (double)a->cols;
    return cost("bias_add", n, 2 * n + stored((double)a->cols, a->param_type));
}

work_info bias_backward_work(const bias_backward_args *a)
{
    double n = (double)a->rows * (double)a->cols;
    return cost("bias_backward", n, n + (a->overwrite ? 1 : 2) * (double)a->cols);
}

work_info embedding_work(const embedding_args *a)
{
    double rows = (double)a->batch * (double)a->seq_len, n = rows * (double)a->width;
    double wpe = a->wpe ? (double)a->seq_len * (double)a->width : 0;
    return cost("embedding", a->wpe ? n : 0, n + stored(n + wpe, a->param_type) + rows);
}

work_info embedding_backward_work(const embedding_backward_args *a)
{
    double rows = (double)a->batch * (double)a->seq_len, width = (double)a->width, n = rows * width;
    double d_wpe = a->d_wpe ? (double)a->seq_len * width : 0;
    size_t positions = a->d_wpe ? a->positions ? a->positions : a->seq_len : 0;
    double zeroed = a->overwrite ? (double)(a->vocab + positions) * width : 0;
    return cost("embedding_backward", a->d_wpe ? 2 * n : n, 3 * n + rows + 2 * d_wpe + zeroed);
}

work_info layernorm_work(const layernorm_args *a)
{
    double rows = (double)a->rows, cols = (double)a->cols, n = rows * cols;
    return cost("layernorm", 8 * n, 2 * n + stored(2 * cols, a->param_type) + 2 * rows);
}

work_info layernorm_backward_work(const layernorm_backward_args *a)
{
    double rows = (double)a->rows, cols = (double)a->cols, n = rows * cols;
    double residual = a->d_residual ? n : 0, grads = (a->overwrite ? 2 : 4) * cols;
    return cost("layernorm_backward", 18 * n + residual,
                3 * n + stored(cols, a->param_type) + grads + 2 * rows + residual);
}

work_info gelu_work(const gelu_args *a)
{
    return cost("gelu", 9 * (double)a->elems, 2 * (double)a->elems);
}

work_info gelu_backward_work(const gelu_backward_args *a)
{
    return cost("gelu_backward", 19 * (double)a->elems, 3 * (double)a->elems);
}

static work_info attention_cost(const char *name, const attention_args *a, double products,
                                double arrays)
{
    double B = (double)a->batch, T = (double)a->seq_len, H = (double)a->n_head;
    double D = (double)a->head_dim;
    return cost(name, products * B * H * T * T * D,
                arrays * B * T * D * (H + (double)a->n_kv_head) + B * H * T);
}

work_info attention_work(const attention_args *a)
{
    return attention_cost("attention", a, 2, 2);
}

work_info attention_backward_work(const attention_backward_args *a)
{
    const attention_args shape = {.batch = a->batch,
                                  .seq_len = a->seq_len,
                                  .n_head = a->n_head,
                                  .n_kv_head = a->n_kv_head,
                                  .head_dim = a->head_dim};
    return attention_cost("attention_backward", &shape, 5, 4);
}

work_info cross_entropy_work(const cross_entropy_args *a)
{
    double n = (double)a->rows * (double)a->vocab, grad = a->d_logits ? n : 0;
    return cost("cross_entropy", 4 * n + grad, n + grad + (double)a->rows + 1);
}

work_info cast_work(const cast_args *a)
{
    double n = (double)a->elems;
    return cost("cast", 0, stored(n, a->out_type) + stored(n, a->in_type));
}

work_info add_work(const add_args *a)
{
    const bool only_rounds = a->round_to != DTYPE_F32 && a->b == NULL;
    return cost("add", (double)a->elems, (only_rounds ? 2 : 3) * (double)a->elems);
}

work_info scale_work(const scale_args *a)
{
    return cost("scale", (double)a->elems, 2 * (double)a->elems);
}

work_info sum_squares_work(const sum_squares_args *a)
{
    return cost("sum_squares", 2 * (double)a->elems, (double)a->elems);
}

work_info clip_coef_work(const clip_coef_args *a)
{
    (void)a;
    return cost("clip_coef", 4, 2 + (double)sizeof(rsum) / 4);
}

work_info adamw_work(const adamw_args *a)
{
    return cost("adamw", 16 * (double)a->elems, 7 * (double)a->elems);
}

work_info sgd_work(const sgd_args *a)
{
    return cost("sgd", 5 * (double)a->elems, 3 * (double)a->elems);
}
