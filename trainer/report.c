/* report.c -- bytes by formula and by the ledger, side by side. */
#include <stdlib.h>
#include <string.h>
#include "common/base/atomic_file.h"
#include "common/base/units.h"
#include "trainer/trainer.h"

static const comm_op SHOWN_OPS[] = {COMM_OP_ALL_GATHER, COMM_OP_REDUCE_SCATTER, COMM_OP_ALL_REDUCE};
enum { N_SHOWN_OPS = 3 };

/* What virtual time says, and what it went by. */
static void print_prediction(const trainer *t, FILE *out)
{
    const virtual_figures *p = &t->predicted;
    const predict_rates *r = &t->rates;
    fprintf(out, "one step in virtual time, prefetch %s",
            prefetch_name((prefetch_mode)t->cfg.prefetch));
    if (t->cfg.buckets.max_elems > 0)
        fprintf(out, ", buckets of at most %zu parameters", t->cfg.buckets.max_elems);
    fprintf(out, "\n  %-14s %13.1f ms\n", "step", 1e3 * p->step_s);
    fprintf(out, "  %-14s %13.1f ms\n", "compute", 1e3 * p->compute_s);
    fprintf(out, "  %-14s %13.1f ms\n", "communication", 1e3 * p->communication_s);
    fprintf(out, "  %-14s %13.1f ms, no schedule leaves less than %.1f\n", "exposed",
            1e3 * p->exposed_s, 1e3 * p->floor_s);
    fprintf(out,
            "  measured just now: %.0f GFLOP/s, memory %.1f GB/s; an all-gather %.0f us + bytes / "
            "%.2f GB/s\n",
            1e-9 * r->flops_per_s, 1e-9 * r->bytes_per_s, 1e6 * r->link.latency_s,
            1e-9 * r->link.bytes_per_s);
}

void report_plan(const trainer *t, FILE *out)
{
    char text[16];
    size_t total = 0;
    int w = trainer_config_ranks(&t->cfg, comm_size(t->run.world));
    int s = t->cfg.parallel == PARALLEL_FSDP ? trainer_config_shard_size(&t->cfg, w) : 1;
    fprintf(out, "plan for %d rank%s: %d replica%s, shard groups of %d\n", w, w == 1 ? "" : "s",
            w / s, w == s ? "" : "s", s);
    fprintf(out, "memory of one rank by formula (most of each category)\n");
    for (int k = 0; k < MEM_CATEGORIES; k++) {
        size_t bytes = t->mem_plan.peak_bytes[k];
        total += bytes;
        if (bytes > 0)
            fprintf(out, "  %-14s %16zu  %s\n", mem_category_name((mem_category)k), bytes,
                    format_bytes(bytes, text, sizeof text));
    }
    fprintf(out, "  %-14s %16zu  %s\n", "sum", total, format_bytes(total, text, sizeof text));
    fprintf(out, "traffic of one step by formula (sent by rank 0)\n");
    for (int i = 0; i < N_SHOWN_OPS; i++)
        fprintf(out, "  %-14s %6llu calls %16llu bytes\n", comm_op_name(SHOWN_OPS[i]),
                (unsigned long long)t->traffic_plan.calls[SHOWN_OPS[i]],
                (unsigned long long)t->traffic_plan.bytes_sent[SHOWN_OPS[i]]);
    if (t->rates.flops_per_s > 0)
        print_prediction(t, out);
}

/* What is shown of memory: the categories, then these. */
enum { MEASURED_TOTAL = MEM_CATEGORIES, MEASURED_HOST, N_MEASURED };

/* bytes[k] = the most of figure k over all ranks. */
static fsdp_status max_over_ranks(trainer *t, size_t bytes[N_MEASURED])
{
    int64_t mine[N_MEASURED], *all;
    stream *s = device_compute_stream(t->run.dev);
    size_t w = (size_t)comm_size(t->run.world), n = N_MEASURED, row = sizeof mine;
    for (size_t k = 0; k < n; k++)
        mine[k] = (int64_t)bytes[k];
    TRY(device_alloc(s, MEM_OTHER, (w + 1) * row, "report", (void **)&all));
    int64_t *host = malloc(w * row);
    fsdp_status status = host ? device_upload(s, all + w * n, mine, row)
                              : fsdp_error(FSDP_ENOMEM, "", "report: no host memory");
    if (status == FSDP_OK)
        status = comm_all_gather(t->run.world, s, "report", DTYPE_I64, all + w * n, all, n);
    if (status == FSDP_OK)
        status = device_download(s, host, all, w * row);
    if (status == FSDP_OK)
        status = stream_sync(s);
    device_free(s, all);
    for (size_t i = 0; i < w * n && status == FSDP_OK; i++)
        if ((size_t)host[i] > bytes[i % n])
            bytes[i % n] = (size_t)host[i];
    free(host);
    return status;
}

static void print_memory(const trainer *t, const size_t *measured, FILE *out, FILE *csv)
{
    char a[16], b[16];
    fprintf(out, "peak memory of a rank       measured     formula\n");
    for (int k = 0; k < MEM_CATEGORIES; k++) {
        size_t formula = t->mem_plan.peak_bytes[k];
        const char *name = mem_category_name((mem_category)k);
        if (csv)
            fprintf(csv, "memory,%s,%zu,%zu\n", name, measured[k], formula);
        if (measured[k] > 0 || formula > 0)
            fprintf(out, "  %-22s %11s %11s\n", name, format_bytes(measured[k], a, sizeof a),
                    format_bytes(formula, b, sizeof b));
    }
    if (csv)
        fprintf(csv, "memory,total,%zu,\n", measured[MEASURED_TOTAL]);
    fprintf(out, "  %-22s %11s\n", "all, at one moment",
            format_bytes(measured[MEASURED_TOTAL], a, sizeof a));
    if (measured[MEASURED_HOST] > 0)
        fprintf(out, "  %-22s %11s\n", "copies on the host",
                format_bytes(measured[MEASURED_HOST], a, sizeof a));
}

static void print_traffic(const trainer *t, const train_result *r, FILE *out, FILE *csv)
{
    fprintf(out, "sent by rank 0 in a step    measured     formula\n");
    for (int i = 0; i < N_SHOWN_OPS; i++) {
        comm_op op = SHOWN_OPS[i];
        char a[16], b[16];
        uint64_t got = r->step_stats.bytes_sent[op], want = t->traffic_plan.bytes_sent[op];
        fprintf(out, "  %-22s %11s %11s   %llu calls, formula %llu%s\n", comm_op_name(op),
                format_bytes(got, a, sizeof a), format_bytes(want, b, sizeof b),
                (unsigned long long)r->step_stats.calls[op],
                (unsigned long long)t->traffic_plan.calls[op], got == want ? "" : "  DIFFERS");
        if (csv)
            fprintf(csv, "bytes,%s,%llu,%llu\ncalls,%s,%llu,%llu\n", comm_op_name(op),
                    (unsigned long long)got, (unsigned long long)want, comm_op_name(op),
                    (unsigned long long)r->step_stats.calls[op],
                    (unsigned long long)t->traffic_plan.calls[op]);
    }
}

fsdp_status report_run(trainer *t, const train_result *result, FILE *out)
{
    device *d = t->run.dev;
    ledger_figures f = ledger_read(device_ledger(d));
    size_t measured[N_MEASURED];
    memcpy(measured, f.peak_bytes, sizeof f.peak_bytes);
    measured[MEASURED_TOTAL] = f.peak_total_bytes;
    measured[MEASURED_HOST] =
        device_memory_is_host(d) ? 0 : ledger_read(device_host_ledger(d)).peak_total_bytes;
    TRY(max_over_ranks(t, measured));
    if (comm_rank(t->run.world) != 0)
        return comm_agree(t->run.world, FSDP_OK);
    fsdp_status status = FSDP_OK;
    atomic_file csv = {0};
    if (t->cfg.memory_report)
        status = atomic_file_open(&csv, t->cfg.memory_report,
                                  "pass a --memory-report path that can be written");
    if (csv.out)
        fprintf(csv.out, "what,name,measured,formula\n");
    print_memory(t, measured, out, csv.out);
    print_traffic(t, result, out, csv.out);
    if (csv.out)
        status = atomic_file_commit(&csv);
    return comm_agree(t->run.world, status);
}
