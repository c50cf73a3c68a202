/* report.c -- the plan, and what a run measured beside it. */
#include <stdlib.h>
#include <string.h>
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
    const plan_times *p = &t->plan.times;
    fprintf(out, "one step in virtual time, prefetch %s",
            prefetch_name((prefetch_mode)t->cfg.prefetch));
    if (t->cfg.buckets.max_elems > 0)
        fprintf(out, ", buckets of at most %zu parameters", t->cfg.buckets.max_elems);
    fprintf(out, "\n  %-14s %13.1f ms\n", "step", 1e3 * p->step_s);
    fprintf(out, "  %-14s %13.1f ms\n", "compute", 1e3 * p->compute_s);
    fprintf(out, "  %-14s %13.1f ms\n", "communication", 1e3 * p->communication_s);
    fprintf(out, "  %-14s %13.1f ms, no schedule leaves less than %.1f\n", "exposed",
            1e3 * p->exposed_s, 1e3 * p->floor_s);
    if (*p->stall.cause_name)
        fprintf(out, "  %-14s %13.1f ms, for %s\n", "largest stall", 1e3 * p->stall.seconds,
                p->stall.cause_name);
    print_machine(t, out);
}

/* A plan knows no hosts: what calls hold is planned as over MPI alone. */
static bool is_over_hosts(const trainer *t)
{
    return strncmp(comm_backend_name(t->run.world), "shm+mpi", 7) == 0;
}

static void print_bytes(const char *label, size_t bytes, FILE *out)
{
    char text[16];
    if (bytes > 0)
        fprintf(out, "  %-14s %16zu  %s\n", label, bytes, format_bytes(bytes, text, sizeof text));
}

static void print_planned_memory(const trainer *t, FILE *out)
{
    const plan *p = &t->plan;
    fprintf(out, "memory of this rank, in the order in which the host issues%s\n",
            p->is_bound ? " (gradients: at most)" : "");
    for (int k = 0; k < MEM_CATEGORIES; k++)
        print_bytes(mem_category_name((mem_category)k), p->memory.issued_peak_bytes[k], out);
    print_bytes("at one moment", p->memory.issued_peak_total_bytes, out);
    print_bytes("on the host", p->host_memory.issued_peak_total_bytes, out);
    if (is_over_hosts(t))
        fprintf(out, "HINT: ranks of a host share memory here (shm+mpi); comm is planned as with "
                     "--comm mpi, and a run may hold more or less\n");
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

/* A canonical run has a power of two of sequences. */
static bool is_too_large(const trainer *t, int64_t batch, size_t have)
{
    bool is_refused = batch > MAX_BATCH || batch * t->cfg.train.seq_len > MAX_TOKENS ||
                      (t->run.mode == GRAD_ACC_CANONICAL && (batch & (batch - 1)) != 0);
    return is_refused || !fits(t, t->cfg.n_ranks, batch, have);
}

/* Hybrid: `n` shard groups. */
static bool ranks_fit(const trainer *t, int64_t n, size_t have)
{
    if (t->cfg.sharding == SHARDING_HYBRID)
        n *= trainer_config_shard_size(&t->cfg, t->cfg.n_ranks);
    return fits(t, (int)n, t->cfg.train.batch_size, have);
}

/* The least number for which `holds`, which is taken to hold for all that are larger; 0: none up to
 * `limit`. */
static int64_t least_that(bool (*holds)(const trainer *, int64_t, size_t), const trainer *t,
                          size_t have, int64_t limit)
{
    int64_t most = 1;
    while (most <= limit && !holds(t, most, have))
        most *= 2;
    if (most > limit)
        return 0;
    for (int64_t least = most / 2; most - least > 1;) {
        int64_t middle = (least + most) / 2;
        if (holds(t, middle, have))
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
    fprintf(out, "what fits %s\n", format_bytes(have, text, sizeof text));
    fprintf(out, "  %-14s %16lld, on %d ranks\n", "largest batch",
            (long long)least_that(is_too_large, t, have, 2 * MAX_BATCH) - 1, t->cfg.n_ranks);
    fprintf(out, "  %-14s %16lld, with a batch of %lld\n",
            t->cfg.sharding == SHARDING_HYBRID ? "fewest groups" : "fewest ranks",
            (long long)least_that(ranks_fit, t, have, MOST_FIT_RANKS),
            (long long)t->cfg.train.batch_size);
}

void report_plan(const trainer *t, FILE *out)
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
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* The rows that are shown of memory: the categories, then these. */
enum { OF_TOTAL = MEM_CATEGORIES, OF_HOST, N_ROWS };
/* What each row has: the most at one time; in the order of issue; planned in that order. */
enum { MEASURED, ISSUED, PLANNED, N_COLUMNS };

typedef struct memory_row {
    size_t bytes[N_COLUMNS];
} memory_row;

static void fill_memory(const trainer *t, memory_row rows[N_ROWS])
{
    device *d = t->run.dev;
    const ledger_figures *p = &t->plan.memory, f = ledger_read(device_ledger(d));
    ledger_figures host = {0};
    if (!device_memory_is_host(d))
        host = ledger_read(device_host_ledger(d));
    for (int k = 0; k < MEM_CATEGORIES; k++)
        rows[k] = (memory_row){{f.peak_bytes[k], f.issued_peak_bytes[k], p->issued_peak_bytes[k]}};
    rows[OF_TOTAL] =
        (memory_row){{f.peak_total_bytes, f.issued_peak_total_bytes, p->issued_peak_total_bytes}};
    rows[OF_HOST] = (memory_row){{host.peak_total_bytes, host.issued_peak_total_bytes,
                                  t->plan.host_memory.issued_peak_total_bytes}};
}

/* Each figure becomes the most of all ranks. */
static fsdp_status max_over_ranks(comm *world, memory_row rows[N_ROWS])
{
    void *all;
    TRY(comm_host_gather(world, "report", rows, N_ROWS * sizeof *rows, &all));
    const memory_row *others = all;
    for (int i = 0; i < N_ROWS * comm_size(world); i++)
        for (int c = 0; c < N_COLUMNS; c++) {
            size_t *most = &rows[i % N_ROWS].bytes[c];
            *most = others[i].bytes[c] > *most ? others[i].bytes[c] : *most;
        }
    free(all);
    return FSDP_OK;
}

/* Whether a run holds exactly what was planned. The plan has the CPU's operations: those of an
 * accelerator take workspaces of their libraries, in other categories than these, of other sizes.
 * Of more micro-steps than a plan makes the sums of a canonical run have a bound. Over shm+mpi what
 * calls hold is not planned. */
static bool is_exact(const trainer *t, int row)
{
    if (is_over_hosts(t) && (row == MEM_COMM || row == OF_TOTAL || row == OF_HOST))
        return false;
    if (t->plan.is_bound && (row == MEM_GRADS_SHARD || row == MEM_GRADS_FULL || row == OF_TOTAL))
        return false;
    return device_runs_c(t->run.dev) || row == MEM_PARAMS_SHARD || row == MEM_PARAMS_FULL ||
           row == MEM_GRADS_SHARD || row == MEM_GRADS_FULL || row == MEM_OPTIMIZER;
}

static void print_memory(const trainer *t, const memory_row rows[N_ROWS], FILE *out, FILE *csv)
{
    fprintf(out, "peak memory of a rank       measured   as issued     planned\n");
    for (int k = 0; k < N_ROWS; k++) {
        const size_t *bytes = rows[k].bytes;
        const char *name = k == OF_TOTAL  ? "total"
                           : k == OF_HOST ? "host"
                                          : mem_category_name((mem_category)k);
        const char *label = k == OF_TOTAL  ? "all, at one moment"
                            : k == OF_HOST ? "copies on the host"
                                           : name;
        char text[N_COLUMNS][16];
        for (int c = 0; c < N_COLUMNS; c++)
            format_bytes(bytes[c], text[c], sizeof text[c]);
        if (csv)
            fprintf(csv, "memory,%s,%zu,%zu,%zu\n", name, bytes[MEASURED], bytes[ISSUED],
                    bytes[PLANNED]);
        bool differs = is_exact(t, k) && bytes[ISSUED] != bytes[PLANNED];
        if (bytes[MEASURED] > 0 || bytes[ISSUED] > 0 || bytes[PLANNED] > 0)
            fprintf(out, "  %-22s %11s %11s %11s%s\n", label, text[MEASURED], text[ISSUED],
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
    memory_row rows[N_ROWS];
    fill_memory(t, rows);
    TRY(max_over_ranks(t->run.world, rows));
    if (comm_rank(t->run.world) != 0)
        return comm_agree(t->run.world, FSDP_OK);
    fsdp_status status = FSDP_OK;
    atomic_file csv = {0};
    if (t->cfg.memory_report)
        status = atomic_file_open(&csv, t->cfg.memory_report,
                                  "pass a --memory-report path that can be written");
    if (csv.out)
        fprintf(csv.out, "what,name,measured,issued,planned\n");
    print_memory(t, rows, out, csv.out);
    print_traffic(t, result, out, csv.out);
    if (csv.out)
        status = atomic_file_commit(&csv);
    return comm_agree(t->run.world, status);
}
