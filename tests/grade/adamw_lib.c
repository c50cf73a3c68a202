/* adamw_lib.c -- tasks 4.1 and 4.2: the update of a shard, its state, and where it decays. */
#include "tests/grade/adamw_lib.h"
#include <math.h>
#include <stdio.h>
#include "tests/grade/handmade_lib.h"

/* ---- 4.1 ------------------------------------------------------------------------------------ */
enum { ADAMW_ELEMS = 37 };

/* One call over `elems` elements, compared with double. Later elements must not change. */
static fsdp_status adamw_case(int64_t step, double decay, const float *coef, size_t elems)
{
    float p[ADAMW_ELEMS], m[ADAMW_ELEMS], v[ADAMW_ELEMS], g[ADAMW_ELEMS];
    adamw_exact want[ADAMW_ELEMS];
    adamw_args a = {.param = p, .m = m, .v = v, .grad = g, .grad_coef = coef, .elems = elems};
    const optim_config config = adamw_config(1e-2, decay, step);
    adamw_scalars(&a, &config);
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
    return elems < ADAMW_ELEMS ? expect_f32("after the last element", last, keep, 3) : FSDP_OK;
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
    const optim_config config = adamw_config(1e-2, 0.1, 3);
    adamw_scalars(&a, &config);
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
    TRY(adamw_case(0, 0.0, NULL, ADAMW_ELEMS));
    TRY(adamw_case(0, 0.1, &half, ADAMW_ELEMS));
    TRY(adamw_case(1, 0.1, &tiny, ADAMW_ELEMS - 1));
    TRY(adamw_case(999, 0.5, NULL, 17));
    TRY(adamw_case(5, 0.1, &half, 0));
    return adamw_cut();
}

fsdp_status task_4_1(grade *g)
{
    return comm_agree(g->comm, adamw_vectors());
}

/* ---- 4.2 ------------------------------------------------------------------------------------ */
/* Parameters 4 (10 elements, decays), 1 (3, does not), 2 (2, decays), 3 (7, decays) at 0, 12, 16,
 * 20; the array ends at 28. flat: aaaaaaaaaa..bbb.dd..ccccccc. */
typedef struct range_case {
    int world_size, rank, n;
    decay_range want[4];
} range_case;

static const range_case RANGES[] = {
    {1, 0, 4, {{0, 10, true}, {12, 3, false}, {16, 2, true}, {20, 7, true}}},
    {2, 0, 2, {{0, 10, true}, {12, 2, false}}},
    {2, 1, 3, {{0, 1, false}, {2, 2, true}, {6, 7, true}}},
    {3, 0, 1, {{0, 10, true}}},
    {3, 1, 2, {{2, 3, false}, {6, 2, true}}},
    {3, 2, 1, {{0, 7, true}}},
    {4, 0, 1, {{0, 7, true}}},
    {4, 1, 2, {{0, 3, true}, {5, 2, false}}},
    {4, 2, 3, {{0, 1, false}, {2, 2, true}, {6, 1, true}}},
    {4, 3, 1, {{0, 6, true}}},
    {7, 1, 1, {{0, 4, true}}},
    {7, 2, 1, {{0, 2, true}}},
    {7, 4, 1, {{0, 2, true}}},
    {14, 5, 0, {{0, 0, false}}}, /* a gap only */
    {28, 27, 0, {{0, 0, false}}},
    {40, 35, 0, {{0, 0, false}}}, /* padding only */
};

static const flat_slot RANGE_SLOTS[] = {{4, 0, 10}, {1, 12, 3}, {2, 16, 2}, {3, 20, 7}};

static fsdp_status range_case_run(const range_case *c)
{
    const param_spec params[5] = {[1] = {.n_dims = 1},
                                  [2] = {.n_dims = 2, .decay = true},
                                  [3] = {.n_dims = 3, .decay = true},
                                  [4] = {.n_dims = 2, .decay = true}};
    flat_layout l = fix_layout(c->world_size, RANGE_SLOTS, 4, 28);
    decay_range got[4];
    int n = -1;
    TRY(decay_ranges(&l, params, c->rank, got, &n));
    TRY(expect_int(WHAT("ranges of rank %d of %d", c->rank, c->world_size), n, c->n));
    for (int i = 0; i < n; i++) {
        TRY(expect_size(WHAT("rank %d of %d, range %d: begin", c->rank, c->world_size, i),
                        got[i].begin, c->want[i].begin));
        TRY(expect_size(WHAT("rank %d of %d, range %d: elems", c->rank, c->world_size, i),
                        got[i].elems, c->want[i].elems));
        TRY(expect_int(WHAT("rank %d of %d, range %d: decays", c->rank, c->world_size, i),
                       got[i].decay, c->want[i].decay));
    }
    return FSDP_OK;
}

/* Big enough that the state of one whole unit cannot hide in the bytes that the test allows: 2 * 4
 * * N/W and a few for the norm. */
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
    note(fx, expect_size("bytes of optimizer state: two moments of one shard",
                         fix_live(fx, MEM_OPTIMIZER), want));
    static const float zeros[3001];
    for (int u = 0; u < 2; u++) {
        size_t elems = fx->f.units[u].layout.shard_elems;
        expect_values(fx, "first moments at the start", o.units[u].state[0], zeros, elems);
        expect_values(fx, "second moments at the start", o.units[u].state[1], zeros, elems);
    }
    optimizer_free(&o);
    return FSDP_OK;
}

fsdp_status task_4_2(grade *g)
{
    fsdp_status status = FSDP_OK;
    for (size_t i = 0; status == FSDP_OK && i < sizeof RANGES / sizeof *RANGES; i++)
        status = range_case_run(&RANGES[i]);
    TRY(comm_agree(g->comm, status));
    return fixture_run(
        g,
        &(const fix_spec){
            .n_units = 3, .n_params = 4, .params = BIG, .used_elems = {2003, 3001, 777}},
        state_bytes_body);
}
