/* test_ops_gradients.c -- every backward of ops.h against differences of its forward, for both CPU
 * tables. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ops_check_lib.h"

/* Half a last place: the relative error of one rounding. */
static const double U = FLT_EPSILON / 2.0;

static stream *s;

static int setup(void **state)
{
    s = ops_test_open(state);
    return 0;
}

static float *zeros(size_t elems)
{
    return calloc(elems, sizeof(float));
}

/* With L(x) = sum of w * f(x) and a direction d of +-1, the gradient g must satisfy
 *     g . d = [8 (L(x+hd) - L(x-hd)) - (L(x+2hd) - L(x-2hd))] / 12h  + h^4/30 L'''''
 * h = 1/32: the remainder is below 4e-8 of the fifth derivative. Each L has a rounding error of at
 * most c*U*S, S = sum |w f|, c the length of the operation's sums; the quotient multiplies that by
 * 18/12h = 48. Errors of different elements are independent, so c = 4 is used for all: far above
 * what happens, far below a wrong factor or a missing term, which are of the size of g . d. */

enum { FD_MAX = 24000, FD_VARS = 3 };

typedef struct fd_case {
    const ops *o;
    float *x[FD_VARS]; /* the variables */
    float *g[FD_VARS]; /* what backward says */
    size_t n[FD_VARS];
    float *w, *f; /* [n_out] */
    size_t n_out;
    void (*forward)(struct fd_case *c); /* f = f(x) */
    void (*backward)(struct fd_case *c);
} fd_case;

static double fd_loss(fd_case *c, double *size)
{
    double sum = 0.0;
    *size = 0.0;
    c->forward(c);
    for (size_t i = 0; i < c->n_out; i++) {
        sum += (double)c->w[i] * (double)c->f[i];
        *size += fabs((double)c->w[i] * (double)c->f[i]);
    }
    return sum;
}

static double fd_loss_at(fd_case *c, int var, const float *start, const float *dir, float h)
{
    double size;
    for (size_t i = 0; i < c->n[var]; i++)
        c->x[var][i] = start[i] + h * dir[i];
    return fd_loss(c, &size);
}

static void fd_check(const char *name, fd_case *c)
{
    static float start[FD_MAX], dir[FD_MAX];
    const float h = 1.0f / 32.0f;
    double size;
    fd_loss(c, &size);
    c->backward(c);
    for (int var = 0; var < FD_VARS && c->n[var] > 0; var++) {
        for (int trial = 0; trial < 3; trial++) {
            double expected = 0.0;
            memcpy(start, c->x[var], c->n[var] * sizeof(float));
            ops_test_fill(90 + (uint64_t)trial, 1.0f, dir, c->n[var]);
            for (size_t i = 0; i < c->n[var]; i++) {
                dir[i] = dir[i] > 0 ? 1.0f : -1.0f;
                expected += (double)c->g[var][i] * (double)dir[i];
            }
            const double near =
                fd_loss_at(c, var, start, dir, h) - fd_loss_at(c, var, start, dir, -h);
            const double far =
                fd_loss_at(c, var, start, dir, 2 * h) - fd_loss_at(c, var, start, dir, -2 * h);
            memcpy(c->x[var], start, c->n[var] * sizeof(float));
            const double slope = (8 * near - far) / (12.0 * (double)h);
            const double bound = 4 * U * size * 48 + 1e-4;
            if (!(fabs(slope - expected) <= bound))
                fail_msg("%s, variable %d: slope %.7g, gradient %.7g, bound %.2g", name, var, slope,
                         expected, bound);
        }
    }
}

/* fd_alloc -- variables of n elements (normal values times std), zeroed gradients, weights. */
static fd_case fd_alloc(const ops *o, size_t n0, size_t n1, size_t n2, size_t n_out)
{
    fd_case c = {.o = o, .n = {n0, n1, n2}, .n_out = n_out, .w = zeros(n_out), .f = zeros(n_out)};
    for (int i = 0; i < FD_VARS; i++) {
        assert_true(c.n[i] <= FD_MAX);
        c.x[i] = zeros(c.n[i] + 1);
        c.g[i] = zeros(c.n[i] + 1);
        ops_test_fill(70 + (uint64_t)i, 0.7f, c.x[i], c.n[i]);
    }
    ops_test_fill(80, 1.0f, c.w, n_out);
    return c;
}

static void fd_free(fd_case *c)
{
    for (int i = 0; i < FD_VARS; i++) {
        free(c->x[i]);
        free(c->g[i]);
    }
    free(c->w);
    free(c->f);
}

enum { R = 5, C = 19, K = 7, V = 6 };

static void matmul_forward(fd_case *c)
{
    OK(c->o->matmul(
        s, &(matmul_args){.out = c->f, .a = c->x[0], .b = c->x[1], .m = R, .n = C, .k = K}));
}

static void matmul_backward(fd_case *c)
{
    OK(c->o->matmul(
        s, &(matmul_args){
               .out = c->g[0], .a = c->w, .b = c->x[1], .m = R, .n = K, .k = C, .trans_b = true}));
    OK(c->o->matmul(
        s, &(matmul_args){
               .out = c->g[1], .a = c->x[0], .b = c->w, .m = K, .n = C, .k = R, .trans_a = true}));
}

/* A product with bias and residual, by these two: x[0] is the residual, x[1] the bias. */
static void bias_forward(fd_case *c)
{
    OK(c->o->matmul(s, &(matmul_args){.out = c->f,
                                      .a = c->w,
                                      .b = c->w,
                                      .bias = c->x[1],
                                      .residual = c->x[0],
                                      .m = R,
                                      .n = C,
                                      .k = 2}));
}

static void bias_backward(fd_case *c)
{
    memcpy(c->g[0], c->w, R * C * sizeof(float));
    OK(c->o->bias_backward(s, &(bias_backward_args){c->g[1], c->w, R, C, false, DTYPE_F32}));
}

static const int32_t FD_TOKENS[6] = {1, 5, 1, 0, 5, 1};

static void embedding_forward(fd_case *c)
{
    OK(c->o->embedding(
        s, &(embedding_args){c->f, c->x[0], c->x[1], FD_TOKENS, 2, 3, C, V, DTYPE_F32}));
}

static void embedding_backward(fd_case *c)
{
    OK(c->o->embedding_backward(
        s, &(embedding_backward_args){c->g[0], c->g[1], c->w, FD_TOKENS, 2, 3, C, V, DTYPE_F32}));
}

static float fd_mean[R], fd_rstd[R];

static void layernorm_forward(fd_case *c)
{
    OK(c->o->layernorm(s, &(layernorm_args){c->f, fd_mean, fd_rstd, c->x[0], c->x[1], c->x[2], R, C,
                                            1e-5f, DTYPE_F32}));
}

static void layernorm_backward(fd_case *c)
{
    OK(c->o->layernorm_backward(s, &(layernorm_backward_args){c->g[0], c->g[1], c->g[2], c->w,
                                                              c->x[0], c->x[1], NULL, fd_mean,
                                                              fd_rstd, R, C, false, DTYPE_F32}));
}

static void rmsnorm_forward(fd_case *c)
{
    OK(c->o->rmsnorm(s, &(rmsnorm_args){c->f, fd_rstd, c->x[0], c->x[1], R, C, 1e-5f, DTYPE_F32}));
}

static void rmsnorm_backward(fd_case *c)
{
    OK(c->o->rmsnorm_backward(s, &(rmsnorm_backward_args){c->g[0], c->g[1], c->w, c->x[0], c->x[1],
                                                          NULL, fd_rstd, R, C, false, DTYPE_F32}));
}

/* 2 sequences of 3 tokens, 2 heads of width 6. */
static rope_args fd_rope(void *x, bool inverse)
{
    return (rope_args){.x = x,
                       .stride = 12,
                       .batch = 2,
                       .seq_len = 3,
                       .n_head = 2,
                       .head_dim = 6,
                       .inverse = inverse,
                       .inv_freq = {1.0f, 0.31f, 0.07f}};
}

static void rope_forward(fd_case *c)
{
    const rope_args a = fd_rope(c->f, false);
    memcpy(c->f, c->x[0], c->n[0] * sizeof(float));
    OK(c->o->rope(s, &a));
}

static void rope_backward(fd_case *c)
{
    const rope_args a = fd_rope(c->g[0], true);
    memcpy(c->g[0], c->w, c->n[0] * sizeof(float));
    OK(c->o->rope(s, &a));
}

static void swiglu_forward(fd_case *c)
{
    OK(c->o->swiglu(s, &(swiglu_args){c->f, c->x[0], c->x[1], R * C, DTYPE_F32}));
}

static void swiglu_backward(fd_case *c)
{
    OK(c->o->swiglu_backward(
        s, &(swiglu_backward_args){c->g[0], c->g[1], c->w, c->x[0], c->x[1], R * C, DTYPE_F32}));
}

/* Linear in each variable: 70 channels of output, 37 of input and 18 x 17 positions are more than
 * one block of each. */
static const conv_shape FD_CONV = {1, 37, 70, 5, 4, 3, DTYPE_F32};
static const conv_shape FD_LARGE_CONV = {2, 1, 2, 20, 19, 3, DTYPE_F32};

static void conv_forward(fd_case *c)
{
    const conv_shape x = c->n[2] == 70 ? FD_CONV : FD_LARGE_CONV;
    OK(c->o->conv2d(s, &(conv2d_args){c->f, c->x[0], c->x[1], c->x[2], x}));
}

static void conv_backward(fd_case *c)
{
    const conv_shape x = c->n[2] == 70 ? FD_CONV : FD_LARGE_CONV;
    OK(c->o->conv2d_backward(
        s, &(conv2d_backward_args){c->g[0], c->g[1], c->g[2], c->w, c->x[0], c->x[1], false, x}));
}

static void gelu_forward(fd_case *c)
{
    OK(c->o->gelu(s, &(gelu_args){c->f, c->x[0], R * C, DTYPE_F32}));
}

static void gelu_backward(fd_case *c)
{
    OK(c->o->gelu_backward(s, &(gelu_backward_args){c->g[0], c->w, c->x[0], R * C, DTYPE_F32}));
}

/* 67 tokens: two blocks of keys; 4 query heads on 2 key/value heads. Heads of v are as wide as the
 * case's third variable asks for. */
enum { FD_T = 67, FD_H = 4, FD_KV = 2, FD_D = 5 };
static float fd_lse[FD_H * FD_T];

static attention_shape fd_attention(const fd_case *c)
{
    const size_t v_stride = c->n[2] / FD_T;
    return (attention_shape){FD_H * FD_D, FD_KV * FD_D, v_stride,         1,    FD_T,     FD_H,
                             FD_KV,       FD_D,         v_stride / FD_KV, 0.4f, DTYPE_F32};
}

static void attention_forward(fd_case *c)
{
    OK(c->o->attention(
        s, &(attention_args){c->f, fd_lse, c->x[0], c->x[1], c->x[2], fd_attention(c)}));
}

static void attention_backward(fd_case *c)
{
    OK(c->o->attention_backward(s, &(attention_backward_args){c->g[0], c->g[1], c->g[2], c->w, c->f,
                                                              c->x[0], c->x[1], c->x[2], fd_lse,
                                                              fd_attention(c)}));
}

static void loss_forward(fd_case *c)
{
    OK(c->o->cross_entropy(
        s, &(cross_entropy_args){c->f, NULL, c->x[0], FD_TOKENS, R, C, DTYPE_F32, NULL}));
}

static void loss_backward(fd_case *c)
{
    float loss;
    OK(c->o->cross_entropy(
        s, &(cross_entropy_args){&loss, c->g[0], c->x[0], FD_TOKENS, R, C, DTYPE_F32, NULL}));
    for (size_t i = 0; i < R * C; i++)
        c->g[0][i] *= c->w[0];
}

static void test_differences(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*forward)(fd_case *c), (*backward)(fd_case *c);
        size_t n[FD_VARS], n_out;
    } TABLE[] = {
        {"matmul", matmul_forward, matmul_backward, {R * K, K * C}, R * C},
        {"bias", bias_forward, bias_backward, {R * C, C}, R * C},
        {"embedding", embedding_forward, embedding_backward, {V * C, 3 * C}, 6 * C},
        {"layernorm", layernorm_forward, layernorm_backward, {R * C, C, C}, R * C},
        {"rmsnorm", rmsnorm_forward, rmsnorm_backward, {R * C, C}, R * C},
        {"rope", rope_forward, rope_backward, {72}, 72},
        {"swiglu", swiglu_forward, swiglu_backward, {R * C, R * C}, R * C},
        {"conv2d", conv_forward, conv_backward, {37 * 5 * 4, 70 * 37 * 9, 70}, 70 * 3 * 2},
        {"conv2d", conv_forward, conv_backward, {2 * 20 * 19, 2 * 9, 2}, 2 * 2 * 18 * 17},
        {"gelu", gelu_forward, gelu_backward, {R * C}, R * C},
        {"attention",
         attention_forward,
         attention_backward,
         {FD_T * FD_H * FD_D, FD_T * FD_KV * FD_D, FD_T * FD_KV * FD_D},
         FD_T * FD_H * FD_D},
        {"attention of narrow values",
         attention_forward,
         attention_backward,
         {FD_T * FD_H * FD_D, FD_T * FD_KV * FD_D, FD_T * FD_KV * 3},
         FD_T * FD_H * 3},
        {"attention of wide values",
         attention_forward,
         attention_backward,
         {FD_T * FD_H * FD_D, FD_T * FD_KV * FD_D, FD_T * FD_KV * 8},
         FD_T * FD_H * 8},
        {"cross_entropy", loss_forward, loss_backward, {R * C}, 1},
    };
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < sizeof TABLE / sizeof TABLE[0]; i++) {
            fd_case c =
                fd_alloc(ops_table(t), TABLE[i].n[0], TABLE[i].n[1], TABLE[i].n[2], TABLE[i].n_out);
            c.forward = TABLE[i].forward;
            c.backward = TABLE[i].backward;
            fd_check(TABLE[i].name, &c);
            fd_free(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_differences)};
    return cmocka_run_group_tests(tests, setup, ops_test_close);
}
