/* test_ops_bf16.c -- casts, and operations on bf16 arrays. portable must give the bits of "expand
 * to fp32, run the fp32 operation, round"; other tests compare the fp32 values with doubles and
 * PyTorch. test_ops_double.c compares products of both tables with a sum in double. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "tests/unit/ops_check_lib.h"

enum { MAX_THREADS = 3 };
static device *dev[MAX_THREADS + 1]; /* dev[n] runs kernels on n threads */
static stream *s;                    /* 2 threads */

static int setup(void **state)
{
    for (int n = 1; n <= MAX_THREADS; n++)
        dev[n] = ops_test_device(n, false);
    s = device_compute_stream(dev[2]);
    return 0;
}

static int teardown(void **state)
{
    for (int n = 1; n <= MAX_THREADS; n++)
        device_close(dev[n]);
    return 0;
}

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- casts ---------------------------------------------------------------------------------- */

TEST(test_rounding)
{
    static const struct {
        uint32_t f32;
        uint16_t bf16;
    } CASES[] = {
        {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, /* around a tie, even */
        {0x3f817fff, 0x3f81}, {0x3f818000, 0x3f82}, {0x3f818001, 0x3f82}, /* around a tie, odd */
        {0xbf808000, 0xbf80}, {0xbf818000, 0xbf82}, {0x3fffffff, 0x4000}, /* carry: exponent */
        {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80}, {0xff7fffff, 0xff80}, /* carry: infinity */
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x00000000, 0x0000}, {0x80000000, 0x8000},
        {0x00000001, 0x0000}, {0x00008000, 0x0000}, {0x00008001, 0x0001}, /* denormals */
        {0x80018000, 0x8002}, {0x007f7fff, 0x007f}, {0x007f8000, 0x0080}, {0x807fffff, 0x8080},
        {0x7f800001, 0x7fc0}, {0xff800001, 0xffc0}, {0x7fbfffff, 0x7fff}, /* NaNs become quiet */
        {0x7fc00000, 0x7fc0}, {0x7fffffff, 0x7fff}, {0xffffffff, 0xffff},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        assert_int_equal(bf16_from_f32(from_bits(CASES[i].f32)), CASES[i].bf16);
}

TEST(test_every_bf16_round_trips)
{
    for (uint32_t h = 0; h <= 0xffff; h++) {
        const float x = f32_from_bf16((uint16_t)h);
        const bool signalling = (h & 0x7fc0) == 0x7f80 && (h & 0x3f) != 0;
        assert_memory_equal(&x, &(uint32_t){h << 16}, sizeof x);
        assert_int_equal(bf16_from_f32(x), signalling ? h | 0x40 : h);
    }
}

/* The result must be the nearer of the two neighbours; both are exact in double. */
TEST(test_rounds_to_nearest)
{
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

TEST(test_cast)
{
    static const size_t ELEMS[] = {0, 1, 17, 4099, 300007};
    for (int i = 0; i < 5; i++) {
        const size_t n = ELEMS[i];
        float *x = normals(1, 1.0f, n), *back = filled(7.0f, n);
        uint16_t *h = calloc(n + 1, sizeof *h), *h2 = calloc(n + 1, sizeof *h2);
        for (int t = 1; t <= MAX_THREADS; t++) {
            stream *st = device_compute_stream(dev[t]);
            CALL(ops_table(t % 2), st, cast, h, x, DTYPE_BF16, DTYPE_F32, n);
            CALL(ops_table(t % 2)->sums, st, cast, h2, x, DTYPE_BF16, DTYPE_F32, n);
            assert_memory_equal(h2, h, n * sizeof *h);
            CALL(ops_table(t % 2), st, cast, back, h, DTYPE_F32, DTYPE_BF16, n);
            CALL(ops_table(t % 2), st, cast, h2, h, DTYPE_BF16, DTYPE_BF16, n);
            for (size_t e = 0; e < n; e++) {
                assert_int_equal(h[e], bf16_from_f32(x[e]));
                assert_true(back[e] == f32_from_bf16(h[e]) && h2[e] == h[e]);
            }
            assert_int_equal(h[n] | h2[n], 0);
        }
        CALL(ops_cpu_fast(), s, cast, back, x, DTYPE_F32, DTYPE_F32, n);
        expect_same_bits(back, x, n, "cast", "from f32 to f32");
        free(x), free(back), free(h), free(h2);
    }
}

/* Every operation with a type refuses unknown types before anything is launched. test_ops_double.c
 * tests the products. */
TEST(test_unknown_types)
{
    const ops *o = ops_cpu_fast();
    float x[1] = {0};
#define REFUSES(op, ...) assert_int_equal(o->op(s, &(op##_args){__VA_ARGS__}), FSDP_EINVAL)
    REFUSES(cast, x, x, DTYPE_F32, DTYPE_I64, 1);
    REFUSES(cast, x, x, DTYPE_U8, DTYPE_F32, 1);
    REFUSES(matmul, .type = DTYPE_U8, .out_type = DTYPE_U8);
    REFUSES(matmul_finish, .of = {.type = DTYPE_U8, .out_type = DTYPE_U8});
    REFUSES(vocab_part, .type = DTYPE_U8);
    REFUSES(bias_backward, .type = DTYPE_U8);
    REFUSES(embedding, .type = DTYPE_U8);
    REFUSES(embedding_backward, .type = DTYPE_U8);
    REFUSES(layernorm, .type = DTYPE_U8);
    REFUSES(layernorm_backward, .type = DTYPE_U8);
    REFUSES(gelu, .type = DTYPE_U8);
    REFUSES(gelu_backward, .type = DTYPE_U8);
    REFUSES(attention, .shape = {.type = DTYPE_U8});
    REFUSES(attention_backward, .shape = {.type = DTYPE_U8});
    REFUSES(cross_entropy, .type = DTYPE_U8);
    REFUSES(conv2d, .shape = {.kernel = 1, .type = DTYPE_U8});
    REFUSES(conv2d_backward, .shape = {.kernel = 1, .type = DTYPE_U8});
    REFUSES(max_pool2d, .type = DTYPE_U8);
    REFUSES(max_pool2d_backward, .type = DTYPE_U8);
    REFUSES(relu, .type = DTYPE_U8);
    REFUSES(relu_backward, .type = DTYPE_U8);
    REFUSES(dropout, .type = DTYPE_U8);
#undef REFUSES
    OK(stream_sync(s)); /* nothing reached the stream */
}

/* ---- portable: expanded, computed in fp32, rounded ------------------------------------------- */

/* A table whose bf16 operations run portable's fp32 operations on copies. At the end of a call,
 * outputs are rounded into their place and the copies are freed. */
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

/* EXPANDING -- the table's function `op`. If the arguments are fp32, they are passed on. Else n is
 * `elems`, and the assignments that follow replace arrays of the arguments x by copies. */
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
#define IN(field, elems)             x.field = expanded(a->field, elems)
#define OUT(field, elems)            x.field = to_round(a->field, elems)
#define IN_ROWS(field, cols, stride) x.field = copy_new(a->field, NULL, n, cols, stride)
#define OUT_ROWS(field, cols, stride)                                                              \
    x.field = a->field ? copy_new(NULL, a->field, n, cols, stride) : NULL

static size_t conv_inputs(const conv_shape *x)
{
    return x->batch * x->in_channels * x->height * x->width;
}

static size_t conv_outputs(const conv_shape *x)
{
    return x->batch * x->out_channels * (x->height + 1 - x->kernel) * (x->width + 1 - x->kernel);
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
EXPANDING(matmul_finish, of.type, a->of.m * a->of.n, IN(of.bias, a->of.n), IN(of.residual, n),
          x.of.out = a->of.out_type == DTYPE_BF16 ? to_round(a->of.out, n) : a->of.out,
          x.of.out_type = DTYPE_F32)
EXPANDING(vocab_part, type, a->rows, IN_ROWS(logits, a->vocab, row_stride(a->stride, a->vocab)))
EXPANDING(cross_entropy, type, a->rows,
          IN_ROWS(logits, a->vocab, row_stride(a->logits_stride, a->vocab)),
          OUT_ROWS(d_logits, a->vocab, row_stride(a->d_logits_stride, a->vocab)))
EXPANDING(conv2d, shape.type, a->shape.kernel * a->shape.kernel * a->shape.in_channels,
          IN(in, conv_inputs(&a->shape)), IN(weight, n * a->shape.out_channels),
          IN(bias, a->shape.out_channels), OUT(out, conv_outputs(&a->shape)))
EXPANDING(conv2d_backward, shape.type, a->shape.kernel * a->shape.kernel * a->shape.in_channels,
          IN(in, conv_inputs(&a->shape)), IN(weight, n * a->shape.out_channels),
          IN(d_out, conv_outputs(&a->shape)), OUT(d_in, conv_inputs(&a->shape)))
EXPANDING(max_pool2d, type, a->planes * a->height * a->width, IN(in, n),
          OUT(out, a->planes *(a->height / 2) * (a->width / 2)))
EXPANDING(max_pool2d_backward, type, a->planes * a->height * a->width, IN(in, n),
          IN(d_out, a->planes *(a->height / 2) * (a->width / 2)), OUT(d_in, n))
EXPANDING(relu, type, a->elems, IN(in, n), OUT(out, n))
EXPANDING(relu_backward, type, a->elems, IN(in, n), IN(d_out, n), OUT(d_in, n))
EXPANDING(dropout, type, a->samples * a->width, IN(in, n), OUT(out, n))

/* Columns of one of attention's arrays: `heads` of `width`, both fields of the shape. */
#define COLS(heads, width) a->shape.heads * a->shape.width
#define INPUTS_OF_ATTENTION                                                                        \
    IN_ROWS(q, COLS(n_head, head_dim), a->shape.q_stride),                                         \
        IN_ROWS(k, COLS(n_kv_head, head_dim), a->shape.k_stride),                                  \
        IN_ROWS(v, COLS(n_kv_head, v_head_dim), a->shape.v_stride)

EXPANDING(attention, shape.type, a->shape.batch * a->shape.seq_len, INPUTS_OF_ATTENTION,
          OUT(out, n *COLS(n_head, v_head_dim)))
#define KV_ROWS(field, cols, stride)                                                               \
    x.field = a->wide_kv ? a->field : copy_new(NULL, a->field, n, cols, stride)
EXPANDING(attention_backward, shape.type, a->shape.batch * a->shape.seq_len, INPUTS_OF_ATTENTION,
          IN(out, n *COLS(n_head, v_head_dim)), IN(d_out, n *COLS(n_head, v_head_dim)),
          OUT_ROWS(d_q, COLS(n_head, head_dim), a->shape.q_stride),
          KV_ROWS(d_k, COLS(n_kv_head, head_dim), a->shape.k_stride),
          KV_ROWS(d_v, COLS(n_kv_head, v_head_dim), a->shape.v_stride))

static ops expanding_table(void)
{
    ops o = *ops_cpu_portable();
#define SET(op) o.op = expanding_##op
    SET(matmul), SET(bias_backward), SET(embedding), SET(embedding_backward);
    SET(layernorm), SET(layernorm_backward), SET(gelu), SET(gelu_backward);
    SET(matmul_finish), SET(vocab_part);
    SET(attention), SET(attention_backward), SET(cross_entropy), SET(conv2d), SET(conv2d_backward);
    SET(max_pool2d), SET(max_pool2d_backward), SET(relu), SET(relu_backward), SET(dropout);
#undef SET
    return o;
}

TEST(test_expanded_computed_rounded)
{
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

/* The same for every bf16 number, including infinities, NaNs and denormals. */
TEST(test_every_bf16)
{
    enum { N = 1 << 16 };
    const ops reference = expanding_table();
    static uint16_t x[N], d[N], got[2][N], want[2][N];
    for (size_t i = 0; i < N; i++)
        x[i] = (uint16_t)i, d[i] = (uint16_t)(i * 40503u);
    for (int r = 0; r < 2; r++) {
        const ops *o = r ? &reference : ops_cpu_portable();
        uint16_t(*out)[N] = r ? want : got;
        CALL(o, s, gelu, out[0], x, N, DTYPE_BF16);
        CALL(o, s, gelu_backward, out[1], d, x, N, DTYPE_BF16);
    }
    for (size_t i = 0; i < N; i++) {
        for (int back = 0; back < 2; back++) {
            const uint16_t g = got[back][i], w = want[back][i];
            if (isnan(f32_from_bf16(w)) ? !isnan(f32_from_bf16(g)) : g != w)
                fail_msg("%s of %zx: %x, expected %x", back ? "gelu_backward" : "gelu", i, g, w);
        }
    }
}

/* ---- matmul --------------------------------------------------------------------------------- */

/* A product allocates no device memory. */
TEST(test_matmul_takes_no_memory)
{
    enum { N = 300 };
    uint16_t *a = calloc(3 * N * N, sizeof *a);
    ledger_reset_peaks(device_ledger(dev[2]));
    for (int t = 0; t < 2; t++)
        CALL(ops_table(t), s, matmul, .out = a + 2 * N * N, .a = a, .b = a + N * N, .m = N, .n = N,
             .k = N, .type = DTYPE_BF16, .out_type = DTYPE_BF16);
    assert_int_equal(ledger_read(device_ledger(dev[2])).peak_total_bytes, 0);
    free(a);
}

/* An infinity or NaN, from an operand or from rounding, must reach exactly the elements that it is
 * a term of. */
TEST(test_not_finite)
{
    enum { N = 5 };
    const float special[3] = {INFINITY, NAN, FLT_MAX};
    for (int i = 0; i < 6; i++) {
        float x[N * N];
        uint16_t a[N * N], b[N * N], out[N * N];
        ops_test_fill(1, 1.0f, x, N * N);
        x[2 * N + 1] = special[i / 2];
        for (int e = 0; e < N * N; e++)
            a[e] = bf16_from_f32(x[e]), b[e] = bf16_from_f32(2.0f + (float)e);
        CALL(ops_table(i % 2), s, matmul, .out = out, .a = a, .b = b, .m = N, .n = N, .k = N,
             .type = DTYPE_BF16, .out_type = DTYPE_BF16);
        for (int e = 0; e < N * N; e++)
            assert_int_equal(isfinite(f32_from_bf16(out[e])) != 0, e / N != 2);
    }
}

int main(void)
{
    return tests_run(setup, teardown);
}
