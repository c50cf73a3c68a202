/* schedules_lib.c -- task 5.6: a whole model through labs 1 to 5. For every overlap and schedule
 * the bits equal the run without overlap, and gathers are issued as far ahead as they can be. */
#include "tests/grade/schedules_lib.h"
#include <string.h>
#include "common/observe/timeline_stats.h"
#include "common/simulate/virtual_time.h"
#include "tests/grade/explain_lib.h"
#include "tests/grade/prefetch_lib.h"
#include "tests/grade/six_lib.h"
#include "tests/unit/target_lib.h"

enum { STEPS = 3, N_SEEDS = 20, N_MODES = 4, MAX_N = 3 };

static const prefetch_mode MODES[N_MODES] = {PREFETCH_BACKWARD, PREFETCH_BACKWARD_POST,
                                             PREFETCH_FORWARD, PREFETCH_BOTH};

/* ---- the same bits --------------------------------------------------------------------------- */

static run_config training(const grade *g, const prefetch_config *overlap)
{
    return (run_config){.fsdp = true,
                        .sharding = SHARDING_FULL,
                        .wrap = WRAP_BLOCK,
                        .prefetch = *overlap,
                        .model = GPT2_CONFIG(3, 2, 10, 31, 8),
                        .ops = g->ops,
                        .mode = GRAD_ACC_CANONICAL,
                        .batch = 1,
                        .seq_len = 8,
                        .corpus_tokens = 1000,
                        .grad_accum = 2,
                        .steps = STEPS,
                        .evaluates = true,
                        .optimizer = OPTIMIZER_ADAMW,
                        .lr = 1e-2,
                        .clip_norm = 1.0f,
                        .seed = 11};
}

/* One run on its own device, whose streams are scheduled by the seed. */
static fsdp_status run_with_seed(grade *g, uint64_t seed, const prefetch_config *overlap,
                                 FILE *rows, run_result *out)
{
    device *dev;
    comm *group;
    TRY(grade_device_open(g,
                          &(device_config){.n_threads = 1,
                                           .debug_fill = true,
                                           .async_compute = true,
                                           .schedule_seed = (uint64_t)g->rank << 32 | seed},
                          &dev));
    const comm_config cc = target_comm(8);
    TRY(comm_open(dev, &cc, &group));
    run_config c = training(g, overlap);
    c.digests = rows;
    TRY(run_training(dev, group, &c, out));
    comm_close(group);
    device_close(dev);
    return FSDP_OK;
}

typedef struct schedule {
    grade *g;
    uint64_t seed;
    prefetch_config overlap;
} schedule;

static const schedule PLAIN = {.seed = 99, .overlap = {.mode = PREFETCH_NONE}};

static fsdp_status run_again(void *ctx, int which, FILE *rows)
{
    const schedule *mine = ctx, *s = which == 0 ? mine : &PLAIN;
    run_result result = {0};
    fsdp_status status = run_with_seed(mine->g, s->seed, &s->overlap, rows, &result);
    run_result_free(&result);
    return status;
}

/* Every mode with every limit, then again with other seeds. */
static fsdp_status many_schedules(grade *g)
{
    run_result plain = {0};
    TRY(run_with_seed(g, PLAIN.seed, &PLAIN.overlap, NULL, &plain));
    fsdp_status status = FSDP_OK;
    for (int seed = 0; seed < N_SEEDS && status == FSDP_OK; seed++) {
        schedule s = {g,
                      (uint64_t)seed + 1,
                      {.mode = MODES[seed % N_MODES], .limit = 1 + seed / N_MODES % MAX_N}};
        run_result got = {0};
        const char *what = WHAT("%s, limit %d, seed %d, against no overlap",
                                mode_name(s.overlap.mode), s.overlap.limit, seed);
        TRY(run_with_seed(g, s.seed, &s.overlap, NULL, &got));
        status = explain(g, expect_same_run(what, &got, &plain, STEPS), run_again, &s);
        run_result_free(&got);
    }
    run_result_free(&plain);
    return status;
}

/* Only rank 0 gets an invalid limit. All ranks must fail, and none may wait. */
static fsdp_status one_rank_fails(grade *g)
{
    run_result got = {0};
    const prefetch_config overlap = {.mode = PREFETCH_BOTH, .limit = g->rank > 0};
    run_config c = training(g, &overlap);
    fsdp_status status = run_training(g->dev, g->comm, &c, &got);
    run_result_free(&got);
    return comm_agree(g->comm, expect_status("a limit of 0 on rank 0 only", status, FSDP_EINVAL));
}

/* ---- what is gathered, and what of it ahead -------------------------------------------------- */

/* The number of blocks of one pass whose gather is in flight when their turn comes. Forward knows
 * no order in its first pass. After the hook of the head BACKWARD_POST has nothing to gather, so
 * the first block of backward comes late. */
static int blocks_ahead(prefetch_mode mode, bool backward, bool is_first_pass)
{
    if (!backward)
        return (mode == PREFETCH_FORWARD || mode == PREFETCH_BOTH) && !is_first_pass ? SIX_BLOCKS
                                                                                     : 0;
    if (mode == PREFETCH_BACKWARD_POST)
        return SIX_BLOCKS - 1;
    return mode == PREFETCH_FORWARD ? 0 : SIX_BLOCKS;
}

static fsdp_status ahead_body(six *s)
{
    int want = 0;
    const char *name = WHAT("%s, limit %d", mode_name(s->config->mode), s->config->limit);
    for (int step = 0; step < 2; step++) {
        comm_job_stats_reset(s->comm);
        TRY(six_step(s));
        TRY(expect_size(WHAT("%s: all-gathers of a step", name),
                        comm_job_stats_read(s->comm).calls[COMM_OP_ALL_GATHER],
                        SIX_MICRO_STEPS * (1 + 2 * SIX_BLOCKS)));
        for (int a = 0; a < SIX_MICRO_STEPS; a++)
            want += blocks_ahead(s->config->mode, false, step + a == 0) +
                    blocks_ahead(s->config->mode, true, false);
    }
    return expect_int(WHAT("%s: blocks gathered ahead of their turn", name), s->n_ahead, want);
}

/* ---- a budget of virtual time ---------------------------------------------------------------- */

/* Computing a unit takes 1 in forward and 2 in backward, other computation takes no time, and every
 * collective takes 0.75: a step in which nothing is hidden takes 2 * (21 + 20 * 0.75) = 72. On the
 * last rank computing takes `slow` times as long. A step on rank 0 may take as long as the
 * reference takes. No clock is read, and the hooks run on a device that computes nothing. */
typedef struct budget {
    prefetch_mode mode;
    int limit;
    bool ahead; /* the host runs ahead of the compute stream */
    double slow;
    double most;
} budget;

static const budget BUDGETS[] = {
    {PREFETCH_BACKWARD, 2, false, 1, 55.5}, {PREFETCH_BACKWARD_POST, 2, false, 1, 64.5},
    {PREFETCH_FORWARD, 2, false, 1, 55.5},  {PREFETCH_BOTH, 1, false, 1, 46.5},
    {PREFETCH_BACKWARD, 2, true, 1, 46.5},  {PREFETCH_BOTH, 2, true, 1, 46.5},
    {PREFETCH_BOTH, 1, false, 2, 88.5},     {PREFETCH_BOTH, 2, true, 2, 88.5}};
enum { N_BUDGETS = sizeof BUDGETS / sizeof *BUDGETS };

static double unit_s(const void *self, int view, const timeline_item *item)
{
    const budget *b = self;
    double s = strcmp(item->name, SIX_FORWARD) == 0    ? 1
               : strcmp(item->name, SIX_BACKWARD) == 0 ? 2
                                                       : 0;
    return view == 1 ? s * b->slow : s;
}

/* Check rank 0 and the last rank; the ranks between do the same as rank 0. */
static fsdp_status check_budget(grade *g, const budget *b)
{
    const virtual_config config = {
        .work_s = unit_s, .self = b, .link = {.latency_s = 0.75}, .inline_compute = !b->ahead};
    const int n = g->world_size > 1 ? 2 : 1;
    timeline *lines[2] = {timeline_create(0, 0, 0), timeline_create(g->world_size - 1, 0, 0)};
    timeline_view views[2];
    timeline_step step;
    double took = 0;
    FSDP_ASSERT(lines[0] && lines[1]);
    for (int i = 0; i < n; i++) {
        TRY(six_record(
            g, &(six_config){.mode = b->mode, .limit = b->limit, .rank = i * (g->world_size - 1)},
            lines[i]));
        views[i] = timeline_read(lines[i]);
    }
    TRY(virtual_time_run(views, n, &config));
    for (int i = 0; i < n; i++)
        if (timeline_next_step(&views[i], 0, &step) && step.end_s > took)
            took = step.end_s;
    timeline_free(lines[0]);
    timeline_free(lines[1]);
    return EXPECT(took <= b->most, "what could run while a unit computes, and does not?",
                  "%s, limit %d%s%s: a step takes %g of virtual time, expected at most %g",
                  mode_name(b->mode), b->limit, b->ahead ? ", the host ahead" : "",
                  b->slow > 1 ? ", a slow rank" : "", took, b->most);
}

/* If a task is unwritten, the hooks work without it and the bits are the same. */
static fsdp_status is_written(void)
{
    exec_order o = {0};
    limiter l = {.limit = 1};
    bool granted;
    TRY(order_begin(&o));
    return limiter_acquire(&l, false, &granted);
}

fsdp_status task_5_6(grade *g)
{
    TRY(is_written());
    TRY(many_schedules(g));
    TRY(one_rank_fails(g));
    for (int i = 0; i < N_MODES; i++)
        TRY(six_run(g, &(six_config){.mode = MODES[i], .limit = 1 + i % MAX_N}, ahead_body));
    for (int i = 0; i < N_BUDGETS; i++)
        TRY(check_budget(g, &BUDGETS[i]));
    return FSDP_OK;
}
