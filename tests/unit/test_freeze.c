/* test_freeze.c -- which parameters --freeze names, and what backward omits for them: layers before
 * the border, their hooks, and products that are not needed. */
#include <stdlib.h>
#include <string.h>
#include "common/model/runner.h"
#include "tests/unit/model_lib.h"
#include "tests/unit/unit_lib.h"

static const model_config TWO_BLOCKS = {.family = "gpt2",
                                        .n_blocks = 2,
                                        .n_head = 2,
                                        .d_model = 6,
                                        .d_ff = 14,
                                        .vocab_size = 11,
                                        .max_seq_len = 8,
                                        .norm_eps = 1e-5f};
enum { N_LAYERS = 6, SEQ = 5 };

static int frozen_by(const char *patterns, int *border)
{
    model m;
    int n = 0;
    OK(model_create(&TWO_BLOCKS, &m));
    OK(model_freeze(&m, patterns));
    for (int p = 0; p < m.n_params; p++)
        n += m.params[p].frozen;
    *border = model_border(&m);
    model_free(&m);
    return n;
}

TEST(test_names)
{
    static const struct {
        const char *patterns;
        int n, border; /* the tied weight counts twice; layers: embed, attn, mlp, attn, mlp, head */
    } cases[] = {
        {NULL, 0, 0},
        {"transformer.wte.weight", 2, 0},
        {"lm_head.weight", 2, 0},
        {"*.wpe.*", 1, 0},
        {"*.w?e.weight", 3, 1},
        {"*.w?e.weight,transformer.h.0.attn.*", 7, 1},
        {"*.w?e.weight,transformer.h.0.attn.*,*.ln_1.*", 11, 2},
        {"transformer.[wh]*", 27, 5},
        {"*.bias", 13, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int border;
        assert_int_equal(frozen_by(cases[i].patterns, &border), cases[i].n);
        assert_int_equal(border, cases[i].border);
    }
}

TEST(test_bad_names)
{
    static const char *const cases[][2] = {
        {"", "got '', expected patterns with commas"},
        {"*.bias,", "got '', expected patterns with commas"},
        {"*.bias,wte", "got 'wte', expected patterns"},
        {"transformer.H.*", "got 'transformer.H.*', expected patterns"},
        {"*", "got '*', expected patterns"},
        {"*.h.*,*.ln_f.*,*.wpe.*,lm_*", "at least one that is left to train"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model m;
        OK(model_create(&TWO_BLOCKS, &m));
        assert_int_equal(model_freeze(&m, cases[i][0]), FSDP_EINVAL);
        assert_says(cases[i][1]);
        model_free(&m);
    }
}

/* ---- a pass over the model, with hooks and operations that are counted ----------------------- */

static char trace[128];
static int n_matmuls, n_norms;

static fsdp_status note(char what, int unit)
{
    snprintf(trace + strlen(trace), sizeof trace - strlen(trace), " %c%d", what, unit);
    return FSDP_OK;
}

static fsdp_status pre_backward(void *self, int unit)
{
    return note('b', unit);
}

static fsdp_status post_backward(void *self, int unit)
{
    return note('B', unit);
}

static fsdp_status count_matmul(stream *s, const matmul_args *a)
{
    n_matmuls++;
    return ops_cpu_portable()->matmul(s, a);
}

static fsdp_status count_norm(stream *s, const layernorm_backward_args *a)
{
    n_norms++;
    return ops_cpu_portable()->layernorm_backward(s, a);
}

/* Runs forward and backward with these parameters frozen. Leaves the other gradients in the rig. */
static void one_pass(rig *r, const char *patterns)
{
    static const int UNITS[N_LAYERS] = {0, 1, 1, 2, 2, 0};
    ops counted = *ops_cpu_portable();
    counted.matmul = count_matmul;
    counted.layernorm_backward = count_norm;
    rig_open(r, &(rig_config){.model = &TWO_BLOCKS, .ops = &counted, .batch = 1, .seq_len = SEQ});
    OK(model_freeze(&r->m, patterns));
    model_views views;
    OK(model_views_init(&r->m, &views));
    for (int p = 0; p < r->m.n_params; p++) {
        views.params[p] = r->views.params[p];
        views.grads[p] = r->m.params[p].frozen ? NULL : r->views.grads[p];
    }
    runner *run;
    OK(runner_create(
        &(runner_config){.run = {.m = &r->m,
                                 .ops = &counted,
                                 .dev = r->dev,
                                 .batch = 1,
                                 .seq_len = SEQ,
                                 .grad_accum = 1},
                         .layer_unit = UNITS,
                         .n_units = 3,
                         .hooks = {.pre_backward = pre_backward, .post_backward = post_backward},
                         .views = &views},
        &run));
    OK(runner_forward(run, &(micro_step){.inputs = r->tokens,
                                         .targets = r->targets,
                                         .n_micro = 1,
                                         .training = true,
                                         .loss = r->loss}));
    n_matmuls = n_norms = 0;
    trace[0] = '\0';
    OK(runner_backward(run));
    runner_free(run);
    model_views_free(&views);
}

/* A linear layer has two products in backward; the head is a linear layer too. The root (unit 0)
 * has the first and the last layer. */
TEST(test_border)
{
    static const struct {
        const char *patterns, *hooks;
        int matmuls, norms;
    } cases[] = {
        {"transformer.wpe.weight", " b0 b2 B2 b1 B1 B0", 18, 5},
        {"*.mlp.*", " b0 b2 B2 b1 B1 B0", 14, 5},
        {"*.w?e.weight", " b0 B0 b2 B2 b1 B1", 17, 5},
        {"*.w?e.weight,*.h.0.attn*,*.h.0.ln_1*", " b0 B0 b2 B2 b1 B1", 13, 4},
        {"*.w?e.weight,*.h.0.*", " b0 B0 b2 B2", 9, 3},
        {"*.w?e.weight,*.h.0.*,*.h.1.ln_1*", " b0 B0 b2 B2", 8, 2},
        {"*.w?e.weight,*.h.0.*,*.h.1.ln_1*,*.c_attn*", " b0 B0 b2 B2", 6, 2},
        {"*.w?e.weight,*.h.0.*,*.h.1.attn*,*.ln_?.*,*.c_fc*", " b0 B0 b2 B2", 2, 1},
        {"*.w?e.weight,*.h.*", " b0 B0", 1, 1},
    };
    rig all, r;
    one_pass(&all, NULL);
    assert_string_equal(trace, " b0 b2 B2 b1 B1 B0");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_message("%s\n", cases[i].patterns);
        one_pass(&r, cases[i].patterns);
        assert_string_equal(trace, cases[i].hooks);
        assert_int_equal(n_matmuls, cases[i].matmuls);
        assert_int_equal(n_norms, cases[i].norms);
        rig_expect_same_grads(&r, &all);
        rig_close(&r);
    }
    rig_close(&all);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
