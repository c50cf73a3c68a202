/* test_virtual_step.c -- the schedules of virtual_time_step.h: steps computed by hand with whole
 * numbers, so that results are compared with ==, and what holds for any step. */
#include <string.h>
#include "common/observe/virtual_time_step.h"
#include "tests/unit/unit_lib.h"

/* A root and three blocks. Bytes are seconds: 13 s of gathers, 7 s of reductions, 41 s of
 * computation. Where all hides that can, 4 s stay exposed: the root's gather, 1 s of block 1's
 * (the embedding hides the other), 1 s of its reduction, and the root's reduction. */
enum { N_UNITS = 4, COMPUTE_S = 41, MOVING_S = 20, FLOOR_S = 4 };
static const virtual_unit UNITS[N_UNITS] = {
    {.name = "root", .gather_bytes = 1, .reduce_bytes = 1, .forward_s = 1, .backward_s = 1},
    {.name = "h.0", .gather_bytes = 2, .reduce_bytes = 2, .forward_s = 4, .backward_s = 8},
    {.name = "h.1", .gather_bytes = 2, .reduce_bytes = 2, .forward_s = 4, .backward_s = 8},
    {.name = "h.2", .gather_bytes = 2, .reduce_bytes = 2, .forward_s = 4, .backward_s = 8}};
static const virtual_step_config STEP = {
    .n_ranks = 2, .units = UNITS, .n_units = N_UNITS, .head_forward_s = 1, .head_backward_s = 2};
static const virtual_config AHEAD = {.link = {.bytes_per_s = 1}};
static const virtual_config INLINE = {.link = {.bytes_per_s = 1}, .inline_compute = true};

/* The step takes that long, and the units have memory for that many. */
static void assert_step(virtual_step_config c, const virtual_config *costs, double exposed_s,
                        int peak_units)
{
    virtual_figures f;
    OK(virtual_step_predict(&c, costs, &f));
    if (f.exposed_s != exposed_s || f.peak_units != peak_units)
        fail_msg("prefetch %d, limit %d: got %g s exposed and %d units, expected %g s and %d",
                 c.prefetch, c.limit, f.exposed_s, f.peak_units, exposed_s, peak_units);
    assert_true(f.compute_s == COMPUTE_S && f.communication_s == MOVING_S);
    assert_true(f.step_s >= COMPUTE_S + exposed_s && f.floor_s == FLOOR_S);
    if (c.sync_after == 0 && c.limit == 0)
        assert_true(f.step_s == COMPUTE_S + exposed_s);
}

static virtual_step_config with(virtual_prefetch prefetch)
{
    virtual_step_config c = STEP;
    c.prefetch = prefetch;
    return c;
}

/* The host computes: only what it issues before a computation runs under it. */
static void test_inline(void **state)
{
    (void)state;
    assert_step(with(VIRTUAL_PREFETCH_NONE), &INLINE, 20, 1);     /* everything */
    assert_step(with(VIRTUAL_PREFETCH_IMPLICIT), &INLINE, 15, 1); /* reductions hide: 7 -> 2 */
    assert_step(with(VIRTUAL_PREFETCH_BACKWARD), &INLINE, 9, 2);
    assert_step(with(VIRTUAL_PREFETCH_FORWARD), &INLINE, 10, 2);
    assert_step(with(VIRTUAL_PREFETCH_BOTH), &INLINE, 4, 2);
}

/* The host runs ahead: gathers are implicitly early, and take memory twice for each unit. */
static void test_ahead(void **state)
{
    (void)state;
    assert_step(with(VIRTUAL_PREFETCH_NONE), &AHEAD, 20, 6);
    assert_step(with(VIRTUAL_PREFETCH_IMPLICIT), &AHEAD, 4, 6);
    assert_step(with(VIRTUAL_PREFETCH_BOTH), &AHEAD, 4, 6);
}

static void test_limit(void **state)
{
    (void)state;
    for (int limit = 1; limit <= 3; limit++) {
        virtual_step_config c = with(VIRTUAL_PREFETCH_IMPLICIT);
        c.limit = limit;
        assert_step(c, &AHEAD, 4, limit + 1);
        assert_step(c, &INLINE, 15, 1);
        c.prefetch = VIRTUAL_PREFETCH_BOTH;
        assert_step(c, &INLINE, 4, 2); /* one ahead never holds more */
    }
}

/* On one stream a gather waits behind the reduction before it, which waits for its computation. */
static void test_one_stream(void **state)
{
    (void)state;
    virtual_step_config c = with(VIRTUAL_PREFETCH_IMPLICIT);
    c.one_stream = true;
    assert_step(c, &AHEAD, 12, 6);
    c.prefetch = VIRTUAL_PREFETCH_BACKWARD;
    assert_step(c, &AHEAD, 4, 6);
}

/* A host that waits for the device issues the next gather late, unless it had issued it before. */
static void test_sync(void **state)
{
    (void)state;
    virtual_step_config c = with(VIRTUAL_PREFETCH_IMPLICIT);
    c.sync_after = 2;
    assert_step(c, &AHEAD, 8, 3);
    c.prefetch = VIRTUAL_PREFETCH_BOTH;
    assert_step(c, &AHEAD, 4, 4);
}

/* Units that stay are gathered once; units that are not sharded or frozen move nothing. */
static void test_kinds_of_units(void **state)
{
    (void)state;
    virtual_unit units[N_UNITS];
    memcpy(units, UNITS, sizeof units);
    virtual_step_config c = with(VIRTUAL_PREFETCH_NONE);
    c.units = units;
    virtual_figures f;
    units[1].stays = true;
    OK(virtual_step_predict(&c, &INLINE, &f));
    assert_true(f.exposed_s == 18 && f.communication_s == 18);
    units[2].gather_bytes = 0;
    OK(virtual_step_predict(&c, &INLINE, &f));
    assert_true(f.exposed_s == 14 && f.communication_s == 14);
    units[3].reduce_bytes = 0;
    OK(virtual_step_predict(&c, &INLINE, &f));
    assert_true(f.exposed_s == 12 && f.communication_s == 12);
    c.grad_accum = 3;
    c.optimizer_s = 5;
    OK(virtual_step_predict(&c, &INLINE, &f));
    assert_true(f.exposed_s == 36 && f.compute_s == 3 * COMPUTE_S + 5);
    assert_true(f.step_s == 36 + 3 * COMPUTE_S + 5);
    c.n_ranks = 1;
    OK(virtual_step_predict(&c, &INLINE, &f));
    assert_true(f.exposed_s == 0 && f.communication_s == 0 && f.floor_s == 0);
}

/* The items of a step in order, for a reader of timelines. */
static void test_items(void **state)
{
    (void)state;
    virtual_step_config c = with(VIRTUAL_PREFETCH_FORWARD);
    c.n_units = 2;
    virtual_step s;
    OK(virtual_step_create(&c, &s));
    static const struct {
        timeline_kind kind;
        int stream;
        const char *name, *unit;
        char phase;
    } EXPECTED[] = {{TIMELINE_STEP, TIMELINE_HOST, "", "", 0},
                    {TIMELINE_COLLECTIVE, 1, "all-gather", "root", 0},
                    {TIMELINE_RECORD, 1, "", "", 0},
                    {TIMELINE_COLLECTIVE, 1, "all-gather", "h.0", 0},
                    {TIMELINE_RECORD, 1, "", "", 0},
                    {TIMELINE_WAIT, 0, "", "", 0},
                    {TIMELINE_WORK, 0, "forward", "root", 'f'},
                    {TIMELINE_WAIT, 0, "", "", 0},
                    {TIMELINE_WORK, 0, "forward", "h.0", 'f'},
                    {TIMELINE_RECORD, 0, "", "", 0},
                    {TIMELINE_WORK, 0, "forward", "root", 'f'},
                    {TIMELINE_WORK, 0, "backward", "root", 'b'}};
    for (size_t i = 0; i < sizeof EXPECTED / sizeof *EXPECTED; i++) {
        assert_int_equal(s.items[i].kind, EXPECTED[i].kind);
        assert_int_equal(s.items[i].stream, EXPECTED[i].stream);
        assert_string_equal(s.items[i].name, EXPECTED[i].name);
        assert_string_equal(s.items[i].unit, EXPECTED[i].unit);
        assert_int_equal(s.items[i].phase, EXPECTED[i].phase);
    }
    assert_int_equal(s.views[1].rank, 1);
    virtual_step_free(&s);
    virtual_step_free(&s);
}

static void test_refused(void **state)
{
    (void)state;
    virtual_step s;
    virtual_step_config c = STEP;
    c.n_units = 0;
    assert_int_equal(virtual_step_create(&c, &s), FSDP_EINVAL);
    assert_says("got 2 ranks and 0 units");
    assert_null(s.items);
    virtual_figures f;
    virtual_config steals = AHEAD;
    steals.steals = 2;
    assert_int_equal(virtual_step_predict(&STEP, &steals, &f), FSDP_EINVAL);
}

/* The link of a host counts when the ranks need several hosts. */
static void test_floor_over_hosts(void **state)
{
    (void)state;
    virtual_config costs = {.link = {.bytes_per_s = 2},
                            .host_link = {.latency_s = 1, .bytes_per_s = 1},
                            .ranks_per_host = 2};
    assert_true(virtual_time_floor(&STEP, &costs) == 1);
    virtual_step_config c = STEP;
    c.n_ranks = 4;
    assert_true(virtual_time_floor(&c, &costs) == 8);
    costs.host_link.bytes_per_s = 1.0 / 16; /* all collectives: 20 * 16 + 11 */
    assert_true(virtual_time_floor(&c, &costs) == 331 - COMPUTE_S);
}

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((*seed >> 33) % (uint64_t)n);
}

/* No step beats the floor, the limiter keeps its word, and without prefetch nothing hides. */
static void test_random(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 400; n++) {
        uint64_t seed = n;
        virtual_unit units[6];
        for (int u = 0; u < 6; u++)
            units[u] = (virtual_unit){.name = "u",
                                      .gather_bytes = draw(&seed, 6),
                                      .reduce_bytes = draw(&seed, 6),
                                      .forward_s = draw(&seed, 6),
                                      .backward_s = draw(&seed, 12),
                                      .stays = draw(&seed, 5) == 0};
        virtual_step_config c = {.n_ranks = 1 + draw(&seed, 3),
                                 .units = units,
                                 .n_units = 1 + draw(&seed, 6),
                                 .head_forward_s = draw(&seed, 3),
                                 .head_backward_s = draw(&seed, 3),
                                 .grad_accum = draw(&seed, 3),
                                 .prefetch = (virtual_prefetch)draw(&seed, 5),
                                 .limit = draw(&seed, 4),
                                 .sync_after = draw(&seed, 6),
                                 .one_stream = draw(&seed, 2) == 0};
        virtual_config costs = {.link = {.bytes_per_s = 1},
                                .inline_compute = draw(&seed, 2) == 0,
                                .host_issue_s = draw(&seed, 2)};
        virtual_figures f;
        OK(virtual_step_predict(&c, &costs, &f));
        assert_true(f.step_s >= f.compute_s + f.floor_s);
        assert_true(f.step_s >= f.compute_s + f.exposed_s);
        assert_true(c.limit == 0 || f.peak_units <= c.limit + 1);
        if (c.prefetch == VIRTUAL_PREFETCH_NONE && costs.host_issue_s == 0)
            assert_true(f.exposed_s == f.communication_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inline),
        cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_one_stream),
        cmocka_unit_test(test_sync),
        cmocka_unit_test(test_kinds_of_units),
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_floor_over_hosts),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
