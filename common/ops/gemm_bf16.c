/* gemm_bf16.c -- a gemm on operands of which one or both are stored in bf16, by way of an fp32
 * gemm.
 *
 * Pieces of k are expanded to fp32 on the stack, so that no copy of an operand as a whole is made:
 *
 *     for each piece of KC along k: expand what is bf16, c += piece of a * piece of b */
#include "common/ops/cpu_kernels.h"

enum { KC = 256 }; /* a tile's piece of a is then 256 kB, of b 384 kB */

/* out[rows,cols] dense = in[rows,cols] with stride ld. */
static void expand(const uint16_t *in, size_t ld, size_t rows, size_t cols, float *restrict out)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            out[r * cols + c] = f32_from_bf16(in[r * ld + c]);
}

typedef struct operand {
    const void *x;
    dtype type;
    bool along_rows; /* k runs along the stored rows' numbers */
    size_t width;    /* the other dimension */
} operand;

/* An operand's piece of `depth` along k from p0 on, as fp32: where it stands, or expanded into buf.
 * *ld: the stored stride, which becomes that of what is returned. */
static const float *piece_of(operand o, size_t p0, size_t depth, size_t *ld, float *buf)
{
    const size_t at = o.along_rows ? p0 * *ld : p0;
    if (o.type == DTYPE_F32)
        return (const float *)o.x + at;
    const size_t rows = o.along_rows ? depth : o.width, cols = o.along_rows ? o.width : depth;
    expand((const uint16_t *)o.x + at, *ld, rows, cols, buf);
    *ld = cols;
    return buf;
}

fsdp_status gemm_expanded(const gemm_mixed_args *x, gemm_fn f32)
{
    _Alignas(64) float a[MATMUL_TILE_M * KC];
    _Alignas(64) float b[KC * MATMUL_TILE_N];
    FSDP_ASSERT(x->g.m <= MATMUL_TILE_M && x->g.n <= MATMUL_TILE_N);
    const operand op_a = {x->a, x->a_type, x->g.trans_a, x->g.m};
    const operand op_b = {x->b, x->b_type, !x->g.trans_b, x->g.n};
    for (size_t p0 = 0; p0 < x->g.k; p0 += KC) {
        gemm_args g = x->g;
        g.k = min_size(KC, x->g.k - p0);
        g.accumulate = x->g.accumulate || p0 > 0;
        g.a = piece_of(op_a, p0, g.k, &g.lda, a);
        g.b = piece_of(op_b, p0, g.k, &g.ldb, b);
        TRY(f32(&g));
    }
    return FSDP_OK;
}

fsdp_status gemm_mixed_portable(const gemm_mixed_args *x)
{
    return gemm_expanded(x, gemm_portable);
}
