/* bench_lib.c -- clock, quartiles, bounds; the loops that measure the roof are in roof_lib.c. */
#include "tests/bench/bench_lib.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const size_t bench_roof_bytes[ROOF_SIZES] = {256u << 10, 1u << 20,  4u << 20,
                                             16u << 20,  96u << 20, 768u << 20};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at_share(const double *sorted, size_t n, double share)
{
    double place = share * (double)(n - 1);
    size_t i = (size_t)place;
    size_t next = i + 1 < n ? i + 1 : i;
    return sorted[i] + (place - (double)i) * (sorted[next] - sorted[i]);
}

bench_quartiles bench_quartiles_of(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return (bench_quartiles){.median = at_share(values, n, 0.5),
                             .q1 = at_share(values, n, 0.25),
                             .q3 = at_share(values, n, 0.75)};
}

size_t bench_reps(double est_s, double budget_s, size_t least, size_t most)
{
    double reps = ceil(budget_s / (est_s > 1e-9 ? est_s : 1e-9));
    if (reps < (double)least)
        return least;
    return reps > (double)most ? most : (size_t)reps;
}

/* GB/s of all threads over a working set of `bytes`. */
static double memory_rate(const bench_roof *r, double bytes)
{
    int i = 0;
    while (i < ROOF_SIZES && bytes > (double)bench_roof_bytes[i])
        i++;
    if (i == 0 || i == ROOF_SIZES)
        return r->triad_all_gbs[i == 0 ? 0 : ROOF_SIZES - 1];
    double below = (double)bench_roof_bytes[i - 1], above = (double)bench_roof_bytes[i];
    double share = log(bytes / below) / log(above / below);
    return r->triad_all_gbs[i - 1] + share * (r->triad_all_gbs[i] - r->triad_all_gbs[i - 1]);
}

double bench_bound(const bench_roof *r, dtype compute, double flops, double bytes,
                   const char **limit, double *rate)
{
    double gbs = memory_rate(r, bytes), gflops = r->fma_all_gflops;
    if (compute == DTYPE_BF16)
        gflops = fmax(gflops, fmax(r->bf16_all_gflops, r->bf16_gflops));
    double compute_s = flops / (1e9 * gflops), memory_s = bytes / (1e9 * gbs);
    *limit = compute_s <= memory_s ? "memory" : gflops > r->fma_all_gflops ? "bf16" : "fma";
    *rate = compute_s > memory_s ? gflops : gbs;
    return compute_s > memory_s ? compute_s : memory_s;
}

/* The i-th figure and its key; NULL behind the last. */
static double *roof_figure(bench_roof *r, int i, char *key, size_t key_bytes)
{
    if (i < 2 * ROOF_SIZES) {
        bool is_one = i % 2 == 0;
        snprintf(key, key_bytes, "triad_%zuk_%s_gbs", bench_roof_bytes[i / 2] >> 10,
                 is_one ? "one" : "all");
        return is_one ? &r->triad_one_gbs[i / 2] : &r->triad_all_gbs[i / 2];
    }
    static const char *const names[] = {"fma_one_gflops", "fma_all_gflops", "bf16_all_gflops",
                                        "sgemm_gflops", "bf16_gflops"};
    double *figures[] = {&r->fma_one_gflops, &r->fma_all_gflops, &r->bf16_all_gflops,
                         &r->sgemm_gflops, &r->bf16_gflops};
    i -= 2 * ROOF_SIZES;
    if (i >= (int)(sizeof names / sizeof *names))
        return NULL;
    snprintf(key, key_bytes, "%s", names[i]);
    return figures[i];
}

static void merge_line(bench_roof *r, const char *line)
{
    char key[48];
    double *figure;
    for (int i = 0; (figure = roof_figure(r, i, key, sizeof key)) != NULL; i++) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) == 0 && line[n] == ',' && atof(line + n + 1) > *figure)
            *figure = atof(line + n + 1);
    }
}

void bench_roof_merge(bench_roof *r, const char *path)
{
    char line[80];
    int threads = 0;
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "threads,%d", &threads);
        if (threads == r->n_threads)
            merge_line(r, line);
    }
    if (f != NULL)
        fclose(f);
}

fsdp_status bench_roof_write(const bench_roof *r, const char *path)
{
    bench_roof copy = *r;
    char key[48];
    double *figure;
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return fsdp_error(FSDP_EIO, "pass a path that can be written", "cannot write %s", path);
    fprintf(f, "key,value\nthreads,%d\n", r->n_threads);
    for (int i = 0; (figure = roof_figure(&copy, i, key, sizeof key)) != NULL; i++)
        fprintf(f, "%s,%.1f\n", key, *figure);
    if (fclose(f) != 0)
        return fsdp_error(FSDP_EIO, "free space on that disk", "cannot write %s", path);
    return FSDP_OK;
}
