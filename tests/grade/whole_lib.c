/* whole_lib.c -- see whole_lib.h. Task 3.7:
 *
 *   create -> twice: (evaluation, micro-steps, finish, compare gradients, SGD, compare weights)
 *   -> one more forward -> free */
#include "tests/grade/whole_lib.h"
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "lab2_forward/fsdp_setup.h"
#include "tests/equivalence/run_lib.h"
#include "tests/unit/target_lib.h"

enum { SEED = 7, ACCUM = 3, SEQ_LEN = 8 };

static const model_config SMALL = GPT2_CONFIG(3, 3, 15, 37, SEQ_LEN);

/* Compare what this rank holds of an array of the model with the twin's whole array, parameter by
 * parameter. Gaps and padding must hold zeros. */
static void expect_shards(whole *w, const char *what, float *const *held, const float *twin_array)
{
    for (int u = 0; u < w->f.n_units; u++) {
        const flat_layout *l = &w->f.units[u].layout;
        size_t begin = (size_t)w->grid.shape.at[AXIS_SHARD] * l->shard_elems,
               elems = l->shard_elems;
        float *want = calloc(elems, sizeof *want);
        for (int k = 0; k < l->n_slots; k++) {
            const flat_slot *slot = &l->slots[k];
            size_t lo = slot->offset > begin ? slot->offset : begin,
                   end = slot->offset + slot->elems;
            size_t hi = end < begin + elems ? end : begin + elems;
            if (lo >= hi)
                continue;
            memcpy(want + lo - begin, twin_array + w->t->offset[slot->param] + lo - slot->offset,
                   (hi - lo) * sizeof *want);
            expect_values(&w->notes,
                          WHAT("%s of unit %s, %s from element %zu on, against one device", what,
                               w->f.units[u].name, w->m.params[slot->param].name,
                               lo - slot->offset),
                          held[u] ? held[u] + (lo - begin) : NULL, want + lo - begin, hi - lo);
        }
        expect_values(&w->notes,
                      WHAT("%s of unit %s, against one device", what, w->f.units[u].name), held[u],
                      want, elems);
        free(want);
    }
}

/* One micro-step on this rank's sequence, and its loss. */
static fsdp_status whole_micro_step(whole *w, int a, bool training)
{
    float got, want;
    TRY(whole_forward(w, a, training, &got));
    TRY(twin_leaf(w->t, whole_leaf(w, a), &want));
    note(&w->notes,
         expect_f32(WHAT("loss of %s %d, rank %d", training ? "micro-step" : "an evaluation, batch",
                         a, comm_rank(w->comm)),
                    &got, &want, 1));
    return FSDP_OK;
}

/* One step of SGD without decay, by ops.h's operation: the same bits everywhere. */
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
    const float scale = whole_scale(w), lr = 0.5f;
    float *held[8], loss;
    FSDP_ASSERT(w->f.n_units <= 8);
    for (int step = 0; step < 2; step++) {  /* the second step shows what the first left over */
        TRY(whole_micro_step(w, 0, false)); /* an evaluation, which leaves units gathered */
        TRY(reshard_all(&w->f));
        TRY(zero_grad(&w->r));
        for (int a = 0; a < ACCUM; a++)
            TRY(whole_micro_step(w, a, true));
        TRY(grads_finish(&w->r, scale));
        TRY(stream_sync(w->f.compute));
        TRY(twin_gradient(w->t, 0, leaves, scale, w->twin_grad, &loss));
        for (int u = 0; u < w->f.n_units; u++)
            held[u] = w->r.grads[u].shard_grad;
        expect_shards(w, "gradient", held, w->twin_grad);
        TRY(fix_settle(&w->notes)); /* report the first difference, not a consequence */
        TRY(sgd_step(&w->r, lr));
        TRY(stream_sync(w->f.compute));
        TRY(twin_sgd(w->t, w->twin_grad, lr));
        for (int u = 0; u < w->f.n_units; u++)
            held[u] = w->f.units[u].shard;
        expect_shards(w, "weights after one step of SGD", held, w->t->params);
        TRY(fix_settle(&w->notes));
    }
    TRY(zero_grad(&w->r));
    return whole_micro_step(w, 0, false);
}

static fsdp_status open_twin(const grade *g, whole *w)
{
    static twin t[1];
    /* the CPU's portable operations if the target has their bits */
    const ops *portable = target_is_portable() ? ops_cpu_portable() : g->ops;
    w->t = memset(t, 0, sizeof t);
    TRY(twin_create(&(twin_config){.m = &w->m,
                                   .ops = portable,
                                   .data = &w->data,
                                   .batch = w->config->batch,
                                   .seq_len = SEQ_LEN,
                                   .mode = GRAD_ACC_CANONICAL,
                                   .seed = SEED},
                    w->t));
    w->twin_grad = calloc(w->t->param_elems, sizeof *w->twin_grad);
    return FSDP_OK;
}

fsdp_status whole_run(grade *g, whole_config config, fsdp_status (*body)(whole *w))
{
    static whole w_[1]; /* static: threads of a failed run may still read it */
    whole *w = memset(w_, 0, sizeof w_);
    config.model = &SMALL;
    config.seed = SEED;
    config.accum = ACCUM;
    fsdp_status st = whole_open(g, &config, w);
    if (st == FSDP_OK)
        st = open_twin(g, w);
    if (st == FSDP_OK)
        st = body(w);
    fix_copies_free(&w->notes);
    if (st == FSDP_OK)
        st = fix_settle(&w->notes);
    st = comm_agree(g->comm, st);
    if (st == FSDP_OK) {
        twin_free(w->t);
        free(w->twin_grad);
        st = whole_close(w);
    } else if (st == FSDP_ETODO) { /* another task follows: close groups in reverse order */
        if (w->f.comm_stream)      /* issued work uses the groups */
            (void)stream_sync(w->f.comm_stream);
        (void)stream_sync(w->notes.compute);
        mesh_close(&w->grid);
        comm_close(w->comm);
    }
    return st;
}

/* Twice: an evaluation, 3 micro-steps of one sequence per rank, then one step of SGD. Then one more
 * forward, which must see the new weights. */
static fsdp_status train(grade *g, sharding_strategy sharding, int fsdp_size)
{
    const whole_config config = {.batch = 1,
                                 .wrap = WRAP_BLOCK,
                                 .sharding = sharding,
                                 .fsdp_size = fsdp_size,
                                 .trains = true};
    return whole_run(g, config, whole_step);
}

fsdp_status task_3_7(grade *g)
{
    TRY(train(g, SHARDING_FULL, 0));
    TRY(train(g, SHARDING_GRAD_OP, 0));
    return train(g, SHARDING_NONE, 0);
}

fsdp_status whole_hybrid(grade *g, int fsdp_size)
{
    return train(g, SHARDING_HYBRID, fsdp_size);
}
