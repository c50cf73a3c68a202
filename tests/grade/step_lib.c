/* step_lib.c -- tasks 3.3 to 3.6 and 3.8: gradients after their sums are complete, over the
 * micro-steps of a step, under every strategy, and for units that a rank does not use.
 *
 * The model is lab3.c's. Where reduction is not the task, sums are made by hand (fix_push). */
#include <math.h>
#include <string.h>
#include "tests/grade/handmade_lib.h"
#include "tests/grade/step_lib.h"
#include "tests/grade/whole_lib.h"
#include "tests/unit/target_lib.h"

/* ---- 3.3 ------------------------------------------------------------------------------------ */
static const float SCALE = 1.0f / 24.0f;
enum { TIED_BEGIN = 8, TIED_END = 13 }; /* of the root's flat array */

/* The gradient of one element on the unsharded twin: sums on one device, the second use added last,
 * then one multiplication.
 *   *any_order  how far the result may differ if terms are added in another order. Either result
 *   is off by at most (n+1) u of the terms' magnitudes, u = 2^-24: n-1 additions of n terms, one
 *   addition of the two uses, one multiplication */
static float twin_grad(const fixture *fx, int u, size_t flat, int n_leaves, int base,
                       double *any_order)
{
    *any_order = 0.0;
    if (flat >= fx->f.units[u].given.place.slices.used_elems)
        return 0.0f;
    float sum[2] = {0}, leaf[64];
    bool tied = u == ROOT && flat >= TIED_BEGIN && flat < TIED_END && fix_n_buffers(fx, u) > 1;
    for (int k = 0; k <= tied; k++) {
        for (int n = 0; n < n_leaves; n++)
            leaf[n] = fix_fraction(base + n, k, k ? flat - TIED_BEGIN : flat);
        for (int n = 0; n < n_leaves; n++)
            *any_order += 0x1p-23 * (n_leaves + 1) * fabs((double)leaf[n] * (double)SCALE);
        sum[k] = fix_sum(fx, leaf, n_leaves);
    }
    return (tied ? sum[0] + sum[1] : sum[0]) * SCALE;
}

typedef struct flat_part {
    size_t begin, elems;
} flat_part;

/* Check shard_grad of unit u, which is a part of its flat array. */
static fsdp_status expect_grad(fixture *fx, const char *when, int u, flat_part part, int n_leaves,
                               int base)
{
    TRY(stream_sync(fx->compute));
    TRY(stream_sync(fx->f.reduce_stream));
    const float *got = fix_read(fx, fx->r.grads[u].shard_grad, part.elems);
    note(fx, EXPECT(got, "", "%s: unit %d has no shard_grad", when, u));
    const bool own_order = fx->spec->mode == GRAD_ACC_FAST && target_adds_itself(fx->world);
    const char *what = WHAT("%s: gradient of unit %d against the unsharded twin, element", when, u);
    float want[64], zero = 0.0f;
    for (size_t i = 0; got && i < part.elems; i++) {
        double any_order;
        if (part.begin + i >= fx->f.units[u].given.place.slices.used_elems)
            note(fx, expect_f32(WHAT("%s: padding of the gradient of unit %d, element %zu on rank "
                                     "%d",
                                     when, u, i, fx->rank),
                                &got[i], &zero, 1));
        want[i] = twin_grad(fx, u, part.begin + i, n_leaves, base, &any_order);
        if (own_order)
            note(fx, expect_within(what, i, got[i], (double)want[i], any_order));
    }
    if (got && !own_order)
        note(fx, expect_f32(what, got, want, part.elems));
    return FSDP_OK;
}

static fsdp_status expect_shard_grad(fixture *fx, const char *when, int u, int n_leaves, int base)
{
    flat_part shard = {fix_shard_begin(fx, u), fx->f.units[u].layout.shard_elems};
    return expect_grad(fx, when, u, shard, n_leaves, base);
}

static struct {
    const fixture *fx;
    int u;
    ops ops;
} watched;

/* shard_grad is one slice long: this rank's, not the shard's. */
static fsdp_status scale_watched(stream *s, const scale_args *a)
{
    const unit_grad *g = &watched.fx->r.grads[watched.u];
    const size_t begin = (size_t)(a->x - g->shard_grad), end = begin + a->elems;
    TRY(EXPECT(g->shard_grad && begin <= end && end <= g->slice.elems,
               "shard_grad has g->slice.elems elements from 0 on; slice.begin counts in the unit",
               "grad_finish of %s: scales elements %zd to %zd of shard_grad, expected no more than "
               "the %zu of this rank's slice",
               watched.fx->f.units[watched.u].name, (ssize_t)begin, (ssize_t)end, g->slice.elems));
    return watched.fx->g->ops->scale(s, a);
}

static const ops *watch_scale(const fixture *fx, int u)
{
    watched.fx = fx;
    watched.u = u;
    watched.ops = *fx->g->ops;
    watched.ops.scale = scale_watched;
    return &watched.ops;
}

static fsdp_status grad_finish_body(fixture *fx)
{
    size_t slices = 0;
    for (int j = 0; j < N_LEARNING; j++) {
        const int u = LEARNING[j];
        const flat_part slice = {fix_slice_begin(fx, u),
                                 fx->f.units[u].given.place.slices.shard_elems};
        TRY(fix_push(fx, u, fx->world_size, 0, fix_fraction));
        fx->f.run.ops = watch_scale(fx, u);
        TRY(RUNS_AHEAD(fx, "grad_finish", grad_finish(&fx->r, u, SCALE)));
        fx->f.run.ops = fx->g->ops;
        TRY(expect_grad(fx, "grad_finish", u, slice, fx->world_size, 0));
        note(fx,
             expect_int("contributions left in the sum", fx->r.grads[u].buffer.acc.n_pushed, 0));
        slices += slice.elems;
    }
    note(fx, expect_size("gradient bytes after grad_finish: one world slice a unit",
                         fix_live(fx, MEM_GRADS_SHARD), slices * sizeof(float)));
    return FSDP_OK;
}

fsdp_status task_3_3(grade *g)
{
    TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_FAST), grad_finish_body));
    TRY(fixture_run(g, ONE_SPEC(.sharding = SHARDING_FULL), grad_finish_body));
    TRY(fixture_run(g, TIED_SPEC(.sharding = SHARDING_NONE), grad_finish_body));
    for (int size = 1; size <= g->world_size; size++) /* slices depend on the world only */
        if (g->world_size % size == 0)
            TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_CANONICAL, .shard_size = size),
                            grad_finish_body));
    return FSDP_OK;
}

/* ---- 3.4 ------------------------------------------------------------------------------------ */
enum { ACCUM = 3 };

static void expect_cleared(fixture *fx)
{
    for (int u = 0; u < N_UNITS; u++)
        note(fx, EXPECT(!fx->r.grads[u].shard_grad, "",
                        "zero_grad: shard_grad of %s is still there, expected it freed and NULL",
                        fx->f.units[u].name));
    note(fx, expect_size("gradient bytes after zero_grad", fix_live(fx, MEM_GRADS_SHARD), 0));
}

static void expect_finished(fixture *fx, int u)
{
    note(fx, EXPECT(fx->r.grads[u].buffer.acc.n_pushed == 0, "grad_finish, then grad_all_gather",
                    "grads_finish: grad_all_gather of %s before its grad_finish, expected the "
                    "finished gradient to be gathered",
                    fx->f.units[u].name));
}

/* Compute still writes the gradients when zero_grad is called. They must be freed in compute's
 * order; the order checker reports any other. */
static fsdp_status freed_in_order_body(fixture *fx)
{
    for (int j = 0; j < N_LEARNING; j++) {
        float **grad = &fx->r.grads[LEARNING[j]].shard_grad;
        TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, 1, "fixture gradient", grad));
        TRY(grade_add(fx->compute, *grad, 1, 1.0f, 1.0f));
    }
    TRY(zero_grad(&fx->r));
    expect_cleared(fx);
    return FSDP_OK;
}

static fsdp_status accumulate_body(fixture *fx)
{
    const int w = fx->world_size, leaves = ACCUM * w;
    for (int step = 0; step < 2; step++) {
        int base = step * leaves;
        TRY(RUNS_AHEAD(fx, "zero_grad", zero_grad(&fx->r)));
        expect_cleared(fx);
        for (int a = 0; a < ACCUM; a++)
            for (int j = 0; j < N_LEARNING; j++)
                TRY(fix_push(fx, LEARNING[j], w, base + a * w, fix_fraction));
        TRY(RUNS_AHEAD(fx, "grads_finish", grads_finish(&fx->r, SCALE)));
        for (int j = 0; j < N_LEARNING; j++)
            TRY(expect_shard_grad(fx, step ? "second step" : "first step", LEARNING[j], leaves,
                                  base));
        note(fx, EXPECT(!fx->r.grads[FROZEN].shard_grad, "",
                        "grads_finish: a frozen unit has a shard_grad, expected NULL"));
    }
    TRY(zero_grad(&fx->r));
    expect_cleared(fx);
    TRY(fix_push(fx, H2, 1, 0, fix_fraction));
    note(fx, expect_status("zero_grad in the middle of a step", zero_grad(&fx->r), FSDP_ESTATE));
    return FSDP_OK;
}

/* A unit is gathered when its sum is taken. */
static void check_finished_at_issue(fixture *fx, comm_op op, const char *label)
{
    for (int j = 0; j < N_LEARNING; j++)
        if (op == COMM_OP_ALL_GATHER && strcmp(fx->f.units[LEARNING[j]].name, label) == 0)
            expect_finished(fx, LEARNING[j]);
}

/* grad_all_gather (task 3.5b, which may be unwritten) joins finished slices. */
static fsdp_status finish_first_body(fixture *fx)
{
    float *stale[N_LEARNING]; /* so that a gather that comes first does not read NULL */
    for (int j = 0; j < N_LEARNING; j++) {
        const int u = LEARNING[j];
        TRY(fix_push(fx, u, fx->world_size, 0, fix_fraction));
        TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, fx->f.units[u].layout.shard_elems,
                             "fixture gradient", &stale[j]));
        fx->r.grads[u].shard_grad = stale[j];
    }
    fx->on_issue = check_finished_at_issue;
    fix_trace_start(fx);
    const fsdp_status status = grads_finish(&fx->r, SCALE);
    if (status != FSDP_ETODO || strstr(fsdp_error_get()->what, "task 3.4 ") == NULL)
        expect_finished(fx, ROOT); /* the first unit */
    if (status == FSDP_OK && fx->world_size > 1)
        fix_expect_trace(fx, "grads_finish, where shards have replicas",
                         "all-gather root;all-gather h.0;all-gather h.2;");
    TRY(fix_settle(fx));
    for (int j = 0; j < N_LEARNING; j++) {
        device_free(fx->compute, stale[j]);
        if (fx->r.grads[LEARNING[j]].shard_grad == stale[j])
            fx->r.grads[LEARNING[j]].shard_grad = NULL;
        grad_acc_free(&fx->r.grads[LEARNING[j]].buffer.acc, fx->compute);
    }
    TRY(zero_grad(&fx->r));
    return status == FSDP_ETODO ? FSDP_OK : status;
}

fsdp_status task_3_4(grade *g)
{
    TRY(fixture_run(g, ONE_SPEC(.sharding = SHARDING_NONE), finish_first_body));
    TRY(fixture_run(g, ONE_SPEC(.sharding = SHARDING_FULL), accumulate_body));
    TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_FAST), accumulate_body));
    TRY(fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_CANONICAL), accumulate_body));
    for (int how = SHARDING_FULL; how <= SHARDING_NONE; how++)
        TRY(fixture_run(g, TIED_SPEC(.sharding = (sharding_strategy)how, .async_compute = true),
                        freed_in_order_body));
    return fixture_run(g, TIED_SPEC(.mode = GRAD_ACC_CANONICAL, .async_compute = true),
                       accumulate_body);
}

/* ---- 3.5a ----------------------------------------------------------------------------------- */
/* The units that stay, for every strategy, whatever the flags were before. */
static fsdp_status strategy_table(void)
{
    static const struct {
        sharding_strategy sharding;
        const char *name;
        bool root_after_forward, block_after_forward, after_backward;
    } rows[] = {{SHARDING_GRAD_OP, "grad-op", true, true, false}, /* the stub allows "full" */
                {SHARDING_NONE, "none", true, true, true},
                {SHARDING_FULL, "full", true, false, false}};
    for (int i = 0; i < 6; i++) {
        fsdp_unit units[3] = {{.id = 0}};
        fsdp f = {.n_units = 3, .units = units};
        for (int u = 0; u < 3; u++)
            units[u].stays_after_forward = units[u].stays_after_backward = i < 3;
        TRY(strategy_fill(rows[i % 3].sharding, &f));
        for (int u = 0; u < 3; u++) {
            TRY(expect_int(WHAT("%s: unit %d stays_after_forward", rows[i % 3].name, u),
                           units[u].stays_after_forward,
                           u == UNIT_ROOT ? rows[i % 3].root_after_forward
                                          : rows[i % 3].block_after_forward));
            TRY(expect_int(WHAT("%s: unit %d stays_after_backward", rows[i % 3].name, u),
                           units[u].stays_after_backward, rows[i % 3].after_backward));
        }
    }
    return FSDP_OK;
}

/* A mesh whose shard groups do not fit the strategy is refused. */
static fsdp_status wrong_groups(void)
{
    static const struct {
        const char *what;
        sharding_strategy sharding;
        int shard_size;
    } rows[] = {{"full in shard groups of 2 of 4 ranks", SHARDING_FULL, 2},
                {"none in shard groups of 2 of 4 ranks", SHARDING_NONE, 2},
                {"hybrid in shard groups of one", SHARDING_HYBRID, 1},
                {"grad-op in shard groups of one", SHARDING_GRAD_OP, 1}};
    for (int i = 0; i < 4; i++) {
        fsdp f = {0};
        reducer r;
        TRY(mesh_shape_make(4, (const int[N_AXES]){[AXIS_SHARD] = rows[i].shard_size}, 0,
                            &f.mesh.shape));
        TRY(expect_status(WHAT("reducer_create: %s", rows[i].what),
                          reducer_create(&f, rows[i].sharding, &r), FSDP_EINVAL));
    }
    return FSDP_OK;
}

/* The hooks of one micro-step in the runner's order: the root encloses the others. Every unit takes
 * part, so end_backward (task 3.6) would only clear the visited flags. */
static fsdp_status hooks_of_micro_step(fixture *fx, size_t *full_bytes_between)
{
    unit_hooks h = fsdp_backward_hooks(&fx->r);
    TRY(h.pre_forward(h.self, ROOT));
    for (int u = 1; u < N_UNITS; u++) {
        TRY(h.pre_forward(h.self, u));
        TRY(h.post_forward(h.self, u));
    }
    TRY(h.post_forward(h.self, ROOT));
    *full_bytes_between = fix_live(fx, MEM_PARAMS_FULL);
    TRY(h.pre_backward(h.self, ROOT));
    for (int u = N_UNITS - 1; u > 0; u--) {
        TRY(h.pre_backward(h.self, u));
        TRY(h.post_backward(h.self, u));
    }
    TRY(h.post_backward(h.self, ROOT));
    for (int u = 0; u < N_UNITS; u++)
        fx->r.grads[u].visited = false;
    return FSDP_OK;
}

/* Gathers of a unit per micro-step, over the shard group: full and hybrid 2 (root 1), grad-op 1,
 * none 0. Reductions, over the world: 1 per unit that learns; canonical mode adds one for the tied
 * tensor. */
static void expect_traffic(fixture *fx, int micro_steps)
{
    const sharding_strategy st = fx->spec->sharding;
    size_t shard_peers = (size_t)fx->f.mesh.shape.size[AXIS_SHARD] - 1;
    size_t gathers = 0, gather_elems = 0, reduces = 0, reduce_elems = 0; /* of a micro-step */
    for (int u = 0; u < N_UNITS; u++) {
        size_t n = st == SHARDING_NONE ? 0 : st == SHARDING_GRAD_OP || u == ROOT ? 1 : 2;
        gathers += n;
        gather_elems += n * shard_peers * fx->f.units[u].layout.shard_elems;
        if (u == FROZEN)
            continue;
        reduces += (size_t)fix_n_buffers(fx, u);
        reduce_elems += fix_reduced_elems(fx, u);
    }
    const comm_stats cs = comm_job_stats_read(fx->comm);
    const size_t steps = (size_t)micro_steps, bytes = steps * sizeof(float);
    note(fx, expect_size("all-gathers of two micro-steps", cs.calls[COMM_OP_ALL_GATHER],
                         steps * gathers));
    note(fx, expect_size("reduce-scatters of two micro-steps", cs.calls[COMM_OP_REDUCE_SCATTER],
                         steps * reduces));
    note(fx, expect_size("bytes sent by all-gathers", cs.bytes_sent[COMM_OP_ALL_GATHER],
                         bytes * gather_elems));
    note(fx, expect_size("bytes sent by reduce-scatters", cs.bytes_sent[COMM_OP_REDUCE_SCATTER],
                         bytes * reduce_elems));
}

/* Empty the accumulators, as the end of a step would. */
static fsdp_status drop_sums(fixture *fx)
{
    for (int u = 0; u < N_UNITS; u++)
        for (int k = 0; u != FROZEN && k < fix_n_buffers(fx, u); k++) {
            float *sum;
            TRY(grad_acc_finish(&fix_buffer(fx, u, k)->acc, fx->compute, &sum));
            device_free(fx->compute, sum);
        }
    return FSDP_OK;
}

static fsdp_status traffic_body(fixture *fx)
{
    enum { MICRO_STEPS = 2 };
    size_t padded[N_UNITS], all = 0, between = 0;
    for (int u = 0; u < N_UNITS; u++) {
        padded[u] = fx->f.units[u].layout.padded_elems * sizeof(float);
        all += padded[u];
    }
    for (int step = 0; step < 2; step++) {
        comm_job_stats_reset(fx->comm);
        ledger_reset_peaks(device_ledger(fx->dev));
        for (int a = 0; a < MICRO_STEPS; a++)
            TRY(hooks_of_micro_step(fx, &between));
        size_t after = fix_live(fx, MEM_PARAMS_FULL);
        TRY(drop_sums(fx));
        expect_traffic(fx, MICRO_STEPS);
        sharding_strategy st = fx->spec->sharding;
        size_t want = st == SHARDING_NONE ? 0 : st == SHARDING_GRAD_OP ? all : padded[ROOT];
        note(fx, expect_size("gathered bytes between forward and backward", between, want));
        note(fx, expect_size("gathered bytes after backward", after, 0));
        size_t peak = ledger_read(device_ledger(fx->dev)).peak_bytes[MEM_PARAMS_FULL];
        if (st == SHARDING_FULL || st == SHARDING_HYBRID)
            want = padded[ROOT] + padded[H0]; /* one block at a time; h.0 is the largest */
        if (!fx->runs_ahead)
            note(fx, expect_size("peak of gathered bytes", peak, want));
    }
    return FSDP_OK;
}

#define BY_STRATEGY(how, sums, ...)                                                                \
    TIED_SPEC(.by_strategy = true, .sharding = how, .mode = sums, __VA_ARGS__)

fsdp_status task_3_5a(grade *g)
{
    TRY(comm_agree(g->comm, strategy_table()));
    TRY(comm_agree(g->comm, wrong_groups()));
    TRY(fixture_run(g, BY_STRATEGY(SHARDING_FULL, GRAD_ACC_FAST), traffic_body));
    TRY(fixture_run(g, BY_STRATEGY(SHARDING_GRAD_OP, GRAD_ACC_FAST), traffic_body));
    TRY(fixture_run(g, BY_STRATEGY(SHARDING_NONE, GRAD_ACC_FAST), traffic_body));
    TRY(fixture_run(g, BY_STRATEGY(SHARDING_FULL, GRAD_ACC_CANONICAL), traffic_body));
    return fixture_run(g, BY_STRATEGY(SHARDING_NONE, GRAD_ACC_CANONICAL), traffic_body);
}

/* ---- 3.5b ----------------------------------------------------------------------------------- */
/* Element `flat` of a unit's finished gradient; zero in the padding, as grad_finish leaves it. */
static float finished_value(const fixture *fx, int u, size_t flat)
{
    return flat < fx->f.units[u].layout.used_elems ? fix_fraction(u, 0, flat) : 0.0f;
}

/* Every replica of a shard holds one finished slice. Each must end with the whole gradient. */
static fsdp_status gather_slices(fixture *fx, int u)
{
    const size_t slice_elems = fx->f.units[u].given.place.slices.shard_elems;
    const size_t shard_elems = fx->f.units[u].layout.shard_elems;
    const size_t peers = (size_t)fx->f.mesh.shape.size[AXIS_REPLICATE] - 1;
    const char *name = fx->f.units[u].name;
    float **grad = &fx->r.grads[u].shard_grad, *slice, want[64];
    const size_t before = fix_live(fx, MEM_GRADS_SHARD);
    TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, slice_elems, "fixture slice", grad));
    for (size_t i = 0; i < slice_elems; i++)
        want[i] = finished_value(fx, u, fix_slice_begin(fx, u) + i);
    TRY(grade_write(fx->compute, *grad, want, slice_elems * sizeof *want));
    slice = *grad;
    comm_job_stats_reset(fx->comm);
    fix_trace_start(fx); /* the world; replicas of a part of it have their own group */
    TRY(RUNS_AHEAD(fx, WHAT("grad_all_gather of %s", name), grad_all_gather(&fx->r, u)));
    const comm_stats cs = comm_job_stats_read(fx->comm);
    if (!fix_issued(fx, "grad_all_gather", u, COMM_OP_ALL_GATHER, peers > 0))
        return FSDP_OK;                                  /* shard_grad may still be the slice */
    const float *got = fix_read(fx, *grad, shard_elems); /* in order of compute only */
    if (peers == 0)
        note(fx,
             EXPECT(*grad == slice, "return before anything is allocated",
                    "grad_all_gather of %s, which has one replica: shard_grad is another array, "
                    "expected it left alone",
                    name));
    if (peers == 0 || fx->f.mesh.shape.size[AXIS_SHARD] == 1)
        fix_expect_trace(fx, "grad_all_gather", peers ? WHAT("all-gather %s;", name) : "");
    note(fx, expect_size("bytes sent: this rank's slice to each other replica",
                         cs.bytes_sent[COMM_OP_ALL_GATHER], peers * slice_elems * sizeof(float)));
    note(fx, expect_size("gradient bytes: the shard's, without the slice that it came from",
                         fix_live(fx, MEM_GRADS_SHARD) - before, shard_elems * sizeof(float)));
    for (size_t i = 0; i < shard_elems; i++)
        want[i] = finished_value(fx, u, fix_shard_begin(fx, u) + i);
    if (got)
        note(fx, expect_f32(WHAT("gradient of %s on rank %d, element of its shard", name, fx->rank),
                            got, want, shard_elems));
    return FSDP_OK;
}

static fsdp_status grad_all_gather_body(fixture *fx)
{
    for (int j = 0; j < N_LEARNING; j++)
        TRY(gather_slices(fx, LEARNING[j]));
    comm_job_stats_reset(fx->comm);
    TRY(grad_all_gather(&fx->r, FROZEN));
    note(fx, expect_size("all-gathers for a frozen unit",
                         comm_job_stats_read(fx->comm).calls[COMM_OP_ALL_GATHER], 0));
    return FSDP_OK;
}

fsdp_status task_3_5b(grade *g)
{
    for (int size = 2; size < g->world_size; size++) /* W = 4: two replicas of two shards */
        if (g->world_size % size == 0)
            TRY(fixture_run(g, TIED_SPEC(.sharding = SHARDING_HYBRID, .shard_size = size),
                            grad_all_gather_body));
    TRY(fixture_run(g, TIED_SPEC(.sharding = SHARDING_NONE), grad_all_gather_body));
    TRY(fixture_run(g, ONE_SPEC(.sharding = SHARDING_NONE), grad_all_gather_body));
    TRY(fixture_run(g, TIED_SPEC(.sharding = SHARDING_FULL), grad_all_gather_body));
    return fixture_run(g, TIED_SPEC(.sharding = SHARDING_NONE, .async_compute = true),
                       grad_all_gather_body);
}

/* ---- 3.8 ------------------------------------------------------------------------------------ */

fsdp_status task_3_8(grade *g)
{
    for (int size = 2; size <= g->world_size; size++) { /* replicas join their slices of a shard */
        if (g->world_size % size != 0)
            continue;
        const fix_spec *spec = BY_STRATEGY(SHARDING_HYBRID, GRAD_ACC_CANONICAL, .shard_size = size);
        TRY(fixture_run(g, spec, grad_all_gather_body));
        TRY(fixture_run(g, spec, traffic_body));
        if (size < g->world_size) /* W = 4: two replicas of two shards */
            TRY(whole_hybrid(g, size));
    }
    return FSDP_OK;
}

/* ---- 3.6 ------------------------------------------------------------------------------------ */
static void expect_quiet(fixture *fx)
{
    bool keeps = fx->spec->sharding == SHARDING_NONE;
    for (int u = 0; u < N_UNITS; u++) {
        note(fx, expect_state(WHAT("state of unit %d after end_backward", u), fx->f.units[u].state,
                              keeps ? UNIT_GATHERED : UNIT_SHARDED));
        note(fx, expect_int(WHAT("unit %d reducing after end_backward", u), fx->r.grads[u].reducing,
                            0));
        note(fx,
             expect_int(WHAT("unit %d visited after end_backward", u), fx->r.grads[u].visited, 0));
    }
    note(fx, expect_size("bytes of full gradients after end_backward", fix_live(fx, MEM_GRADS_FULL),
                         0));
}

/* A unit that this micro-step used: gradients made by hand, its reduction still in flight. */
static fsdp_status use_unit(fixture *fx, int u)
{
    TRY(fix_grad_by_hand(fx, u, fix_integer));
    fx->r.grads[u].visited = true;
    return reduce_begin(&fx->r, u);
}

static float no_grad(int leaf, int buffer, size_t i)
{
    return 0.0f;
}

static int leaf_world; /* W of the fixture under test: leaf n is rank n % W of micro-step n / W */

static float grad_of_all(int leaf, int buffer, size_t i)
{
    return fix_integer(leaf % leaf_world, buffer, i);
}

static float grad_of_rank_0(int leaf, int buffer, size_t i)
{
    return leaf % leaf_world == 0 ? fix_integer(0, buffer, i) : 0.0f;
}

/* The units that this rank has reduced so far follow each other, from either end of the model. If a
 * rank leaves one out, another rank's reduction fails, and the cause would not be named. */
static void expect_no_unit_left_out(fixture *fx)
{
    static const char *const orders[] = {
        "reduce-scatter h.2;reduce-scatter h.0;reduce-scatter root;",
        "reduce-scatter root;reduce-scatter h.0;reduce-scatter h.2;"};
    bool follows = false;
    for (int k = 0; k < 2; k++) {
        const size_t a = strlen(fx->trace), b = strlen(orders[k]);
        follows = follows || strncmp(fx->trace, orders[k], a < b ? a : b) == 0;
    }
    note(fx,
         EXPECT(follows, "every rank reduces every unit, also one whose slice is padding",
                "end_backward on rank %d, which has %zu elements of h.2: issued \"%s\", expected "
                "h.2, h.0 and the root, or the same backwards",
                fx->rank, fix_used_in_slice(fx, H2), fx->trace));
}

/* No rank uses any unit. */
static fsdp_status all_unused_body(fixture *fx)
{
    size_t n_buffers = 0, most_elems = 0;
    for (int j = 0; j < N_LEARNING; j++) {
        size_t elems = 0;
        for (int k = 0; k < fix_n_buffers(fx, LEARNING[j]); k++)
            elems += fix_buffer(fx, LEARNING[j], k)->elems;
        n_buffers += (size_t)fix_n_buffers(fx, LEARNING[j]);
        most_elems = elems > most_elems ? elems : most_elems;
    }
    comm_job_stats_reset(fx->comm);
    fix_trace_start(fx);
    const fsdp_status ended = RUNS_AHEAD(fx, "end_backward", backward_end_hook(&fx->r));
    if (n_buffers == N_LEARNING) /* with a second use there would be more names */
        expect_no_unit_left_out(fx);
    TRY(ended);
    note(fx, expect_size(n_buffers > N_LEARNING
                             ? "reductions of units that nobody used, with the root's second use"
                             : "reductions of units that nobody used",
                         comm_job_stats_read(fx->comm).calls[COMM_OP_REDUCE_SCATTER], n_buffers));
    fix_expect_rise(fx, "end_backward, one unit after the other", MEM_GRADS_FULL,
                    most_elems * sizeof(float));
    expect_quiet(fx);
    for (int j = 0; j < N_LEARNING; j++)
        TRY(fix_expect_acc(fx, LEARNING[j], fx->world_size, no_grad));
    return FSDP_OK;
}

/* No rank uses h.2. Forward has gathered all units (grad-op keeps them). */
static fsdp_status unused_body(fixture *fx)
{
    bool keeps = fx->spec->sharding == SHARDING_NONE;
    for (int u = 0; u < N_UNITS && !keeps; u++)
        TRY(fix_gather_by_hand(fx, u));
    TRY(use_unit(fx, H0));
    TRY(use_unit(fx, ROOT));
    fx->r.grads[FROZEN].visited = true; /* as pre_backward has left it */
    fix_trace_start(fx);
    TRY(RUNS_AHEAD(fx, "end_backward", backward_end_hook(&fx->r)));
    fix_expect_trace(fx, "end_backward", "reduce-scatter h.2;");
    expect_quiet(fx);
    TRY(fix_expect_acc(fx, H0, fx->world_size, fix_integer));
    TRY(fix_expect_acc(fx, ROOT, fx->world_size, fix_integer));
    return fix_expect_acc(fx, H2, fx->world_size, no_grad);
}

/* Only rank 0 uses the root. All ranks must still issue the same collectives. */
static fsdp_status one_rank_body(fixture *fx)
{
    leaf_world = fx->world_size;
    fix_trace_start(fx);
    for (int step = 0; step < 2; step++) {
        TRY(use_unit(fx, H2));
        TRY(use_unit(fx, H0));
        if (fx->rank == 0)
            TRY(use_unit(fx, ROOT));
        TRY(backward_end_hook(&fx->r));
        expect_quiet(fx);
    }
    note(fx, comm_same(fx->comm, "collectives of a micro-step", fx->trace));
    TRY(fix_expect_acc(fx, H0, 2 * fx->world_size, grad_of_all));
    TRY(fix_expect_acc(fx, H2, 2 * fx->world_size, grad_of_all));
    return fix_expect_acc(fx, ROOT, 2 * fx->world_size, grad_of_rank_0);
}

fsdp_status task_3_6(grade *g)
{
    TRY(fixture_run(g, ONE_SPEC(.mode = GRAD_ACC_FAST), all_unused_body));
    for (int mode = GRAD_ACC_FAST; mode <= GRAD_ACC_CANONICAL; mode++)
        TRY(fixture_run(g, TIED_SPEC(.mode = (grad_acc_mode)mode), all_unused_body));
    TRY(fixture_run(g, TIED_SPEC(.sharding = SHARDING_FULL), unused_body));
    TRY(fixture_run(g, TIED_SPEC(.sharding = SHARDING_GRAD_OP), unused_body));
    TRY(fixture_run(g, TIED_SPEC(.sharding = SHARDING_NONE), unused_body));
    TRY(fixture_run(g, TIED_SPEC(.sharding = SHARDING_FULL, .mode = GRAD_ACC_CANONICAL),
                    unused_body));
    return fixture_run(g, TIED_SPEC(.sharding = SHARDING_FULL), one_rank_body);
}
