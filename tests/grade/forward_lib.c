/* forward_lib.c -- task 2.5, which puts labs 1 and 2 together: a whole GPT-2 forward pass on shards
 * against the unsharded twin. */
#include <stdlib.h>
#include <string.h>
#include "common/base/philox.h"
#include "common/model/family.h"
#include "common/model/init.h"
#include "common/model/runner.h"
#include "lab2_forward/fsdp_setup.h"
#include "tests/grade/forward_lib.h"

enum { BATCH = 2, SEQ_LEN = 16 };
static const uint64_t SEED = 1337;

typedef struct forward_case {
    grade *g;
    model m;
    int32_t tokens[BATCH * SEQ_LEN], targets[BATCH * SEQ_LEN]; /* different on every rank */
} forward_case;

static fsdp_status make_case(grade *g, forward_case *c)
{
    c->g = g;
    model_config config;
    TRY(model_preset("gpt2", "tiny", &config));
    TRY(model_create(&config, &c->m));
    for (int i = 0; i < BATCH * SEQ_LEN; i++) {
        c->tokens[i] = (int32_t)(philox_u32(5, (uint64_t)g->rank, (uint64_t)i) % config.vocab_size);
        c->targets[i] =
            (int32_t)(philox_u32(6, (uint64_t)g->rank, (uint64_t)i) % config.vocab_size);
    }
    return FSDP_OK;
}

static run_context context_of(const forward_case *c)
{
    return (run_context){.m = &c->m,
                         .ops = c->g->ops,
                         .dev = c->g->dev,
                         .world = c->g->comm,
                         .mode = GRAD_ACC_CANONICAL,
                         .batch = BATCH,
                         .seq_len = SEQ_LEN,
                         .grad_accum = 1,
                         .seed = SEED};
}

/* evaluate -- the loss of this rank's sequences with given views and hooks (no
 * hooks: resident parameters). */
static fsdp_status evaluate(forward_case *c, const model_views *views, unit_hooks hooks,
                            const int *layer_unit, int n_units, float *host_loss)
{
    runner *r = NULL;
    float *loss = NULL;
    runner_config rc = {.run = context_of(c),
                        .layer_unit = layer_unit,
                        .n_units = n_units,
                        .hooks = hooks,
                        .views = views};
    TRY(runner_create(&rc, &r));
    fsdp_status st = device_alloc_f32(c->g->compute, MEM_OTHER, 1, "loss", &loss);
    if (st == FSDP_OK)
        st = runner_forward(
            r,
            &(micro_step){.inputs = c->tokens, .targets = c->targets, .n_micro = 1, .loss = loss});
    if (st == FSDP_OK)
        st = grade_read(c->g->compute, loss, sizeof *loss, host_loss);
    device_free(c->g->compute, loss);
    runner_free(r);
    return st;
}

static fsdp_status write_initial(stream *s, const param_spec *spec, int p, void *param)
{
    float *host = calloc(spec->elems, sizeof *host);
    FSDP_ASSERT(host);
    param_init_range(spec, p, SEED, 0, spec->elems, host);
    fsdp_status status = grade_write(s, param, host, spec->elems * sizeof *host);
    free(host);
    return status;
}

/* The twin on one device: all parameters resident, no learner's code. */
static fsdp_status twin_loss(forward_case *c, float *host_loss)
{
    stream *s = c->g->compute;
    const model *m = &c->m;
    model_views v;
    TRY(model_views_init(m, &v));
    int *layer_unit = calloc((size_t)m->n_layers, sizeof *layer_unit);
    FSDP_ASSERT(layer_unit != NULL);
    fsdp_status st = FSDP_OK;
    for (int p = 0; st == FSDP_OK && p < m->n_params; p++) {
        if (m->params[p].tied_to != NOT_TIED) {
            v.params[p] = v.params[m->params[p].tied_to];
            continue;
        }
        st = device_alloc(s, MEM_OTHER, m->params[p].elems * sizeof(float), "twin", &v.params[p]);
        if (st == FSDP_OK)
            st = write_initial(s, &m->params[p], p, v.params[p]);
    }
    if (st == FSDP_OK)
        st = evaluate(c, &v, (unit_hooks){0}, layer_unit, 1, host_loss);
    for (int p = 0; p < m->n_params; p++)
        if (m->params[p].tied_to == NOT_TIED)
            device_free(s, v.params[p]);
    free(layer_unit);
    model_views_free(&v);
    return st;
}

static fsdp_status sharded_loss(forward_case *c, fsdp *f, float *host_loss)
{
    return evaluate(c, &f->views, fsdp_forward_hooks(f), f->layer_unit, f->n_units, host_loss);
}

/* The learner's hooks with the host in step with the compute stream, for a peak that does not
 * depend on how far the host runs ahead. */
static fsdp_status pre_in_step(void *self, int u)
{
    return forward_pre_hook(self, u);
}

static fsdp_status post_in_step(void *self, int u)
{
    TRY(forward_post_hook(self, u));
    return stream_sync(((fsdp *)self)->compute);
}

static fsdp_status loss_in_step(forward_case *c, fsdp *f, float *host_loss)
{
    unit_hooks hooks = {.self = f, .pre_forward = pre_in_step, .post_forward = post_in_step};
    return evaluate(c, &f->views, hooks, f->layer_unit, f->n_units, host_loss);
}

/* Every parameter stored once, W shards together hold the padded model and nothing else. */
static fsdp_status check_storage(const grade *g, const fsdp *f)
{
    size_t stored = 0, shard_bytes = 0;
    for (int u = 0; u < f->n_units; u++) {
        shard_bytes += f->units[u].layout.shard_elems * sizeof(float);
        for (int i = 0; i < f->units[u].layout.n_slots; i++)
            stored += f->units[u].layout.slots[i].elems;
    }
    TRY(expect_int("elements in all units (2.37 times: nested units; more: tied weight twice)",
                   (long long)stored, (long long)f->run.m->n_param_elems));
    ledger_figures l = ledger_read(device_ledger(g->dev));
    return expect_int("bytes of parameter shards", (long long)l.live_bytes[MEM_PARAMS_SHARD],
                      (long long)shard_bytes);
}

/* The peak is the root plus the largest other unit, whatever W. */
static fsdp_status check_peak(const grade *g, const fsdp *f)
{
    size_t largest = 0;
    for (int u = 1; u < f->n_units; u++)
        if (f->units[u].layout.padded_elems > largest)
            largest = f->units[u].layout.padded_elems;
    size_t want = (f->units[UNIT_ROOT].layout.padded_elems + largest) * sizeof(float);
    ledger_figures l = ledger_read(device_ledger(g->dev));
    return expect_int("peak of gathered bytes: root + largest unit",
                      (long long)l.peak_bytes[MEM_PARAMS_FULL], (long long)want);
}

typedef struct disturb_args {
    float *x;
    size_t elems;
} disturb_args;

/* Not the same everywhere: a constant added to all columns is taken out again by
 * the next LayerNorm. */
static fsdp_status disturb(void *args, int n_threads)
{
    (void)n_threads;
    const disturb_args *a = args;
    for (size_t i = 0; i < a->elems; i++)
        a->x[i] += i % 2 ? 0.5f : -0.25f;
    return FSDP_OK;
}

static fsdp_status disturb_shard(stream *s, float *shard, size_t elems)
{
    return grade_launch(s, disturb, &(disturb_args){shard, elems}, sizeof(disturb_args),
                        (mem_access){shard, elems * sizeof *shard, true});
}

/* The last rank changes its shard of unit u; every rank's loss must change. */
static fsdp_status check_dependence(forward_case *c, fsdp *f, int u, float *loss)
{
    fsdp_unit *unit = &f->units[u];
    float before = *loss;
    if (c->g->rank == c->g->world_size - 1)
        TRY(disturb_shard(f->compute, unit->shard, unit->layout.shard_elems));
    TRY(reshard(f, UNIT_ROOT)); /* as at the end of a step */
    TRY(expect_state("state of the root after reshard", f->units[UNIT_ROOT].state, UNIT_SHARDED));
    TRY(sharded_loss(c, f, loss));
    return EXPECT(
        memcmp(loss, &before, sizeof before) != 0,
        "does every shard reach full, at rank * shard_elems, and at each new gather?",
        "a forward pass after the last rank changed its shard of %s: got the loss of before, "
        "%.9g, expected another",
        unit->name, (double)before);
}

/* What is left gathered: the units that stay after forward (stays), or none. */
static fsdp_status expect_left(forward_case *c, const fsdp *f, const char *when, bool stays)
{
    char what[96];
    size_t bytes = 0;
    for (int u = 0; u < f->n_units; u++) {
        const bool stay = stays && f->units[u].stays_after_forward;
        bytes += stay ? f->units[u].layout.padded_elems * sizeof(float) : 0;
        snprintf(what, sizeof what, "state of %s after %s", f->units[u].name, when);
        TRY(expect_state(what, f->units[u].state, stay ? UNIT_GATHERED : UNIT_SHARDED));
    }
    for (int p = 0; p < f->run.m->n_params && !stays; p++) {
        snprintf(what, sizeof what, "views.params[%d] after %s", p, when);
        TRY(expect_view(what, f->views.params[p], NULL, 0, sizeof(float)));
    }
    snprintf(what, sizeof what, "bytes of gathered parameters after %s", when);
    return expect_int(what, (long long)grade_live_bytes(c->g, f->comm_stream, MEM_PARAMS_FULL),
                      (long long)bytes);
}

/* An evaluation between two steps, when `keeps` under a strategy where all units stay after
 * forward: it finds the weights of now, and leaves what the next step can begin with. */
static fsdp_status check_between_steps(forward_case *c, fsdp *f, bool keeps, float want)
{
    float got[2];
    const float wanted[2] = {want, want};
    for (int u = 0; u < f->n_units; u++)
        f->units[u].stays_after_forward = keeps || u == UNIT_ROOT;
    TRY(reshard_all(f));
    for (int batch = 0; batch < 2; batch++)
        TRY(sharded_loss(c, f, &got[batch]));
    TRY(expect_left(c, f, "an evaluation", true));
    TRY(reshard_all(f));
    TRY(expect_f32("loss of an evaluation between steps, of batch", got, wanted, 2));
    return expect_left(c, f, "an evaluation, when the next step begins", false);
}

static fsdp_status forward_checks(forward_case *c, fsdp *f)
{
    float want = 0, got = 0, again = 0;
    fsdp_error_info why;
    fsdp_status st = check_storage(c->g, f);
    TRY(st);
    TRY(twin_loss(c, &want));
    ledger_reset_peaks(device_ledger(c->g->dev));
    TRY(loss_in_step(c, f, &got));
    st = first_failure(
        st, expect_f32("loss (unsharded twin on the same sequences)", &got, &want, 1), &why);
    (void)stream_sync(f->compute);
    st = first_failure(st, check_peak(c->g, f), &why);
    TRY(sharded_loss(c, f, &again));
    st = first_failure(st, expect_f32("loss of a second pass", &again, &want, 1), &why);
    if (st != FSDP_OK)
        fsdp_error_set(&why);
    st = comm_agree(c->g->comm, st);
    for (int part = 0; part < 4 && st == FSDP_OK; part++) {
        st = part == 0   ? check_dependence(c, f, f->n_units - 1, &again)
             : part == 1 ? check_between_steps(c, f, false, again)
             : part == 2 ? check_dependence(c, f, UNIT_ROOT, &again)
                         : check_between_steps(c, f, true, again);
        st = comm_agree(c->g->comm, st);
    }
    return st;
}

fsdp_status task_2_5(grade *g)
{
    static forward_case c; /* 1 kB, and layers point into it */
    fsdp f = {0};
    mesh grid;
    TRY(make_case(g, &c));
    TRY(mesh_open(g->comm, g->world_size, &grid));
    fsdp_status st = FSDP_OK;
    const wrap_policy policies[] = {WRAP_BLOCK, WRAP_SUB_BLOCK, WRAP_MODEL};
    for (int i = 0; st == FSDP_OK && i < 3; i++) {
        fsdp_config config = {.run = context_of(&c), .mesh = &grid, .wrap = policies[i]};
        st = fsdp_create(&config, &f);
        if (st == FSDP_OK)
            st = forward_checks(&c, &f);
        fsdp_error_info why = *fsdp_error_get();
        fsdp_free(&f);
        fsdp_error_set(&why);
    }
    mesh_close(&grid);
    model_free(&c.m);
    return st;
}
