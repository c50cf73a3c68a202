/* bench_lib.c -- see bench_lib.h. */
#include "tests/bench/bench_lib.h"
#include <math.h>
#include <stdlib.h>

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
