/* norm_lib.c -- see norm_lib.h. */
#include "tests/grade/norm_lib.h"
#include <string.h>

/* ---- arguments ------------------------------------------------------------------------------- */

static struct {
    fixture *fx;
    const fsdp_optimizer *o;
    ops ops;
    int n_wrong;
    bool joins; /* norm_watch_slices was called */
} watched;

/* Whether the table is empty, or one of unit u's, for its whole shard. */
static bool is_table_of(const range_table *t, const float *x, int u)
{
    const unit_optim *unit = &watched.o->units[u];
    return t->at == NULL || (t->at == unit->ranges && t->n >= 0 && t->n <= unit->n_ranges &&
                             t->origin == 0 && x == watched.o->r->grads[u].shard_grad);
}

/* Whether x [elems] lies within the gradient of a shard, and the ranges are that shard's. */
static bool is_of_a_gradient(const float *x, size_t elems, const range_table *ranges)
{
    const fixture *fx = watched.fx;
    for (int u = 0; u < fx->f.n_units; u++) {
        const float *grad = watched.o->r->grads[u].shard_grad;
        const size_t n = fx->f.units[u].layout.shard_elems;
        if (grad && x >= grad && x < grad + n && elems <= (size_t)(grad + n - x))
            return is_table_of(ranges, x, u);
    }
    return false;
}

static fsdp_status squares_args(const sum_squares_args *a)
{
    TRY(EXPECT(a->sum == watched.o->norm_sum, "every range adds its squares to o->norm_sum",
               "sum_squares: sum is %s, expected o->norm_sum", a->sum ? "another place" : "NULL"));
    TRY(EXPECT(!watched.joins ||
                   comm_job_stats_read(watched.fx->comm).calls[COMM_OP_ALL_GATHER] > 0,
               "grad_all_gather, after grad_finish: replicas of a shard join their slices",
               "sum_squares of %zu elements: shard_grad is this replica's slice of the gradient, "
               "expected the whole shard's",
               a->elems));
    return EXPECT(
        is_of_a_gradient(a->x, a->elems, &a->ranges),
        "x is grads[u].shard_grad after it is finished, elems shard_elems, ranges {ranges, "
        "n_ranges} of "
        "unit u < n_units",
        "sum_squares of %zu elements: x is %s, expected a shard's gradient and its unit's ranges",
        a->elems,
        a->x == NULL   ? "NULL"
        : a->ranges.at ? "not the gradient that these ranges are of"
                       : "outside of all shards' gradients");
}

static fsdp_status squares_watched(stream *s, const sum_squares_args *a)
{
    const bool is_missing = (uintptr_t)a->x < 4096; /* NULL, or NULL plus an index */
    fsdp_status status = squares_args(a);
    if (status == FSDP_OK)
        return watched.fx->g->ops->sum_squares(s, a);
    note(watched.fx, status);
    return watched.n_wrong++ == 0 && !is_missing ? FSDP_OK : status;
}

/* The pointers are o's, and each unit of which this rank has ranges has a gradient. */
static fsdp_status coef_args(const clip_coef_args *a)
{
    const fsdp_optimizer *o = watched.o;
    TRY(EXPECT(a->norm == o->norm && a->coef == o->coef && a->sum == o->norm_sum,
               "clip_coef reads o->norm_sum; it writes o->norm and o->coef",
               "clip_coef: %s is not the optimizer's, expected o->%s",
               a->norm != o->norm   ? "norm"
               : a->coef != o->coef ? "coef"
                                    : "sum",
               a->norm != o->norm   ? "norm"
               : a->coef != o->coef ? "coef"
                                    : "norm_sum"));
    for (int u = 0; u < o->n_units; u++)
        TRY(EXPECT(o->units[u].n_ranges == 0 || o->r->grads[u].shard_grad,
                   "finish the gradients, form the norm, then the coefficient",
                   "clip_coef: shard_grad of unit %d is NULL, expected its finished gradient", u));
    return FSDP_OK;
}

static fsdp_status coef_watched(stream *s, const clip_coef_args *a)
{
    fsdp_status status = coef_args(a);
    note(watched.fx, status);
    return status == FSDP_OK ? watched.fx->g->ops->clip_coef(s, a) : status;
}

void norm_watch(fixture *fx, fsdp_optimizer *o)
{
    watched.fx = fx;
    watched.o = o;
    watched.n_wrong = 0;
    watched.joins = false;
    watched.ops = *fx->g->ops;
    watched.ops.sum_squares = squares_watched;
    watched.ops.clip_coef = coef_watched;
    o->ops = &watched.ops;
}

void norm_watch_slices(fixture *fx)
{
    comm_job_stats_reset(fx->comm);
    watched.joins = fx->f.mesh.shape.size[AXIS_REPLICATE] > 1;
}

/* ---- neighbours ------------------------------------------------------------------------------ */

fsdp_status norm_call_in_room(fixture *fx, fsdp_optimizer *o, norm_call call)
{
    float *const norm = o->norm, *const coef = o->coef;
    const size_t elems = sizeof(rsum) / sizeof(float);
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, elems, "norm in a room", &o->norm));
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, elems, "coefficient in a room", &o->coef));
    fix_call_starts(fx);
    fsdp_status status = call(o);
    device_free(fx->compute, o->norm);
    device_free(fx->compute, o->coef);
    o->norm = norm;
    o->coef = coef;
    return status;
}

enum { NEIGHBOURS = 4 }; /* on either side */

/* Room for n things and NEIGHBOURS on either side; the n things are in the middle. */
#define AROUND(n) ((n) + 2 * NEIGHBOURS)

fsdp_status norm_call_guarded(fixture *fx, fsdp_optimizer *o, norm_call call)
{
    unit_optim units[AROUND(FIX_UNITS)], *const own_units = o->units;
    unit_grad grads[AROUND(FIX_UNITS)], *const own_grads = fx->r.grads;
    decay_range ranges[AROUND(FIX_UNITS)][AROUND(FIX_PARAMS)];
    memset(units, 0, sizeof units);
    memset(grads, 0, sizeof grads);
    memcpy(units + NEIGHBOURS, own_units, (size_t)o->n_units * sizeof *units);
    memcpy(grads + NEIGHBOURS, own_grads, (size_t)o->n_units * sizeof *grads);
    for (int k = 0; k < AROUND(FIX_UNITS); k++) {
        const int u = k - NEIGHBOURS;
        const bool is_unit = u >= 0 && u < o->n_units;
        const size_t behind = is_unit ? fx->f.units[u].layout.shard_elems : 0;
        for (int i = 0; i < AROUND(FIX_PARAMS); i++)
            ranges[k][i] = (decay_range){.begin = behind, .elems = 1};
        if (units[k].n_ranges > 0)
            memcpy(ranges[k] + NEIGHBOURS, units[k].ranges,
                   (size_t)units[k].n_ranges * sizeof **ranges);
        units[k].ranges = ranges[k] + NEIGHBOURS;
        units[k].n_ranges = is_unit ? units[k].n_ranges : 1;
    }
    o->units = units + NEIGHBOURS;
    fx->r.grads = grads + NEIGHBOURS;
    fsdp_status status = norm_call_in_room(fx, o, call);
    o->units = own_units;
    fx->r.grads = own_grads;
    return status;
}

/* ---- the collective -------------------------------------------------------------------------- */

static uint64_t norm_issued(void *self, const comm_record *r)
{
    *(norm_seen *)self = (norm_seen){.group = r->group, .on = r->stream};
    return 0;
}

void norm_calls_watch(fixture *fx, norm_seen *seen)
{
    *seen = (norm_seen){.group = UINT64_MAX};
    comm_set_watch(fx->comm, &(comm_watch){.self = seen, .issued = norm_issued});
}

void norm_expect_stream(fixture *fx, const fsdp_optimizer *o, const char *who,
                        const norm_seen *seen)
{
    if (seen->on)
        note(fx, EXPECT(seen->on == o->norm_stream,
                        "compute records `squared` and goes on; norm_stream waits for that event",
                        "%s: the all-reduce ran on stream %s, expected o->norm_stream, %s", who,
                        stream_name(seen->on), stream_name(o->norm_stream)));
}
