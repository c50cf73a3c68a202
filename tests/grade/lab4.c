/* lab4.c -- the task tests of lab 4: the optimizer on shards, and checkpoints.
 *
 * Tasks 4.1 to 4.5 use literals. Gaps and padding hold NaN wherever the task must not read them, so
 * a read shows. Tasks 4.1 and 4.2 are in adamw_lib.c, 4.5 in ckpt_lib.c, 4.6 in tiny_lib.c. */
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "common/sum/rsum_digits.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/backward.h"
#include "lab4_optimizer/offload.h"
#include "tests/grade/adamw_lib.h"
#include "tests/grade/ckpt_lib.h"
#include "tests/grade/handmade_lib.h"
#include "tests/grade/norm_lib.h"
#include "tests/grade/offload_lib.h"
#include "tests/grade/tiny_lib.h"

/* ---- 4.3 ------------------------------------------------------------------------------------ */
/* PARAMS of handmade_lib.h without the tied parameter. */
#define SPEC(...) FIX_SPEC(.n_params = 8, __VA_ARGS__)
#define AHEAD()   SPEC(.sharding = SHARDING_FULL, .async_compute = true)
#define IDLE()    IDLE_SPEC(.sharding = SHARDING_FULL, .async_compute = true)

static float whole_grad(int p, size_t i)
{
    return (float)(2 * p + 1) * (float)((int)(i % 5) - 1) / 4.0f; /* squares are exact in double */
}

static float frac_grad(int p, size_t i)
{
    return (float)sin(1.0 + 3.1 * (double)p + 1.7 * (double)i) * exp2f((float)(p - 4) * 3.0f);
}

typedef float (*grad_of)(int p, size_t i);

/* A gradient by hand, of the parameters of a fixture. */
typedef struct hand_grad {
    const fixture *fx;
    grad_of value;
} hand_grad;

static float hand_value(void *ctx, int p, size_t elem)
{
    const hand_grad *g = ctx;
    return p < 0 ? NAN : g->fx->spec->params[p].frozen ? 0.0f : g->value(p, elem);
}

/* Gradients in parameters, NaN everywhere else. */
static fsdp_status grads_by_hand(fixture *fx, grad_of value)
{
    hand_grad by_hand = {fx, value};
    for (int u = 0; u < N_UNITS; u++) {
        size_t elems = fx->f.units[u].layout.shard_elems;
        float **grad = &fx->r.grads[u].shard_grad;
        if (fx->f.units[u].given.frozen)
            continue;
        if (!*grad)
            TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, elems, "fixture gradient", grad));
        TRY(fix_fill_shard(fx, u, *grad, hand_value, &by_hand));
    }
    return FSDP_OK;
}

/* The gradient's sum of squares over the model's first n_units units. */
static double model_sum_squares(const fixture *fx, grad_of value, int n_units)
{
    const fix_param *params = fx->spec->params;
    rsum sum = {0};
    for (int p = 0; p < fx->spec->n_params; p++)
        for (size_t i = 0; i < params[p].elems; i++) {
            if (params[p].frozen || params[p].unit >= n_units)
                continue;
            float x = value(p, i);
            rsum_add_squares(&sum, &x, 1);
        }
    return rsum_value(&sum);
}

/* An optimizer whose norm is formed on norm_stream. */
static fsdp_status watched_optimizer(fixture *fx, stream *norm_stream, fsdp_optimizer *o)
{
    TRY(optimizer_create(&fx->r, o));
    if (norm_stream != NULL)
        o->norm_stream = norm_stream;
    norm_watch(fx, o);
    return FSDP_OK;
}

static fsdp_status expect_sum(fixture *fx, const fsdp_optimizer *o, const char *who, double want)
{
    rsum sum;
    TRY(stream_sync(fx->f.comm_stream));
    TRY(grade_read(fx->compute, o->norm_sum, sizeof sum, &sum));
    note(fx, EXPECT(rsum_value(&sum) == want,
                    "every rank zeroes norm_sum first, then adds each of its ranges once",
                    "%s: sum of squares of the model: got %.17g, expected %.17g", who,
                    rsum_value(&sum), want));
    return FSDP_OK;
}

/* A rank that has nothing to add takes part in the all-reduce, too. If it does not, the ranks
 * disagree in their next collective; this check comes before it and names the cause. */
static void expect_takes_part(fixture *fx, const fsdp_optimizer *o, const norm_seen *seen)
{
    int n_ranges = 0;
    for (int u = 0; u < o->n_units; u++)
        n_ranges += o->units[u].n_ranges;
    note(fx, EXPECT(o->norm_group == NULL || seen->on, "all ranks of norm_group take part",
                    "the norm on rank %d, which has %d ranges: no all-reduce was issued", fx->rank,
                    n_ranges));
}

/* Without a norm group nothing is sent. Otherwise only the shard group communicates. */
static void expect_norm_traffic(fixture *fx, const fsdp_optimizer *o, const norm_seen *seen)
{
    const comm *group = o->norm_group;
    comm_stats cs = comm_job_stats_read(fx->comm);
    for (int op = 0; op < COMM_OPS; op++)
        note(fx, expect_int(op == COMM_OP_ALL_REDUCE ? "all-reduces of the norm"
                                                     : comm_op_name((comm_op)op),
                            (long long)cs.calls[op], op == COMM_OP_ALL_REDUCE && group != NULL));
    if (group != NULL)
        note(fx,
             EXPECT(seen->group == comm_group_number(group),
                    "o->norm_group: the ranks of the world have copies of each other's shards",
                    "grad_norm: the all-reduce ran in %s, expected norm_group, of %d of %d ranks",
                    seen->group == comm_group_number(fx->comm) ? "the group of all ranks"
                                                               : "another group",
                    comm_size(group), fx->world_size));
    norm_expect_stream(fx, o, "grad_norm", seen);
}

/* The coefficient from the norm is the same on every rank, for all groups. */
static fsdp_status expect_same_coef(fixture *fx, fsdp_optimizer *o, double sum)
{
    const float max_norm = (float)sqrt(sum) / 3.0f, norm = (float)sqrt(sum);
    const float want = max_norm / (norm + 1e-6f);
    TRY(fx->g->ops->clip_coef(fx->compute, &(clip_coef_args){.norm = o->norm,
                                                             .coef = o->coef,
                                                             .sum = o->norm_sum,
                                                             .max_norm = max_norm}));
    const float *got_norm = fix_read(fx, o->norm, 1), *got_coef = fix_read(fx, o->coef, 1);
    note(fx, expect_f32("norm", got_norm, &norm, 1));
    note(fx, expect_f32("clip coefficient", got_coef, &want, 1));
    note(fx, comm_same(fx->comm, "norm and clip coefficient",
                       WHAT("%a %a", (double)*got_norm, (double)*got_coef)));
    return FSDP_OK;
}

static fsdp_status expect_norm(fixture *fx, fsdp_optimizer *o, grad_of value)
{
    TRY(grads_by_hand(fx, value));
    norm_seen seen;
    norm_calls_watch(fx, &seen);
    comm_job_stats_reset(fx->comm);
    fsdp_status status = RUNS_AHEAD(fx, "grad_norm", norm_call_guarded(fx, o, grad_norm));
    comm_set_watch(fx->comm, NULL);
    TRY(status);
    expect_takes_part(fx, o, &seen);
    const double want = model_sum_squares(fx, value, N_UNITS);
    expect_norm_traffic(fx, o, &seen); /* first: in a wrong group the sum is wrong, too */
    TRY(expect_sum(fx, o, "grad_norm", want));
    return expect_same_coef(fx, o, want);
}

static float inf_grad(int p, size_t i)
{
    return p == 3 && i == 1 ? -INFINITY : whole_grad(p, i);
}

static float nan_grad(int p, size_t i)
{
    return p == 3 && i == 1 ? NAN : whole_grad(p, i);
}

/* One rank has an element that is not a number. All ranks must see it, or their steps differ. */
static fsdp_status expect_special(fixture *fx, fsdp_optimizer *o, grad_of value)
{
    rsum sum;
    TRY(grads_by_hand(fx, value));
    TRY(norm_call_guarded(fx, o, grad_norm));
    TRY(stream_sync(fx->f.comm_stream));
    TRY(grade_read(fx->compute, o->norm_sum, sizeof sum, &sum));
    const float got = (float)rsum_value(&sum), want = (float)model_sum_squares(fx, value, N_UNITS);
    note(fx, expect_f32("sum of squares with an infinity or a NaN on one rank", &got, &want, 1));
    return FSDP_OK;
}

static fsdp_status grad_norm_on(fixture *fx, stream *norm_stream)
{
    const mesh_shape *shape = &fx->f.mesh.shape;
    const bool is_whole = shape->size[AXIS_SHARD] == 1 && shape->world_size > 1;
    const comm *group = is_whole ? NULL : fx->f.mesh.shard;
    comm *alone = NULL;
    fsdp_optimizer o;
    TRY(watched_optimizer(fx, norm_stream, &o));
    note(fx, EXPECT(o.norm_group == group, "", "optimizer_create: norm_group is %s, expected %s",
                    o.norm_group ? "a group" : "NULL",
                    group ? "the shard group" : "NULL: each rank has whole gradients"));
    TRY(expect_norm(fx, &o, whole_grad));
    TRY(expect_special(fx, &o, inf_grad));
    TRY(expect_special(fx, &o, nan_grad));
    if (is_whole) /* a norm group that is not the world, also of 2 and 3 ranks */
        TRY(comm_range(fx->comm, fx->rank, 1, 1, &alone));
    o.norm_group = alone ? alone : o.norm_group;
    TRY(expect_norm(fx, &o, frac_grad)); /* a second step starts from zero again */
    optimizer_free(&o);
    comm_close(alone);
    return FSDP_OK;
}

static fsdp_status grad_norm_body(fixture *fx)
{
    return grad_norm_on(fx, fx->compute);
}

/* Read the norm on compute after grad_norm; norm_stream is held up until all is issued. */
static fsdp_status read_behind_norm(fixture *fx, fsdp_optimizer *o, rsum *seen)
{
    TRY(grads_by_hand(fx, whole_grad));
    TRY(gate_close(fx->g, o->norm_stream));
    TRY(norm_call_guarded(fx, o, grad_norm));
    TRY(grade_fetch(fx->compute, o->norm_sum, sizeof *seen, seen));
    TRY(gate_open(fx->g, "grad_norm"));
    return stream_sync(fx->compute);
}

/* Compute is held up before the squares, so norm_stream must wait too. Without that wait the
 * all-reduce ends at once; with it nothing ends in the 100 ms that the test watches. */
static fsdp_status squares_come_first(fixture *fx, fsdp_optimizer *o)
{
    TRY(grads_by_hand(fx, whole_grad));
    TRY(gate_close(fx->g, fx->compute));
    TRY(norm_call_guarded(fx, o, grad_norm));
    bool ended = false;
    for (int i = 0; i < 100 && !ended; i++) {
        usleep(1000);
        ended = event_done(o->added);
    }
    TRY(gate_open(fx->g, "grad_norm"));
    TRY(stream_sync(fx->compute));
    return EXPECT(
        !ended, "record an event after the squares; norm_stream waits for it",
        "grad_norm: the all-reduce ended while compute stood before the squares, expected "
        "norm_stream to wait for them");
}

/* The norm has its own stream, as in lab 5: only events order it. */
static fsdp_status grad_norm_apart_body(fixture *fx)
{
    fsdp_optimizer o;
    rsum seen;
    TRY(grad_norm_on(fx, fx->f.comm_stream));
    TRY(watched_optimizer(fx, fx->f.comm_stream, &o));
    TRY(read_behind_norm(fx, &o, &seen));
    const double want = model_sum_squares(fx, whole_grad, N_UNITS);
    note(fx,
         EXPECT(rsum_value(&seen) == want,
                "compute must wait for event `added`, recorded on norm_stream",
                "what compute reads in norm_sum after grad_norm: got %.9g, expected %.9g (it did "
                "not wait for norm_stream, which was held up)",
                rsum_value(&seen), want));
    TRY(stream_sync(fx->f.comm_stream));
    optimizer_free(&o);
    TRY(watched_optimizer(fx, fx->f.comm_stream, &o));
    note(fx, squares_come_first(fx, &o));
    optimizer_free(&o);
    return FSDP_OK;
}

static fsdp_status task_4_3(grade *g)
{
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL), grad_norm_body));
    TRY(fixture_run(g, AHEAD(), grad_norm_body));
    TRY(fixture_run(g, AHEAD(), grad_norm_apart_body));
    TRY(fixture_run(g, IDLE(), grad_norm_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_NONE), grad_norm_body));
    for (int size = 1; size <= g->world_size; size++) /* replicas of a shard */
        if (g->world_size % size == 0)
            TRY(fixture_run(g, SPEC(.sharding = SHARDING_HYBRID, .shard_size = size),
                            grad_norm_body));
    return FSDP_OK;
}

/* ---- 4.4 ------------------------------------------------------------------------------------ */
static const fixture *push_fx; /* for pushed_grad: fix_push passes no context */
static int push_unit;
static bool push_nan; /* NaN in gaps, which the update must skip */

/* Leaf n's gradient: quarters that differ on every rank; NaN in gaps if push_nan. */
static float pushed_grad(int leaf, int buffer, size_t i)
{
    size_t elem = 0;
    int p = fix_param_at(push_fx, push_unit, i, &elem);
    if (p < 0)
        return push_nan ? NAN : 0.0f;
    return push_fx->spec->params[p].frozen ? 0.0f : whole_grad(p, elem) * (float)(leaf + 1);
}

/* The scale of all gradients. A finished gradient is the scaled sum over W leaves, exact. Each step
 * has its own scale, so the norm of an earlier step shows. */
static float grad_scale;
enum { STEPS = 3 };
static const float GRAD_SCALES[STEPS] = {0.125f, 0.5f, 0.25f};

static float finished_grad(const fixture *fx, int p, size_t i)
{
    int w = fx->world_size;
    return whole_grad(p, i) * (float)(w * (w + 1) / 2) * grad_scale;
}

/* The sum of squares of the finished gradient over the first n_units units. */
static double finished_squares(const fixture *fx, int n_units)
{
    const double factor = fx->world_size * (fx->world_size + 1) / 2 * (double)grad_scale;
    return model_sum_squares(fx, whole_grad, n_units) * factor * factor;
}

static fsdp_status push_step(fixture *fx, int step)
{
    push_fx = fx;
    grad_scale = GRAD_SCALES[step];
    TRY(zero_grad(&fx->r));
    for (push_unit = 0; push_unit < N_UNITS; push_unit++)
        if (!fx->f.units[push_unit].given.frozen)
            TRY(fix_push(fx, push_unit, fx->world_size, 0, pushed_grad));
    return FSDP_OK;
}

/* Check the norm that a step reports. The caller has filled its place with NaN. */
static fsdp_status expect_step_norm(fixture *fx, const float *norm, float clip_norm)
{
    const float want = (float)sqrt(finished_squares(fx, N_UNITS));
    TRY(stream_sync(fx->compute));
    TRY(stream_sync(fx->f.comm_stream));
    expect_values(fx,
                  clip_norm > 0.0f ? "norm before clipping, of the scaled gradient"
                                   : "norm of a step without clipping (it is reported too)",
                  norm, &want, 1);
    return FSDP_OK;
}

/* The coefficient has the expected bits on every rank. */
static fsdp_status expect_coef(fixture *fx, const fsdp_optimizer *o, float max_norm, float norm)
{
    float want =
        max_norm == 0.0f || max_norm / (norm + 1e-6f) > 1.0f ? 1.0f : max_norm / (norm + 1e-6f);
    const float *got = fix_read(fx, o->coef, 1);
    note(fx, expect_f32(max_norm == 0.0f ? "clip coefficient without clipping" : "clip coefficient",
                        got, &want, 1));
    note(fx, comm_same(fx->comm, "clip coefficient", WHAT("%a", (double)*got)));
    return FSDP_OK;
}

/* SGD shows every factor: p - lr*(g*coef), bit by bit. Gaps and padding stay zero. */
typedef struct sgd_of {
    const fixture *fx;
    float lr, coef;
} sgd_of;

static float after_sgd(void *ctx, int p, size_t elem)
{
    const sgd_of *s = ctx;
    const float before = fix_initial(NULL, p, elem);
    if (p < 0 || s->fx->spec->params[p].frozen)
        return before;
    return before - s->lr * (finished_grad(s->fx, p, elem) * s->coef);
}

static fsdp_status clip_body(fixture *fx)
{
    fsdp_optimizer o;
    float *norm;
    fx->f.run.optimizer = OPTIMIZER_SGD;
    TRY(watched_optimizer(fx, NULL, &o));
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, 1, "norm", &norm));
    static const float limits[STEPS] = {1.0f / 3.0f, 0.0f, 2.0f}; /* of the norm */
    for (int k = 0; k < STEPS; k++) {
        for (int u = 0; u < N_UNITS; u++) /* fresh weights */
            TRY(fix_fill_shard(fx, u, fx->f.units[u].shard, fix_initial, NULL));
        TRY(push_step(fx, k));
        const float want_norm = (float)sqrt(finished_squares(fx, N_UNITS));
        step_scalars sc = {
            .optim.lr = 0.5, .clip_norm = limits[k] * want_norm, .grad_scale = grad_scale};
        TRY(device_poison(fx->compute, norm, sizeof *norm));
        TRY(RUNS_AHEAD(fx, "optimizer_step", optimizer_step(&o, &sc, norm)));
        TRY(expect_step_norm(fx, norm, sc.clip_norm));
        TRY(expect_coef(fx, &o, sc.clip_norm, want_norm));
        sgd_of want = {fx, 0.5f, *fix_read(fx, o.coef, 1)};
        for (int u = 0; u < N_UNITS; u++)
            fix_expect_shard(
                fx,
                WHAT("after a clipped step, in which each rank updates its ranges (%d of h.2)",
                     o.units[H2].n_ranges),
                u, fx->f.units[u].shard, after_sgd, &want);
        note(fx,
             EXPECT(fx->r.grads[H0].shard_grad, "zero_grad, at the next step, frees them",
                    "optimizer_step: shard_grad of h.0 is NULL, expected gradients to stay until "
                    "the next zero_grad"));
    }
    optimizer_free(&o);
    device_free(fx->compute, norm);
    return FSDP_OK;
}

/* What AdamW must leave: parameters and moments, by parameter and element. */
typedef float adamw_ref[3][8][8];

/* Check unit u after step `step`, which began at ref; then set ref to the values found. */
static void expect_adamw(fixture *fx, const fsdp_optimizer *o, int u, int64_t step, float coef,
                         adamw_ref ref)
{
    const size_t elems = fx->f.units[u].layout.shard_elems;
    const float *param = fix_read(fx, fx->f.units[u].shard, elems), zero = 0.0f;
    const float *m = fix_read(fx, o->units[u].state[0], elems),
                *v = fix_read(fx, o->units[u].state[1], elems);
    for (size_t i = 0; i < elems; i++) {
        size_t e = 0;
        int p = fix_param_at(fx, u, fix_shard_begin(fx, u) + i, &e);
        const char *what = WHAT("step %d, unit %d: parameter", (int)step, u);
        if (p < 0 || fx->spec->params[p].frozen) {
            note(fx, expect_f32(what, &param[i], p < 0 ? &zero : &ref[0][p][e], 1));
            continue;
        }
        float g = finished_grad(fx, p, e);
        adamw_args a = {.param = &ref[0][p][e], .m = &ref[1][p][e], .v = &ref[2][p][e], .grad = &g};
        const optim_config config = adamw_config(0.1, fx->spec->params[p].decay ? 0.25 : 0.0, step);
        adamw_scalars(&a, &config);
        adamw_exact want = adamw_double(&a, 0, (double)coef);
        note(fx, expect_within(what, i, param[i], want.param, want.param_tol));
        note(fx, expect_within(WHAT("step %d, unit %d: first moment", (int)step, u), i, m[i],
                               want.m, want.m_tol));
        ref[0][p][e] = param[i];
        ref[1][p][e] = m[i];
        ref[2][p][e] = v[i];
    }
}

/* The step under test: task 4.4's, or task 4.7's if shards are on the host. */
static fsdp_status step_of(fsdp_optimizer *o, const step_scalars *sc, float *norm)
{
    return shard_is_on_host(o->r->f) ? offload_step(o, sc, adamw_shard, norm)
                                     : optimizer_step(o, sc, norm);
}

/* Make a step while compute is held up: the host must not wait for it. */
static fsdp_status step_held(fixture *fx, fsdp_optimizer *o, const step_scalars *sc, float *norm)
{
    const bool uploads = fx->f.given.offload != NULL;
    TRY(gate_close(fx->g, fx->compute));
    const char *what = uploads ? "offload_update" : "optimizer_step";
    const fsdp_status stepped = RUNS_AHEAD(fx, what, step_of(o, sc, norm));
    if (stepped != FSDP_OK)
        (void)gate_open(fx->g, ""); /* work at the gate must end before the fixture does */
    TRY(stepped);
    if (uploads)
        uploads_expect(fx, 2 * 2 + (int)sc->optim.step * 3 * 2); /* 2 pieces, then 3 a step */
    note(fx, gate_open(fx->g, what));
    return FSDP_OK;
}

/* Two steps of AdamW, with NaN in every gap of the gradient; the second does not clip. Checks decay
 * per parameter, the clipped gradient in the moments, the step number in the bias correction, and
 * that nothing outside parameters changes. */
static fsdp_status adamw_body(fixture *fx)
{
    fsdp_optimizer o;
    norm_seen seen;
    float *norm;
    push_nan = true;
    /* on other devices a gate also holds up the thread that reports other streams; with shards on
     * the host, the host waits for downloads of gradients */
    const bool is_held =
        fx->spec->async_compute && !shard_is_on_host(&fx->f) && device_runs_c(fx->dev);
    TRY(watched_optimizer(fx, NULL, &o));
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, 1, "norm", &norm));
    adamw_ref ref = {0};
    for (int p = 0; p < fx->spec->n_params; p++)
        for (size_t i = 0; i < fx->spec->params[p].elems; i++)
            ref[0][p][i] = fix_value(p, i);
    for (int step = 0; step < 2; step++) {
        TRY(push_step(fx, step));
        const float want_norm = (float)sqrt(finished_squares(fx, N_UNITS));
        step_scalars sc = {.optim = adamw_config(0.1, 0.25, step),
                           .clip_norm = step == 0 ? want_norm / 2.0f : 0.0f,
                           .grad_scale = grad_scale};
        TRY(device_poison(fx->compute, norm, sizeof *norm));
        norm_calls_watch(fx, &seen);
        const fsdp_status stepped =
            is_held ? step_held(fx, &o, &sc, norm)
                    : RUNS_ON(fx, "the optimizer's step", step_of(&o, &sc, norm));
        comm_set_watch(fx->comm, NULL);
        TRY(stepped);
        expect_takes_part(fx, &o, &seen);
        TRY(expect_step_norm(fx, norm, sc.clip_norm));
        for (int u = 0; u < N_UNITS; u++)
            expect_adamw(fx, &o, u, step, step == 0 ? sc.clip_norm / (want_norm + 1e-6f) : 1.0f,
                         ref);
    }
    optimizer_free(&o);
    device_free(fx->compute, norm);
    return FSDP_OK;
}

static fsdp_status task_4_4(grade *g)
{
    TRY(fixture_run(g, ONE_SPEC(.sharding = SHARDING_FULL), clip_body)); /* no ranges of one unit */
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_NONE), clip_body));
    for (int size = 2; size < g->world_size; size++) /* replicas of a shard: the same steps */
        if (g->world_size % size == 0)
            TRY(fixture_run(g, SPEC(.sharding = SHARDING_HYBRID, .shard_size = size), clip_body));
    TRY(fixture_run(g, AHEAD(), adamw_body));
    TRY(fixture_run(g, IDLE(), adamw_body));
    return fixture_run(g, SPEC(.sharding = SHARDING_FULL), adamw_body);
}

/* ---- 4.7 ------------------------------------------------------------------------------------ */

/* Each of the three units is one piece of two moments. */
static fsdp_status offload_body(fixture *fx)
{
    const offload_config config = {.states = true, .piece_bytes = 2 * 32 * sizeof(float)};
    TRY(offload_create(fx->dev, &config, &fx->f.given.offload));
    uploads_watch(fx);
    fsdp_status status = adamw_body(fx);
    offload_free(fx->f.given.offload);
    fx->f.given.offload = NULL;
    return status;
}

/* Run body with shards on the host, as f->given.offload says. The shards stay in the memory where
 * the fixture made them, which copies can reach too. */
static fsdp_status with_host_shards(fixture *fx, fix_body body)
{
    const offload_config config = {
        .states = true, .shards = true, .piece_bytes = OFFLOAD_MOST_ARRAYS * 32 * sizeof(float)};
    TRY(offload_create(fx->dev, &config, &fx->f.given.offload));
    TRY(offload_open_ring(fx->f.given.offload, fsdp_most_shard_elems(&fx->f), OFFLOAD_MOST_ARRAYS));
    TRY(body(fx));
    TRY(zero_grad(&fx->r));
    offload_close_ring(fx->f.given.offload);
    TRY(stream_sync(fx->compute));
    offload_free(fx->f.given.offload);
    fx->f.given.offload = NULL;
    return FSDP_OK;
}

static fsdp_status host_step_body(fixture *fx)
{
    return with_host_shards(fx, adamw_body);
}

/* Add the squares of all trained units, one unit after the other. */
static fsdp_status squares_of_units(fsdp_optimizer *o)
{
    for (int u = 0; u < o->n_units; u++)
        if (!o->r->f->units[u].given.frozen)
            TRY(offload_squares(o, u));
    return FSDP_OK;
}

static fsdp_status squares_body(fixture *fx)
{
    static const rsum none;
    fsdp_optimizer o;
    rsum want = {0};
    TRY(watched_optimizer(fx, NULL, &o));
    TRY(grads_by_hand(fx, frac_grad));
    TRY(grade_write(fx->compute, o.norm_sum, &none, sizeof none));
    TRY(RUNS_AHEAD(fx, "offload_squares", norm_call_guarded(fx, &o, squares_of_units)));
    for (int u = 0; u < N_UNITS; u++)
        for (size_t i = 0, e; i < fx->f.units[u].layout.shard_elems; i++) {
            const int p = fix_param_at(fx, u, fix_shard_begin(fx, u) + i, &e);
            const float x = p < 0 || fx->spec->params[p].frozen ? 0.0f : frac_grad(p, e);
            rsum_add_squares(&want, &x, 1);
        }
    TRY(expect_sum(fx, &o, "offload_squares", rsum_value(&want)));
    optimizer_free(&o);
    return FSDP_OK;
}

static fsdp_status norm_by_units(fsdp_optimizer *o)
{
    return offload_norm(o, grad_scale);
}

/* The norm leaves frozen units and units after the last unchanged. */
static void expect_parked(fixture *fx, const float *of_frozen, int n_units)
{
    note(fx, EXPECT(fx->r.grads[FROZEN].shard_grad == of_frozen, "leave frozen units alone",
                    "offload_norm: shard_grad of a frozen unit was moved, expected it left alone"));
    for (int u = 0; u < N_UNITS; u++)
        if (!fx->f.units[u].given.frozen)
            note(fx, EXPECT((fx->r.grads[u].shard_grad != NULL) == (u < n_units),
                            "grad_finish of each unit that is not frozen, u < o->n_units",
                            "offload_norm: shard_grad of unit %d of %d is %s", u, n_units,
                            u < n_units ? "NULL, expected its finished gradient"
                                        : "there, expected no gradient of a unit beyond the last"));
}

/* offload_norm on a model of the fixture's first n_units units. If n_units is smaller than the
 * total, a loop that runs too far finds a real unit. If each rank has a whole shard, the gradients
 * are not added up over ranks: the norm's group is this rank. */
static fsdp_status host_norm(fixture *fx, int n_units)
{
    fsdp_optimizer o;
    norm_seen seen;
    float *of_frozen;
    comm *alone = NULL;
    TRY(watched_optimizer(fx, NULL, &o));
    if (!o.norm_group)
        TRY(comm_range(fx->comm, fx->rank, 1, 1, &alone));
    o.norm_group = alone ? alone : o.norm_group;
    TRY(push_step(fx, 0));
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, fx->f.units[FROZEN].layout.shard_elems,
                         "of a frozen unit", &of_frozen));
    fx->r.grads[FROZEN].shard_grad = of_frozen;
    fx->f.n_units = o.n_units = n_units;
    norm_calls_watch(fx, &seen);
    norm_watch_slices(fx);
    fsdp_status status = RUNS_ON(fx, "offload_norm", norm_call_in_room(fx, &o, norm_by_units));
    comm_set_watch(fx->comm, NULL);
    fx->f.n_units = o.n_units = N_UNITS;
    TRY(status);
    TRY(expect_sum(fx, &o, "offload_norm", finished_squares(fx, n_units)));
    norm_expect_stream(fx, &o, "offload_norm", &seen);
    expect_parked(fx, of_frozen, n_units);
    for (int u = n_units; u < N_UNITS; u++)
        TRY(grad_finish(&fx->r, u, grad_scale));
    TRY(offload_order(fx->f.given.offload, fx->f.given.offload->down, fx->compute));
    TRY(zero_grad(&fx->r));
    optimizer_free(&o);
    comm_close(alone);
    return FSDP_OK;
}

static fsdp_status host_norms(fixture *fx)
{
    push_nan = true;
    TRY(host_norm(fx, N_UNITS - 1));
    return host_norm(fx, N_UNITS);
}

static fsdp_status host_norm_body(fixture *fx)
{
    return with_host_shards(fx, host_norms);
}

static fsdp_status task_4_7(grade *g)
{
    TRY(fixture_run(g, AHEAD(), squares_body));
    TRY(fixture_run(g, AHEAD(), host_norm_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_NONE, .async_compute = true), host_norm_body));
    TRY(fixture_run(g, AHEAD(), host_step_body));
    TRY(fixture_run(g, IDLE(), host_step_body));
    TRY(fixture_run(g, AHEAD(), offload_body));
    TRY(offload_pieces(g));
    return offload_runs(g);
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"4.1", task_4_1}, {"4.2", task_4_2}, {"4.3", task_4_3},
                                       {"4.4", task_4_4}, {"4.5", task_4_5}, {"4.6", task_4_6},
                                       {"4.7", task_4_7}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
