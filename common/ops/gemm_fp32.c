/* gemm_fp32.c -- fp32 products in calls of few rows. See cpu_kernels.h.
 *
 * A block of c, ROWS rows of WIDTH columns, is summed in registers. It takes one element of each of
 * its rows of op(a), spread over a vector, and vectors of rows of op(b), packed into a panel.
 *
 *     for a part of k
 *         for a panel: of weights WIDTH columns, of activations all columns
 *             for ROWS rows of op(a), packed if a is stored by columns
 *                 for WIDTH columns of the panel: one block of c
 *
 * A step multiplies a few hundred rows by weights that come from memory, 2 FLOP x rows for 4 bytes.
 * So rows of a are read where they are, rows of b are copied by the first block that reads them,
 * while it computes, and the weights of the next panel are fetched meanwhile.
 *
 * Weight gradients are larger than the caches and not read soon, so they are written past them. */
#include "common/ops/cpu_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

/* Packed panels stay in L2 together with what they are multiplied by. The part of k is as large as
 * that allows: c is read and written once for each. Blocks fetch rows of op(b) AHEAD rows early. */
enum { DEPTH = 512, WEIGHT_DEPTH = 384, MAX_COLS = 384, AHEAD = 16 };
enum { LINE_BYTES = 64, LINE_ELEMS = LINE_BYTES / sizeof(float) };

/* A part of the rows or columns of a matrix. */
typedef struct span {
    size_t at, n;
} span;

/* A matrix in memory. */
typedef struct stored {
    const float *at;
    size_t rows, cols, ld;
} stored;

/* The rows k and columns `cols` of op(b), as b is stored. */
static stored part_of_b(const gemm_args *g, span k, span cols)
{
    const float *b = g->b;
    return g->trans_b ? (stored){b + cols.at * g->ldb + k.at, cols.n, k.n, g->ldb}
                      : (stored){b + k.at * g->ldb + cols.at, k.n, cols.n, g->ldb};
}

/* A matrix that is needed next, fetched `each` lines at a time. */
typedef struct ahead {
    stored from;
    size_t line, each;
} ahead;

/* What follows columns `cols` of op(b), for the part k: to be fetched in `times` parts. */
static ahead ahead_of(const gemm_args *g, span k, span cols, size_t times)
{
    span next = {cols.at + cols.n, min_size(cols.n, g->n - cols.at - cols.n)};
    if (next.n == 0) {
        next = (span){0, cols.n};
        k.at += k.n;
        k.n = min_size(k.n, g->k - k.at);
    }
    const stored from = part_of_b(g, k, next);
    return (ahead){from, 0, tiles_of(from.rows * tiles_of(from.cols, LINE_ELEMS), times)};
}

static void fetch_ahead(ahead *x)
{
    for (size_t i = 0; i < x->each && x->from.rows > 0; i++) {
        __builtin_prefetch(x->from.at + x->line, 0, 2);
        x->line += LINE_ELEMS;
        if (x->line >= x->from.cols) {
            x->line = 0;
            x->from.at += x->from.ld;
            x->from.rows--;
        }
    }
}

/* A block of c [rows,cols] and its operands: element (i,p) of op(a) is a[i * row + p * step]. b has
 * rows of ldb elements, which are copied to `panel`; or it is a panel, and `panel` NULL. left:
 * gemm_args.left, from element left_at of each. past: c is written past the caches. */
typedef struct fma_block {
    const float *a, *b;
    float *panel, *c;
    const leaf_left *left;
    size_t left_at, left_ld;
    size_t rows, cols, row, step, ldb, ldc, k;
    bool adds, past;
} fma_block;

#define ISA     "avx512f"
#define NAME(x) x##_avx512
#define ROWS    8
#define VECTORS 3
#include "common/ops/vectors_avx512.h"
#include "common/ops/gemm_fma.h"

#define ISA          "avx2,fma"
#define NAME(x)      x##_avx2
#define vector       __m256
#define LANES        8
#define ROWS         6
#define VECTORS      2
#define LOAD         _mm256_loadu_ps
#define STORE        _mm256_storeu_ps
#define STREAM       _mm256_stream_ps
#define SPREAD       _mm256_set1_ps
#define ADD          _mm256_add_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
#define LOAD_4X(x, ld)                                                                             \
    _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), _mm_loadu_ps((x) + 4 * (ld)), 1)
#define UNPACK(part, type, x, y) _mm256_unpack##part##_##type(x, y)
#define AS_PAIRS                 _mm256_castps_pd
#define AS_SINGLES               _mm256_castpd_ps
#include "common/ops/gemm_fma.h"

static void (*products)(const gemm_args *g, span k, span cols, float *panel);
static size_t width; /* of its blocks */

bool gemm_fp32_open(bool has_avx512, bool has_avx2)
{
    products = has_avx512 ? products_avx512 : has_avx2 ? products_avx2 : NULL;
    width = has_avx512 ? WIDTH_avx512 : WIDTH_avx2;
    return products != NULL;
}

void gemm_fp32(const gemm_args *g)
{
    _Alignas(LINE_BYTES) float panel[DEPTH * MAX_COLS];
    const size_t most = g->trans_a ? min_size(MAX_COLS, g->n) : width;
    const size_t parts = tiles_of(g->k, g->trans_a ? DEPTH : WEIGHT_DEPTH);
    const size_t depth = size_round_up(tiles_of(g->k, parts), LINE_ELEMS);
    for (span k = {0}; k.at < g->k; k.at += k.n) {
        k.n = min_size(depth, g->k - k.at);
        for (span cols = {0}; cols.at < g->n; cols.at += cols.n) {
            cols.n = min_size(most, g->n - cols.at);
            products(g, k, cols, panel);
        }
    }
}
#else
bool gemm_fp32_open(bool has_avx512, bool has_avx2)
{
    (void)has_avx512, (void)has_avx2;
    return false;
}

void gemm_fp32(const gemm_args *g)
{
    (void)g;
}
#endif
