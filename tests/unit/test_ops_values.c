/* test_ops_values.c -- results of operations, of the optimizers and of the learning rate's
 * schedules against PyTorch (float64, tests/reference/make_ops_vectors.py). test_ops_double.c has
 * the other operations: products, norms, attention, the loss.
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

/* ---- against PyTorch ------------------------------------------------------------------------- */

/* Bounds are worst cases. A sum of k terms, each at most 1 in size, is off by at most k*U times the
 * sum of sizes, k. A relative error e of the terms adds k*e. Some bounds are far above the actual
 * errors; in return they cannot fail by chance. */

TEST(test_embedding)
{
    enum { B = 3, T = 5, C = 33, V = 11 };
    int32_t tokens[B * T];
    float out[B * T * C], d_wte[V * C] = {0}, d_wpe[T * C] = {0};
    get_tokens("embedding/tokens", tokens, B * T);
    CALL(ops_cpu_fast(), s, embedding, out, vector("embedding/wte", V * C),
         vector("embedding/wpe", T * C), tokens, B, T, C, V, DTYPE_F32, {0, 0});
    expect(out, "embedding/out", B * T * C, 2 * U);
    CALL(ops_cpu_fast(), s, embedding_backward, d_wte, d_wpe, vector("embedding/d_out", B * T * C),
         tokens, B, T, C, V, 0, NULL, DTYPE_F32, {0, 0});
    expect(d_wte, "embedding/d_wte", V * C, U * B * T * B * T);
    expect(d_wpe, "embedding/d_wpe", T * C, U * B * B);
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
        optim_part part = {.param = p, .grad = vector(grad_name, N), .elems = N};
        for (int k = 0; k < rule->n_states; k++)
            part.state[k] = state[k];
        rsum sum = {0};
        CALL(ops_cpu_fast(), s, sum_squares, .sum = &sum, .x = part.grad, .elems = N);
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
        const train_options o = {
            .lr = 1e-2, .warmup_steps = 4, .lr_schedule = k, .lr_step_size = 5};
        const train_config c = {.opt = &o, .min_lr = 1e-3, .steps = STEPS, .lr_gamma = 0.3};
        for (int step = 0; step < STEPS; step++)
            assert_true(fabs(train_lr(&c, step) - (double)want[step]) <=
                        1.0001 * U * (double)want[step]);
    }
}

int main(void)
{
    return tests_run(setup, teardown);
}
