/* test_ops_gradients.c -- every backward of ops.h against differences of its forward, for both CPU
 * tables. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ops_check_lib.h"

/* The relative error of one rounding: half a unit in the last place. */
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
 * most c*U*S, S = sum |w f|, where c is the length of the operation's sums. The quotient multiplies
 * the error by 18/12h = 48. Errors of different elements are independent, so c = 4 is used for all.
 * That is far above the actual errors, and far below a wrong factor or a missing term, which are as
 * large as g . d. */

enum { FD_MAX = 24000, FD_VARS = 3 };

typedef struct fd_case {
    const ops *o;
    float *x[FD_VARS]; /* the variables */
    float *g[FD_VARS]; /* the gradients from backward */
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

/* fd_alloc -- allocate variables of n elements (normal values times std), zeroed gradients,
 * weights. */
static fd_case fd_alloc(const ops *o, const size_t n[FD_VARS], size_t n_out)
{
    fd_case c = {.o = o, .n_out = n_out, .w = normals(80, 1.0f, n_out), .f = zeros(n_out)};
    for (int i = 0; i < FD_VARS; i++) {
        assert_true(n[i] <= FD_MAX);
        c.n[i] = n[i];
        c.x[i] = normals(70 + (uint64_t)i, 0.7f, n[i]);
        c.g[i] = zeros(n[i] + 1);
    }
    return c;
}

static void fd_free(fd_case *c)
{
    for (int i = 0; i < FD_VARS; i++)
        free(c->x[i]), free(c->g[i]);
    free(c->w), free(c->f);
}

enum { R = 5, C = 19, K = 7, V = 6 };

static const int32_t TOKENS[6] = {1, 5, 1, 0, 5, 1};
static float mean[R], rstd[R];

/* PAIR -- define NAME_forward and NAME_backward from these calls: x are the variables, g their
 * gradients, w the gradient of f. */
#define PAIR(name, forward, backward)                                                              \
    static void name##_forward(fd_case *c)                                                         \
    {                                                                                              \
        float **x = c->x, *f = c->f;                                                               \
        (void)x;                                                                                   \
        forward;                                                                                   \
    }                                                                                              \
    static void name##_backward(fd_case *c)                                                        \
    {                                                                                              \
        float **x = c->x, **g = c->g, *w = c->w;                                                   \
        (void)x;                                                                                   \
        backward;                                                                                  \
    }
#define RUN(op, ...) CALL(c->o, s, op, __VA_ARGS__)

PAIR(matmul, RUN(matmul, .out = f, .a = x[0], .b = x[1], .m = R, .n = C, .k = K), {
    RUN(matmul, .out = g[0], .a = w, .b = x[1], .m = R, .n = K, .k = C, .trans_b = true);
    RUN(matmul, .out = g[1], .a = x[0], .b = w, .m = K, .n = C, .k = R, .trans_a = true);
})
/* A product's residual x[0] and bias x[1]. */
PAIR(bias,
     RUN(matmul, .out = f, .a = c->w, .b = c->w, .bias = x[1], .residual = x[0], .m = R, .n = C,
         .k = 2),
     {
         memcpy(g[0], w, R * C * sizeof(float));
         RUN(bias_backward, g[1], w, R, C, false, DTYPE_F32);
     })
PAIR(embedding, RUN(embedding, f, x[0], x[1], TOKENS, 2, 3, C, V, DTYPE_F32),
     RUN(embedding_backward, g[0], g[1], w, TOKENS, 2, 3, C, V, DTYPE_F32))
PAIR(layernorm, RUN(layernorm, f, mean, rstd, x[0], x[1], x[2], R, C, 1e-5f, DTYPE_F32),
     RUN(layernorm_backward, g[0], g[1], g[2], w, x[0], x[1], NULL, mean, rstd, R, C, false,
         DTYPE_F32))
PAIR(rmsnorm, RUN(rmsnorm, f, rstd, x[0], x[1], R, C, 1e-5f, DTYPE_F32),
     RUN(rmsnorm_backward, g[0], g[1], w, x[0], x[1], NULL, rstd, R, C, false, DTYPE_F32))
PAIR(swiglu, RUN(swiglu, f, x[0], x[1], R *C, DTYPE_F32),
     RUN(swiglu_backward, g[0], g[1], w, x[0], x[1], R *C, DTYPE_F32))
PAIR(gelu, RUN(gelu, f, x[0], R *C, DTYPE_F32), RUN(gelu_backward, g[0], w, x[0], R *C, DTYPE_F32))

/* 2 sequences of 3 tokens, 2 heads of width 6. */
static void rope(fd_case *c, float *out, const float *in, bool inverse)
{
    memcpy(out, in, c->n[0] * sizeof(float));
    RUN(rope, .x = out, .stride = 12, .batch = 2, .seq_len = 3, .n_head = 2, .head_dim = 6,
        .inverse = inverse, .inv_freq = {1.0f, 0.31f, 0.07f});
}
PAIR(rope, rope(c, f, x[0], false), rope(c, g[0], w, true))

/* Linear in each variable. 70 output channels, 37 input channels and 18 x 17 positions are more
 * than one block each. */
static conv_shape conv_of(const fd_case *c)
{
    static const conv_shape WIDE = {1, 37, 70, 5, 4, 3, DTYPE_F32};
    static const conv_shape HIGH = {2, 1, 2, 20, 19, 3, DTYPE_F32};
    return c->n[2] == 70 ? WIDE : HIGH;
}
PAIR(conv, RUN(conv2d, f, x[0], x[1], x[2], conv_of(c)),
     RUN(conv2d_backward, g[0], g[1], g[2], w, x[0], x[1], false, conv_of(c)))

/* 67 tokens: two blocks of keys; 4 query heads on 2 key/value heads. The size of the case's third
 * variable gives the width of v's heads. */
enum { T = 67, H = 4, KV = 2, D = 5 };
static float lse[H * T];

static attention_shape attention_of(const fd_case *c)
{
    const size_t v_stride = c->n[2] / T;
    return (attention_shape){H * D, KV * D, v_stride,      1,    T,        H,
                             KV,    D,      v_stride / KV, 0.4f, DTYPE_F32};
}
PAIR(attention, RUN(attention, f, lse, x[0], x[1], x[2], attention_of(c)),
     RUN(attention_backward, g[0], g[1], g[2], w, c->f, x[0], x[1], x[2], lse, attention_of(c)))

PAIR(loss, RUN(cross_entropy, f, NULL, x[0], TOKENS, R, C, DTYPE_F32, NULL), {
    float unused;
    RUN(cross_entropy, &unused, g[0], x[0], TOKENS, R, C, DTYPE_F32, NULL);
    for (size_t i = 0; i < R * C; i++)
        g[0][i] *= w[0];
})

TEST(test_differences)
{
    static const struct {
        const char *name;
        void (*forward)(fd_case *c), (*backward)(fd_case *c);
        size_t n[FD_VARS], n_out;
    } TABLE[] = {
#define OF(name) #name, name##_forward, name##_backward
        {OF(matmul), {R * K, K * C}, R * C},
        {OF(bias), {R * C, C}, R * C},
        {OF(embedding), {V * C, 3 * C}, 6 * C},
        {OF(layernorm), {R * C, C, C}, R * C},
        {OF(rmsnorm), {R * C, C}, R * C},
        {OF(rope), {72}, 72},
        {OF(swiglu), {R * C, R * C}, R * C},
        {OF(conv), {37 * 5 * 4, 70 * 37 * 9, 70}, 70 * 3 * 2},
        {OF(conv), {2 * 20 * 19, 2 * 9, 2}, 2 * 2 * 18 * 17},
        {OF(gelu), {R * C}, R * C},
        {OF(attention), {T * H * D, T * KV * D, T * KV * D}, T * H * D},
        {OF(attention), {T * H * D, T * KV * D, T * KV * 3}, T * H * 3}, /* narrow values */
        {OF(attention), {T * H * D, T * KV * D, T * KV * 8}, T * H * 8}, /* wide values */
        {OF(loss), {R * C}, 1},
    };
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < sizeof TABLE / sizeof TABLE[0]; i++) {
            fd_case c = fd_alloc(ops_table(t), TABLE[i].n, TABLE[i].n_out);
            c.forward = TABLE[i].forward, c.backward = TABLE[i].backward;
            fd_check(TABLE[i].name, &c);
            fd_free(&c);
        }
    }
}

int main(void)
{
    return tests_run(setup, ops_test_close);
}
