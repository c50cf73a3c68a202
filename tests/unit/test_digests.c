/* test_digests.c -- a fault planted on one rank is found in the row where it belongs.
 *
 *   build/fsdp_run -n W build/tests/unit/test_digests          (W = 1: alone)
 *
 * Prints like test_comm. A small model runs two steps of two micro-steps with DDP. Faults are
 * planted in step 1 on the last rank. tests/cli/digests.sh tests whole runs, and files that do not
 * match. */
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "common/observe/digest_file.h"
#include "common/steps/baseline.h"
#include "common/steps/digests.h"
#include "tests/unit/comm_cases_lib.h"

enum { STEPS = 2, ACCUM = 2, BATCH = 2, SEQ_LEN = 4, LAYER = 2 }; /* LAYER: h.0.mlp */

typedef enum fault { NONE, PARAM, PARAMS_SWAPPED, OUTPUT, GRADIENT } fault;

/* A run. Its hooks plant the fault, then call the engine's own hooks. */
typedef struct run {
    model m;
    engine inner, e; /* e: inner with the hooks below */
    runner *runner;
    stream *s;
    digests *d;
    fault fault; /* of the step in progress */
    int param;
} run;

/* Changes float n of an array, or swaps it with float n+1. */
static fsdp_status spoil(run *r, void *array, size_t n, bool swaps)
{
    float x[2], y[2];
    float *at = (float *)array + n;
    TRY(device_download(r->s, x, at, sizeof x));
    TRY(stream_sync(r->s));
    y[0] = swaps ? x[1] : x[0] + 1.0f;
    y[1] = swaps ? x[0] : x[1];
    TRY(device_upload(r->s, at, y, sizeof y));
    return stream_sync(r->s);
}

static fsdp_status pre_forward(void *self, int u)
{
    run *r = self;
    if (r->fault != PARAM && r->fault != PARAMS_SWAPPED)
        return FSDP_OK;
    return spoil(r, r->e.views->params[r->param], 5, r->fault == PARAMS_SWAPPED);
}

static fsdp_status pre_backward(void *self, int u)
{
    run *r = self;
    return r->inner.hooks.pre_backward(r->inner.hooks.self, u);
}

static fsdp_status post_backward(void *self, int u)
{
    run *r = self;
    if (r->fault == GRADIENT)
        TRY(spoil(r, r->e.views->grads[r->param], 5, false));
    return r->inner.hooks.post_backward(r->inner.hooks.self, u);
}

static fsdp_status look(void *self, const struct runner *from, const micro_step *ms,
                        runner_moment when, int i)
{
    run *r = self;
    dtype type;
    size_t elems;
    if (r->fault == OUTPUT && when == AFTER_FORWARD && i == LAYER)
        TRY(spoil(r, (void *)runner_output(from, LAYER, 1, &type, &elems), 5, false));
    return digests_look(r->d, from, ms, when, i);
}

static fsdp_status steps(run *r, comm_fixture *f, digests *d, fault planted)
{
    int32_t tokens[BATCH * SEQ_LEN];
    float *loss;
    TRY(device_alloc_f32(r->s, MEM_OTHER, 2, "loss and norm", &loss));
    for (int step = 0; step < STEPS; step++) {
        r->fault = step == 1 && f->rank == f->world - 1 ? planted : NONE;
        for (int a = 0; a < ACCUM; a++) {
            const uint64_t first = (uint64_t)(((step * ACCUM + a) * f->world + f->rank) * BATCH);
            for (int i = 0; i < BATCH * SEQ_LEN; i++)
                tokens[i] = (int32_t)((7 * first + 3 * (uint64_t)i) % 11);
            const micro_step ms = {.inputs = tokens,
                                   .targets = tokens,
                                   .first_sample = first,
                                   .a = a,
                                   .n_micro = ACCUM,
                                   .training = true,
                                   .loss = loss};
            TRY(runner_forward(r->runner, &ms));
            TRY(runner_backward(r->runner));
            TRY(stream_sync(r->s));
        }
        const step_scalars sc = {
            .optim = {.step = step, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
            .grad_scale = 1.0f};
        TRY(r->e.optimizer_step(r->e.self, &sc, loss + 1));
        TRY(digests_end_step(d));
    }
    device_free(r->s, loss);
    return FSDP_OK;
}

/* Runs the model with digests, which rank 0 writes to `out`. */
static fsdp_status make_run(comm_fixture *f, fault planted, FILE *out)
{
    const model_config config = {.family = "gpt2",
                                 .n_blocks = 1,
                                 .n_head = 2,
                                 .d_model = 8,
                                 .d_ff = 32,
                                 .vocab_size = 11,
                                 .max_seq_len = SEQ_LEN};
    run r = {.s = device_compute_stream(f->dev), .param = 1};
    digests *d;
    TRY(model_create(&config, &r.m));
    const run_context context = {.m = &r.m,
                                 .ops = ops_cpu_portable(),
                                 .dev = f->dev,
                                 .world = f->c,
                                 .shape = {.size = {1, f->world, 1, 1, 1}},
                                 .mode = GRAD_ACC_CANONICAL,
                                 .batch = BATCH,
                                 .seq_len = SEQ_LEN,
                                 .grad_accum = ACCUM,
                                 .seed = 1};
    TRY(baseline_create(&context, &r.inner));
    r.e = r.inner;
    r.e.hooks = (unit_hooks){.self = &r,
                             .pre_forward = pre_forward,
                             .pre_backward = pre_backward,
                             .post_backward = post_backward};
    TRY(digests_create(&context, &r.e, NULL, f->rank == 0 ? out : NULL, &d));
    r.d = d;
    TRY(runner_create(&(runner_config){.run = context,
                                       .layer_unit = r.e.layer_unit,
                                       .n_units = r.e.n_units,
                                       .hooks = r.e.hooks,
                                       .look = look,
                                       .observer = &r,
                                       .views = r.e.views},
                      &r.runner));
    TRY(steps(&r, f, d, planted));
    digests_end(d);
    runner_free(r.runner);
    digests_free(d);
    r.inner.free(r.inner.self);
    model_free(&r.m);
    rewind(out);
    return FSDP_OK;
}

/* Compares a run with a fault to a run without. The comparison must print text that begins with
 * `want`, in which %d stands for the last rank. */
static void expect_found(comm_fixture *f, fault planted, const char *want)
{
    FILE *in[2] = {tmpfile(), tmpfile()};
    static const char *const names[] = {"a run", "another run"};
    char text[256], said[512] = "";
    bool differ = false;
    for (int i = 0; i < 2; i++)
        CHECK_OK(f, make_run(f, i == 0 ? planted : NONE, in[i]));
    if (f->rank == 0) {
        FILE *out = fmemopen(said, sizeof said, "w");
        CHECK_OK(f, digest_bisect(in, names, out, &differ));
        fclose(out);
        snprintf(text, sizeof text, want, f->world - 1);
        CHECK(f, strncmp(said, text, strlen(text)) == 0, "got '%.80s', expected '%.80s'", said,
              text);
        CHECK(f, differ == (planted != NONE), "got %d, expected %d", differ, planted != NONE);
    }
    for (int i = 0; i < 2; i++)
        fclose(in[i]);
}

#define STEP_1 "first difference: step 1, micro-step 0, unit model: "
#define WPE    "transformer.wpe.weight"

static void test_no_fault(comm_fixture *f)
{
    expect_found(f, NONE, "identical digests: ");
}

static void test_params(comm_fixture *f)
{
    for (fault planted = PARAM; planted <= PARAMS_SWAPPED; planted++)
        expect_found(f, planted,
                     f->world == 1 ? STEP_1 "forward copy of " WPE "\n"
                                   : STEP_1 "forward copy of " WPE
                                            ": rank %d's differs from rank 0's\n");
}

static void test_output(comm_fixture *f)
{
    expect_found(f, OUTPUT, STEP_1 "output of h.0.mlp\n");
}

static void test_gradient(comm_fixture *f)
{
    expect_found(f, GRADIENT,
                 "first difference: step 1, micro-step 1, unit model: reduced gradient of " WPE
                 "\n");
}

int main(void)
{
    comm_fixture f;
    if (comm_test_open(&f, &device_cpu, true) != FSDP_OK)
        return 1;
    comm_test_run(&f, "digests.no_fault", test_no_fault);
    comm_test_run(&f, "digests.params", test_params);
    comm_test_run(&f, "digests.output", test_output);
    comm_test_run(&f, "digests.gradient", test_gradient);
    return comm_test_close(&f);
}
