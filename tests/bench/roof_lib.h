/* roof_lib.h -- the most that this machine can do, and the bound that follows for an operation. */
#pragma once
#include <stddef.h>
#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/device/device.h"

/* Working sets for which the memory rate is measured, from the caches to DRAM. 96 MiB are three
 * arrays of 32 MiB; their addition is the memory roof of --profile (ops_profile_roof). */
enum { ROOF_SIZES = 6 };
extern const size_t bench_roof_bytes[ROOF_SIZES];

/* What an update in place reads and writes: adamw reads p, g, m, v and writes p, m, v; sgd reads p,
 * g and writes p; scale reads and writes one array. */
typedef enum bench_mix { MIX_NONE, MIX_ADAMW, MIX_SGD, MIX_SCALE } bench_mix;

/* bench_in_place_s -- seconds of one pass over arrays x [4][n] that moves the same data as `mix`,
 * with one multiply-add for each element written: x[0] = p, x[1] = g, x[2] = m, x[3] = v. Every
 * thread has a part of each array. Values of at most 1 stay below 2. */
double bench_in_place_s(float *const *x, size_t n, bench_mix mix, int n_threads);
/* Rates of loops that do nothing else; the best of several tries. */
typedef struct bench_roof {
    int n_threads;
    double triad_one_gbs[ROOF_SIZES]; /* a = b + s*c, 12 bytes an element, one thread */
    double triad_all_gbs[ROOF_SIZES]; /* all threads, each its own part of the working set */
    double fma_one_gflops;            /* fp32 multiply-adds in registers, 2 FLOP each */
    double fma_all_gflops;
    double bf16_all_gflops; /* bf16 multiplied and added in registers, pairs or tiles; 0: neither */
    double sgemm_gflops;    /* fast matmul of fp32, 2048^3, all threads */
    double bf16_gflops;     /* the same in bf16 */
} bench_roof;

/* bench_roof_measure -- takes about 8 seconds and 800 MB. s: an idle stream of a CPU, all of whose
 * threads work.
 *   errors: FSDP_ENOMEM; matmul's errors */
fsdp_status bench_roof_measure(stream *s, bench_roof *out);

/* bench_roof_merge -- take the higher figures of an earlier measurement with as many threads, from
 * the file at `path`, because other work on the machine can only lower a roof. Does nothing if
 * there is no such file. */
void bench_roof_merge(bench_roof *r, const char *path);

/* bench_roof_write -- write lines "key,value". errors: FSDP_EIO */
fsdp_status bench_roof_write(const bench_roof *r, const char *path);

/* bench_bound -- the least time in seconds that `flops` and `bytes` can take here: the larger of
 * the two limits. *limit is its name, "fma", "bf16" or "memory", *rate its figure in GFLOP/s or
 * GB/s. The memory rate is a triad's over as many bytes, interpolated between measured sizes on a
 * logarithmic scale.
 *   compute  the type of the multiplications. DTYPE_BF16: the faster of registers and the large
 *   product; if neither beats fp32, fp32 is the limit */
double bench_bound(const bench_roof *r, dtype compute, double flops, double bytes,
                   const char **limit, double *rate);
