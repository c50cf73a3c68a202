/* test_ops_values.c -- the results of the operations of ops.h, for both CPU tables, against PyTorch
 * (float64, tests/reference/make_ops_vectors.py). test_ops_double.c tests larger sizes;
 * test_ops_gradients.c tests gradients by differences.
 *
 * Run from the top directory: it reads tests/reference/ops/ops.bin. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/ops/optimizers.h"
#include "common/steps/train_config.h"
#include "tests/unit/ops_check_lib.h"

#define VECTORS_FILE "tests/reference/ops/ops.bin"

/* The relative error of one rounding: half a unit in the last place. */
static const double U = FLT_EPSILON / 2.0;

static stream *s;
static unsigned char *vectors_file;
static size_t vectors_bytes;

static int setup(void **state)
{
    s = ops_test_open(state);
    FILE *f = fopen(VECTORS_FILE, "rb");
    if (f == NULL) {
        print_error("cannot open " VECTORS_FILE ": run this from the top directory\n");
        return -1;
    }
    vectors_file = malloc(1 << 20);
    vectors_bytes = fread(vectors_file, 1, 1 << 20, f);
    fclose(f);
    return vectors_bytes > 8 && memcmp(vectors_file, "OPSVEC1\n", 8) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    free(vectors_file);
    return ops_test_close(state);
}

/* vector -- the record `name` (little-endian floats at a multiple of 4 bytes). It must have `elems`
 * elements. */
static const float *vector(const char *name, size_t elems)
{
    for (size_t at = 8; at + 56 <= vectors_bytes;) {
        uint64_t n;
        memcpy(&n, vectors_file + at + 48, sizeof n);
        if (strncmp((const char *)vectors_file + at, name, 48) == 0) {
            assert_int_equal(n, elems);
            return (const float *)(const void *)(vectors_file + at + 56);
        }
        at += 56 + n * sizeof(float);
    }
    fail_msg("%s is not in " VECTORS_FILE, name);
    return NULL;
}

static void get_tokens(const char *name, int32_t *tokens, size_t elems)
{
    const float *x = vector(name, elems);
    for (size_t i = 0; i < elems; i++)
        tokens[i] = (int32_t)x[i];
}

/* expect -- every element must be within `bound`, plus the record's own rounding, of the record. */
static void expect(const float *got, const char *name, size_t elems, double bound)
{
    const float *want = vector(name, elems);
    for (size_t i = 0; i < elems; i++) {
        const double allowed = bound + U * fabs((double)want[i]);
        if (!(fabs((double)got[i] - (double)want[i]) <= allowed))
            fail_msg("%s[%zu] is %.9g, expected %.9g within %.3g", name, i, (double)got[i],
                     (double)want[i], allowed);
    }
}

static void fill_twos(float *x, size_t elems)
{
    for (size_t i = 0; i < elems; i++)
        x[i] = 2.0f;
}

/* expect_added -- the record must have been added to the values of fill_twos. */
static void expect_added(float *got, const char *name, size_t elems, double bound)
{
    for (size_t i = 0; i < elems; i++)
        got[i] -= 2.0f;
    expect(got, name, elems, bound);
}

static float *zeros(size_t elems)
{
    return calloc(elems, sizeof(float));
}

/* ---- against PyTorch ------------------------------------------------------------------------- */

/* Bounds are worst cases. A sum of k terms, each at most 1 in size, is off by at most k*U times the
 * sum of sizes, k. A relative error e of the terms adds k*e. Some bounds are far above the actual
 * errors; in return they cannot fail by chance. */

static float *transposed(const float *x, size_t rows, size_t cols)
{
    float *t = malloc(rows * cols * sizeof *t);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            t[c * rows + r] = x[r * cols + c];
    return t;
}

TEST(test_matmul)
{
    enum { M = 37, N = 51, K = 70 };
    const float *a = vector("matmul/a", M * K), *b = vector("matmul/b", K * N);
    float *at = transposed(a, M, K), *bt = transposed(b, K, N), *out = zeros(M * N);
    const double bound = U * K * (K + 1);
    for (int i = 0; i < 8; i++) {
        const bool trans_a = i & 1, trans_b = i & 2;
        matmul_args args = {.out = out, .m = M, .n = N, .k = K};
        args.trans_a = trans_a, args.trans_b = trans_b;
        args.a = trans_a ? at : a, args.b = trans_b ? bt : b;
        OK(ops_table(i >> 2)->matmul(s, &args));
        expect(out, "matmul/out", M * N, bound);
        memcpy(out, vector("matmul/c", M * N), M * N * sizeof *out);
        args.accumulate = true;
        OK(ops_table(i >> 2)->matmul(s, &args));
        expect(out, "matmul/sum", M * N, bound + U * (K + 1));
    }
    free(at), free(bt), free(out);
}

TEST(test_bias)
{
    enum { R = 7, C = 130 };
    float out[R * C], d_b[C] = {0};
    CALL(ops_cpu_fast(), s, matmul, .out = out, .bias = vector("bias/b", C),
         .residual = vector("bias/x", R * C), .m = R, .n = C);
    expect(out, "bias/out", R * C, 2 * U);
    CALL(ops_cpu_fast(), s, bias_backward, d_b, vector("bias/d_out", R * C), R, C, false,
         DTYPE_F32);
    expect(d_b, "bias/d_b", C, U * R * R);
}

TEST(test_embedding)
{
    enum { B = 3, T = 5, C = 33, V = 11 };
    int32_t tokens[B * T];
    float out[B * T * C], d_wte[V * C] = {0}, d_wpe[T * C] = {0};
    get_tokens("embedding/tokens", tokens, B * T);
    CALL(ops_cpu_fast(), s, embedding, out, vector("embedding/wte", V * C),
         vector("embedding/wpe", T * C), tokens, B, T, C, V, DTYPE_F32);
    expect(out, "embedding/out", B * T * C, 2 * U);
    CALL(ops_cpu_fast(), s, embedding_backward, d_wte, d_wpe, vector("embedding/d_out", B * T * C),
         tokens, B, T, C, V, DTYPE_F32);
    expect(d_wte, "embedding/d_wte", V * C, U * B * T * B * T);
    expect(d_wpe, "embedding/d_wpe", T * C, U * B * B);
}

/* Here |x| <= 1 and the variance of x is about 1/3, so rstd < 2 and |norm| < 4. mean and variance
 * are off by C*U (sums of C terms, over C), hence norm is off by about 4*C*U. The gradient
 * multiplies that by rstd and by sizes below 4, three times. */
TEST(test_layernorm)
{
    enum { R = 6, C = 203 };
    float out[R * C], mean[R], rstd[R], d_x[R * C], d_gain[C], d_bias[C] = {0};
    const float *x = vector("layernorm/x", R * C), *gain = vector("layernorm/gain", C);
    const float *d_out = vector("layernorm/d_out", R * C);
    CALL(ops_cpu_fast(), s, layernorm, out, mean, rstd, x, gain, vector("layernorm/bias", C), R, C,
         1e-5f, DTYPE_F32);
    expect(out, "layernorm/out", R * C, 4 * C * U);
    fill_twos(d_gain, C);
    CALL(ops_cpu_fast(), s, layernorm_backward, d_x, d_gain, d_bias, d_out, x, gain,
         vector("layernorm/residual", R * C), mean, rstd, R, C, false, DTYPE_F32);
    expect(d_x, "layernorm/d_x", R * C, 24 * C * U);
    expect_added(d_gain, "layernorm/d_gain", C, R * 4 * C * U);
    expect(d_bias, "layernorm/d_bias", C, R * R * U);
}

/* As for layernorm: rstd < 2, |in rstd| < 4, and the mean of squares is off by C*U. */
TEST(test_rmsnorm)
{
    enum { R = 6, C = 203 };
    float out[R * C], rstd[R], d_x[R * C], d_gain[C];
    const float *x = vector("rmsnorm/x", R * C), *gain = vector("rmsnorm/gain", C);
    CALL(ops_cpu_fast(), s, rmsnorm, out, rstd, x, gain, R, C, 1e-5f, DTYPE_F32);
    expect(out, "rmsnorm/out", R * C, 4 * C * U);
    fill_twos(d_gain, C);
    CALL(ops_cpu_fast(), s, rmsnorm_backward, d_x, d_gain, vector("rmsnorm/d_out", R * C), x, gain,
         vector("rmsnorm/residual", R * C), rstd, R, C, false, DTYPE_F32);
    expect(d_x, "rmsnorm/d_x", R * C, 24 * C * U);
    expect_added(d_gain, "rmsnorm/d_gain", C, R * 4 * C * U);
}

/* Sine and cosine are rounded once and two products are added: 4 roundings of numbers up to 2. */
TEST(test_rope)
{
    enum { T = 4, H = 3, D = 16, N = T * H * D };
    float x[N];
    rope_args a = {.x = x, .stride = H * D, .batch = 1, .seq_len = T, .n_head = H, .head_dim = D};
    memcpy(a.inv_freq, vector("rope/inv_freq", D / 2), D / 2 * sizeof(float));
    memcpy(x, vector("rope/x", N), sizeof x);
    OK(ops_cpu_fast()->rope(s, &a));
    expect(x, "rope/out", N, 8 * U);
    a.inverse = true;
    memcpy(x, vector("rope/d_out", N), sizeof x);
    OK(ops_cpu_fast()->rope(s, &a));
    expect(x, "rope/d_x", N, 8 * U);
}

/* |gate| <= 12, |up| and |d_out| <= 1: silu has five steps of relative error U, its slope too. */
TEST(test_swiglu)
{
    enum { N = 300 };
    const float *gate = vector("swiglu/gate", N), *up = vector("swiglu/up", N);
    const float *d_out = vector("swiglu/d_out", N);
    float out[N], d_gate[N], d_up[N];
    CALL(ops_cpu_fast(), s, swiglu, out, gate, up, N, DTYPE_F32);
    expect(out, "swiglu/out", N, 12 * 6 * U);
    CALL(ops_cpu_fast(), s, swiglu_backward, d_gate, d_up, d_out, gate, up, N, DTYPE_F32);
    expect(d_gate, "swiglu/d_gate", N, 12 * 6 * U);
    expect(d_up, "swiglu/d_up", N, 12 * 6 * U);
}

/* Sums of 27 products forward, of 45 and of 84 backward; all values are at most 1. */
TEST(test_conv2d)
{
    enum { B = 2, C = 3, O = 5, H = 9, W = 8, K = 3, N = B * O * 7 * 6 };
    const conv_shape shape = {B, C, O, H, W, K, DTYPE_F32};
    const float *x = vector("conv2d/x", B * C * H * W), *w = vector("conv2d/w", O * C * K * K);
    for (int t = 0; t < 2; t++) {
        float out[N], d_x[B * C * H * W], d_w[O * C * K * K], d_b[O];
        CALL(ops_table(t), s, conv2d, out, x, w, vector("conv2d/b", O), shape);
        expect(out, "conv2d/out", N, 28 * 28 * U);
        fill_twos(d_w, O * C * K * K);
        fill_twos(d_b, O);
        CALL(ops_table(t), s, conv2d_backward, .d_in = d_x, .d_weight = d_w, .d_bias = d_b,
             .d_out = vector("conv2d/d_out", N), .in = x, .weight = w, .shape = shape);
        expect(d_x, "conv2d/d_x", B * C * H * W, 45 * 45 * U);
        expect_added(d_w, "conv2d/d_w", O * C * K * K, 86 * 86 * U);
        expect_added(d_b, "conv2d/d_b", O, 86 * 86 * U);
    }
}

TEST(test_max_pool2d)
{
    enum { P = 3, H = 7, W = 8, N = P * 3 * 4 };
    float out[N], d_x[P * H * W];
    const float *x = vector("max_pool2d/x", P * H * W), *d_out = vector("max_pool2d/d_out", N);
    CALL(ops_cpu_fast(), s, max_pool2d, out, x, P, H, W, DTYPE_F32);
    expect(out, "max_pool2d/out", N, 0.0);
    CALL(ops_cpu_fast(), s, max_pool2d_backward, d_x, d_out, x, P, H, W, DTYPE_F32);
    expect(d_x, "max_pool2d/d_x", P * H * W, 0.0);
}

TEST(test_relu)
{
    enum { N = 64 };
    float out[N], d_x[N];
    const float *x = vector("relu/x", N), *d_out = vector("relu/d_out", N);
    CALL(ops_cpu_fast(), s, relu, out, x, N, DTYPE_F32);
    expect(out, "relu/out", N, 0.0);
    for (int i = 0; i < 2; i++) { /* once with relu's input, once with its output */
        CALL(ops_cpu_fast(), s, relu_backward, d_x, d_out, i ? out : x, N, DTYPE_F32);
        expect(d_x, "relu/d_x", N, 0.0);
    }
    float odd[2] = {NAN, -0.0f}, d_odd[2] = {3.0f, 3.0f};
    CALL(ops_cpu_fast(), s, relu_backward, d_odd, d_odd, odd, 2, DTYPE_F32);
    CALL(ops_cpu_fast(), s, relu, odd, odd, 2, DTYPE_F32);
    assert_true(isnan(odd[0]) && odd[1] == 0.0f && d_odd[0] == 3.0f && d_odd[1] == 0.0f);
}

/* Each of about ten steps has a relative error of a few U. tanh's argument is off by about 4*U*|u|,
 * which acts through x*tanh'(u)/2, and |x u tanh'(u)| < 1. Sizes are at most |x| <= 30. */
TEST(test_gelu)
{
    enum { N = 300 };
    const float *x = vector("gelu/x", N), *want = vector("gelu/out", N);
    float out[N], d_x[N];
    CALL(ops_cpu_fast(), s, gelu, out, x, N, DTYPE_F32);
    expect(out, "gelu/out", N, 30 * 4 * U);
    for (size_t i = 0; i < N; i++)
        assert_true(fabs((double)out[i] - (double)want[i]) <= 6 * U * (1.0 + fabs((double)x[i])));
    CALL(ops_cpu_fast(), s, gelu_backward, d_x, vector("gelu/d_out", N), x, N, DTYPE_F32);
    expect(d_x, "gelu/d_x", N, 30 * 4 * U);
}

/* Scores are sums of D products of sizes <= 1, times 1/2, so they are off by D*D*U/2 =: e.
 * Probabilities are off by a factor 1 +- 2(e + few U), and so are out (an average of v) and lse. In
 * backward d_p is a sum of D terms and d_scores <= p*2*D/2. d_q, d_k and d_v are sums of at most
 * T*group such terms. The probabilities of a row sum to 1 (d_q), those in a column to at most
 * T*group (d_k, d_v). */
static void check_attention(const char *name, const size_t n[6])
{
    const size_t B = n[0], T = n[1], H = n[2], KV = n[3], D = n[4], Dv = n[5];
    const size_t n_q = B * T * H * D, n_k = B * T * KV * D;
    const size_t n_out = B * T * H * Dv, n_v = B * T * KV * Dv;
    const double terms = (double)(T * (H / KV)), d = (double)(D > Dv ? D : Dv);
    const double e = d * d * U / 2 + 8 * U;
    const attention_shape shape = {H * D, KV * D, KV * Dv, B, T, H, KV, D, Dv, 0.5f, DTYPE_F32};
    char path[10][48];
    static const char *const FIELDS[] = {"q", "k", "v", "d_out", "out", "lse", "d_q", "d_k", "d_v"};
    for (int i = 0; i < 9; i++)
        snprintf(path[i], sizeof path[i], "%s/%s", name, FIELDS[i]);
    for (int i = 0; i < 2; i++) {
        float *out = zeros(n_out), *lse = zeros(B * H * T);
        float *d_q = zeros(n_q), *d_k = zeros(n_k), *d_v = zeros(n_v);
        for (size_t x = 0; x < n_k && x < n_v; x++)
            d_q[x] = d_k[x] = d_v[x] = 7.0f; /* must be overwritten */
        const float *q = vector(path[0], n_q), *k = vector(path[1], n_k), *v = vector(path[2], n_v),
                    *d_out = vector(path[3], n_out);
        CALL(ops_table(i), s, attention, out, lse, q, k, v, shape);
        expect(out, path[4], n_out, 4 * e + (double)T * U);
        expect(lse, path[5], B * H * T, 4 * e + (double)T * U);
        CALL(ops_table(i), s, attention_backward, d_q, d_k, d_v, d_out, out, q, k, v, lse, shape);
        expect(d_q, path[6], n_q, d * (8 * e + (double)T * U));
        expect(d_k, path[7], n_k, d * (8 * e + terms * U) * 8);
        expect(d_v, path[8], n_v, (4 * e + terms * U) * 8);
        free(out), free(lse), free(d_q), free(d_k), free(d_v);
    }
}

TEST(test_attention)
{
    check_attention("attention_gqa", (const size_t[]){1, 70, 4, 2, 10, 10});
    check_attention("attention_mha", (const size_t[]){2, 9, 3, 3, 8, 8});
    check_attention("attention_narrow_v", (const size_t[]){1, 40, 4, 2, 6, 4});
    check_attention("attention_wide_v", (const size_t[]){2, 9, 2, 1, 6, 9});
}

/* |logits| < 8: the argument of exp, below 16 in size, is exact up to 16*U. So each probability has
 * a relative error of 16*U, plus the errors of exp and of the sum over V/16 terms in a lane. */
TEST(test_cross_entropy)
{
    enum { R = 9, V = 301 };
    int32_t targets[R];
    float d[R * V], loss;
    get_tokens("cross_entropy/targets", targets, R);
    CALL(ops_cpu_fast(), s, cross_entropy, &loss, d, vector("cross_entropy/logits", R * V), targets,
         R, V, DTYPE_F32, NULL);
    expect(&loss, "cross_entropy/loss", 1, R * (16 + V / 16 + 8) * U);
    expect(d, "cross_entropy/d_logits", R * V, (16 + V / 16 + 8) * U);
}

/* Three steps with clipping. An element is below 1.06 and is rounded twice a step. The update is
 * below 0.03: lr 0.01 times momentum's (1 + 0.9 + 0.81) (|g| + decay); AdamW's about lr; Adadelta's
 * at most 0.5 times (sqrt(eps) + 0.3 earlier deltas) / sqrt(0.1). An update has at most 24
 * roundings. */
static const double UPDATES_BOUND = 3 * (2 * 1.06 + 0.03 * 24) * FLT_EPSILON / 2.0;

enum { N_UPDATED = 53 };

static void steps_of(optimizer_kind kind, const char *name, const optim_config *config)
{
    enum { N = N_UPDATED };
    const optimizer_rule *rule = optimizer_of(kind);
    float p[N], state[OPTIM_MAX_STATES][N] = {{0}}, norm, coef;
    memcpy(p, vector("optim/start", N), sizeof p);
    for (int step = 0; step < 3; step++) {
        char grad_name[24];
        snprintf(grad_name, sizeof grad_name, "optim/grad%d", step);
        optim_part part = {.param = p, .grad = vector(grad_name, N), .elems = N, .decay = true};
        for (int k = 0; k < rule->n_states; k++)
            part.state[k] = state[k];
        rsum sum = {0};
        CALL(ops_cpu_fast(), s, sum_squares, &sum, part.grad, N);
        CALL(ops_cpu_fast(), s, clip_coef, &norm, &coef, &sum, 2.0f);
        optim_config now = *config;
        optim_scalars scalars;
        now.step = step;
        optim_scalars_make(&now, &coef, &scalars);
        OK(rule->update(ops_cpu_fast(), s, &scalars, &part));
    }
    expect(&norm, "optim/norm", 1, 0.0);
    expect(p, name, N, UPDATES_BOUND);
}

TEST(test_optimizers)
{
    steps_of(
        OPTIMIZER_ADAMW, "optim/adamw",
        &(optim_config){.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
    steps_of(OPTIMIZER_SGD, "optim/sgd", &(optim_config){.lr = 1e-2, .weight_decay = 0.1});
    optim_config c = {.lr = 1e-2, .weight_decay = 0.1, .momentum = 0.9};
    steps_of(OPTIMIZER_MOMENTUM, "optim/momentum", &c);
    c.nesterov = true;
    steps_of(OPTIMIZER_MOMENTUM, "optim/nesterov", &c);
    steps_of(OPTIMIZER_ADADELTA, "optim/adadelta",
             &(optim_config){.lr = 0.5, .rho = 0.9, .eps = 1e-6, .weight_decay = 0.1});
}

/* PyTorch computes each rate from the one before in double. After 12 steps that is about 100
 * roundings of 2^-53 before the rounding to fp32. */
TEST(test_schedules)
{
    static const char *const NAMES[] = {[SCHEDULE_COSINE] = "lr/cosine",
                                        [SCHEDULE_LINEAR] = "lr/linear",
                                        [SCHEDULE_STEP] = "lr/step",
                                        [SCHEDULE_CONSTANT] = "lr/constant"};
    enum { STEPS = 16 };
    for (int k = 0; k < 4; k++) {
        const float *want = vector(NAMES[k], STEPS);
        const train_config c = {.lr = 1e-2,
                                .min_lr = 1e-3,
                                .steps = STEPS,
                                .warmup_steps = 4,
                                .lr_schedule = k,
                                .lr_step_size = 5,
                                .lr_gamma = 0.3};
        for (int step = 0; step < STEPS; step++)
            assert_true(fabs(train_lr(&c, step) - (double)want[step]) <=
                        1.0001 * U * (double)want[step]);
    }
}

int main(void)
{
    return tests_run(setup, teardown);
}
