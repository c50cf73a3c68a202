/* gemm_fma.h -- the products of gemm_fp32.c for one instruction set. It is included once for each,
 * between definitions of
 *
 *   ISA, NAME(x)      the set's name for the compiler; x with a suffix for the set
 *   vector, LANES     a vector of LANES floats
 *   ROWS, VECTORS     a block of c, whose sums are in registers: ROWS of VECTORS * LANES elements
 *   LOAD, STORE, STREAM, SPREAD, ADD, MULTIPLY_ADD: intrinsics
 *
 * and of what transpose.h needs */

#define ISA_FN static __attribute__((target(ISA)))
#include "common/ops/transpose.h"
enum { NAME(WIDTH) = VECTORS * LANES, NAME(PACKED) = ROWS % 8 == 0 ? 16 : 48 };

/* The sums of a block of `n` vectors of columns; n and copies are constants. */
ISA_FN inline __attribute__((always_inline)) void NAME(sums)(const fma_block *x, const int n,
                                                             const bool copies)
{
    const float *a = x->a, *b = x->b;
    const size_t ldb = copies ? x->ldb : (size_t)n * LANES;
    float *panel = x->panel;
    size_t row[ROWS];
    vector sum[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        row[i] = (size_t)i < x->rows ? (size_t)i * x->row : 0; /* others repeat row 0 */
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            sum[i][j] = x->adds ? LOAD(x->c + (size_t)i * x->ldc + j * LANES) : SPREAD(0.0f);
    }
    for (size_t p = 0; p < x->k; p++, a += x->step, b += ldb) {
        vector y[VECTORS];
#pragma GCC unroll 3
        for (int j = 0; j < n; j++) {
            y[j] = LOAD(b + j * LANES);
            __builtin_prefetch(b + j * LANES + AHEAD * ldb, 0, 3);
            if (copies)
                STORE(panel + j * LANES, y[j]);
        }
        panel += copies ? n * LANES : 0;
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            const vector spread = SPREAD(a[row[i]]);
#pragma GCC unroll 3
            for (int j = 0; j < n; j++)
                sum[i][j] = MULTIPLY_ADD(spread, y[j], sum[i][j]);
        }
    }
    for (const leaf_left *left = x->left; left != NULL; left = left->next) {
        const float *from = left->x + x->left_at;
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 3
            for (int j = 0; j < n; j++)
                sum[i][j] = ADD(LOAD(from + (size_t)i * x->left_ld + j * LANES), sum[i][j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < n; j++) {
            float *c = x->c + (size_t)i * x->ldc + j * LANES;
            if (x->past)
                STREAM(c, sum[i][j]);
            else
                STORE(c, sum[i][j]);
        }
}

/* A block of ROWS rows and whole vectors of columns, which is whole in memory. */
ISA_FN __attribute__((noinline)) void NAME(multiply)(const fma_block *x)
{
    if (x->cols <= LANES)
        NAME(sums)(x, 1, false);
    else if (x->cols <= 2 * LANES && 2 < VECTORS)
        NAME(sums)(x, 2, false);
    else if (x->panel == NULL)
        NAME(sums)(x, VECTORS, false);
    else
        NAME(sums)(x, VECTORS, true);
}

/* A block at an edge of c: computed on the stack. */
ISA_FN void NAME(multiply_edge)(fma_block x)
{
    _Alignas(64) float sums[ROWS * NAME(WIDTH)];
    float *const c = x.c;
    const size_t ldc = x.ldc;
    for (size_t i = 0; i < x.rows && x.adds; i++)
        memcpy(sums + i * NAME(WIDTH), c + i * ldc, x.cols * sizeof *c);
    x.c = sums;
    x.ldc = NAME(WIDTH);
    x.past = false;
    NAME(multiply)(&x);
    for (size_t i = 0; i < x.rows; i++)
        memcpy(c + i * ldc, sums + i * NAME(WIDTH), x.cols * sizeof *c);
}

/* panel [x.cols][x.rows rounded up to whole vectors] = the transpose of x; zeros beyond. */
ISA_FN void NAME(pack_columns)(stored x, float *panel)
{
    const size_t ld = size_round_up(x.rows, LANES);
    for (size_t j = 0; j < ld; j += LANES)
        for (size_t p = 0; p < x.cols; p += LANES) {
            const size_t rows = min_size(LANES, x.rows - j), cols = min_size(LANES, x.cols - p);
            const float *const from = x.at + j * x.ld + p;
            float *const to = panel + p * ld + j;
            if (rows == LANES && cols == LANES) {
                NAME(transpose)(from, x.ld, to, ld);
                continue;
            }
            for (size_t i = 0; i < cols; i++)
                for (size_t r = 0; r < LANES; r++)
                    to[i * ld + r] = r < rows ? from[r * x.ld + i] : 0;
        }
}

/* panel [x.rows][x.cols rounded up to whole vectors] = x; zeros beyond. */
ISA_FN void NAME(pack_rows)(stored x, float *panel)
{
    const size_t ld = size_round_up(x.cols, LANES);
    memset(panel, 0, x.rows * ld * sizeof *panel);
    for (size_t p = 0; p < x.rows; p++)
        memcpy(panel + p * ld, x.at + p * x.ld, x.cols * sizeof *panel);
}

/* out [k.n][ROWS]: the rows of op(a) for the part k, if a is stored by columns. */
ISA_FN void NAME(pack_a)(const gemm_args *g, span k, span rows, float *out)
{
    for (size_t i = 0; i < rows.n; i += ROWS)
        for (size_t p = k.at; p < k.at + k.n; p++, out += ROWS) {
            const float *from = (const float *)g->a + p * g->lda + rows.at + i;
            if (i + ROWS <= rows.n)
                memcpy(out, from, ROWS * sizeof *out);
            else
                memcpy(out, from, (rows.n - i) * sizeof *out);
        }
}

/* The columns of the block at the front of n: the last block is not so narrow that its sums wait
 * for one another. */
static size_t NAME(block_cols)(size_t n)
{
    return min_size(n, LANES * (tiles_of(n, LANES) == VECTORS + 1 ? 2 : VECTORS));
}

/* Pack the columns `cols` of op(b), or have the block copy them. */
ISA_FN void NAME(pack_b)(const gemm_args *g, span k, span cols, fma_block *x)
{
    const stored b = part_of_b(g, k, cols);
    if (g->trans_b)
        NAME(pack_columns)(b, x->panel);
    else if (cols.n < NAME(WIDTH))
        NAME(pack_rows)(b, x->panel);
    else {
        x->b = b.at;
        return;
    }
    x->panel = NULL;
}

/* The products of the part k for the columns `cols` of c. */
ISA_FN void NAME(products)(const gemm_args *g, span k, span cols, float *panel)
{
    _Alignas(LINE_BYTES) float packed[DEPTH * NAME(PACKED)];
    const bool is_last = k.at + k.n == g->k;
    const size_t n_blocks = tiles_of(g->m, ROWS) * tiles_of(cols.n, NAME(WIDTH));
    ahead next = ahead_of(g, k, cols, n_blocks);
    fma_block x = {.left = is_last ? g->left : NULL,
                   .left_ld = g->n,
                   .row = g->trans_a ? 1 : g->lda,
                   .step = g->trans_a ? ROWS : 1,
                   .ldb = g->ldb,
                   .ldc = g->ldc,
                   .k = k.n,
                   .adds = g->accumulate || k.at > 0,
                   .past = g->streams && is_last && (uintptr_t)g->c % LINE_BYTES == 0 &&
                           g->ldc % LANES == 0};
    for (size_t i = 0; i < g->m; i += ROWS) {
        const span rows = {i, min_size(NAME(PACKED), g->m - i)};
        x.rows = min_size(ROWS, rows.n);
        x.a =
            g->trans_a ? packed + i % NAME(PACKED) * k.n : (const float *)g->a + i * g->lda + k.at;
        if (g->trans_a && i % NAME(PACKED) == 0)
            NAME(pack_a)(g, k, rows, packed);
        for (size_t j = 0; j < cols.n; j += x.cols) {
            x.cols = NAME(block_cols)(cols.n - j);
            x.c = g->c + i * g->ldc + cols.at + j;
            x.left_at = i * g->n + cols.at + j;
            x.b = panel + j * k.n;
            x.panel = i == 0 ? panel + j * k.n : NULL;
            if (i == 0)
                NAME(pack_b)(g, k, (span){cols.at + j, x.cols}, &x);
            fetch_ahead(&next);
            if (x.rows == ROWS && x.cols % LANES == 0)
                NAME(multiply)(&x);
            else
                NAME(multiply_edge)(x);
        }
    }
    if (x.past)
        _mm_sfence();
}
#undef ISA_FN
#undef ISA
#undef NAME
#undef vector
#undef LANES
#undef ROWS
#undef VECTORS
#undef LOAD
#undef STORE
#undef STREAM
#undef SPREAD
#undef ADD
#undef MULTIPLY_ADD
#undef LOAD_4X
#undef UNPACK
#undef AS_PAIRS
#undef AS_SINGLES
