/* test_gemm_fp32.c -- products in fp32 by each instruction set: every element of products of all
 * kinds of edges has the bits of one chain of fused multiply-adds, and no byte around is read or
 * written. So bits do not depend on the shape or on the instruction set. Left siblings are added
 * after the chain, in their order. Denormal numbers are kept, also by gemm_portable. */
#include <math.h>
#include <string.h>
#include "common/base/dtype.h"
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

/* The array of a left sibling [m,n], as leaves_sum has it: what follows m x n elements is read, for
 * nothing. */
static float *draw_left(size_t elems, size_t from)
{
    float *x = draw(LEAVES_ELEMS + LEAVES_SLACK, from);
    for (size_t i = elems; i < LEAVES_ELEMS + LEAVES_SLACK; i++)
        x[i] = NAN;
    return x;
}

/* Stored rows begin `more` elements farther apart than they are long. has_left: three left siblings
 * are added. */
static void check(gemm_args g, size_t more, bool has_left)
{
    leaf_left left[3] = {{.next = &left[1]}, {.next = &left[2]}, {0}};
    for (size_t l = 0; l < 3 && has_left; l++)
        left[l].x = draw_left(g.m * g.n, 55555 * (l + 1));
    g.left = has_left ? left : NULL;
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
        for (const leaf_left *l = g.left; l != NULL && j < g.n; l = l->next)
            want = l->x[i * g.n + j] + want;
        if (memcmp(&want, &c[at], sizeof want) != 0)
            fail_msg("%zu x %zu x %zu, %d %d %d %d, element %zu, %zu: %g, not %g", g.m, g.n, g.k,
                     g.trans_a, g.trans_b, g.accumulate, has_left, i, j, (double)c[at],
                     (double)want);
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
                check(g, more, false);
                if (g.trans_a)
                    check(g, more, true);
            }
    /* all rows of b in one set of the cache; aligned rows of c, written past the caches */
    check((gemm_args){.m = 20, .n = 64, .k = 300}, 1024 - 64, false);
    check((gemm_args){.m = 20, .n = 96, .k = 300, .trans_a = true, .streams = true}, 0, false);
    check((gemm_args){.m = 20, .n = 1024, .k = 70, .trans_a = true}, 0, false);
}

/* The largest arrays of left siblings; a block of 6 rows reads all of the slack. */
static void large_left(bool avx512)
{
    static const size_t M[] = {121, 127, 128}, N[] = {95, 96};
    if (!has(avx512))
        skip();
    assert_true(gemm_fp32_open(avx512, true));
    for (int i = 0; i < 6; i++)
        check((gemm_args){.m = M[i / 2], .n = N[i % 2], .k = i < 4 ? 3 : 515, .trans_a = true}, 0,
              true);
    check((gemm_args){.m = 256, .n = 48, .k = 3, .trans_a = true}, 0, true);
}

/* multiply, of numbers of `type`, computes old + x y = want. */
static void check_sum(gemm_fn multiply, dtype type, float old, float x, float y, float want)
{
    const uint16_t half_x = bf16_from_f32(x), half_y = bf16_from_f32(y);
    OK(multiply(&(gemm_args){.c = &old,
                             .a = type == DTYPE_F32 ? (const void *)&x : &half_x,
                             .b = type == DTYPE_F32 ? (const void *)&y : &half_y,
                             .m = 1,
                             .n = 1,
                             .k = 1,
                             .ldc = 1,
                             .lda = 1,
                             .ldb = 1,
                             .a_type = type,
                             .b_type = type,
                             .accumulate = true}));
    if (memcmp(&old, &want, sizeof want) != 0)
        fail_msg("%a * %a: %a, not %a", (double)x, (double)y, (double)old, (double)want);
}

static void denormals(gemm_fn multiply, dtype type)
{
    check_sum(multiply, type, 0, 0x1p-133f, 0x1p127f, 0x1p-6f);
    check_sum(multiply, type, 0, 0x1p100f, -0x1.8p-127f, -0x1.8p-27f);
    check_sum(multiply, type, 0, 0x1p-70f, 0x1p-70f, 0x1p-140f);
    check_sum(multiply, type, -0x1p-126f, 0x1.8p-63f, 0x1p-63f, 0x1p-127f);
    check_sum(multiply, type, 0x1p-149f, 0, 0, 0x1p-149f);
}

static fsdp_status by_fp32(const gemm_args *g)
{
    gemm_fp32(g);
    return FSDP_OK;
}

TEST(test_denormals)
{
    denormals(gemm_portable, DTYPE_F32);
    denormals(gemm_portable, DTYPE_BF16);
    for (int avx512 = 0; avx512 < 2; avx512++)
        if (has(avx512)) {
            assert_true(gemm_fp32_open(avx512, true));
            denormals(by_fp32, DTYPE_F32);
        }
}

TEST(test_edges_avx512)
{
    edges(true);
}

TEST(test_edges_avx2)
{
    edges(false);
}

TEST(test_large_left_avx512)
{
    large_left(true);
}

TEST(test_large_left_avx2)
{
    large_left(false);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
