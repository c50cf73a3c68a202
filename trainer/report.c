/* report.c -- print the plan, and after a run the measured figures beside the planned ones. */
#include <stdlib.h>
#include <string.h>
#include "common/base/atomic_file.h"
#include "common/base/units.h"
#include "trainer/trainer.h"

static const comm_op SHOWN_OPS[] = {COMM_OP_ALL_GATHER, COMM_OP_REDUCE_SCATTER, COMM_OP_ALL_REDUCE};
enum { N_SHOWN_OPS = 3, MOST_FIT_RANKS = 1 << 16 };

/* Where the name of a row of memory is printed. */
enum { IN_CSV, IN_PLAN, IN_REPORT };

static const char *row_name(int row, int where)
{
    static const char *const NAMES[][3] = {{"total", "at one moment", "all, at one moment"},
                                           {"host", "on the host", "on the host"}};
    return row < MEM_CATEGORIES ? mem_category_name((mem_category)row)
                                : NAMES[row - MEM_TOTAL][where];
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Print the machine for which times were computed. */
static void print_machine(const trainer *t, FILE *out)
{
    const plan_costs *c = &t->costs;
    const virtual_link *link = &c->config.link, *hosts = &c->config.host_link;
    const virtual_link *up = &c->config.upload, *down = &c->config.download;
    if (c->prices.n > 0)
        fprintf(out, "  operations as in %s\n", fsdp_printable(t->opt->plan_prices).text);
    else if (c->machine.model)
        fprintf(out, "  %s, %.0f%% of its peaks in products and memory\n", c->machine.model,
                1e2 * c->machine.reached);
    else
        fprintf(out, "  measured just now: %.0f GFLOP/s, memory %.1f GB/s\n",
                1e-9 * c->machine.f32_flops_per_s, 1e-9 * c->machine.bytes_per_s);
    if (t->plan.times.copies_s > 0)
        fprintf(out,
                "  a copy from the host: %.0f us + bytes / %.2f GB/s, to the host: %.0f us + bytes "
                "/ %.2f GB/s\n",
                1e6 * up->latency_s, 1e-9 * up->bytes_per_s, 1e6 * down->latency_s,
                1e-9 * down->bytes_per_s);
    if (t->cfg.n_ranks == 1)
        return;
    fprintf(out, "  a collective: %.0f us + bytes / %.3g GB/s", 1e6 * link->latency_s,
            1e-9 * link->bytes_per_s);
    if (c->config.ranks_per_host > 0)
        fprintf(out, " inside a host of %d, %.0f us + bytes / %.3g GB/s between hosts",
                c->config.ranks_per_host, 1e6 * hosts->latency_s, 1e-9 * hosts->bytes_per_s);
    fprintf(out, "\n");
}

static void print_times(const trainer *t, FILE *out)
{
    const plan_times *p = &t->plan.times;
    fprintf(out, "one step in virtual time, prefetch %s",
            TRAINER_WORD("prefetch", t->cfg.prefetch));
    if (t->cfg.bucket_elems > 0)
        fprintf(out, ", buckets of at most %zu parameters", t->cfg.bucket_elems);
    fprintf(out, "\n  %-14s %13.1f ms\n", "step", 1e3 * p->step_s);
    fprintf(out, "  %-14s %13.1f ms\n", "compute", 1e3 * p->compute_s);
    fprintf(out, "  %-14s %13.1f ms\n", "communication", 1e3 * p->communication_s);
    fprintf(out, "  %-14s %13.1f ms, no schedule leaves less than %.1f\n", "exposed",
            1e3 * p->exposed_s, 1e3 * p->floor_s);
    if (p->copies_s > 0)
        fprintf(out, "  %-14s %13.1f ms, without them a step takes %.1f less\n", "host copies",
                1e3 * p->copies_s, 1e3 * p->longer_s);
    if (*p->stall.cause_name)
        fprintf(out, "  %-14s %13.1f ms, for %s\n", "largest stall", 1e3 * p->stall.seconds,
                p->stall.cause_name);
    print_machine(t, out);
}

/* Whether the transport is shm+mpi, for which the plan takes mpi alone. */
static bool is_over_hosts(const trainer *t)
{
    return comm_moves_of(t->run.world) == MOVES_BY_BOTH;
}

/* ---- what fits ------------------------------------------------------------------------------- */

/* Whether a run of w ranks with `batch` sequences each is valid and fits `have` bytes. */
static bool fits(const trainer *t, int w, int64_t batch, size_t have)
{
    trainer other = *t;
    plan p;
    other.cfg.n_ranks = w;
    other.cfg.train.batch_size = batch;
    other.run.batch = (size_t)batch;
    if (trainer_config_check(t->opt, &other.cfg) != FSDP_OK)
        return false;
    if (t->cfg.recompute_auto) /* the choice of auto that needs the least memory */
        other.cfg.recompute = (recompute_spec){RECOMPUTE_BLOCK, 0, 1};
    return plan_make(&other, 0, false, &p) == FSDP_OK && p.memory_bytes[MEM_TOTAL] <= have;
}

/* group > 0: whether n groups of `group` ranks fit. group 0: whether a batch of n does not fit. */
static bool holds(const trainer *t, int group, int64_t n, size_t have)
{
    return group > 0 ? fits(t, (int)(n * group), t->cfg.train.batch_size, have)
                     : !fits(t, t->cfg.n_ranks, n, have);
}

/* The least n for which `holds` is true, which is assumed to be true for all larger n; 0: none up
 * to limit. */
static long long least_that(const trainer *t, int group, size_t have, int64_t limit)
{
    int64_t most = 1;
    while (most <= limit && !holds(t, group, most, have))
        most *= 2;
    if (most > limit)
        return 0;
    for (int64_t below = most / 2; most - below > 1;) {
        const int64_t middle = (below + most) / 2;
        *(holds(t, group, middle, have) ? &most : &below) = middle;
    }
    return most;
}

static void print_found(FILE *out, const char *what, long long n)
{
    char text[24] = "none";
    if (n > 0)
        snprintf(text, sizeof text, "%lld", n);
    fprintf(out, "  %-14s %16s, ", what, text);
}

static void print_fit(const trainer *t, FILE *out)
{
    char text[16];
    const bool of_groups = t->cfg.sharding == SHARDING_HYBRID;
    const int near = t->opt->reshard_to > 0 ? (int)t->opt->reshard_to : 1;
    const int group =
        (of_groups ? trainer_config_shard_size(&t->cfg) : near) * t->cfg.axes[AXIS_TP];
    bool limited;
    const size_t have = trainer_memory(t, &limited);
    fprintf(out, "what fits %s\n", format_bytes(have, text, sizeof text));
    print_found(out, "largest batch", least_that(t, 0, have, 2 * MAX_BATCH) - 1);
    fprintf(out, "on %d ranks\n", t->cfg.n_ranks);
    print_found(out, of_groups ? "fewest groups" : "fewest ranks",
                (of_groups ? 1 : group) * least_that(t, group, have, MOST_FIT_RANKS));
    fprintf(out, "with a batch of %lld\n", (long long)t->cfg.train.batch_size);
}

void report_plan(const trainer *t, FILE *out)
{
    const int w = t->cfg.n_ranks, s = trainer_config_shard_size(&t->cfg);
    const size_t *bytes = t->plan.memory_bytes;
    char text[16];
    const int replicas = trainer_config_data_ranks(&t->cfg) / s, tp = t->cfg.axes[AXIS_TP];
    fprintf(out, "plan for %d rank%s: %d replica%s, shard groups of %d", w, w == 1 ? "" : "s",
            replicas, replicas == 1 ? "" : "s", s);
    if (tp > 1)
        fprintf(out, ", tp %d", tp);
    fprintf(out, "; as rank %d\n", t->cfg.plan_rank);
    trainer_print_recompute(t, out);
    fprintf(out, "memory of this rank, in the order in which the host issues%s\n",
            t->plan.is_bound ? " (gradients: at most)" : "");
    for (int k = 0; k < MEM_ROWS; k++)
        if (bytes[k] > 0)
            fprintf(out, "  %-14s %16zu  %s\n", row_name(k, IN_PLAN), bytes[k],
                    format_bytes(bytes[k], text, sizeof text));
    if (is_over_hosts(t))
        fprintf(out, "HINT: ranks of a host share memory here (shm+mpi); comm is planned as with "
                     "--comm mpi, and a run may hold more or less\n");
    fprintf(out, "traffic of one step (sent by this rank)\n");
    for (int i = 0; i < N_SHOWN_OPS; i++)
        fprintf(out, "  %-14s %6llu calls %16llu bytes\n", comm_op_name(SHOWN_OPS[i]),
                (unsigned long long)t->plan.traffic.calls[SHOWN_OPS[i]],
                (unsigned long long)t->plan.traffic.bytes_sent[SHOWN_OPS[i]]);
    if (t->cfg.is_timed)
        print_times(t, out);
    else
        fprintf(out, "computing of one step: %.0f FLOPs\n", t->plan.flops);
    if (t->opt->plan_fit)
        print_fit(t, out);
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* The columns of a row of memory: the measured peak; the peak in the order of issue; the planned
 * peak in the order of issue. */
enum { MEASURED, ISSUED, PLANNED, N_COLUMNS };
typedef size_t memory_table[N_COLUMNS][MEM_ROWS];

/* Replace each figure by its maximum over all ranks. */
static fsdp_status max_over_ranks(comm *world, memory_table *table)
{
    enum { N = N_COLUMNS * MEM_ROWS };
    void *all;
    size_t *most = (size_t *)table;
    TRY(comm_host_gather(world, "report", table, sizeof *table, &all));
    const size_t *bytes = all;
    for (int i = 0; i < N * comm_size(world); i++)
        most[i % N] = bytes[i] > most[i % N] ? bytes[i] : most[i % N];
    free(all);
    return FSDP_OK;
}

bool report_is_exact(const trainer *t, int row)
{
    const bool is_sum = row == MEM_TOTAL || row == MEM_ON_HOST;
    if (is_over_hosts(t) && (row == MEM_COMM || is_sum))
        return false;
    if (t->plan.is_bound && (row == MEM_GRADS_SHARD || row == MEM_GRADS_FULL || row == MEM_TOTAL ||
                             (row == MEM_ON_HOST && t->opt->cpu_offload)))
        return false;
    return device_runs_c(t->run.dev) || !(row == MEM_OTHER || is_sum);
}

static void print_memory(const trainer *t, const memory_table *table, FILE *out, FILE *csv)
{
    fprintf(out, "peak memory of a rank       measured   as issued     planned\n");
    for (int k = 0; k < MEM_ROWS; k++) {
        const size_t in_time = (*table)[MEASURED][k], issued = (*table)[ISSUED][k];
        const size_t planned = (*table)[PLANNED][k];
        char a[16], b[16], c[16];
        if (csv)
            fprintf(csv, "memory,%s,%zu,%zu,%zu\n", row_name(k, IN_CSV), in_time, issued, planned);
        if (in_time > 0 || issued > 0 || planned > 0)
            fprintf(out, "  %-22s %11s %11s %11s%s\n", row_name(k, IN_REPORT),
                    format_bytes(in_time, a, sizeof a), format_bytes(issued, b, sizeof b),
                    format_bytes(planned, c, sizeof c),
                    report_is_exact(t, k) && issued != planned ? "  DIFFERS" : "");
    }
}

static void print_traffic(const trainer *t, const train_result *r, FILE *out, FILE *csv)
{
    fprintf(out, "sent by rank 0 in a %s   measured     planned\n",
            t->run.forward_only ? "batch" : "step ");
    for (int i = 0; i < N_SHOWN_OPS; i++) {
        const comm_op op = SHOWN_OPS[i];
        const char *name = comm_op_name(op);
        unsigned long long got = r->step_stats.bytes_sent[op], calls = r->step_stats.calls[op];
        unsigned long long want = t->plan.traffic.bytes_sent[op];
        unsigned long long planned = t->plan.traffic.calls[op];
        char a[16], b[16];
        fprintf(out, "  %-22s %11s %11s   %llu calls, planned %llu%s\n", name,
                format_bytes(got, a, sizeof a), format_bytes(want, b, sizeof b), calls, planned,
                got == want && calls == planned ? "" : "  DIFFERS");
        if (csv)
            fprintf(csv, "bytes,%s,%llu,%llu,%llu\ncalls,%s,%llu,%llu,%llu\n", name, got, got, want,
                    name, calls, calls, planned);
    }
}

fsdp_status report_run(trainer *t, const train_result *result, FILE *out)
{
    memory_table table;
    plan_read_memory(t->run.dev, table[MEASURED], table[ISSUED]);
    memcpy(table[PLANNED], t->plan.memory_bytes, sizeof table[PLANNED]);
    TRY(max_over_ranks(t->run.world, &table));
    if (comm_rank(t->run.world) != 0)
        return comm_agree(t->run.world, FSDP_OK);
    fsdp_status status = FSDP_OK;
    atomic_file csv = {0};
    if (t->opt->memory_report)
        status = atomic_file_open(&csv, t->opt->memory_report,
                                  "pass a --memory-report path that can be written");
    if (csv.out)
        fprintf(csv.out, "what,name,measured,issued,planned\n");
    print_memory(t, &table, out, csv.out);
    print_traffic(t, result, out, csv.out);
    if (csv.out)
        status = atomic_file_commit(&csv);
    return comm_agree(t->run.world, status);
}
