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

/* ---- layernorm, bias_backward ---------------------------------------------------------------- */

typedef struct size2 {
    size_t rows, cols;
} size2;
static const size2 NORMS[] = {{1, 1}, {3, 7}, {5, 33}, {33, 100}, {130, 64}, {9, 1030}};
enum { N_NORMS = sizeof NORMS / sizeof *NORMS };

/* Mean and reciprocal deviation of a row. */
typedef struct moments {
    double mean, rstd;
} moments;

static moments moments_of(const double *x, size_t cols)
{
    double sum = 0, squares = 0;
    for (size_t c = 0; c < cols; c++)
        sum += x[c];
    for (size_t c = 0; c < cols; c++)
        squares += (x[c] - sum / (double)cols) * (x[c] - sum / (double)cols);
    return (moments){sum / (double)cols, 1 / sqrt(squares / (double)cols + 1e-5)};
}

/* The mean is off by e = gamma(C + 1) avg|x|. So is each difference d = x - mean, and rounded; the
 * variance by 2 e avg|d|, and gamma(C + 2) of itself, and rstd, by half of that relative to it.
 * Below, `rel` is how far n = d rstd is off by the factor, and `shift` by the mean. */
static void expect_norm(const array *in, const array *gain, const array *bias, size2 n,
                        expected *out[3])
{
    for (size_t r = 0; r < n.rows; r++) {
        const double *x = in->x + r * n.cols;
        const moments m = moments_of(x, n.cols);
        double size = 0, spread = 0;
        for (size_t c = 0; c < n.cols; c++) {
            size += fabs(x[c]) / (double)n.cols;
            spread += fabs(x[c] - m.mean) / (double)n.cols;
        }
        const double e = gamma_of(n.cols + 1) * size + UNIT * fabs(m.mean);
        const double rel = (2 * e * spread + e * e) * m.rstd * m.rstd / 2 + gamma_of(n.cols + 8);
        out[1][r] = (expected){m.mean, e};
        out[2][r] = (expected){m.rstd, rel * m.rstd};
        for (size_t c = 0; c < n.cols; c++) {
            const double norm = (x[c] - m.mean) * m.rstd, error = fabs(norm) * rel + e * m.rstd;
            const double value = norm * gain->x[c] + bias->x[c];
            out[0][r * n.cols + c] = (expected){value, error * fabs(gain->x[c]) * 1.01 +
                                                           2 * UNIT * (fabs(value) + fabs(norm))};
        }
    }
}

static void check_layernorm(size2 n, dtype type)
{
    const size_t elems = n.rows * n.cols;
    array *in = array_new(1, elems, type), *gain = array_new(1, n.cols, type);
    array *bias = array_new(1, n.cols, type),
          *out[] = {array_new((double)NAN, elems, type), array_new((double)NAN, n.rows, DTYPE_F32),
                    array_new((double)NAN, n.rows, DTYPE_F32)};
    expected *want[] = {expected_new(elems), expected_new(n.rows), expected_new(n.rows)};
    OK(target->fast()->layernorm(s, &(layernorm_args){.out = out[0]->ptr,
                                                      .mean = out[1]->ptr,
                                                      .rstd = out[2]->ptr,
                                                      .in = in->ptr,
                                                      .gain = gain->ptr,
                                                      .bias = bias->ptr,
                                                      .rows = n.rows,
                                                      .cols = n.cols,
                                                      .eps = 1e-5f,
                                                      .type = type}));
    expect_norm(in, gain, bias, n, want);
    expect_near(out[0], want[0], "layernorm");
    expect_near(out[1], want[1], "mean");
    expect_near(out[2], want[2], "rstd");
    arrays_free();
}

static void test_layernorm(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * N_NORMS; i++)
        check_layernorm(NORMS[i / 2], TYPES[i % 2]);
}

/* What a row of d_in is made of, and a column of d_gain and d_bias: sums of as many terms as there
 * are columns or rows, each of which is rounded up to six times before. */
static void expect_norm_backward(const array *x[7], size2 n, bool overwrite, expected *want[3])
{
    const array *in = x[0], *gain = x[1], *d_out = x[2], *mean = x[3], *rstd = x[4];
    double *size = calloc(2 * n.cols, sizeof *size);
    for (size_t c = 0; c < n.cols && !overwrite; c++) {
        want[1][c].value = x[5]->x[c];
        want[2][c].value = x[6]->x[c];
    }
    for (size_t r = 0; r < n.rows; r++) {
        double g = 0, gn = 0, abs_g = 0, abs_gn = 0;
        for (int pass = 0; pass < 2; pass++)
            for (size_t c = 0; c < n.cols; c++) {
                const size_t i = r * n.cols + c;
                const double norm = (in->x[i] - mean->x[r]) * rstd->x[r], d = d_out->x[i];
                const double term = d * gain->x[c];
                if (pass == 0) {
                    g += term / (double)n.cols, abs_g += fabs(term) / (double)n.cols;
                    gn += term * norm / (double)n.cols;
                    abs_gn += fabs(term * norm) / (double)n.cols;
                    want[1][c].value += d * norm, size[c] += fabs(d * norm);
                    want[2][c].value += d, size[n.cols + c] += fabs(d);
                    continue;
                }
                want[0][i].value += rstd->x[r] * (term - g - norm * gn);
                want[0][i].error = gamma_of(n.cols + 9) * fabs(rstd->x[r]) *
                                       (fabs(term) + abs_g + fabs(norm) * abs_gn) +
                                   2 * UNIT * fabs(want[0][i].value);
            }
    }
    for (size_t c = 0; c < n.cols; c++)
        for (int i = 0; i < 2; i++)
            want[1 + i][c].error =
                gamma_of(n.rows + 6) * (size[(size_t)i * n.cols + c] + fabs(want[1 + i][c].value));
    free(size);
}

static void check_layernorm_backward(size2 n, dtype type, bool overwrite)
{
    const size_t elems = n.rows * n.cols;
    array *in = array_new(1, elems, type), *gain = array_new(1, n.cols, type);
    array *d_out = array_new(1, elems, type), *residual = array_new(1, elems, type);
    array *mean = array_new(0.1, n.rows, DTYPE_F32), *rstd = array_new(1, n.rows, DTYPE_F32);
    const double std = overwrite ? (double)NAN : 1;
    array *d_gain = array_new(std, n.cols, DTYPE_F32), *d_bias = array_new(std, n.cols, DTYPE_F32);
    array *d_in = array_new((double)NAN, elems, type);
    expected *want[] = {expected_new(elems), expected_new(n.cols), expected_new(n.cols)};
    for (size_t i = 0; i < elems && !overwrite; i++)
        want[0][i].value = residual->x[i];
    expect_norm_backward((const array *[]){in, gain, d_out, mean, rstd, d_gain, d_bias}, n,
                         overwrite, want);
    /* the sums begin with what bias_backward makes of the same columns */
    OK(target->fast()->layernorm_backward(
        s, &(layernorm_backward_args){.d_in = d_in->ptr,
                                      .d_gain = d_gain->ptr,
                                      .d_bias = d_bias->ptr,
                                      .d_out = d_out->ptr,
                                      .in = in->ptr,
                                      .gain = gain->ptr,
                                      .d_residual = overwrite ? NULL : residual->ptr,
                                      .mean = mean->ptr,
                                      .rstd = rstd->ptr,
                                      .rows = n.rows,
                                      .cols = n.cols,
                                      .overwrite = overwrite,
                                      .type = type}));
    array *again = array_new((double)NAN, n.cols, DTYPE_F32);
    OK(target->fast()->bias_backward(s, &(bias_backward_args){.d_bias = again->ptr,
                                                              .d_out = d_out->ptr,
                                                              .rows = n.rows,
                                                              .cols = n.cols,
                                                              .overwrite = true,
                                                              .type = type}));
    if (overwrite) {
        expected *same = expected_new(n.cols);
        memcpy(same, want[2], n.cols * sizeof *same);
        expect_near(again, same, "bias_backward");
    }
    expect_near(d_in, want[0], "layernorm_backward d_in");
    expect_near(d_gain, want[1], "layernorm_backward d_gain");
    expect_near(d_bias, want[2], "layernorm_backward d_bias");
    arrays_free();
}

static void test_layernorm_backward(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4 * N_NORMS; i++)
        check_layernorm_backward(NORMS[i / 4], TYPES[i % 2], i % 4 < 2);
}

/* Sums over no rows. */
static void test_no_rows(void **state)
{
    (void)state;
    const ops *o = target->fast();
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        array *a = array_new(1, 9, DTYPE_F32), *b = array_new(1, 9, DTYPE_F32);
        array *all[] = {a, b, array_new(1, 1, DTYPE_F32)};
        OK(o->bias_backward(
            s, &(bias_backward_args){.d_bias = a->ptr, .cols = 5, .overwrite = overwrite}));
        OK(o->layernorm_backward(s, &(layernorm_backward_args){.d_gain = (float *)a->ptr + 5,
                                                               .d_bias = b->ptr,
                                                               .cols = 4,
                                                               .overwrite = overwrite}));
        OK(o->layernorm(s, &(layernorm_args){.cols = 5}));
        OK(o->cross_entropy(s, &(cross_entropy_args){.loss = all[2]->ptr, .vocab = 5}));
        for (size_t k = 0; k < 3; k++) {
            expected *want = expected_new(all[k]->elems);
            for (size_t i = 0; i < all[k]->elems && k < 2; i++)
                want[i].value = overwrite && (k == 0 || i < 4) ? 0 : all[k]->x[i];
            expect_near(all[k], want, "a sum over nothing");
        }
        arrays_free();
    }
}

/* ---- cross_entropy --------------------------------------------------------------------------- */

/* A difference of logits is rounded once, which the exponential makes relative: u |x - top|. With
 * the exponential's own 2 ulp and those of its running maxima, that is how far a term is off. */
static double term_error(double x, double top)
{
    return UNIT * (4 * fabs(x - top) + 32);
}

static void check_cross_entropy(size2 n, dtype type, bool in_place, bool backward)
{
    const size_t elems = n.rows * n.cols;
    array *logits = array_new(4, elems, type), *loss = array_new((double)NAN, 1, DTYPE_F32);
    array *d_logits = in_place ? logits : array_new((double)NAN, elems, type);
    int32_t *targets = malloc(n.rows * sizeof *targets);
    void *on_device;
    expected *want = expected_new(elems), *total = expected_new(1);
    for (size_t r = 0; r < n.rows; r++) {
        const double *x = logits->x + r * n.cols;
        double top = x[0], sum = 0, error = 0;
        targets[r] = (int32_t)(r * 31 % n.cols);
        for (size_t c = 0; c < n.cols; c++)
            top = x[c] > top ? x[c] : top;
        for (size_t c = 0; c < n.cols; c++) {
            sum += exp(x[c] - top);
            error += exp(x[c] - top) * term_error(x[c], top);
        }
        error = error / sum + gamma_of(n.cols);
        for (size_t c = 0; c < n.cols; c++) {
            const double p = exp(x[c] - top) / sum;
            want[r * n.cols + c] = (expected){c == (size_t)targets[r] ? p - 1 : p,
                                              p * (error + term_error(x[c], top)) + UNIT * p};
        }
        total->value += log(sum) + top - x[targets[r]];
        total->error += error;
    }
    OK(device_alloc(s, MEM_OTHER, n.rows * sizeof *targets, "targets", &on_device));
    OK(device_upload(s, on_device, targets, n.rows * sizeof *targets));
    OK(target->fast()->cross_entropy(
        s, &(cross_entropy_args){.loss = loss->ptr,
                                 .d_logits = backward ? d_logits->ptr : NULL,
                                 .logits = logits->ptr,
                                 .targets = on_device,
                                 .rows = n.rows,
                                 .vocab = n.cols,
                                 .type = type}));
    device_free(s, on_device);
    expect_near(loss, total, "loss");
    if (backward)
        expect_near(d_logits, want, "d_logits");
    else
        free(want);
    free(targets);
    arrays_free();
}

static void test_cross_entropy(void **state)
{
    (void)state;
    static const size2 SIZES[] = {{1, 1}, {3, 7}, {5, 255}, {2, 257}, {300, 40}, {4, 3001}};
    for (size_t i = 0; i < 6 * 6; i++)
        check_cross_entropy(SIZES[i / 6], TYPES[i % 2], i % 3 == 0, i % 3 != 1);
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
        cmocka_unit_test_teardown(test_layernorm, teardown),
        cmocka_unit_test_teardown(test_layernorm_backward, teardown),
        cmocka_unit_test_teardown(test_no_rows, teardown),
        cmocka_unit_test_teardown(test_cross_entropy, teardown),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(dev);
    return failed;
}
