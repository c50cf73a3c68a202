/* test_ops_bf16.c -- bf16: casts, and products of matrices on rounded operands. Parameters that are
 * stored in bf16 are test_ops_params.c's business.
 *
 * All of it runs twice: the last test starts this program again as on a processor that has
 * no bf16 instructions. */
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/base/dtype.h"
#include "tests/unit/ops_check_lib.h"

/* oneDNN reads it once, when it is first called. */
#define ISA_VARIABLE "ONEDNN_MAX_CPU_ISA"

enum { MAX_THREADS = 3 };
static device *dev[MAX_THREADS + 1]; /* dev[n] runs kernels on n threads */
static stream *s;                    /* 2 threads */

static int setup(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n++)
        dev[n] = ops_test_device(n, false);
    s = device_compute_stream(dev[2]);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n++)
        device_close(dev[n]);
    return 0;
}

static float *copy_of(const float *x, size_t elems)
{
    return memcpy(malloc((elems + 1) * sizeof *x), x, elems * sizeof *x);
}

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- casts ---------------------------------------------------------------------------------- */

static void test_rounding(void **state)
{
    (void)state;
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } CASES[] = {
        {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, /* about a tie, even */
        {0x3f817fff, 0x3f81}, {0x3f818000, 0x3f82}, {0x3f818001, 0x3f82}, /* odd */
        {0xbf808000, 0xbf80}, {0xbf818000, 0xbf82}, {0x3fffffff, 0x4000}, /* carry: exponent */
        {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80}, {0xff7fffff, 0xff80}, /* carry: infinity */
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x00000000, 0x0000}, {0x80000000, 0x8000},
        {0x00000001, 0x0000}, {0x00008000, 0x0000}, {0x00008001, 0x0001}, /* denormals */
        {0x80018000, 0x8002}, {0x007f7fff, 0x007f}, {0x007f8000, 0x0080}, {0x807fffff, 0x8080},
        {0x7f800001, 0x7fc0}, {0xff800001, 0xffc0}, {0x7fbfffff, 0x7fff}, /* NaN, quiet */
        {0x7fc00000, 0x7fc0}, {0x7fffffff, 0x7fff}, {0xffffffff, 0xffff},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        assert_int_equal(bf16_from_f32(from_bits(CASES[i].f32)), CASES[i].bf16);
}

static void test_every_bf16_round_trips(void **state)
{
    (void)state;
    for (uint32_t h = 0; h <= 0xffff; h++) {
        const float x = f32_from_bf16((uint16_t)h);
        const bool signalling = (h & 0x7fc0) == 0x7f80 && (h & 0x3f) != 0;
        assert_memory_equal(&x, &(uint32_t){h << 16}, sizeof x);
        assert_int_equal(bf16_from_f32(x), signalling ? h | 0x40 : h);
    }
}

/* The nearer of the two neighbours, both exact in double. */
static void test_rounds_to_nearest(void **state)
{
    (void)state;
    for (uint64_t u = 0; u < 0x7f7f0000u; u += 4093) {
        const double x = (double)from_bits((uint32_t)u);
        const uint16_t below = (uint16_t)(u >> 16), got = bf16_from_f32((float)x);
        const double down = x - (double)f32_from_bf16(below);
        const double up = (double)f32_from_bf16((uint16_t)(below + 1)) - x;
        const bool is_up = up < down || (up == down && below % 2 == 1);
        assert_int_equal(got, below + is_up);
        assert_int_equal(bf16_from_f32((float)-x), got | 0x8000);
    }
}

static void test_cast(void **state)
{
    (void)state;
    static const size_t ELEMS[] = {0, 1, 17, 4099, 300007};
    for (int i = 0; i < 5; i++) {
        const size_t n = ELEMS[i];
        float *x = normals(1, 1.0f, n), *back = filled(7.0f, n);
        uint16_t *h = calloc(n + 1, sizeof *h), *h2 = calloc(n + 1, sizeof *h2);
        for (int t = 1; t <= MAX_THREADS; t++) {
            stream *st = device_compute_stream(dev[t]);
            OK(ops_table(t % 2)->cast(st, &(cast_args){h, x, DTYPE_BF16, DTYPE_F32, n}));
            OK(ops_table(t % 2)->cast(st, &(cast_args){back, h, DTYPE_F32, DTYPE_BF16, n}));
            OK(ops_table(t % 2)->cast(st, &(cast_args){h2, h, DTYPE_BF16, DTYPE_BF16, n}));
            for (size_t e = 0; e < n; e++) {
                assert_int_equal(h[e], bf16_from_f32(x[e]));
                assert_true(back[e] == f32_from_bf16(h[e]) && h2[e] == h[e]);
            }
            assert_int_equal(h[n] | h2[n], 0);
        }
        OK(ops_cpu_fast()->cast(s, &(cast_args){back, x, DTYPE_F32, DTYPE_F32, n}));
        expect_same_bits(back, x, n, "cast", "from f32 to f32");
        free(x), free(back), free(h), free(h2);
    }
}

static void test_unknown_types(void **state)
{
    (void)state;
    float x[1] = {0};
    assert_int_equal(ops_cpu_fast()->cast(s, &(cast_args){x, x, DTYPE_F32, DTYPE_I64, 1}),
                     FSDP_EINVAL);
    matmul_args a = {.out = x, .a = x, .b = x, .m = 1, .n = 1, .k = 1, .b_type = DTYPE_U8};
    assert_int_equal(ops_cpu_fast()->matmul(s, &a), FSDP_EINVAL);
}

/* ---- matmul --------------------------------------------------------------------------------- */

/* A product with what its operands were made of. */
typedef struct product {
    matmul_args args; /* .out is set by run_product */
    float *a, *b;     /* values that count: rounded where the product rounds */
    float *start;     /* of out */
    void *stored[2];
} product;

/* The operand as it is stored, and in *value what it stands for in a product in `compute`. */
static void *operand_new(uint64_t name, size_t elems, dtype type, dtype compute, float **value)
{
    float *x = normals(name, 1.0f, elems);
    uint16_t *h = malloc((elems + 1) * sizeof *h);
    for (size_t i = 0; i < elems; i++)
        h[i] = bf16_from_f32(x[i]);
    *value = copy_of(x, elems);
    for (size_t i = 0; i < elems && (type == DTYPE_BF16 || compute == DTYPE_BF16); i++)
        (*value)[i] = f32_from_bf16(h[i]);
    free(type == DTYPE_BF16 ? (void *)x : (void *)h);
    return type == DTYPE_BF16 ? (void *)h : (void *)x;
}

/* types: bit 0: a is stored in bf16, bit 1: b is, bit 2: compute in bf16. */
static product product_new(size_t m, size_t n, size_t k, unsigned form, unsigned types)
{
    product p = {.args = {.m = m,
                          .n = n,
                          .k = k,
                          .trans_a = form & 1,
                          .trans_b = form & 2,
                          .accumulate = form & 4,
                          .a_type = types & 1 ? DTYPE_BF16 : DTYPE_F32,
                          .b_type = types & 2 ? DTYPE_BF16 : DTYPE_F32,
                          .compute = types & 4 ? DTYPE_BF16 : DTYPE_F32}};
    p.args.a = p.stored[0] = operand_new(1, m * k, p.args.a_type, p.args.compute, &p.a);
    p.args.b = p.stored[1] = operand_new(2, k * n, p.args.b_type, p.args.compute, &p.b);
    /* what is not accumulated into must not be read */
    p.start = form & 4 ? normals(3, 1.0f, m * n) : filled(NAN, m * n);
    return p;
}

static void product_free(product *p)
{
    free(p->a), free(p->b), free(p->start), free(p->stored[0]), free(p->stored[1]);
}

static float *run_product(const product *p, const ops *o, int n_threads)
{
    matmul_args a = p->args;
    a.out = copy_of(p->start, a.m * a.n);
    omp_set_num_threads(n_threads == 1 ? 1 : 5 - n_threads); /* must not matter */
    OK(o->matmul(device_compute_stream(dev[n_threads]), &a));
    return a.out;
}

static float a_at(const product *p, size_t row, size_t i)
{
    return p->a[p->args.trans_a ? i * p->args.m + row : row * p->args.k + i];
}

static float b_at(const product *p, size_t i, size_t col)
{
    return p->b[p->args.trans_b ? col * p->args.k + i : i * p->args.n + col];
}

/* Against a sum in double. A partial sum is at most the sum of sizes; it is rounded k times, and so
 * is each term at most once (not at all where both factors are bf16). No number here is so small
 * that an instruction which takes denormals for 0 would show. */
static void check_near(const product *p, const float *out, const char *what)
{
    const matmul_args *a = &p->args;
    for (size_t i = 0; i < a->m * a->n; i++) {
        double sum = a->accumulate ? (double)p->start[i] : 0.0, size = fabs(sum);
        for (size_t j = 0; j < a->k; j++) {
            const double term = (double)a_at(p, i / a->n, j) * (double)b_at(p, j, i % a->n);
            sum += term;
            size += fabs(term);
        }
        const double bound = (double)(a->k + 1) * FLT_EPSILON / 2 * size;
        if (!(fabs((double)out[i] - sum) <= bound))
            fail_msg("%s, %zux%zux%zu: element %zu is %.9g, expected %.9g within %.3g", what, a->m,
                     a->n, a->k, i, (double)out[i], sum, bound);
    }
}

/* Against the plain loop that portable promises. */
static void check_portable(const product *p, const float *out)
{
    const matmul_args *a = &p->args;
    float *want = copy_of(p->start, a->m * a->n);
    for (size_t i = 0; i < a->m * a->n; i++) {
        float sum = a->accumulate ? p->start[i] : 0.0f;
        for (size_t j = 0; j < a->k; j++)
            sum += a_at(p, i / a->n, j) * b_at(p, j, i % a->n);
        want[i] = sum;
    }
    expect_same_bits(out, want, a->m * a->n, "matmul", "portable and a plain loop");
    free(want);
}

static void check_product(size_t m, size_t n, size_t k, unsigned form, unsigned types)
{
    product p = product_new(m, n, k, form, types);
    for (int t = 0; t < 2; t++) {
        float *out = run_product(&p, ops_table(t), 1);
        check_near(&p, out, ops_table(t)->name);
        if (t == 1)
            check_portable(&p, out);
        for (int n_threads = 2; n_threads <= MAX_THREADS; n_threads++) {
            float *again = run_product(&p, ops_table(t), n_threads);
            expect_same_bits(again, out, m * n, "matmul", "several threads and one");
            free(again);
        }
        free(out);
    }
    product_free(&p);
}

/* Every orientation, stored type and way of computing; odd sizes, several tiles along m and n,
 * several pieces along k. */
static void test_matmul(void **state)
{
    (void)state;
    static const size_t SIZES[][3] = {{1, 1, 1},    {3, 5, 7},     {2, 1, 515},  {1, 513, 130},
                                      {67, 33, 40}, {259, 390, 5}, {9, 21, 601}, {1, 5, 2053}};
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
        for (unsigned form = 0; form < 8; form++) {
            for (unsigned types = 1; types < 8; types++)
                check_product(SIZES[i][0], SIZES[i][1], SIZES[i][2], form, types);
        }
    }
    for (unsigned form = 0; form < 4; form++)
        check_product(40, 1001, 300, form, 4 + form); /* narrow tiles, enough work for threads */
}

/* op(a) is rounded 8 Mi elements at a time, or 256 rows if that is more: here 300 rows are two
 * groups. The scratch that takes is what the ledger shows; nothing of it stays. */
static void test_groups_of_rows(void **state)
{
    (void)state;
    enum { M = 300, N = 2, K = 17000 };
    for (unsigned form = 0; form < 2; form++) {
        ledger_reset_peaks(device_ledger(dev[1]));
        check_product(M, N, K, form, 4);
        const ledger_figures f = ledger_read(device_ledger(dev[1]));
        assert_int_equal(f.live_blocks, 0);
        assert_int_equal(f.peak_bytes[MEM_ACTIVATIONS], (256 * K + K * N) * 2);
    }
    product in_place = product_new(M, N, K, 0, 3);
    ledger_reset_peaks(device_ledger(dev[1]));
    free(run_product(&in_place, ops_cpu_fast(), 1));
    assert_int_equal(ledger_read(device_ledger(dev[1])).peak_total_bytes, 0);
    product_free(&in_place);
}

static void test_sum_over_nothing(void **state)
{
    (void)state;
    float out[4] = {1, 2, 3, 4};
    matmul_args a = {.out = out, .m = 2, .n = 2, .compute = DTYPE_BF16, .accumulate = true};
    OK(ops_cpu_fast()->matmul(s, &a));
    assert_true(out[0] == 1.0f && out[3] == 4.0f);
    a.accumulate = false;
    OK(ops_cpu_fast()->matmul(s, &a));
    expect_same_bits(out, (const float[4]){0}, 4, "matmul", "k = 0");
}

/* An infinity or NaN among the operands, or that rounding makes, reaches the elements it is part of
 * and no other. */
static void test_not_finite(void **state)
{
    (void)state;
    enum { N = 5 };
    const float special[3] = {INFINITY, NAN, FLT_MAX};
    for (int i = 0; i < 6; i++) {
        float a[N * N], b[N * N], out[N * N];
        ops_test_fill(1, 1.0f, a, N * N);
        ops_test_fill(2, 1.0f, b, N * N);
        a[2 * N + 1] = special[i / 2];
        OK(ops_table(i % 2)->matmul(
            s, &(matmul_args){
                   .out = out, .a = a, .b = b, .m = N, .n = N, .k = N, .compute = DTYPE_BF16}));
        for (int e = 0; e < N * N; e++)
            assert_int_equal(isfinite(out[e]) != 0, e / N != 2);
    }
}

/* ---- written or added ------------------------------------------------------------------------ */

/* A product that is written has the bits of one that is added to 0, in portable. */
static void test_matmul_overwrites(void **state)
{
    (void)state;
    product p = product_new(37, 29, 300, 0, 4);
    float *written = run_product(&p, ops_cpu_portable(), 2);
    memset(p.start, 0, 37 * 29 * sizeof *p.start);
    p.args.accumulate = true;
    float *added = run_product(&p, ops_cpu_portable(), 2);
    expect_same_bits(written, added, 37 * 29, "matmul", "written, and added to 0");
    free(written), free(added);
    product_free(&p);
}

/* ---- a processor without bf16 instructions --------------------------------------------------- */

static void test_without_bf16_instructions(void **state)
{
    (void)state;
    if (getenv(ISA_VARIABLE) != NULL)
        skip(); /* this is that run, or somebody has set another limit */
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int null = open("/dev/null", O_WRONLY);
        if (null < 0 || dup2(null, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0 ||
            setenv(ISA_VARIABLE, "AVX2", 1) != 0)
            _exit(126);
        execl("/proc/self/exe", "test_ops_bf16", (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0)
        fail_msg("without bf16 instructions: status %d; run this program with " ISA_VARIABLE
                 "=AVX2 to see why",
                 status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_every_bf16_round_trips),
        cmocka_unit_test(test_rounds_to_nearest),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_unknown_types),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_groups_of_rows),
        cmocka_unit_test(test_sum_over_nothing),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_matmul_overwrites),
        cmocka_unit_test(test_without_bf16_instructions),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
