/* cpu_optim.c -- gradient norm, clipping and the optimizers' updates, for both tables.
 *
 *   sum_squares (every shard) -> all-reduce of the bins -> clip_coef -> adamw, sgd ...
 *
 * The sum of squares is exact, so its order does not matter. Updates are element-wise, so the
 * start of a shard does not matter. */
#include <math.h>
#include "common/ops/cpu_kernels.h"
#include "common/ops/ranges.h"
#include "common/ops/row_adamw.h"
#include "common/ops/row_elem.h"

/* ---- sum_squares ---------------------------------------------------------------------------- */

/* At most SUM_PARTS partial sums, so that they fit on the stack. */
enum { SUM_PARTS = 64 };

typedef struct square_sums {
    const sum_squares_args *a;
    size_t part_elems;
    rsum *part; /* [SUM_PARTS] */
} square_sums;

static fsdp_status sum_squares_tile(const void *args, size_t tile)
{
    const square_sums *j = args;
    const size_t begin = tile * j->part_elems;
    rsum_add_squares(&j->part[tile], j->a->x + begin, min_size(j->part_elems, j->a->elems - begin));
    return FSDP_OK;
}

static fsdp_status sum_range(const sum_squares_args *a, int n_threads)
{
    rsum part[SUM_PARTS] = {0};
    size_t part_elems = tiles_of(a->elems, SUM_PARTS);
    part_elems = part_elems < TILE_ELEMS ? TILE_ELEMS : part_elems;
    const size_t n_parts = tiles_of(a->elems, part_elems);
    const square_sums job = {a, part_elems, part};
    n_threads = threads_for(n_threads, a->elems, MIN_PARALLEL_ELEMS);
    TRY(tiles_run(n_threads, n_parts, sum_squares_tile, &job));
    for (size_t i = 0; i < n_parts; i++)
        rsum_merge(a->sum, &part[i]);
    return FSDP_OK;
}

static fsdp_status sum_squares_kernel(void *args, int n_threads)
{
    const sum_squares_args *a = args;
    decay_range r;
    for (int i = 0; range_next(&a->ranges, &i, 0, a->elems, &r);) {
        const sum_squares_args part = sum_squares_of_range(a, r);
        TRY(sum_range(&part, n_threads));
    }
    return FSDP_OK;
}

KERNEL(sum_squares)

/* ---- clip_coef ------------------------------------------------------------------------------ */

static fsdp_status clip_coef_kernel(void *args, int n_threads)
{
    (void)n_threads;
    clip_elem(args);
    return FSDP_OK;
}

KERNEL(clip_coef)

/* ---- updates -------------------------------------------------------------------------------- */

static fsdp_status adamw_tile(const void *args, size_t tile)
{
    const adamw_args *a = args;
    const size_t begin = tile * TILE_ELEMS, end = min_size(a->elems, begin + TILE_ELEMS);
    decay_range r;
    for (int i = 0; range_next(&a->ranges, &i, begin, end, &r);)
        TRY(adamw_range(adamw_of_range(a, r), 0, r.elems));
    return FSDP_OK;
}

ELEMENTWISE(adamw, MIN_PARALLEL_ELEMS)

#define UPDATE(kind, op, ...)                                                                      \
    static fsdp_status op##_tile(const void *args, size_t tile)                                    \
    {                                                                                              \
        const optim_args *all = args;                                                              \
        const float coef = all->grad_coef ? *all->grad_coef : 1.0f;                                \
        const size_t begin = tile * TILE_ELEMS, end = min_size(all->elems, begin + TILE_ELEMS);    \
        decay_range r;                                                                             \
        for (int i = 0; range_next(&all->ranges, &i, begin, end, &r);) {                           \
            const optim_args a = update_of_range(all, r);                                          \
            for (size_t e = 0; e < a.elems; e++)                                                   \
                op##_elem(&a, a.grad[e] * coef, e);                                                \
        }                                                                                          \
        return FSDP_OK;                                                                            \
    }                                                                                              \
    ELEMENTWISE(op, MIN_PARALLEL_ELEMS)
UPDATE_RULES(UPDATE)

/* ---- adamw_scalars -------------------------------------------------------------------------- */

/* base^n by repeated multiplication. The callers need only 1 - base^n, which further factors cannot
 * change once the power is below 1e-30; denormal products would be slow. */
static double power(double base, int64_t n)
{
    double p = 1.0;
    for (int64_t i = 0; i < n && p > 1e-30; i++)
        p *= base;
    return p;
}

void adamw_scalars(adamw_args *a, const optim_config *c)
{
    const double bias1 = 1.0 - power(c->beta1, c->step + 1);
    const double bias2 = 1.0 - power(c->beta2, c->step + 1);
    a->beta1 = (float)c->beta1;
    a->one_minus_beta1 = (float)(1.0 - c->beta1);
    a->beta2 = (float)c->beta2;
    a->one_minus_beta2 = (float)(1.0 - c->beta2);
    a->step_size = (float)(c->lr / bias1);
    a->sqrt_bias2 = (float)sqrt(bias2);
    a->decay = (float)(c->lr * c->weight_decay);
    a->eps = (float)c->eps;
}
