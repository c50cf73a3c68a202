/* judge_units_lib.c -- see judge_units_lib.h. A worker makes the units of a request by hand
 * (handmade_lib.h), so a task does not depend on the tasks before it. */
#include "tests/grade/judge_units_lib.h"
#include <math.h>
#include <string.h>
#include "common/sum/rsum_digits.h"
#include "common/sum/tree_sum.h"
#include "tests/grade/asks.h"
#include "tests/grade/jury_lib.h"

enum { CASES = 6, UNITS = ASK_UNITS, MOST_FLAT = 64, MOST_MICRO = 3 };
enum { MOST_LEAVES = JURY_MOST_RANKS * MOST_MICRO };

static void draw_unit(ask_unit *u)
{
    size_t end = 0;
    *u = (ask_unit){.n_params = jury_between(1, ASK_UNIT_PARAMS), .frozen = jury_below(4) == 0};
    for (int p = 0; p < u->n_params; p++) {
        u->offset[p] = end + jury_below(3);
        u->elems[p] = 1 + jury_below(11);
        end = u->offset[p] + u->elems[p];
    }
    u->used = end + jury_below(3);
}

static ask_units draw_units(sharding_strategy sharding)
{
    ask_units d = {.sharding = sharding, .shard_size = jury_ranks(), .mode = GRAD_ACC_CANONICAL};
    if (sharding == SHARDING_NONE)
        d.shard_size = 1;
    while (sharding == SHARDING_HYBRID &&
           (d.shard_size = jury_between(1, jury_ranks()), jury_ranks() % d.shard_size != 0))
        continue;
    for (int u = 0; u < UNITS; u++)
        draw_unit(&d.units[u]);
    d.units[0].frozen = false; /* something learns */
    return d;
}

/* Elements of a world slice of unit u, of the padded array, and of a shard. */
static size_t slice_elems(const ask_units *d, int u)
{
    const size_t w = (size_t)jury_ranks();
    return (d->units[u].used + w - 1) / w;
}

static size_t padded_elems(const ask_units *d, int u)
{
    return slice_elems(d, u) * (size_t)jury_ranks();
}

static size_t shard_elems(const ask_units *d, int u)
{
    return padded_elems(d, u) / (size_t)d->shard_size;
}

static size_t shard_begin(const ask_units *d, int u, int rank)
{
    return (size_t)(rank % d->shard_size) * shard_elems(d, u);
}

/* The first element of the world slice that a rank keeps: replicas cut their shard among them. */
static size_t slice_begin(const ask_units *d, int u, int rank)
{
    return shard_begin(d, u, rank) + (size_t)(rank / d->shard_size) * slice_elems(d, u);
}

static bool is_param(const ask_units *d, int u, size_t flat)
{
    const ask_unit *unit = &d->units[u];
    for (int p = 0; p < unit->n_params; p++)
        if (flat >= unit->offset[p] && flat < unit->offset[p] + unit->elems[p])
            return true;
    return false;
}

/* ---- 2.1 ----------------------------------------------------------------------------------- */

/* Every unit once, in an order that the judge chooses. */
static void draw_order(int *order)
{
    for (int i = 0; i < UNITS; i++) {
        const int k = jury_between(0, i);
        order[i] = order[k];
        order[k] = i;
    }
}

static fsdp_status check_gather(const ask_units *d)
{
    float full[UNITS][MOST_FLAT], got[MOST_FLAT];
    int order[UNITS];
    if (d->shard_size == 1 && jury_ranks() > 1) /* whole shards are never gathered */
        return FSDP_OK;
    draw_order(order);
    for (int u = 0; u < UNITS; u++)
        jury_floats(full[u], padded_elems(d, u));
    for (int r = 0; r < jury_ranks(); r++) {
        wire *q = jury_ask(r);
        wire_put_bytes(q, d, sizeof *d);
        for (int u = 0; u < UNITS; u++)
            wire_put_floats(q, full[u] + shard_begin(d, u, r), shard_elems(d, u));
        for (int i = 0; i < UNITS; i++)
            wire_put(q, order[i]);
        TRY(jury_send(r));
    }
    for (int r = 0; r < jury_ranks(); r++) {
        wire *a;
        TRY(jury_answer(r, &a));
        for (int i = 0; i < UNITS; i++) {
            const char *what = WHAT("rank %d: full of unit %d", r, order[i]);
            TRY(jury_array(a, what, got, padded_elems(d, order[i])));
            TRY(expect_f32(what, got, full[order[i]], padded_elems(d, order[i])));
        }
        TRY(wire_ended(a));
    }
    return FSDP_OK;
}

/* FULL, and every size of shard groups. */
static fsdp_status on_groups(fsdp_status (*check)(const ask_units *d))
{
    for (int i = 0; i < CASES; i++) {
        const ask_units d = draw_units(i % 2 ? SHARDING_HYBRID : SHARDING_FULL);
        TRY(check(&d));
    }
    return FSDP_OK;
}

fsdp_status judge_2_1(void)
{
    return on_groups(check_gather);
}

/* ---- 3.2a, 3.3 ----------------------------------------------------------------------------- */

typedef float leaf_values[MOST_LEAVES][MOST_FLAT];

static float drawn_sum(leaf_values leaves, int n, size_t flat)
{
    float column[MOST_LEAVES];
    for (int k = 0; k < n; k++)
        column[k] = leaves[k][flat];
    return tree_sum_f32(column, (size_t)n);
}

/* In GRAD_ACC_FAST the order of a sum is free: integers, whose sums are exact. */
static void draw_leaves(const ask_units *d, leaf_values *leaves, int n)
{
    for (int u = 0; u < UNITS; u++)
        for (int k = 0; k < n; k++)
            for (size_t i = 0; i < padded_elems(d, u); i++)
                leaves[u][k][i] =
                    d->mode == GRAD_ACC_FAST ? (float)jury_between(-9999, 9999) : jury_float();
}

/* What a rank must hold of a unit: in its slice, the scaled sum of n leaves. */
typedef struct wanted_sum {
    leaf_values *leaves; /* [UNITS] */
    int n;
    float scale;
    bool clears_padding;
} wanted_sum;

static fsdp_status check_slice(wire *a, const ask_units *d, int u, int rank, const wanted_sum *sum)
{
    float got[MOST_FLAT], want[MOST_FLAT];
    const size_t begin = slice_begin(d, u, rank), elems = slice_elems(d, u);
    const char *what =
        WHAT("rank %d: sum over ranks of unit %d, from element %zu on", rank, u, begin);
    for (size_t i = 0; i < elems; i++)
        want[i] = sum->clears_padding && begin + i >= d->units[u].used
                      ? 0.0f
                      : drawn_sum(sum->leaves[u], sum->n, begin + i) * sum->scale;
    TRY(jury_array(a, what, got, elems));
    return expect_f32(what, got, want, elems);
}

/* Every rank's answer: its slice of each unit that is not frozen. */
static fsdp_status check_slices(const ask_units *d, const wanted_sum *sum)
{
    for (int r = 0; r < jury_ranks(); r++) {
        wire *a;
        TRY(jury_answer(r, &a));
        for (int u = 0; u < UNITS; u++)
            if (!d->units[u].frozen)
                TRY(check_slice(a, d, u, r, sum));
        TRY(wire_ended(a));
    }
    return FSDP_OK;
}

static fsdp_status check_reduce(const ask_units *d)
{
    static leaf_values leaves[UNITS];
    const int w = jury_ranks(), n_micro = jury_between(1, MOST_MICRO);
    draw_leaves(d, leaves, n_micro * w);
    for (int r = 0; r < w; r++) {
        wire *q = jury_ask(r);
        wire_put_bytes(q, d, sizeof *d);
        wire_put(q, n_micro);
        for (int u = 0; u < UNITS; u++)
            for (int k = 0; k < n_micro && !d->units[u].frozen; k++)
                wire_put_floats(q, leaves[u][k * w + r], padded_elems(d, u));
        TRY(jury_send(r));
    }
    return check_slices(d, &(wanted_sum){leaves, n_micro * w, 1.0f, false});
}

static fsdp_status check_reduce_fast(const ask_units *d)
{
    ask_units fast = *d;
    fast.mode = GRAD_ACC_FAST;
    return check_reduce(&fast);
}

fsdp_status judge_3_2a(void)
{
    TRY(on_groups(check_reduce));
    return on_groups(check_reduce_fast);
}

static void put_leaves(wire *q, const ask_units *d, leaf_values *leaves, int u)
{
    for (int k = 0; k < jury_ranks(); k++)
        wire_put_floats(q, leaves[u][k], padded_elems(d, u));
}

static fsdp_status check_finish(const ask_units *d)
{
    static leaf_values leaves[UNITS];
    const int w = jury_ranks();
    const float scale = 0.75f + jury_float();
    draw_leaves(d, leaves, w);
    for (int r = 0; r < w; r++) {
        wire *q = jury_ask(r);
        wire_put_bytes(q, d, sizeof *d);
        wire_put_floats(q, &scale, 1);
        for (int u = 0; u < UNITS; u++)
            if (!d->units[u].frozen)
                put_leaves(q, d, leaves, u);
        TRY(jury_send(r));
    }
    return check_slices(d, &(wanted_sum){leaves, w, scale, true});
}

fsdp_status judge_3_3(void)
{
    return on_groups(check_finish);
}

/* ---- 4.3 ----------------------------------------------------------------------------------- */

/* Values of parameters are drawn; gaps and padding hold `gap`. */
static void draw_params(const ask_units *d, int u, float gap, float *full)
{
    jury_floats(full, padded_elems(d, u));
    for (size_t i = 0; i < padded_elems(d, u); i++)
        full[i] = is_param(d, u, i) ? full[i] : gap;
}

static double sum_of_squares(const ask_units *d, float (*grad)[MOST_FLAT])
{
    rsum sum = {0};
    for (int u = 0; u < UNITS; u++)
        for (size_t i = 0; i < padded_elems(d, u); i++)
            if (is_param(d, u, i) && !d->units[u].frozen)
                rsum_add_squares(&sum, &grad[u][i], 1);
    return rsum_value(&sum);
}

static fsdp_status check_norm(const ask_units *d)
{
    float grad[UNITS][MOST_FLAT];
    for (int u = 0; u < UNITS; u++)
        draw_params(d, u, NAN, grad[u]);
    for (int r = 0; r < jury_ranks(); r++) {
        wire *q = jury_ask(r);
        wire_put_bytes(q, d, sizeof *d);
        for (int u = 0; u < UNITS; u++)
            if (!d->units[u].frozen)
                wire_put_floats(q, grad[u] + shard_begin(d, u, r), shard_elems(d, u));
        TRY(jury_send(r));
    }
    const double want = sum_of_squares(d, grad);
    for (int r = 0; r < jury_ranks(); r++) {
        wire *a;
        rsum sum;
        TRY(jury_answer(r, &a));
        wire_get_bytes(a, &sum, sizeof sum);
        TRY(wire_ended(a));
        TRY(EXPECT(rsum_value(&sum) == want, "",
                   "rank %d: sum of squares of the model: got %.17g, expected %.17g", r,
                   rsum_value(&sum), want));
    }
    return FSDP_OK;
}

fsdp_status judge_4_3(void)
{
    const ask_units whole = draw_units(SHARDING_NONE);
    TRY(check_norm(&whole));
    return on_groups(check_norm);
}

/* ---- 4.4 ----------------------------------------------------------------------------------- */

typedef struct drawn_step {
    float lr, scale, clip_norm;
    float params[UNITS][MOST_FLAT], grad[UNITS][MOST_FLAT];
    leaf_values leaves[UNITS];
} drawn_step;

/* The finished gradient, and a limit below, without, or above its norm. */
static void draw_step(const ask_units *d, drawn_step *s)
{
    s->lr = 0.5f + jury_float();
    s->scale = 0.75f + jury_float();
    draw_leaves(d, s->leaves, jury_ranks());
    for (int u = 0; u < UNITS; u++) {
        draw_params(d, u, 0.0f, s->params[u]);
        for (size_t i = 0; i < padded_elems(d, u); i++)
            s->grad[u][i] = drawn_sum(s->leaves[u], jury_ranks(), i) * s->scale;
    }
    const float norm = (float)sqrt(sum_of_squares(d, s->grad));
    s->clip_norm = (float)jury_between(0, 2) * (0.75f + jury_float()) * norm;
}

static fsdp_status check_stepped(const ask_units *d, const drawn_step *s, int r)
{
    wire *a;
    float got[MOST_FLAT], want[MOST_FLAT], norm, coef;
    const float want_norm = (float)sqrt(sum_of_squares(d, (float(*)[MOST_FLAT])s->grad));
    const float limit = s->clip_norm / (want_norm + 1e-6f);
    const float want_coef = s->clip_norm > 0.0f && limit < 1.0f ? limit : 1.0f;
    TRY(jury_answer(r, &a));
    TRY(jury_array(a, "norm", &norm, 1));
    TRY(jury_array(a, "coefficient", &coef, 1));
    TRY(expect_f32(WHAT("rank %d: norm before clipping", r), &norm, &want_norm, 1));
    TRY(expect_f32(WHAT("rank %d: clip coefficient", r), &coef, &want_coef, 1));
    for (int u = 0; u < UNITS; u++) {
        const size_t begin = shard_begin(d, u, r), elems = shard_elems(d, u);
        const char *what = WHAT("rank %d: shard of unit %d after a step of SGD", r, u);
        for (size_t i = 0; i < elems; i++) {
            const float before = s->params[u][begin + i];
            const bool learns = is_param(d, u, begin + i) && !d->units[u].frozen;
            want[i] = learns ? before - s->lr * (s->grad[u][begin + i] * coef) : before;
        }
        TRY(jury_array(a, what, got, elems));
        TRY(expect_f32(what, got, want, elems));
    }
    return wire_ended(a);
}

static fsdp_status check_step(const ask_units *d)
{
    static drawn_step s;
    draw_step(d, &s);
    for (int r = 0; r < jury_ranks(); r++) {
        wire *q = jury_ask(r);
        wire_put_bytes(q, d, sizeof *d);
        wire_put_floats(q, &s.lr, 1);
        wire_put_floats(q, &s.scale, 1);
        wire_put_floats(q, &s.clip_norm, 1);
        for (int u = 0; u < UNITS; u++)
            wire_put_floats(q, s.params[u] + shard_begin(d, u, r), shard_elems(d, u));
        for (int u = 0; u < UNITS; u++)
            if (!d->units[u].frozen)
                put_leaves(q, d, s.leaves, u);
        TRY(jury_send(r));
    }
    for (int r = 0; r < jury_ranks(); r++)
        TRY(check_stepped(d, &s, r));
    return FSDP_OK;
}

fsdp_status judge_4_4(void)
{
    return on_groups(check_step);
}
