/* lab4.c -- the tests of lab 4's tasks: the optimizer on shards, and checkpoints.
 *
 * Tasks 4.1 to 4.5 work on literals. What is no parameter (gaps, padding) holds NaN wherever the
 * task must not read it, so reading it shows. Tasks 4.5 and 4.6 stand in ckpt_lib.c and tiny_lib.c.
 */
#include <math.h>
#include <string.h>
#include "lab4_optimizer/checkpoint.h"
#include "tests/grade/ckpt_lib.h"
#include "tests/grade/handmade_lib.h"
#include "tests/grade/tiny_lib.h"

static const double U = 0x1p-24; /* unit roundoff of fp32 */

/* ---- 4.1 ------------------------------------------------------------------------------------ */
typedef struct adamw_exact {
    double param, m, v, param_tol, m_tol, v_tol;
} adamw_exact;

/* The same update in double, from the same fp32 inputs and scalars, and how far a correct fp32
 * program may be from it, in any order of its operations. First-order rounding analysis, u = 2^-24;
 * what is allowed stands in brackets:
 *   g = grad*coef          u |g|
 *   m = b1*m + (1-b1)*g    2 products, 1 sum: 3u (|b1 m| + |(1-b1) g|)            [4u]
 *   v, all terms >= 0      5u v                                                   [6u]
 *   upd = step*m/den       den = sqrt(v)/sb + eps: half of v's error, then sqrt,
 *                          quotient, sum: 6u; product, quotient: 8u |upd|         [12u]
 *                          m's own error: step/den * err(m)                       [twice]
 *   p - decay*p - upd      4u |p|; p*(1-decay) rounds twice                       [6u]
 */
static adamw_exact adamw_double(const adamw_args *a, size_t i, double coef)
{
    double g = (double)a->grad[i] * coef, p = (double)a->param[i];
    double m0 = (double)a->beta1 * (double)a->m[i], m1 = (double)a->one_minus_beta1 * g;
    adamw_exact e;
    e.m = m0 + m1;
    e.m_tol = 4.0 * U * (fabs(m0) + fabs(m1));
    e.v = (double)a->beta2 * (double)a->v[i] + (double)a->one_minus_beta2 * g * g;
    e.v_tol = 6.0 * U * e.v + 0x1p-140;
    double den = sqrt(e.v) / (double)a->sqrt_bias2 + (double)a->eps;
    double upd = den > 0.0 ? (double)a->step_size * e.m / den : 0.0;
    e.param = p - (double)a->decay * p - upd;
    double through_m = den > 0.0 ? (double)a->step_size / den * e.m_tol : 0.0;
    e.param_tol = U * (6.0 * fabs(p) + 12.0 * fabs(upd)) + 2.0 * through_m;
    return e;
}

enum { ADAMW_ELEMS = 37 };

/* One call over `elems` elements, against double; what lies behind them must stay as it is. */
static fsdp_status adamw_case(int64_t step, double decay, const float *coef, size_t elems)
{
    float p[ADAMW_ELEMS], m[ADAMW_ELEMS], v[ADAMW_ELEMS], g[ADAMW_ELEMS];
    adamw_exact want[ADAMW_ELEMS];
    adamw_args a = {.param = p, .m = m, .v = v, .grad = g, .grad_coef = coef, .elems = elems};
    adamw_scalars(&a, &(adamw_config){.lr = 1e-2,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .weight_decay = decay,
                                      .step = step});
    for (size_t i = 0; i < ADAMW_ELEMS; i++) {
        double x = (double)i;
        p[i] = (float)sin(1.0 + x);
        g[i] = (float)(cos(3.0 * x) * exp2(-x / 2.0)); /* 1 ... 2^-18 */
        m[i] = step ? (float)(0.1 * sin(5.0 * x)) : 0.0f;
        v[i] = step ? (float)(0.01 * (1.0 + cos(x))) : 0.0f;
        want[i] = adamw_double(&a, i, coef ? (double)*coef : 1.0);
    }
    float keep[3] = {p[ADAMW_ELEMS - 1], m[ADAMW_ELEMS - 1], v[ADAMW_ELEMS - 1]};
    TRY(adamw_shard(&a));
    for (size_t i = 0; i < elems; i++) {
        TRY(expect_within("first moment", i, m[i], want[i].m, want[i].m_tol));
        TRY(expect_within("second moment", i, v[i], want[i].v, want[i].v_tol));
        TRY(expect_within("parameter", i, p[i], want[i].param, want[i].param_tol));
    }
    float last[3] = {p[ADAMW_ELEMS - 1], m[ADAMW_ELEMS - 1], v[ADAMW_ELEMS - 1]};
    return elems < ADAMW_ELEMS ? expect_f32("behind the last element", last, keep, 3) : FSDP_OK;
}

/* By hand: p = 1, g = 1/2, lr = 0.1, decay 0.1, first step. Bias correction makes m/bias1 = g and
 * sqrt(v/bias2) = |g|, so p = 1 - 0.01 - 0.1*1 = 0.89; without it the step is another.           */
static fsdp_status adamw_by_hand(void)
{
    float p[2] = {1.0f, 1.0f}, m[2] = {0}, v[2] = {0}, g[2] = {0.5f, -0.5f};
    const float want[2] = {0.89f, 1.09f};
    adamw_args a = {.param = p, .m = m, .v = v, .grad = g, .elems = 2};
    adamw_scalars(&a,
                  &(adamw_config){
                      .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-12, .weight_decay = 0.1});
    TRY(adamw_shard(&a));
    return expect_close("first step of p = 1, g = 0.5", p, want, 2, 0.0, 8.0 * U);
}

/* An element's bits do not depend on where the shard is cut. */
static fsdp_status adamw_cut(void)
{
    float whole[3][ADAMW_ELEMS], parts[3][ADAMW_ELEMS], g[ADAMW_ELEMS], coef = 0.3f;
    for (size_t i = 0; i < ADAMW_ELEMS; i++) {
        whole[0][i] = parts[0][i] = (float)cos((double)i);
        whole[1][i] = parts[1][i] = (float)sin((double)i) * 0.1f;
        whole[2][i] = parts[2][i] = 0.01f * (float)i;
        g[i] = (float)sin(7.0 * (double)i);
    }
    adamw_args a = {.param = whole[0], .m = whole[1], .v = whole[2], .grad = g, .grad_coef = &coef};
    adamw_scalars(
        &a,
        &(adamw_config){
            .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3});
    a.elems = ADAMW_ELEMS;
    TRY(adamw_shard(&a));
    const size_t cuts[] = {0, 1, 8, 8, 25, ADAMW_ELEMS};
    for (int c = 0; c < 5; c++) {
        adamw_args part = a;
        part.param = parts[0] + cuts[c];
        part.m = parts[1] + cuts[c];
        part.v = parts[2] + cuts[c];
        part.grad = g + cuts[c];
        part.elems = cuts[c + 1] - cuts[c];
        TRY(adamw_shard(&part));
    }
    return expect_f32("the same update in pieces", parts[0], whole[0], ADAMW_ELEMS);
}

static fsdp_status adamw_vectors(void)
{
    const float half = 0.5f, tiny = 1e-3f;
    TRY(adamw_by_hand());
    TRY(adamw_case(0, 0.0, NULL, ADAMW_ELEMS));
    TRY(adamw_case(0, 0.1, &half, ADAMW_ELEMS));
    TRY(adamw_case(1, 0.1, &tiny, ADAMW_ELEMS - 1));
    TRY(adamw_case(999, 0.5, NULL, 17));
    TRY(adamw_case(5, 0.1, &half, 0));
    return adamw_cut();
}

/* Big enough that the state of one whole unit cannot hide: 2 * 4 * N/W bytes and the
 * few of the norm. */
static const fix_param BIG[] = {
    {.unit = 0, .offset = 0, .elems = 1501, .decay = true},
    {.unit = 0, .offset = 1504, .elems = 499},
    {.unit = 1, .offset = 0, .elems = 3001, .decay = true},
    {.unit = 2, .offset = 0, .elems = 777, .frozen = true},
};

static fsdp_status state_bytes_body(fixture *fx)
{
    fsdp_optimizer o;
    TRY(optimizer_create(&fx->r, &o));
    size_t want = 0;
    for (int u = 0; u < 2; u++)
        want += 2 * fx->f.units[u].layout.shard_elems * sizeof(float);
    note(fx, expect_int("bytes of optimizer state: two moments of one shard",
                        (long long)fix_live(fx, MEM_OPTIMIZER), (long long)want));
    for (int u = 0; u < 2; u++)
        for (size_t i = 0; i < fx->f.units[u].layout.shard_elems && fx->verdict == FSDP_OK; i++)
            note(fx, expect_true("moments start at zero",
                                 o.units[u].m[i] == 0.0f && o.units[u].v[i] == 0.0f));
    optimizer_free(&o);
    return FSDP_OK;
}

static fsdp_status task_4_1(grade *g)
{
    TRY(comm_agree(g->comm, adamw_vectors()));
    return fixture_run(
        g,
        &(const fix_spec){
            .n_units = 3, .n_params = 4, .params = BIG, .used_elems = {2003, 3001, 777}},
        state_bytes_body);
}

/* ---- 4.2 ------------------------------------------------------------------------------------ */
/* Parameters 4 (10 elements, decays), 1 (3, does not), 2 (2, frozen), 3 (7, decays) at 0, 12, 16,
 * 20; the array ends at 28. flat: aaaaaaaaaa..bbb.ff..ccccccc. */
typedef struct range_case {
    int world_size, rank, n;
    decay_range want[3];
} range_case;

static const range_case RANGES[] = {
    {1, 0, 3, {{0, 10, true}, {12, 3, false}, {20, 7, true}}},
    {2, 0, 2, {{0, 10, true}, {12, 2, false}}},
    {2, 1, 2, {{0, 1, false}, {6, 7, true}}},
    {3, 0, 1, {{0, 10, true}}},
    {3, 1, 1, {{2, 3, false}}},
    {3, 2, 1, {{0, 7, true}}},
    {4, 0, 1, {{0, 7, true}}},
    {4, 1, 2, {{0, 3, true}, {5, 2, false}}},
    {4, 2, 2, {{0, 1, false}, {6, 1, true}}},
    {4, 3, 1, {{0, 6, true}}},
    {7, 1, 1, {{0, 4, true}}},
    {7, 2, 1, {{0, 2, true}}},
    {7, 4, 0, {{0, 0, false}}}, /* frozen and a gap only */
    {28, 27, 0, {{0, 0, false}}},
    {40, 35, 0, {{0, 0, false}}}, /* padding only */
};

static const flat_slot RANGE_SLOTS[] = {{4, 0, 10}, {1, 12, 3}, {2, 16, 2}, {3, 20, 7}};

static fsdp_status range_case_run(const range_case *c)
{
    const param_spec params[5] = {
        [4] = {.decay = true}, [2] = {.decay = true, .frozen = true}, [3] = {.decay = true}};
    flat_layout l = fix_layout(c->world_size, RANGE_SLOTS, 4, 28);
    decay_range got[4];
    int n = -1;
    char what[96];
    TRY(decay_ranges(&l, params, c->rank, got, &n));
    snprintf(what, sizeof what, "ranges of rank %d of %d", c->rank, c->world_size);
    TRY(expect_int(what, n, c->n));
    for (int i = 0; i < n; i++) {
        snprintf(what, sizeof what, "rank %d of %d, range %d: begin", c->rank, c->world_size, i);
        TRY(expect_int(what, (long long)got[i].begin, (long long)c->want[i].begin));
        snprintf(what, sizeof what, "rank %d of %d, range %d: elems", c->rank, c->world_size, i);
        TRY(expect_int(what, (long long)got[i].elems, (long long)c->want[i].elems));
        snprintf(what, sizeof what, "rank %d of %d, range %d: decays", c->rank, c->world_size, i);
        TRY(expect_int(what, got[i].decay, c->want[i].decay));
    }
    return FSDP_OK;
}

static fsdp_status task_4_2(grade *g)
{
    (void)g;
    for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES; i++)
        TRY(range_case_run(&RANGES[i]));
    return FSDP_OK;
}

/* ---- 4.3 ------------------------------------------------------------------------------------ */
/* PARAMS of handmade_lib.h, nothing tied. */
#define SPEC(...) FIX_SPEC(.n_params = 8, __VA_ARGS__)

static float whole_grad(int p, size_t i)
{
    return (float)(2 * p + 1) * (float)((int)(i % 5) - 1) / 4.0f; /* squares are exact in double */
}

static float frac_grad(int p, size_t i)
{
    return (float)sin(1.0 + 3.1 * (double)p + 1.7 * (double)i) * exp2f((float)(p - 4) * 3.0f);
}

/* Gradients where parameters are, NaN everywhere else. */
static fsdp_status grads_by_hand(fixture *fx, float (*value)(int p, size_t i))
{
    for (int u = 0; u < N_UNITS; u++) {
        size_t elems = fx->f.units[u].layout.shard_elems;
        float **grad = &fx->r.grads[u].shard_grad;
        if (u == FROZEN)
            continue;
        if (!*grad)
            TRY(device_alloc_f32(fx->compute, MEM_GRADS_SHARD, elems, "fixture gradient", grad));
        TRY(stream_sync(fx->compute));
        for (size_t i = 0; i < elems; i++) {
            size_t elem = 0;
            int p = fix_param_at(fx, u, fix_shard_begin(fx, u) + i, &elem);
            (*grad)[i] = p < 0 ? NAN : PARAMS[p].frozen ? 0.0f : value(p, elem);
        }
    }
    return FSDP_OK;
}

static double model_sum_squares(float (*value)(int p, size_t i))
{
    rsum sum = {0};
    for (int p = 0; p < 8; p++)
        for (size_t i = 0; i < PARAMS[p].elems && !PARAMS[p].frozen; i++) {
            float x = value(p, i);
            rsum_add_squares(&sum, &x, 1);
        }
    return rsum_value(&sum);
}

/* No norm group: a rank with whole gradients asks nobody. Else the shard group, and nobody else. */
static void expect_norm_traffic(fixture *fx, const comm *group, const comm *c)
{
    comm_stats cs = comm_stats_read(c);
    for (int op = 0; op < COMM_OPS; op++)
        note(fx, expect_int(op == COMM_OP_ALL_REDUCE ? "all-reduces of the norm"
                                                     : comm_op_name((comm_op)op),
                            (long long)cs.calls[op], op == COMM_OP_ALL_REDUCE && c == group));
}

/* The coefficient that follows from the norm is the same on every rank, whatever the groups. */
static fsdp_status expect_same_coef(fixture *fx, fsdp_optimizer *o, double sum)
{
    const float max_norm = (float)sqrt(sum) / 3.0f, norm = (float)sqrt(sum);
    const float want = max_norm / (norm + 1e-6f);
    char text[64];
    TRY(fx->g->ops->clip_coef(fx->compute, &(clip_coef_args){.norm = o->norm,
                                                             .coef = o->coef,
                                                             .sum = o->norm_sum,
                                                             .max_norm = max_norm}));
    TRY(stream_sync(fx->compute));
    note(fx, expect_f32("norm", o->norm, &norm, 1));
    note(fx, expect_f32("clip coefficient", o->coef, &want, 1));
    snprintf(text, sizeof text, "%a %a", (double)*o->norm, (double)*o->coef);
    note(fx, comm_same(fx->comm, "norm and clip coefficient", text));
    return FSDP_OK;
}

static fsdp_status expect_norm(fixture *fx, fsdp_optimizer *o, float (*value)(int p, size_t i))
{
    const mesh_shape *shape = &fx->f.mesh.shape;
    bool alone = shape->shard_size == 1 && shape->world_size > 1;
    const comm *group = alone ? NULL : fx->f.mesh.shard;
    note(fx, expect_true("norm_group is the shard group, NULL for a group of one of several ranks",
                         o->norm_group == group));
    TRY(grads_by_hand(fx, value));
    comm_stats_reset(fx->comm);
    if (fx->f.mesh.shard)
        comm_stats_reset(fx->f.mesh.shard);
    TRY(grad_norm(o));
    TRY(stream_sync(fx->compute));
    TRY(stream_sync(fx->f.comm_stream));
    double got = rsum_value(o->norm_sum), want = model_sum_squares(value);
    if (memcmp(&got, &want, sizeof got) != 0)
        note(fx, fsdp_error(FSDP_EINVAL, "",
                            "sum of squares of the whole model: got %.17g, expected "
                            "%.17g",
                            got, want));
    expect_norm_traffic(fx, group, fx->comm);
    if (group && group != fx->comm)
        expect_norm_traffic(fx, group, group);
    return expect_same_coef(fx, o, want);
}

static fsdp_status grad_norm_on(fixture *fx, stream *norm_stream)
{
    fsdp_optimizer o;
    TRY(optimizer_create(&fx->r, &o));
    o.norm_stream = norm_stream;
    TRY(expect_norm(fx, &o, whole_grad));
    TRY(expect_norm(fx, &o, frac_grad)); /* a second step starts from zero again */
    optimizer_free(&o);
    return FSDP_OK;
}

static fsdp_status grad_norm_body(fixture *fx)
{
    return grad_norm_on(fx, fx->compute);
}

/* What the compute stream reads behind grad_norm, while the norm's own stream is held up until all
 * is issued. */
static fsdp_status read_behind_norm(fixture *fx, fsdp_optimizer *o, rsum *seen)
{
    TRY(grads_by_hand(fx, whole_grad));
    TRY(gate_close(fx->g, o->norm_stream));
    TRY(grad_norm(o));
    TRY(device_download(fx->compute, seen, o->norm_sum, sizeof *seen));
    TRY(gate_open(fx->g, "grad_norm"));
    return stream_sync(fx->compute);
}

/* On a stream of its own, as lab 5 may want it: only events order it. */
static fsdp_status grad_norm_apart_body(fixture *fx)
{
    fsdp_optimizer o;
    rsum seen;
    TRY(grad_norm_on(fx, fx->f.comm_stream));
    TRY(optimizer_create(&fx->r, &o));
    o.norm_stream = fx->f.comm_stream;
    TRY(read_behind_norm(fx, &o, &seen));
    note(fx, expect_true("the compute stream waits for the norm's",
                         rsum_value(&seen) == model_sum_squares(whole_grad)));
    TRY(stream_sync(fx->f.comm_stream));
    optimizer_free(&o);
    return FSDP_OK;
}

static fsdp_status task_4_3(grade *g)
{
    double by_hand = 0.0; /* that the expected figure itself is right */
    for (int p = 0; p < 8; p++)
        for (size_t i = 0; i < PARAMS[p].elems && !PARAMS[p].frozen; i++)
            by_hand += (double)whole_grad(p, i) * (double)whole_grad(p, i);
    TRY(expect_true("rsum adds exactly", by_hand == model_sum_squares(whole_grad)));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL), grad_norm_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL, .async_compute = true), grad_norm_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL, .async_compute = true),
                    grad_norm_apart_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_NONE), grad_norm_body));
    for (int size = 1; size <= g->world_size; size++) /* replicas of a shard */
        if (g->world_size % size == 0)
            TRY(fixture_run(g, SPEC(.sharding = SHARDING_HYBRID, .shard_size = size),
                            grad_norm_body));
    return FSDP_OK;
}

/* ---- 4.4 ------------------------------------------------------------------------------------ */
static const fixture *push_fx; /* what pushed_grad speaks of: fix_push passes no context */
static int push_unit;
static bool push_nan; /* in gaps: the update must skip them */

/* Leaf n's gradient: quarters, other ones on every rank; NaN in gaps when the
 * update must skip them. */
static float pushed_grad(int leaf, int buffer, size_t i)
{
    size_t elem = 0;
    int p = fix_param_at(push_fx, push_unit, i, &elem);
    (void)buffer;
    if (p < 0)
        return push_nan ? NAN : 0.0f;
    return PARAMS[p].frozen ? 0.0f : whole_grad(p, elem) * (float)(leaf + 1);
}

/* The finished gradient: sum over W leaves, times 1/8. All numbers are exact. */
static float finished_grad(const fixture *fx, int p, size_t i)
{
    int w = fx->world_size;
    return whole_grad(p, i) * (float)(w * (w + 1) / 2) * 0.125f;
}

static fsdp_status push_step(fixture *fx)
{
    push_fx = fx;
    TRY(zero_grad(&fx->r));
    for (push_unit = 0; push_unit < N_UNITS; push_unit++)
        if (push_unit != FROZEN)
            TRY(fix_push(fx, push_unit, fx->world_size, 0, pushed_grad));
    return FSDP_OK;
}

static float finished_norm(const fixture *fx)
{
    double sum = 0.0;
    for (int p = 0; p < 8; p++)
        for (size_t i = 0; i < PARAMS[p].elems && !PARAMS[p].frozen; i++)
            sum += (double)finished_grad(fx, p, i) * (double)finished_grad(fx, p, i);
    return (float)sqrt(sum);
}

/* The coefficient in bits on every rank, beside rank 0's. */
static fsdp_status expect_coef(fixture *fx, const fsdp_optimizer *o, float max_norm, float norm)
{
    char text[64];
    float want =
        max_norm == 0.0f || max_norm / (norm + 1e-6f) > 1.0f ? 1.0f : max_norm / (norm + 1e-6f);
    note(fx, expect_f32("clip coefficient", o->coef, &want, 1));
    snprintf(text, sizeof text, "%a", (double)*o->coef);
    note(fx, comm_same(fx->comm, "clip coefficient", text));
    return FSDP_OK;
}

/* SGD shows every factor: p - lr*(g*coef), bit by bit. Gaps and padding stay zero. */
static void expect_sgd(fixture *fx, float lr, float coef, int steps)
{
    for (int u = 0; u < N_UNITS; u++) {
        size_t elems = fx->f.units[u].layout.shard_elems;
        for (size_t i = 0; i < elems; i++) {
            size_t elem = 0;
            int p = fix_param_at(fx, u, fix_shard_begin(fx, u) + i, &elem);
            float want = p < 0 ? 0.0f : fix_value(p, elem);
            for (int s = 0; s < steps && p >= 0 && !PARAMS[p].frozen; s++)
                want = want - lr * (finished_grad(fx, p, elem) * coef);
            char what[64];
            snprintf(what, sizeof what, "unit %d after a clipped step, element %zu", u, i);
            note(fx, expect_f32(what, &fx->f.units[u].shard[i], &want, 1));
        }
    }
}

static fsdp_status clip_body(fixture *fx)
{
    fsdp_optimizer o;
    float *norm;
    push_nan = false; /* the provided SGD runs over gaps as well */
    fx->f.run.optimizer = OPTIMIZER_SGD;
    TRY(optimizer_create(&fx->r, &o));
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, 1, "norm", &norm));
    float want_norm = finished_norm(fx);
    const float limits[] = {want_norm / 3.0f, 0.0f, 2.0f * want_norm};
    for (int k = 0; k < 3; k++) {
        for (int u = 0; u < N_UNITS; u++) /* fresh weights */
            for (size_t i = 0; i < fx->f.units[u].layout.shard_elems; i++) {
                size_t elem = 0;
                int p = fix_param_at(fx, u, fix_shard_begin(fx, u) + i, &elem);
                fx->f.units[u].shard[i] = p < 0 ? 0.0f : fix_value(p, elem);
            }
        step_scalars sc = {
            .optimizer = OPTIMIZER_SGD, .lr = 0.5, .clip_norm = limits[k], .grad_scale = 0.125f};
        TRY(push_step(fx));
        TRY(optimizer_step(&o, &sc, norm));
        TRY(stream_sync(fx->compute));
        TRY(stream_sync(fx->f.comm_stream));
        note(fx, expect_f32("norm before clipping, of the scaled gradient", norm, &want_norm, 1));
        TRY(expect_coef(fx, &o, limits[k], want_norm));
        expect_sgd(fx, 0.5f, *o.coef, 1);
        note(fx,
             expect_true("gradients stay until the next zero_grad", fx->r.grads[H0].shard_grad));
    }
    optimizer_free(&o);
    device_free(fx->compute, norm);
    return FSDP_OK;
}

/* AdamW over two steps, NaN in every gap of the gradient: decay where it belongs, the clipped
 * gradient in the moments, the step number in the bias correction, nothing outside parameters. */
static fsdp_status adamw_body(fixture *fx)
{
    fsdp_optimizer o;
    float *norm, want_norm = finished_norm(fx), limit = want_norm / 2.0f;
    push_nan = true;
    TRY(optimizer_create(&fx->r, &o));
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, 1, "norm", &norm));
    float coef = limit / (want_norm + 1e-6f), ref[3][8][8] = {0};
    for (int p = 0; p < 8; p++)
        for (size_t i = 0; i < PARAMS[p].elems; i++)
            ref[0][p][i] = fix_value(p, i);
    for (int64_t step = 0; step < 2; step++) {
        step_scalars sc = {.optimizer = OPTIMIZER_ADAMW,
                           .step = step,
                           .lr = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.25,
                           .clip_norm = limit,
                           .grad_scale = 0.125f};
        TRY(push_step(fx));
        TRY(optimizer_step(&o, &sc, norm));
        TRY(stream_sync(fx->compute));
        TRY(stream_sync(fx->f.comm_stream));
        note(fx, expect_f32("norm before clipping", norm, &want_norm, 1));
        for (int u = 0; u < N_UNITS; u++)
            for (size_t i = 0; i < fx->f.units[u].layout.shard_elems; i++) {
                size_t e = 0;
                int p = fix_param_at(fx, u, fix_shard_begin(fx, u) + i, &e);
                float *param = &fx->f.units[u].shard[i], zero = 0.0f;
                char what[64];
                snprintf(what, sizeof what, "step %d, unit %d: parameter", (int)step, u);
                if (p < 0 || PARAMS[p].frozen) {
                    note(fx, expect_f32(what, param, p < 0 ? &zero : &ref[0][p][e], 1));
                    continue;
                }
                float g = finished_grad(fx, p, e);
                adamw_args a = {
                    .param = &ref[0][p][e], .m = &ref[1][p][e], .v = &ref[2][p][e], .grad = &g};
                adamw_scalars(&a, &(adamw_config){.lr = 0.1,
                                                  .beta1 = 0.9,
                                                  .beta2 = 0.95,
                                                  .eps = 1e-8,
                                                  .weight_decay = PARAMS[p].decay ? 0.25 : 0.0,
                                                  .step = step});
                adamw_exact want = adamw_double(&a, 0, (double)coef);
                note(fx, expect_within(what, i, *param, want.param, want.param_tol));
                ref[0][p][e] = *param; /* the next step is compared from here */
                ref[1][p][e] = o.units[u].m[i];
                ref[2][p][e] = o.units[u].v[i];
                snprintf(what, sizeof what, "step %d, unit %d: first moment", (int)step, u);
                note(fx, expect_within(what, i, o.units[u].m[i], want.m, want.m_tol));
            }
    }
    optimizer_free(&o);
    device_free(fx->compute, norm);
    return FSDP_OK;
}

static fsdp_status task_4_4(grade *g)
{
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL), clip_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_NONE), clip_body));
    for (int size = 2; size < g->world_size; size++) /* replicas of a shard: the same steps */
        if (g->world_size % size == 0)
            TRY(fixture_run(g, SPEC(.sharding = SHARDING_HYBRID, .shard_size = size), clip_body));
    TRY(fixture_run(g, SPEC(.sharding = SHARDING_FULL, .async_compute = true), adamw_body));
    return fixture_run(g, SPEC(.sharding = SHARDING_FULL), adamw_body);
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"4.1", task_4_1}, {"4.2", task_4_2}, {"4.3", task_4_3},
                                       {"4.4", task_4_4}, {"4.5", task_4_5}, {"4.6", task_4_6}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
