/* bench_lib.h -- a clock, quartiles, how often to repeat: shared by the benchmarks. */
#pragma once
#include <stddef.h>
#include "common/base/clock.h"

typedef struct bench_quartiles {
    double median, q1, q3;
} bench_quartiles;

/* bench_quartiles_of -- of values [n], n >= 1, which get sorted; linear between neighbours. */
bench_quartiles bench_quartiles_of(double *values, size_t n);

/* bench_reps -- how often to repeat what takes about est_s seconds: budget_s worth of it, between
 * `least` and `most` times. */
size_t bench_reps(double est_s, double budget_s, size_t least, size_t most);
