/* test_ops_blocks.c -- sizes of several tiles and blocks, and values that need the safe forms of
 * softmax, against plain loops in double. What smaller cases cannot show: where a tile starts, how
 * blocks of one sum are put together. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ops_check_lib.h"

static stream *s;

static int setup(void **state)
{
    s = ops_test_open(state);
    return 0;
}

static void expect_near(double got, double want, double bound, const char *what, size_t at)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%s[%zu] is %.9g, expected %.9g within %.3g", what, at, got, want, bound);
}

/* ---- matmul: more than one tile along m and n, more than one block along k ------------------- */

static void check_matmul(const ops *o, size_t m, size_t n, size_t k, bool trans_a, bool trans_b)
{
    float *a = normals(1, 1.0f, m * k), *b = normals(2, 1.0f, k * n),
          *out = normals(3, 1.0f, m * n);
    OK(o->matmul(s, &(matmul_args){.out = out,
                                   .a = a,
                                   .b = b,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .trans_a = trans_a,
                                   .trans_b = trans_b}));
    for (size_t i = 0; i < m * n; i++) {
        const size_t row = i / n, col = i % n;
        double sum = 0.0, size = 0.0;
        for (size_t p = 0; p < k; p++) {
            const double term = (double)a[trans_a ? p * m + row : row * k + p] *
                                (double)b[trans_b ? col * k + p : p * n + col];
            sum += term;
            size += fabs(term);
        }
        /* k roundings of a partial sum, which is at most the sum of sizes */
        expect_near((double)out[i], sum, (double)k * FLT_EPSILON / 2 * size, o->name, i);
    }
    free(a), free(b), free(out);
}

static void test_matmul_tiles(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int form = 0; form < 4; form++) {
            check_matmul(ops_table(t), 300, 401, 33, form & 1, form & 2);
            check_matmul(ops_table(t), 11, 23, 700, form & 1, form & 2);
            check_matmul(ops_table(t), 256, 512, 270, form & 1, form & 2); /* copied operands */
        }
        check_matmul(ops_table(t), 40, 1000, 300, false, true); /* narrow tiles */
    }
}

/* ---- attention: several blocks, scores that grow or shrink along the keys -------------------- */

/* One query: out and the log of the softmax's denominator, in double, from all its scores. */
static double naive_query(const attention_args *args, size_t b, size_t t, size_t h, double *out)
{
    const attention_shape *a = &args->shape;
    const float *queries = args->q, *keys = args->k, *values = args->v;
    const size_t kv = h / (a->n_head / a->n_kv_head);
    const float *q = queries + (b * a->seq_len + t) * a->q_stride + h * a->head_dim;
    double score[256], top = -INFINITY, sum = 0.0;
    for (size_t key = 0; key <= t; key++) {
        const float *k = keys + (b * a->seq_len + key) * a->k_stride + kv * a->head_dim;
        score[key] = 0.0;
        for (size_t d = 0; d < a->head_dim; d++)
            score[key] += (double)q[d] * (double)k[d] * (double)a->scale;
        top = score[key] > top ? score[key] : top;
    }
    memset(out, 0, a->v_head_dim * sizeof *out);
    for (size_t key = 0; key <= t; key++) {
        const float *v = values + (b * a->seq_len + key) * a->v_stride + kv * a->v_head_dim;
        const double p = exp(score[key] - top);
        sum += p;
        for (size_t d = 0; d < a->v_head_dim; d++)
            out[d] += p * (double)v[d];
    }
    for (size_t d = 0; d < a->v_head_dim; d++)
        out[d] /= sum;
    return top + log(sum);
}

/* slope: how fast scores change from key to key; at 2 they pass exp's range within a block. A score
 * of size z is off by about D*U*z, and so are, relatively, exp, out and lse: 1e-6 z for D = 12, to
 * which the sums over T <= 200 keys add 200*U = 1.2e-5. |v| < 5. */
static void check_attention(const ops *o, size_t T, size_t n_kv_head, float slope)
{
    enum { B = 2, H = 4, D = 12, DV = 7, N = H * D };
    const size_t k_width = n_kv_head * D, stride = N + k_width + n_kv_head * DV, rows = B * T;
    float *qkv = normals(5, 1.0f, rows * stride);
    float *out = normals(6, 1.0f, rows * H * DV), *lse = normals(7, 1.0f, rows * H);
    for (size_t r = 0; r < rows; r++) {
        for (size_t h = 0; h < H; h++)
            qkv[r * stride + h * D] = 1.0f;
        for (size_t h = 0; h < n_kv_head; h++)
            qkv[r * stride + N + h * D] = slope * (float)(r % T);
    }
    const attention_args a = {out,
                              lse,
                              qkv,
                              qkv + N,
                              qkv + N + k_width,
                              {stride, stride, stride, B, T, H, n_kv_head, D, DV, 1.0f, DTYPE_F32}};
    OK(o->attention(s, &a));
    for (size_t i = 0; i < rows * H; i++) {
        const size_t b = i / (T * H), t = i / H % T, h = i % H;
        const double size = 10.0 + fabs((double)slope) * (double)T;
        const double relative = 1e-6 * size + 1.2e-5;
        double want[DV];
        const double want_lse = naive_query(&a, b, t, h, want);
        expect_near((double)lse[(b * H + h) * T + t], want_lse, relative, "lse", i);
        for (size_t d = 0; d < DV; d++)
            expect_near((double)out[((b * T + t) * H + h) * DV + d], want[d], 10.0 * relative,
                        "out", i);
    }
    free(qkv), free(out), free(lse);
}

static void test_attention_blocks(void **state)
{
    (void)state;
    static const size_t LENGTHS[] = {1, 2, 63, 64, 65, 128, 129, 200};
    static const float SLOPES[] = {0.0f, 0.05f, -0.05f, 2.0f, -2.0f};
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < 8; i++) {
            for (size_t k = 0; k < 5; k++)
                check_attention(ops_table(t), LENGTHS[i], i % 2 == 0 ? 2 : 4, SLOPES[k]);
        }
    }
}

/* v, filled up with zeros to the width of k, gives the same bits where sums have one order: an
 * element of out or d_v has the terms that it had, a product of d_out and v more that are 0. */
static void test_attention_padded_values(void **state)
{
    (void)state;
    enum { T = 130, H = 4, KV = 2, D = 24, DV = 10 };
    const size_t n[5] = {T * H * DV, H * T, T * H * D, T * KV * D, T * KV * DV};
    float *q = normals(1, 1.0f, T * H * D), *k = normals(2, 1.0f, T * KV * D);
    float *in[2] = {normals(3, 1.0f, T * KV * DV), normals(4, 1.0f, T * H * DV)};
    float *wide[2] = {filled(0.0f, T * KV * D), filled(0.0f, T * H * D)}, *to[2][5];
    for (size_t i = 0; i < T * H * DV; i++) {
        if (i < T * KV * DV)
            wide[0][i / DV * D + i % DV] = in[0][i];
        wide[1][i / DV * D + i % DV] = in[1][i];
    }
    for (int w = 0; w < 2; w++) {
        const size_t dv = w ? D : DV;
        const attention_shape x = {H * D, KV * D, KV * dv, 1, T, H, KV, D, dv, 0.3f, DTYPE_F32};
        const float *v = w ? wide[0] : in[0], *d_out = w ? wide[1] : in[1];
        float **r = to[w];
        for (int i = 0; i < 5; i++)
            r[i] = filled(NAN, T * H * D);
        OK(ops_cpu_portable()->attention(s, &(attention_args){r[0], r[1], q, k, v, x}));
        OK(ops_cpu_portable()->attention_backward(
            s, &(attention_backward_args){r[2], r[3], r[4], d_out, r[0], q, k, v, r[1], x}));
    }
    for (int i = 0; i < 5; i++)
        for (size_t e = 0; e < n[i]; e++)
            expect_near((double)to[0][i][e], (double)to[1][i][i % 4 == 0 ? e / DV * D + e % DV : e],
                        0.0, "padded", e);
    for (int i = 0; i < 10; i++)
        free(to[i / 5][i % 5]);
    free(q), free(k), free(in[0]), free(in[1]);
    free(wide[0]), free(wide[1]);
}

/* ---- cross_entropy: more rows than a block, a row longer than a piece, large logits ---------- */

/* Logits of size z: the exponent is off by U*z, and so is, relatively, each probability. */
static void check_cross_entropy(size_t rows, size_t vocab, float std)
{
    float *x = normals(8, std, rows * vocab), *d = normals(9, 1.0f, rows * vocab), loss;
    int32_t *targets = malloc(rows * sizeof *targets);
    const double bound = (6.0 * (double)std + (double)vocab / 16 + 8) * FLT_EPSILON;
    double total = 0.0;
    for (size_t r = 0; r < rows; r++)
        targets[r] = (int32_t)(r * 31 % vocab);
    OK(ops_cpu_fast()->cross_entropy(
        s, &(cross_entropy_args){&loss, d, x, targets, rows, vocab, DTYPE_F32, NULL}));
    for (size_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0.0;
        for (size_t i = 0; i < vocab; i++)
            top = (double)x[r * vocab + i] > top ? (double)x[r * vocab + i] : top;
        for (size_t i = 0; i < vocab; i++)
            sum += exp((double)x[r * vocab + i] - top);
        for (size_t i = 0; i < vocab; i++) {
            const double p = exp((double)x[r * vocab + i] - top) / sum;
            expect_near((double)d[r * vocab + i], p - (i == (size_t)targets[r]), bound, "d_logits",
                        r * vocab + i);
        }
        total += top + log(sum) - (double)x[r * vocab + (size_t)targets[r]];
    }
    expect_near((double)loss, total, (double)rows * bound + FLT_EPSILON * total, "loss", 0);
    free(x), free(d), free(targets);
}

static void test_cross_entropy_blocks(void **state)
{
    (void)state;
    check_cross_entropy(601, 131, 1.0f);
    check_cross_entropy(3, 2500, 1.0f);
    check_cross_entropy(3, 1024, 100.0f);
}

/* ---- scale, and sums over more rows than a tile ---------------------------------------------- */

static void test_scale(void **state)
{
    (void)state;
    const float x = 1.7f, factor = 0.1f;
    float y = x;
    OK(ops_cpu_fast()->scale(s, &(scale_args){&y, factor, 1}));
    assert_true(y == x * factor);
}

static void test_long_norms(void **state)
{
    (void)state;
    enum { R = 300, C = 1000 };
    float *x = normals(1, 1.0f, R * C), *d_out = normals(2, 1.0f, R * C),
          *gain = normals(3, 1.0f, C);
    float *out = normals(4, 1.0f, R * C), *d_gain = calloc(C, sizeof *d_gain);
    float *d_bias = calloc(C, sizeof *d_bias), *bias = calloc(C, sizeof *bias), mean[R], rstd[R];
    OK(ops_cpu_fast()->layernorm(
        s, &(layernorm_args){out, mean, rstd, x, gain, bias, R, C, 1e-5f, DTYPE_F32}));
    OK(ops_cpu_fast()->layernorm_backward(s, &(layernorm_backward_args){out, d_gain, d_bias, d_out,
                                                                        x, gain, NULL, mean, rstd,
                                                                        R, C, false, DTYPE_F32}));
    OK(ops_cpu_fast()->bias_backward(s,
                                     &(bias_backward_args){bias, d_out, R, C, false, DTYPE_F32}));
    for (size_t c = 0; c < C; c++) {
        double gain_sum = 0.0, bias_sum = 0.0;
        for (size_t r = 0; r < R; r++) {
            const double d = (double)d_out[r * C + c];
            gain_sum += d * (((double)x[r * C + c] - (double)mean[r]) * (double)rstd[r]);
            bias_sum += d;
        }
        /* R terms below 25 (two normals) and partial sums below 25 sqrt(R) */
        const double bound = R * FLT_EPSILON * 25.0 * sqrt(R);
        expect_near((double)d_gain[c], gain_sum, bound, "d_gain", c);
        expect_near((double)d_bias[c], bias_sum, bound, "d_bias", c);
        expect_near((double)bias[c], bias_sum, bound, "bias", c);
    }
    free(x), free(d_out), free(gain), free(out), free(d_gain), free(d_bias), free(bias);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_tiles),
        cmocka_unit_test(test_attention_blocks),
        cmocka_unit_test(test_attention_padded_values),
        cmocka_unit_test(test_cross_entropy_blocks),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_long_norms),
    };
    return cmocka_run_group_tests(tests, setup, ops_test_close);
}
