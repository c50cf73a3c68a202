/* test_leaves.c -- operations that sum leaves (ops.h) have the bits of a call for each leaf whose
 * results are added in a tree, and rows have the same bits in calls of any number of rows. */
#include <stdlib.h>
#include <string.h>
#include "tests/unit/ops_check_lib.h"
#include "tests/unit/unit_lib.h"

static stream *s;

enum { MOST_LEAVES = 8 };

/* sum [n] = the tree of `leaves` arrays x, n apart; x is overwritten. */
static void tree(float *x, size_t leaves, size_t n, float *sum)
{
    for (size_t step = 1; step < leaves; step *= 2)
        for (size_t i = 0; i < leaves; i += 2 * step)
            for (size_t j = 0; j < n; j++)
                x[i * n + j] += x[(i + step) * n + j];
    memcpy(sum, x, n * sizeof *sum);
}

/* Numbers of `type` in an array of elems floats. */
static void *drawn(uint64_t name, size_t elems, dtype type)
{
    float *x = normals(name, 1.0f, elems);
    for (size_t i = 0; i < elems && type == DTYPE_BF16; i++)
        ((uint16_t *)x)[i] = bf16_from_f32(x[i]);
    return x;
}

static const void *at(const void *x, size_t i, dtype type)
{
    return (const char *)x + i * dtype_bytes(type);
}

/* ONE(op, ...) -- the operation on stream s with ops `o`; the test fails if the call does. */
#define ONE(op, ...) CALL(o, s, op, .type = type, __VA_ARGS__)

static void check_matmul(const ops *o, dtype type, size_t leaves, size_t m, size_t n, size_t k)
{
    void *a = drawn(1, leaves * k * m, type), *b = drawn(2, leaves * k * n, type);
    float *got = normals(3, 1.0f, m * n), *want = normals(4, 1.0f, m * n);
    float *leaf = filled(7, leaves * m * n);
    ONE(matmul, .out_type = DTYPE_F32, .out = got, .a = a, .b = b, .m = m, .n = n, .k = leaves * k,
        .leaves = leaves, .trans_a = true);
    for (size_t i = 0; i < leaves; i++)
        ONE(matmul, .out_type = DTYPE_F32, .out = leaf + i * m * n, .a = at(a, i * k * m, type),
            .b = at(b, i * k * n, type), .m = m, .n = n, .k = k, .trans_a = true);
    tree(leaf, leaves, m * n, want);
    expect_same_bits(got, want, m * n, "matmul", "by leaves");
    void *arrays[] = {a, b, got, want, leaf};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void check_sums(const ops *o, dtype type, size_t leaves, size_t rows, size_t cols)
{
    enum { BIAS, GAIN, SHIFT, RMS, LOSS, N_SUMS };
    const size_t all = leaves * rows, width = N_SUMS * cols;
    void *x = drawn(1, all * cols, type), *d = drawn(2, all * cols, type);
    void *gain = drawn(3, cols, type), *d_in = drawn(4, all * cols, type);
    float *mean = normals(5, 0.1f, all), *rstd = normals(6, 0.1f, all);
    float *leaf = filled(0, leaves * width), *got = filled(0, width), *want = filled(0, width);
    float loss[MOST_LEAVES], own[MOST_LEAVES];
    int32_t *targets = calloc(all, sizeof *targets);
    for (size_t i = 0; i < all; i++)
        targets[i] = (int32_t)(i * 5 % cols);
    for (size_t i = 0; i <= leaves; i++) { /* the leaves alone, then all of them */
        const size_t first = i < leaves ? i * rows : 0, n = i < leaves ? rows : all;
        const size_t groups = i < leaves ? 0 : leaves;
        float *out = i < leaves ? leaf + i * width : got;
        const void *in = at(x, first * cols, type), *d_out = at(d, first * cols, type);
        ONE(bias_backward, .d_bias = out + BIAS * cols, .d_out = d_out, .rows = n, .cols = cols,
            .leaves = groups, .overwrite = true);
        ONE(layernorm_backward, .d_in = d_in, .d_gain = out + GAIN * cols,
            .d_bias = out + SHIFT * cols, .d_out = d_out, .in = in, .gain = gain,
            .mean = mean + first, .rstd = rstd + first, .rows = n, .cols = cols, .leaves = groups,
            .overwrite = true);
        ONE(rmsnorm_backward, .d_in = d_in, .d_gain = out + RMS * cols, .d_out = d_out, .in = in,
            .gain = gain, .rstd = rstd + first, .rows = n, .cols = cols, .leaves = groups,
            .overwrite = true);
        ONE(cross_entropy, .loss = i < leaves ? &own[i] : loss, .logits = in,
            .targets = targets + first, .rows = n, .vocab = cols, .leaves = groups);
    }
    tree(leaf, leaves, width, want);
    expect_same_bits(got, want, width, "sums over rows", "by leaves");
    expect_same_bits(loss, own, leaves, "losses", "by leaves");
    void *arrays[] = {x, d, gain, d_in, mean, rstd, leaf, got, want, targets};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* `rows` sequences a leaf; some tokens occur in several leaves, some in none. */
static void check_embedding(const ops *o, dtype type, size_t leaves, size_t rows, size_t width)
{
    enum { T = 7, VOCAB = 23 };
    const size_t all = leaves * rows, n_wte = VOCAB * width, n = n_wte + T * width;
    void *d = drawn(1, all * T * width, type);
    float *leaf = filled(0, leaves * n), *got = filled(0, n), *want = filled(0, n);
    int32_t *tokens = calloc(all * T, sizeof *tokens);
    uint64_t *order = calloc(all * T, sizeof *order);
    for (size_t i = 0; i < all * T; i++)
        tokens[i] = (int32_t)(i * i % 19);
    for (size_t i = 0; i <= leaves; i++) {
        const size_t first = i < leaves ? i * rows * T : 0;
        float *out = i < leaves ? leaf + i * n : got;
        ONE(embedding_backward, .d_wte = out, .d_wpe = out + n_wte,
            .d_out = at(d, first * width, type), .tokens = tokens + first,
            .batch = i < leaves ? rows : all, .seq_len = T, .width = width, .vocab = VOCAB,
            .leaves = i < leaves ? 0 : leaves, .order = order);
    }
    tree(leaf, leaves, n, want);
    expect_same_bits(got, want, n, "embedding", "by leaves");
    free(d), free(leaf), free(got), free(want), free(tokens), free(order);
}

/* Rows of products in calls of other numbers of rows. */
static void check_rows(const ops *o, dtype type, size_t m, size_t n, size_t k, bool trans_b)
{
    void *a = drawn(1, m * k, type), *b = drawn(2, n * k, type);
    float *all = filled(0, m * n), *part = filled(0, m * n);
    ONE(matmul, .out_type = DTYPE_F32, .out = all, .a = a, .b = b, .m = m, .n = n, .k = k,
        .trans_b = trans_b);
    static const size_t COUNTS[] = {1, 2, 61, 63, 64, 256, 257, 300, 1024, 4096};
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS && COUNTS[i] <= m; i++) {
        const size_t first = min_size(i * 3, m - COUNTS[i]);
        ONE(matmul, .out_type = DTYPE_F32, .out = part, .a = at(a, first * k, type), .b = b,
            .m = COUNTS[i], .n = n, .k = k, .trans_b = trans_b);
        expect_same_bits(part, all + first * n, COUNTS[i] * n, "matmul", "fewer rows");
    }
    free(a), free(b), free(all), free(part);
}

TEST(test_leaves_and_rows)
{
    int n_tables = 0;
    for (int table = 0; table < 2; table++)
        for (int t = 0; t < 2; t++) {
            const dtype type = t == 0 ? DTYPE_F32 : DTYPE_BF16;
            const ops *o = ops_table(table);
            if (!o->leaves_sum(type))
                continue;
            n_tables++;
            for (size_t leaves = 2; leaves <= MOST_LEAVES; leaves *= 2) {
                check_matmul(o, type, leaves, 5, 7, 3);
                check_matmul(o, type, leaves, 100, 130, 64);
                check_matmul(o, type, leaves, 300, 400, 5);
                check_matmul(o, type, leaves, 50, 96, 600);
                check_sums(o, type, leaves, 3, 10);
                check_sums(o, type, leaves, 70, 600);
                check_embedding(o, type, leaves, 1, 100);
                check_embedding(o, type, leaves, 3, 64);
            }
            for (int trans_b = 0; trans_b < 2; trans_b++) {
                check_rows(o, type, 320, 200, 700, trans_b);
                check_rows(o, type, 320, 3, 65, trans_b);
                check_rows(o, type, 300, 385, 1100, trans_b);
                /* 256 to 1024 rows have narrow tiles, others have wide ones */
                check_rows(o, type, 4096, 385, 24, trans_b);
                check_rows(o, type, 4096, 20, 70, trans_b);
                check_rows(o, type, 64, 50257, 3, trans_b); /* the vocabulary of GPT-2 */
            }
        }
    assert_true(n_tables >= 2); /* portable, in both types */
}

/* AVX2 has its own kernels, which a processor with AVX-512 does not choose. */
TEST(test_with_avx2)
{
    ops_test_with_avx2(NULL);
}

static int open_stream(void **state)
{
    s = ops_test_open(state);
    return 0;
}

int main(void)
{
    return tests_run(open_stream, ops_test_close);
}
