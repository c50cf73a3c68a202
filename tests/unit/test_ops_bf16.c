/* test_ops_bf16.c -- casts, and operations on what is stored in bf16: portable gives the bits of
 * "expand to fp32, run the operation of fp32, round", whose values other tests compare with doubles
 * and PyTorch; matmul of both tables is compared with a sum in double.
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

/* Every operation that names a type refuses those it does not know, before anything is launched. */
static void test_unknown_types(void **state)
{
    (void)state;
    const ops *o = ops_cpu_fast();
    float x[1] = {0};
    const dtype u8 = DTYPE_U8;
    const fsdp_status refused[] = {
        o->cast(s, &(cast_args){x, x, DTYPE_F32, DTYPE_I64, 1}),
        o->cast(s, &(cast_args){x, x, DTYPE_U8, DTYPE_F32, 1}),
        o->matmul(s, &(matmul_args){.type = u8, .out_type = u8}),
        o->matmul(s, &(matmul_args){.type = DTYPE_F32, .out_type = DTYPE_BF16}),
        o->matmul(s, &(matmul_args){.bias = x, .accumulate = true}),
        o->matmul(s, &(matmul_args){.residual = x, .accumulate = true}),
        o->matmul(s,
                  &(matmul_args){.type = DTYPE_BF16, .out_type = DTYPE_BF16, .accumulate = true}),
        o->bias_backward(s, &(bias_backward_args){.type = u8}),
        o->embedding(s, &(embedding_args){.type = u8}),
        o->embedding_backward(s, &(embedding_backward_args){.type = u8}),
        o->layernorm(s, &(layernorm_args){.type = u8}),
        o->layernorm_backward(s, &(layernorm_backward_args){.type = u8}),
        o->gelu(s, &(gelu_args){.type = u8}),
        o->gelu_backward(s, &(gelu_backward_args){.type = u8}),
        o->attention(s, &(attention_args){.shape = {.type = u8}}),
        o->attention_backward(s, &(attention_backward_args){.shape = {.type = u8}}),
        o->cross_entropy(s, &(cross_entropy_args){.type = u8}),
        o->conv2d(s, &(conv2d_args){.shape = {.kernel = 1, .type = u8}}),
        o->conv2d_backward(s, &(conv2d_backward_args){.shape = {.kernel = 1, .type = u8}}),
        o->max_pool2d(s, &(max_pool2d_args){.type = u8}),
        o->max_pool2d_backward(s, &(max_pool2d_backward_args){.type = u8}),
        o->relu(s, &(relu_args){.type = u8}),
        o->relu_backward(s, &(relu_backward_args){.type = u8}),
        o->dropout(s, &(dropout_args){.type = u8}),
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        assert_int_equal(refused[i], FSDP_EINVAL);
    OK(stream_sync(s)); /* the stream has seen none of it */
}

/* ---- portable: expanded, computed in fp32, rounded ------------------------------------------- */

/* A table whose operations on bf16 are those of portable on fp32 copies. The copies of a call are
 * freed at its end; outputs are rounded into their place then. */
enum { MAX_COPIES = 10 };
typedef struct copy {
    float *f32;
    uint16_t *out; /* NULL: an input */
    size_t rows, cols, stride;
} copy;
static copy copies[MAX_COPIES];
static int n_copies;

static float *copy_new(const void *x, void *out, size_t rows, size_t cols, size_t stride)
{
    const size_t elems = rows == 0 ? 0 : (rows - 1) * stride + cols;
    float *f32 = filled(NAN, elems);
    for (size_t i = 0; i < elems && x; i++)
        f32[i] = f32_from_bf16(((const uint16_t *)x)[i]);
    copies[n_copies++] = (copy){f32, out, rows, cols, stride};
    return f32;
}

static float *expanded(const void *x, size_t elems)
{
    return x ? copy_new(x, NULL, 1, elems, elems) : NULL;
}

static float *to_round(void *out, size_t elems)
{
    return out ? copy_new(NULL, out, 1, elems, elems) : NULL;
}

static fsdp_status copies_end(stream *st, fsdp_status status)
{
    if (status == FSDP_OK)
        status = stream_sync(st);
    for (; n_copies > 0; n_copies--) {
        const copy *c = &copies[n_copies - 1];
        for (size_t i = 0; c->out && i < c->rows * c->cols; i++) {
            const size_t at = i / c->cols * c->stride + i % c->cols;
            c->out[at] = bf16_from_f32(c->f32[at]);
        }
        free(c->f32);
    }
    return status;
}

/* EXPANDING -- the table's function `op`. Arguments in fp32 are passed on; else n is `elems`, and
 * the assignments that follow replace arrays of x, the arguments, by copies. */
#define EXPANDING(op, type_field, elems, ...)                                                      \
    static fsdp_status expanding_##op(stream *st, const op##_args *a)                              \
    {                                                                                              \
        if (a->type_field == DTYPE_F32)                                                            \
            return ops_cpu_portable()->op(st, a);                                                  \
        const size_t n = elems;                                                                    \
        op##_args x = *a;                                                                          \
        x.type_field = DTYPE_F32;                                                                  \
        __VA_ARGS__;                                                                               \
        return copies_end(st, ops_cpu_portable()->op(st, &x));                                     \
    }
#define IN(field, elems)              x.field = expanded(a->field, elems)
#define OUT(field, elems)             x.field = to_round(a->field, elems)
#define IN_ROWS(field, cols, stride)  x.field = copy_new(a->field, NULL, n, cols, stride)
#define OUT_ROWS(field, cols, stride) x.field = copy_new(NULL, a->field, n, cols, stride)

static size_t conv_weights(const conv_shape *x)
{
    return x->out_channels * x->in_channels * x->kernel * x->kernel;
}
static size_t conv_outputs(const conv_shape *x)
{
    return x->batch * x->out_channels * (x->height + 1 - x->kernel) * (x->width + 1 - x->kernel);
}
static size_t conv_inputs(const conv_shape *x)
{
    return x->batch * x->in_channels * x->height * x->width;
}
static size_t q_cols(const attention_shape *x)
{
    return x->n_head * x->head_dim;
}
static size_t k_cols(const attention_shape *x)
{
    return x->n_kv_head * x->head_dim;
}
static size_t v_cols(const attention_shape *x)
{
    return x->n_kv_head * x->v_head_dim;
}
static size_t out_cols(const attention_shape *x)
{
    return x->n_head * x->v_head_dim;
}

EXPANDING(matmul, type, a->m * a->n, IN(a, a->m * a->k), IN(b, a->k * a->n), IN(bias, a->n),
          IN(residual, n), x.out = a->out_type == DTYPE_BF16 ? to_round(a->out, n) : a->out,
          x.out_type = DTYPE_F32)
EXPANDING(bias_backward, type, a->rows * a->cols, IN(d_out, n))
EXPANDING(embedding, type, a->batch * a->seq_len * a->width, IN(wte, a->vocab * a->width),
          IN(wpe, a->seq_len * a->width), OUT(out, n))
EXPANDING(embedding_backward, type, a->batch * a->seq_len * a->width, IN(d_out, n))
EXPANDING(layernorm, type, a->rows * a->cols, IN(in, n), IN(gain, a->cols), IN(bias, a->cols),
          OUT(out, n))
EXPANDING(layernorm_backward, type, a->rows * a->cols, IN(d_out, n), IN(in, n), IN(gain, a->cols),
          IN(d_residual, n), OUT(d_in, n))
EXPANDING(gelu, type, a->elems, IN(in, n), OUT(out, n))
EXPANDING(gelu_backward, type, a->elems, IN(in, n), IN(d_out, n), OUT(d_in, n))
EXPANDING(cross_entropy, type, a->rows * a->vocab, IN(logits, n), OUT(d_logits, n))
EXPANDING(conv2d, shape.type, conv_inputs(&a->shape), IN(in, n),
          IN(weight, conv_weights(&a->shape)), IN(bias, a->shape.out_channels),
          OUT(out, conv_outputs(&a->shape)))
EXPANDING(conv2d_backward, shape.type, conv_inputs(&a->shape), IN(in, n),
          IN(weight, conv_weights(&a->shape)), IN(d_out, conv_outputs(&a->shape)), OUT(d_in, n))
EXPANDING(max_pool2d, type, a->planes * a->height * a->width, IN(in, n),
          OUT(out, a->planes *(a->height / 2) * (a->width / 2)))
EXPANDING(max_pool2d_backward, type, a->planes * a->height * a->width, IN(in, n),
          IN(d_out, a->planes *(a->height / 2) * (a->width / 2)), OUT(d_in, n))
EXPANDING(relu, type, a->elems, IN(in, n), OUT(out, n))
EXPANDING(relu_backward, type, a->elems, IN(in, n), IN(d_out, n), OUT(d_in, n))
EXPANDING(dropout, type, a->samples * a->width, IN(in, n), OUT(out, n))
EXPANDING(attention, shape.type, a->shape.batch * a->shape.seq_len,
          IN_ROWS(q, q_cols(&a->shape), a->shape.q_stride),
          IN_ROWS(k, k_cols(&a->shape), a->shape.k_stride),
          IN_ROWS(v, v_cols(&a->shape), a->shape.v_stride), OUT(out, n *out_cols(&a->shape)))
EXPANDING(attention_backward, shape.type, a->shape.batch * a->shape.seq_len,
          IN_ROWS(q, q_cols(&a->shape), a->shape.q_stride),
          IN_ROWS(k, k_cols(&a->shape), a->shape.k_stride),
          IN_ROWS(v, v_cols(&a->shape), a->shape.v_stride), IN(out, n *out_cols(&a->shape)),
          IN(d_out, n *out_cols(&a->shape)), OUT_ROWS(d_q, q_cols(&a->shape), a->shape.q_stride),
          OUT_ROWS(d_k, k_cols(&a->shape), a->shape.k_stride),
          OUT_ROWS(d_v, v_cols(&a->shape), a->shape.v_stride))

static ops expanding_table(void)
{
    ops o = *ops_cpu_portable();
#define SET(op) o.op = expanding_##op
    SET(matmul), SET(bias_backward), SET(embedding), SET(embedding_backward);
    SET(layernorm), SET(layernorm_backward), SET(gelu), SET(gelu_backward);
    SET(attention), SET(attention_backward), SET(cross_entropy), SET(conv2d), SET(conv2d_backward);
    SET(max_pool2d), SET(max_pool2d_backward), SET(relu), SET(relu_backward), SET(dropout);
#undef SET
    return o;
}

static void test_expanded_computed_rounded(void **state)
{
    (void)state;
    const ops reference = expanding_table();
    size_t n_cases = 0;
    for (size_t i = 0; i < ops_case_count(); i++) {
        ops_result want = ops_case_run(i, &reference, s);
        ops_result got = ops_case_run(i, ops_cpu_portable(), s);
        OK(want.status);
        OK(got.status);
        n_cases += got.type == DTYPE_BF16;
        expect_same_bits(got.data, want.data, want.elems, ops_case_name(i), "expanded and rounded");
        free(want.data), free(got.data);
    }
    assert_true(n_cases > 20);
}

/* The same for every bf16 there is: infinities, NaNs, denormals. */
static void test_every_bf16(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    const ops reference = expanding_table();
    static uint16_t x[N], d[N], got[2][N], want[2][N];
    for (size_t i = 0; i < N; i++)
        x[i] = (uint16_t)i, d[i] = (uint16_t)(i * 40503u);
    for (int r = 0; r < 2; r++) {
        const ops *o = r ? &reference : ops_cpu_portable();
        uint16_t(*out)[N] = r ? want : got;
        OK(o->gelu(s, &(gelu_args){out[0], x, N, DTYPE_BF16}));
        OK(o->gelu_backward(s, &(gelu_backward_args){out[1], d, x, N, DTYPE_BF16}));
    }
    for (size_t i = 0; i < N; i++) {
        for (int back = 0; back < 2; back++) {
            const uint16_t g = got[back][i], w = want[back][i];
            if (isnan(f32_from_bf16(w)) ? !isnan(f32_from_bf16(g)) : g != w)
                fail_msg("%s of %zx: %x, expected %x", back ? "gelu_backward" : "gelu", i, g, w);
        }
    }
}

/* In place, what the header allows gives the bits of two arrays. */
static void test_in_place(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 333, N = ROWS * COLS };
    const ops *o = ops_cpu_portable();
    const int32_t targets[ROWS] = {0, 332, 5, 5, 200};
    uint16_t x[N], d[N], out[N], y[N];
    float loss[2];
    for (size_t i = 0; i < N; i++)
        x[i] = bf16_from_f32((float)(i * 37 % 101) / 16 - 3), d[i] = bf16_from_f32((float)(i % 7));
    memcpy(y, x, sizeof y);
    OK(o->gelu(s, &(gelu_args){out, x, N, DTYPE_BF16}));
    OK(o->gelu(s, &(gelu_args){y, y, N, DTYPE_BF16}));
    assert_memory_equal(y, out, sizeof y);
    memcpy(y, d, sizeof y);
    OK(o->gelu_backward(s, &(gelu_backward_args){out, d, x, N, DTYPE_BF16}));
    OK(o->gelu_backward(s, &(gelu_backward_args){y, y, x, N, DTYPE_BF16}));
    assert_memory_equal(y, out, sizeof y);
    memcpy(y, x, sizeof y);
    OK(o->cross_entropy(
        s, &(cross_entropy_args){&loss[0], out, x, targets, ROWS, COLS, DTYPE_BF16, NULL}));
    OK(o->cross_entropy(
        s, &(cross_entropy_args){&loss[1], y, y, targets, ROWS, COLS, DTYPE_BF16, NULL}));
    assert_memory_equal(y, out, sizeof y);
    assert_true(loss[0] == loss[1]);
    matmul_args p = {.out = out,
                     .a = x,
                     .b = x,
                     .residual = d,
                     .m = 5,
                     .n = 7,
                     .k = 3,
                     .type = DTYPE_BF16,
                     .out_type = DTYPE_BF16};
    memcpy(y, d, sizeof y);
    OK(o->matmul(s, &p));
    p.out = y, p.residual = y;
    OK(o->matmul(s, &p));
    assert_memory_equal(y, out, 5 * 7 * sizeof *y);
}

/* ---- matmul --------------------------------------------------------------------------------- */

enum { TRANS_A = 1, TRANS_B = 2, ACCUMULATE = 4, BIAS = 8, RESIDUAL = 16, ROUNDED = 32 };

/* A product with what its operands were made of. */
typedef struct product {
    matmul_args args;                       /* .out is set by run_product */
    float *a, *b, *bias, *residual, *start; /* as fp32; start: of out */
} product;

/* elems values of bf16, in *value as fp32 too. */
static void *operand_new(uint64_t name, size_t elems, float **value)
{
    *value = normals(name, 1.0f, elems);
    uint16_t *h = malloc((elems + 1) * sizeof *h);
    for (size_t i = 0; i < elems; i++)
        (*value)[i] = f32_from_bf16(h[i] = bf16_from_f32((*value)[i]));
    return h;
}

static product product_new(size_t m, size_t n, size_t k, unsigned form)
{
    product p = {.args = {.m = m,
                          .n = n,
                          .k = k,
                          .trans_a = form & TRANS_A,
                          .trans_b = form & TRANS_B,
                          .accumulate = form & ACCUMULATE,
                          .type = DTYPE_BF16,
                          .out_type = form & ROUNDED ? DTYPE_BF16 : DTYPE_F32}};
    p.args.a = operand_new(1, m * k, &p.a);
    p.args.b = operand_new(2, k * n, &p.b);
    if (form & BIAS)
        p.args.bias = operand_new(4, n, &p.bias);
    if (form & RESIDUAL)
        p.args.residual = operand_new(5, m * n, &p.residual);
    /* what is not accumulated into must not be read */
    p.start = form & ACCUMULATE ? normals(3, 1.0f, m * n) : filled(NAN, m * n);
    return p;
}

static void product_free(product *p)
{
    free((void *)p->args.a), free((void *)p->args.b), free((void *)p->args.bias);
    free((void *)p->args.residual);
    free(p->a), free(p->b), free(p->bias), free(p->residual), free(p->start);
}

/* out, as fp32. */
static float *run_product(const product *p, const ops *o, int n_threads)
{
    matmul_args a = p->args;
    const size_t elems = a.m * a.n;
    float *out = copy_of(p->start, elems);
    uint16_t *rounded = malloc((elems + 1) * sizeof *rounded);
    a.out = a.out_type == DTYPE_BF16 ? (void *)rounded : (void *)out;
    omp_set_num_threads(n_threads == 1 ? 1 : 5 - n_threads); /* must not matter */
    OK(o->matmul(device_compute_stream(dev[n_threads]), &a));
    for (size_t i = 0; i < elems && a.out_type == DTYPE_BF16; i++)
        out[i] = f32_from_bf16(rounded[i]);
    free(rounded);
    return out;
}

static float a_at(const product *p, size_t row, size_t i)
{
    return p->a[p->args.trans_a ? i * p->args.m + row : row * p->args.k + i];
}

static float b_at(const product *p, size_t i, size_t col)
{
    return p->b[p->args.trans_b ? col * p->args.k + i : i * p->args.n + col];
}

/* Against a sum in double. A partial sum is at most the sum of sizes; it is rounded k + 2 times.
 * Stored in bf16, the result is off by half its last place more: 2^-8 of its size at most. No
 * number here is so small that an instruction which takes denormals for 0 would show. */
static void check_near(const product *p, const float *out, const char *what)
{
    const matmul_args *a = &p->args;
    for (size_t i = 0; i < a->m * a->n; i++) {
        const double first[] = {a->accumulate ? (double)p->start[i] : 0.0,
                                p->bias ? (double)p->bias[i % a->n] : 0.0,
                                p->residual ? (double)p->residual[i] : 0.0};
        double sum = first[0] + first[1] + first[2];
        double size = fabs(first[0]) + fabs(first[1]) + fabs(first[2]);
        for (size_t j = 0; j < a->k; j++) {
            const double term = (double)a_at(p, i / a->n, j) * (double)b_at(p, j, i % a->n);
            sum += term;
            size += fabs(term);
        }
        double bound = (double)(a->k + 3) * FLT_EPSILON / 2 * size;
        if (a->out_type == DTYPE_BF16)
            bound += (fabs(sum) + bound) / 256;
        if (!(fabs((double)out[i] - sum) <= bound))
            fail_msg("%s, %zux%zux%zu: element %zu is %.9g, expected %.9g within %.3g", what, a->m,
                     a->n, a->k, i, (double)out[i], sum, bound);
    }
}

/* Against the plain loop that portable promises: products in order of k, bias, residual, and the
 * one rounding. */
static void check_portable(const product *p, const float *out)
{
    const matmul_args *a = &p->args;
    float *want = copy_of(p->start, a->m * a->n);
    for (size_t i = 0; i < a->m * a->n; i++) {
        float sum = a->accumulate ? p->start[i] : 0.0f;
        for (size_t j = 0; j < a->k; j++)
            sum += a_at(p, i / a->n, j) * b_at(p, j, i % a->n);
        sum += p->bias ? p->bias[i % a->n] : 0.0f;
        sum += p->residual ? p->residual[i] : 0.0f;
        want[i] = a->out_type == DTYPE_BF16 ? bf16_round(sum) : sum;
    }
    expect_same_bits(out, want, a->m * a->n, "matmul", "portable and a plain loop");
    free(want);
}

static void check_product(size_t m, size_t n, size_t k, unsigned form)
{
    product p = product_new(m, n, k, form);
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

/* Every orientation, and what is done after the products; odd sizes, several tiles along m and n,
 * several pieces along k. No device memory is taken. */
static void test_matmul(void **state)
{
    (void)state;
    static const size_t SIZES[][3] = {{1, 1, 1},    {3, 5, 7},      {2, 1, 515},  {1, 513, 130},
                                      {67, 33, 40}, {259, 390, 11}, {9, 21, 601}, {1, 5, 2053}};
    static const unsigned AFTER[] = {
        0, ACCUMULATE, BIAS, RESIDUAL, ROUNDED, ROUNDED | BIAS, ROUNDED | BIAS | RESIDUAL};
    ledger_reset_peaks(device_ledger(dev[1]));
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
        for (unsigned trans = 0; trans < 4; trans++) {
            for (size_t j = 0; j < sizeof AFTER / sizeof AFTER[0]; j++)
                check_product(SIZES[i][0], SIZES[i][1], SIZES[i][2], trans | AFTER[j]);
        }
    }
    for (unsigned trans = 0; trans < 4; trans++)
        check_product(40, 1001, 300, trans | ROUNDED | BIAS); /* narrow tiles, several threads */
    assert_int_equal(ledger_read(device_ledger(dev[1])).peak_total_bytes, 0);
}

/* Bias and residual come after a sum over nothing too. */
static void test_sum_over_nothing(void **state)
{
    (void)state;
    for (unsigned form = 0; form < 64; form += 4) {
        if (!(form & ACCUMULATE) || form == ACCUMULATE)
            check_product(3, 401, 0, form);
    }
}

/* An infinity or NaN among the operands, or that rounding makes, reaches the elements it is part of
 * and no other. */
static void test_not_finite(void **state)
{
    (void)state;
    enum { N = 5 };
    const float special[3] = {INFINITY, NAN, FLT_MAX};
    for (int i = 0; i < 6; i++) {
        float x[N * N];
        uint16_t a[N * N], b[N * N], out[N * N];
        ops_test_fill(1, 1.0f, x, N * N);
        x[2 * N + 1] = special[i / 2];
        for (int e = 0; e < N * N; e++)
            a[e] = bf16_from_f32(x[e]), b[e] = bf16_from_f32(2.0f + (float)e);
        OK(ops_table(i % 2)->matmul(s, &(matmul_args){.out = out,
                                                      .a = a,
                                                      .b = b,
                                                      .m = N,
                                                      .n = N,
                                                      .k = N,
                                                      .type = DTYPE_BF16,
                                                      .out_type = DTYPE_BF16}));
        for (int e = 0; e < N * N; e++)
            assert_int_equal(isfinite(f32_from_bf16(out[e])) != 0, e / N != 2);
    }
}

/* A product that is written has the bits of one that is added to 0, in portable. */
static void test_matmul_overwrites(void **state)
{
    (void)state;
    product p = product_new(37, 29, 300, 0);
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
        cmocka_unit_test(test_expanded_computed_rounded),
        cmocka_unit_test(test_every_bf16),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_sum_over_nothing),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_matmul_overwrites),
        cmocka_unit_test(test_without_bf16_instructions),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
