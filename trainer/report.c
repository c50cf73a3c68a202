/* report.c -- the plan, and what a run measured beside it. */
#include <stdlib.h>
#include "common/base/atomic_file.h"
#include "common/base/units.h"
#include "trainer/trainer.h"

static const comm_op SHOWN_OPS[] = {COMM_OP_ALL_GATHER, COMM_OP_REDUCE_SCATTER, COMM_OP_ALL_REDUCE};
enum { N_SHOWN_OPS = 3, MOST_FIT_RANKS = 1 << 16 };

/* ---- the plan -------------------------------------------------------------------------------- */

/* What times go by. */
static void print_machine(const trainer *t, FILE *out)
{
    const plan_costs *c = &t->costs;
    const virtual_link *link = &c->config.link, *hosts = &c->config.host_link;
    if (c->prices.n > 0)
        fprintf(out, "  operations as in %s\n", t->cfg.plan_prices);
    else if (c->machine.model)
        fprintf(out, "  %s, %.0f%% of its peaks in products and memory\n", c->machine.model,
                1e2 * c->machine.reached);
    else
        fprintf(out, "  measured just now: %.0f GFLOP/s, memory %.1f GB/s\n",
                1e-9 * c->machine.f32_flops_per_s, 1e-9 * c->machine.bytes_per_s);
    if (t->cfg.n_ranks == 1)
        return;
    fprintf(out, "  a collective: %.0f us + bytes / %.2f GB/s", 1e6 * link->latency_s,
            1e-9 * link->bytes_per_s);
    if (c->config.ranks_per_host > 0)
        fprintf(out, " inside a host of %d, %.0f us + bytes / %.2f GB/s between hosts",
                c->config.ranks_per_host, 1e6 * hosts->latency_s, 1e-9 * hosts->bytes_per_s);
    if (c->slow_factor > 0)
        fprintf(out, "; rank %d computes %g times as slowly", c->slow_rank, c->slow_factor);
    fprintf(out, "\n");
}

static void print_times(const trainer *t, FILE *out)
{
    const plan *p = &t->plan;
    fprintf(out, "one step in virtual time, prefetch %s",
            prefetch_name((prefetch_mode)t->cfg.prefetch));
    if (t->cfg.buckets.max_elems > 0)
        fprintf(out, ", buckets of at most %zu parameters", t->cfg.buckets.max_elems);
    fprintf(out, "\n  %-14s %13.1f ms\n", "step", 1e3 * p->step_s);
    fprintf(out, "  %-14s %13.1f ms\n", "compute", 1e3 * p->compute_s);
    fprintf(out, "  %-14s %13.1f ms\n", "communication", 1e3 * p->communication_s);
    fprintf(out, "  %-14s %13.1f ms, no schedule leaves less than %.1f\n", "exposed",
            1e3 * p->exposed_s, 1e3 * p->floor_s);
    if (*p->stalled_for)
        fprintf(out, "  %-14s %13.1f ms, for %s\n", "largest stall", 1e3 * p->stall.seconds,
                p->stalled_for);
    print_machine(t, out);
}

static void print_planned_memory(const trainer *t, FILE *out)
{
    char text[16];
    const ledger_figures *f = &t->plan.memory;
    fprintf(out, "memory of this rank, in the order in which the host issues%s\n",
            t->plan.is_bound ? " (gradients: at most)" : "");
    for (int k = 0; k < MEM_CATEGORIES; k++) {
        size_t bytes = f->issued_peak_bytes[k];
        if (bytes > 0)
            fprintf(out, "  %-14s %16zu  %s\n", mem_category_name((mem_category)k), bytes,
                    format_bytes(bytes, text, sizeof text));
    }
    fprintf(out, "  %-14s %16zu  %s\n", "at one moment", f->issued_peak_total_bytes,
            format_bytes(f->issued_peak_total_bytes, text, sizeof text));
    if (t->plan.host_memory.issued_peak_total_bytes > 0)
        fprintf(out, "  %-14s %16zu  %s\n", "on the host",
                t->plan.host_memory.issued_peak_total_bytes,
                format_bytes(t->plan.host_memory.issued_peak_total_bytes, text, sizeof text));
}

/* ---- what fits ------------------------------------------------------------------------------- */

/* Whether a run of w ranks, `batch` sequences each, fits `have` bytes. What cannot be does not. */
static bool fits(const trainer *t, int w, int64_t batch, size_t have)
{
    trainer other = *t;
    plan p;
    other.cfg.train.batch_size = batch;
    other.run.batch = (size_t)batch;
    return plan_make(&other, 0, w, NULL, &p) == FSDP_OK && p.memory.issued_peak_total_bytes <= have;
}

static bool batch_fits(const trainer *t, int64_t batch, size_t have)
{
    return fits(t, t->cfg.n_ranks, batch, have);
}

/* A canonical run has a power of two of sequences. */
static int64_t largest_batch(const trainer *t, size_t have)
{
    int64_t most = 0, step = 1;
    while (step <= MAX_BATCH && step * t->cfg.train.seq_len <= MAX_TOKENS &&
           batch_fits(t, step, have)) {
        most = step;
        step *= 2;
    }
    if (most == 0 || t->run.mode == GRAD_ACC_CANONICAL || step > MAX_BATCH)
        return most;
    for (step = most / 2; step > 0; step /= 2)
        if (batch_fits(t, most + step, have))
            most += step;
    return most;
}

static bool ranks_fit(const trainer *t, int groups, size_t have)
{
    int s = t->cfg.parallel == PARALLEL_FSDP && t->cfg.sharding == SHARDING_HYBRID
                ? trainer_config_shard_size(&t->cfg, t->cfg.n_ranks)
                : 1;
    return fits(t, groups * s, t->cfg.train.batch_size, have);
}

/* The fewest ranks, or in hybrid shard groups; 0: no number of them fits. */
static int fewest_ranks(const trainer *t, size_t have)
{
    int most = 1, least;
    while (most <= MOST_FIT_RANKS && !ranks_fit(t, most, have))
        most *= 2;
    if (most > MOST_FIT_RANKS)
        return 0;
    for (least = most / 2; most - least > 1;) {
        int middle = (least + most) / 2;
        if (ranks_fit(t, middle, have))
            most = middle;
        else
            least = middle;
    }
    return most;
}

static void print_fit(const trainer *t, FILE *out)
{
    char text[16];
    size_t have = (size_t)t->cfg.device_memory_mib << 20;
    if (have == 0)
        have = t->costs.machine.model ? (size_t)t->costs.machine.memory_bytes
                                      : device_mem_available(t->run.dev);
    int64_t batch = largest_batch(t, have);
    int ranks = fewest_ranks(t, have);
    fprintf(out, "what fits %s\n", format_bytes(have, text, sizeof text));
    fprintf(out, "  %-14s %16lld, on %d ranks\n", "largest batch", (long long)batch,
            t->cfg.n_ranks);
    fprintf(out, "  %-14s %16d, with a batch of %lld\n",
            t->cfg.sharding == SHARDING_HYBRID ? "fewest groups" : "fewest ranks", ranks,
            (long long)t->cfg.train.batch_size);
}

fsdp_status report_plan(const trainer *t, FILE *out)
{
    const int w = t->cfg.n_ranks, s = trainer_config_shard_size(&t->cfg, w);
    fprintf(out, "plan for %d rank%s: %d replica%s, shard groups of %d; as rank %d\n", w,
            w == 1 ? "" : "s", w / s, w == s ? "" : "s", s, (int)t->cfg.plan_rank);
    print_planned_memory(t, out);
    fprintf(out, "traffic of one step (sent by this rank)\n");
    for (int i = 0; i < N_SHOWN_OPS; i++)
        fprintf(out, "  %-14s %6llu calls %16llu bytes\n", comm_op_name(SHOWN_OPS[i]),
                (unsigned long long)t->plan.traffic.calls[SHOWN_OPS[i]],
                (unsigned long long)t->plan.traffic.bytes_sent[SHOWN_OPS[i]]);
    if (t->has_costs)
        print_times(t, out);
    if (t->cfg.plan_fit)
        print_fit(t, out);
    return FSDP_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* What is shown of memory: figures of the categories, then these. */
enum { OF_TOTAL = MEM_CATEGORIES, OF_HOST, N_FIGURES };
/* Each of them: the most at one time; in the order of issue; planned in that order. */
enum { MEASURED, ISSUED, PLANNED, N_COLUMNS };

typedef struct memory_table {
    int64_t bytes[N_COLUMNS][N_FIGURES];
} memory_table;

static void fill_column(int64_t *column, const size_t *bytes, size_t total, size_t host)
{
    for (int k = 0; k < MEM_CATEGORIES; k++)
        column[k] = (int64_t)bytes[k];
    column[OF_TOTAL] = (int64_t)total;
    column[OF_HOST] = (int64_t)host;
}

static void fill_memory(const trainer *t, memory_table *m)
{
    device *d = t->run.dev;
    ledger_figures f = ledger_read(device_ledger(d)), host = {0};
    const plan *p = &t->plan;
    if (!device_memory_is_host(d))
        host = ledger_read(device_host_ledger(d));
    fill_column(m->bytes[MEASURED], f.peak_bytes, f.peak_total_bytes, host.peak_total_bytes);
    fill_column(m->bytes[ISSUED], f.issued_peak_bytes, f.issued_peak_total_bytes,
                host.issued_peak_total_bytes);
    fill_column(m->bytes[PLANNED], p->memory.issued_peak_bytes, p->memory.issued_peak_total_bytes,
                p->host_memory.issued_peak_total_bytes);
}

/* *m = the most of each figure over all ranks. */
static fsdp_status max_over_ranks(trainer *t, memory_table *m)
{
    void *all;
    TRY(comm_host_gather(t->run.world, "report", m, sizeof *m, &all));
    const int64_t *figures = all;
    int64_t *most = &m->bytes[0][0];
    size_t n = sizeof *m / sizeof *most;
    for (size_t i = 0; i < n * (size_t)comm_size(t->run.world); i++)
        most[i % n] = figures[i] > most[i % n] ? figures[i] : most[i % n];
    free(all);
    return FSDP_OK;
}

/* Whether a run holds exactly what was planned. The plan has the CPU's operations: those of an
 * accelerator take workspaces of their libraries, in other categories than these, of other sizes.
 * Of more micro-steps than a plan makes the sums of a canonical run have a bound. */
static bool is_exact(const trainer *t, int figure)
{
    if (t->plan.is_bound &&
        (figure == MEM_GRADS_SHARD || figure == MEM_GRADS_FULL || figure == OF_TOTAL))
        return false;
    return device_runs_c(t->run.dev) || figure == MEM_PARAMS_SHARD || figure == MEM_PARAMS_FULL ||
           figure == MEM_GRADS_SHARD || figure == MEM_GRADS_FULL || figure == MEM_OPTIMIZER;
}

static void print_memory(const trainer *t, const memory_table *m, FILE *out, FILE *csv)
{
    fprintf(out, "peak memory of a rank       measured   as issued     planned\n");
    for (int k = 0; k < N_FIGURES; k++) {
        const char *name = k == OF_TOTAL  ? "all, at one moment"
                           : k == OF_HOST ? "copies on the host"
                                          : mem_category_name((mem_category)k);
        char text[N_COLUMNS][16];
        bool is_used = false;
        for (int c = 0; c < N_COLUMNS; c++) {
            is_used = is_used || m->bytes[c][k] > 0;
            format_bytes((size_t)m->bytes[c][k], text[c], sizeof text[c]);
        }
        if (csv)
            fprintf(csv, "memory,%s,%lld,%lld,%lld\n",
                    k == OF_TOTAL  ? "total"
                    : k == OF_HOST ? "host"
                                   : name,
                    (long long)m->bytes[MEASURED][k], (long long)m->bytes[ISSUED][k],
                    (long long)m->bytes[PLANNED][k]);
        bool differs = is_exact(t, k) && m->bytes[ISSUED][k] != m->bytes[PLANNED][k];
        if (is_used)
            fprintf(out, "  %-22s %11s %11s %11s%s\n", name, text[MEASURED], text[ISSUED],
                    text[PLANNED], differs ? "  DIFFERS" : "");
    }
}

static void print_traffic(const trainer *t, const train_result *r, FILE *out, FILE *csv)
{
    fprintf(out, "sent by rank 0 in a step    measured     planned\n");
    for (int i = 0; i < N_SHOWN_OPS; i++) {
        comm_op op = SHOWN_OPS[i];
        char a[16], b[16];
        uint64_t got = r->step_stats.bytes_sent[op], want = t->plan.traffic.bytes_sent[op];
        uint64_t calls = r->step_stats.calls[op], planned = t->plan.traffic.calls[op];
        fprintf(out, "  %-22s %11s %11s   %llu calls, planned %llu%s\n", comm_op_name(op),
                format_bytes(got, a, sizeof a), format_bytes(want, b, sizeof b),
                (unsigned long long)calls, (unsigned long long)planned,
                got == want && calls == planned ? "" : "  DIFFERS");
        if (csv)
            fprintf(csv, "bytes,%s,%llu,%llu,%llu\ncalls,%s,%llu,%llu,%llu\n", comm_op_name(op),
                    (unsigned long long)got, (unsigned long long)got, (unsigned long long)want,
                    comm_op_name(op), (unsigned long long)calls, (unsigned long long)calls,
                    (unsigned long long)planned);
    }
}

fsdp_status report_run(trainer *t, const train_result *result, FILE *out)
{
    memory_table m;
    fill_memory(t, &m);
    TRY(max_over_ranks(t, &m));
    if (comm_rank(t->run.world) != 0)
        return comm_agree(t->run.world, FSDP_OK);
    fsdp_status status = FSDP_OK;
    atomic_file csv = {0};
    if (t->cfg.memory_report)
        status = atomic_file_open(&csv, t->cfg.memory_report,
                                  "pass a --memory-report path that can be written");
    if (csv.out)
        fprintf(csv.out, "what,name,measured,issued,planned\n");
    print_memory(t, &m, out, csv.out);
    print_traffic(t, result, out, csv.out);
    if (csv.out)
        status = atomic_file_commit(&csv);
    return comm_agree(t->run.world, status);
}
