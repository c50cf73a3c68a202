/* test_dropout.c -- which elements dropout drops. The choice for an element depends only on the
 * element's place in the run. Both tables share dropout. */
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

enum { WIDTH = 1003, SAMPLES = 60, ELEMS = SAMPLES * WIDTH };

/* Dropout of ones, so that the output says what was kept. */
static dropout_args ones(const float *in, float *out)
{
    return (dropout_args){.out = out,
                          .in = in,
                          .samples = SAMPLES,
                          .width = WIDTH,
                          .p = 0.25f,
                          .seed = 3,
                          .first_sample = 1000,
                          .layer = 1};
}

static void run(const dropout_args *a)
{
    OK(ops_cpu_portable()->dropout(s, a));
}

static float in[ELEMS], out[ELEMS], other[ELEMS];

static int fill(void **state)
{
    for (size_t i = 0; i < ELEMS; i++)
        in[i] = 1.0f;
    return setup(state);
}

/* The number of dropped elements has a standard deviation of sqrt(n p (1-p)). 5 of these are never
 * exceeded. */
TEST(test_fraction)
{
    static const float P[] = {0.0f, 0.1f, 0.25f, 0.5f, 0.9f};
    for (int i = 0; i < 5; i++) {
        dropout_args a = ones(in, out);
        const double p = (double)P[i];
        size_t n = 0;
        a.p = P[i];
        run(&a);
        for (size_t e = 0; e < ELEMS; e++) {
            n += out[e] == 0.0f;
            assert_true(out[e] == 0.0f || out[e] == (float)(1.0 / (1.0 - p)));
        }
        assert_true(fabs((double)n - ELEMS * p) <= 5 * sqrt(ELEMS * p * (1 - p)));
    }
}

/* A sample has one mask, however the samples are divided into calls and whatever the input is. */
TEST(test_same_mask)
{
    dropout_args a = ones(in, out);
    run(&a);
    for (size_t first = 0, n = 1; first < SAMPLES; first += n, n = n * 2 + 1) {
        a = ones(in + first * WIDTH, other + first * WIDTH);
        a.samples = n < SAMPLES - first ? n : SAMPLES - first;
        a.first_sample += first;
        run(&a);
    }
    expect_same_bits(other, out, ELEMS, "dropout", "in several calls");
    ops_test_fill(1, 1.0f, other, ELEMS); /* like a gradient */
    a = ones(other, other);
    run(&a);
    for (size_t e = 0; e < ELEMS; e++)
        assert_true((other[e] == 0.0f) == (out[e] == 0.0f));
}

/* The number of elements that one output keeps and the other drops. */
static size_t n_differ(const float *x, const float *y, size_t elems)
{
    size_t n = 0;
    for (size_t e = 0; e < elems; e++)
        n += (x[e] == 0.0f) != (y[e] == 0.0f);
    return n;
}

/* Unrelated masks differ in 2 p (1-p) of the elements. */
static void expect_unlike(const float *x, const float *y, size_t elems, const char *what)
{
    const double p = 2 * 0.25 * 0.75, n = (double)elems;
    const double differ = (double)n_differ(x, y, elems);
    if (fabs(differ - n * p) > 5 * sqrt(n * p * (1 - p)))
        fail_msg("%s: %g of %g elements differ, expected %g", what, differ, n, n * p);
}

TEST(test_other_masks)
{
    dropout_args a = ones(in, out);
    run(&a);
    expect_unlike(out, out + WIDTH, ELEMS - WIDTH, "the next sample");
    expect_unlike(out, out + 1, ELEMS - 1, "the next element");
    expect_unlike(out, out + 4, ELEMS - 4, "the next call of Philox");
    for (int what = 0; what < 4; what++) {
        static const char *const NAMES[] = {"another seed", "another layer", "the next epoch",
                                            "a sample 2^32 later"};
        a = ones(in, other);
        a.seed += what == 0;
        a.layer += what == 1;
        a.first_sample += what == 2 ? 60000 : what == 3 ? (uint64_t)1 << 32 : 0;
        run(&a);
        expect_unlike(out, other, ELEMS, NAMES[what]);
    }
}

int main(void)
{
    return tests_run(fill, ops_test_close);
}
