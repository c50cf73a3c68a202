/* lab5.c -- the task tests of lab 5: what is issued ahead, and in which order.
 *
 * Tasks 5.1 to 5.3 are here, on the model of handmade_lib.h; 5.4 is in limiter_lib.c, 5.5 in
 * overlap_lib.c, 5.6 in schedules_lib.c. */
#include <string.h>
#include "lab5_prefetch/bucket.h"
#include "tests/grade/limiter_lib.h"
#include "tests/grade/overlap_lib.h"
#include "tests/grade/prefetch_lib.h"
#include "tests/grade/schedules_lib.h"

/* An order that is not the units' own, so that u + 1 and u - 1 are wrong answers. */
static const int FORWARD[] = {ROOT, H2, H0, FROZEN};
#define FORWARD_WORDS "forward visits root h.2 h.0 h.1"
static const int POST_FORWARD[] = {H2, H0, FROZEN, ROOT};
#define POST_FORWARD_WORDS "post_forward is h.2 h.0 h.1 root"

/* ---- 5.1 ------------------------------------------------------------------------------------ */

/* A pass over the model. When the next pass has begun, its visits are the order that is known. */
typedef struct order_pass {
    const char *what;
    int n_visits, visits[4];
    int changes; /* since the first pass */
} order_pass;

static const order_pass PASSES[] = {
    {"the first pass", 4, {0, 1, 2, 3}, 0},
    {"the same again", 4, {0, 1, 2, 3}, 0},
    {"changed in the middle", 4, {0, 1, 3, 2}, 1},
    {"the changed one again", 4, {0, 1, 3, 2}, 1},
    {"shorter", 3, {0, 1, 3}, 2},
    {"the shorter one again", 3, {0, 1, 3}, 2},
    {"longer", 4, {0, 1, 3, 2}, 3},
    {"changed, and shorter", 2, {0, 2}, 4},
    {"changed from the start", 4, {3, 2, 1, 0}, 5},
    {"ended early", 2, {3, 2}, 6},
    {"changed, after one that ended early", 2, {3, 1}, 7},
    {"nothing", 0, {0}, 8},
    {"after nothing", 2, {2, 1}, 8},
};

static fsdp_status order_body(fixture *fx)
{
    int units[64]; /* room for an order that grows by mistake */
    exec_order o = {.units = units};
    TRY(order_begin(&o));
    note(fx, expect_int("units known before the first pass", o.n, 0));
    for (size_t i = 0; i < sizeof PASSES / sizeof *PASSES; i++) {
        const order_pass *pass = &PASSES[i];
        for (int k = 0; k < pass->n_visits; k++)
            TRY(order_visit(&o, pass->visits[k]));
        TRY(order_begin(&o));
        expect_units(fx, pass->what, &o, pass->visits, pass->n_visits);
        note(fx, expect_int(WHAT("%s: changes so far", pass->what), o.changes, pass->changes));
    }
    return FSDP_OK;
}

/* What is known in the middle of a pass that differs: nothing after the first difference. */
static fsdp_status cut_body(fixture *fx)
{
    static const int known[] = {0, 1, 2, 3};
    int units[4];
    exec_order o = {.units = units};
    know_order(&o, known, 4);
    TRY(order_visit(&o, 0));
    note(fx, expect_int("unit after 0, while the pass is as it was", order_after(&o, 0), 1));
    TRY(order_visit(&o, 2));
    expect_units(fx, "0 1 2 3 was known, 0 2 is visited", &o, (const int[]){0, 2}, 2);
    note(fx, expect_int("unit after 2, which nobody knows now", order_after(&o, 2), NO_UNIT));
    note(fx, expect_int("unit before 2, as it is now", order_before(&o, 2), 0));
    note(fx, expect_int("unit after 1, which was cut off", order_after(&o, 1), NO_UNIT));
    note(fx,
         EXPECT(!o.complete, "",
                "order_visit of a unit that differs: complete is true, expected false until the "
                "next order_begin"));
    note(fx, expect_int("changes, seen at once", o.changes, 1));
    TRY(order_visit(&o, 1));
    note(fx,
         expect_int("changes: a pass that is being recorded cannot differ again", o.changes, 1));
    return FSDP_OK;
}

/* Every unit is recorded: a frozen one, and one of which this rank has only padding. */
static fsdp_status post_forward_part(fixture *fx, prefetch *p)
{
    static const int blocks[] = {H0, FROZEN, H2};
    for (int i = 0; i < 3; i++) {
        const char *what = WHAT("post_forward of %s", fx->f.units[blocks[i]].name);
        TRY(fix_gather_by_hand(fx, blocks[i]));
        TRY(RUNS_AHEAD(fx, what, prefetch_post_forward(p, blocks[i])));
        note(fx, expect_state(WHAT("state after %s", what), fx->f.units[blocks[i]].state,
                              UNIT_SHARDED));
    }
    TRY(fix_gather_by_hand(fx, ROOT));
    TRY(RUNS_AHEAD(fx, "post_forward of the root", prefetch_post_forward(p, ROOT)));
    note(fx,
         expect_state("state of the root, which stays", fx->f.units[ROOT].state, UNIT_GATHERED));
    expect_units(fx, "post_forward", &p->post_forward, (const int[]){H0, FROZEN, H2, ROOT}, 4);
    fx->f.units[H2].state = UNIT_GATHERING; /* reshard refuses this state */
    note(fx, expect_status("post_forward of a unit that is GATHERING", prefetch_post_forward(p, H2),
                           FSDP_ESTATE));
    fx->f.units[H2].state = UNIT_SHARDED;
    return FSDP_OK;
}

static fsdp_status post_forward_body(fixture *fx)
{
    return with_prefetch(fx, PREFETCH_BACKWARD, NO_LIMIT, post_forward_part);
}

static fsdp_status task_5_1(grade *g)
{
    TRY(fixture_run(g, AHEAD_SPEC(), order_body));
    TRY(fixture_run(g, AHEAD_SPEC(), cut_body));
    return fixture_run(g, AHEAD_SPEC(), post_forward_body);
}

/* ---- 5.2 ------------------------------------------------------------------------------------ */

static bool looks_ahead_in_backward(const prefetch *p)
{
    return p->config.mode == PREFETCH_BACKWARD || p->config.mode == PREFETCH_BOTH;
}

/* Call one hook and check what it issues. `ahead`: only in modes that look ahead in backward. */
static fsdp_status pre_backward_issues(fixture *fx, prefetch *p, int u, const char *own,
                                       const char *ahead)
{
    char want[96];
    snprintf(want, sizeof want, "%s%s", own, looks_ahead_in_backward(p) ? ahead : "");
    const char *what = WHAT("pre_backward of %s, --prefetch %s, %s", fx->f.units[u].name,
                            mode_name(p->config.mode),
                            p->post_forward.n ? POST_FORWARD_WORDS : "no order is known");
    TRY(RUNS_AHEAD(fx, what, prefetch_pre_backward(p, u)));
    fix_expect_trace(fx, what, want);
    expect_begun(fx, p, what, own[0] != '\0', looks_ahead_in_backward(p) && ahead[0] != '\0');
    note(fx, expect_state(what, fx->f.units[u].state, UNIT_GATHERED));
    note(fx, expect_int(WHAT("%s: visited (backward_pre_hook sets it, also if u is frozen)", what),
                        fx->r.grads[u].visited, 1));
    note(fx, expect_int("gradient memory after pre_backward",
                        fx->r.grads[u].buffer.full_grad != NULL, u != FROZEN));
    return FSDP_OK;
}

/* backward: root h.1 h.0 h.2, the reverse of POST_FORWARD. */
static fsdp_status backward_part(fixture *fx, prefetch *p)
{
    know_order(&p->post_forward, POST_FORWARD, N_UNITS);
    issued_start(fx);
    const bool ahead = looks_ahead_in_backward(p);
    TRY(fix_gather_by_hand(fx, ROOT)); /* forward left the root gathered */
    TRY(pre_backward_issues(fx, p, ROOT, "", "all-gather h.1;"));
    note(fx, expect_state("state of h.1, gathered ahead", fx->f.units[FROZEN].state,
                          ahead ? UNIT_GATHERING : UNIT_SHARDED));
    /* with prefetch, their own gathers are in flight */
    TRY(pre_backward_issues(fx, p, FROZEN, ahead ? "" : "all-gather h.1;", "all-gather h.0;"));
    TRY(pre_backward_issues(fx, p, H0, ahead ? "" : "all-gather h.0;", "all-gather h.2;"));
    TRY(pre_backward_issues(fx, p, H2, ahead ? "" : "all-gather h.2;", "")); /* the last unit */
    for (int u = 1; u < N_UNITS; u++)
        TRY(expect_gathered(fx, "backward", u));
    TRY(put_back(fx, p));
    TRY(pre_backward_issues(fx, p, H0, "all-gather h.0;",
                            "all-gather h.2;")); /* own gather first */
    TRY(put_back(fx, p));
    TRY(fix_gather_by_hand(fx, H2)); /* a unit that stayed after forward */
    TRY(pre_backward_issues(fx, p, H0, "all-gather h.0;", ""));
    TRY(put_back(fx, p));
    know_order(&p->post_forward, POST_FORWARD, 0);
    return pre_backward_issues(fx, p, H0, "all-gather h.0;", ""); /* no order is known */
}

/* The entry before unit 0 is "not visited", so a call that looks up NO_UNIT issues a gather. */
static fsdp_status after_the_last(fixture *fx, prefetch *p)
{
    unit_grad with_none[1 + N_UNITS] = {{.visited = false}}, *grads = fx->r.grads;
    memcpy(with_none + 1, grads, N_UNITS * sizeof *grads);
    fx->r.grads = with_none + 1;
    fsdp_status status = prefetch_backward(p, H2);
    fx->r.grads = grads;
    fix_expect_trace(fx, "prefetch_backward of the last unit of backward", "");
    return status;
}

static fsdp_status prefetch_backward_part(fixture *fx, prefetch *p)
{
    know_order(&p->post_forward, POST_FORWARD, N_UNITS);
    issued_start(fx);
    TRY(prefetch_backward(p, ROOT));
    fix_expect_trace(fx, "prefetch_backward of the root, " POST_FORWARD_WORDS, "all-gather h.1;");
    TRY(after_the_last(fx, p));
    TRY(prefetch_backward(p, ROOT));
    fix_expect_trace(fx, "prefetch_backward of the root again: h.1 is under way", "");
    fx->r.grads[H0].visited = true;
    TRY(prefetch_backward(p, FROZEN));
    fix_expect_trace(fx, "prefetch_backward when the next unit has had its turn", "");
    expect_begun(fx, p, "prefetch_backward", 0, 1);
    return FSDP_OK;
}

/* While the stream of gathers is held up, compute must wait only for its own unit's gather. */
static fsdp_status waits_for_its_own(fixture *fx, prefetch *p, const char *name,
                                     fsdp_status (*hook)(void *, int), int u)
{
    TRY(gate_close(fx->g, p->given.gather_stream));
    TRY(hook(p, u));
    TRY(gate_check(fx->g, name));
    expect_stands(
        fx, "unshard_wait, after the hook's own gather",
        WHAT("%s of %s, while the gather of that unit stands still", name, fx->f.units[u].name));
    note(fx, gate_open(fx->g, name));
    TRY(expect_gathered(fx, "its own unit", u));
    TRY(put_back(fx, p));
    TRY(fix_gather_by_hand(fx, u));
    TRY(gate_close(fx->g, p->given.gather_stream));
    TRY(hook(p, u));
    expect_runs(fx, "begin the next gather, and do not wait for it",
                WHAT("%s of %s, which is gathered, while gather_stream stands still", name,
                     fx->f.units[u].name));
    note(fx, gate_open(fx->g, name));
    return FSDP_OK;
}

static fsdp_status backward_waits_part(fixture *fx, prefetch *p)
{
    know_order(&p->post_forward, POST_FORWARD, N_UNITS);
    return waits_for_its_own(fx, p, "prefetch_pre_backward", prefetch_pre_backward, H0);
}

static fsdp_status backward_body(fixture *fx)
{
    for (int mode = PREFETCH_BACKWARD; mode <= PREFETCH_BOTH; mode++)
        TRY(with_prefetch(fx, (prefetch_mode)mode, NO_LIMIT, backward_part));
    TRY(with_prefetch(fx, PREFETCH_BACKWARD_POST, NO_LIMIT, prefetch_backward_part));
    return with_prefetch(fx, PREFETCH_BACKWARD, NO_LIMIT, backward_waits_part);
}

static fsdp_status task_5_2(grade *g)
{
    return fixture_run(g, AHEAD_SPEC(), backward_body);
}

/* ---- 5.3 ------------------------------------------------------------------------------------ */

/* Call the hook for every unit of a pass; want[i] is what unit i's hook issues. If that is not the
 * root's gather, the root is gathered before the pass.
 *   order  what is known of the order, in words */
static fsdp_status forward_pass(fixture *fx, prefetch *p, const char *order, const int *units,
                                const char *const *want)
{
    TRY(put_back(fx, p));
    if (!strstr(want[0], "root"))
        TRY(fix_gather_by_hand(fx, ROOT));
    TRY(order_begin(&p->forward));
    for (int i = 0; i < N_UNITS; i++) {
        const char *what = WHAT("pre_forward of %s, --prefetch %s, %s", fx->f.units[units[i]].name,
                                mode_name(p->config.mode), order);
        TRY(RUNS_AHEAD(fx, what, prefetch_pre_forward(p, units[i])));
        fix_expect_trace(fx, what, want[i]);
        const bool own = strstr(want[i], fx->f.units[units[i]].name) != NULL;
        expect_begun(fx, p, what, own,
                     strchr(want[i], ';') != strrchr(want[i], ';') || (!own && *want[i]));
        note(fx, expect_state(what, fx->f.units[units[i]].state, UNIT_GATHERED));
    }
    for (int i = 0; i < N_UNITS; i++)
        TRY(expect_gathered(fx, "forward", units[i]));
    expect_units(fx, WHAT("order recorded in p->forward, %s", order), &p->forward, units, N_UNITS);
    return FSDP_OK;
}

static fsdp_status forward_part(fixture *fx, prefetch *p)
{
    static const char *const alone[] = {"all-gather root;", "all-gather h.2;", "all-gather h.0;",
                                        "all-gather h.1;"};
    static const char *const ahead[] = {"all-gather root;all-gather h.2;", "all-gather h.0;",
                                        "all-gather h.1;", ""};
    /* The second batch of an evaluation finds the root gathered. Modes that look ahead begin at
     * kept + 1. */
    static const char *const kept[] = {"", "all-gather h.2;", "all-gather h.0;", "all-gather h.1;",
                                       ""};
    /* h.0 comes where h.2 was expected. h.2 is gathered already. After h.0 no order is known. */
    static const int other[] = {ROOT, H0, FROZEN, H2};
    const bool looks = p->config.mode == PREFETCH_FORWARD || p->config.mode == PREFETCH_BOTH;
    issued_start(fx);
    TRY(forward_pass(fx, p, "the first pass", FORWARD, alone)); /* the order is not known yet */
    TRY(forward_pass(fx, p, FORWARD_WORDS, FORWARD, looks ? ahead : alone));
    TRY(forward_pass(fx, p, "the same again, the root is still gathered", FORWARD, kept + looks));
    return looks ? forward_pass(fx, p, "h.0 where h.2 was before", other, ahead) : FSDP_OK;
}

static fsdp_status pre_forward_number_2(void *self, int u)
{
    prefetch *p = self;
    know_order(&p->forward, FORWARD, N_UNITS);
    p->forward.next = 2;
    return prefetch_pre_forward(p, u);
}

static fsdp_status forward_waits_part(fixture *fx, prefetch *p)
{
    return waits_for_its_own(fx, p, "prefetch_pre_forward", pre_forward_number_2, FORWARD[2]);
}

static fsdp_status forward_body(fixture *fx)
{
    for (int mode = PREFETCH_BACKWARD; mode <= PREFETCH_BOTH; mode++)
        TRY(with_prefetch(fx, (prefetch_mode)mode, NO_LIMIT, forward_part));
    return with_prefetch(fx, PREFETCH_FORWARD, NO_LIMIT, forward_waits_part);
}

static fsdp_status task_5_3(grade *g)
{
    TRY(fixture_run(g, AHEAD_SPEC(.sharding = SHARDING_GRAD_OP), forward_body));
    return fixture_run(g, AHEAD_SPEC(), forward_body);
}

/* ---- 5.7, a star ----------------------------------------------------------------------------- */

static fsdp_status check_buckets(const char *what, size_t max_elems, const size_t *elems, int n,
                                 const int *want)
{
    int bucket_of[8], n_buckets = 0;
    TRY(bucket_assign(max_elems, elems, n, bucket_of, &n_buckets));
    for (int u = 0; u < n; u++)
        TRY(expect_int(WHAT("%s: bucket of unit %d", what, u), bucket_of[u], want[u]));
    return expect_int(WHAT("%s: buckets", what), n_buckets, want[n - 1] + 1);
}

static fsdp_status task_5_7(grade *g)
{
    static const size_t MIXED[] = {50, 4, 5, 3, 12, 1}, EQUAL[] = {9, 2, 2, 2, 2}, ALONE[] = {7};
    /* sums that wrap round */
    static const size_t LARGE[] = {50, SIZE_MAX - 1, 4, 3, SIZE_MAX, 2},
                        HALVES[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2, 5, 1};
    TRY(check_buckets("4 5 3 12 1, at most 10", 10, MIXED, 6, (const int[]){0, 1, 1, 2, 3, 4}));
    TRY(check_buckets("4 5 3 12 1, at most 100", 100, MIXED, 6, (const int[]){0, 1, 1, 1, 1, 1}));
    TRY(check_buckets("2 2 2 2, at most 4", 4, EQUAL, 5, (const int[]){0, 1, 1, 2, 2}));
    TRY(check_buckets("2 2 2 2, at most 3", 3, EQUAL, 5, (const int[]){0, 1, 2, 3, 4}));
    TRY(check_buckets("the root alone", 1, ALONE, 1, (const int[]){0}));
    TRY(check_buckets("the largest size - 1, 4, 3, the largest, 2, at most 10", 10, LARGE, 6,
                      (const int[]){0, 1, 2, 2, 3, 4}));
    TRY(check_buckets("half of the largest size twice, then 5 and 1, without a limit", SIZE_MAX,
                      HALVES, 5, (const int[]){0, 1, 1, 2, 2}));
    int bucket_of[8], n_buckets;
    return expect_status("bucket_assign, where nothing fits",
                         bucket_assign(1, EQUAL, 5, bucket_of, &n_buckets), FSDP_EINVAL);
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"5.1", task_5_1}, {"5.2", task_5_2}, {"5.3", task_5_3},
                                       {"5.4", task_5_4}, {"5.5", task_5_5}, {"5.6", task_5_6},
                                       {"5.7", task_5_7}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
