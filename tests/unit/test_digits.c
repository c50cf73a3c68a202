/* test_digits.c -- the drawn digits are hard enough: a linear model, trained on them until its loss
 * falls no more, stays below 95% on others, far from the 98% that the net for MNIST reaches. So a
 * net that trains badly shows. The model is 784 x 10 weights and 10 biases; plain gradient descent
 * over batches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/data/data.h"
#include "tests/unit/unit_lib.h"

enum { N_TRAIN = 6000, N_TEST = 2000, BATCH = 20, EPOCHS = 12, COLS = IMAGE_PIXELS + 1 };
static const uint64_t FIRST_TEST = (uint64_t)1 << 40;

/* Images with a last column of ones, and their labels; the caller frees both. */
static float *draw(uint64_t begin, size_t n, int32_t **labels)
{
    corpus c;
    float *x = calloc(n * COLS, sizeof *x);
    *labels = calloc(n, sizeof **labels);
    assert_non_null(x);
    assert_non_null(*labels);
    assert_int_equal(corpus_digits(begin, n, NO_SHUFFLE, &c), FSDP_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(sample_read(&c, i, 1, x + i * COLS, *labels + i), FSDP_OK);
        x[i * COLS + IMAGE_PIXELS] = 1.0f;
    }
    corpus_close(&c);
    return x;
}

static void find_logits(float (*w)[COLS], const float *x, float *logits)
{
    for (int d = 0; d < IMAGE_CLASSES; d++) {
        float sums[16] = {0}; /* side by side, so that the compiler uses vectors */
        for (int i = 0; i + 16 <= COLS; i += 16)
            for (int j = 0; j < 16; j++)
                sums[j] += w[d][i + j] * x[i + j];
        logits[d] = w[d][COLS - 1] * x[COLS - 1];
        for (int j = 0; j < 16; j++)
            logits[d] += sums[j];
    }
}

static int largest(const float *logits)
{
    int best = 0;
    for (int d = 1; d < IMAGE_CLASSES; d++)
        best = logits[d] > logits[best] ? d : best;
    return best;
}

/* One step: w -= rate * the mean gradient of a batch's cross-entropy. Returns the loss's sum. */
static double descend(float (*w)[COLS], const float *x, const int32_t *labels, float rate)
{
    float p[BATCH][IMAGE_CLASSES];
    double loss = 0;
    for (int b = 0; b < BATCH; b++) {
        find_logits(w, x + b * COLS, p[b]);
        const float most = p[b][largest(p[b])];
        float sum = 0;
        for (int d = 0; d < IMAGE_CLASSES; d++)
            sum += p[b][d] = expf(p[b][d] - most);
        loss -= log((double)(p[b][labels[b]] / sum) + 1e-30);
        for (int d = 0; d < IMAGE_CLASSES; d++)
            p[b][d] = p[b][d] / sum - (float)(d == labels[b]);
    }
    for (int b = 0; b < BATCH; b++)
        for (int d = 0; d < IMAGE_CLASSES; d++)
            for (int i = 0; i < COLS; i++)
                w[d][i] -= rate / BATCH * p[b][d] * x[b * COLS + i];
    return loss;
}

static void test_linear_model(void **state)
{
    (void)state;
    int32_t *labels, *test_labels;
    float *x = draw(0, N_TRAIN, &labels), *test = draw(FIRST_TEST, N_TEST, &test_labels);
    float(*w)[COLS] = calloc(IMAGE_CLASSES, sizeof *w);
    assert_non_null(w);
    double first = 0, last = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        last = 0;
        for (int i = 0; i < N_TRAIN; i += BATCH)
            last += descend(w, x + (size_t)i * COLS, labels + i, 0.02f);
        first = epoch == 0 ? last : first;
    }
    int correct = 0;
    for (int i = 0; i < N_TEST; i++) {
        float logits[IMAGE_CLASSES];
        find_logits(w, test + (size_t)i * COLS, logits);
        correct += largest(logits) == test_labels[i];
    }
    const double accuracy = (double)correct / N_TEST;
    print_message("linear model: loss %.3f -> %.3f, accuracy %.1f%%\n", first / N_TRAIN,
                  last / N_TRAIN, 100 * accuracy);
    assert_true(last < first / 2); /* it has learned what it can */
    assert_true(accuracy > 0.6 && accuracy < 0.95);
    free(w);
    free(x);
    free(test);
    free(labels);
    free(test_labels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_linear_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
