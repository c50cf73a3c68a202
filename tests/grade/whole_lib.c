/* whole_lib.c -- task 3.7: labs 1 to 3 together, a whole GPT-2 against the unsharded twin.
 *
 *   create -> twice: (micro-steps, finish, compare gradients, SGD, compare weights)
 *   -> one more forward -> free */
#include "tests/grade/whole_lib.h"
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "common/model/runner.h"
#include "lab2_forward/fsdp_setup.h"
#include "tests/equivalence/twin_lib.h"
#include "tests/grade/handmade_lib.h"
#include "tests/unit/target_lib.h"

/* A whole GPT-2 on W ranks: 3 micro-steps of one sequence a rank, then one step of SGD, then one
 * more forward, which must see the new weights. */
enum { SEQ_LEN = 8, SEED = 7, ACCUM = 3 };

typedef struct whole {
    fixture *fx; /* compute, verdict and copies only */
    device *dev;
    comm *comm;
    mesh grid;
    model m;
    corpus data;
    fsdp f;
    reducer r;
    runner *run;
    twin t;
    float *loss;      /* device [1] */
    float *twin_grad; /* [param_elems] */
} whole;

static const model_config SMALL = {.family = "gpt2",
                                   .n_blocks = 3,
                                   .n_head = 3,
                                   .d_model = 15,
                                   .d_ff = 60,
                                   .vocab_size = 37,
                                   .max_seq_len = SEQ_LEN,
                                   .norm_eps = 1e-5f};

static fsdp_status whole_create(grade *g, sharding_strategy sharding, int fsdp_size, whole *w)
{
    TRY(grade_device_open(
        g, &(device_config){.n_threads = 1, .debug_fill = true, .async_compute = true}, &w->dev));
    const comm_config cc = target_comm(8);
    TRY(comm_open(w->dev, &cc, &w->comm));
    TRY(model_create(&SMALL, &w->m));
    TRY(corpus_synthetic(SEED, 4096, SMALL.vocab_size, &w->data));
    run_context run = {.m = &w->m,
                       .ops = g->ops,
                       .dev = w->dev,
                       .world = w->comm,
                       .mode = GRAD_ACC_CANONICAL,
                       .batch = 1,
                       .seq_len = SEQ_LEN,
                       .grad_accum = ACCUM,
                       .seed = SEED};
    TRY(mesh_open(w->comm, sharding_shard_size(sharding, g->world_size, fsdp_size), &w->grid));
    TRY(fsdp_create(&(fsdp_config){.run = run, .mesh = &w->grid, .wrap = WRAP_BLOCK}, &w->f));
    TRY(reducer_create(&w->f, sharding, &w->r));
    TRY(device_alloc_f32(w->f.compute, MEM_OTHER, 1, "loss", &w->loss));
    TRY(runner_create(&(runner_config){.run = run,
                                       .layer_unit = w->f.layer_unit,
                                       .n_units = w->f.n_units,
                                       .hooks = fsdp_backward_hooks(&w->r),
                                       .views = &w->f.views},
                      &w->run));
    TRY(twin_create(&(twin_config){.m = &w->m,
                                   /* of equal bits; on the CPU, if it has them */
                                   .ops = target_is_portable() ? ops_cpu_portable() : g->ops,
                                   .data = &w->data,
                                   .batch = 1,
                                   .seq_len = SEQ_LEN,
                                   .mode = GRAD_ACC_CANONICAL,
                                   .seed = SEED},
                    &w->t));
    w->twin_grad = calloc(w->t.param_elems, sizeof *w->twin_grad);
    return FSDP_OK;
}

static fsdp_status whole_free(whole *w)
{
    runner_free(w->run);
    device_free(w->f.compute, w->loss);
    reducer_free(&w->r);
    fsdp_free(&w->f);
    twin_free(&w->t);
    free(w->twin_grad);
    corpus_close(&w->data);
    model_free(&w->m);
    TRY(stream_sync(device_compute_stream(w->dev)));
    TRY(expect_int("device blocks still live at the end",
                   (long long)ledger_read(device_ledger(w->dev)).live_blocks, 0));
    mesh_close(&w->grid);
    comm_close(w->comm);
    device_close(w->dev);
    return FSDP_OK;
}

/* What this rank holds of an array of the model, against the twin's whole array, parameter by
 * parameter; gaps and padding hold zeros. */
static void expect_shards(whole *w, const char *what, float *const *held, const float *twin_array)
{
    for (int u = 0; u < w->f.n_units; u++) {
        const flat_layout *l = &w->f.units[u].layout;
        size_t begin = (size_t)w->grid.shape.shard_rank * l->shard_elems, elems = l->shard_elems;
        float *want = calloc(elems, sizeof *want);
        char text[192];
        for (int k = 0; k < l->n_slots; k++) {
            const flat_slot *slot = &l->slots[k];
            size_t lo = slot->offset > begin ? slot->offset : begin,
                   end = slot->offset + slot->elems;
            size_t hi = end < begin + elems ? end : begin + elems;
            if (lo >= hi)
                continue;
            memcpy(want + lo - begin, twin_array + w->t.offset[slot->param] + lo - slot->offset,
                   (hi - lo) * sizeof *want);
            snprintf(text, sizeof text, "%s of unit %s, %s from element %zu on, against one device",
                     what, w->f.units[u].name, w->m.params[slot->param].name, lo - slot->offset);
            expect_values(w->fx, text, held[u] ? held[u] + (lo - begin) : NULL, want + lo - begin,
                          hi - lo);
        }
        snprintf(text, sizeof text, "%s of unit %s, against one device", what, w->f.units[u].name);
        expect_values(w->fx, text, held[u], want, elems);
        free(want);
    }
}

/* One micro-step: this rank's sequence, and the loss sum of all ranks' sequences so far. */
static fsdp_status whole_micro_step(whole *w, int a, bool training)
{
    int32_t tokens[SEQ_LEN], targets[SEQ_LEN];
    uint64_t k = (uint64_t)(a * comm_size(w->comm) + comm_rank(w->comm));
    sample_read(&w->data, k, SEQ_LEN, tokens, targets);
    TRY(runner_forward(w->run, &(micro_step){.inputs = tokens,
                                             .targets = targets,
                                             .a = a,
                                             .n_micro = ACCUM,
                                             .training = training,
                                             .loss = w->loss}));
    if (training)
        TRY(runner_backward(w->run));
    TRY(stream_sync(w->f.compute));
    float loss;
    TRY(twin_leaf(&w->t, k, &loss));
    char what[64];
    snprintf(what, sizeof what, "loss of micro-step %d, rank %d", a, comm_rank(w->comm));
    expect_values(w->fx, what, w->loss, &loss, 1);
    return FSDP_OK;
}

/* The ranks agree on what was noted so far, so that the first difference on any rank is reported,
 * and not its consequence on another rank. */
static fsdp_status settle(whole *w)
{
    if (w->fx->verdict != FSDP_OK)
        fsdp_error_set(&w->fx->info);
    return comm_agree(w->comm, w->fx->verdict);
}

/* One step of SGD without decay: ops.h's, whose bits are the same everywhere. */
static fsdp_status twin_sgd(twin *t, const float *grad, float lr)
{
    for (size_t i = 0; i < t->param_elems; i++)
        t->params[i] -= lr * grad[i];
    if (device_memory_is_host(t->dev))
        return FSDP_OK;
    return grade_write(device_compute_stream(t->dev), t->on_device.params, t->params,
                       t->param_elems * sizeof *t->params);
}

static fsdp_status whole_step(whole *w)
{
    const size_t leaves = (size_t)(ACCUM * comm_size(w->comm));
    const float scale = 1.0f / (float)(leaves * SEQ_LEN), lr = 0.5f;
    float *held[8], loss;
    FSDP_ASSERT(w->f.n_units <= 8);
    for (int step = 0; step < 2; step++) { /* the second shows what the first left behind */
        TRY(zero_grad(&w->r));
        for (int a = 0; a < ACCUM; a++)
            TRY(whole_micro_step(w, a, true));
        TRY(grads_finish(&w->r, scale));
        TRY(stream_sync(w->f.compute));
        TRY(twin_gradient(&w->t, 0, leaves, scale, w->twin_grad, &loss));
        for (int u = 0; u < w->f.n_units; u++)
            held[u] = w->r.grads[u].shard_grad;
        expect_shards(w, "gradient", held, w->twin_grad);
        TRY(settle(w));
        TRY(sgd_step(&w->r, lr));
        TRY(stream_sync(w->f.compute));
        TRY(twin_sgd(&w->t, w->twin_grad, lr));
        for (int u = 0; u < w->f.n_units; u++)
            held[u] = w->f.units[u].shard;
        expect_shards(w, "weights after one step of SGD", held, w->t.params);
        TRY(settle(w));
    }
    TRY(zero_grad(&w->r));
    return whole_micro_step(w, 0, false);
}

static fsdp_status whole_run(grade *g, sharding_strategy sharding, int fsdp_size)
{
    fixture notes = {0};
    static whole w_[1]; /* must not move; threads of a failed run may still look at it */
    whole *w = memset(w_, 0, sizeof w_);
    w->fx = &notes;
    fsdp_status st = whole_create(g, sharding, fsdp_size, w);
    notes.compute = w->f.compute;
    if (st == FSDP_OK)
        st = whole_step(w);
    fix_copies_free(&notes);
    if (st == FSDP_OK && notes.verdict != FSDP_OK) {
        st = notes.verdict;
        fsdp_error_set(&notes.info);
    }
    st = comm_agree(g->comm, st);
    if (st == FSDP_OK)
        st = whole_free(w);
    else if (st == FSDP_ETODO) { /* another task follows: the group opened first is closed last */
        mesh_close(&w->grid);
        comm_close(w->comm);
    }
    return st;
}

fsdp_status task_3_7(grade *g)
{
    TRY(whole_run(g, SHARDING_FULL, 0));
    TRY(whole_run(g, SHARDING_GRAD_OP, 0));
    return whole_run(g, SHARDING_NONE, 0);
}

fsdp_status whole_hybrid(grade *g, int fsdp_size)
{
    return whole_run(g, SHARDING_HYBRID, fsdp_size);
}
