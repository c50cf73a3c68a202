/* bench_lib.h -- a clock, medians, and what this machine can do at most: shared by the benchmarks.
 */
#pragma once
#include <stddef.h>
#include "common/base/status.h"

/* bench_now_s -- seconds of the monotonic clock. */
double bench_now_s(void);

typedef struct bench_quartiles {
    double median, q1, q3;
} bench_quartiles;

/* bench_quartiles_of -- of values [n], n >= 1, which get sorted; linear between neighbours. */
bench_quartiles bench_quartiles_of(double *values, size_t n);

/* bench_reps -- how often to repeat what takes about est_s seconds: budget_s worth of it, between
 * `least` and `most` times.                                                                      */
size_t bench_reps(double est_s, double budget_s, size_t least, size_t most);

/* Working sets for which the memory's rate is measured, from the caches to DRAM. */
enum { ROOF_SIZES = 6 };
extern const size_t bench_roof_bytes[ROOF_SIZES];

/* What the machine reaches in loops that do nothing else; the best of several tries. */
typedef struct bench_roof {
    int n_threads;
    double triad_one_gbs[ROOF_SIZES]; /* a = b + s*c, 12 bytes an element, one thread */
    double triad_all_gbs[ROOF_SIZES]; /* all threads, each its own part of the working set */
    double fma_one_gflops;            /* fp32 multiply-adds in registers, 2 FLOP each */
    double fma_all_gflops;
    double sgemm_gflops; /* oneDNN, 2048^3, all threads; 0: not built */
    double bf16_gflops;  /* oneDNN, bf16 x bf16 -> fp32, 2048^3; 0: not to be had */
} bench_roof;

/* bench_roof_measure -- takes about 8 seconds and 800 MB. errors: FSDP_ENOMEM */
fsdp_status bench_roof_measure(int n_threads, bench_roof *out);

/* bench_roof_merge -- raise what the file at `path`, of an earlier measurement with as many
 * threads, has higher: other work on the machine can only lower a roof. No such file: nothing. */
void bench_roof_merge(bench_roof *r, const char *path);

/* bench_roof_write -- lines "key,value". errors: FSDP_EIO */
fsdp_status bench_roof_write(const bench_roof *r, const char *path);

/* bench_bound -- the least time in seconds that `flops` and `bytes` can take here: the greater of
 * the two limits. *limit is its name, "fma" or "memory", *rate its figure in GFLOP/s or GB/s. The
 * memory's rate is that of a triad over as many bytes, between measured sizes in proportion to the
 * logarithm. */
double bench_bound(const bench_roof *r, double flops, double bytes, const char **limit,
                   double *rate);
