/* plan.c -- see plan.h: the formulas, over the units that training lays out too (fsdp_lay_out).
 *
 * Per unit P = W*align*ceil(slots/(W*align)) elements: its slots, padded for the world. A rank
 * keeps a shard of P/S and reduces into a world slice of P/W. A micro-step gathers a unit twice
 * (once if it stays after forward, never if it is resident) and reduces it once. A gather moves
 * (S-1)/S*P elements from every rank, a reduction (W-1)/W*P. With R = W/S replicas a step gathers
 * each unit's gradient once, which moves (R-1)/W*P. [ZeRO §7] [FSDP §3.2] */
#include "trainer/plan.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "common/model/runner.h"
#include "common/sum/sum_run.h"

typedef struct plan_input {
    const run_context *run;
    const mesh_shape *shape;
    fsdp f;             /* only laid out */
    size_t *tied_elems; /* [n_units] elements of tied parameters' second uses */
    int *order;         /* [n_order] units but the root, in the order in which they compute */
    int n_order;
    int window;    /* how many units of `order` are gathered at a time */
    bool overlaps; /* a unit reduces while the next one computes its gradients */
    bool runs_ahead;
} plan_input;

static size_t padded_elems(const plan_input *in, int u)
{
    return in->f.units[u].layout.padded_elems;
}

static size_t shard_elems(const plan_input *in, int u)
{
    return in->f.units[u].layout.shard_elems;
}

static size_t slice_elems(const plan_input *in, int u)
{
    return in->f.units[u].slices.shard_elems;
}

/* The gradient that is being reduced while layer i computes its own, if reductions overlap: that of
 * the unit before it in backward, which stands behind it in the model. The root's comes last. */
static size_t reducing_elems(const plan_input *in, int i)
{
    const int u = in->f.layer_unit[i];
    while (in->overlaps && ++i < in->run->m->n_layers) {
        int other = in->f.layer_unit[i];
        if (other != u && other != UNIT_ROOT && !in->f.units[other].frozen)
            return padded_elems(in, other);
    }
    return 0;
}

/* A bound on what there is beside the root's gradient where the host runs ahead. A block that it
 * frees is its own again at once, but only for the same number of bytes: two for each size of a
 * unit, and the leaves of each size of a layer. */
static size_t grads_ahead_elems(const plan_input *in, bool leaves)
{
    const model *m = in->run->m;
    size_t sum = 0, depth = leaves ? (size_t)size_log2_floor(in->run->batch) : 0;
    for (int i = 0; i < in->n_order; i++) {
        int k = 0;
        while (padded_elems(in, in->order[k]) != padded_elems(in, in->order[i]))
            k++;
        sum += k == i ? 2 * padded_elems(in, in->order[i]) : 0;
    }
    for (int i = 0; i < m->n_layers; i++) {
        int k = 0;
        while (runner_layer_elems(m, &m->layers[k]) != runner_layer_elems(m, &m->layers[i]))
            k++;
        sum += k == i ? depth * runner_layer_elems(m, &m->layers[i]) : 0;
    }
    return sum;
}

/* Most unreduced gradients at one time: the root's, which lives from the head to the embedding, and
 * at each layer those of its unit and its leaves, and of the unit that is reducing. */
static size_t grads_full_elems(const plan_input *in)
{
    const model *m = in->run->m;
    size_t root = padded_elems(in, UNIT_ROOT) + in->tied_elems[UNIT_ROOT], most = 0;
    bool leaves = in->run->mode == GRAD_ACC_CANONICAL && in->run->batch > 1;
    if (in->runs_ahead)
        return root + grads_ahead_elems(in, leaves);
    for (int i = 0; i < m->n_layers; i++) {
        int u = in->f.layer_unit[i];
        size_t now = root + (u == UNIT_ROOT ? 0 : padded_elems(in, u));
        now += reducing_elems(in, i);
        if (leaves)
            now += runner_layer_elems(m, &m->layers[i]) * (size_t)size_log2_floor(in->run->batch);
        most = now > most ? now : most;
    }
    return most;
}

/* What one rank sums for unit u: its world slice, and the part of a tied parameter's second use in
 * that slice. Rank 0 has most of it, because a tied parameter comes first in its unit. */
static size_t sum_elems(const plan_input *in, int u)
{
    size_t slice = in->f.units[u].slices.shard_elems, tied = in->tied_elems[u];
    return slice + (tied < slice ? tied : slice);
}

/* Vectors that a running sum holds after n pushes: a tree holds as many as n has one bits. */
static size_t sums_after(const plan_input *in, unsigned long n)
{
    return in->run->mode == GRAD_ACC_CANONICAL ? (size_t)__builtin_popcountl(n) : n > 0;
}

/* Most sums of all units at one time of micro-step a. Units reduce one after the other, the last
 * unit first; the others hold what they held before or what they hold after. */
static size_t micro_step_elems(const plan_input *in, unsigned long a)
{
    unsigned long w = (unsigned long)in->shape->world_size, first = a * w, last = first + w;
    size_t before = sums_after(in, first), after = sums_after(in, last);
    size_t within = sum_run_peak(in->run->mode, first, in->shape->world_size), live = 0, most = 0;
    for (int u = 0; u < in->f.n_units; u++)
        live += before * sum_elems(in, u);
    for (int u = in->f.n_units - 1; u >= 0; u--) {
        live -= before * sum_elems(in, u);
        size_t now = live + within * sum_elems(in, u);
        most = now > most ? now : most;
        live += after * sum_elems(in, u);
    }
    return most;
}

/* With replicas a step ends by gathering slices into shards, unit by unit, while the units that
 * come later still hold their sums. */
static size_t gather_gradients_elems(const plan_input *in)
{
    size_t left =
        sums_after(in, (unsigned long)in->shape->world_size * (unsigned long)in->run->grad_accum);
    size_t most = 0, behind = 0, done = 0;
    for (int u = 0; u < in->f.n_units; u++)
        behind += left * sum_elems(in, u);
    for (int u = 0; u < in->f.n_units; u++) {
        behind -= left * sum_elems(in, u);
        size_t now = done + slice_elems(in, u) + shard_elems(in, u) + behind;
        most = now > most ? now : most;
        done += shard_elems(in, u);
    }
    return most;
}

/* Most reduced gradients at one time of a step: exact up to MAX_WALKED micro-steps, beyond that the
 * bound of floor(log2(W*A)) + 1 sums of everything. */
static size_t grads_shard_elems(const plan_input *in)
{
    enum { MAX_WALKED = 1024 };
    unsigned long steps = (unsigned long)in->run->grad_accum;
    size_t most = in->shape->replicate_size > 1 ? gather_gradients_elems(in) : 0;
    if (steps > MAX_WALKED && in->run->mode == GRAD_ACC_CANONICAL) {
        size_t sums = (size_t)size_log2_floor((size_t)in->shape->world_size * steps) + 1, all = 0;
        for (int u = 0; u < in->f.n_units; u++)
            all += sums * sum_elems(in, u);
        return all > most ? all : most;
    }
    for (unsigned long a = 0; a < steps && a < MAX_WALKED; a++) {
        size_t now = micro_step_elems(in, a);
        most = now > most ? now : most;
    }
    return most;
}

/* The staging for what a unit reduces at one time: the peers' slices of the unit and, next in the
 * same stream, of a tied parameter's second use (rank 0's slice of that is the longest). A sum in
 * bf16 sends a rounded copy of both. */
static size_t unit_comm_bytes(const plan_input *in, int u)
{
    const dtype sum_dtype = in->run->reduce_dtype;
    size_t staging = sum_elems(in, u) * (size_t)(in->shape->world_size - 1);
    size_t copy = sum_dtype == DTYPE_F32 ? 0 : padded_elems(in, u) + in->tied_elems[u];
    return (staging + copy) * dtype_bytes(sum_dtype);
}

/* Unit number i of a micro-step: forward in order, then backward in reverse, and then the next. */
static int unit_in_turn(const plan_input *in, int i)
{
    i %= 2 * in->n_order;
    return in->order[i < in->n_order ? i : 2 * in->n_order - 1 - i];
}

/* Gathered parameters: the units that stay after forward, and of the others the largest window. A
 * host that runs ahead gathers those that stay for the next pass before the last one is over, and
 * its window reaches from one pass into the next. */
static size_t gathered_elems(const plan_input *in)
{
    size_t staying = 0, most = 0;
    for (int u = 0; u < in->f.n_units; u++)
        if (in->f.units[u].stays_after_forward && !in->f.units[u].stays_after_backward)
            staying += padded_elems(in, u);
    const int end = in->runs_ahead ? INT_MAX : in->n_order;
    for (int i = 0; i < 2 * in->n_order; i++) {
        size_t now = 0;
        for (int k = i; k < end && k < i + in->window; k++)
            if (!in->f.units[unit_in_turn(in, k)].stays_after_forward)
                now += padded_elems(in, unit_in_turn(in, k));
        most = now > most ? now : most;
    }
    return staying * (in->runs_ahead ? 2 : 1) + most;
}

static void plan_memory(const plan_input *in, memory_plan *mem)
{
    const run_context *run = in->run;
    const size_t param_bytes = dtype_bytes(run->param_dtype);
    size_t shards = 0, rounded = 0, comm_bytes = 0;
    for (int u = 0; u < in->f.n_units; u++) {
        size_t now = unit_comm_bytes(in, u);
        bool has_copy = in->f.units[u].stays_after_backward && run->param_dtype != DTYPE_F32;
        shards += shard_elems(in, u);
        rounded += has_copy ? padded_elems(in, u) : 0;
        comm_bytes = now > comm_bytes ? now : comm_bytes;
    }
    size_t ahead = in->runs_ahead ? 2 : 1; /* micro-steps in which the host allocates at a time */
    size_t *bytes = mem->peak_bytes;
    memset(mem, 0, sizeof *mem);
    bytes[MEM_PARAMS_SHARD] = shards * sizeof(float);
    bytes[MEM_PARAMS_FULL] = (gathered_elems(in) + rounded) * param_bytes;
    bytes[MEM_GRADS_SHARD] = grads_shard_elems(in) * ahead * sizeof(float);
    bytes[MEM_GRADS_FULL] = grads_full_elems(in) * sizeof(float);
    bytes[MEM_OPTIMIZER] = run->optimizer == OPTIMIZER_ADAMW ? 2 * shards * sizeof(float) : 0;
    bytes[MEM_ACTIVATIONS] = runner_activation_bytes(run);
    bytes[MEM_COMM] = comm_bytes * ahead;
}

static void add_calls(traffic_plan *t, comm_op op, uint64_t calls, uint64_t bytes_each)
{
    t->calls[op] += calls;
    t->bytes_sent[op] += calls * bytes_each;
}

/* The norm is an all-reduce of the bins over a shard group: a reduce-scatter, then an all-gather,
 * of slices that are as equal as possible. Rank 0's is the longest. */
static void plan_norm(const plan_input *in, traffic_plan *t)
{
    uint64_t others = (uint64_t)in->shape->shard_size - 1;
    uint64_t slice = ((uint64_t)RSUM_BINS + others) / (others + 1);
    if (others > 0 || in->shape->world_size == 1) /* in a world of one the group is the world */
        add_calls(t, COMM_OP_ALL_REDUCE, 1, (RSUM_BINS - slice + others * slice) * sizeof(int64_t));
}

/* What world rank 0 sends. Slices that cannot be equal are longest there. */
static void plan_traffic(const plan_input *in, traffic_plan *t)
{
    const run_context *run = in->run;
    const uint64_t a = (uint64_t)run->grad_accum, s = (uint64_t)in->shape->shard_size;
    const uint64_t w = (uint64_t)in->shape->world_size, r = (uint64_t)in->shape->replicate_size;
    const size_t param_bytes = dtype_bytes(run->param_dtype);
    const size_t reduce_bytes = dtype_bytes(run->reduce_dtype);
    memset(t, 0, sizeof *t);
    for (int u = 0; u < in->f.n_units; u++) {
        const fsdp_unit *unit = &in->f.units[u];
        uint64_t gathers = unit->stays_after_backward ? 0 : unit->stays_after_forward ? a : 2 * a;
        add_calls(t, COMM_OP_ALL_GATHER, gathers, (s - 1) * shard_elems(in, u) * param_bytes);
        if (r > 1)
            add_calls(t, COMM_OP_ALL_GATHER, 1, (r - 1) * slice_elems(in, u) * sizeof(float));
        add_calls(t, COMM_OP_REDUCE_SCATTER, a, (w - 1) * slice_elems(in, u) * reduce_bytes);
        size_t tied = in->tied_elems[u], kept = sum_elems(in, u) - slice_elems(in, u);
        if (tied > 0)
            add_calls(t, COMM_OP_REDUCE_SCATTER, a, (tied - kept) * reduce_bytes);
    }
    plan_norm(in, t);
}

static void plan_free(plan_input *in)
{
    free(in->tied_elems);
    free(in->order);
    fsdp_free(&in->f);
}

/* How many units are gathered at a time: one, with prefetch the next one too, and where the host
 * runs ahead as many as the limiter allows. */
static int gather_window(const fsdp_engine_config *config)
{
    const prefetch_mode mode = config->prefetch.mode;
    if (mode == PREFETCH_NONE)
        return 1;
    if (config->runs_ahead)
        return config->prefetch.limit + 1;
    return mode == PREFETCH_BACKWARD_POST ? 1 : 2;
}

static fsdp_status plan_begin(const fsdp_engine_config *config, const mesh_shape *shape,
                              plan_input *in)
{
    const model *m = config->fsdp.run.m;
    *in = (plan_input){.run = &config->fsdp.run,
                       .shape = shape,
                       .window = gather_window(config),
                       .overlaps = config->prefetch.mode != PREFETCH_NONE,
                       .runs_ahead = config->runs_ahead && config->prefetch.mode != PREFETCH_NONE};
    TRY(fsdp_lay_out(&config->fsdp, shape, &in->f));
    fsdp_status status = strategy_fill(config->sharding, &in->f);
    in->tied_elems = calloc((size_t)in->f.n_units, sizeof *in->tied_elems);
    in->order = calloc((size_t)in->f.n_units, sizeof *in->order);
    if (status == FSDP_OK && (!in->tied_elems || !in->order))
        status = fsdp_error(FSDP_ENOMEM, "", "fsdp_plan: no host memory");
    if (status != FSDP_OK) {
        plan_free(in);
        return status;
    }
    for (int i = 0; i < m->n_layers; i++) {
        int u = in->f.layer_unit[i];
        if (u != UNIT_ROOT && (in->n_order == 0 || in->order[in->n_order - 1] != u))
            in->order[in->n_order++] = u;
    }
    for (int p = 0; p < m->n_params && in->run->mode == GRAD_ACC_CANONICAL; p++)
        if (m->params[p].tied_to != NOT_TIED)
            in->tied_elems[in->f.param_unit[p]] += m->params[p].elems;
    return FSDP_OK;
}

fsdp_status fsdp_plan(const fsdp_engine_config *config, const mesh_shape *shape, memory_plan *mem,
                      traffic_plan *traffic)
{
    plan_input in;
    TRY(plan_begin(config, shape, &in));
    plan_memory(&in, mem);
    plan_traffic(&in, traffic);
    plan_free(&in);
    return FSDP_OK;
}

fsdp_status fsdp_plan_export_bytes(const fsdp_engine_config *config, const mesh_shape *shape,
                                   size_t *bytes)
{
    plan_input in;
    *bytes = 0;
    TRY(plan_begin(config, shape, &in));
    for (int u = 0; u < in.f.n_units && shape->shard_size > 1; u++) {
        size_t unit_bytes = padded_elems(&in, u) * sizeof(float);
        *bytes = unit_bytes > *bytes ? unit_bytes : *bytes;
    }
    plan_free(&in);
    return FSDP_OK;
}
