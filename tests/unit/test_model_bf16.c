/* test_model_bf16.c -- layers whose activations are stored in bf16.
 *
 * To the bit: the reference is the same layers in fp32, on operations that round what they store
 * (rounding_ops_lib.h), with the same weights, which are bf16 numbers. Layer by layer, the fp32
 * arrays then hold the same numbers as the bf16 arrays.
 *
 * Within a bound: gradients are compared with fp32 gradients that are not rounded at all. A
 * gradient g is a smooth function of the relative errors e_k of all stored values, so to first
 * order it is off by sum_k c_k e_k. A rounding error is at most 2^-8 and as good as random in that
 * range: its variance is at most the variance of a uniform e_k in -2^-8 ... 2^-8. So SAMPLES runs
 * with such random e_k show how far a gradient may be off. The 2-norm of a tensor's error must be
 * within 3 times their root mean square. (The error is a sum of many terms. The 2-norm of a vector
 * of n independent normal errors exceeds 3 times its root mean square with a probability below
 * 0.3 % for n = 1, and less for more.) `fast` may also round attention's probabilities (ops.h),
 * which is one more store on a path of more than 40. */
#include "tests/unit/unit_lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit/model_lib.h"
#include "tests/unit/rounding_ops_lib.h"

/* 18 rows: one number for each takes two lines of memory in fp32, and one line in bf16. */
enum { BATCH = 3, SEQ = 6, SAMPLES = 16 };

static rig_config as(const ops *o, dtype type)
{
    return (rig_config){&RIG_SMALL, o, type, .rounded = true, .batch = BATCH, .seq_len = SEQ};
}

/* ---- to the bit ------------------------------------------------------------------------------ */

static void same_values(const rig *got, const rig *want, const char *what, const void *got_array,
                        const void *want_array)
{
    const bool logits = got_array == got->logits;
    const size_t elems = BATCH * SEQ * (logits ? RIG_SMALL.vocab_size : RIG_SMALL.d_model);
    for (size_t i = 0; i < elems; i++) {
        const float x = rig_at(got, got_array, i), y = rig_at(want, want_array, i);
        if (memcmp(&x, &y, sizeof x) != 0)
            fail_msg("%s[%zu]: got %.9g, expected %.9g", what, i, (double)x, (double)y);
    }
}

TEST(test_layer_by_layer)
{
    const rig_config stored = as(ops_cpu_portable(), DTYPE_BF16);
    const rig_config rounded = as(ops_rounding(), DTYPE_F32);
    rig got, want;
    rig_open(&got, &stored);
    rig_open(&want, &rounded);
    const float loss = rig_forward(&got, true, true);
    assert_true(rig_forward(&want, true, true) == loss);
    for (int i = 0; i + 1 < got.m.n_layers; i++)
        same_values(&got, &want, got.m.layers[i].name, got.out[i], want.out[i]);
    rig_backward(&got);
    rig_backward(&want);
    for (int i = got.m.n_layers - 2; i >= 0; i--)
        same_values(&got, &want, got.m.layers[i + 1].name, got.d_out[i], want.d_out[i]);
    rig_expect_same_grads(&got, &want);
    /* not training: the same bits with and without `saved`, and with logits */
    assert_true(rig_forward(&got, false, true) == loss);
    memset(got.logits, 0xff, BATCH * SEQ * RIG_SMALL.vocab_size * sizeof(uint16_t));
    assert_true(rig_forward(&got, false, false) == loss);
    rig_forward(&want, false, false);
    same_values(&got, &want, "logits", got.logits, want.logits);
    rig_close(&got);
    rig_close(&want);
}

/* ---- within a bound -------------------------------------------------------------------------- */

/* The 2-norm of the difference between two gradients of parameter p. */
static double distance(const rig *a, const rig *b, int p)
{
    double sum = 0.0;
    for (size_t i = 0; i < a->m.params[p].elems; i++) {
        const double off = (double)a->views.grads[p][i] - (double)b->views.grads[p][i];
        sum += off * off;
    }
    return sqrt(sum);
}

static void open_and_run(rig *r, const ops *o, dtype type)
{
    const rig_config config = as(o, type);
    rig_run(r, &config);
}

/* rms [n_params] = the root mean square of the samples' distances from `exact`. */
static void measure_rms(const rig *exact, double *rms)
{
    for (int k = 0; k < SAMPLES; k++) {
        rig r;
        open_and_run(&r, ops_perturbing((uint64_t)k + 1), DTYPE_F32);
        for (int p = 0; p < r.m.n_params; p++)
            rms[p] += pow(distance(&r, exact, p), 2.0) / SAMPLES;
        rig_close(&r);
    }
    for (int p = 0; p < exact->m.n_params; p++)
        rms[p] = sqrt(rms[p]);
}

TEST(test_gradients)
{
    const ops *tables[] = {ops_cpu_portable(), ops_cpu_fast()};
    rig exact;
    open_and_run(&exact, ops_cpu_portable(), DTYPE_F32);
    double *rms = calloc((size_t)exact.m.n_params, sizeof *rms);
    measure_rms(&exact, rms);
    for (int t = 0; t < 2; t++) {
        rig r;
        double worst = 0.0;
        open_and_run(&r, tables[t], DTYPE_BF16);
        for (int p = 0; p < r.m.n_params; p++) {
            const double off = distance(&r, &exact, p);
            worst = fmax(worst, off / rms[p]);
            if (!(off <= 3.0 * rms[p]))
                fail_msg("%s: gradient of %s: off by %.3g, allowed %.3g", tables[t]->name,
                         r.m.params[p].name, off, 3.0 * rms[p]);
        }
        print_message("%s: gradients within %.2f of the root mean square, 3 allowed\n",
                      tables[t]->name, worst);
        rig_close(&r);
    }
    free(rms);
    rig_close(&exact);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t lines(size_t bytes)
{
    return size_round_up(bytes, LAYER_ALIGN_BYTES);
}

/* The bytes that are saved follow the lists at the top of gpt2.c and transformer.h. Backward's
 * scratch is d_norm, the sink, and d_qkv or act, the embedding's the order of its tokens. B=3, T=6,
 * C=6, F=14, H=2; rows of 11 logits are 16 apart. */
TEST(test_layer_bytes)
{
    enum { ROWS = BATCH * SEQ, C = 6, F = 14, V = 16, H = 2 };
    model m;
    OK(model_create(&RIG_SMALL, &m));
    for (dtype type = DTYPE_F32; type <= DTYPE_BF16; type++) {
        const size_t x = dtype_bytes(type), norm = 2 * lines(ROWS * 4) + lines(ROWS * C * x);
        const size_t d_norm = lines(ROWS * C * x) + lines(2 * C * 4);
        const layer_bytes expected[] = {
            {.scratch = lines(ROWS * sizeof(uint64_t))},
            {.saved = norm + lines(ROWS * 3 * C * x) + lines(ROWS * H * 4) + lines(ROWS * C * x),
             .scratch = d_norm + lines(ROWS * 3 * C * x)},
            {.saved = norm + lines(ROWS * F * x), .scratch = d_norm + lines(ROWS * F * x)},
            {.saved = norm + lines(ROWS * V * x), .scratch = d_norm}};
        const int layers[] = {0, 1, 2, 5};
        for (size_t i = 0; i < 4; i++) {
            const layer *l = &m.layers[layers[i]];
            assert_int_equal(l->bytes(l, ROWS, type).saved, expected[i].saved);
            assert_int_equal(l->bytes(l, ROWS, type).scratch, expected[i].scratch);
        }
    }
    model_free(&m);
}

/* Rows of logits begin at multiples of 64 elements, or of 8 if that would take over 3 % more. */
TEST(test_rows_of_logits)
{
    static const size_t STRIDES[][2] = {{1, 8},       {65, 72},     {128, 128},     {257, 264},
                                        {1000, 1024}, {1025, 1032}, {50257, 50304}, {50304, 50304}};
    for (size_t i = 0; i < sizeof STRIDES / sizeof *STRIDES; i++) {
        enum { ROWS = 64, C = 6 };
        model_config c = RIG_SMALL;
        c.vocab_size = STRIDES[i][0];
        model m;
        OK(model_create(&c, &m));
        const layer *head = &m.layers[m.n_layers - 1];
        const size_t logits = ROWS * STRIDES[i][1] * sizeof(float);
        assert_int_equal(head->bytes(head, ROWS, DTYPE_F32).saved, ROWS * (2 + C) * 4 + logits);
        m.chunk_rows = 16;
        const size_t d_norm = ROWS * C * 4 + lines(2 * C * 4), norm = ROWS * (2 + C) * 4;
        assert_int_equal(head->bytes(head, ROWS, DTYPE_F32).saved, norm);
        assert_int_equal(head->bytes(head, ROWS, DTYPE_F32).scratch,
                         (norm > d_norm ? norm : d_norm) + logits / 4 + lines(sizeof(double)));
        model_free(&m);
    }
}

int main(void)
{
    return tests_run(NULL, NULL);
}
