/* test_gemm_amx.c -- bf16 products by AMX: every element of products of all kinds of edges, no
 * byte around them, and bits that do not depend on the shape. Whole numbers make all sums exact, so
 * they are compared with integers. Denormal numbers are 0. After each call no configuration of
 * tiles is loaded. */
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "common/ops/cpu_kernels.h"
#include "tests/unit/fence.h"
#include "tests/unit/unit_lib.h"

/* The kernel of the library, and the same source with tiles in C. */
typedef void (*kernel)(const gemm_args *g);
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/device/cpu_tiles.h"
#define gemm_amx      gemm_emulated
#define gemm_amx_open gemm_emulated_open
#include "tests/unit/tiles.h"
#if !defined __AVX512BW__ || !defined __AVX512VL__
#include "tests/unit/avx512.h"
#endif
#include "common/ops/gemm_amx.c"
#undef gemm_amx
#undef gemm_amx_open
#undef target
static const kernel EMULATED = gemm_emulated;

/* Whether the processor has no configuration of tiles loaded; it stores zeros then. */
static __attribute__((target("amx-tile"))) bool processor_is_released(void)
{
    uint8_t config[64];
    memset(config, 0xff, sizeof config);
    __asm__ volatile("sttilecfg %0" : "+m"(config));
    for (size_t i = 0; i < sizeof config; i++)
        if (config[i] != 0)
            return false;
    return true;
}

/* A call loads the configuration and releases it. */
static void check_released(bool is_real)
{
    if (is_real) {
        assert_true(processor_is_released());
        return;
    }
    const struct tiles_state was = tiles_config;
    memset(&tiles_config, 0, sizeof tiles_config);
    assert_int_equal(was.loads, 1);
    assert_int_equal(was.releases, 1);
    assert_false(was.is_loaded);
}
#else
static const kernel EMULATED = NULL;

static void check_released(bool is_real)
{
    (void)is_real;
}
#endif

static uint16_t *a, *b; /* each array ends where its memory ends */
static float *c;
static kernel chosen;

/* The processor's tiles, or emulated ones. */
static void use(bool is_real)
{
    chosen = is_real ? gemm_amx_open() ? gemm_amx : NULL : EMULATED;
    if (chosen == NULL)
        skip();
}

static void multiply_by(const gemm_args *g)
{
    chosen(g);
    check_released(chosen == gemm_amx);
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

/* 1 + 2^25 - 2^25 + 1/2: the first addition loses the 1. */
static void left_in_order(void)
{
    const float large = 0x1p25f, minus_large = -0x1p25f, half = 0.5f;
    const leaf_left third = {&half, NULL}, second = {&minus_large, &third};
    const leaf_left first = {&large, &second};
    for (int way = 0; way < 3; way++) {
        const uint16_t one = bf16_from_f32(1);
        float sum = 0;
        multiply_by(&(gemm_args){.c = &sum,
                                 .a = &one,
                                 .b = &one,
                                 .m = 1,
                                 .n = 1,
                                 .k = 1,
                                 .ldc = 1,
                                 .lda = 1,
                                 .ldb = 1,
                                 .a_type = DTYPE_BF16,
                                 .b_type = DTYPE_BF16,
                                 .trans_a = way == 0,
                                 .trans_b = way == 2,
                                 .left = &first});
        if (sum != half)
            fail_msg("sum with left siblings %g, not %g", (double)sum, (double)half);
    }
}

/* old + x0 y0 + x1 y1 */
typedef struct pair {
    float old, x0, y0, x1, y1;
} pair;

static void check_sum(pair x, float want)
{
    for (int way = 0; way < 3; way++) {
        const uint16_t row[2] = {bf16_from_f32(x.x0), bf16_from_f32(x.x1)};
        const uint16_t column[2] = {bf16_from_f32(x.y0), bf16_from_f32(x.y1)};
        const bool trans_a = way == 0, trans_b = way == 2;
        float sum = x.old;
        multiply_by(&(gemm_args){.c = &sum,
                                 .a = row,
                                 .b = column,
                                 .m = 1,
                                 .n = 1,
                                 .k = 2,
                                 .ldc = 1,
                                 .lda = trans_a ? 1 : 2,
                                 .ldb = trans_b ? 2 : 1,
                                 .a_type = DTYPE_BF16,
                                 .b_type = DTYPE_BF16,
                                 .trans_a = trans_a,
                                 .trans_b = trans_b,
                                 .accumulate = true});
        if (sum != want)
            fail_msg("%a + %a * %a + %a * %a: %a, not %a", (double)x.old, (double)x.x0,
                     (double)x.y0, (double)x.x1, (double)x.y1, (double)sum, (double)want);
    }
}

/* A denormal operand is taken for 0, and a denormal sum becomes 0. The least normal stays. */
static void denormals(void)
{
    check_sum((pair){.x0 = 0x1p-127f, .y0 = 0x1p127f, .old = 1}, 1);
    check_sum((pair){.x1 = 0x1p127f, .y1 = -0x1.f8p-127f}, 0);
    check_sum((pair){.x0 = 0x1p-133f, .y0 = 0x1p127f, .x1 = 1, .y1 = 3}, 3);
    check_sum((pair){.x0 = 0x1p-70f, .y0 = 0x1p-70f}, 0);
    check_sum((pair){.x1 = 0x1p-63f, .y1 = -0x1.fcp-64f}, 0);
    check_sum((pair){.x0 = 0x1.8p-63f, .y0 = 0x1p-63f, .x1 = 0x1p-63f, .y1 = -0x1p-63f}, 0);
    check_sum((pair){.x0 = 0x1.8p-63f, .y0 = 0x1p-63f, .old = -0x1p-126f}, 0);
    check_sum((pair){.old = 0x1.8p-127f}, 0);
    check_sum((pair){.x0 = 0x1p-63f, .y0 = 0x1p-63f}, 0x1p-126f);
    check_sum((pair){.x0 = 0x1p-126f, .y0 = 1, .x1 = 0x1p-127f, .y1 = 0x1p127f}, 0x1p-126f);
    check_sum((pair){.old = 0x1p-126f}, 0x1p-126f);
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

TEST(test_left_in_order)
{
    use(true);
    left_in_order();
}

TEST(test_denormals)
{
    use(true);
    denormals();
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

TEST(test_left_in_order_emulated)
{
    use(false);
    left_in_order();
}

TEST(test_denormals_emulated)
{
    use(false);
    denormals();
}

int main(void)
{
    return tests_run(NULL, NULL);
}
