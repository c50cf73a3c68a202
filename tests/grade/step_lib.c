/* step_lib.c -- tasks 3.3 to 3.6 and 3.8: gradients when their sums are complete, over the
 * micro-steps of a step, under every strategy, and for units that a rank does not use.
 *
 * The model is lab3.c's. Sums arrive by hand (fix_push) where reducing is not the task. */
#include <math.h>
#include "tests/grade/handmade_lib.h"
#include "tests/grade/step_lib.h"
#include "tests/grade/whole_lib.h"
#include "tests/unit/target_lib.h"

/* The model with its tied parameter. */
#define SPEC(...) FIX_SPEC(.n_params = 9, __VA_ARGS__)

/* ---- 3.3 ------------------------------------------------------------------------------------ */
static const float SCALE = 1.0f / 24.0f;
enum { TIED_BEGIN = 8, TIED_END = 13 }; /* of the root's flat array */

/* The unsharded twin of one element: whole sums on one device, the second use added last, then one
 * multiplication.
 *   *any_order  how far the result may be from that if terms are added in another order. Either is
 *               off by at most (n+1) u of the terms' magnitudes, u = 2^-24: n-1 additions of n
 *               terms, one of the two uses, one multiplication */
static float twin_grad(const fixture *fx, int u, size_t flat, int n_leaves, int base,
                       double *any_order)
{
    *any_order = 0.0;
    if (flat >= fx->f.units[u].slices.used_elems)
        return 0.0f;
    float sum[2] = {0}, leaf[64];
    bool tied = u == ROOT && flat >= TIED_BEGIN && flat < TIED_END && fix_n_buffers(fx, u) > 1;
    for (int k = 0; k <= tied; k++) {
        for (int n = 0; n < n_leaves; n++)
            leaf[n] = fix_fraction(base + n, k, k ? flat - TIED_BEGIN : flat);
        for (int n = 0; n < n_leaves; n++)
            *any_order += 0x1p-23 * (n_leaves + 1) * fabs((double)leaf[n] * (double)SCALE);
        if (fx->spec->mode == GRAD_ACC_CANONICAL)
            sum[k] = tree_sum_f32(leaf, (size_t)n_leaves);
        else
            for (int n = 0; n < n_leaves; n++)
                sum[k] = n ? sum[k] + leaf[n] : leaf[0];
    }
    return (tied ? sum[0] + sum[1] : sum[0]) * SCALE;
}

typedef struct flat_part {
    size_t begin, elems;
} flat_part;

/* shard_grad of unit u: a part of its flat array. */
static fsdp_status expect_grad(fixture *fx, const char *when, int u, flat_part part, int n_leaves,
                               int base)
{
    TRY(stream_sync(fx->compute));
    TRY(stream_sync(fx->f.reduce_stream));
    const float *got = fix_read(fx, fx->r.grads[u].shard_grad, part.elems);
    if (!got) {
        note(fx, fsdp_error(FSDP_EINVAL, "", "%s: unit %d has no shard_grad", when, u));
        return FSDP_OK;
    }
    for (size_t i = 0; i < part.elems; i++) {
        double any_order;
        float want = twin_grad(fx, u, part.begin + i, n_leaves, base, &any_order);
        char what[96];
        snprintf(what, sizeof what,
                 "%s: gradient of unit %d against the unsharded twin, element %zu", when, u, i);
        if (fx->spec->mode == GRAD_ACC_FAST && target_adds_itself(fx->world))
            note(fx, expect_within(what, i, got[i], (double)want, any_order));
        else
            note(fx, expect_f32(what, &got[i], &want, 1));
    }
    return FSDP_OK;
}

static fsdp_status expect_shard_grad(fixture *fx, const char *when, int u, int n_leaves, int base)
{
    flat_part shard = {fix_shard_begin(fx, u), fx->f.units[u].layout.shard_elems};
    return expect_grad(fx, when, u, shard, n_leaves, base);
}

static fsdp_status grad_finish_body(fixture *fx)
{
    const int units[] = {ROOT, H0, H2};
    int w = fx->world_size;
    for (int j = 0; j < 3; j++) {
        TRY(fix_push(fx, units[j], w, 0, fix_fraction));
        TRY(grad_finish(&fx->r, units[j], SCALE));
        flat_part slice = {fix_slice_begin(fx, units[j]), fx->f.units[units[j]].slices.shard_elems};
        TRY(expect_grad(fx, "grad_finish", units[j], slice, w, 0));
        note(fx, expect_int("contributions left in the sum",
                            fx->r.grads[units[j]].buffer.acc.n_pushed, 0));
    }
    size_t slices = 0;
    for (int j = 0; j < 3; j++)
        slices += fx->f.units[units[j]].slices.shard_elems;
    note(fx,
         expect_int("gradient bytes after grad_finish: one world slice a unit",
                    (long long)fix_live(fx, MEM_GRADS_SHARD), (long long)(slices * sizeof(float))));
    return FSDP_OK;
}

fsdp_status task_3_3(grade *g)
{
    TRY(fixture_run(g, SPEC(.mode = GRAD_ACC_FAST), grad_finish_body));
    for (int size = 1; size <= g->world_size;
         size++) /* a slice is the world's, whatever the mesh */
        if (g->world_size % size == 0)
            TRY(fixture_run(g, SPEC(.mode = GRAD_ACC_CANONICAL, .shard_size = size),
                            grad_finish_body));
    return FSDP_OK;
}

/* ---- 3.4 ------------------------------------------------------------------------------------ */
enum { ACCUM = 3 };

static fsdp_status touch(void *args, int n_threads)
{
    (void)n_threads;
    **(float **)args = 1;
    return FSDP_OK;
}

/* Compute still writes the gradient when zero_grad is called: it must be freed in compute's order,
 * which the order checker sees. */
static fsdp_status freed_in_order_body(fixture *fx)
{
    float **grad = &fx->r.grads[H0].shard_grad;
    TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, 1, "fixture gradient", grad));
    TRY(grade_launch(fx->compute, touch, grad, sizeof *grad,
                     (mem_access){*grad, sizeof **grad, true}));
    return zero_grad(&fx->r);
}

static fsdp_status accumulate_body(fixture *fx)
{
    const int units[] = {ROOT, H0, H2};
    int leaves = ACCUM * fx->world_size;
    for (int step = 0; step < 2; step++) {
        int base = step * leaves;
        TRY(zero_grad(&fx->r));
        note(fx, expect_int("gradient bytes after zero_grad",
                            (long long)fix_live(fx, MEM_GRADS_SHARD), 0));
        for (int a = 0; a < ACCUM; a++)
            for (int j = 0; j < 3; j++)
                TRY(fix_push(fx, units[j], fx->world_size, base + a * fx->world_size,
                             fix_fraction));
        TRY(grads_finish(&fx->r, SCALE));
        for (int j = 0; j < 3; j++)
            TRY(expect_shard_grad(fx, step ? "second step" : "first step", units[j], leaves, base));
        note(fx, EXPECT(!fx->r.grads[FROZEN].shard_grad, "",
                        "grads_finish: a frozen unit has a shard_grad, expected NULL"));
    }
    TRY(zero_grad(&fx->r));
    for (int u = 0; u < N_UNITS; u++)
        note(fx, EXPECT(!fx->r.grads[u].shard_grad, "",
                        "zero_grad: shard_grad of %s is still there, expected it freed and NULL",
                        fx->f.units[u].name));
    note(fx, expect_int("gradient bytes after the last zero_grad",
                        (long long)fix_live(fx, MEM_GRADS_SHARD), 0));
    TRY(fix_push(fx, H2, 1, 0, fix_fraction));
    note(fx, expect_status("zero_grad in the middle of a step", zero_grad(&fx->r), FSDP_ESTATE));
    return FSDP_OK;
}

fsdp_status task_3_4(grade *g)
{
    TRY(fixture_run(g, SPEC(.mode = GRAD_ACC_FAST), accumulate_body));
    TRY(fixture_run(g, SPEC(.mode = GRAD_ACC_CANONICAL), accumulate_body));
    TRY(fixture_run(g, SPEC(.async_compute = true), freed_in_order_body));
    return fixture_run(g, SPEC(.mode = GRAD_ACC_CANONICAL, .async_compute = true), accumulate_body);
}

/* ---- 3.5a ----------------------------------------------------------------------------------- */
/* Which units stay, for every strategy, whatever the flags were before. */
static fsdp_status strategy_table(void)
{
    static const struct {
        sharding_strategy sharding;
        bool root_after_forward, block_after_forward, after_backward;
    } rows[] = {{SHARDING_FULL, true, false, false},
                {SHARDING_GRAD_OP, true, true, false},
                {SHARDING_NONE, true, true, true}};
    static const char *const names[] = {"full", "grad-op", "none"};
    for (int i = 0; i < 6; i++) {
        fsdp_unit units[3] = {{.id = 0}};
        fsdp f = {.n_units = 3, .units = units};
        char what[96];
        for (int u = 0; u < 3; u++)
            units[u].stays_after_forward = units[u].stays_after_backward = i < 3;
        TRY(strategy_fill(rows[i % 3].sharding, &f));
        for (int u = 0; u < 3; u++) {
            bool forward =
                u == UNIT_ROOT ? rows[i % 3].root_after_forward : rows[i % 3].block_after_forward;
            snprintf(what, sizeof what, "%s: unit %d stays_after_forward", names[i % 3], u);
            TRY(expect_int(what, units[u].stays_after_forward, forward));
            snprintf(what, sizeof what, "%s: unit %d stays_after_backward", names[i % 3], u);
            TRY(expect_int(what, units[u].stays_after_backward, rows[i % 3].after_backward));
        }
    }
    return FSDP_OK;
}

/* A mesh whose shard groups are not the strategy's is refused. */
static fsdp_status wrong_groups(void)
{
    fsdp f = {.mesh.shape = {.world_size = 4, .shard_size = 2, .replicate_size = 2}};
    reducer r;
    TRY(expect_status("reducer_create: full in shard groups of 2 of 4 ranks",
                      reducer_create(&f, SHARDING_FULL, &r), FSDP_EINVAL));
    TRY(expect_status("reducer_create: none in shard groups of 2 of 4 ranks",
                      reducer_create(&f, SHARDING_NONE, &r), FSDP_EINVAL));
    f.mesh.shape.shard_size = 1;
    TRY(expect_status("reducer_create: hybrid in shard groups of one",
                      reducer_create(&f, SHARDING_HYBRID, &r), FSDP_EINVAL));
    return expect_status("reducer_create: grad-op in shard groups of one",
                         reducer_create(&f, SHARDING_GRAD_OP, &r), FSDP_EINVAL);
}

/* One micro-step of hooks as the runner calls them: the root spans the others. Every unit takes
 * part, so that end_backward (task 3.6) would only forget who was visited. */
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

/* Gathers of a unit per micro-step: full and hybrid 2 (root 1), grad-op 1, none 0, over the shard
 * group. Reductions, over the world: 1 per unit that learns; canonical mode adds one for the tied
 * tensor. */
static void expect_traffic(fixture *fx, int micro_steps)
{
    const sharding_strategy st = fx->spec->sharding;
    size_t peers = (size_t)fx->world_size - 1;
    size_t shard_peers = (size_t)fx->f.mesh.shape.shard_size - 1;
    size_t gathers = 0, gather_elems = 0, reduces = 0, reduce_elems = 0;
    for (int u = 0; u < N_UNITS; u++) {
        size_t slice = fx->f.units[u].slices.shard_elems;
        size_t n = st == SHARDING_NONE ? 0 : st == SHARDING_GRAD_OP || u == ROOT ? 1 : 2;
        n *= (size_t)micro_steps;
        gathers += n;
        gather_elems += n * shard_peers * fx->f.units[u].layout.shard_elems;
        if (u == FROZEN)
            continue;
        reduces += (size_t)micro_steps;
        reduce_elems += (size_t)micro_steps * peers * slice;
        for (int k = 1; k < fix_n_buffers(fx, u); k++) {
            const grad_buffer *buf = fix_buffer(fx, u, k);
            reduces += (size_t)micro_steps;
            reduce_elems += (size_t)micro_steps * (buf->elems - buf->acc.elems);
        }
    }
    comm_stats cs = comm_job_stats_read(fx->comm);
    note(fx, expect_int("all-gathers of two micro-steps", (long long)cs.calls[COMM_OP_ALL_GATHER],
                        (long long)gathers));
    note(fx, expect_int("reduce-scatters of two micro-steps",
                        (long long)cs.calls[COMM_OP_REDUCE_SCATTER], (long long)reduces));
    note(fx, expect_int("bytes sent by all-gathers", (long long)cs.bytes_sent[COMM_OP_ALL_GATHER],
                        (long long)(gather_elems * sizeof(float))));
    note(fx, expect_int("bytes sent by reduce-scatters",
                        (long long)cs.bytes_sent[COMM_OP_REDUCE_SCATTER],
                        (long long)(reduce_elems * sizeof(float))));
}

/* Empties the accumulators, as the end of a step would. */
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
        note(fx, expect_int("gathered bytes between forward and backward", (long long)between,
                            (long long)want));
        note(fx, expect_int("gathered bytes after backward", (long long)after, 0));
        size_t peak = ledger_read(device_ledger(fx->dev)).peak_bytes[MEM_PARAMS_FULL];
        if (st == SHARDING_FULL || st == SHARDING_HYBRID)
            want = padded[ROOT] + padded[H0]; /* one block at a time; h.0 is the largest */
        if (!fx->runs_ahead)
            note(fx, expect_int("peak of gathered bytes", (long long)peak, (long long)want));
    }
    return FSDP_OK;
}

#define BY_STRATEGY(...) SPEC(.by_strategy = true, __VA_ARGS__)

fsdp_status task_3_5a(grade *g)
{
    TRY(comm_agree(g->comm, strategy_table()));
    TRY(comm_agree(g->comm, wrong_groups()));
    TRY(fixture_run(g, BY_STRATEGY(.sharding = SHARDING_FULL), traffic_body));
    TRY(fixture_run(g, BY_STRATEGY(.sharding = SHARDING_GRAD_OP), traffic_body));
    TRY(fixture_run(g, BY_STRATEGY(.sharding = SHARDING_NONE), traffic_body));
    TRY(fixture_run(g, BY_STRATEGY(.sharding = SHARDING_FULL, .mode = GRAD_ACC_CANONICAL),
                    traffic_body));
    return fixture_run(g, BY_STRATEGY(.sharding = SHARDING_NONE, .mode = GRAD_ACC_CANONICAL),
                       traffic_body);
}

/* ---- 3.5b ----------------------------------------------------------------------------------- */
/* Element `flat` of a unit's gradient; zero at its end, as grad_finish leaves it. */
static float finished_value(const fixture *fx, int u, size_t flat)
{
    return flat < fx->f.units[u].layout.used_elems ? fix_fraction(u, 0, flat) : 0.0f;
}

typedef struct slice_of {
    const fixture *fx;
    int u;
} slice_of;

static float slice_value(void *ctx, size_t i)
{
    const slice_of *s = ctx;
    return finished_value(s->fx, s->u, fix_slice_begin(s->fx, s->u) + i);
}

/* Every replica of a shard holds one finished slice; each ends with the whole shard's gradient. */
static fsdp_status gather_slices(fixture *fx, int u)
{
    const size_t slice_elems = fx->f.units[u].slices.shard_elems;
    const size_t shard_elems = fx->f.units[u].layout.shard_elems;
    const size_t peers = (size_t)fx->f.mesh.shape.replicate_size - 1;
    const char *name = fx->f.units[u].name;
    float **grad = &fx->r.grads[u].shard_grad, *slice;
    const size_t before = fix_live(fx, MEM_GRADS_SHARD);
    char buf[64];
    TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, slice_elems, "fixture slice", grad));
    TRY(fix_fill(fx, *grad, slice_elems, slice_value, &(slice_of){fx, u}));
    slice = *grad;
    comm_job_stats_reset(fx->comm);
    fix_trace_start(fx); /* of the world; replicas of a part of it have a group of their own */
    TRY(grad_all_gather(&fx->r, u));
    const float *got = fix_read(fx, *grad, shard_elems); /* in order of compute, and of no other */
    if (peers == 0)
        note(fx,
             EXPECT(*grad == slice, "return before anything is allocated",
                    "grad_all_gather of %s, which has one replica: shard_grad is another array, "
                    "expected it left alone",
                    name));
    if (peers == 0 || fx->f.mesh.shape.shard_size == 1)
        fix_expect_trace(fx, "grad_all_gather",
                         peers ? fix_issued(buf, sizeof buf, COMM_OP_ALL_GATHER, name) : "");
    const comm_stats cs = comm_job_stats_read(fx->comm);
    note(fx, expect_int("all-gathers of one gradient", (long long)cs.calls[COMM_OP_ALL_GATHER],
                        peers > 0));
    note(fx, expect_int("bytes sent: this rank's slice to each other replica",
                        (long long)cs.bytes_sent[COMM_OP_ALL_GATHER],
                        (long long)(peers * slice_elems * sizeof(float))));
    note(fx, expect_int("gradient bytes: the shard's, without the slice that it came from",
                        (long long)(fix_live(fx, MEM_GRADS_SHARD) - before),
                        (long long)(shard_elems * sizeof(float))));
    for (size_t i = 0; i < shard_elems && got; i++) {
        const float want = finished_value(fx, u, fix_shard_begin(fx, u) + i);
        char what[128];
        snprintf(what, sizeof what, "gradient of %s on rank %d, element %zu of its shard", name,
                 fx->rank, i);
        note(fx, expect_f32(what, &got[i], &want, 1));
    }
    return FSDP_OK;
}

static fsdp_status grad_all_gather_body(fixture *fx)
{
    TRY(gather_slices(fx, ROOT));
    TRY(gather_slices(fx, H0));
    TRY(gather_slices(fx, H2));
    comm_job_stats_reset(fx->comm);
    TRY(grad_all_gather(&fx->r, FROZEN));
    note(fx, expect_int("all-gathers for a frozen unit",
                        (long long)comm_job_stats_read(fx->comm).calls[COMM_OP_ALL_GATHER], 0));
    return FSDP_OK;
}

fsdp_status task_3_5b(grade *g)
{
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_NONE), grad_all_gather_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL), grad_all_gather_body));
    return fixture_run(g, SPEC(.sharding = SHARDING_NONE, .async_compute = true),
                       grad_all_gather_body);
}

/* ---- 3.8 ------------------------------------------------------------------------------------ */

fsdp_status task_3_8(grade *g)
{
    for (int size = 2; size <= g->world_size; size++) { /* replicas join their slices of a shard */
        if (g->world_size % size != 0)
            continue;
        const fix_spec *spec = BY_STRATEGY(.sharding = SHARDING_HYBRID, .shard_size = size,
                                           .mode = GRAD_ACC_CANONICAL);
        TRY(fixture_run(g, spec, grad_all_gather_body));
        TRY(fixture_run(g, spec, traffic_body));
    }
    for (int size = 2; size < g->world_size; size++) /* W = 4: two replicas of two shards */
        if (g->world_size % size == 0)
            TRY(whole_hybrid(g, size));
    return FSDP_OK;
}

/* ---- 3.6 ------------------------------------------------------------------------------------ */
static void expect_quiet(fixture *fx)
{
    bool keeps = fx->spec->sharding == SHARDING_NONE;
    for (int u = 0; u < N_UNITS; u++) {
        char what[96];
        snprintf(what, sizeof what, "state of unit %d after end_backward", u);
        note(fx, expect_state(what, fx->f.units[u].state, keeps ? UNIT_GATHERED : UNIT_SHARDED));
        snprintf(what, sizeof what, "unit %d reducing after end_backward", u);
        note(fx, expect_int(what, fx->r.grads[u].reducing, 0));
        snprintf(what, sizeof what, "unit %d visited after end_backward", u);
        note(fx, expect_int(what, fx->r.grads[u].visited, 0));
    }
    note(fx, expect_int("bytes of full gradients after end_backward",
                        (long long)fix_live(fx, MEM_GRADS_FULL), 0));
}

/* A unit that this micro-step used: gradients made by hand, its reduction left in flight. */
static fsdp_status use_unit(fixture *fx, int u)
{
    TRY(fix_grad_by_hand(fx, u, fix_integer));
    fx->r.grads[u].visited = true;
    return reduce_begin(&fx->r, u);
}

static float no_grad(int leaf, int buffer, size_t i)
{
    (void)leaf, (void)buffer, (void)i;
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

/* No rank uses h.2. Forward gathered all units (grad-op keeps them). */
static fsdp_status unused_body(fixture *fx)
{
    char buf[64];
    leaf_world = fx->world_size;
    bool keeps = fx->spec->sharding == SHARDING_NONE;
    for (int u = 0; u < N_UNITS && !keeps; u++)
        TRY(fix_gather_by_hand(fx, u));
    TRY(use_unit(fx, H0));
    TRY(use_unit(fx, ROOT));
    fix_trace_start(fx);
    TRY(backward_end_hook(&fx->r));
    fix_expect_trace(fx, "end_backward",
                     fix_issued(buf, sizeof buf, COMM_OP_REDUCE_SCATTER, "h.2"));
    expect_quiet(fx);
    TRY(fix_expect_acc(fx, H0, fx->world_size, grad_of_all));
    TRY(fix_expect_acc(fx, ROOT, fx->world_size, grad_of_all));
    return fix_expect_acc(fx, H2, fx->world_size, no_grad);
}

/* The root is used by rank 0 only: all ranks must still issue the same collectives. */
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
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL), unused_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_GRAD_OP), unused_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_NONE), unused_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL, .mode = GRAD_ACC_CANONICAL), unused_body));
    return fixture_run(g, SPEC(.sharding = SHARDING_FULL), one_rank_body);
}
