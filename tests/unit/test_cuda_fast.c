/* test_cuda_fast.c -- the fast table of the target (FSDP_DEVICE) against sums in double.
 *
 * Bounds are derived. A sum of n products, in any order, is off by at most
 *     gamma(n) * sum of |products|,  gamma(n) = n u / (1 - n u)            [Higham 2002, §3.1]
 * where u is 2^-23: matrix instructions may cut an addition off instead of rounding it. A result
 * that is stored in bf16 is rounded once more, by 2^-8 of its size; so is, where ops.h allows it,
 * a probability or the gradient of a score before it is multiplied. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ops_cases_lib.h"
#include "tests/unit/target_lib.h"
#include "tests/unit/unit_lib.h"

static const backend *target;
static device *dev;
static stream *s;
static const dtype TYPES[] = {DTYPE_F32, DTYPE_BF16};
static const double UNIT = 0x1p-23;

static double gamma_of(size_t n)
{
    return (double)n * UNIT / (1.0 - (double)n * UNIT);
}

static double rounding_of(dtype t)
{
    return t == DTYPE_BF16 ? 0x1p-8 : UNIT;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* An array on the device, and the values that it began with. */
typedef struct array {
    void *ptr;
    double *x;
    size_t elems;
    dtype type;
} array;

enum { MAX_ARRAYS = 16 };
static array *live[MAX_ARRAYS];
static int n_live;

/* elems normal values times std, as `type` holds them; std NAN: what must be overwritten. */
static array *array_new(double std, size_t elems, dtype type)
{
    array *a = malloc(sizeof *a);
    float *f32 = calloc(elems + 1, sizeof *f32);
    uint16_t *bf16 = calloc(elems + 1, sizeof *bf16);
    *a = (array){NULL, calloc(elems + 1, sizeof(double)), elems, type};
    ops_test_fill((uint64_t)(n_live + 1), 1.0f, f32, elems);
    for (size_t i = 0; i < elems; i++) {
        bf16[i] = bf16_from_f32(f32[i] *= (float)std);
        if (type == DTYPE_BF16)
            f32[i] = f32_from_bf16(bf16[i]);
        a->x[i] = (double)f32[i];
    }
    OK(device_alloc(s, MEM_OTHER, elems * dtype_bytes(type), "array", &a->ptr));
    OK(device_upload(s, a->ptr, type == DTYPE_BF16 ? (void *)bf16 : (void *)f32,
                     elems * dtype_bytes(type)));
    free(f32), free(bf16);
    assert_true(n_live < MAX_ARRAYS);
    return live[n_live++] = a;
}

static void arrays_free(void)
{
    while (n_live > 0) {
        array *a = live[--n_live];
        device_free(s, a->ptr);
        free(a->x), free(a);
    }
    OK(stream_sync(s));
}

/* What the array holds now, as it is stored. The caller frees. */
static void *stored_of(const array *a)
{
    void *host = malloc(a->elems * dtype_bytes(a->type) + 1);
    OK(device_download(s, host, a->ptr, a->elems * dtype_bytes(a->type)));
    OK(stream_sync(s));
    return host;
}

/* The same as numbers. */
static double *values_of(const array *a)
{
    void *host = stored_of(a);
    double *x = malloc((a->elems + 1) * sizeof *x);
    for (size_t i = 0; i < a->elems; i++)
        x[i] = (double)(a->type == DTYPE_BF16 ? f32_from_bf16(((uint16_t *)host)[i])
                                              : ((float *)host)[i]);
    free(host);
    return x;
}

/* A number that is expected, and how far off a sum in fp32 may be. */
typedef struct expected {
    double value, error;
} expected;

static expected *expected_new(size_t elems)
{
    return calloc(elems + 1, sizeof(expected));
}

/* Each element of a is as expected, stored as it is. Frees `want`. */
static void expect_near(const array *a, expected *want, const char *what)
{
    double *got = values_of(a);
    for (size_t i = 0; i < a->elems; i++) {
        const double error = want[i].error;
        const double bound = error + rounding_of(a->type) * (fabs(want[i].value) + error) + 1e-37;
        if (!(fabs(got[i] - want[i].value) <= bound))
            fail_msg("%s: element %zu of %zu is %.9g, expected %.9g within %.3g", what, i, a->elems,
                     got[i], want[i].value, bound);
    }
    free(got), free(want);
}

/* ---- matmul ---------------------------------------------------------------------------------- */

enum { TRANS_A = 1, TRANS_B = 2, ACCUMULATE = 4, BIAS = 8, RESIDUAL = 16, IN_PLACE = 32, F32 = 64 };

typedef struct matmul_case {
    size_t m, n, k;
    unsigned form;
    dtype type;
} matmul_case;

typedef struct matmul_arrays {
    array *out, *a, *b, *bias, *residual;
} matmul_arrays;

static matmul_args matmul_args_of(const matmul_case *c, matmul_arrays *x)
{
    const unsigned form = c->form;
    const dtype out_type = form & (ACCUMULATE | F32) ? DTYPE_F32 : c->type;
    const bool old = form & (ACCUMULATE | IN_PLACE);
    *x = (matmul_arrays){.a = array_new(1, c->m * c->k, c->type),
                         .b = array_new(1, c->k * c->n, c->type),
                         .out = array_new(old ? 1 : (double)NAN, c->m * c->n, out_type)};
    if (form & BIAS)
        x->bias = array_new(1, c->n, c->type);
    if (form & RESIDUAL)
        x->residual = form & IN_PLACE ? x->out : array_new(1, c->m * c->n, c->type);
    return (matmul_args){.out = x->out->ptr,
                         .a = x->a->ptr,
                         .b = x->b->ptr,
                         .bias = x->bias ? x->bias->ptr : NULL,
                         .residual = x->residual ? x->residual->ptr : NULL,
                         .m = c->m,
                         .n = c->n,
                         .k = c->k,
                         .trans_a = form & TRANS_A,
                         .trans_b = form & TRANS_B,
                         .accumulate = form & ACCUMULATE,
                         .type = c->type,
                         .out_type = out_type};
}

/* k products, and up to three more terms. */
static expected *matmul_expected(const matmul_case *c, const matmul_arrays *x)
{
    expected *want = expected_new(c->m * c->n);
    for (size_t i = 0; i < c->m * c->n; i++) {
        const size_t row = i / c->n, col = i % c->n;
        const double terms[] = {c->form & ACCUMULATE ? x->out->x[i] : 0,
                                x->bias ? x->bias->x[col] : 0, x->residual ? x->residual->x[i] : 0};
        double sum = terms[0] + terms[1] + terms[2], size = 0;
        for (int t = 0; t < 3; t++)
            size += fabs(terms[t]);
        for (size_t l = 0; l < c->k; l++) {
            const double a = x->a->x[c->form & TRANS_A ? l * c->m + row : row * c->k + l];
            const double b = x->b->x[c->form & TRANS_B ? col * c->k + l : l * c->n + col];
            sum += a * b;
            size += fabs(a * b);
        }
        want[i] = (expected){sum, gamma_of(c->k + 4) * size};
    }
    return want;
}

static void check_matmul(const matmul_case *c)
{
    char what[128];
    matmul_arrays x;
    const matmul_args args = matmul_args_of(c, &x);
    snprintf(what, sizeof what, "matmul %zu x %zu x %zu, form %u, %s", c->m, c->n, c->k, c->form,
             dtype_name(c->type));
    OK(target->fast()->matmul(s, &args));
    expect_near(x.out, matmul_expected(c, &x), what);
    arrays_free();
}

static void test_matmul_shapes(void **state)
{
    (void)state;
    static const size_t SIZES[] = {1, 7, 64, 100};
    for (size_t i = 0; i < 4 * 4 * 4 * 4 * 2; i++)
        check_matmul(&(matmul_case){.m = SIZES[i % 4],
                                    .n = SIZES[i / 4 % 4],
                                    .k = SIZES[i / 16 % 4],
                                    .form = (unsigned)(i / 64 % 4),
                                    .type = TYPES[i / 256]});
}

static void test_matmul_forms(void **state)
{
    (void)state;
    static const unsigned FORMS[] = {ACCUMULATE,
                                     BIAS,
                                     RESIDUAL,
                                     RESIDUAL | IN_PLACE,
                                     BIAS | RESIDUAL,
                                     F32,
                                     F32 | BIAS,
                                     F32 | RESIDUAL,
                                     TRANS_A | BIAS,
                                     TRANS_B | F32 | RESIDUAL,
                                     F32 | BIAS | RESIDUAL,
                                     TRANS_A | ACCUMULATE,
                                     BIAS | RESIDUAL | IN_PLACE};
    static const size_t DEPTHS[] = {0, 5, 96};
    for (size_t t = 0; t < 2; t++)
        for (size_t f = 0; f < sizeof FORMS / sizeof *FORMS; f++)
            for (size_t d = 0; d < 3; d++)
                check_matmul(&(matmul_case){
                    .m = 33, .n = 18, .k = DEPTHS[d], .form = FORMS[f], .type = TYPES[t]});
    for (size_t i = 0; i < 2; i++)
        check_matmul(&(matmul_case){.m = i ? 3 : 0, .n = i ? 0 : 3, .k = 2});
}

/* Arrays that begin at an odd element, as slices of others may: one at a time. */
static void test_matmul_anywhere(void **state)
{
    (void)state;
    const matmul_case c = {.m = 32, .n = 32, .k = 64, .form = BIAS | RESIDUAL, .type = DTYPE_BF16};
    for (int moved = 0; moved < 5; moved++) {
        matmul_arrays x;
        matmul_args args = matmul_args_of(&c, &x);
        const array *arrays[] = {x.a, x.b, x.bias, x.residual, x.out};
        const size_t bytes = arrays[moved]->elems * 2;
        char *odd = (char *)array_new(1, arrays[moved]->elems + 1, DTYPE_BF16)->ptr + 2;
        const void **inputs[] = {&args.a, &args.b, &args.bias, &args.residual};
        OK(device_copy(s, odd, arrays[moved]->ptr, bytes));
        if (moved < 4)
            *inputs[moved] = odd;
        else
            args.out = odd;
        OK(target->fast()->matmul(s, &args));
        if (moved == 4)
            OK(device_copy(s, x.out->ptr, odd, bytes));
        expect_near(x.out, matmul_expected(&c, &x), "an array that begins at an odd element");
        arrays_free();
    }
}

static void test_matmul_refuses(void **state)
{
    (void)state;
    const ops *o = target->fast();
    float x = 0;
    const matmul_args refused[] = {
        {.type = DTYPE_I64, .out_type = DTYPE_I64},
        {.type = DTYPE_F32, .out_type = DTYPE_BF16},
        {.bias = &x, .accumulate = true},
        {.residual = &x, .accumulate = true},
        {.type = DTYPE_BF16, .out_type = DTYPE_BF16, .accumulate = true},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_int_equal(o->matmul(s, &refused[i]), FSDP_EINVAL);
    OK(stream_sync(s));
}

/* Nothing that the table takes for itself is left. */
static int teardown(void **state)
{
    (void)state;
    OK(stream_sync(s));
    assert_int_equal(ledger_read(device_ledger(dev)).live_total_bytes, 0);
    return 0;
}

int main(void)
{
    target = target_backend();
    if (device_open(&(device_config){.backend = target->device, .n_threads = 1}, &dev) != FSDP_OK) {
        fsdp_error_print(stderr, 0, 0);
        return 2;
    }
    s = device_compute_stream(dev);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_matmul_shapes, teardown),
        cmocka_unit_test_teardown(test_matmul_forms, teardown),
        cmocka_unit_test_teardown(test_matmul_anywhere, teardown),
        cmocka_unit_test_teardown(test_matmul_refuses, teardown),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(dev);
    return failed;
}
