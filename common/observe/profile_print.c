/* profile_print.c -- print a profile: all figures as CSV, and a table for people. */
#include "common/observe/profile.h"

static const char *const KINDS[PROFILE_KINDS] = {[PROFILE_COMPUTE] = "compute",
                                                 [PROFILE_SIDE] = "side",
                                                 [PROFILE_COLLECTIVE] = "collective",
                                                 [PROFILE_EXPOSED] = "exposed",
                                                 [PROFILE_REST] = "rest"};

static double per_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : 0.0;
}

/* ---- CSV ------------------------------------------------------------------------------------ */

/* share: text of the last two columns. Rows of EXPOSED and REST have no costs: the columns after
 * `seconds` are empty. */
static void csv_row(FILE *out, const char *kind, const char *name, const profile_row *r,
                    const char *share)
{
    fprintf(out, "%s,%s,%llu,%.9f,", kind, name, (unsigned long long)r->calls, r->seconds);
    if (r->kind >= PROFILE_EXPOSED)
        fprintf(out, ",,,,,\n");
    else
        fprintf(out, "%.0f,%.0f,%.6g,%.6g,%s\n", r->cost.flops, r->cost.bytes,
                per_second(r->cost.flops, r->seconds), per_second(r->cost.bytes, r->seconds),
                share);
}

static void csv_total(FILE *out, const profile_totals *t, profile_kind kind, const char *name,
                      double seconds)
{
    const profile_row sum = {
        .kind = kind, .calls = t->steps, .seconds = seconds, .cost = t->cost[kind]};
    csv_row(out, "total", name, &sum, ",");
}

void profile_print_csv(profile *p, FILE *out)
{
    profile_row rows[PROFILE_MAX_ROWS];
    profile_totals t;
    size_t n = profile_read(p, &t, rows);
    fprintf(out, "kind,name,calls,seconds,flops,bytes,flops_per_s,bytes_per_s,roof_share,binds\n");
    for (size_t i = 0; i < n; i++) {
        char name[PROFILE_NAME_BYTES], share[32];
        const char *binds;
        double of_roof = profile_share(&rows[i], t.roof, &binds);
        snprintf(share, sizeof share, "%.6g,%s", of_roof, binds);
        csv_row(out, KINDS[rows[i].kind], profile_row_name(&rows[i], name), &rows[i], share);
    }
    for (int k = 0; k < PROFILE_KINDS; k++)
        csv_total(out, &t, (profile_kind)k, KINDS[k], t.seconds[k]);
    csv_total(out, &t, PROFILE_REST, "wall", t.wall_s);
    csv_total(out, &t, PROFILE_REST, "not accounted", profile_unaccounted(&t));
    fprintf(out, "roof,measured,,,,,%.6g,%.6g,,\n", t.roof.flops_per_s, t.roof.bytes_per_s);
    if (t.roof.bf16_flops_per_s > 0)
        fprintf(out, "roof,bf16,,,,,%.6g,,,\n", t.roof.bf16_flops_per_s);
    if (t.roof.upload.bytes_per_s > 0)
        fprintf(out, "roof,upload,,%.9f,,,,%.6g,,\nroof,download,,%.9f,,,,%.6g,,\n",
                t.roof.upload.latency_s, t.roof.upload.bytes_per_s, t.roof.download.latency_s,
                t.roof.download.bytes_per_s);
}

/* ---- table ---------------------------------------------------------------------------------- */

/* The figures of all steps, which the table divides by the number of steps. */
typedef struct table {
    FILE *out;
    profile_totals totals;
    double steps; /* at least 1 */
    size_t n_rows;
    profile_row rows[PROFILE_MAX_ROWS];
} table;

/* For exposed communication the columns end with the share of the wall time. */
static void table_head(const table *t, profile_kind kind, const char *title)
{
    bool is_exposed = kind == PROFILE_EXPOSED;
    fprintf(t->out, "\n| %-36s | %s/step |    ms/step |  wall %% |%s\n", title,
            is_exposed ? "waits" : "calls",
            is_exposed ? "" : "   GFLOP/s |    GB/s | of roof | binds   |");
    fprintf(t->out,
            "|--------------------------------------|-----------:|-----------:|--------:|%s\n",
            is_exposed ? "" : "----------:|--------:|--------:|---------|");
}

/* The columns of a row up to the share of the wall time; calls: text, "" for none. */
static void table_time(const table *t, const char *name, const char *calls, double seconds)
{
    fprintf(t->out, "| %-36s | %10s | %10.3f | %6.1f%% |", name, calls, 1e3 * seconds / t->steps,
            100.0 * per_second(seconds, t->totals.wall_s));
}

static void table_row(const table *t, const char *name, const profile_row *row)
{
    const char *binds;
    char calls[32], share[16] = "-";
    double of_roof = profile_share(row, t->totals.roof, &binds);
    if (*binds != '-')
        snprintf(share, sizeof share, "%.0f%%", 100.0 * of_roof);
    snprintf(calls, sizeof calls, "%.1f", (double)row->calls / t->steps);
    table_time(t, name, calls, row->seconds);
    if (row->kind != PROFILE_EXPOSED)
        fprintf(t->out, " %9.2f | %7.2f | %7s | %-7s |",
                1e-9 * per_second(row->cost.flops, row->seconds),
                1e-9 * per_second(row->cost.bytes, row->seconds), share, binds);
    fprintf(t->out, "\n");
}

/* Print the rows of one kind, and their sum. COMPUTE and EXPOSED have a table even without rows. */
static void table_kind(const table *t, profile_kind kind, const char *title)
{
    char name[PROFILE_NAME_BYTES];
    profile_row sum = {
        .kind = kind, .seconds = t->totals.seconds[kind], .cost = t->totals.cost[kind]};
    bool has_head = kind == PROFILE_COMPUTE || kind == PROFILE_EXPOSED;
    if (has_head)
        table_head(t, kind, title);
    for (size_t i = 0; i < t->n_rows; i++) {
        if (t->rows[i].kind != kind)
            continue;
        if (!has_head)
            table_head(t, kind, title);
        has_head = true;
        table_row(t, profile_row_name(&t->rows[i], name), &t->rows[i]);
        sum.calls += t->rows[i].calls;
    }
    if (sum.calls > 0 || kind == PROFILE_EXPOSED)
        table_row(t, "**sum**", &sum);
}

/* Print a part of the wall time that has neither calls nor costs. */
static void table_part(const table *t, const char *name, double seconds)
{
    table_time(t, name, "", seconds);
    fprintf(t->out, " %9s | %7s | %7s | %-7s |\n", "", "", "", "");
}

/* Print the other parts of the compute stream's wall time below its operations. */
static void table_wall(const table *t)
{
    table_part(t, "**exposed communication** (below)", t->totals.seconds[PROFILE_EXPOSED]);
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].kind == PROFILE_REST)
            table_part(t, t->rows[i].key.name, t->rows[i].seconds);
    table_part(t, "**not accounted**", profile_unaccounted(&t->totals));
    table_part(t, "**wall**", t->totals.wall_s);
}

static void table_roof(FILE *out, profile_roof roof)
{
    fprintf(out, "Roof, measured on this machine at the start: %.1f GFLOP/s (a large matmul), ",
            1e-9 * roof.flops_per_s);
    if (roof.bf16_flops_per_s > 0)
        fprintf(out, "%.1f GFLOP/s (the same in bf16, for rows in bf16),\n",
                1e-9 * roof.bf16_flops_per_s);
    if (roof.upload.bytes_per_s > 0)
        fprintf(out, "copies of %.1f GB/s from the host and %.1f GB/s to it,\n",
                1e-9 * roof.upload.bytes_per_s, 1e-9 * roof.download.bytes_per_s);
    fprintf(out,
            "%.1f GB/s (adding arrays of 32 MiB).\nFLOPs and bytes are by formula; a "
            "row's share is of the roof that binds it;\nmore than 100%% of memory: the "
            "arrays were in a cache, or are updated in place.\n",
            1e-9 * roof.bytes_per_s);
}

void profile_print_table(profile *p, FILE *out)
{
    table t = {.out = out};
    t.n_rows = profile_read(p, &t.totals, t.rows);
    t.steps = t.totals.steps > 0 ? (double)t.totals.steps : 1.0;
    fprintf(out, "# Profile of rank 0: %llu steps, without the first\n\n",
            (unsigned long long)t.totals.steps);
    table_roof(out, t.totals.roof);
    table_kind(&t, PROFILE_COMPUTE, "compute stream");
    table_wall(&t);
    table_kind(&t, PROFILE_EXPOSED, "exposed communication, by cause");
    table_kind(&t, PROFILE_SIDE, "other streams, at the same time");
    table_kind(&t, PROFILE_COLLECTIVE, "collectives (bytes sent, with waits)");
}
