/* judge_models_lib.c -- see judge_models_lib.h. Shape, weights and data of a GPT-2 are drawn. */
#include "tests/grade/judge_models_lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "common/sum/rsum_digits.h"
#include "common/sum/tree_sum.h"
#include "tests/equivalence/twin_lib.h"
#include "tests/grade/asks.h"
#include "tests/grade/exact_lib.h"
#include "tests/grade/jury_lib.h"

enum { SEQ_LEN = 8, MOST_STEPS = 20, MOST_PARAM_ELEMS = 16384 };

/* A run on W ranks, and its model on one device. */
typedef struct drawn_run {
    ask_run ask;
    model m;
    corpus data;
    twin t;
} drawn_run;

/* data_seed: what the worker's corpus is made from. */
static fsdp_status open_run(drawn_run *run, uint64_t data_seed)
{
    const size_t n_head = 1 + jury_below(3);
    run->ask.shape = (model_config){.family = "gpt2",
                                    .n_blocks = 1 + jury_below(3),
                                    .n_head = n_head,
                                    .d_model = n_head * (3 + jury_below(3)),
                                    .vocab_size = 20 + jury_below(20),
                                    .max_seq_len = SEQ_LEN,
                                    .norm_eps = 1e-5f};
    run->ask.shape.d_ff = 4 * run->ask.shape.d_model;
    TRY(model_create(&run->ask.shape, &run->m));
    TRY(corpus_synthetic(data_seed, 4096, run->ask.shape.vocab_size, &run->data));
    TRY(twin_create(&(twin_config){.m = &run->m,
                                   .ops = ops_cpu_portable(),
                                   .data = &run->data,
                                   .batch = 1,
                                   .seq_len = SEQ_LEN,
                                   .mode = GRAD_ACC_CANONICAL,
                                   .seed = run->ask.seed},
                    &run->t));
    FSDP_ASSERT(run->t.param_elems <= MOST_PARAM_ELEMS);
    return FSDP_OK;
}

static void close_run(drawn_run *run)
{
    twin_free(&run->t);
    corpus_close(&run->data);
    model_free(&run->m);
}

static drawn_run draw_run(void)
{
    return (drawn_run){.ask = {.seed = jury_below((size_t)1 << 40),
                               .batch = 1,
                               .accum = jury_between(1, 3),
                               .shard_size = jury_ranks()}};
}

/* 4 ranks as two groups of two; other numbers have no HSDP of groups of several ranks. */
static void shard_by(ask_run *ask, int number)
{
    static const sharding_strategy KINDS[] = {SHARDING_FULL, SHARDING_GRAD_OP, SHARDING_NONE,
                                              SHARDING_HYBRID};
    ask->sharding = KINDS[number % (jury_ranks() == 4 ? 4 : 3)];
    ask->shard_size = ask->sharding == SHARDING_NONE     ? 1
                      : ask->sharding == SHARDING_HYBRID ? 2
                                                         : jury_ranks();
}

static fsdp_status send_run(const ask_run *ask)
{
    for (int r = 0; r < jury_ranks(); r++) {
        wire_put_bytes(jury_ask(r), ask, sizeof *ask);
        TRY(jury_send(r));
    }
    return FSDP_OK;
}

/* ---- 2.5, 3.7 ------------------------------------------------------------------------------ */

/* A rank's loss is the tree over its sequences. */
static fsdp_status check_loss(wire *a, drawn_run *run, int micro, int r)
{
    float got, want[2];
    wire_get_floats(a, &got, 1);
    for (size_t i = 0; i < run->ask.batch; i++)
        TRY(twin_leaf(&run->t, (uint64_t)(micro * jury_ranks() + r) * run->ask.batch + i,
                      &want[i]));
    *want = tree_sum_f32(want, run->ask.batch);
    return expect_f32(WHAT("rank %d: loss of micro-step %d, against one device", r, micro), &got,
                      want, 1);
}

static fsdp_status check_forward(drawn_run *run)
{
    TRY(send_run(&run->ask));
    for (int r = 0; r < jury_ranks(); r++) {
        wire *a;
        TRY(jury_answer(r, &a));
        TRY(check_loss(a, run, 0, r));
        TRY(wire_ended(a));
    }
    return FSDP_OK;
}

fsdp_status judge_2_5(void)
{
    for (int i = 0; i < 4; i++) {
        drawn_run run = draw_run();
        run.ask.batch = 1 + jury_below(2);
        run.ask.wrap = i % 2 ? WRAP_BLOCK : WRAP_SUB_BLOCK;
        TRY(open_run(&run, run.ask.seed));
        TRY(check_forward(&run));
        close_run(&run);
    }
    return FSDP_OK;
}

/* The elements of a gradient that a rank holds; times counts each. */
static fsdp_status check_held(wire *a, const drawn_run *run, int r, const float *grad, float *times)
{
    for (long long p; (p = wire_get(a)) >= 0;) {
        const size_t i = (size_t)wire_get(a);
        float got;
        wire_get_floats(a, &got, 1);
        const bool is_stored = p < run->m.n_params && run->m.params[p].tied_to == NOT_TIED;
        TRY(EXPECT(is_stored && !a->is_torn && i < run->m.params[p].elems, "",
                   "rank %d: gradient of parameter %lld, element %zu, expected one of the model", r,
                   p, i));
        const size_t at = run->t.offset[p] + i;
        times[at] += 1.0f;
        TRY(expect_f32(WHAT("rank %d: gradient of %s, element %zu", r, run->m.params[p].name, i),
                       &got, &grad[at], 1));
    }
    return wire_ended(a);
}

static fsdp_status check_backward(drawn_run *run)
{
    static float grad[MOST_PARAM_ELEMS], times[MOST_PARAM_ELEMS], want[MOST_PARAM_ELEMS];
    const size_t leaves = (size_t)(run->ask.accum * jury_ranks());
    float loss;
    TRY(send_run(&run->ask));
    TRY(twin_gradient(&run->t, 0, leaves, 1.0f / (float)(leaves * SEQ_LEN), grad, &loss));
    memset(times, 0, sizeof times);
    for (int r = 0; r < jury_ranks(); r++) {
        wire *a;
        TRY(jury_answer(r, &a));
        for (int k = 0; k < run->ask.accum; k++)
            TRY(check_loss(a, run, k, r));
        TRY(check_held(a, run, r, grad, times));
    }
    for (size_t i = 0; i < run->t.param_elems; i++)
        want[i] = (float)(jury_ranks() / run->ask.shard_size);
    return expect_f32("how many ranks hold the gradient of an element", times, want,
                      run->t.param_elems);
}

fsdp_status judge_3_7(void)
{
    for (int i = 0; i < 4; i++) {
        drawn_run run = draw_run();
        run.ask.trains = true;
        run.ask.wrap = i % 2 ? WRAP_BLOCK : WRAP_SUB_BLOCK;
        shard_by(&run.ask, i % 3); /* HSDP is task 3.8 */
        TRY(open_run(&run, run.ask.seed));
        TRY(check_backward(&run));
        close_run(&run);
    }
    return FSDP_OK;
}

/* ---- 4.6, 5.6 ------------------------------------------------------------------------------ */

/* What all ranks answer: the same losses and norms, and rank 0 the parameters. */
typedef struct trained {
    float loss[MOST_STEPS], norm[MOST_STEPS], params[MOST_PARAM_ELEMS];
} trained;

static fsdp_status receive_training(const drawn_run *run, trained *out)
{
    const size_t steps = (size_t)run->ask.steps;
    for (int r = 0; r < jury_ranks(); r++) {
        wire *a;
        float loss[MOST_STEPS], norm[MOST_STEPS];
        TRY(jury_answer(r, &a));
        wire_get_floats(a, loss, steps);
        wire_get_floats(a, norm, steps);
        if (r == 0) {
            memcpy(out->loss, loss, sizeof loss);
            memcpy(out->norm, norm, sizeof norm);
            wire_get_floats(a, out->params, run->t.param_elems);
        }
        TRY(wire_ended(a));
        TRY(expect_f32(WHAT("rank %d: loss, against rank 0's, of step", r), loss, out->loss,
                       steps));
        TRY(expect_f32(WHAT("rank %d: norm, against rank 0's, of step", r), norm, out->norm,
                       steps));
    }
    return FSDP_OK;
}

/* The gradient of step `step` on the twin's weights, and what a trainer prints for it. */
static fsdp_status twin_step(drawn_run *run, int step, float *grad, float *loss, float *norm)
{
    const size_t leaves = (size_t)(run->ask.accum * jury_ranks()) * run->ask.batch;
    const float scale = (float)(1.0 / (double)(leaves * SEQ_LEN));
    rsum sum = {0};
    TRY(twin_gradient(&run->t, (uint64_t)step * leaves, leaves, scale, grad, loss));
    rsum_add_squares(&sum, grad, run->t.param_elems);
    *norm = (float)sqrt(rsum_value(&sum));
    *loss *= scale;
    return FSDP_OK;
}

static float clip_coef(const ask_run *ask, float norm)
{
    const float limit = ask->clip_norm / (norm + 1e-6f);
    return ask->clip_norm > 0.0f && limit < 1.0f ? limit : 1.0f;
}

static fsdp_status check_sgd(drawn_run *run)
{
    static float grad[MOST_PARAM_ELEMS];
    static trained got;
    const ask_run *ask = &run->ask;
    TRY(send_run(ask));
    TRY(receive_training(run, &got));
    for (int step = 0; step < ask->steps; step++) {
        float loss, norm;
        TRY(twin_step(run, step, grad, &loss, &norm));
        TRY(expect_f32(WHAT("loss of step %d, against one device", step), &got.loss[step], &loss,
                       1));
        TRY(expect_f32(WHAT("norm of step %d, against one device", step), &got.norm[step], &norm,
                       1));
        for (size_t i = 0; i < run->t.param_elems; i++)
            run->t.params[i] -= ask->lr * (grad[i] * clip_coef(ask, norm));
    }
    return expect_f32("weights after the last step, against one device", got.params, run->t.params,
                      run->t.param_elems);
}

/* AdamW's state on one device, and how far a correct program's may be from it. */
typedef struct adamw_state {
    float m[MOST_PARAM_ELEMS], v[MOST_PARAM_ELEMS];
    double m_off[MOST_PARAM_ELEMS], v_off[MOST_PARAM_ELEMS];
} adamw_state;

/* One step from weights that are known. The learner's m and v differ from ours by at most m_off and
 * v_off, which adds to the bounds of adamw_double: what m_off and v_off become of the update, twice
 * because this is a first-order bound, and to the next step's the rounding of ours. */
static fsdp_status check_adamw_elem(const adamw_args *a, size_t i, adamw_state *s, size_t at,
                                    double coef, float got)
{
    const adamw_exact e = adamw_double(a, i, coef);
    const double den = sqrt(e.v) / (double)a->sqrt_bias2 + (double)a->eps;
    const double of_m = (double)a->step_size / den * (double)a->beta1 * s->m_off[at];
    const double upd = (double)a->step_size * fabs(e.m) / den;
    const double of_v = e.v > 0.0 ? upd * 0.5 * (double)a->beta2 * s->v_off[at] / e.v : 0.0;
    TRY(expect_within("weight after a step of AdamW", i, got, e.param,
                      e.param_tol + 2.0 * (of_m + of_v)));
    s->m_off[at] = (double)a->beta1 * s->m_off[at] + e.m_tol + 0x1p-24 * fabs(e.m);
    s->v_off[at] = (double)a->beta2 * s->v_off[at] + e.v_tol + 0x1p-24 * e.v;
    s->m[at] = (float)e.m;
    s->v[at] = (float)e.v;
    return FSDP_OK;
}

/* One step's gradient, and what it is multiplied by. */
typedef struct step_grad {
    float values[MOST_PARAM_ELEMS];
    double coef;
} step_grad;

static fsdp_status check_adamw_params(const drawn_run *run, int step, const step_grad *g,
                                      adamw_state *s, const float *got)
{
    for (int p = 0; p < run->m.n_params; p++) {
        const size_t at = run->t.offset[p];
        adamw_args a = {
            .param = run->t.params + at, .m = s->m + at, .v = s->v + at, .grad = g->values + at};
        const optim_config config =
            adamw_config((double)run->ask.lr, run->m.params[p].decay ? 0.1 : 0.0, step);
        adamw_scalars(&a, &config);
        for (size_t i = 0; i < run->m.params[p].elems && run->m.params[p].tied_to == NOT_TIED; i++)
            TRY(check_adamw_elem(&a, i, s, at + i, g->coef, got[at + i]));
    }
    return FSDP_OK;
}

/* Runs of 1, 2, ... steps: the weights after each are the next step's start, so that loss and norm
 * have the same bits again, and an update is compared by itself. */
static fsdp_status check_adamw(drawn_run *run)
{
    static step_grad grad;
    static adamw_state s;
    static trained got;
    memset(&s, 0, sizeof s);
    for (int step = 0; step < 3; step++) {
        float loss, norm;
        run->ask.steps = step + 1;
        TRY(send_run(&run->ask));
        TRY(receive_training(run, &got));
        TRY(twin_step(run, step, grad.values, &loss, &norm));
        TRY(expect_f32(WHAT("loss of step %d, against one device", step), &got.loss[step], &loss,
                       1));
        TRY(expect_f32(WHAT("norm of step %d, against one device", step), &got.norm[step], &norm,
                       1));
        grad.coef = (double)clip_coef(&run->ask, norm);
        TRY(check_adamw_params(run, step, &grad, &s, got.params));
        memcpy(run->t.params, got.params, run->t.param_elems * sizeof *got.params);
    }
    return FSDP_OK;
}

static drawn_run draw_training(optimizer_kind optimizer, int steps)
{
    drawn_run run = draw_run();
    run.ask.batch = 1 + jury_below(2);
    run.ask.wrap = WRAP_BLOCK;
    run.ask.optimizer = optimizer;
    run.ask.steps = steps;
    run.ask.lr = optimizer == OPTIMIZER_SGD ? 0.25f : 0.01f;
    run.ask.clip_norm = 0.75f + jury_float();
    return run;
}

fsdp_status judge_4_6(void)
{
    for (int i = 0; i < 4; i++) {
        const bool is_sgd = i % 2 == 0;
        drawn_run run = draw_training(is_sgd ? OPTIMIZER_SGD : OPTIMIZER_ADAMW, MOST_STEPS);
        shard_by(&run.ask, i);
        TRY(open_run(&run, 0)); /* run_training's corpus */
        TRY(is_sgd ? check_sgd(&run) : check_adamw(&run));
        close_run(&run);
    }
    return FSDP_OK;
}

fsdp_status judge_5_6(void)
{
    for (int i = 0; i < 6; i++) {
        drawn_run run = draw_training(OPTIMIZER_SGD, 3);
        run.ask.prefetch.mode = (prefetch_mode)jury_between(PREFETCH_BACKWARD, PREFETCH_BOTH);
        run.ask.prefetch.limit = jury_between(1, 3);
        TRY(open_run(&run, 0));
        TRY(check_sgd(&run));
        close_run(&run);
    }
    return FSDP_OK;
}
