/* test_gemm_fp32.c -- products in fp32 by each instruction set: every element of products of all
 * kinds of edges has the bits of one chain of fused multiply-adds, and no byte around is read or
 * written. So bits do not depend on the shape or on the instruction set. */
#include <math.h>
#include <string.h>
#include "common/ops/cpu_kernels.h"
#include "tests/unit/fence.h"
#include "tests/unit/unit_lib.h"

#ifdef __x86_64__
static bool has(bool avx512)
{
    return avx512 ? __builtin_cpu_supports("avx512f")
                  : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
static bool has(bool avx512)
{
    (void)avx512;
    return false;
}
#endif

/* Numbers with all mantissas, so that the order of additions shows. */
static float drawn(size_t i)
{
    const uint32_t x = (uint32_t)i * 2654435761u ^ 0x9e3779b9u;
    return (float)(int32_t)(x * 2246822519u) / 2147483648.0f;
}

static float *draw(size_t elems, size_t from)
{
    float *x = before_a_fence(elems * sizeof *x);
    for (size_t i = 0; i < elems; i++)
        x[i] = drawn(from + i);
    return x;
}

/* Elements beside m x n of c, of ldc a row. */
static const float UNTOUCHED = 12345;

/* Stored rows begin `more` elements farther apart than they are long. */
static void check(gemm_args g, size_t more)
{
    g.lda = (g.trans_a ? g.m : g.k) + more;
    g.ldb = (g.trans_b ? g.k : g.n) + more;
    g.ldc = g.n + more;
    const size_t a_rows = g.trans_a ? g.k : g.m, b_rows = g.trans_b ? g.n : g.k;
    const size_t elems = (g.m - 1) * g.ldc + g.n;
    const float *a = draw(a_rows * g.lda - more, 1), *b = draw(b_rows * g.ldb - more, 777777);
    float *c = before_a_fence(elems * sizeof *c);
    for (size_t i = 0; i < elems; i++)
        c[i] = i % g.ldc < g.n ? drawn(i + 99) : UNTOUCHED;
    g.a = a;
    g.b = b;
    g.c = c;
    gemm_fp32(&g);
    for (size_t at = 0; at < elems; at++) {
        const size_t i = at / g.ldc, j = at % g.ldc;
        float want = j < g.n ? g.accumulate ? drawn(at + 99) : 0 : UNTOUCHED;
        for (size_t p = 0; p < g.k && j < g.n; p++)
            want = fmaf(a[g.trans_a ? p * g.lda + i : i * g.lda + p],
                        b[g.trans_b ? j * g.ldb + p : p * g.ldb + j], want);
        if (memcmp(&want, &c[at], sizeof want) != 0)
            fail_msg("%zu x %zu x %zu, %d %d %d, element %zu, %zu: %g, not %g", g.m, g.n, g.k,
                     g.trans_a, g.trans_b, g.accumulate, i, j, (double)c[at], (double)want);
    }
}

static void edges(bool avx512)
{
    static const size_t M[] = {1, 5, 6, 8, 67}, N[] = {1, 16, 30, 50, 97};
    static const size_t K[] = {1, 17, 128, 300, 600};
    if (!has(avx512))
        skip();
    assert_true(gemm_fp32_open(avx512, true));
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++)
            for (int form = 0; form < 8; form++) {
                const size_t more = form % 3 == 0 ? 0 : 5 * (size_t)(form % 3);
                const gemm_args g = {.m = M[i],
                                     .n = N[j],
                                     .k = K[(i + j + form) % 5],
                                     .trans_a = form & 1,
                                     .trans_b = form & 2,
                                     .accumulate = form & 4,
                                     .streams = (i + j) % 2};
                check(g, more);
            }
    /* all rows of b in one set of the cache; aligned rows of c, written past the caches */
    check((gemm_args){.m = 20, .n = 64, .k = 300}, 1024 - 64);
    check((gemm_args){.m = 20, .n = 96, .k = 300, .trans_a = true, .streams = true}, 0);
    check((gemm_args){.m = 20, .n = 1024, .k = 70, .trans_a = true}, 0);
}

TEST(test_edges_avx512)
{
    edges(true);
}

TEST(test_edges_avx2)
{
    edges(false);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
