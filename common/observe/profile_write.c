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
    for (int k = 0; k < PROFILE_KINDS; k++) {
        csv_line(f.out, "total", profile_kind_name((profile_kind)k), t.steps, t.seconds[k],
                 t.cost[k]);
        fprintf(f.out, ",,\n");
    }
    fprintf(f.out, "total,wall,%llu,%.9f,,,,,,\n", (unsigned long long)t.steps, t.wall_s);
    fprintf(f.out, "total,not accounted,%llu,%.9f,,,,,,\n", (unsigned long long)t.steps,
            t.wall_s - t.seconds[PROFILE_COMPUTE]);
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

/* Rows of one kind, and their sum; a kind without rows is left out. */
static void table_kind(const table *t, profile_kind kind, const char *title,
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
    if (kind != PROFILE_COMPUTE)
        return;
    if (sum.calls == 0)
        table_head(t, title);
    table_time(t, "**not accounted** (waits, copies)", t->wall_s - sum.seconds);
    table_time(t, "**wall**", t->wall_s);
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
    size_t n = profile_read(p, rows);
    atomic_file f = {0};
    TRY(atomic_file_open(&f, path, HINT));
    table t = {.out = f.out,
               .roof = profile_get_roof(p),
               .steps = totals.steps > 0 ? (double)totals.steps : 1.0,
               .wall_s = totals.wall_s};
    fprintf(f.out, "# Profile of rank 0: %llu steps, without the first\n\n",
            (unsigned long long)totals.steps);
    table_roof(f.out, t.roof);
    table_kind(&t, PROFILE_COMPUTE, "compute stream", rows, n);
    table_kind(&t, PROFILE_SIDE, "other streams, at the same time", rows, n);
    table_kind(&t, PROFILE_COLLECTIVE, "collectives (bytes sent, with waits)", rows, n);
    return atomic_file_commit(&f);
}
