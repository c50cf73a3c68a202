/* test_row_strides.c -- matmul and cross_entropy of rows that are not adjacent have the bits of
 * adjacent rows, for every table of the device that FSDP_DEVICE names. What lies between the rows
 * is NaN, which would show in a result, and must still be there afterwards.
 *
 * The operands of products are small integers, whose sums are exact in any order. */
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ops_check_lib.h"
#include "tests/unit/target_lib.h"

enum { GAP_BYTE = 0xff, MOST_ARRAYS = 24 };
static const dtype TYPES[] = {DTYPE_F32, DTYPE_BF16};
static const backend *target;
static const ops *o; /* the table under test */
static device *dev;
static stream *s;

/* A matrix on the device, and its first contents; the last row has a gap behind it too. */
typedef struct matrix {
    char *ptr, *host;
    size_t rows, cols, stride, bytes; /* bytes: of an element */
} matrix;
static matrix live[MOST_ARRAYS];
static int n_live;

static void put(const matrix *x)
{
    OK(device_upload(s, x->ptr, x->host, x->rows * x->stride * x->bytes + x->bytes));
}

/* [rows,cols] with rows `stride` apart (0: dense), filled with a gap's bytes. */
static matrix *matrix_new(size_t rows, size_t cols, size_t stride, dtype type)
{
    matrix *x = &live[n_live++];
    void *ptr;
    assert_true(n_live <= MOST_ARRAYS);
    *x = (matrix){.rows = rows, .cols = cols, .stride = stride, .bytes = dtype_bytes(type)};
    x->stride = stride ? stride : cols;
    const size_t bytes = (rows * x->stride + 1) * x->bytes;
    x->host = memset(malloc(bytes), GAP_BYTE, bytes);
    OK(device_alloc(s, MEM_OTHER, bytes, "matrix", &ptr));
    x->ptr = ptr;
    put(x);
    return x;
}

static void matrices_free(void)
{
    while (n_live > 0) {
        free(live[--n_live].host);
        device_free(s, live[n_live].ptr);
    }
    OK(stream_sync(s));
}

/* Element i of all rows becomes values[i], rounded to the type. */
static matrix *matrix_of(const float *values, size_t rows, size_t cols, size_t stride, dtype type)
{
    matrix *x = matrix_new(rows, cols, stride, type);
    for (size_t i = 0; i < rows * cols; i++) {
        const uint16_t rounded = bf16_from_f32(values[i]);
        memcpy(x->host + (i / cols * x->stride + i % cols) * x->bytes,
               type == DTYPE_F32 ? (const void *)&values[i] : &rounded, x->bytes);
    }
    put(x);
    return x;
}

/* Integers from -3 to 3. */
static float *integers(uint64_t name, size_t elems)
{
    float *x = normals(name, 2.0f, elems);
    for (size_t i = 0; i < elems; i++)
        x[i] = x[i] > 3.0f ? 3.0f : x[i] < -3.0f ? -3.0f : (float)(int)x[i];
    return x;
}

static matrix *matrix_of_integers(uint64_t name, size_t rows, size_t cols, size_t stride, dtype t)
{
    float *values = integers(name, rows * cols);
    matrix *x = matrix_of(values, rows, cols, stride, t);
    free(values);
    return x;
}

/* Rows of got and want are equal, and got's gaps are what they were. */
static void expect_rows(const matrix *got, const matrix *want, const char *what)
{
    const size_t got_bytes = (got->rows * got->stride + 1) * got->bytes;
    char *now = malloc(got_bytes),
         *expected = malloc((want->rows * want->stride + 1) * want->bytes);
    OK(device_download(s, now, got->ptr, got_bytes));
    OK(device_download(s, expected, want->ptr, want->rows * want->stride * want->bytes));
    OK(stream_sync(s));
    for (size_t i = 0; i < got_bytes / got->bytes; i++) {
        const size_t row = i / got->stride, col = i % got->stride;
        const bool is_gap = row >= got->rows || col >= got->cols;
        const char *at = is_gap ? got->host + i * got->bytes
                                : expected + (row * want->stride + col) * want->bytes;
        if (memcmp(now + i * got->bytes, at, got->bytes) != 0)
            fail_msg("%s %s: %s: row %zu of %zu, column %zu of %zu, stride %zu", o->name, what,
                     is_gap ? "a gap was written" : "another element", row, got->rows, col,
                     got->cols, got->stride);
    }
    free(now);
    free(expected);
}

/* Widths of gaps: none, one element, and two after which all rows of a type are aligned alike. */
static size_t padded(size_t cols, int which)
{
    const size_t aligned = size_round_up(cols, 64);
    const size_t strides[] = {0, cols + 1, aligned, aligned + 64};
    return strides[which];
}

enum { TRANS_A = 1, TRANS_B = 2, ACCUMULATE = 4, BIAS = 8, RESIDUAL = 16, IN_PLACE = 32, F32 = 64 };
typedef struct product {
    size_t m, n, k, leaves;
    int form;
    dtype type;
} product;

/* The product with these gaps in a, and in out and the residual. */
static const matrix *multiply(const product *p, int a_gap, int out_gap)
{
    const size_t m = p->m, n = p->n, k = p->k;
    const size_t a_rows = p->form & TRANS_A ? k : m, a_cols = p->form & TRANS_A ? m : k;
    const dtype out_type = p->form & (F32 | ACCUMULATE) ? DTYPE_F32 : p->type;
    const matrix *a = matrix_of_integers(1, a_rows, a_cols, padded(a_cols, a_gap), p->type);
    const matrix *b = matrix_of_integers(2, k, n, 0, p->type);
    const matrix *bias = matrix_of_integers(3, 1, n, 0, p->type);
    const matrix *residual = matrix_of_integers(4, m, n, padded(n, out_gap), p->type);
    const matrix *out =
        p->form & IN_PLACE ? residual : matrix_of_integers(5, m, n, padded(n, out_gap), out_type);
    CALL(o, s, matmul, .out = out->ptr, .a = a->ptr, .b = b->ptr,
         .bias = p->form & BIAS ? bias->ptr : NULL,
         .residual = p->form & (RESIDUAL | IN_PLACE) ? residual->ptr : NULL, .m = m, .n = n, .k = k,
         .leaves = p->leaves, .a_stride = padded(a_cols, a_gap), .out_stride = padded(n, out_gap),
         .trans_a = p->form & TRANS_A, .trans_b = p->form & TRANS_B,
         .accumulate = p->form & ACCUMULATE, .type = p->type, .out_type = out_type);
    return out;
}

static void check_product(product p)
{
    char what[64];
    const matrix *dense = multiply(&p, 0, 0);
    snprintf(what, sizeof what, "matmul %zux%zux%zu form %d %s", p.m, p.n, p.k, p.form,
             dtype_name(p.type));
    for (int gaps = 1; gaps < 16; gaps++) {
        const int kept = n_live;
        expect_rows(multiply(&p, gaps % 4, gaps / 4), dense, what);
        while (n_live > kept) {
            free(live[--n_live].host);
            device_free(s, live[n_live].ptr);
        }
    }
    matrices_free();
}

static void check_products(void)
{
    static const int FORMS[] = {0,
                                TRANS_A,
                                TRANS_B,
                                TRANS_A | TRANS_B,
                                TRANS_A | F32,
                                ACCUMULATE,
                                TRANS_A | ACCUMULATE,
                                BIAS,
                                BIAS | RESIDUAL,
                                TRANS_B | RESIDUAL | F32,
                                BIAS | IN_PLACE};
    static const size_t SIZES[][3] = {
        {1, 7, 5}, {5, 65, 7}, {70, 257, 33}, {257, 394, 9}, {3, 9, 0}};
    for (int t = 0; t < 2; t++)
        for (size_t f = 0; f < sizeof FORMS / sizeof *FORMS; f++)
            for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
                check_product((product){.m = SIZES[i][0],
                                        .n = SIZES[i][1],
                                        .k = SIZES[i][2],
                                        .form = FORMS[f],
                                        .type = TYPES[t]});
}

TEST(test_products)
{
    check_products();
}

/* Machines on which a product takes other ways: see test_ops_double.c. */
TEST(test_products_of_others)
{
    static const char *const OTHERS[][2] = {
        {"FSDP_SIM_SM", "75"}, {"FSDP_SIM_LT_EPILOGUE", "0"}, {"FSDP_SIM_LT_ALIGNMENT", "128"}};
    const char *name = getenv("FSDP_DEVICE");
    device *const kept = dev;
    stream *const kept_s = s;
    if (name == NULL || strcmp(name, "cuda-sim") != 0 || o != target->fast())
        skip();
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        setenv(OTHERS[i][0], OTHERS[i][1], 1);
        OK(device_open(&(device_config){.backend = target->device, .n_threads = 1}, &dev));
        s = device_compute_stream(dev);
        check_products();
        device_close(dev);
        unsetenv(OTHERS[i][0]);
    }
    dev = kept;
    s = kept_s;
}

TEST(test_products_by_leaves)
{
    for (int t = 0; t < 2; t++)
        for (size_t leaves = 2; leaves <= 8; leaves *= 4)
            if (o->leaves_sum != NULL && o->leaves_sum(TYPES[t])) {
                check_product((product){7, 65, leaves * 3, leaves, TRANS_A | F32, TYPES[t]});
                check_product((product){300, 130, leaves * 40, leaves, TRANS_A | F32, TYPES[t]});
            }
}

/* ---- cross_entropy --------------------------------------------------------------------------- */

typedef struct loss_case {
    size_t rows, vocab, leaves;
    int d_logits; /* 0: none, 1: its own array, 2: in place */
    dtype type;
} loss_case;

/* Losses and gradients with these gaps; the result is {loss, d_logits or NULL}. */
static void loss_of(const loss_case *c, int gap, int d_gap, const matrix *out[2])
{
    const size_t rows = c->rows, vocab = c->vocab, stride = padded(vocab, gap);
    const size_t d_stride = c->d_logits == 2 ? stride : padded(vocab, d_gap);
    float *values = normals(7, 2.0f, rows * vocab);
    matrix *logits = matrix_of(values, rows, vocab, stride, c->type);
    matrix *targets = matrix_new(rows, 1, 0, DTYPE_F32);
    matrix *total = matrix_new(1, 2, 0, DTYPE_F32); /* a double */
    free(values);
    for (size_t r = 0; r < rows; r++)
        ((int32_t *)(void *)targets->host)[r] = r == 2 ? NO_TARGET : (int32_t)(r * 977 % vocab);
    put(targets);
    memset(total->host, 0, sizeof(double));
    put(total);
    out[0] = matrix_new(1, c->leaves ? c->leaves : 1, 0, DTYPE_F32);
    out[1] = c->d_logits == 0   ? NULL
             : c->d_logits == 2 ? logits
                                : matrix_new(rows, vocab, d_stride, c->type);
    CALL(o, s, cross_entropy, .loss = (void *)out[0]->ptr, .d_logits = out[1] ? out[1]->ptr : NULL,
         .logits = logits->ptr, .targets = (void *)targets->ptr, .rows = rows, .vocab = vocab,
         .leaves = c->leaves, .type = c->type, .total = c->leaves ? NULL : (void *)total->ptr,
         .logits_stride = stride, .d_logits_stride = d_stride);
}

static void check_loss(loss_case c)
{
    const matrix *dense[2], *got[2];
    char what[64];
    loss_of(&c, 0, 0, dense);
    snprintf(what, sizeof what, "cross_entropy %zux%zu %s", c.rows, c.vocab, dtype_name(c.type));
    for (int gaps = 1; gaps < 4; gaps++) {
        loss_of(&c, gaps, 3 - gaps, got);
        expect_rows(got[0], dense[0], what);
        if (got[1])
            expect_rows(got[1], dense[1], what);
    }
    matrices_free();
}

/* Vocabularies of every remainder of 8, on both sides of what a block of a GPU takes at once. */
TEST(test_losses)
{
    for (int t = 0; t < 2; t++)
        for (int d = 0; d < 3; d++) {
            for (size_t vocab = 2042; vocab <= 2054; vocab++)
                check_loss((loss_case){5, vocab, 0, d, TYPES[t]});
            for (size_t vocab = 1; vocab <= 9; vocab += 2)
                check_loss((loss_case){3, vocab, 0, d, TYPES[t]});
            check_loss((loss_case){600, 257, 0, d, TYPES[t]});
            if (o->leaves_sum != NULL && o->leaves_sum(TYPES[t]))
                check_loss((loss_case){20, 65, 4, d, TYPES[t]});
        }
}

/* ---- strides that are too small -------------------------------------------------------------- */

static void small_a(void)
{
    (void)o->matmul(s, &(matmul_args){.m = 2, .n = 3, .k = 5, .a_stride = 4});
}

static void small_out(void)
{
    (void)o->matmul(s, &(matmul_args){.m = 2, .n = 3, .k = 5, .out_stride = 2});
}

static void small_logits(void)
{
    (void)o->cross_entropy(s, &(cross_entropy_args){.rows = 2, .vocab = 3, .logits_stride = 2});
}

TEST(test_small_strides)
{
    assert_aborts(small_a);
    assert_aborts(small_out);
    assert_aborts(small_logits);
}

int main(void)
{
    int failed = 0;
    target = target_backend();
    if (device_open(&(device_config){.backend = target->device, .n_threads = 2}, &dev) != FSDP_OK) {
        fsdp_error_print(stderr, 0, 0);
        return 2;
    }
    s = device_compute_stream(dev);
    for (int t = 0; t <= target_is_portable(); t++) {
        o = t ? target->portable() : target->fast();
        failed += tests_run(NULL, NULL);
    }
    device_close(dev);
    return failed;
}
