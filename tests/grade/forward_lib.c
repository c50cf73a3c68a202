/* forward_lib.c -- task 2.5, which puts labs 1 and 2 together: a forward pass of a whole GPT-2 on
 * shards, compared with the unsharded twin. */
#include <string.h>
#include "lab2_forward/fsdp_setup.h"
#include "tests/grade/forward_lib.h"
#include "tests/grade/whole_lib.h"

/* Every parameter is stored once, and W shards together hold the padded model and nothing else. */
static fsdp_status check_storage(const whole *w)
{
    const fsdp *f = &w->f;
    size_t stored = 0, shard_bytes = 0;
    for (int u = 0; u < f->n_units; u++) {
        shard_bytes += f->units[u].layout.shard_elems * sizeof(float);
        for (int i = 0; i < f->units[u].layout.n_slots; i++)
            stored += f->units[u].layout.slots[i].elems;
    }
    TRY(expect_size("elements in all units (2.37 times: nested units; more: tied weight twice)",
                    stored, f->run.m->n_param_elems));
    return expect_size("bytes of parameter shards",
                       ledger_read(device_ledger(w->dev)).live_bytes[MEM_PARAMS_SHARD],
                       shard_bytes);
}

/* The peak is the root plus the largest other unit, for every W. */
static fsdp_status check_peak(const whole *w)
{
    const fsdp *f = &w->f;
    size_t largest = 0;
    for (int u = 1; u < f->n_units; u++)
        if (f->units[u].layout.padded_elems > largest)
            largest = f->units[u].layout.padded_elems;
    size_t want = (f->units[UNIT_ROOT].layout.padded_elems + largest) * sizeof(float);
    return expect_size("peak of gathered bytes: root + largest unit",
                       ledger_read(device_ledger(w->dev)).peak_bytes[MEM_PARAMS_FULL], want);
}

/* The last rank changes its shard of unit u. The loss must change on every rank. */
static fsdp_status check_dependence(whole *w, int u, float *loss)
{
    fsdp *f = &w->f;
    const fsdp_unit *unit = &f->units[u];
    const float before = *loss;
    if (comm_rank(w->comm) == comm_size(w->comm) - 1)
        /* alternate values: the next LayerNorm removes a change that all columns share */
        TRY(grade_add(f->compute, unit->shard, unit->layout.shard_elems, -0.25f, 0.5f));
    TRY(reshard(f, UNIT_ROOT)); /* as at the end of a step */
    TRY(expect_state("state of the root after reshard", f->units[UNIT_ROOT].state, UNIT_SHARDED));
    TRY(whole_forward(w, 0, false, loss));
    return EXPECT(
        memcmp(loss, &before, sizeof before) != 0,
        "does every shard reach full, at rank * shard_elems, and at each new gather?",
        "a forward pass after the last rank changed its shard of %s: got the loss of before, "
        "%.9g, expected another",
        unit->name, (double)before);
}

/* Gathered memory afterwards: the units that stay after forward (stays), or none. */
static fsdp_status expect_left(const whole *w, const char *when, bool stays)
{
    const fsdp *f = &w->f;
    size_t bytes = 0;
    for (int u = 0; u < f->n_units; u++) {
        const bool stay = stays && f->units[u].stays_after_forward;
        bytes += stay ? f->units[u].layout.padded_elems * sizeof(float) : 0;
        TRY(expect_state(WHAT("state of %s after %s", f->units[u].name, when), f->units[u].state,
                         stay ? UNIT_GATHERED : UNIT_SHARDED));
    }
    for (int p = 0; p < f->run.m->n_params && !stays; p++)
        TRY(expect_view(WHAT("views.params[%d] after %s", p, when), f->views.params[p], NULL, 0,
                        sizeof(float)));
    TRY(stream_sync(f->compute));
    TRY(stream_sync(f->comm_stream));
    return expect_size(WHAT("bytes of gathered parameters after %s", when),
                       ledger_read(device_ledger(w->dev)).live_bytes[MEM_PARAMS_FULL], bytes);
}

/* An evaluation between two steps; with `keeps`, under a strategy where all units stay after
 * forward. It must use the current weights and leave a state from which the next step can begin. */
static fsdp_status check_between_steps(whole *w, bool keeps, float want)
{
    fsdp *f = &w->f;
    float got[2];
    const float wanted[2] = {want, want};
    for (int u = 0; u < f->n_units; u++)
        f->units[u].stays_after_forward = keeps || u == UNIT_ROOT;
    TRY(reshard_all(f));
    for (int batch = 0; batch < 2; batch++)
        TRY(whole_forward(w, 0, false, &got[batch]));
    TRY(expect_left(w, "an evaluation", true));
    TRY(reshard_all(f));
    TRY(expect_f32("loss of an evaluation between steps, of batch", got, wanted, 2));
    return expect_left(w, "an evaluation, when the next step begins", false);
}

static fsdp_status forward_body(whole *w)
{
    fixture *notes = &w->notes;
    float want, got, again;
    TRY(check_storage(w));
    TRY(twin_leaf(w->t, whole_leaf(w, 0), &want));
    ledger_reset_peaks(device_ledger(w->dev));
    w->in_step = true; /* so that the peak does not depend on how far the host runs ahead */
    TRY(whole_forward(w, 0, false, &got));
    note(notes, expect_f32("loss (unsharded twin on the same sequences)", &got, &want, 1));
    TRY(whole_forward(w, 0, false, &again));
    w->in_step = false;
    note(notes, check_peak(w)); /* of both passes */
    note(notes, expect_f32("loss of a second pass", &again, &want, 1));
    TRY(fix_settle(notes));
    for (int keeps = 0; keeps <= 1; keeps++) {
        note(notes, check_dependence(w, keeps ? UNIT_ROOT : w->f.n_units - 1, &again));
        TRY(fix_settle(notes));
        note(notes, check_between_steps(w, keeps, again));
        TRY(fix_settle(notes));
    }
    return FSDP_OK;
}

fsdp_status task_2_5(grade *g)
{
    static const wrap_policy policies[] = {WRAP_BLOCK, WRAP_SUB_BLOCK, WRAP_MODEL};
    for (int i = 0; i < 3; i++)
        TRY(whole_run(g, (whole_config){.batch = 2, .wrap = policies[i]}, forward_body));
    return FSDP_OK;
}
