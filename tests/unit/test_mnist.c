/* test_mnist.c -- the net for MNIST: names and initial values, dropout, repeated forwards. The bits
 * of committed losses and weights test the net's arithmetic (tests/reference). */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/device.h"
#include "common/model/family.h"
#include "common/model/init.h"
#include "common/model/runner.h"
#include "tests/unit/unit_lib.h"
#include "trainer/tools/generate.h"

enum { N_PARAMS = 8, N_LAYERS = 4, PIXELS = 784, CLASSES = 10, MOST = 8 };

/* A net with its parameters, their gradients and a micro-batch. */
typedef struct net {
    model m;
    device *dev;
    model_views views;
    float pixels[MOST * PIXELS];
    uint16_t rounded[MOST * PIXELS];
    int32_t targets[MOST];
    float loss, logits[MOST * CLASSES]; /* of the last run; logits only if it evaluates */
} net;

/* The settings in which the compared runs differ. */
typedef struct call {
    const ops *o;
    size_t batch, first; /* images of the net */
    grad_acc_mode mode;
    bool evaluates, again; /* again: the first three layers run forward twice */
    dtype type;
    uint64_t seed, first_sample;
} call;

static model_config config(void)
{
    model_config c;
    OK(model_preset("mnist", NULL, &c));
    return c;
}

static void net_open(net *n, dtype type)
{
    const model_config c = config();
    OK(model_create(&c, &n->m));
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &n->dev));
    OK(model_views_init(&n->m, &n->views));
    for (int p = 0; p < n->m.n_params; p++) {
        const param_spec *spec = &n->m.params[p];
        float *x = malloc(spec->elems * sizeof *x);
        param_init_range(spec, p, 7, 0, spec->elems, x);
        for (size_t i = 0; i < spec->elems && type == DTYPE_BF16; i++)
            ((uint16_t *)x)[i] = bf16_from_f32(x[i]);
        n->views.params[p] = x;
        n->views.grads[p] = malloc(spec->elems * sizeof(float));
        memset(n->views.grads[p], 0xff, spec->elems * sizeof(float)); /* NaN */
    }
    const param_spec pixels = {.elems = MOST * PIXELS, .init = INIT_NORMAL, .init_scale = 1.0f};
    param_init_range(&pixels, 99, 7, 0, pixels.elems, n->pixels);
    for (size_t i = 0; i < MOST * PIXELS; i++)
        n->rounded[i] = bf16_from_f32(n->pixels[i]);
    for (int32_t i = 0; i < MOST; i++)
        n->targets[i] = i * 7 % CLASSES;
}

static void net_close(net *n)
{
    for (int p = 0; p < n->m.n_params; p++) {
        free(n->views.params[p]);
        free(n->views.grads[p]);
    }
    model_views_free(&n->views);
    device_close(n->dev);
    model_free(&n->m);
}

static fsdp_status run_again(runner *r, int first, int last)
{
    for (int i = first; i <= last; i++)
        TRY(runner_layer_again(r, i, i < last));
    return FSDP_OK;
}

/* Run one micro-step. Gradients are summed over the images. */
static fsdp_status net_run(net *n, const call *c)
{
    static const int UNITS[N_LAYERS] = {1, 2, 3, 0};
    static const int SEGMENTS[N_LAYERS] = {0, 1, 2, NO_SEGMENT};
    const void *inputs = c->type == DTYPE_BF16 ? (const void *)(n->rounded + c->first * PIXELS)
                                               : (const void *)(n->pixels + c->first * PIXELS);
    runner *r;
    OK(runner_create(&(runner_config){.run = {.m = &n->m,
                                              .ops = c->o,
                                              .dev = n->dev,
                                              .mode = c->mode,
                                              .batch = c->batch,
                                              .seq_len = 1,
                                              .grad_accum = 1,
                                              .seed = c->seed,
                                              .param_dtype = c->type},
                                      .layer_unit = UNITS,
                                      .n_units = N_LAYERS,
                                      .segment = c->again ? SEGMENTS : NULL,
                                      .run_again = run_again,
                                      .views = &n->views},
                     &r));
    memset(n->logits, 0xff, sizeof n->logits);
    fsdp_status status = runner_forward(r, &(micro_step){.inputs = inputs,
                                                         .targets = n->targets + c->first,
                                                         .first_sample = c->first_sample,
                                                         .n_micro = 1,
                                                         .training = !c->evaluates,
                                                         .logits = n->logits,
                                                         .loss = &n->loss});
    if (status == FSDP_OK && !c->evaluates)
        status = runner_backward(r);
    runner_free(r);
    return status;
}

static fsdp_status no_dropout(stream *s, const dropout_args *a)
{
    if (a->out != a->in)
        return device_copy(s, a->out, a->in, a->samples * a->width * sizeof(float));
    return FSDP_OK;
}

static fsdp_status refused_dropout(stream *s, const dropout_args *a)
{
    (void)s, (void)a;
    return fsdp_error(FSDP_EINVAL, "do not call it", "dropout was called");
}

/* ---- names and initial values ---------------------------------------------------------------- */

/* The names of the tutorial's state_dict(). */
TEST(test_names)
{
    static const struct {
        const char *name;
        size_t dims[PARAM_MAX_DIMS], fan_in;
        int block;
    } PARAMS[N_PARAMS] = {
        {"conv1.weight", {32, 1, 3, 3}, 9, 0},    {"conv1.bias", {32}, 9, 0},
        {"conv2.weight", {64, 32, 3, 3}, 288, 1}, {"conv2.bias", {64}, 288, 1},
        {"fc1.weight", {128, 9216}, 9216, 2},     {"fc1.bias", {128}, 9216, 2},
        {"fc2.weight", {10, 128}, 128, -1},       {"fc2.bias", {10}, 128, -1},
    };
    static net n;
    net_open(&n, DTYPE_F32);
    assert_int_equal(n.m.n_params, N_PARAMS);
    assert_int_equal(n.m.n_param_elems, 1199882);
    assert_int_equal(n.m.input.width, PIXELS);
    for (int p = 0; p < N_PARAMS; p++) {
        const param_spec *spec = &n.m.params[p];
        const float bound = 1.0f / sqrtf((float)PARAMS[p].fan_in), *x = n.views.params[p];
        float most = 0.0f;
        assert_string_equal(spec->name, PARAMS[p].name);
        assert_memory_equal(spec->dims, PARAMS[p].dims, sizeof spec->dims);
        assert_int_equal(n.m.layers[p / 2].block, PARAMS[p].block);
        for (size_t i = 0; i < spec->elems; i++)
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        assert_true(most <= bound && most > bound * (spec->elems > 10 ? 0.9f : 0.5f));
    }
    net_close(&n);
}

TEST(test_sizes_refused)
{
    model_config c = config();
    model m;
    c.n_blocks = 5;
    REFUSED(FSDP_EINVAL, model_create(&c, &m), "mnist: n-layer is 5, expected 3");
    c = config();
    c.d_model = 5000;
    REFUSED(FSDP_EINVAL, model_create(&c, &m),
            "mnist: d-model is 5000 channels, expected at most 4096");
    c = config();
    OK(model_create(&c, &m));
    generator *g;
    REFUSED(FSDP_EINVAL, generator_create(&m, NULL, ops_cpu_fast(), NULL, 1, &g),
            "reads images, expected a model of texts");
    model_free(&m);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void same_gradients(const net *a, const net *b)
{
    for (int p = 0; p < N_PARAMS; p++)
        if (!b->m.params[p].frozen)
            assert_memory_equal(a->views.grads[p], b->views.grads[p],
                                a->m.params[p].elems * sizeof(float));
}

/* Whether the logits of image i of a and of image j of b have the same bits. */
static bool same_logits(const net *a, size_t i, const net *b, size_t j)
{
    return memcmp(a->logits + i * CLASSES, b->logits + j * CLASSES, CLASSES * sizeof(float)) == 0;
}

static net one, two;

static void both_open(dtype type)
{
    net_open(&one, type);
    net_open(&two, type);
}

static void both_close(void)
{
    net_close(&one);
    net_close(&two);
}

/* A repeated forward drops the same elements. Neither it nor the number of samples in a call
 * changes a bit. */
TEST(test_calls)
{
    const ops *o = ops_cpu_portable();
    both_open(DTYPE_F32);
    call c = {.o = o, .batch = MOST, .mode = GRAD_ACC_CANONICAL, .seed = 5, .first_sample = 60};
    OK(net_run(&one, &c));
    c.again = true;
    OK(net_run(&two, &c));
    assert_true(one.loss == two.loss);
    same_gradients(&one, &two);
    c.mode = GRAD_ACC_FAST; /* all samples in one call */
    OK(net_run(&two, &c));
    for (size_t i = 0; i < MOST; i++)
        assert_true(same_logits(&one, i, &two, i));
    c.batch = 3; /* images 4 to 6, as on another rank */
    c.first = 4;
    c.first_sample = 64;
    OK(net_run(&two, &c));
    for (size_t i = 0; i < 3; i++)
        assert_true(same_logits(&one, 4 + i, &two, i));
    both_close();
}

/* Dropout happens only in training, and depends on the seed and the sample. */
/* Of four images: the largest logit is at the label, it is elsewhere, it is the first of two
 * equals, and there is no label. */
TEST(test_accuracy)
{
    enum { IMAGES = 4 };
    static const int32_t labels[] = {9, 9, 3, NO_TARGET};
    static const int best[] = {9, 8, 3, 0};
    float logits[IMAGES][CLASSES] = {{0}};
    uint16_t rounded[IMAGES][CLASSES];
    model m;
    const model_config c = config();
    OK(model_create(&c, &m));
    for (int j = 0; j < IMAGES; j++)
        logits[j][best[j]] = 2;
    logits[2][4] = 2;
    for (int j = 0; j < IMAGES; j++)
        for (int v = 0; v < CLASSES; v++)
            rounded[j][v] = bf16_from_f32(logits[j][v]);
    assert_string_equal(m.family->metric, "accuracy");
    assert_int_equal(m.family->count_correct(&m, logits, DTYPE_F32, labels, IMAGES), 2);
    assert_int_equal(m.family->count_correct(&m, rounded, DTYPE_BF16, labels, IMAGES), 2);
    model_free(&m);
}

TEST(test_dropout)
{
    ops o = *ops_cpu_portable();
    both_open(DTYPE_F32);
    call c = {.o = &o, .batch = 2, .seed = 5, .first_sample = 60};
    OK(net_run(&one, &c));
    c.seed = 6;
    OK(net_run(&two, &c));
    assert_false(same_logits(&one, 0, &two, 0));
    c.seed = 5;
    c.first_sample = 60060;
    OK(net_run(&two, &c));
    assert_false(same_logits(&one, 0, &two, 0));
    o.dropout = no_dropout;
    OK(net_run(&one, &c));
    o.dropout = refused_dropout;
    assert_int_equal(net_run(&two, &c), FSDP_EINVAL);
    c.evaluates = true;
    OK(net_run(&two, &c));
    for (size_t i = 0; i < 2; i++)
        assert_true(same_logits(&one, i, &two, i));
    both_close();
}

/* Frozen parameters get no gradient, and the other gradients do not change. */
TEST(test_freeze)
{
    static const char *const CASES[] = {"conv1.*", "conv*", "conv1.*,conv2.weight", "*.bias",
                                        "conv?.*,fc1.*"};
    const call c = {.o = ops_cpu_portable(), .batch = 2, .mode = GRAD_ACC_CANONICAL};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        both_open(DTYPE_F32);
        OK(net_run(&one, &c));
        OK(model_freeze(&two.m, CASES[i]));
        for (int p = 0; p < N_PARAMS; p++)
            if (two.m.params[p].frozen) {
                free(two.views.grads[p]);
                two.views.grads[p] = NULL;
            }
        OK(net_run(&two, &c));
        same_gradients(&one, &two);
        both_close();
    }
}

/* The loss in bf16 is near the loss in fp32: logits are of size 1, and each of four layers rounds
 * by 2^-9 of that. */
TEST(test_bf16)
{
    net_open(&one, DTYPE_F32);
    net_open(&two, DTYPE_BF16);
    call c = {.o = ops_cpu_fast(), .batch = MOST, .seed = 5};
    OK(net_run(&one, &c));
    c.type = DTYPE_BF16;
    OK(net_run(&two, &c));
    assert_true(fabsf(one.loss - two.loss) < MOST * 4.0f / 512);
    for (int p = 0; p < N_PARAMS; p++) {
        const float *a = one.views.grads[p], *b = two.views.grads[p];
        double ab = 0, aa = 0, bb = 0;
        for (size_t i = 0; i < one.m.params[p].elems; i++) {
            ab += (double)a[i] * (double)b[i];
            aa += (double)a[i] * (double)a[i];
            bb += (double)b[i] * (double)b[i];
        }
        assert_true(ab / sqrt(aa * bb) > 0.99);
    }
    both_close();
}

/* The check before a run refuses a table that lacks any operation of the net, and accepts a whole
 * table. */
TEST(test_ops_checked)
{
    static net n;
    net_open(&n, DTYPE_F32);
    ops lacks = *ops_cpu_portable();
    stream *s = device_compute_stream(n.dev);
    OK(model_check_ops(&n.m, ops_cpu_fast(), s));
    OK(model_check_ops(&n.m, &lacks, s));
    lacks.dropout = refused_dropout;
    REFUSED(FSDP_EINVAL, model_check_ops(&n.m, &lacks, s), "dropout was called");
    net_close(&n);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
