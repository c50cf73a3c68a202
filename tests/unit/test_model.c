/* test_model.c -- GPT-2's lists, its initial values, and which gradients the layers write. The bits
 * of committed losses and weights test the layers' arithmetic (tests/reference), and
 * test_ops_double.c and test_ops_values.c the operations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/philox.h"
#include "common/model/init.h"
#include "tests/unit/model_lib.h"
#include "tests/unit/unit_lib.h"

enum { BATCH = 3, SEQ = 5 };

/* ---- lists ---------------------------------------------------------------------------------- */

TEST(test_presets)
{
    /* The published sizes are transformers' num_parameters. The others are computed by hand: a
     * block has 12 C^2 + 13 C, and the rest has (V + positions) C + 2 C.
     *     tiny   2 * (12*4096 + 832) + (256 + 256 + 2) * 64 = 132,864 */
    static const struct {
        const char *name;
        size_t elems;
        int layers;
    } rows[] = {{"tiny", 132864, 6},     {"small", 4870144, 14},  {"124m", 124439808, 26},
                {"355m", 354823168, 50}, {"774m", 774030080, 74}, {"1558m", 1557611200, 98},
                {"xl-2l", 63532800, 6}};
    char names[128] = "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        model_config c;
        model m;
        OK(model_preset("gpt2", rows[i].name, &c));
        OK(model_create(&c, &m));
        assert_int_equal(m.n_param_elems, rows[i].elems);
        assert_int_equal(m.n_layers, rows[i].layers);
        assert_int_equal(m.n_blocks * 2 + 2, rows[i].layers);
        assert_string_equal(m.config.family, "gpt2");
        snprintf(names + strlen(names), 32, "%s%s", i ? "|" : "", rows[i].name);
        model_free(&m);
        model_free(&m); /* a zeroed struct is accepted */
    }
    model_config c;
    assert_int_equal(model_preset("gpt2", "huge", &c), FSDP_EINVAL);
    assert_non_null(strstr(fsdp_error_get()->what, "'huge'"));
    assert_non_null(strstr(fsdp_error_get()->hint, names));
}

typedef struct listed {
    const char *name, *layer;
    size_t rows, cols; /* cols 0: a vector */
} listed;

static void expect_param(const param_spec *spec, const listed *row, bool tied)
{
    assert_string_equal(spec->name, row->name);
    assert_int_equal(spec->n_dims, row->cols ? 2 : 1);
    assert_int_equal(spec->dims[0], row->rows);
    assert_int_equal(spec->dims[1], row->cols);
    assert_int_equal(spec->elems, row->rows * (row->cols ? row->cols : 1));
    assert_int_equal(spec->decay, row->cols != 0);
    assert_false(spec->frozen);
    assert_int_equal(spec->tied_to, tied ? 0 : NOT_TIED);
    assert_int_equal(spec->next_use > 0, strcmp(spec->name, "transformer.wte.weight") == 0);
}

TEST(test_lists)
{
    static const listed rows[] = {
        {"transformer.wte.weight", "embed", 11, 6},
        {"transformer.wpe.weight", "embed", 7, 6},
        {"transformer.h.0.ln_1.weight", "h.0.attn", 6, 0},
        {"transformer.h.0.ln_1.bias", "h.0.attn", 6, 0},
        {"transformer.h.0.attn.c_attn.weight", "h.0.attn", 6, 18},
        {"transformer.h.0.attn.c_attn.bias", "h.0.attn", 18, 0},
        {"transformer.h.0.attn.c_proj.weight", "h.0.attn", 6, 6},
        {"transformer.h.0.attn.c_proj.bias", "h.0.attn", 6, 0},
        {"transformer.h.0.ln_2.weight", "h.0.mlp", 6, 0},
        {"transformer.h.0.ln_2.bias", "h.0.mlp", 6, 0},
        {"transformer.h.0.mlp.c_fc.weight", "h.0.mlp", 6, 14},
        {"transformer.h.0.mlp.c_fc.bias", "h.0.mlp", 14, 0},
        {"transformer.h.0.mlp.c_proj.weight", "h.0.mlp", 14, 6},
        {"transformer.h.0.mlp.c_proj.bias", "h.0.mlp", 6, 0},
        {"transformer.ln_f.weight", "head", 6, 0},
        {"transformer.ln_f.bias", "head", 6, 0},
        {"lm_head.weight", "head", 11, 6},
    };
    model_config config = RIG_SMALL;
    config.n_blocks = 1;
    model m;
    OK(model_create(&config, &m));
    assert_int_equal(m.n_params, sizeof rows / sizeof *rows);
    size_t elems = 0;
    int p = 0;
    for (int i = 0; i < m.n_layers; i++) {
        const layer *l = &m.layers[i];
        const bool ends = i == 0 || i == 3;
        assert_int_equal(l->block, ends ? -1 : 0);
        assert_int_equal(l->first_param, p);
        assert_ptr_equal(l->model, &m);
        for (int k = 0; k < l->n_params; k++, p++) {
            const bool tied = p == 16;
            assert_string_equal(l->name, rows[p].layer);
            expect_param(&m.params[p], &rows[p], tied);
            elems += tied ? 0 : m.params[p].elems;
        }
    }
    assert_int_equal(p, m.n_params);
    assert_int_equal(m.n_param_elems, elems);
    assert_true(m.config.norm_eps == 1e-5f); /* 0 means the default */
    model_free(&m);
}

TEST(test_config_refused)
{
    static const struct {
        size_t n_blocks, n_head, d_model, d_ff, vocab, positions;
        const char *says;
    } rows[] = {
        {2, 4, 6, 0, 11, 7, "n-head 4 does not divide d-model 6"},
        {0, 2, 6, 0, 11, 7, "n-layer is 0"},
        {2, 0, 6, 0, 11, 7, "n-head is 0"},
        {2, 2, 0, 0, 11, 7, "d-model is 0"},
        {2, 2, 6, 0, 0, 7, "vocab-size is 0"},
        {2, 2, 6, 0, 11, 0, "n-positions is 0"},
        {100001, 2, 6, 0, 11, 7, "n-layer is 100001, expected at most 100000"},
        {2, 2, 6, 0, (size_t)1 << 31, 7, "vocab-size is 2147483648"},
        {2, 2, (size_t)1 << 31, 0, 11, 7, "do not fit a size_t"}, /* C * 3C bytes */
        {2, 2, 6, SIZE_MAX / 6, 11, 7, "do not fit a size_t"},    /* bytes of c_fc */
        {1, 2, 2, 0, 11, SIZE_MAX / 8, "do not fit a size_t"},    /* only the sum is too large */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const model_config c = {.family = "gpt2",
                                .n_blocks = rows[i].n_blocks,
                                .n_head = rows[i].n_head,
                                .d_model = rows[i].d_model,
                                .d_ff = rows[i].d_ff,
                                .vocab_size = rows[i].vocab,
                                .max_seq_len = rows[i].positions};
        model m;
        assert_int_equal(model_create(&c, &m), FSDP_EINVAL);
        assert_says(rows[i].says);
        assert_null(m.layers);
        assert_null(m.params);
    }
}

TEST(test_views)
{
    model m;
    model_views v;
    OK(model_create(&RIG_SMALL, &m));
    OK(model_views_init(&m, &v));
    for (int p = 0; p < m.n_params; p++) {
        assert_null(v.params[p]);
        assert_null(v.grads[p]);
    }
    model_views_free(&v);
    assert_null(v.params);
    model_views_free(&v);
    model_free(&m);
}

/* ---- initial values ------------------------------------------------------------------------- */

static void tiny(model *m)
{
    model_config c;
    OK(model_preset("gpt2", "tiny", &c));
    OK(model_create(&c, m));
}

TEST(test_init_ranges)
{
    model m;
    tiny(&m);
    for (int p = 0; p < m.n_params; p++) {
        const size_t n = m.params[p].elems;
        float *whole = malloc(n * sizeof *whole), *parts = malloc(n * sizeof *parts);
        param_init_range(&m.params[p], p, 42, 0, n, whole);
        for (size_t begin = 0, k = 0; begin < n; k++) { /* parts of 0, 1, 2, ... elements */
            const size_t elems = k < n - begin ? k : n - begin;
            param_init_range(&m.params[p], p, 42, begin, elems, parts + begin);
            begin += elems;
        }
        assert_memory_equal(whole, parts, n * sizeof *whole);
        free(whole);
        free(parts);
    }
    model_free(&m);
}

TEST(test_init_values)
{
    model m;
    tiny(&m);
    for (int p = 0; p < m.n_params; p++) {
        const param_spec *spec = &m.params[p];
        const size_t n = spec->elems;
        float *x = malloc(n * sizeof *x), *z = malloc(n * sizeof *z);
        param_init_range(spec, p, 42, 0, n, x);
        const bool is_gain = strstr(spec->name, "ln_") && strstr(spec->name, "weight");
        const bool is_bias = strstr(spec->name, "bias") != NULL;
        const bool is_proj = strstr(spec->name, "c_proj.weight") != NULL;
        /* two blocks: 0.02 / sqrt(4) = 0.01; the random stream is the parameter's number */
        philox_normal_fill(42, (uint64_t)p, 0, n, is_proj ? 0.01f : 0.02f, z);
        for (size_t i = 0; i < n; i++)
            assert_true(x[i] == (is_gain ? 1.0f : is_bias ? 0.0f : z[i]));
        free(x);
        free(z);
    }
    model_free(&m);
}

/* ---- forward and backward -------------------------------------------------------------------- */

/* Run a step of a rig with portable operations. */
static void run_small(rig *r)
{
    rig_run(r, &(rig_config){
                   .model = &RIG_SMALL, .ops = ops_cpu_portable(), .batch = BATCH, .seq_len = SEQ});
}

/* A copy of all gradients in one array; the caller frees it. */
static float *grads_copy(const rig *r)
{
    float *all = malloc(r->m.n_param_elems * sizeof *all), *to = all;
    for (int p = 0; p + 1 < r->m.n_params; p++) { /* the last one is wte again */
        memcpy(to, r->views.grads[p], r->m.params[p].elems * sizeof *to);
        to += r->m.params[p].elems;
    }
    return all;
}

/* Gradients are added to the present values, and a frozen parameter (NULL) changes no other
 * gradient. Portable operations give the same bits. If wte is frozen and wpe is not, another
 * operation adds up the sequences, in the same order. Backward still runs if everything is frozen,
 * because a layer in front may want d_in. */
TEST(test_frozen)
{
    rig r;
    run_small(&r);
    const int tied = r.m.n_params - 1;
    float *full = grads_copy(&r);
    for (int frozen = 0; frozen < tied; frozen++) {
        float *view = r.views.grads[frozen], *want = full;
        rig_zero_grads(&r);
        memset(view, 0x7f, r.m.params[frozen].elems * sizeof *view);
        r.views.grads[frozen] = NULL;
        r.views.grads[tied] = frozen == 0 ? NULL : r.views.grads[tied];
        rig_forward(&r, true, true);
        rig_backward(&r);
        r.views.grads[frozen] = view;
        r.views.grads[tied] = r.views.grads[0];
        for (int p = 0; p < tied; want += r.m.params[p++].elems)
            if (p != frozen)
                assert_memory_equal(r.views.grads[p], want, r.m.params[p].elems * sizeof *want);
        for (size_t i = 0; i < r.m.params[frozen].elems; i++)
            assert_memory_equal(&view[i], "\x7f\x7f\x7f\x7f", 4);
    }
    float **views = r.views.grads;
    r.views.grads = calloc((size_t)r.m.n_params, sizeof *views);
    rig_forward(&r, true, true);
    rig_backward(&r);
    free(r.views.grads);
    r.views.grads = views;
    free(full);
    rig_close(&r);
}

TEST(test_gradients_are_added)
{
    rig r;
    run_small(&r);
    float *once = grads_copy(&r), *want = once;
    rig_backward(&r); /* `saved` is still valid: backward does not change it */
    for (int p = 0; p + 1 < r.m.n_params; want += r.m.params[p++].elems) {
        float largest = 0.0f;
        for (size_t i = 0; i < r.m.params[p].elems; i++)
            largest = fmaxf(largest, fabsf(want[i]));
        for (size_t i = 0; i < r.m.params[p].elems; i++) /* at most 30 more additions: 2 * 30 u */
            assert_true(fabsf(r.views.grads[p][i] - 2.0f * want[i]) <= 4e-6f * largest);
    }
    free(once);
    rig_close(&r);
}

TEST(test_too_long)
{
    rig r;
    /* exactly max_seq_len */
    rig_open(&r, &(rig_config){
                     .model = &RIG_SMALL, .ops = ops_cpu_portable(), .batch = 1, .seq_len = 7});
    rig_forward(&r, true, true);
    const layer *l = &r.m.layers[0];
    const layer_io io = {.batch = 1, .seq_len = 8, .in = r.tokens, .params = r.views.params};
    assert_int_equal(l->forward(l, r.o, r.s, &io), FSDP_EINVAL);
    assert_non_null(strstr(fsdp_error_get()->what, "8 tokens, expected at most 7"));
    rig_close(&r);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
