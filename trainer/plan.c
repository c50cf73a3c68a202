/* plan.c -- see plan.h.
 *
 *   dry_open (a trainer like the caller's, on a dry device) -> dry_steps -> figures -> dry_close
 *
 * The last step is reported, because prefetch learns the order of the units in the first step, and
 * the host runs up to one step ahead. */
#include "trainer/plan.h"
#include <string.h>
#include "common/device/dry.h"
#include "common/model/tensor_parallel.h"
#include "common/observe/timeline_watch.h"
#include "common/ops/backends.h"
#include "trainer/trainer.h"

/* A plan runs STEPS steps with at most MOST_MICRO_STEPS micro-steps each; for times at most
 * MOST_TIMED, because deep models fill a timeline. */
enum { STEPS = 3, MOST_MICRO_STEPS = 64, MOST_TIMED = 4 };

typedef struct dry_run {
    trainer t;
    timeline *line; /* of all steps; NULL: no times are wanted */
    timeline_watch *watch;
    comm_stats traffic;
    double flops;
    size_t eval_batches;
} dry_run;

/* ---- a trainer on a dry device --------------------------------------------------------------- */

/* How the job's transport moves data. A plan does not know the hosts, so it takes shm+mpi for mpi.
 * If the job has one rank, take the transport that several ranks would have. */
static comm_moves moves_of(const trainer *t)
{
    const comm_moves moves = comm_moves_of(t->run.world);
    if (moves == MOVES_BY_BOTH)
        return MOVES_BY_BRINGING;
    if (moves != MOVES_NOTHING)
        return moves;
    return backend_of(t->opt->device)->native && trainer_comm(t->opt) != COMM_SHM
               ? MOVES_NATIVELY
               : MOVES_BY_SHOWING;
}

static fsdp_status begin_step(void *self, int64_t step)
{
    dry_run *d = self;
    if (d->line)
        timeline_watch_step(d->watch, step);
    snapshot_step(d->t.snapshot, step);
    return FSDP_OK;
}

static fsdp_status end_step(void *self)
{
    snapshot_end_step(((dry_run *)self)->t.snapshot);
    return FSDP_OK;
}

/* Adds up FLOPs if there is no timeline. Only the host's thread calls it. */
static uint64_t count_flops(void *self, const device_act *act)
{
    ((dry_run *)self)->flops += act->kind == ACT_LAUNCH ? act->work.cost.flops : 0;
    return 0;
}

static void dry_close(dry_run *d)
{
    if (d->t.run.dev)
        device_set_watch(d->t.run.dev, NULL);
    if (d->t.run.world)
        comm_set_watch(d->t.run.world, NULL);
    trainer_free(&d->t);
    timeline_watch_free(d->watch);
    timeline_free(d->line);
}

static fsdp_status dry_steps(dry_run *d)
{
    trainer *t = &d->t;
    t->setup = (train_setup){.cfg = &t->cfg.train,
                             .run = &t->run,
                             .engine = &t->engine,
                             .observer = {d, begin_step, end_step, NULL},
                             .runner = t->runner,
                             .store = t->opt->save_dir ? &t->store : NULL};
    comm_stats unused, *of_batch = t->run.forward_only ? &d->traffic : &unused;
    TRY(train_open(&t->setup, &t->loop));
    if (!t->run.forward_only)
        TRY(train_rehearse(t->loop, STEPS, &d->traffic));
    if (d->line)
        timeline_watch_to(d->watch, NULL);
    if (trainer_val_data(t)) /* while the gradients of the last step are still allocated */
        TRY(train_rehearse_evaluation(t->loop, d->eval_batches, of_batch));
    if (t->opt->export_dir || t->opt->export_init_dir) /* gathers the masters, unit by unit */
        TRY(t->engine.read_array(t->engine.self, 0, NULL, NULL));
    if (t->opt->export_optimizer)
        TRY(t->engine.read_array(t->engine.self, 1, NULL, NULL));
    return FSDP_OK;
}

/* Run the steps as rank `rank`, on a dry device like the machine of --plan-device if it names one,
 * or else like the device of `of`. */
static fsdp_status dry_open(const trainer *of, int rank, bool timed, int64_t micro_steps,
                            dry_run *d)
{
    trainer *t = &d->t;
    const bool on_accelerator = (timed || of->opt->plan) && of->costs.machine.model;
    const bool runs_c = device_runs_c(of->run.dev);
    const dry_kind kind = device_memory_is_host(of->run.dev) ? DRY_CPU : DRY_SEPARATE;
    const device_watch counter = {.self = d, .issued = count_flops};
    const corpus endless = {.n_tokens = SIZE_MAX};
    const corpus *val = of->opt->plan ? &endless : trainer_val_data(of); /* --plan opens no data */
    *d = (dry_run){.t = {.opt = of->opt,
                         .cfg = of->cfg,
                         .run = of->run,
                         .costs = of->costs,
                         .told = of->told,
                         .runs_ahead = of->runs_ahead || on_accelerator},
                   .eval_batches =
                       trainer_val_data(of) ? train_eval_batches(&of->cfg.train, val) : 0};
    TRY(model_copy(of->run.m, &t->m));
    t->run.m = &t->m;
    t->cfg.makes_digests = false;
    t->cfg.train.steps = STEPS;
    t->run.dev = NULL;
    t->run.world = NULL;
    t->run.grad_accum = (int)micro_steps;
    if (!runs_c) /* the CPU's operations describe the same work */
        t->run.ops = ops_cpu_fast();
    device_config dc = {.backend = device_dry(on_accelerator || !runs_c ? DRY_POOL : kind),
                        .n_threads = 1,
                        .async_compute = of->runs_ahead};
    TRY(device_open(&dc, &t->run.dev));
    if (of->opt->plan && of->opt->snapshot)
        TRY(snapshot_open(t->run.dev, &t->snapshot));
    comm_config cc = {
        .backend = COMM_DRY,
        .dry = {rank, of->cfg.n_ranks, on_accelerator ? MOVES_NATIVELY : moves_of(of)},
        .sums = ops_cpu_fast()->sums};
    TRY(comm_open(t->run.dev, &cc, &t->run.world));
    if (timed && micro_steps <= MOST_TIMED) {
        d->line = timeline_create(rank, 0, 0);
        d->watch = timeline_watch_create(t->run.dev, t->run.world, NULL, NULL);
        if (!d->line || !d->watch)
            return fsdp_error(FSDP_ENOMEM, "", "plan: no memory of the host");
        timeline_watch_to(d->watch, d->line);
    } else {
        device_set_watch(t->run.dev, &counter);
    }
    TRY(trainer_make(t));
    return dry_steps(d);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* The seconds of a WORK. */
static double work_s(const void *self, int view, const timeline_item *item)
{
    const trainer *t = self;
    const plan_costs *c = &t->costs;
    (void)view;
    return c->prices.n > 0 ? prices_seconds(&c->prices, item) / c->machine.reached
                           : virtual_work_roof(&c->machine, item);
}

/* Run the timeline in virtual time. *last = the last step; *step_s = its length. */
static fsdp_status run_view(const timeline_view *v, const virtual_config *config,
                            timeline_step *last, double *step_s)
{
    timeline_step next;
    *last = (timeline_step){0};
    *step_s = 0;
    TRY(virtual_time_run(v, 1, config));
    while (timeline_next_step(v, last->end, &next)) {
        *step_s = next.compute_end_s - last->compute_end_s;
        *last = next;
    }
    return FSDP_OK;
}

/* Compute the times of d's last step. */
static fsdp_status read_times(dry_run *d, plan_times *out)
{
    const timeline_view view = timeline_read(d->line), *v = &view;
    virtual_config config = d->t.costs.config;
    timeline_step step;
    double without_s;
    config.work_s = work_s;
    config.self = &d->t;
    config.inline_compute = !d->t.runs_ahead;
    if (d->t.costs.prices.n > 0)
        TRY(prices_have(&d->t.costs.prices, v));
    TRY(run_view(v, &config, &step, &out->step_s));
    TRY(virtual_time_floor(v, step.first, &config, &out->floor_s));
    out->compute_s = step.compute_s + step.move_s;
    out->exposed_s = step.exposed_s;
    out->stall = step.stall;
    for (int64_t i = step.first; i < step.end; i++) {
        bool over_hosts;
        if (v->items[i].kind == TIMELINE_COLLECTIVE)
            out->communication_s += virtual_collective_s(&config, &v->items[i], &over_hosts);
        else if (v->items[i].way != STAYS_INSIDE)
            out->copies_s += virtual_copy_s(&config, &v->items[i]);
    }
    if (out->copies_s > 0) {
        config.upload = config.download = (virtual_link){0};
        TRY(run_view(v, &config, &step, &without_s));
        out->longer_s = out->step_s - without_s;
    }
    return FSDP_OK;
}

/* ---- a plan ---------------------------------------------------------------------------------- */

void plan_read_memory(device *d, size_t in_time[MEM_ROWS], size_t issued[MEM_ROWS])
{
    const ledger_figures f = ledger_read(device_ledger(d));
    ledger_figures host = {0};
    if (!device_memory_is_host(d))
        host = ledger_read(device_host_ledger(d));
    memcpy(in_time, f.peak_bytes, sizeof f.peak_bytes);
    memcpy(issued, f.issued_peak_bytes, sizeof f.issued_peak_bytes);
    in_time[MEM_TOTAL] = f.peak_total_bytes;
    issued[MEM_TOTAL] = f.issued_peak_total_bytes;
    in_time[MEM_ON_HOST] = host.peak_total_bytes;
    issued[MEM_ON_HOST] = host.issued_peak_total_bytes;
}

static fsdp_status plan_of(const trainer *t, int rank, bool timed, int64_t micro_steps, plan *out)
{
    dry_run d;
    size_t in_time[MEM_ROWS];
    fsdp_status status = dry_open(t, rank, timed, micro_steps, &d);
    *out = (plan){.traffic = d.traffic, .flops = d.flops / STEPS};
    if (status == FSDP_OK)
        plan_read_memory(d.t.run.dev, in_time, out->memory_bytes);
    if (status == FSDP_OK && d.line)
        status = read_times(&d, &out->times);
    /* only for the reported plan, not for plans that are compared to make a choice */
    if (status == FSDP_OK && d.t.snapshot && out == &t->plan && comm_rank(t->run.world) == 0)
        status = snapshot_write(d.t.snapshot, t->opt->snapshot, rank, t->cfg.n_ranks);
    fsdp_error_info why = *fsdp_error_get();
    dry_close(&d);
    if (status != FSDP_OK)
        fsdp_error_set(&why);
    return status;
}

static void add_memory(plan *p, mem_category k, size_t bytes)
{
    p->memory_bytes[k] += bytes;
    p->memory_bytes[MEM_TOTAL] += bytes;
}

/* The most partial sums that wait at one time in n micro-steps of a canonical run. After k
 * micro-steps the binary tree has w k leaves, and one complete subtree for each 1 bit of w k. */
static int most_waiting(int64_t w, int64_t n)
{
    int most = 0;
    for (int64_t k = 1; k <= n; k++) {
        const int now = __builtin_popcountll((unsigned long long)(w * k));
        most = now > most ? now : most;
    }
    return most;
}

/* Extrapolate counts and memory to all micro-steps. `out` was planned with MOST_MICRO_STEPS (a
 * power of two), `fewer` with half as many. Each further MOST_MICRO_STEPS / 2 add what the second
 * half added, even in a canonical run, whose sums differ from one micro-step to the next. But more
 * partial sums of gradients may wait in the tree of a canonical run. */
static void extrapolate_counts(const trainer *t, const plan *fewer, plan *out)
{
    const int n_ranks = trainer_config_data_ranks(&t->cfg);
    const uint64_t n = (uint64_t)t->run.grad_accum, made = MOST_MICRO_STEPS / 2;
    const uint64_t more = n - MOST_MICRO_STEPS;
    for (int op = 0; op < COMM_OPS; op++) {
        comm_stats *a = &out->traffic;
        const comm_stats *b = &fewer->traffic;
        a->calls[op] += more * ((a->calls[op] - b->calls[op]) / made);
        a->bytes_sent[op] += more * ((a->bytes_sent[op] - b->bytes_sent[op]) / made);
    }
    const size_t losses = out->memory_bytes[MEM_OTHER] - fewer->memory_bytes[MEM_OTHER];
    add_memory(out, MEM_OTHER, more * (losses / made));
    /* with no_sync, a canonical sum keeps one more gradient for each doubling of micro-steps */
    if (t->run.no_sync) {
        const size_t gradient =
            out->memory_bytes[MEM_GRADS_FULL] - fewer->memory_bytes[MEM_GRADS_FULL];
        for (uint64_t k = 2 * MOST_MICRO_STEPS; k <= n; k *= 2)
            add_memory(out, MEM_GRADS_FULL, gradient);
        return;
    }
    if (t->run.mode != GRAD_ACC_CANONICAL)
        return;
    /* a partial sum is this rank's slice of all gradients; with a tied weight at most twice that */
    const bool is_single = n_ranks == 1 && t->cfg.parallel != PARALLEL_FSDP;
    mem_category k = is_single ? MEM_GRADS_FULL : MEM_GRADS_SHARD;
    size_t s = (size_t)trainer_config_shard_size(&t->cfg);
    size_t shard = t->opt->cpu_offload ? t->run.m->n_param_elems * sizeof(float) / s
                                       : out->memory_bytes[MEM_PARAMS_SHARD];
    size_t vector = 2 * shard * s / (size_t)n_ranks;
    out->is_bound = true;
    /* add one sum: memory may peak in another micro-step than the one with the most sums */
    const int waiting = most_waiting(n_ranks, (int64_t)n) - most_waiting(n_ranks, MOST_MICRO_STEPS);
    add_memory(out, k, (size_t)(waiting + 1) * vector);
    if (t->opt->cpu_offload) /* the sums wait in host memory */
        out->memory_bytes[MEM_ON_HOST] += (size_t)(waiting + 1) * vector;
}

/* Extrapolate times to n micro-steps. `out` is planned with MOST_TIMED, `fewer` with half. */
static void extrapolate_times(int64_t n, const plan_times *fewer, plan_times *out)
{
    const double times = (double)(n - MOST_TIMED) / (MOST_TIMED / 2.0);
    out->step_s += times * (out->step_s - fewer->step_s);
    out->floor_s += times * (out->floor_s - fewer->floor_s);
    out->compute_s += times * (out->compute_s - fewer->compute_s);
    out->exposed_s += times * (out->exposed_s - fewer->exposed_s);
    out->communication_s += times * (out->communication_s - fewer->communication_s);
    out->copies_s += times * (out->copies_s - fewer->copies_s);
    out->longer_s += times * (out->longer_s - fewer->longer_s);
}

fsdp_status plan_make(const trainer *t, int rank, bool timed, plan *out)
{
    const int64_t n = t->run.grad_accum;
    plan fewer, few;
    TRY(plan_of(t, rank, timed, n < MOST_MICRO_STEPS ? n : MOST_MICRO_STEPS, out));
    if (n > MOST_MICRO_STEPS) {
        TRY(plan_of(t, rank, timed, MOST_MICRO_STEPS / 2, &fewer));
        extrapolate_counts(t, &fewer, out);
    }
    if (timed && n > MOST_TIMED) {
        TRY(plan_of(t, rank, timed, MOST_TIMED / 2, &fewer));
        TRY(plan_of(t, rank, timed, MOST_TIMED, &few));
        extrapolate_times(n, &fewer.times, &few.times);
        out->times = few.times;
    }
    return FSDP_OK;
}
