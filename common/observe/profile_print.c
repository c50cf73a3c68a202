/* profile_print.c -- a profile as text: all figures as CSV, and a table for a reader. */
#include "common/observe/profile.h"

static double per_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : 0.0;
}

/* ---- CSV ------------------------------------------------------------------------------------ */

/* What has no cost, and no share of a roof. */
static void csv_seconds(FILE *out, const char *kind, const char *name, uint64_t calls,
                        double seconds)
{
    fprintf(out, "%s,%s,%llu,%.9f,,,,,,\n", kind, name, (unsigned long long)calls, seconds);
}

/* The first columns; the last two follow. */
static void csv_costs(FILE *out, const char *kind, const char *name, const profile_row *r)
{
    fprintf(out, "%s,%s,%llu,%.9f,%.0f,%.0f,%.6g,%.6g", kind, name, (unsigned long long)r->calls,
            r->seconds, r->cost.flops, r->cost.bytes, per_second(r->cost.flops, r->seconds),
            per_second(r->cost.bytes, r->seconds));
}

static void csv_row(FILE *out, const profile_row *r, profile_roof roof)
{
    char name[PROFILE_NAME_BYTES];
    const char *binds, *kind = profile_kind_name(r->kind);
    double share = profile_share(r, roof, &binds);
    if (r->kind >= PROFILE_EXPOSED) {
        csv_seconds(out, kind, r->key.name, r->calls, r->seconds);
        return;
    }
    csv_costs(out, kind, profile_row_name(r, name), r);
    fprintf(out, ",%.6g,%s\n", share, binds);
}

void profile_print_csv(profile *p, FILE *out)
{
    profile_row rows[PROFILE_MAX_ROWS];
    profile_totals t = profile_total(p);
    size_t n = profile_read(p, rows);
    fprintf(out, "kind,name,calls,seconds,flops,bytes,flops_per_s,bytes_per_s,roof_share,binds\n");
    for (size_t i = 0; i < n; i++)
        csv_row(out, &rows[i], t.roof);
    for (int k = 0; k < PROFILE_KINDS; k++) {
        const char *name = profile_kind_name((profile_kind)k);
        const profile_row sum = {.calls = t.steps, .seconds = t.seconds[k], .cost = t.cost[k]};
        if (k >= PROFILE_EXPOSED) {
            csv_seconds(out, "total", name, t.steps, t.seconds[k]);
            continue;
        }
        csv_costs(out, "total", name, &sum);
        fprintf(out, ",,\n");
    }
    csv_seconds(out, "total", "wall", t.steps, t.wall_s);
    csv_seconds(out, "total", "not accounted", t.steps, profile_unaccounted(&t));
    fprintf(out, "roof,measured,,,,,%.6g,%.6g,,\n", t.roof.flops_per_s, t.roof.bytes_per_s);
    if (t.roof.bf16_flops_per_s > 0)
        fprintf(out, "roof,bf16,,,,,%.6g,,,\n", t.roof.bf16_flops_per_s);
}

/* ---- table ---------------------------------------------------------------------------------- */

/* Figures of all steps, on their way to figures of one. */
typedef struct table {
    FILE *out;
    profile_totals totals;
    double steps; /* at least 1 */
    size_t n_rows;
    profile_row rows[PROFILE_MAX_ROWS];
} table;

static void table_head(const table *t, const char *title)
{
    fprintf(t->out,
            "\n| %-36s | calls/step |    ms/step |  wall %% |   GFLOP/s |    GB/s | of roof | "
            "binds   |\n|%.38s|-----------:|-----------:|--------:|----------:|--------:|--------:|"
            "---------|\n",
            title, "--------------------------------------");
}

static double wall_share(const table *t, double seconds)
{
    return 100.0 * per_second(seconds, t->totals.wall_s);
}

static void table_row(const table *t, const char *name, const profile_row *row)
{
    const char *binds;
    char share[16] = "-";
    double of_roof = profile_share(row, t->totals.roof, &binds);
    if (*binds != '-')
        snprintf(share, sizeof share, "%.0f%%", 100.0 * of_roof);
    fprintf(t->out, "| %-36s | %10.1f | %10.3f | %6.1f%% | %9.2f | %7.2f | %7s | %-7s |\n", name,
            (double)row->calls / t->steps, 1e3 * row->seconds / t->steps,
            wall_share(t, row->seconds), 1e-9 * per_second(row->cost.flops, row->seconds),
            1e-9 * per_second(row->cost.bytes, row->seconds), share, binds);
}

static void table_time(const table *t, const char *name, double seconds)
{
    fprintf(t->out, "| %-36s | %10s | %10.3f | %6.1f%% | %9s | %7s | %7s | %-7s |\n", name, "",
            1e3 * seconds / t->steps, wall_share(t, seconds), "", "", "", "");
}

/* Rows of one kind, and their sum; a kind without rows is left out, unless it is the first. */
static void table_kind(const table *t, profile_kind kind, const char *title)
{
    char name[PROFILE_NAME_BYTES];
    profile_row sum = {
        .kind = kind, .seconds = t->totals.seconds[kind], .cost = t->totals.cost[kind]};
    if (kind == PROFILE_COMPUTE)
        table_head(t, title);
    for (size_t i = 0; i < t->n_rows; i++) {
        if (t->rows[i].kind != kind)
            continue;
        if (sum.calls == 0 && kind != PROFILE_COMPUTE)
            table_head(t, title);
        table_row(t, profile_row_name(&t->rows[i], name), &t->rows[i]);
        sum.calls += t->rows[i].calls;
    }
    if (sum.calls > 0)
        table_row(t, "**sum**", &sum);
}

/* What else the wall time of the compute stream is made of, below its operations. */
static void table_wall(const table *t)
{
    table_time(t, "**exposed communication** (below)", t->totals.seconds[PROFILE_EXPOSED]);
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].kind == PROFILE_REST)
            table_time(t, t->rows[i].key.name, t->rows[i].seconds);
    table_time(t, "**not accounted**", profile_unaccounted(&t->totals));
    table_time(t, "**wall**", t->totals.wall_s);
}

static void exposed_row(const table *t, const char *name, uint64_t calls, double seconds)
{
    fprintf(t->out, "| %-36s | %10.1f | %10.3f | %6.1f%% |\n", name, (double)calls / t->steps,
            1e3 * seconds / t->steps, wall_share(t, seconds));
}

/* For which collectives the compute stream stood still, and how long. */
static void table_exposed(const table *t)
{
    uint64_t calls = 0;
    fprintf(t->out,
            "\n| %-36s | waits/step |    ms/step |  wall %% |\n|%.38s|-----------:|-----------:|"
            "--------:|\n",
            "exposed communication, by cause", "--------------------------------------");
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].kind == PROFILE_EXPOSED) {
            exposed_row(t, t->rows[i].key.name, t->rows[i].calls, t->rows[i].seconds);
            calls += t->rows[i].calls;
        }
    exposed_row(t, "**sum**", calls, t->totals.seconds[PROFILE_EXPOSED]);
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

void profile_print_table(profile *p, FILE *out)
{
    table t = {.out = out, .totals = profile_total(p)};
    t.n_rows = profile_read(p, t.rows);
    t.steps = t.totals.steps > 0 ? (double)t.totals.steps : 1.0;
    fprintf(out, "# Profile of rank 0: %llu steps, without the first\n\n",
            (unsigned long long)t.totals.steps);
    table_roof(out, t.totals.roof);
    table_kind(&t, PROFILE_COMPUTE, "compute stream");
    table_wall(&t);
    table_exposed(&t);
    table_kind(&t, PROFILE_SIDE, "other streams, at the same time");
    table_kind(&t, PROFILE_COLLECTIVE, "collectives (bytes sent, with waits)");
}
