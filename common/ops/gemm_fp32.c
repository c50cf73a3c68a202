/* gemm_fp32.c -- fp32 products in calls of few rows. See cpu_kernels.h.
 *
 *     for DEPTH of k at a time
 *         for each panel of b [DEPTH, WIDTH]: read where it is or, if b is stored by columns,
 * packed for each ROWS rows of a, read where they are: one block of c, in registers
 *
 * A step multiplies a few hundred rows by weights that come from memory, 2 FLOP x rows for 4 bytes.
 * Libraries copy both operands first, which costs more than a tenth of such a product. Here a is
 * never copied: one element of each of its rows is spread over a vector. Rows of b are vectors
 * already, so only b stored by columns (forward's weights) is transposed into a panel. While a
 * block is computed, the rows of b that come next are fetched.
 *
 * Weight gradients are larger than the caches and not read soon, so they are written past them. */
#include "common/ops/cpu_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

/* Rows of op(b) at a time. Weight gradients read and write a block of c for each; products by
 * weights fetch as many rows while they compute with others, which must not leave L2 before. */
enum { DEPTH = 256, WEIGHT_DEPTH = 128 };

static size_t depth_at(const gemm_args *g, size_t p)
{
    return min_size(g->trans_a ? DEPTH : WEIGHT_DEPTH, g->k - p);
}

/* A block of c and its operands: element (i,p) of a is a[i * row + p * step]. Rows from `rows` on
 * repeat row 0. left: gemm_args.left, from element left_at of each. past: c is written past the
 * caches. */
typedef struct fma_block {
    const float *a, *b;
    float *c;
    const leaf_left *left;
    size_t left_at, left_ld;
    size_t row, step, ldb, ldc, k;
    int rows;
    bool adds, past;
} fma_block;

/* The part of b that comes next, fetched in lines of 64 bytes, `each` at a time: rows [b, end), ld
 * apart, of `lines`. */
typedef struct ahead {
    const float *b, *end;
    size_t ld, line, lines, each;
} ahead;

enum { LINE_ELEMS = 64 / sizeof(float) };

/* The rows of op(b) from p on, to be fetched in `times` parts. */
static ahead ahead_of(const gemm_args *g, size_t p, size_t times)
{
    const size_t k = depth_at(g, p);
    const float *b = (const float *)g->b + (g->trans_b ? p : p * g->ldb);
    ahead x = {.b = b, .ld = g->ldb, .lines = tiles_of(g->trans_b ? k : g->n, LINE_ELEMS)};
    const size_t rows = g->trans_b ? g->n : k;
    x.end = k > 0 ? b + rows * g->ldb : b;
    x.each = tiles_of(rows * x.lines, times);
    return x;
}

static void fetch_ahead(ahead *x)
{
    for (size_t i = 0; i < x->each && x->b < x->end; i++) {
        __builtin_prefetch(x->b + x->line * LINE_ELEMS, 0, 2);
        if (++x->line == x->lines) {
            x->line = 0;
            x->b += x->ld;
        }
    }
}

#define ISA          "avx512f"
#define NAME(x)      x##_avx512
#define vector       __m512
#define LANES        16
#define ROWS         8
#define VECTORS      3
#define LOAD         _mm512_loadu_ps
#define STORE        _mm512_storeu_ps
#define STREAM       _mm512_stream_ps
#define SPREAD       _mm512_set1_ps
#define ADD          _mm512_add_ps
#define MULTIPLY_ADD _mm512_fmadd_ps
#define INTERLEAVE_LOW(x, y)                                                                       \
    _mm512_permutex2var_ps(                                                                        \
        x, _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0), y)
#define INTERLEAVE_HIGH(x, y)                                                                      \
    _mm512_permutex2var_ps(                                                                        \
        x, _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8), y)
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
#define INTERLEAVE_LOW(x, y)                                                                       \
    _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x20)
#define INTERLEAVE_HIGH(x, y)                                                                      \
    _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x31)
#include "common/ops/gemm_fma.h"

static void (*products)(const gemm_args *g, size_t p0, size_t k);

bool gemm_fp32_open(bool has_avx512, bool has_avx2)
{
    products = has_avx512 ? products_avx512 : has_avx2 ? products_avx2 : NULL;
    return products != NULL;
}

void gemm_fp32(const gemm_args *g)
{
    for (size_t p = 0, k; p < g->k; p += k) {
        k = depth_at(g, p);
        products(g, p, k);
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
