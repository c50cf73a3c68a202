/* overlap_lib.c -- task 5.5: reductions that run during the next unit's backward, what the first
 * gather of a step waits for, and the state after a micro-step. */
#include "tests/grade/overlap_lib.h"
#include <string.h>
#include <unistd.h>
#include "tests/grade/prefetch_lib.h"
#include "tests/grade/six_lib.h"

static const int POST_FORWARD[] = {H2, H0, FROZEN, ROOT};

/* ---- begin_micro ----------------------------------------------------------------------------- */

typedef struct update_args {
    float *shard;
    size_t elems;
} update_args;

/* A slow update by the optimizer. */
static fsdp_status update(void *args, int n_threads)
{
    update_args *a = args;
    usleep(30000);
    for (size_t i = 0; i < a->elems; i++)
        a->shard[i] += 1.0f;
    return FSDP_OK;
}

static float value_before_update(void *ctx, int p, size_t elem)
{
    return fix_initial(ctx, p, elem) - 1.0f;
}

/* The gather must see what the optimizer wrote: fix_value. Before, each value is off by 1. */
static fsdp_status update_then_gather(fixture *fx, prefetch *p, const char *what, bool training)
{
    fsdp_unit *unit = &fx->f.units[H0];
    TRY(fix_fill_shard(fx, H0, unit->shard, value_before_update, NULL));
    update_args args = {.shard = unit->shard, .elems = unit->layout.shard_elems};
    TRY(grade_launch(fx->compute, update, &args, sizeof args,
                     (mem_access){unit->shard, args.elems * sizeof(float), true}));
    TRY(RUNS_AHEAD(fx, WHAT("begin_micro of %s", training ? "a step" : "an evaluation"),
                   prefetch_begin_micro(p, 0, 2, training)));
    TRY(unshard_begin(&fx->f, H0));
    TRY(stream_sync(p->given.gather_stream));
    TRY(expect_gathered(fx, what, H0));
    return put_back(fx, p);
}

/* The second gather is an evaluation after a step. */
static fsdp_status updated_part(fixture *fx, prefetch *p)
{
    TRY(update_then_gather(fx, p, "a gather waits for the optimizer", true));
    return update_then_gather(
        fx, p, "a gather of an evaluation waits for the last step's optimizer", false);
}

/* The gather of u must end although compute stands still. */
static void expect_gather_runs(fixture *fx, const char *what, int u)
{
    fsdp_status status = unshard_begin(&fx->f, u);
    note(fx, status);
    if (status == FSDP_OK && fx->verdict == FSDP_OK)
        note(fx, EXPECT(reaches(fx->f.units[u].gathered, SOON_MS),
                        "gather_after is what a gather waits for",
                        "the gather of %s stood still with compute, expected: %s",
                        fx->f.units[u].name, what));
}

static fsdp_status gather_at_once(fixture *fx, prefetch *p, bool training)
{
    TRY(prefetch_begin_micro(p, 0, 2, training));
    TRY(gate_close(fx->g, fx->compute));
    expect_gather_runs(fx,
                       WHAT("a gather does not wait for what compute does in this %s",
                            training ? "step" : "evaluation"),
                       H0);
    TRY(prefetch_begin_micro(p, 1, 2, training));
    expect_gather_runs(fx,
                       WHAT("gathers of the second %s wait for no more than in the first",
                            training ? "micro-step" : "batch of an evaluation"),
                       H2);
    note(fx, gate_open(fx->g, "prefetch_begin_micro"));
    return put_back(fx, p);
}

static fsdp_status later_compute_part(fixture *fx, prefetch *p)
{
    TRY(gather_at_once(fx, p, true));
    return gather_at_once(fx, p, false); /* an evaluation */
}

/* ---- post_backward --------------------------------------------------------------------------- */

static float small_grad(int rank, int buffer, size_t i)
{
    return (float)(1 + rank + 10 * buffer) + (float)i;
}

/* Leave unit u as pre_backward would, without the hook. */
static fsdp_status ready_for_post(fixture *fx, int u)
{
    TRY(fix_gather_by_hand(fx, u));
    fx->r.grads[u].visited = true;
    return u == FROZEN ? FSDP_OK : fix_grad_by_hand(fx, u, small_grad);
}

/* For inline compute, where a free takes effect at once. */
static void check_gathered_bytes(fixture *fx, const char *label)
{
    size_t want = 0, got = ledger_read(device_ledger(fx->dev)).live_bytes[MEM_PARAMS_FULL];
    for (int u = 0; u < fx->f.n_units; u++)
        if (fx->f.units[u].state != UNIT_SHARDED && strcmp(fx->f.units[u].name, label) != 0)
            want += fx->f.units[u].layout.padded_elems * sizeof(float);
    note(fx,
         expect_size(WHAT("gathered bytes when %s is reduced, without its own", label), got, want));
}

/* When post_backward gathers another unit or reduces its own, its own must be resharded already. */
static void check_at_issue(fixture *fx, comm_op op, const char *label)
{
    const bool reduces = op == COMM_OP_REDUCE_SCATTER;
    if (!reduces && op != COMM_OP_ALL_GATHER)
        return;
    FSDP_ASSERT(label);
    for (int u = 0; u < fx->f.n_units; u++) {
        const char *name = fx->f.units[u].name;
        const bool is_it = strcmp(name, label) == 0;
        if (is_it == reduces)
            note(fx, expect_state(WHAT("state of %s when %s is %s (reshard first)", name, label,
                                       reduces ? "reduced" : "gathered"),
                                  fx->f.units[u].state, UNIT_SHARDED));
        if (reduces)
            note(fx,
                 EXPECT(is_it || !fx->r.grads[u].reducing,
                        "reduce_wait(p->reducing) comes first; a frozen unit must not forget it",
                        "post_backward of %s: %s is reducing when this reduction begins, "
                        "expected its reduction awaited",
                        label, name));
    }
    if (reduces && !fx->runs_ahead)
        check_gathered_bytes(fx, label);
}

/* The sum over all ranks of small_grad. */
static fsdp_status expect_sum(fixture *fx, int u)
{
    float *sum;
    TRY(stream_sync(fx->f.reduce_stream));
    TRY(grad_acc_finish(&fx->r.grads[u].buffer.acc, fx->compute, &sum));
    const float *got = fix_read(fx, sum, fx->f.units[u].given.place.slices.shard_elems);
    for (size_t i = 0; i < fx->f.units[u].given.place.slices.shard_elems; i++) {
        float want = 0.0f;
        for (int r = 0; r < fx->world_size; r++)
            want += small_grad(r, 0, fix_slice_begin(fx, u) + i);
        note(fx, expect_f32(WHAT("sum of the gradients of %s, element %zu", fx->f.units[u].name, i),
                            &got[i], &want, 1));
    }
    device_free(fx->compute, sum);
    return FSDP_OK;
}

static fsdp_status post_issues(fixture *fx, prefetch *p, int u, const char *ahead,
                               const char *reduction)
{
    char want[96];
    const bool looks = p->config.mode == PREFETCH_BACKWARD_POST;
    snprintf(want, sizeof want, "%s%s", looks ? ahead : "", reduction);
    TRY(ready_for_post(fx, u));
    const char *what =
        WHAT("post_backward of %s, %s", fx->f.units[u].name, mode_name(p->config.mode));
    TRY(RUNS_AHEAD(fx, what, prefetch_post_backward(p, u)));
    fix_expect_trace(fx, what, want);
    note(fx, expect_state("state after post_backward", fx->f.units[u].state, UNIT_SHARDED));
    return FSDP_OK;
}

/* Backward: h.1 (frozen), h.0, h.2, root. */
static fsdp_status post_backward_part(fixture *fx, prefetch *p)
{
    know_order(&p->post_forward, POST_FORWARD, N_UNITS);
    issued_start(fx);
    fx->on_issue = check_at_issue;
    TRY(post_issues(fx, p, FROZEN, "all-gather h.0;", ""));
    TRY(post_issues(fx, p, H2, "", "reduce-scatter h.2;"));
    note(fx,
         EXPECT(fx->r.grads[H2].reducing, "the next post_backward waits for it",
                "post_backward of h.2: its reduction was awaited at once, expected it in flight"));
    note(fx, expect_int("unit whose reduction nobody has waited for", p->reducing, H2));
    TRY(put_back(fx, p));
    TRY(post_issues(fx, p, H0, "all-gather h.2;", "reduce-scatter h.0;"));
    TRY(unshard_drop(&fx->f, H2)); /* the test gathers it by hand below */
    TRY(stream_sync(p->given.gather_stream));
    TRY(post_issues(fx, p, H2, "", "reduce-scatter h.2;"));
    note(fx, EXPECT(!fx->r.grads[H0].buffer.full_grad, "reduce_wait of the one before comes first",
                    "post_backward of h.2: full_grad of h.0 is still there, expected its reduction "
                    "awaited and the memory freed"));
    TRY(post_issues(fx, p, FROZEN, "", "")); /* begins no reduction */
    TRY(post_issues(fx, p, ROOT, "", "reduce-scatter root;"));
    note(fx, expect_int("unit whose reduction nobody has waited for", p->reducing, ROOT));
    TRY(prefetch_end_backward(p));
    fix_expect_trace(fx, "end_backward, every unit had its turn", "");
    fx->on_issue = NULL;
    for (int u = 0; u < N_UNITS; u++)
        note(fx, expect_state("state after end_backward", fx->f.units[u].state, UNIT_SHARDED));
    TRY(expect_sum(fx, H0));
    TRY(expect_sum(fx, H2));
    return expect_sum(fx, ROOT);
}

/* Reductions are held up. Compute goes on until it needs the previous one. */
static fsdp_status in_flight_part(fixture *fx, prefetch *p)
{
    TRY(ready_for_post(fx, H2));
    TRY(gate_close(fx->g, p->given.reduce_stream));
    TRY(prefetch_post_backward(p, H2));
    expect_runs(fx, "no reduce_wait of the unit that is done",
                "post_backward of h.2, while its reduction stands still");
    note(fx, gate_open(fx->g, "prefetch_post_backward"));
    TRY(stream_sync(p->given.reduce_stream)); /* the gate is used again below */
    TRY(ready_for_post(fx, H0));
    TRY(gate_close(fx->g, p->given.reduce_stream));
    TRY(prefetch_post_backward(p, H0));
    expect_runs(
        fx, "no reduce_wait of the unit that is done",
        "post_backward of h.0, when h.2 is reduced, while the reduction of h.0 stands still");
    TRY(prefetch_end_backward(p));
    TRY(gate_check(fx->g, "prefetch_post_backward or prefetch_end_backward"));
    expect_stands(fx, "reduce_wait(p->reducing) in end_backward",
                  "end_backward, while the reduction of h.0 stands still");
    note(fx, gate_open(fx->g, "prefetch_end_backward"));
    TRY(expect_sum(fx, H2));
    return expect_sum(fx, H0);
}

/* Whether compute frees everything gathered before it waits. */
static bool frees_gathered(fixture *fx)
{
    for (int ms = 0; ms < SOON_MS && fx->verdict == FSDP_OK; ms++) {
        if (ledger_read(device_ledger(fx->dev)).live_bytes[MEM_PARAMS_FULL] == 0)
            return true;
        usleep(1000);
    }
    return false;
}

/* The previous reduction is held up: the next post_backward makes compute wait for it. */
static fsdp_status one_at_a_time_part(fixture *fx, prefetch *p)
{
    TRY(ready_for_post(fx, H2));
    TRY(ready_for_post(fx, H0));
    TRY(gate_close(fx->g, p->given.reduce_stream));
    TRY(prefetch_post_backward(p, H2));
    TRY(prefetch_post_backward(p, H0));
    TRY(gate_check(fx->g, "prefetch_post_backward"));
    expect_stands(fx, "reduce_wait of the one before comes first: one reduction at a time",
                  "post_backward of h.0, while the reduction of h.2 stands still");
    note(fx,
         EXPECT(frees_gathered(fx), "reshard comes before reduce_wait",
                "post_backward of h.0: gathered units are still there while compute waits for the "
                "reduction of h.2, expected them freed first"));
    note(fx, gate_open(fx->g, "prefetch_post_backward"));
    TRY(prefetch_end_backward(p));
    TRY(expect_sum(fx, H2));
    return expect_sum(fx, H0);
}

/* post_backward returns the errors of the calls that it makes. */
static fsdp_status refusals_part(fixture *fx, prefetch *p)
{
    fx->f.units[H0].state = UNIT_GATHERING; /* reshard refuses this state */
    note(fx, expect_status("post_backward of a unit that is GATHERING",
                           prefetch_post_backward(p, H0), FSDP_ESTATE));
    fx->f.units[H0].state = UNIT_SHARDED;
    p->reducing = NO_UNIT;
    TRY(fix_gather_by_hand(fx, H0)); /* without gradient memory, reduce_begin refuses */
    note(fx, expect_status("post_backward of a unit without gradient memory",
                           prefetch_post_backward(p, H0), FSDP_ESTATE));
    return put_back(fx, p);
}

/* ---- end_backward ---------------------------------------------------------------------------- */

/* An unused gather of every unit, a reduction in flight, and units that were not visited. */
static fsdp_status end_backward_part(fixture *fx, prefetch *p)
{
    issued_start(fx);
    TRY(unshard_begin(&fx->f, ROOT));
    TRY(unshard_begin(&fx->f, H0));
    TRY(unshard_begin(&fx->f, FROZEN));
    TRY(ready_for_post(fx, H2));
    TRY(prefetch_post_backward(p, H2));
    TRY(unshard_begin(&fx->f, H2));
    fx->trace[0] = '\0';
    fx->f.gather_after = p->updated;
    const fsdp_status ended = RUNS_AHEAD(fx, "end_backward", prefetch_end_backward(p));
    note(fx, EXPECT(fx->f.gather_after == p->updated, "the next micro-step of the step needs it",
                    "end_backward: f->gather_after has changed, expected it left as it was"));
    fx->f.gather_after = NULL;
    for (int u = 0; u < N_UNITS; u++)
        note(fx,
             EXPECT(fx->f.units[u].state != UNIT_GATHERING,
                    "unshard_drop every unit, also one that stays after forward",
                    "end_backward: the unused gather of %s was not dropped", fx->f.units[u].name));
    TRY(ended);
    fix_expect_trace(fx, "end_backward: units without a turn contribute zeros",
                     "reduce-scatter h.0;reduce-scatter root;");
    for (int u = 0; u < N_UNITS; u++) {
        note(fx, expect_state(WHAT("state of %s after end_backward", fx->f.units[u].name),
                              fx->f.units[u].state, UNIT_SHARDED));
        note(fx, expect_int(WHAT("%s reducing after end_backward", fx->f.units[u].name),
                            fx->r.grads[u].reducing, 0));
    }
    note(fx, expect_int("unit that is reducing after end_backward", p->reducing, NO_UNIT));
    TRY(stream_sync(p->given.gather_stream));
    TRY(stream_sync(p->given.reduce_stream));
    note(fx, expect_size("bytes of gathered units after end_backward",
                         fix_live(fx, MEM_PARAMS_FULL), 0));
    note(fx, expect_size("bytes of full gradients after end_backward", fix_live(fx, MEM_GRADS_FULL),
                         0));
    return FSDP_OK;
}

/* While compute stands still, the stream of gathers must free an unused gather. */
static fsdp_status drops_part(fixture *fx, prefetch *p)
{
    for (int u = 0; u < N_UNITS; u++)
        fx->r.grads[u].visited = u != FROZEN; /* so no block is allocated or reused */
    TRY(unshard_begin(&fx->f, FROZEN));
    TRY(gate_close(fx->g, fx->compute));
    TRY(prefetch_end_backward(p));
    TRY(stream_sync(p->given.gather_stream));
    const size_t left_bytes = ledger_read(device_ledger(fx->dev)).live_bytes[MEM_PARAMS_FULL];
    note(fx, expect_int("bytes of an unused gather when its stream has passed end_backward (drop "
                        "it; it is not compute's to free)",
                        (long long)left_bytes, 0));
    note(fx, gate_open(fx->g, "prefetch_end_backward"));
    return FSDP_OK;
}

static fsdp_status post_backward_body(fixture *fx)
{
    for (int mode = PREFETCH_BACKWARD; mode <= PREFETCH_BOTH; mode++)
        TRY(with_prefetch(fx, (prefetch_mode)mode, NO_LIMIT, post_backward_part));
    return FSDP_OK;
}

static fsdp_status overlap_body(fixture *fx)
{
    static const prefetch_part parts[] = {updated_part,       later_compute_part, in_flight_part,
                                          one_at_a_time_part, refusals_part,      end_backward_part,
                                          drops_part};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        TRY(with_prefetch(fx, PREFETCH_BACKWARD, NO_LIMIT, parts[i]));
    return FSDP_OK;
}

/* All units stay after forward, but not after backward. */
static fsdp_status kept_body(fixture *fx)
{
    return with_prefetch(fx, PREFETCH_BACKWARD, NO_LIMIT, end_backward_part);
}

/* ---- a whole model --------------------------------------------------------------------------- */

/* With inline compute, where freed memory counts as free at once. */
static fsdp_status gradients_body(six *s)
{
    for (int step = 0; step < 2 && device_memory_is_host(s->dev); step++) {
        ledger_reset_peaks(device_ledger(s->dev));
        TRY(six_step(s));
        TRY(stream_sync(s->f.compute));
        size_t peak = ledger_read(device_ledger(s->dev)).peak_bytes[MEM_GRADS_FULL];
        TRY(expect_size(WHAT("step %d: peak of full gradients: the root's and two units'", step),
                        peak, (s->root_bytes + 2 * s->block_bytes)));
    }
    return FSDP_OK;
}

typedef struct sync_count {
    order_check *order; /* continues to watch */
    const prefetch *p;
    atomic_int n;
} sync_count;

/* The wait of begin_micro for the end of the micro-step before the last one is not counted. */
static uint64_t count_sync(void *self, const device_act *act)
{
    sync_count *c = self;
    (void)order_check_issued(c->order, act);
    if (act->kind == ACT_SYNC &&
        (!act->event || (act->event != c->p->given.ended[0] && act->event != c->p->given.ended[1])))
        atomic_fetch_add(&c->n, 1);
    return 0;
}

/* With room for all units the host issues an evaluation and a step while compute stands still. */
static fsdp_status no_sync_body(six *s)
{
    sync_count c = {.order = s->g->order, .p = &s->p};
    const device_watch order = order_check_watch(s->g->order);
    TRY(stream_sync(s->f.compute));
    device_set_watch(s->dev, &(device_watch){.self = &c, .issued = count_sync});
    TRY(gate_close(s->g, s->f.compute));
    TRY(six_evaluation(s));
    const int n_evaluation = atomic_load(&c.n);
    TRY(six_step(s));
    int n = atomic_load(&c.n);
    TRY(gate_open(s->g, "a step"));
    TRY(stream_sync(s->f.compute));
    device_set_watch(s->dev, &order);
    TRY(expect_int("times that the host waited within an evaluation", n_evaluation, 0));
    return expect_int("times that the host waited within a step", n, 0);
}

/* The host is at most one micro-step ahead, however much it may gather. */
static fsdp_status host_ahead_body(six *s)
{
    TRY(zero_grad(&s->r));
    for (int a = 0; a < 4; a++) {
        TRY(six_micro_step(s, a));
        const int n = atomic_load(&s->n_computed);
        TRY(EXPECT(
            n >= a - 1, "begin_micro waits for the end of the micro-step before the last one",
            "micro-step %d is issued when %d are computed, expected %d or more", a, n, a - 1));
    }
    TRY(stream_sync(s->f.compute));
    return grads_finish(&s->r, 1.0f);
}

fsdp_status task_5_5(grade *g)
{
    TRY(fixture_run(g, AHEAD_SPEC(), post_backward_body));
    TRY(fixture_run(g, FIX_SPEC(.n_params = 8), post_backward_body));
    TRY(fixture_run(g, AHEAD_SPEC(), overlap_body));
    TRY(fixture_run(g, FIX_SPEC(.n_params = 8, .sharding = SHARDING_GRAD_OP, .async_compute = true),
                    kept_body));
    TRY(six_run(g, &(six_config){.mode = PREFETCH_BOTH, .limit = 2, .inline_compute = true},
                gradients_body));
    TRY(six_run(g, &(six_config){.mode = PREFETCH_BOTH, .limit = NO_LIMIT}, no_sync_body));
    return six_run(g, &(six_config){.mode = PREFETCH_BOTH, .limit = NO_LIMIT, .slow_compute = true},
                   host_ahead_body);
}
