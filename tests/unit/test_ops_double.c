/* test_ops_double.c -- operations against sums in double: the fast table of the target
 * (FSDP_DEVICE), and the CPU's portable table.
 *
 * Bounds are derived. A sum of n products, in any order, is off by at most
 *     gamma(n) * sum of |products|,  gamma(n) = n u / (1 - n u)
 * (N. Higham, "Accuracy and Stability of Numerical Algorithms", 3.1). On the CPU u is 2^-24. On
 * other devices u is 2^-23, because matrix instructions may truncate an addition instead of
 * rounding it. A result that is stored in bf16 is rounded once more, by 2^-8 of its size. Where
 * ops.h allows it, a probability or the gradient of a score is also rounded to bf16 before it is
 * multiplied. The CPU sums over keys and queries by blocks, and the terms of a row's softmax by
 * lanes, so a term sees fewer roundings than there are terms (sum_terms, lane_terms). */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ops_check_lib.h"
#include "tests/unit/target_lib.h"

static const backend *target;
static const ops *o; /* the table under test */
static device *dev;
static stream *s;
static bool on_cpu;
static double unit;
static const dtype TYPES[] = {DTYPE_F32, DTYPE_BF16};

enum { BLOCK = 64, LANES = 16 };

static double gamma_of(size_t n)
{
    return (double)n * unit / (1.0 - (double)n * unit);
}

static double rounding_of(dtype t)
{
    return t == DTYPE_BF16 ? 0x1p-8 : unit;
}

/* How many roundings a term of a sum over n keys or queries sees. */
static size_t sum_terms(size_t n)
{
    const size_t by_blocks = BLOCK + n / BLOCK + 1;
    return on_cpu && by_blocks < n ? by_blocks : n;
}

static size_t lane_terms(size_t n)
{
    return on_cpu ? n / LANES + 8 : n;
}

/* Memory that the table allocates for itself must be free again. */
static int teardown(void **state)
{
    OK(stream_sync(s));
    assert_int_equal(ledger_read(device_ledger(dev)).live_total_bytes, 0);
    return 0;
}

#define EMPTY_AFTER(test) TEST_AROUND(test, NULL, teardown)

/* ---- arrays ---------------------------------------------------------------------------------- */

/* An array on the device, and its initial or expected values. */
typedef struct array {
    void *ptr;
    double *x;
    size_t elems;
    dtype type;
} array;

enum { MAX_ARRAYS = 16 };
static array *live[MAX_ARRAYS];
static int n_live;

/* Upload a->x, and round a->x to the array's type. */
static void array_put(array *a)
{
    float *f32 = calloc(a->elems + 1, sizeof *f32);
    uint16_t *bf16 = calloc(a->elems + 1, sizeof *bf16);
    for (size_t i = 0; i < a->elems; i++) {
        bf16[i] = bf16_from_f32(f32[i] = (float)a->x[i]);
        a->x[i] = (double)(a->type == DTYPE_BF16 ? f32_from_bf16(bf16[i]) : f32[i]);
    }
    OK(device_upload(s, a->ptr, a->type == DTYPE_BF16 ? (void *)bf16 : (void *)f32,
                     a->elems * dtype_bytes(a->type)));
    free(f32), free(bf16);
}

/* elems normal values times std. NAN as std marks an array that must be overwritten. */
static array *array_new(double std, size_t elems, dtype type)
{
    array *a = malloc(sizeof *a);
    float *values = normals((uint64_t)(n_live + 1), 1.0f, elems);
    *a = (array){NULL, calloc(elems + 1, sizeof(double)), elems, type};
    for (size_t i = 0; i < elems; i++)
        a->x[i] = (double)values[i] * std;
    free(values);
    OK(device_alloc(s, MEM_OTHER, elems * dtype_bytes(type), "array", &a->ptr));
    array_put(a);
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

/* The array's present contents, as stored. The caller frees them. */
static void *stored_of(const array *a)
{
    void *host = malloc(a->elems * dtype_bytes(a->type) + 1);
    OK(device_download(s, host, a->ptr, a->elems * dtype_bytes(a->type)));
    OK(stream_sync(s));
    return host;
}

/* The array's present contents as numbers. The caller frees them. */
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

/* An expected number, and the error bound of an fp32 sum. */
typedef struct expected {
    double value, error;
} expected;

static expected *expected_new(size_t elems)
{
    return calloc(elems + 1, sizeof(expected));
}

/* Every element of a must be near `want`, allowing for a's type. a->x becomes `want`, which is
 * freed. */
static void expect_near(const array *a, expected *want, const char *what)
{
    double *got = values_of(a);
    for (size_t i = 0; i < a->elems; i++) {
        const double error = want[i].error;
        const double bound = error + rounding_of(a->type) * (fabs(want[i].value) + error) + 1e-37;
        if (!(fabs(got[i] - want[i].value) <= bound))
            fail_msg("%s: element %zu of %zu is %.9g, expected %.9g within %.3g", what, i, a->elems,
                     got[i], want[i].value, bound);
        a->x[i] = want[i].value;
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
    matmul_args args = {.m = c->m, .n = c->n, .k = c->k, .type = c->type, .out_type = out_type};
    args.trans_a = form & TRANS_A, args.trans_b = form & TRANS_B;
    args.accumulate = form & ACCUMULATE;
    *x = (matmul_arrays){.a = array_new(1, c->m * c->k, c->type),
                         .b = array_new(1, c->k * c->n, c->type),
                         .out = array_new(old ? 1 : (double)NAN, c->m * c->n, out_type)};
    args.out = x->out->ptr, args.a = x->a->ptr, args.b = x->b->ptr;
    if (form & BIAS)
        args.bias = (x->bias = array_new(1, c->n, c->type))->ptr;
    if (form & RESIDUAL) {
        x->residual = form & IN_PLACE ? x->out : array_new(1, c->m * c->n, c->type);
        args.residual = x->residual->ptr;
    }
    return args;
}

/* Factor l of row `row`. */
static double a_at(const matmul_case *c, const matmul_arrays *x, size_t row, size_t l)
{
    return x->a->x[c->form & TRANS_A ? l * c->m + row : row * c->k + l];
}

/* b [k, n], which the caller frees: the loops below go along its rows, so compilers can use vectors
 * and each sum still takes its products in the order of k. */
static double *plain_b(const matmul_case *c, const matmul_arrays *x)
{
    double *b = calloc(c->k * c->n + 1, sizeof *b);
    for (size_t l = 0; l < c->k; l++)
        for (size_t col = 0; col < c->n; col++)
            b[l * c->n + col] = x->b->x[c->form & TRANS_B ? col * c->k + l : l * c->n + col];
    return b;
}

/* k products and up to three more terms, with one rounding each (on a GPU at most 4). */
static expected *matmul_expected(const matmul_case *c, const matmul_arrays *x)
{
    expected *want = expected_new(c->m * c->n);
    double *b = plain_b(c, x);
    const size_t more = on_cpu ? (c->form & ACCUMULATE) / ACCUMULATE + (c->form & BIAS) / BIAS +
                                     (c->form & RESIDUAL) / RESIDUAL
                               : 4;
    for (size_t i = 0; i < c->m * c->n; i++) {
        const size_t col = i % c->n;
        const double terms[] = {c->form & ACCUMULATE ? x->out->x[i] : 0,
                                x->bias ? x->bias->x[col] : 0, x->residual ? x->residual->x[i] : 0};
        want[i] = (expected){terms[0] + terms[1] + terms[2],
                             fabs(terms[0]) + fabs(terms[1]) + fabs(terms[2])};
    }
    for (size_t row = 0; row < c->m; row++)
        for (size_t l = 0; l < c->k; l++) {
            const double a = a_at(c, x, row, l);
            for (size_t col = 0; col < c->n; col++) {
                want[row * c->n + col].value += a * b[l * c->n + col];
                want[row * c->n + col].error += fabs(a * b[l * c->n + col]);
            }
        }
    for (size_t i = 0; i < c->m * c->n; i++)
        want[i].error *= gamma_of(c->k + more);
    free(b);
    return want;
}

/* The bits of the plain loop that portable promises: products in the order of k, bias, residual,
 * and one rounding. So a product that is written has the bits of a product that is added to 0. */
static void expect_plain_loop(const matmul_case *c, const matmul_arrays *x)
{
    double *got = values_of(x->out), *b = plain_b(c, x);
    float *sums = calloc(x->out->elems + 1, sizeof *sums);
    for (size_t i = 0; i < x->out->elems; i++)
        sums[i] = c->form & ACCUMULATE ? (float)x->out->x[i] : 0.0f;
    for (size_t row = 0; row < c->m; row++)
        for (size_t l = 0; l < c->k; l++) {
            const float a = (float)a_at(c, x, row, l);
            for (size_t col = 0; col < c->n; col++)
                sums[row * c->n + col] += a * (float)b[l * c->n + col];
        }
    for (size_t i = 0; i < x->out->elems; i++) {
        const size_t col = i % c->n;
        const float now = (float)got[i];
        float sum = sums[i];
        sum += x->bias ? (float)x->bias->x[col] : 0.0f;
        sum += x->residual ? (float)x->residual->x[i] : 0.0f;
        sum = x->out->type == DTYPE_BF16 ? bf16_round(sum) : sum;
        expect_same_bits(&now, &sum, 1, "matmul", "portable and a plain loop");
    }
    free(got);
    free(b);
    free(sums);
}

static void check_matmul(const matmul_case *c)
{
    char what[128];
    matmul_arrays x;
    const matmul_args args = matmul_args_of(c, &x);
    snprintf(what, sizeof what, "matmul %zu x %zu x %zu, form %u, %s", c->m, c->n, c->k, c->form,
             dtype_name(c->type));
    OK(o->matmul(s, &args));
    if (on_cpu && o == target->portable())
        expect_plain_loop(c, &x);
    expect_near(x.out, matmul_expected(c, &x), what);
    arrays_free();
}

EMPTY_AFTER(test_matmul_shapes)
{
    static const size_t SIZES[] = {1, 7, 64, 100};
    for (unsigned i = 0; i < 4 * 4 * 4 * 4 * 2; i++)
        check_matmul(&(matmul_case){SIZES[i % 4], SIZES[i / 4 % 4], SIZES[i / 16 % 4], i / 64 % 4,
                                    TYPES[i / 256]});
}

/* For the CPU: several tiles along m and n, several pieces along k; copied operands (256 x 512 x
 * 270); narrow tiles (40 x 1001 x 300). */
EMPTY_AFTER(test_matmul_tiles)
{
    static const size_t SIZES[][3] = {{300, 401, 33}, {11, 23, 700},  {256, 512, 270},
                                      {2, 1, 515},    {1, 513, 130},  {259, 390, 11},
                                      {1, 5, 2053},   {40, 1001, 300}};
    static const unsigned AFTER[] = {0, BIAS, BIAS | RESIDUAL, ACCUMULATE, RESIDUAL | F32};
    if (!on_cpu)
        skip();
    for (unsigned i = 0; i < 8 * 4 * 2; i++)
        for (size_t f = 0; f < (SIZES[i / 8][0] < 256 ? 5 : 1); f++)
            check_matmul(&(matmul_case){SIZES[i / 8][0], SIZES[i / 8][1], SIZES[i / 8][2],
                                        AFTER[f] | i / 2 % 4, TYPES[i % 2]});
}

EMPTY_AFTER(test_matmul_forms)
{
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

/* Within its memory an NPU copies only whole lines, so copy through the host. */
static void copy_through_host(void *to, const void *from, size_t bytes)
{
    char *host = malloc(bytes + 1);
    OK(device_download(s, host, from, bytes));
    OK(stream_sync(s));
    OK(device_upload(s, to, host, bytes));
    OK(stream_sync(s));
    free(host);
}

/* elems normal values that begin `moved` elements after the begin of an array. */
static void *moved_copy(size_t elems, size_t moved, dtype type)
{
    const array *values = array_new(1, elems, type);
    char *there = (char *)array_new(1, elems + moved, type)->ptr + moved * dtype_bytes(type);
    copy_through_host(there, values->ptr, elems * dtype_bytes(type));
    return there;
}

/* Arrays that begin at an odd element, as slices of other arrays may: one at a time. */
EMPTY_AFTER(test_matmul_anywhere)
{
    const matmul_case c = {.m = 32, .n = 32, .k = 64, .form = BIAS | RESIDUAL, .type = DTYPE_BF16};
    for (int moved = 0; moved < 5; moved++) {
        matmul_arrays x;
        matmul_args args = matmul_args_of(&c, &x);
        const array *arrays[] = {x.a, x.b, x.bias, x.residual, x.out};
        const size_t bytes = arrays[moved]->elems * 2;
        char *odd = (char *)array_new(1, arrays[moved]->elems + 1, DTYPE_BF16)->ptr + 2;
        const void **inputs[] = {&args.a, &args.b, &args.bias, &args.residual};
        copy_through_host(odd, arrays[moved]->ptr, bytes);
        if (moved < 4)
            *inputs[moved] = odd;
        else
            args.out = odd;
        OK(o->matmul(s, &args));
        if (moved == 4)
            copy_through_host(x.out->ptr, odd, bytes);
        expect_near(x.out, matmul_expected(&c, &x), "an array that begins at an odd element");
        arrays_free();
    }
}

/* GPUs and libraries without some features: products of bf16 (below sm_80), a bias, arrays at any
 * address, any product at all; and a library whose first proposals cannot be used. */
EMPTY_AFTER(test_matmul_of_others)
{
    static const char *const OTHERS[][2] = {{"FSDP_SIM_SM", "75"},
                                            {"FSDP_SIM_LT_EPILOGUE", "0"},
                                            {"FSDP_SIM_LT_ALIGNMENT", "16"},
                                            {"FSDP_SIM_LT_ALIGNMENT", "128"},
                                            {"FSDP_SIM_LT_MISSING", "3"}};
    const char *name = getenv("FSDP_DEVICE");
    device *kept = dev;
    stream *kept_s = s;
    if (name == NULL || strcmp(name, "cuda-sim") != 0)
        skip(); /* only the stand-in can simulate these */
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        setenv(OTHERS[i][0], OTHERS[i][1], 1);
        OK(device_open(
            &(device_config){.backend = target->device, .n_threads = 1, .debug_fill = true}, &dev));
        s = device_compute_stream(dev);
        test_matmul_forms(state);
        test_matmul_anywhere(state);
        OK(stream_sync(s));
        device_close(dev);
        unsetenv(OTHERS[i][0]);
    }
    dev = kept;
    s = kept_s;
}

EMPTY_AFTER(test_matmul_refuses)
{
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

/* ---- layernorm, rmsnorm, bias_backward ------------------------------------------------------- */

typedef struct size2 {
    size_t rows, cols;
} size2;
/* For the GPU: 1 to 512 bands of 4 to 36 rows, some added in three steps; columns for several
 * blocks, or for so many that each has all rows; 16-byte parts of rows or single elements. */
static const size2 NORMS[] = {{1, 1},      {3, 7},     {5, 33},    {33, 100},  {130, 64}, {9, 1030},
                              {300, 1000}, {2050, 24}, {18432, 8}, {70, 4104}, {3, 16513}};
enum { N_NORMS = sizeof NORMS / sizeof *NORMS };

/* Mean and reciprocal deviation of a row. For an RMS norm the mean is 0. */
typedef struct moments {
    double mean, rstd;
} moments;

static moments moments_of(const double *x, size_t cols, bool rms)
{
    double sum = 0, squares = 0;
    for (size_t c = 0; c < cols && !rms; c++)
        sum += x[c];
    for (size_t c = 0; c < cols; c++)
        squares += (x[c] - sum / (double)cols) * (x[c] - sum / (double)cols);
    return (moments){sum / (double)cols, 1 / sqrt(squares / (double)cols + 1e-5)};
}

/* The mean is off by e = gamma(C + 1) avg|x|. Each difference d = x - mean is off by e and is
 * rounded. The variance is off by 2 e avg|d|, and by gamma(C + 2) of itself. The relative error of
 * rstd is half the variance's. Below, `rel` is the relative error of the factor rstd in n = d rstd.
 * bias NULL: an RMS norm, where e is 0. */
static void expect_norm(const array *in, const array *gain, const array *bias, size2 n,
                        expected *out[3])
{
    for (size_t r = 0; r < n.rows; r++) {
        const double *x = in->x + r * n.cols;
        const moments m = moments_of(x, n.cols, bias == NULL);
        double size = 0, spread = 0;
        for (size_t c = 0; c < n.cols; c++) {
            size += fabs(x[c]) / (double)n.cols;
            spread += fabs(x[c] - m.mean) / (double)n.cols;
        }
        const double e = bias ? gamma_of(n.cols + 1) * size + unit * fabs(m.mean) : 0;
        const double rel = (2 * e * spread + e * e) * m.rstd * m.rstd / 2 + gamma_of(n.cols + 8);
        out[1][r] = (expected){m.mean, e};
        out[2][r] = (expected){m.rstd, rel * m.rstd};
        for (size_t c = 0; c < n.cols; c++) {
            const double norm = (x[c] - m.mean) * m.rstd, error = fabs(norm) * rel + e * m.rstd;
            const double value = norm * gain->x[c] + (bias ? bias->x[c] : 0);
            out[0][r * n.cols + c] = (expected){value, error * fabs(gain->x[c]) * 1.01 +
                                                           2 * unit * (fabs(value) + fabs(norm))};
        }
    }
}

/* Check a layernorm, or an RMS norm, which has no bias and no mean. */
static void check_norm(size2 n, dtype type, bool rms)
{
    const size_t elems = n.rows * n.cols;
    array *in = array_new(1, elems, type), *gain = array_new(1, n.cols, type);
    array *bias = rms ? NULL : array_new(1, n.cols, type),
          *out[] = {array_new((double)NAN, elems, type), array_new((double)NAN, n.rows, DTYPE_F32),
                    array_new((double)NAN, n.rows, DTYPE_F32)};
    expected *want[] = {expected_new(elems), expected_new(n.rows), expected_new(n.rows)};
    if (rms)
        CALL(o, s, rmsnorm, .out = out[0]->ptr, .rstd = out[2]->ptr, .in = in->ptr,
             .gain = gain->ptr, .rows = n.rows, .cols = n.cols, .eps = 1e-5f, .type = type);
    else
        CALL(o, s, layernorm, .out = out[0]->ptr, .mean = out[1]->ptr, .rstd = out[2]->ptr,
             .in = in->ptr, .gain = gain->ptr, .bias = bias->ptr, .rows = n.rows, .cols = n.cols,
             .eps = 1e-5f, .type = type);
    expect_norm(in, gain, bias, n, want);
    expect_near(out[0], want[0], rms ? "rmsnorm" : "layernorm");
    expect_near(out[2], want[2], "rstd");
    if (rms)
        free(want[1]);
    else
        expect_near(out[1], want[1], "mean");
    arrays_free();
}

EMPTY_AFTER(test_norms)
{
    for (size_t i = 0; i < 4 * N_NORMS; i++)
        check_norm(NORMS[i / 4], TYPES[i % 2], i % 4 < 2);
}

/* A row of d_in, and a column of d_gain and d_bias, are sums with one term for each column or row.
 * Each term was rounded up to six times before. Without a mean and d_bias: an RMS norm. */
static void expect_norm_backward(const array *x[7], size2 n, bool overwrite, expected *want[3])
{
    const array *in = x[0], *gain = x[1], *d_out = x[2], *mean = x[3], *rstd = x[4];
    double *size = calloc(2 * n.cols, sizeof *size);
    for (size_t c = 0; c < n.cols && !overwrite; c++) {
        want[1][c].value = x[5]->x[c];
        want[2][c].value = x[6] ? x[6]->x[c] : 0;
    }
    for (size_t r = 0; r < n.rows; r++) {
        double g = 0, gn = 0, abs_g = 0, abs_gn = 0;
        for (int pass = 0; pass < 2; pass++)
            for (size_t c = 0; c < n.cols; c++) {
                const size_t i = r * n.cols + c;
                const double norm = (in->x[i] - (mean ? mean->x[r] : 0)) * rstd->x[r];
                const double d = d_out->x[i], term = d * gain->x[c];
                if (pass == 0) {
                    if (mean)
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
                                   2 * unit * fabs(want[0][i].value);
            }
    }
    for (size_t c = 0; c < n.cols; c++)
        for (int i = 0; i < 2; i++)
            want[1 + i][c].error =
                gamma_of(n.rows + 6) * (size[(size_t)i * n.cols + c] + fabs(want[1 + i][c].value));
    free(size);
}

/* bias_backward sums the same columns as a layernorm's d_bias. */
static void check_bias_backward(const array *d_out, const expected *d_bias, size2 n)
{
    array *again = array_new((double)NAN, n.cols, DTYPE_F32);
    expected *same = expected_new(n.cols);
    memcpy(same, d_bias, n.cols * sizeof *same);
    CALL(o, s, bias_backward, .d_bias = again->ptr, .d_out = d_out->ptr, .rows = n.rows,
         .cols = n.cols, .overwrite = true, .type = d_out->type);
    expect_near(again, same, "bias_backward");
}

static void check_norm_backward(size2 n, dtype type, bool overwrite, bool rms)
{
    const size_t elems = n.rows * n.cols;
    const double std = overwrite ? (double)NAN : 1;
    array *in = array_new(1, elems, type), *gain = array_new(1, n.cols, type);
    array *d_out = array_new(1, elems, type), *residual = array_new(1, elems, type);
    array *mean = rms ? NULL : array_new(0.1, n.rows, DTYPE_F32);
    array *rstd = array_new(1, n.rows, DTYPE_F32), *d_gain = array_new(std, n.cols, DTYPE_F32);
    array *d_bias = rms ? NULL : array_new(std, n.cols, DTYPE_F32);
    array *d_in = array_new((double)NAN, elems, type);
    expected *want[] = {expected_new(elems), expected_new(n.cols), expected_new(n.cols)};
    for (size_t i = 0; i < elems && !overwrite; i++)
        want[0][i].value = residual->x[i];
    expect_norm_backward((const array *[]){in, gain, d_out, mean, rstd, d_gain, d_bias}, n,
                         overwrite, want);
    const void *past = overwrite ? NULL : residual->ptr;
    if (rms)
        CALL(o, s, rmsnorm_backward, .d_in = d_in->ptr, .d_gain = d_gain->ptr, .d_out = d_out->ptr,
             .in = in->ptr, .gain = gain->ptr, .d_residual = past, .rstd = rstd->ptr,
             .rows = n.rows, .cols = n.cols, .overwrite = overwrite, .type = type);
    else
        CALL(o, s, layernorm_backward, .d_in = d_in->ptr, .d_gain = d_gain->ptr,
             .d_bias = d_bias->ptr, .d_out = d_out->ptr, .in = in->ptr, .gain = gain->ptr,
             .d_residual = past, .mean = mean->ptr, .rstd = rstd->ptr, .rows = n.rows,
             .cols = n.cols, .overwrite = overwrite, .type = type);
    if (overwrite && !rms)
        check_bias_backward(d_out, want[2], n);
    expect_near(d_in, want[0], rms ? "rmsnorm_backward d_in" : "layernorm_backward d_in");
    expect_near(d_gain, want[1], rms ? "rmsnorm_backward d_gain" : "layernorm_backward d_gain");
    if (rms)
        free(want[2]);
    else
        expect_near(d_bias, want[2], "layernorm_backward d_bias");
    arrays_free();
}

EMPTY_AFTER(test_norms_backward)
{
    for (size_t i = 0; i < 8 * N_NORMS; i++)
        check_norm_backward(NORMS[i / 8], TYPES[i % 2], i % 4 < 2, i % 8 < 4);
}

/* The bytes of a norm's gradients, which the caller frees: d_in, d_gain, d_bias, and d_bias by
 * bias_backward. All arrays begin `moved` elements after an aligned address. */
static void *norm_gradients(size2 n, size_t moved, dtype type)
{
    const size_t elems[] = {n.rows * n.cols, n.cols, n.cols, n.cols}, cols = n.cols;
    const size_t width = dtype_bytes(type);
    void *out[4], *host = calloc(n.rows * cols + 3 * cols, sizeof(float));
    char *to = host;
    const void *from[3];
    for (int i = 0; i < 3; i++) /* whatever is moved: the same values at the new place */
        from[i] = moved_copy(i == 1 ? cols : n.rows * cols, moved, type);
    const array *mean = array_new(0.1, n.rows, DTYPE_F32), *rstd = array_new(1, n.rows, DTYPE_F32);
    for (int i = 0; i < 4; i++)
        out[i] = (char *)array_new((double)NAN, elems[i] + moved, i ? DTYPE_F32 : type)->ptr +
                 moved * (i ? sizeof(float) : width);
    CALL(o, s, layernorm_backward, .d_in = out[0], .d_gain = out[1], .d_bias = out[2],
         .d_out = from[0], .gain = from[1], .in = from[2], .mean = mean->ptr, .rstd = rstd->ptr,
         .rows = n.rows, .cols = cols, .overwrite = true, .type = type);
    CALL(o, s, bias_backward, .d_bias = out[3], .d_out = from[0], .rows = n.rows, .cols = cols,
         .overwrite = true, .type = type);
    for (int i = 0; i < 4; i++) {
        OK(device_download(s, to, out[i], elems[i] * (i ? sizeof(float) : width)));
        to += elems[i] * (i ? sizeof(float) : width);
    }
    OK(stream_sync(s));
    arrays_free();
    return host;
}

/* Equal shapes have equal bits, in every call and wherever the arrays begin. */
EMPTY_AFTER(test_norms_same_bits)
{
    static const size2 SIZES[] = {{1, 40}, {9, 33}, {67, 256}, {1100, 16}};
    for (int i = 0; i < 8; i++) {
        const size2 n = SIZES[i / 2];
        void *first = norm_gradients(n, 0, TYPES[i % 2]);
        for (size_t again = 0; again < 4; again++) {
            void *then = norm_gradients(n, again / 2, TYPES[i % 2]);
            assert_memory_equal(then, first, (n.rows + 3) * n.cols * sizeof(float));
            free(then);
        }
        free(first);
    }
}

/* Sums over zero rows. */
EMPTY_AFTER(test_no_rows)
{
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        array *sums = array_new(1, 4 * 9, DTYPE_F32), *loss = array_new(1, 1, DTYPE_F32);
        expected *want = expected_new(sums->elems);
        float *x = sums->ptr;
        CALL(o, s, bias_backward, .d_bias = x, .cols = 9, .overwrite = overwrite);
        CALL(o, s, layernorm_backward, .d_gain = x + 9, .d_bias = x + 18, .cols = 9,
             .overwrite = overwrite);
        CALL(o, s, rmsnorm_backward, .d_gain = x + 27, .cols = 8, .overwrite = overwrite);
        CALL(o, s, layernorm, .cols = 5);
        CALL(o, s, cross_entropy, .loss = loss->ptr, .vocab = 5);
        for (size_t i = 0; i < sums->elems; i++)
            want[i].value = overwrite && i < 35 ? 0 : sums->x[i];
        expect_near(sums, want, "a sum over nothing");
        expect_near(loss, expected_new(1), "a loss over nothing");
        arrays_free();
    }
}

/* ---- gelu and swiglu ------------------------------------------------------------------------- */

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

/* What an activation and its gradient make of x, for one element. u is at least half a unit in the
 * last place for each rounding. Twice the argument of gelu's tanh is z, its derivative z'.
 *   gate = logistic(z)      7 roundings of z change it by at most 7 u z gate (1 - gate) <= 1.6 u;
 *                           with the function's last places: 4 u
 *   gate (1 - gate) x z'    5 u |x z'|, and 6 u for roundings of itself, which is below 1.2
 *   swiglu                  likewise, with z = x; an NPU stores its first product */
static void check_activations(size_t n, dtype type)
{
    const double first = strncmp(target->name, "npu", 3) == 0 ? rounding_of(type) : 0;
    array *x = array_new(2, n, type), *up = array_new(1, n, type), *d = array_new(1, n, type);
    array *out[5];
    expected *want[5];
    for (int i = 0; i < 5; i++)
        out[i] = array_new((double)NAN, n, type), want[i] = expected_new(n);
    for (size_t i = 0; i < n; i++) {
        const double v = x->x[i], scale = sqrt(8 / acos(-1)), of_v = logistic(v);
        const double gate = logistic(scale * (v + 0.044715 * v * v * v));
        const double xz = v * scale * (1 + 3 * 0.044715 * v * v), dx = d->x[i] * v;
        want[0][i] = (expected){v * gate, 4 * unit * fabs(v)};
        want[1][i] = (expected){d->x[i] * (gate + gate * (1 - gate) * xz),
                                fabs(d->x[i]) * unit * (11 + 5 * fabs(xz))};
        want[2][i] = (expected){v * of_v * up->x[i], 6 * unit * fabs(v * up->x[i])};
        want[3][i] = (expected){d->x[i] * up->x[i] * of_v * (1 + v * (1 - of_v)),
                                16 * unit * fabs(d->x[i] * up->x[i]) * (1 + fabs(v))};
        want[4][i] = (expected){dx * of_v, 6 * unit * fabs(dx)};
        for (int k = 2; k < 5; k++)
            want[k][i].error += first * fabs(want[k][i].value);
    }
    CALL(o, s, gelu, out[0]->ptr, x->ptr, n, type);
    CALL(o, s, gelu_backward, out[1]->ptr, d->ptr, x->ptr, n, type);
    CALL(o, s, swiglu, out[2]->ptr, x->ptr, up->ptr, n, type);
    CALL(o, s, swiglu_backward, out[3]->ptr, out[4]->ptr, d->ptr, x->ptr, up->ptr, n, type);
    for (int i = 0; i < 5; i++)
        expect_near(out[i], want[i],
                    (const char *[]){"gelu", "gelu_backward", "swiglu", "d_gate", "d_up"}[i]);
    arrays_free();
}

EMPTY_AFTER(test_activations)
{
    for (size_t t = 0; t < 2; t++)
        for (size_t n = 0; n < 40; n++)
            check_activations(n < 39 ? n : 5000, TYPES[t]);
}

enum { ACTIVATIONS = 45, INPUTS = 3, OUTPUTS = 5, ALL = INPUTS + OUTPUTS };

/* Activations of the first `elems` of some values: the bytes of all outputs, which the caller
 * frees. Array number `which` begins `moved` elements after an aligned address; ALL: every one. */
static char *activations_at(size_t elems, size_t moved, int which, dtype type)
{
    const size_t bytes = ACTIVATIONS * dtype_bytes(type);
    char *host = malloc(OUTPUTS * bytes);
    const void *in[INPUTS];
    void *out[OUTPUTS];
    for (int i = 0; i < INPUTS; i++)
        in[i] = moved_copy(ACTIVATIONS, which == ALL || which == i ? moved : 0, type);
    for (int i = 0; i < OUTPUTS; i++) {
        const size_t by = which == ALL || which == INPUTS + i ? moved : 0;
        out[i] =
            (char *)array_new((double)NAN, ACTIVATIONS + by, type)->ptr + by * dtype_bytes(type);
    }
    CALL(o, s, gelu, out[0], in[0], elems, type);
    CALL(o, s, gelu_backward, out[1], in[1], in[0], elems, type);
    CALL(o, s, swiglu, out[2], in[0], in[2], elems, type);
    CALL(o, s, swiglu_backward, out[3], out[4], in[1], in[0], in[2], elems, type);
    for (int i = 0; i < OUTPUTS; i++)
        OK(device_download(s, host + (size_t)i * bytes, out[i], bytes));
    OK(stream_sync(s));
    arrays_free();
    return host;
}

/* Elements have the bits of `all`, and those after the first `elems` are not written. */
static void expect_activations(const char *all, size_t elems, size_t moved, int which, dtype type)
{
    const size_t bytes = ACTIVATIONS * dtype_bytes(type), written = elems * dtype_bytes(type);
    char *got = activations_at(elems, moved, which, type), *old = activations_at(0, 0, ALL, type);
    for (size_t i = 0; i < OUTPUTS; i++) {
        assert_memory_equal(got + i * bytes, all + i * bytes, written);
        assert_memory_equal(got + i * bytes + written, old + i * bytes + written, bytes - written);
    }
    free(got), free(old);
}

/* An element's bits depend neither on its index nor on where any array begins. */
EMPTY_AFTER(test_activations_anywhere)
{
    for (size_t t = 0; t < 2; t++) {
        char *all = activations_at(ACTIVATIONS, 0, ALL, TYPES[t]);
        for (size_t i = 1; i <= ACTIVATIONS; i++)
            expect_activations(all, i, 0, ALL, TYPES[t]);
        for (size_t moved = 1; moved < 9; moved++)
            expect_activations(all, ACTIVATIONS, moved, ALL, TYPES[t]);
        for (int which = 0; which < ALL; which++)
            expect_activations(all, ACTIVATIONS, 1, which, TYPES[t]);
        free(all);
    }
}

/* ---- cross_entropy --------------------------------------------------------------------------- */

/* A difference of logits is rounded once. The exponential turns that into a relative error, u |x -
 * top|. The exponential adds 2 ulp, and its running maxima add theirs. */
static double term_error(double x, double top)
{
    return unit * (4 * fabs(x - top) + 32);
}

/* One call for the first row and one for the others; their sum is carried from call to call. */
static void loss_in_two_calls(const cross_entropy_args *all)
{
    const size_t row_bytes = all->vocab * dtype_bytes(all->type);
    cross_entropy_args part = *all;
    void *total;
    OK(device_alloc(s, MEM_OTHER, sizeof(double), "total", &total));
    OK(device_zero(s, total, sizeof(double)));
    part.total = all->rows > 1 ? total : NULL;
    part.rows = 1;
    OK(o->cross_entropy(s, &part));
    if (all->rows > 1) {
        part.rows = all->rows - 1;
        part.targets++;
        part.logits = (const char *)all->logits + row_bytes;
        part.d_logits = all->d_logits ? (char *)all->d_logits + row_bytes : NULL;
        OK(o->cross_entropy(s, &part));
    }
    device_free(s, total);
}

static void check_cross_entropy(size2 n, double std, dtype type, bool in_place, bool backward)
{
    const size_t elems = n.rows * n.cols;
    array *logits = array_new(std, elems, type), *loss = array_new((double)NAN, 1, DTYPE_F32);
    array *d_logits = in_place ? logits : array_new((double)NAN, elems, type);
    int32_t *targets = malloc(n.rows * sizeof *targets);
    void *on_device;
    expected *want = expected_new(elems), *total = expected_new(1);
    for (size_t r = 0; r < n.rows; r++) {
        const double *x = logits->x + r * n.cols;
        double top = x[0], sum = 0, error = 0;
        targets[r] = r % 5 == 2 ? NO_TARGET : (int32_t)(r * 31 % n.cols);
        for (size_t c = 0; c < n.cols; c++)
            top = x[c] > top ? x[c] : top;
        for (size_t c = 0; c < n.cols; c++) {
            sum += exp(x[c] - top);
            error += exp(x[c] - top) * term_error(x[c], top);
        }
        error = error / sum + gamma_of(lane_terms(n.cols));
        for (size_t c = 0; c < n.cols && targets[r] != NO_TARGET; c++) {
            const double p = exp(x[c] - top) / sum;
            want[r * n.cols + c] = (expected){c == (size_t)targets[r] ? p - 1 : p,
                                              p * (error + term_error(x[c], top)) + unit * p};
        }
        total->value += targets[r] == NO_TARGET ? 0 : log(sum) + top - x[targets[r]];
        total->error += targets[r] == NO_TARGET ? 0 : error;
    }
    OK(device_alloc(s, MEM_OTHER, n.rows * sizeof *targets, "targets", &on_device));
    OK(device_upload(s, on_device, targets, n.rows * sizeof *targets));
    loss_in_two_calls(&(cross_entropy_args){.loss = loss->ptr,
                                            .d_logits = backward ? d_logits->ptr : NULL,
                                            .logits = logits->ptr,
                                            .targets = on_device,
                                            .rows = n.rows,
                                            .vocab = n.cols,
                                            .type = type});
    device_free(s, on_device);
    expect_near(loss, total, "loss");
    if (backward)
        expect_near(d_logits, want, "d_logits");
    else
        free(want);
    free(targets);
    arrays_free();
}

EMPTY_AFTER(test_cross_entropy)
{
    static const size2 SIZES[] = {{1, 1},    {3, 7},     {5, 255},  {2, 257}, {300, 40},
                                  {4, 3001}, {601, 131}, {3, 2500}, {3, 1024}};
    for (size_t i = 0; i < 9 * 6; i++)
        check_cross_entropy(SIZES[i / 6], i / 6 < 8 ? 4 : 100, TYPES[i % 2], i % 3 == 0,
                            i % 3 != 1);
}

/* ---- attention and its backward -------------------------------------------------------------- */

typedef struct attention_case {
    size_t batch, seq_len, n_head, n_kv_head, head_dim, v_head_dim;
    size_t extra; /* added to each stride */
    dtype type;
    double slope; /* if not 0: change of scores from key to key */
    bool sampled; /* see is_sampled */
} attention_case;

/* Queries, keys and values in separate arrays. */
typedef struct attention_arrays {
    attention_shape shape;
    array *q, *k, *v, *out, *lse, *d_out, *d_q, *d_k, *d_v;
    expected *want_out, *want_lse, *want_q, *want_k, *want_v;
} attention_arrays;

/* In a long sequence only some queries have a d_out and are checked: those at the edges of blocks
 * and of the blocks' strips. So the reference costs a fraction of T*T, and d_k and d_v are still
 * compared for every key. */
static bool is_sampled(const attention_case *c, size_t t)
{
    const size_t at = t % BLOCK;
    return !c->sampled || at == 0 || at == 31 || at == 32 || at == 63 ||
           at == t / BLOCK * 7 % BLOCK || t + 1 == c->seq_len;
}

/* Offset of row t of head h of sequence b, with the stride and head width of q, k, v or out. */
static size_t head_at(const attention_shape *x, size_t stride, size_t b, size_t t, size_t h)
{
    return (b * x->seq_len + t) * stride + h * x->head_dim;
}

static size_t v_at(const attention_shape *x, size_t stride, size_t b, size_t t, size_t h)
{
    return (b * x->seq_len + t) * stride + h * x->v_head_dim;
}

/* Make scores about slope * key: the first element of a head is 1 in q and slope * key in k. */
static void add_slope(const attention_arrays *a, double slope)
{
    const attention_shape *x = &a->shape;
    for (size_t i = 0; i < x->batch * x->seq_len * x->n_head; i++) {
        const size_t t = i / x->n_head % x->seq_len, b = i / x->n_head / x->seq_len;
        const size_t h = i % x->n_head;
        a->q->x[head_at(x, x->q_stride, b, t, h)] = 1;
        if (h < x->n_kv_head)
            a->k->x[head_at(x, x->k_stride, b, t, h)] = slope * (double)t / (double)x->scale;
    }
    array_put(a->q), array_put(a->k);
}

static attention_arrays attention_arrays_new(const attention_case *c)
{
    const size_t rows = c->batch * c->seq_len, out_width = c->n_head * c->v_head_dim;
    attention_arrays a = {.shape = {.q_stride = c->n_head * c->head_dim + c->extra,
                                    .k_stride = c->n_kv_head * c->head_dim + 2 * c->extra,
                                    .v_stride = c->n_kv_head * c->v_head_dim + c->extra,
                                    .batch = c->batch,
                                    .seq_len = c->seq_len,
                                    .n_head = c->n_head,
                                    .n_kv_head = c->n_kv_head,
                                    .head_dim = c->head_dim,
                                    .v_head_dim = c->v_head_dim,
                                    .scale = (float)(1 / sqrt((double)c->head_dim)),
                                    .type = c->type}};
    a.q = array_new(2, rows * a.shape.q_stride, c->type);
    a.k = array_new(1, rows * a.shape.k_stride, c->type);
    a.v = array_new(1, rows * a.shape.v_stride, c->type);
    a.out = array_new((double)NAN, rows * out_width, c->type);
    a.lse = array_new((double)NAN, rows * c->n_head, DTYPE_F32);
    a.d_out = array_new(1, a.out->elems, c->type);
    a.d_q = array_new(1, a.q->elems, c->type);
    a.d_k = array_new(1, a.k->elems, c->type);
    a.d_v = array_new(1, a.v->elems, c->type);
    for (size_t i = 0; i < a.d_out->elems; i++)
        if (!is_sampled(c, i / out_width % c->seq_len))
            a.d_out->x[i] = 0;
    array_put(a.d_out);
    if (c->slope != 0)
        add_slope(&a, c->slope);
    return a;
}

static double dot(const double *a, const double *b, size_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (size_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
        *size += fabs(a[i] * b[i]);
    }
    return sum;
}

/* The probabilities p [query + 1] of a query, with relative errors, and its lse. A score is a
 * scaled sum of D products. A probability is off by twice the error of the worst score (in
 * numerator and denominator) and by the roundings of the sum. On the CPU the sum goes by blocks,
 * each with a shift, an exponential and a product of the earlier sum. Elsewhere it is gamma(T), and
 * 4 u for each of up to T/8 + 1 maxima of the running softmax. Returns the relative error of such a
 * sum. */
static double softmax_of(const attention_arrays *a, const size_t at[3], expected *p, expected *lse)
{
    const attention_shape *x = &a->shape;
    const size_t b = at[0], h = at[1], query = at[2], kv = h / (x->n_head / x->n_kv_head);
    const double *q = a->q->x + head_at(x, x->q_stride, b, query, h);
    double top = -INFINITY, sum = 0, worst = 0;
    for (size_t key = 0; key <= query; key++) {
        double size;
        const double *k = a->k->x + head_at(x, x->k_stride, b, key, kv);
        p[key].value = (double)x->scale * dot(q, k, x->head_dim, &size);
        worst = fmax(worst, gamma_of(x->head_dim + 2) * (double)x->scale * size);
        top = fmax(top, p[key].value);
    }
    for (size_t key = 0; key <= query; key++)
        sum += exp(p[key].value - top);
    const double of_sum = on_cpu ? gamma_of(BLOCK + 5 * (query / BLOCK + 1))
                                 : gamma_of(query + 1) + unit * 4 * (double)(query / 8 + 16);
    for (size_t key = 0; key <= query; key++)
        p[key] = (expected){exp(p[key].value - top) / sum,
                            2 * worst + of_sum + 2 * unit * fabs(p[key].value - top)};
    *lse = (expected){top + log(sum), of_sum + worst + 4 * unit * (fabs(top) + fabs(log(sum)))};
    return on_cpu ? of_sum : gamma_of(query + 3);
}

static void expect_attention(attention_arrays *a, const attention_case *c)
{
    const attention_shape *x = &a->shape;
    const size_t width = x->n_head * x->v_head_dim, T = x->seq_len;
    expected *p = expected_new(T);
    a->want_out = expected_new(a->out->elems), a->want_lse = expected_new(a->lse->elems);
    for (size_t i = 0; i < x->batch * x->n_head * T; i++) {
        const size_t query = i % T, h = i / T % x->n_head, b = i / T / x->n_head;
        const size_t kv = h / (x->n_head / x->n_kv_head);
        expected *out = &a->want_out[v_at(x, width, b, query, h)];
        if (!is_sampled(c, query)) {
            a->want_lse[i].error = INFINITY;
            for (size_t d = 0; d < x->v_head_dim; d++)
                out[d].error = INFINITY;
            continue;
        }
        const double of_sum = softmax_of(a, (size_t[]){b, h, query}, p, &a->want_lse[i]);
        for (size_t d = 0; d < x->v_head_dim; d++)
            for (size_t key = 0; key <= query; key++) {
                const double term = p[key].value * a->v->x[v_at(x, x->v_stride, b, key, kv) + d];
                out[d].value += term;
                out[d].error +=
                    fabs(term) * (p[key].error + of_sum + (x->type == DTYPE_BF16 ? 0x1p-8 : 0));
            }
    }
    free(p);
}

static void run_attention(const attention_arrays *a)
{
    CALL(o, s, attention, .out = a->out->ptr, .lse = a->lse->ptr, .q = a->q->ptr, .k = a->k->ptr,
         .v = a->v->ptr, .shape = a->shape);
}

static void run_attention_backward(const attention_arrays *a)
{
    CALL(o, s, attention_backward, .d_q = a->d_q->ptr, .d_k = a->d_k->ptr, .d_v = a->d_v->ptr,
         .d_out = a->d_out->ptr, .out = a->out->ptr, .q = a->q->ptr, .k = a->k->ptr, .v = a->v->ptr,
         .lse = a->lse->ptr, .shape = a->shape);
}

/* Add term * factor to a sum of n. term is off by `error`, and may be rounded to bf16 first. */
static void add_term(expected *to, expected term, double factor, size_t n, dtype type)
{
    to->value += term.value * factor;
    to->error +=
        fabs(factor) * (term.error + (gamma_of(n + 2) + (type == DTYPE_BF16 ? 0x1p-8 : 0)) *
                                         (fabs(term.value) + term.error));
}

/* Add the gradients of one query and one key of head at[1] of sequence at[0]. The relative error of
 * p is the score's error and 2 ulp of the exponential. The error of d_s is this error, the errors
 * of its two sums over D, and four roundings. */
static void expect_pair(attention_arrays *a, const size_t at[2], size_t query, size_t key)
{
    const attention_shape *x = &a->shape;
    const size_t D = x->head_dim, Dv = x->v_head_dim, b = at[0], h = at[1];
    const size_t group = x->n_head / x->n_kv_head, kv = h / group;
    const size_t of_query = sum_terms(query + 1), of_key = sum_terms(x->seq_len * group);
    const size_t q = head_at(x, x->q_stride, b, query, h), k = head_at(x, x->k_stride, b, key, kv);
    const size_t v = v_at(x, x->v_stride, b, key, kv), out = v_at(x, x->n_head * Dv, b, query, h);
    const double scale = (double)x->scale;
    double score_size, d_p_size, delta_size;
    const double shift = scale * dot(a->q->x + q, a->k->x + k, D, &score_size) -
                         a->lse->x[(b * x->n_head + h) * x->seq_len + query];
    const double d_p = dot(a->d_out->x + out, a->v->x + v, Dv, &d_p_size);
    const double delta = dot(a->d_out->x + out, a->out->x + out, Dv, &delta_size);
    const double off = gamma_of(D + 2) * scale * score_size + unit * (2 * fabs(shift) + 8);
    const expected p = {exp(shift), exp(shift) * off};
    const double d_size = gamma_of(Dv + 2) * (d_p_size + delta_size);
    const expected d_s = {p.value * (d_p - delta) * scale,
                          p.value * scale *
                              (off * fabs(d_p - delta) + d_size + 4 * unit * fabs(d_p - delta))};
    for (size_t d = 0; d < D; d++) {
        add_term(&a->want_q[q + d], d_s, a->k->x[k + d], of_query, x->type);
        add_term(&a->want_k[k + d], d_s, a->q->x[q + d], of_key, x->type);
    }
    for (size_t d = 0; d < Dv; d++)
        add_term(&a->want_v[v + d], p, a->d_out->x[out + d], of_key, x->type);
}

/* 0 in the first `width` elements of each row. The elements between rows are unchanged. */
static expected *zero_rows(const array *a, size_t stride, size_t width)
{
    expected *want = expected_new(a->elems);
    for (size_t i = 0; i < a->elems; i++)
        want[i].value = i % stride < width ? 0 : a->x[i];
    return want;
}

static void expect_attention_backward(attention_arrays *a, const attention_case *c)
{
    const attention_shape *x = &a->shape;
    a->want_q = zero_rows(a->d_q, x->q_stride, x->n_head * x->head_dim);
    a->want_k = zero_rows(a->d_k, x->k_stride, x->n_kv_head * x->head_dim);
    a->want_v = zero_rows(a->d_v, x->v_stride, x->n_kv_head * x->v_head_dim);
    for (size_t i = 0; i < x->batch * x->n_head * x->seq_len; i++) {
        const size_t query = i % x->seq_len, h = i / x->seq_len % x->n_head;
        for (size_t key = 0; key <= query && is_sampled(c, query); key++)
            expect_pair(a, (size_t[]){i / x->seq_len / x->n_head, h}, query, key);
    }
}

static void check_attention(const attention_case *c)
{
    char what[128];
    attention_arrays a = attention_arrays_new(c);
    snprintf(what, sizeof what, "attention of %zu x %zu, %zu heads of %zu, %zu in %s, slope %g",
             c->batch, c->seq_len, c->n_head, c->head_dim, c->v_head_dim, dtype_name(c->type),
             c->slope);
    run_attention(&a);
    expect_attention(&a, c);
    expect_near(a.out, a.want_out, what);
    expect_near(a.lse, a.want_lse, what);
    array_put(a.out), array_put(a.lse); /* backward reads the expected values */
    expect_attention_backward(&a, c);
    run_attention_backward(&a);
    expect_near(a.d_q, a.want_q, what);
    expect_near(a.d_k, a.want_k, what);
    expect_near(a.d_v, a.want_v, what);
    arrays_free();
}

/* Every width of the kernels' tables and beyond, edges of tiles, groups of heads, strides that are
 * no multiple of 16 bytes, heads of v of another width. */
EMPTY_AFTER(test_attention)
{
    static const size_t CASES[][7] = {
        {1, 1, 1, 1, 8, 8},         {2, 15, 2, 2, 16, 16, 8},    {1, 64, 2, 1, 32, 32},
        {1, 65, 4, 2, 64, 64, 16},  {2, 130, 2, 1, 64, 64},      {1, 65, 1, 1, 80, 80},
        {1, 33, 2, 2, 128, 128},    {1, 130, 1, 1, 128, 128, 8}, {2, 17, 3, 1, 5, 5, 1},
        {1, 70, 1, 1, 100, 100, 3}, {1, 65, 4, 2, 64, 40, 16},   {2, 40, 2, 1, 20, 3, 1},
        {1, 70, 2, 2, 96, 64},      {1, 33, 2, 2, 8, 6},         {1, 50, 2, 1, 192, 128},
        {1, 50, 2, 1, 200, 200},    {1, 20, 2, 1, 136, 136},     {1, 20, 1, 1, 272, 272},
        {1, 50, 2, 1, 40, 72, 8}};
    for (size_t i = 0; i < 2 * sizeof CASES / sizeof *CASES; i++) {
        const size_t *x = CASES[i / 2];
        if (x[5] > x[4] && !target_is_portable())
            continue; /* an NPU refuses wide heads of v */
        check_attention(
            &(attention_case){x[0], x[1], x[2], x[3], x[4], x[5], x[6], .type = TYPES[i % 2]});
    }
}

/* Several blocks; scores that grow or shrink along the keys and leave the range of the exponential
 * within a block. */
EMPTY_AFTER(test_attention_blocks)
{
    static const size_t LENGTHS[] = {1, 2, 63, 64, 65, 128, 129, 200};
    static const double SLOPES[] = {0, 0.05, -0.05, 2, -2};
    for (size_t i = 0; i < 8 * 5; i++)
        check_attention(&(attention_case){2, LENGTHS[i / 5], 4, i / 5 % 2 ? 4 : 2, 12, 7,
                                          .slope = SLOPES[i % 5]});
}

/* 65 blocks, the last one partial, with keys that both query heads share. */
EMPTY_AFTER(test_attention_long)
{
    check_attention(&(attention_case){1, 4096, 2, 2, 8, 8, .sampled = true});
    check_attention(&(attention_case){1, 4096 + 17, 2, 1, 8, 8, .sampled = true});
}

/* ---- all operations -------------------------------------------------------------------------- */

/* A second call gives the bits of the first. */
EMPTY_AFTER(test_same_bits_twice)
{
    for (size_t t = 0; t < 2; t++) {
        const attention_arrays a =
            attention_arrays_new(&(attention_case){1, 130, 4, 2, 64, 64, .type = TYPES[t]});
        array *const written[] = {a.out, a.lse, a.d_q, a.d_k, a.d_v};
        void *first[5];
        for (int again = 0; again < 2; again++) {
            run_attention(&a);
            run_attention_backward(&a);
            for (int i = 0; i < 5; i++) {
                void *now = stored_of(written[i]);
                const size_t bytes = written[i]->elems * dtype_bytes(written[i]->type);
                if (!again) {
                    first[i] = now;
                    continue;
                }
                assert_memory_equal(now, first[i], bytes);
                free(first[i]), free(now);
            }
        }
        arrays_free();
    }
}

/* The product of one sequence, alone and as part of a batch, where it begins in the middle of a
 * cache line. */
EMPTY_AFTER(test_same_bits_anywhere)
{
    enum { M = 7, N = 9, K = 36, COPIES = 5 };
    array *a = array_new(1.0, COPIES * M * K, DTYPE_F32), *b = array_new(1.0, K * N, DTYPE_F32);
    array *out = array_new((double)NAN, COPIES * M * N, DTYPE_F32);
    for (size_t i = M * K; i < a->elems; i++)
        a->x[i] = a->x[i - M * K];
    array_put(a);
    for (size_t k = 0; k < COPIES; k++)
        CALL(o, s, matmul, .out = (float *)out->ptr + k * M * N, .a = (float *)a->ptr + k * M * K,
             .b = b->ptr, .m = M, .n = N, .k = K);
    float *got = stored_of(out);
    for (size_t k = 1; k < COPIES; k++)
        assert_memory_equal(got, got + k * M * N, M * N * sizeof *got);
    free(got);
    arrays_free();
}

/* ---- a processor without bf16 instructions --------------------------------------------------- */

/* Run all tests of fast once more, as on a processor without bf16 instructions. */
EMPTY_AFTER(test_without_bf16_instructions)
{
    if (!on_cpu || o != target->fast())
        skip();
    ops_test_with_avx2("fast");
}

/* With an argument, portable is not tested. */
int main(int argc, char **argv)
{
    (void)argv;
    target = target_backend();
    on_cpu = target->device == &device_cpu;
    unit = on_cpu ? 0x1p-24 : 0x1p-23;
    if (device_open(&(device_config){.backend = target->device, .n_threads = 1}, &dev) != FSDP_OK) {
        fsdp_error_print(stderr, 0, 0);
        return 2;
    }
    s = device_compute_stream(dev);
    int failed = 0;
    for (int t = 0; t <= (on_cpu && argc == 1); t++) {
        o = t ? target->portable() : target->fast();
        failed += tests_run(NULL, NULL);
    }
    device_close(dev);
    return failed;
}
