/* profile_write.c -- the files of a profile: all figures as CSV, and a table for a reader. */
#include "common/base/atomic_file.h"
#include "common/observe/profile_impl.h"

static const char HINT[] = "pass a --profile directory that can be written";

static double per_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : 0.0;
}

/* ---- CSV ------------------------------------------------------------------------------------ */

static void csv_line(FILE *out, const char *kind, const char *name, uint64_t calls, double seconds,
                     work_cost c)
{
    fprintf(out, "%s,%s,%llu,%.9f,%.0f,%.0f,%.6g,%.6g", kind, name, (unsigned long long)calls,
            seconds, c.flops, c.bytes, per_second(c.flops, seconds), per_second(c.bytes, seconds));
}

static void csv_seconds(FILE *out, const char *kind, const char *name, uint64_t calls,
                        double seconds)
{
    fprintf(out, "%s,%s,%llu,%.9f,,,,,,\n", kind, name, (unsigned long long)calls, seconds);
}

static void csv_stalls(FILE *out, profile *p)
{
    profile_stall stalls[PROFILE_MAX_STALLS];
    size_t n = profile_read_stalls(p, stalls);
    for (size_t i = 0; i < n; i++)
        csv_seconds(out, profile_stall_name(stalls[i].kind), stalls[i].name, stalls[i].calls,
                    stalls[i].seconds);
}

fsdp_status profile_write_csv(profile *p, const char *path)
{
    profile_row rows[PROFILE_MAX_ROWS];
    profile_totals t = profile_total(p);
    profile_roof roof = profile_get_roof(p);
    size_t n = profile_read(p, rows);
    atomic_file f = {0};
    TRY(atomic_file_open(&f, path, HINT));
    fprintf(f.out,
            "kind,name,calls,seconds,flops,bytes,flops_per_s,bytes_per_s,roof_share,binds\n");
    for (size_t i = 0; i < n; i++) {
        char name[PROFILE_NAME_BYTES];
        const char *binds;
        double share = profile_share(&rows[i], roof, &binds);
        csv_line(f.out, profile_kind_name(rows[i].kind), profile_row_name(&rows[i], name),
                 rows[i].calls, rows[i].seconds, rows[i].cost);
        fprintf(f.out, ",%.6g,%s\n", share, binds);
    }
    csv_stalls(f.out, p);
    for (int k = 0; k < PROFILE_KINDS; k++) {
        csv_line(f.out, "total", profile_kind_name((profile_kind)k), t.steps, t.seconds[k],
                 t.cost[k]);
        fprintf(f.out, ",,\n");
    }
    for (int k = 0; k < PROFILE_STALL_KINDS; k++)
        csv_seconds(f.out, "total", profile_stall_name((profile_stall_kind)k), t.steps,
                    t.stall_s[k]);
    csv_seconds(f.out, "total", "wall", t.steps, t.wall_s);
    csv_seconds(f.out, "total", "not accounted", t.steps, profile_unaccounted(&t));
    fprintf(f.out, "roof,measured,,,,,%.6g,%.6g,,\n", roof.flops_per_s, roof.bytes_per_s);
    if (roof.bf16_flops_per_s > 0)
        fprintf(f.out, "roof,bf16,,,,,%.6g,,,\n", roof.bf16_flops_per_s);
    return atomic_file_commit(&f);
}

/* ---- table ---------------------------------------------------------------------------------- */

/* Figures of all steps, on their way to figures of one. */
typedef struct table {
    FILE *out;
    profile_roof roof;
    double steps, wall_s; /* steps at least 1 */
} table;

static void table_head(const table *t, const char *title)
{
    fprintf(t->out,
            "\n| %-36s | calls/step |    ms/step |  wall %% |   GFLOP/s |    GB/s | of roof | "
            "binds   |\n|%.38s|-----------:|-----------:|--------:|----------:|--------:|--------:|"
            "---------|\n",
            title, "--------------------------------------");
}

static void table_row(const table *t, const char *name, const profile_row *row)
{
    const char *binds;
    char share[16] = "-";
    double of_roof = profile_share(row, t->roof, &binds);
    if (*binds != '-')
        snprintf(share, sizeof share, "%.0f%%", 100.0 * of_roof);
    fprintf(t->out, "| %-36s | %10.1f | %10.3f | %6.1f%% | %9.2f | %7.2f | %7s | %-7s |\n", name,
            (double)row->calls / t->steps, 1e3 * row->seconds / t->steps,
            100.0 * per_second(row->seconds, t->wall_s),
            1e-9 * per_second(row->cost.flops, row->seconds),
            1e-9 * per_second(row->cost.bytes, row->seconds), share, binds);
}

static void table_time(const table *t, const char *name, double seconds)
{
    fprintf(t->out, "| %-36s | %10s | %10.3f | %6.1f%% | %9s | %7s | %7s | %-7s |\n", name, "",
            1e3 * seconds / t->steps, 100.0 * per_second(seconds, t->wall_s), "", "", "", "");
}

/* Rows of one kind, and their sum; a kind without rows is left out. Returns whether it has any. */
static bool table_kind(const table *t, profile_kind kind, const char *title,
                       const profile_row *rows, size_t n)
{
    char name[PROFILE_NAME_BYTES];
    profile_row sum = {.kind = kind};
    for (size_t i = 0; i < n; i++) {
        if (rows[i].kind != kind)
            continue;
        if (sum.calls == 0)
            table_head(t, title);
        table_row(t, profile_row_name(&rows[i], name), &rows[i]);
        sum.calls += rows[i].calls;
        sum.seconds += rows[i].seconds;
        work_cost_add(&sum.cost, rows[i].cost);
    }
    if (sum.calls > 0)
        table_row(t, "**sum**", &sum);
    return sum.calls > 0;
}

/* What else the wall time of the compute stream is made of, below its operations. */
static void table_wall(const table *t, const profile_totals *totals, const profile_stall *stalls,
                       size_t n)
{
    table_time(t, "**exposed communication** (below)", totals->stall_s[PROFILE_EXPOSED]);
    for (size_t i = 0; i < n; i++)
        if (stalls[i].kind == PROFILE_REST)
            table_time(t, stalls[i].name, stalls[i].seconds);
    table_time(t, "**not accounted**", profile_unaccounted(totals));
    table_time(t, "**wall**", t->wall_s);
}

/* For which collectives the compute stream stood still, and how long. */
static void table_exposed(const table *t, const profile_stall *stalls, size_t n)
{
    uint64_t calls = 0;
    double seconds = 0;
    fprintf(t->out,
            "\n| %-36s | waits/step |    ms/step |  wall %% |\n|%.38s|-----------:|-----------:|"
            "--------:|\n",
            "exposed communication, by cause", "--------------------------------------");
    for (size_t i = 0; i <= n; i++) {
        if (i < n && stalls[i].kind != PROFILE_EXPOSED)
            continue;
        const profile_stall sum = {.calls = calls, .seconds = seconds, .name = "**sum**"};
        const profile_stall *row = i < n ? &stalls[i] : &sum;
        fprintf(t->out, "| %-36s | %10.1f | %10.3f | %6.1f%% |\n", row->name,
                (double)row->calls / t->steps, 1e3 * row->seconds / t->steps,
                100.0 * per_second(row->seconds, t->wall_s));
        calls += row->calls;
        seconds += row->seconds;
    }
}

static void table_roof(FILE *out, profile_roof roof)
{
    fprintf(out, "Roof, measured on this machine at the start: %.1f GFLOP/s (a large matmul), ",
            1e-9 * roof.flops_per_s);
    if (roof.bf16_flops_per_s > 0)
        fprintf(out, "%.1f GFLOP/s (the same in bf16, for rows in bf16),\n",
                1e-9 * roof.bf16_flops_per_s);
    fprintf(out,
            "%.1f GB/s (adding arrays of 32 MiB).\nFLOPs and bytes are by formula; a "
            "row's share of the roof is that of what binds it;\nmore than 100%% of memory: the "
            "arrays were in a cache, or are updated in place.\n",
            1e-9 * roof.bytes_per_s);
}

fsdp_status profile_write_table(profile *p, const char *path)
{
    profile_row rows[PROFILE_MAX_ROWS];
    profile_totals totals = profile_total(p);
    profile_stall stalls[PROFILE_MAX_STALLS];
    size_t n = profile_read(p, rows), n_stalls = profile_read_stalls(p, stalls);
    atomic_file f = {0};
    TRY(atomic_file_open(&f, path, HINT));
    table t = {.out = f.out,
               .roof = profile_get_roof(p),
               .steps = totals.steps > 0 ? (double)totals.steps : 1.0,
               .wall_s = totals.wall_s};
    fprintf(f.out, "# Profile of rank 0: %llu steps, without the first\n\n",
            (unsigned long long)totals.steps);
    table_roof(f.out, t.roof);
    if (!table_kind(&t, PROFILE_COMPUTE, "compute stream", rows, n))
        table_head(&t, "compute stream");
    table_wall(&t, &totals, stalls, n_stalls);
    table_exposed(&t, stalls, n_stalls);
    table_kind(&t, PROFILE_SIDE, "other streams, at the same time", rows, n);
    table_kind(&t, PROFILE_COLLECTIVE, "collectives (bytes sent, with waits)", rows, n);
    return atomic_file_commit(&f);
}
