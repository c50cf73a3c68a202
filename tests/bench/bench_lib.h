/* bench_lib.h -- shared by the benchmarks: the clock, quartiles, and how often to repeat. */
#pragma once
#include <stddef.h>
#include "common/base/clock.h"

typedef struct bench_quartiles {
    double median, q1, q3;
} bench_quartiles;

/* bench_quartiles_of -- the quartiles of values [n], n >= 1; sorts values; interpolates
 * linearly. */
bench_quartiles bench_quartiles_of(double *values, size_t n);

/* bench_reps -- how often to repeat work that takes about est_s seconds: to fill budget_s, but
 * between `least` and `most` times. */
size_t bench_reps(double est_s, double budget_s, size_t least, size_t most);
