/* gemm_fma.h -- the products of gemm_fp32.c for one instruction set. It is included once for each,
 * between definitions of
 *
 *   ISA, NAME(x)      the set's name for the compiler; x with a suffix for the set
 *   vector, LANES     a vector of LANES floats
 *   ROWS, VECTORS     a block of c, whose sums are in registers: ROWS of VECTORS * LANES elements
 *   LOAD, STORE, STREAM, SPREAD, ADD, MULTIPLY_ADD, INTERLEAVE_LOW, INTERLEAVE_HIGH: intrinsics */

#define ISA_FN static __attribute__((target(ISA)))
enum { NAME(WIDTH) = VECTORS * LANES };

/* The sums of a block's first `n` vectors of columns, a constant. */
ISA_FN inline __attribute__((always_inline)) void NAME(sums)(const fma_block *x, const int n)
{
    const float *row[ROWS], *b = x->b;
    vector sum[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        row[i] = x->a + (i < x->rows ? (size_t)i * x->row : 0);
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            sum[i][j] = x->adds ? LOAD(x->c + (size_t)i * x->ldc + j * LANES) : SPREAD(0.0f);
    }
    for (size_t p = 0, at = 0; p < x->k; p++, at += x->step, b += x->ldb) {
        vector y[VECTORS];
#pragma GCC unroll 3
        for (int j = 0; j < n; j++)
            y[j] = LOAD(b + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            const vector spread = SPREAD(row[i][at]);
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

/* c [ROWS,cols] of a block, which is whole in memory. */
ISA_FN __attribute__((noinline)) void NAME(multiply)(const fma_block *x, size_t cols)
{
    if (cols > (VECTORS - 1) * LANES)
        NAME(sums)(x, VECTORS);
    else if (cols > LANES)
        NAME(sums)(x, 2);
    else
        NAME(sums)(x, 1);
}

/* A block at an edge of c: computed on the stack. */
ISA_FN void NAME(multiply_edge)(fma_block x, size_t cols)
{
    _Alignas(64) float sums[ROWS * NAME(WIDTH)];
    float *const c = x.c;
    const size_t ldc = x.ldc;
    for (int i = 0; i < x.rows && x.adds; i++)
        memcpy(sums + i * NAME(WIDTH), c + (size_t)i * ldc, cols * sizeof *c);
    x.c = sums;
    x.ldc = NAME(WIDTH);
    x.past = false;
    NAME(multiply)(&x, cols);
    for (int i = 0; i < x.rows; i++)
        memcpy(c + (size_t)i * ldc, sums + i * NAME(WIDTH), cols * sizeof *c);
}

/* Transpose LANES x LANES elements. Each round interleaves the first half of the vectors with the
 * second; it moves the lowest bit of a vector's number to the top of the element's. */
ISA_FN inline __attribute__((always_inline)) void NAME(transpose)(vector r[LANES])
{
#pragma GCC unroll 4
    for (int round = 1; round < LANES; round *= 2) {
        vector t[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            t[2 * i] = INTERLEAVE_LOW(r[i], r[i + LANES / 2]);
            t[2 * i + 1] = INTERLEAVE_HIGH(r[i], r[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            r[i] = t[i];
    }
}

/* panel [k][WIDTH] = the transpose of x [cols][k], row stride ld; columns beyond are zeros. */
ISA_FN void NAME(pack_columns)(const float *x, size_t ld, size_t cols, size_t k, float *panel)
{
    for (size_t j = 0; j < NAME(WIDTH); j += LANES)
        for (size_t p = 0; p < k; p += LANES) {
            vector r[LANES];
            const size_t n = min_size(LANES, k - p);
            if (j + LANES <= cols && n == LANES)
                for (size_t i = 0; i < LANES; i++)
                    r[i] = LOAD(x + (j + i) * ld + p);
            else
                for (size_t i = 0; i < LANES; i++) {
                    float part[LANES] = {0};
                    if (j + i < cols)
                        memcpy(part, x + (j + i) * ld + p, n * sizeof *part);
                    r[i] = LOAD(part);
                }
            NAME(transpose)(r);
            for (size_t i = 0; i < n; i++)
                STORE(panel + (p + i) * NAME(WIDTH) + j, r[i]);
        }
}

/* panel [k][WIDTH] = x [k][cols], row stride ld; columns beyond are zeros. */
ISA_FN void NAME(pack_rows)(const float *x, size_t ld, size_t cols, size_t k, float *panel)
{
    memset(panel, 0, k * NAME(WIDTH) * sizeof *panel);
    for (size_t p = 0; p < k; p++)
        memcpy(panel + p * NAME(WIDTH), x + p * ld, cols * sizeof *x);
}

/* The products of k rows from p0 on. */
ISA_FN void NAME(products)(const gemm_args *g, size_t p0, size_t k)
{
    _Alignas(64) float panel[DEPTH * NAME(WIDTH)];
    const bool past =
        g->streams && p0 + k == g->k && (uintptr_t)g->c % 64 == 0 && g->ldc % LANES == 0;
    const float *a = (const float *)g->a + (g->trans_a ? p0 * g->lda : p0);
    fma_block x = {.row = g->trans_a ? 1 : g->lda,
                   .step = g->trans_a ? g->lda : 1,
                   .ldc = g->ldc,
                   .left = p0 + k == g->k ? g->left : NULL,
                   .left_ld = g->n,
                   .k = k,
                   .adds = g->accumulate || p0 > 0};
    const bool one_set = LANES < LINE_ELEMS && g->ldb % (4096 / sizeof(float)) == 0;
    ahead next = ahead_of(g, p0 + k, tiles_of(g->m, ROWS) * tiles_of(g->n, NAME(WIDTH)));
    for (size_t j = 0; j < g->n; j += NAME(WIDTH)) {
        const size_t cols = min_size(g->n - j, NAME(WIDTH));
        const float *b = (const float *)g->b + (g->trans_b ? j * g->ldb + p0 : p0 * g->ldb + j);
        const bool packs = g->trans_b || cols % LANES != 0 || one_set;
        if (g->trans_b)
            NAME(pack_columns)(b, g->ldb, cols, k, panel);
        else if (packs)
            NAME(pack_rows)(b, g->ldb, cols, k, panel);
        x.b = packs ? panel : b;
        x.ldb = packs ? NAME(WIDTH) : g->ldb;
        for (size_t i = 0; i < g->m; i += ROWS) {
            x.a = a + i * x.row;
            x.c = g->c + i * g->ldc + j;
            x.left_at = i * g->n + j;
            x.rows = (int)min_size(g->m - i, ROWS);
            x.past = past;
            fetch_ahead(&next);
            if (x.rows == ROWS && cols % LANES == 0)
                NAME(multiply)(&x, cols);
            else
                NAME(multiply_edge)(x, cols);
        }
    }
    if (past)
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
#undef INTERLEAVE_LOW
#undef INTERLEAVE_HIGH
