/* gemm_portable.c -- matrix product in plain C: the same bits with every compiler on every machine.
 *
 * Each element is summed in order of k. Elements are independent, so vectors along n, register
 * blocks, and tile and vector sizes that differ between machines do not change the order of the
 * sums in an element. Successive blocks of KC along k pass the running sums through c.
 *
 *     for each KC x NC block of op(b): pack it into panels of NR columns
 *         for each MC x KC block of op(a): pack it into panels of MR rows
 *             for each MR x NR part of c: micro_kernel
 *
 * Packing copies the operands into the order in which the micro kernel reads them, pads the edges
 * with zeros, and expands bf16 to fp32. [Goto & van de Geijn 2008]
 *
 * Vectors are GNU C vector types (gcc and clang, any target): lane-wise * and + of IEEE floats. */
#include "common/ops/cpu_kernels.h"
#include "common/ops/row_sums.h"

/* Register block: MR rows of two vectors, leaving registers for two vectors of b, one element of a
 * and a product. Zen 4 computes faster with 256-bit vectors in the 32 registers of AVX-512 than
 * with 512-bit ones (measured in L1: 117 against 82 GFLOP/s). Compilers older than Zen 4 call it
 * Zen 3 with AVX-512. */
#if defined __AVX512VL__ && (defined __znver3__ || defined __znver4__)
enum { VEC = 8, MR = 8 };
#elif defined __AVX512F__
enum { VEC = 16, MR = 8 };
#elif defined __AVX__
enum { VEC = 8, MR = 6 };
#elif defined __aarch64__
enum { VEC = 4, MR = 8 };
#else
enum { VEC = 4, MR = 6 };
#endif
enum {
    NR = 2 * VEC,
    MC = 96,  /* rows of a packed block of a, a multiple of MR; with KC 96 kB */
    KC = 256, /* depth of packed blocks */
    NC = 256  /* columns of a packed block of b; with KC 256 kB. Both stay in L2. */
};
_Static_assert(MC % MR == 0 && NC % NR == 0, "blocks are made of whole panels");

typedef float vec __attribute__((vector_size(VEC * sizeof(float))));
typedef vec vec_in_memory __attribute__((aligned(sizeof(float)), may_alias));

/* A matrix [depth, n] to pack: element (p, i) is at index p*ld + i or, if `by_column`, at
 * i*ld + p. */
typedef struct operand {
    const void *x;
    size_t ld, n;
    bool by_column;
    size_t p0, depth; /* of the block that is packed: rows p0 ... p0 + depth - 1 */
} operand;

/* panel[p*width + i] = element (p0 + p, from + i); columns beyond the last one are zeros. */
ROW_FN void pack(const operand *o, size_t from, size_t width, float *panel, dtype type)
{
    const size_t n = min_size(width, o->n - from), ld = o->ld, p0 = o->p0, depth = o->depth;
    if (n < width)
        memset(panel, 0, depth * width * sizeof *panel);
    if (o->by_column) {
        const void *x = row_at(o->x, from * ld + p0, type);
        for (size_t i = 0; i < n; i++)
            for (size_t p = 0; p < depth; p++)
                panel[p * width + i] = row_load(x, i * ld + p, type);
    } else {
        const void *x = row_at(o->x, p0 * ld + from, type);
        for (size_t p = 0; p < depth; p++)
            for (size_t i = 0; i < n; i++)
                panel[p * width + i] = row_load(x, p * ld + i, type);
    }
}

/* c[MR,NR] (row stride ldc) += panel_a * panel_b; if first, c is overwritten instead. Not
 * inlined: gcc 12 would make a loop of it that runs at two thirds of the speed. */
__attribute__((noinline)) static void micro_kernel(size_t depth, const float *restrict pa,
                                                   const float *restrict pb, float *restrict c,
                                                   size_t ldc, bool first)
{
    vec acc[MR][2] = {0};
    for (size_t i = 0; i < MR && !first; i++) {
        acc[i][0] = *(const vec_in_memory *)(c + i * ldc);
        acc[i][1] = *(const vec_in_memory *)(c + i * ldc + VEC);
    }
    for (size_t p = 0; p < depth; p++) {
        const vec b0 = *(const vec_in_memory *)(pb + p * NR);
        const vec b1 = *(const vec_in_memory *)(pb + p * NR + VEC);
        for (size_t i = 0; i < MR; i++) {
            acc[i][0] += b0 * pa[p * MR + i];
            acc[i][1] += b1 * pa[p * MR + i];
        }
    }
    for (size_t i = 0; i < MR; i++) {
        *(vec_in_memory *)(c + i * ldc) = acc[i][0];
        *(vec_in_memory *)(c + i * ldc + VEC) = acc[i][1];
    }
}

/* A part of c, and the packed parts of a and b whose product is added to it. */
typedef struct packed_product {
    float *c; /* [rows, cols], row stride ldc */
    const float *a, *b;
    size_t ldc, rows, cols, depth;
    bool first; /* c is written, not added to */
} packed_product;

/* micro_kernel for a part of c at an edge, smaller than MR x NR: computed in a full block on the
 * stack, then copied. */
static void edge_kernel(const packed_product *x)
{
    float block[MR * NR] = {0};
    for (size_t i = 0; i < x->rows && !x->first; i++)
        memcpy(block + i * NR, x->c + i * x->ldc, x->cols * sizeof *x->c);
    micro_kernel(x->depth, x->a, x->b, block, NR, x->first);
    for (size_t i = 0; i < x->rows; i++)
        memcpy(x->c + i * x->ldc, block + i * NR, x->cols * sizeof *x->c);
}

static void macro_kernel(const packed_product *x)
{
    for (size_t j = 0; j < x->cols; j += NR) {
        for (size_t i = 0; i < x->rows; i += MR) {
            packed_product part = *x;
            part.c += i * x->ldc + j;
            part.a += i * x->depth;
            part.b += j * x->depth;
            part.rows = min_size(MR, x->rows - i);
            part.cols = min_size(NR, x->cols - j);
            if (part.rows == MR && part.cols == NR)
                micro_kernel(part.depth, part.a, part.b, part.c, part.ldc, part.first);
            else
                edge_kernel(&part);
        }
    }
}

fsdp_status gemm_portable(const gemm_args *g)
{
    _Alignas(64) float packed_a[MC * KC];
    _Alignas(64) float packed_b[KC * NC];
    operand a = {.x = g->a, .ld = g->lda, .n = g->m, .by_column = !g->trans_a};
    operand b = {.x = g->b, .ld = g->ldb, .n = g->n, .by_column = g->trans_b};
    for (size_t col = 0; col < g->n; col += NC) {
        const size_t cols = min_size(NC, g->n - col);
        for (size_t p0 = 0; p0 < g->k; p0 += KC) {
            const size_t depth = min_size(KC, g->k - p0);
            a.p0 = b.p0 = p0;
            a.depth = b.depth = depth;
            const bool first = p0 == 0 && !g->accumulate;
            for (size_t j = 0; j < cols; j += NR)
                BY_TYPE(pack, g->b_type, &b, col + j, NR, packed_b + j * depth);
            for (size_t row = 0; row < g->m; row += MC) {
                const size_t rows = min_size(MC, g->m - row);
                for (size_t i = 0; i < rows; i += MR)
                    BY_TYPE(pack, g->a_type, &a, row + i, MR, packed_a + i * depth);
                macro_kernel(&(packed_product){.c = g->c + row * g->ldc + col,
                                               .a = packed_a,
                                               .b = packed_b,
                                               .ldc = g->ldc,
                                               .rows = rows,
                                               .cols = cols,
                                               .depth = depth,
                                               .first = first});
            }
        }
    }
    leaf_add(&(leaf_part){.out = g->c, .rows = g->m, .cols = g->n, .ld = g->ldc, .left = g->left});
    return FSDP_OK;
}
