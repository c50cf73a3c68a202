/* roof_lib.h -- what this machine can do at most, and the bound that this puts on an operation. */
#pragma once
#include <stddef.h>
#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/device/device.h"

/* Working sets for which the memory's rate is measured, from the caches to DRAM. 96 MiB are three
 * arrays of 32 MiB, whose addition is the memory's roof of --profile (ops_profile_roof). */
enum { ROOF_SIZES = 6 };
extern const size_t bench_roof_bytes[ROOF_SIZES];

/* What an update in place reads and writes: adamw reads p, g, m, v and writes p, m, v; sgd reads p,
 * g and writes p; scale reads and writes one array. */
typedef enum bench_mix { MIX_NONE, MIX_ADAMW, MIX_SGD, MIX_SCALE } bench_mix;

/* bench_in_place_s -- seconds of one pass over arrays x [4][n] that moves them as `mix` does, with
 * one multiply-add for each element written: x[0] = p, x[1] = g, x[2] = m, x[3] = v. Every thread
 * has a part of each. Values of at most 1 stay below 2. */
double bench_in_place_s(float *const *x, size_t n, bench_mix mix, int n_threads);
/* What the machine reaches in loops that do nothing else; the best of several tries. */
typedef struct bench_roof {
    int n_threads;
    double triad_one_gbs[ROOF_SIZES]; /* a = b + s*c, 12 bytes an element, one thread */
    double triad_all_gbs[ROOF_SIZES]; /* all threads, each its own part of the working set */
    double fma_one_gflops;            /* fp32 multiply-adds in registers, 2 FLOP each */
    double fma_all_gflops;
    double bf16_all_gflops; /* pairs of bf16 multiplied and added in registers; 0: not to be had */
    double sgemm_gflops;    /* fast matmul of fp32, 2048^3, all threads */
    double bf16_gflops;     /* the same of bf16 */
} bench_roof;

/* bench_roof_measure -- takes about 8 seconds and 800 MB. s: an idle stream of a CPU, whose threads
 * all work. errors: FSDP_ENOMEM; those of matmul */
fsdp_status bench_roof_measure(stream *s, bench_roof *out);

/* bench_roof_merge -- raise what the file at `path`, of an earlier measurement with as many
 * threads, has higher: other work on the machine can only lower a roof. No such file: nothing. */
void bench_roof_merge(bench_roof *r, const char *path);

/* bench_roof_write -- lines "key,value". errors: FSDP_EIO */
fsdp_status bench_roof_write(const bench_roof *r, const char *path);

/* bench_bound -- the least time in seconds that `flops` and `bytes` can take here: the greater of
 * the two limits. *limit is its name, "fma", "bf16" or "memory", *rate its figure in GFLOP/s or
 * GB/s. The memory's rate is that of a triad over as many bytes, between measured sizes in
 * proportion to the logarithm.
 *   compute  what is multiplied. DTYPE_BF16: by the faster of registers and the large product
 *            (matrix units show there alone); where neither beats fp32, that binds */
double bench_bound(const bench_roof *r, dtype compute, double flops, double bytes,
                   const char **limit, double *rate);
