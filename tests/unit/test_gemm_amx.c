/* test_gemm_amx.c -- bf16 products by AMX: every element of products of all kinds of edges, no
 * byte around them, and bits that do not depend on the shape. Whole numbers make all sums exact, so
 * they are compared with integers. */
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "common/ops/cpu_kernels.h"
#include "tests/unit/fence.h"
#include "tests/unit/unit_lib.h"

/* The kernel of the library, and the same source with tiles in C. */
typedef void (*kernel)(const gemm_args *g);
#ifdef __x86_64__
#define gemm_amx      gemm_emulated
#define gemm_amx_open gemm_emulated_open
#include "tests/unit/tiles.h"
#include "common/ops/gemm_amx.c"
#undef gemm_amx
#undef gemm_amx_open
static kernel emulated(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? gemm_emulated
                                                                                    : NULL;
}
#else
static kernel emulated(void)
{
    return NULL;
}
#endif

static uint16_t *a, *b; /* each array ends where its memory ends */
static float *c;
static kernel multiply_by;

static void use(bool tiles)
{
    multiply_by = tiles ? gemm_amx_open() ? gemm_amx : NULL : emulated();
    if (multiply_by == NULL)
        skip();
}

static int value_a(size_t p, size_t i)
{
    return (int)((p * 31 + i * 7) % 13) - 6;
}

static int value_b(size_t p, size_t j)
{
    return (int)((p * 17 + j * 5) % 11) - 5;
}

/* Elements beside m x n of c, of ldc a row. */
static const float UNTOUCHED = 12345;

/* How the operands are stored, their rows `apart` elements farther apart than they are long, and
 * what is added. */
typedef struct form {
    bool trans_a, trans_b, accumulate, left;
    size_t apart;
} form;

static void check(size_t m, size_t n, size_t k, size_t more, size_t shift, form f)
{
    const size_t ldc = n + more, elems = (m - 1) * ldc + n;
    const size_t lda = (f.trans_a ? m : k) + f.apart, ldb = (f.trans_b ? k : n) + f.apart;
    const size_t a_p = f.trans_a ? lda : 1, a_i = f.trans_a ? 1 : lda;
    const size_t b_p = f.trans_b ? 1 : ldb, b_j = f.trans_b ? ldb : 1;
    float *const left = before_a_fence(m * n * sizeof *left);
    const leaf_left outer = {left, NULL}, inner = {left, &outer};
    a = before_a_fence((f.trans_a ? k : m) * lda * sizeof *a);
    b = before_a_fence((f.trans_b ? n : k) * ldb * sizeof *b);
    c = before_a_fence((elems + shift) * sizeof *c);
    memset(a, 0xff, (f.trans_a ? k : m) * lda * sizeof *a); /* not a number */
    memset(b, 0xff, (f.trans_b ? n : k) * ldb * sizeof *b);
    for (size_t p = 0; p < k; p++) {
        for (size_t i = 0; i < m; i++)
            a[p * a_p + i * a_i] = bf16_from_f32((float)value_a(p, i));
        for (size_t j = 0; j < n; j++)
            b[p * b_p + j * b_j] = bf16_from_f32((float)value_b(p, j));
    }
    for (size_t i = 0; i < elems; i++)
        c[i] = i % ldc < n ? 3 : UNTOUCHED;
    for (size_t i = 0; i < m * n; i++)
        left[i] = (float)(i % 19);
    multiply_by(&(gemm_args){.c = c,
                             .a = a,
                             .b = b,
                             .m = m,
                             .n = n,
                             .k = k,
                             .ldc = ldc,
                             .lda = lda,
                             .ldb = ldb,
                             .a_type = DTYPE_BF16,
                             .b_type = DTYPE_BF16,
                             .trans_a = f.trans_a,
                             .trans_b = f.trans_b,
                             .accumulate = f.accumulate,
                             .left = f.left ? &inner : NULL,
                             .streams = true});
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc && i * ldc + j < elems; j++) {
            int sum = (f.accumulate ? 3 : 0) + (f.left ? 2 * (int)((i * n + j) % 19) : 0);
            for (size_t p = 0; p < k && j < n; p++)
                sum += value_a(p, i) * value_b(p, j);
            const float want = j < n ? (float)sum : UNTOUCHED, got = c[i * ldc + j];
            if (got != want)
                fail_msg("%zu x %zu x %zu, %d %d, element %zu, %zu: %g, not %g", m, n, k, f.trans_a,
                         f.trans_b, i, j, (double)got, (double)want);
        }
}

static void edges(void)
{
    static const size_t M[] = {1, 16, 31, 33, 256}, N[] = {1, 17, 32, 47, 384};
    static const size_t K[] = {1, 2, 31, 64, 1025};
    for (int way = 0; way < 3; way++) {
        const bool trans_a = way == 0, trans_b = way == 2;
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 5; j++) {
                check(M[i], N[j], K[(i + j) % 5], 0, (size_t)i % 3,
                      (form){trans_a, trans_b, .accumulate = j % 2, .left = i % 2});
                check(M[i], N[j], K[(i + 2 * j + 1) % 5], 16 * (size_t)(j % 3), 0,
                      (form){trans_a, trans_b, .accumulate = i % 2});
            }
        /* rows of whole lines, of which the last part is none of the product */
        check(64, 64, 40, 0, 0, (form){trans_a, trans_b, .apart = 24});
        check(64, 64, 2100, 0, 0, (form){trans_a, trans_b, .left = true});
        check(40, 50, 2100, 14, 0, (form){trans_a, trans_b, .accumulate = true});
    }
}

/* Finite numbers with all mantissas, so that the order of additions shows. */
static uint16_t drawn(size_t i)
{
    const uint32_t x = (uint32_t)i * 2654435761u;
    return (uint16_t)((x >> 31 << 15) | (120 + (x >> 24 & 7)) << 7 | (x >> 10 & 0x7f));
}

/* An element has the same bits in a product of one element, and in one of many. */
static void bits_of_any_shape(void)
{
    enum { M = 100, N = 80, K = 1100 };
    a = before_a_fence(M * K * sizeof *a);
    b = before_a_fence(N * K * sizeof *b);
    c = before_a_fence(M * N * sizeof *c);
    for (size_t i = 0; i < M * K; i++)
        a[i] = drawn(i);
    for (size_t i = 0; i < N * K; i++)
        b[i] = drawn(i + 77777);
    for (int way = 0; way < 3; way++) {
        const bool trans_a = way == 0, trans_b = way == 2;
        gemm_args g = {.c = c,
                       .a = a,
                       .b = b,
                       .m = M,
                       .n = N,
                       .k = K,
                       .ldc = N,
                       .lda = trans_a ? M : K,
                       .ldb = trans_b ? K : N,
                       .a_type = DTYPE_BF16,
                       .b_type = DTYPE_BF16,
                       .trans_a = trans_a,
                       .trans_b = trans_b};
        multiply_by(&g);
        for (size_t i = 0; i < M; i += 9)
            for (size_t j = 0; j < N; j += 7) {
                float alone;
                g.c = &alone;
                g.a = a + i * (trans_a ? 1 : K);
                g.b = b + j * (trans_b ? K : 1);
                g.m = g.n = 1;
                multiply_by(&g);
                assert_memory_equal(&alone, &c[i * N + j], sizeof alone);
            }
    }
}

TEST(test_edges)
{
    use(true);
    edges();
}

TEST(test_bits_of_any_shape)
{
    use(true);
    bits_of_any_shape();
}

TEST(test_edges_emulated)
{
    use(false);
    edges();
}

TEST(test_bits_of_any_shape_emulated)
{
    use(false);
    bits_of_any_shape();
}

int main(void)
{
    return tests_run(NULL, NULL);
}
