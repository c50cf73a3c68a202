/* npu_ops_matmul.c -- products of matrices, and sums over their rows. See npu_ops.h.
 *
 * A bf16 product that is stored in bf16, without bias and residual, is one Mm. Any other product of
 * bf16 operands is computed in fp32, after casting the operands: A2's Mm stores its operands' type,
 * and adding a bias or a residual to a rounded product would round twice. The cast changes no
 * value. It costs (m + n) k fp32 numbers of memory, and the cube multiplies fp32 at a fraction of
 * the rate of bf16. In a step this applies to products with a bias or a residual, and to gradients
 * of weights; not to logits, Llama's q, k, v, gate and up, and most gradients of activations. */
#include "lab6_npu/npu_ops.h"

/* A view of an operand [rows,cols], which is stored as [cols,rows] if transposed. */
static npu_view operand(const void *ptr, dtype type, size_t rows, size_t cols, size_t stride,
                        bool transposed)
{
    return transposed ? view_transposed(view_rows(ptr, npu_type(type), cols, rows, stride))
                      : view_rows(ptr, npu_type(type), rows, cols, stride);
}

/* A matrix with the shape and the stride of a->out. */
static npu_view like_out(const matmul_args *a, const void *ptr, dtype type)
{
    return view_rows(ptr, npu_type(type), a->m, a->n, row_stride(a->out_stride, a->n));
}

/* out = a b, or += with accumulate; a, b and out all have type `type`. */
static fsdp_status multiply(stream *s, const matmul_args *a, void *out, dtype type)
{
    const size_t a_stride = matmul_a_stride(a), b_stride = a->trans_b ? a->k : a->n;
    const npu_view to = like_out(a, out, type);
    const npu_view left = operand(a->a, type, a->m, a->k, a_stride, a->trans_a);
    const npu_view right = operand(a->b, type, a->k, a->n, b_stride, a->trans_b);
    if (a->k == 0)
        return a->accumulate ? FSDP_OK : aclnn_zero(s, to);
    return a->accumulate ? aclnn_mm_add(s, to, left, right) : aclnn_mm(s, to, left, right);
}

/* Like multiply, for operands of any type; out is fp32. */
static fsdp_status multiply_wide(stream *s, const matmul_args *a, float *out)
{
    matmul_args wide = *a;
    const float *left = NULL, *right = NULL;
    float *left_scratch = NULL, *right_scratch = NULL;
    fsdp_status status = npu_widen(s, a->a, a->type, matmul_a_span(a), &left, &left_scratch);
    IF_OK(status, npu_widen(s, a->b, a->type, a->k * a->n, &right, &right_scratch));
    wide.a = left, wide.b = right;
    IF_OK(status, multiply(s, &wide, out, DTYPE_F32));
    device_free(s, right_scratch);
    device_free(s, left_scratch);
    return status;
}

/* products [m,n] += part [rows,n], which is repeated (broadcast) if rows is 1. */
static fsdp_status add_part(stream *s, const matmul_args *a, float *products, const void *part,
                            size_t rows)
{
    const size_t stride = row_stride(a->out_stride, a->n), elems = (rows - 1) * stride + a->n;
    const npu_view to = like_out(a, products, DTYPE_F32);
    const float *wide;
    float *scratch;
    if (part == NULL)
        return FSDP_OK;
    fsdp_status status = npu_widen(s, part, a->type, elems, &wide, &scratch);
    IF_OK(status, aclnn_add(s, to, to, view_rows(wide, ACL_FLOAT, rows, a->n, stride)));
    device_free(s, scratch);
    return status;
}

/* If out is the residual, or is not fp32, the products are computed in scratch memory. */
static fsdp_status multiply_and_finish(stream *s, const matmul_args *a)
{
    const bool elsewhere = a->out_type != DTYPE_F32 || a->residual == a->out;
    float *products = a->out;
    if (elsewhere)
        TRY(device_alloc_f32(s, MEM_OTHER, matmul_out_span(a), "products", &products));
    fsdp_status status = multiply_wide(s, a, products);
    IF_OK(status, add_part(s, a, products, a->bias, 1));
    IF_OK(status, add_part(s, a, products, a->residual, a->m));
    if (status == FSDP_OK && elsewhere)
        status = aclnn_cast(s, like_out(a, a->out, a->out_type), like_out(a, products, DTYPE_F32));
    if (elsewhere)
        device_free(s, products);
    return status;
}

static fsdp_status matmul_issue(stream *s, const void *args)
{
    const matmul_args *a = args;
    const bool plain = a->bias == NULL && a->residual == NULL && a->out_type == a->type;
    return plain ? multiply(s, a, a->out, a->type) : multiply_and_finish(s, a);
}

ISSUED(matmul)

/* ---- matmul_finish --------------------------------------------------------------------------- */

static fsdp_status matmul_finish_issue(stream *s, const void *args)
{
    const matmul_finish_args *f = args;
    const matmul_args *a = &f->of;
    TRY(add_part(s, a, f->products, a->bias, 1));
    TRY(add_part(s, a, f->products, a->residual, a->m));
    return a->out == f->products ? FSDP_OK
                                 : aclnn_cast(s, like_out(a, a->out, a->out_type),
                                              like_out(a, f->products, DTYPE_F32));
}

ISSUED(matmul_finish)

/* ---- bias_backward --------------------------------------------------------------------------- */

static fsdp_status bias_backward_issue(stream *s, const void *args)
{
    const bias_backward_args *a = args;
    const npu_view rows = view_2d(a->d_out, npu_type(a->type), a->rows, a->cols);
    float *sum = a->d_bias;
    if (a->rows == 0)
        return aclnn_zero(s, view_f32(a->d_bias, a->cols));
    if (a->overwrite)
        return aclnn_reduce_sum(s, view_f32(sum, a->cols), rows);
    TRY(device_alloc_f32(s, MEM_OTHER, a->cols, "sum of rows", &sum));
    fsdp_status status = aclnn_reduce_sum(s, view_f32(sum, a->cols), rows);
    IF_OK(status, npu_add_grad(s, a->d_bias, sum, a->cols));
    device_free(s, sum);
    return status;
}

ISSUED(bias_backward)
