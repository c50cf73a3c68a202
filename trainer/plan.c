/* plan.c -- memory and traffic of FSDP by formula, before anything is allocated: provided.
 *
 * Per unit P = W*ceil(slots/W) elements. A micro-step gathers a unit twice (FULL; the root once),
 * once (GRAD_OP) or never (NONE), and reduces it once; each moves (W-1)/W*P elements from every
 * rank. [ZeRO §7] [FSDP §3.2] */
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "common/sum/grad_run.h"
#include "common/model/runner.h"
#include "lab4_optimizer/optimizer.h"

/* Sizes of one unit, found without allocating it. */
typedef struct unit_sizes {
    size_t used_elems, padded_elems, shard_elems;
    size_t tied_elems; /* of the place of its own that a tied parameter's second use has */
} unit_sizes;

typedef struct plan_input {
    const fsdp_engine_config *config;
    int world_size, n_units;
    unit_sizes *units;
    int *layer_unit;
} plan_input;

static size_t align_up(size_t n)
{
    return (n + FLAT_ALIGN_ELEMS - 1) / FLAT_ALIGN_ELEMS * FLAT_ALIGN_ELEMS;
}

static fsdp_status measure_units(plan_input *in, const module_tree *tree, const int *unit_of_node)
{
    const model *m = in->config->fsdp.m;
    for (int i = 0; i < tree->n_nodes; i++) {
        if (tree->nodes[i].layer < 0)
            continue;
        const layer *st = &m->layers[tree->nodes[i].layer];
        unit_sizes *u = &in->units[unit_of_node[i]];
        in->layer_unit[tree->nodes[i].layer] = unit_of_node[i];
        for (int p = st->first_param; p < st->first_param + st->n_params; p++) {
            if (m->params[p].tied_to == NOT_TIED)
                u->used_elems += align_up(m->params[p].elems);
            else if (in->config->mode == GRAD_ACC_CANONICAL)
                u->tied_elems += m->params[p].elems;
        }
    }
    for (int u = 0; u < in->n_units; u++) {
        shard_span span;
        TRY(shard_range(in->units[u].used_elems, in->world_size, 0, &span));
        in->units[u].shard_elems = span.shard_elems;
        in->units[u].padded_elems = span.shard_elems * (size_t)in->world_size;
    }
    return FSDP_OK;
}

static size_t layer_elems(const model *m, const layer *st)
{
    size_t n = 0;
    for (int p = st->first_param; p < st->first_param + st->n_params; p++)
        n += m->params[p].elems;
    return n;
}

/* Most unreduced gradient alive: the root's (from the head to the embedding) and, at each layer,
 * that of its unit and of its leaves. */
static size_t grads_full_elems(const plan_input *in, size_t batch)
{
    const model *m = in->config->fsdp.m;
    size_t root = in->units[UNIT_ROOT].padded_elems + in->units[UNIT_ROOT].tied_elems, most = 0;
    bool leaves = in->config->mode == GRAD_ACC_CANONICAL && batch > 1;
    for (int i = 0; i < m->n_layers; i++) {
        int u = in->layer_unit[i];
        size_t now = root + (u == UNIT_ROOT ? 0 : in->units[u].padded_elems);
        if (leaves)
            now += layer_elems(m, &m->layers[i]) * (size_t)size_log2_floor(batch);
        most = now > most ? now : most;
    }
    return most;
}

/* A unit's sums in one rank: of its shard and of the part of a tied parameter's second use that
 * falls into it. */
static size_t unit_sum_elems(const unit_sizes *unit)
{
    size_t shard = unit->shard_elems;
    return shard + (unit->tied_elems < shard ? unit->tied_elems : shard);
}

/* Vectors that a running sum holds after n pushes: in a tree as many as n has one bits. */
static size_t sums_after(const plan_input *in, unsigned long n)
{
    return in->config->mode == GRAD_ACC_CANONICAL ? (size_t)__builtin_popcountl(n) : n > 0;
}

/* Most of all units' sums alive during micro-step a: units reduce one after the other, last unit
 * first; the others hold what they held before or hold after. */
static size_t micro_step_elems(const plan_input *in, unsigned long a)
{
    unsigned long w = (unsigned long)in->world_size, first = a * w, last = first + w;
    size_t before = sums_after(in, first), after = sums_after(in, last);
    size_t within = grad_run_peak(in->config->mode, first, in->world_size), live = 0, most = 0;
    for (int u = 0; u < in->n_units; u++)
        live += before * unit_sum_elems(&in->units[u]);
    for (int u = in->n_units - 1; u >= 0; u--) {
        live -= before * unit_sum_elems(&in->units[u]);
        size_t now = live + within * unit_sum_elems(&in->units[u]);
        most = now > most ? now : most;
        live += after * unit_sum_elems(&in->units[u]);
    }
    return most;
}

/* SHARDING_NONE ends the step by gathering unit after unit, beside what the units behind it still
 * hold. */
static size_t gather_gradients_elems(const plan_input *in)
{
    size_t left =
        sums_after(in, (unsigned long)in->world_size * (unsigned long)in->config->grad_accum);
    size_t most = 0, behind = 0, done = 0;
    for (int u = 0; u < in->n_units; u++)
        behind += left * unit_sum_elems(&in->units[u]);
    for (int u = 0; u < in->n_units; u++) {
        behind -= left * unit_sum_elems(&in->units[u]);
        size_t now = done + in->units[u].shard_elems + in->units[u].padded_elems + behind;
        most = now > most ? now : most;
        done += in->units[u].padded_elems;
    }
    return most;
}

/* Most of the reduced gradient alive in a step: exact up to MAX_WALKED micro-steps, for more the
 * bound floor(log2(W*A)) + 1 sums of everything. */
static size_t grads_shard_elems(const plan_input *in, bool none)
{
    enum { MAX_WALKED = 1024 };
    unsigned long steps = (unsigned long)in->config->grad_accum;
    size_t most = none ? gather_gradients_elems(in) : 0;
    if (steps > MAX_WALKED && in->config->mode == GRAD_ACC_CANONICAL) {
        size_t sums = (size_t)size_log2_floor((size_t)in->world_size * steps) + 1, all = 0;
        for (int u = 0; u < in->n_units; u++)
            all += sums * unit_sum_elems(&in->units[u]);
        return all > most ? all : most;
    }
    for (unsigned long a = 0; a < steps && a < MAX_WALKED; a++) {
        size_t now = micro_step_elems(in, a);
        most = now > most ? now : most;
    }
    return most;
}

/* The peers' slices of what a unit reduces at one time: of the unit and, behind it in the same
 * stream, of a tied parameter's second use (rank 0's slice of that is the longest). A sum in bf16
 * sends a rounded copy of both. */
static size_t unit_comm_bytes(const plan_input *in, int u)
{
    const dtype sum_dtype = in->config->fsdp.reduce_dtype;
    size_t staging = unit_sum_elems(&in->units[u]) * (size_t)(in->world_size - 1);
    size_t copy = sum_dtype == DTYPE_F32 ? 0 : in->units[u].padded_elems + in->units[u].tied_elems;
    return (staging + copy) * dtype_bytes(sum_dtype);
}

static void plan_memory(const plan_input *in, size_t batch, size_t seq_len, memory_plan *mem)
{
    const fsdp_engine_config *c = in->config;
    bool none = c->fsdp.sharding == SHARDING_NONE;
    const size_t param_bytes = dtype_bytes(c->fsdp.param_dtype);
    size_t shards = 0, padded = 0, largest = 0, comm_bytes = 0;
    for (int u = 0; u < in->n_units; u++) {
        size_t p = in->units[u].padded_elems;
        shards += in->units[u].shard_elems;
        padded += p;
        largest = u != UNIT_ROOT && p > largest ? p : largest;
        size_t now = unit_comm_bytes(in, u);
        comm_bytes = now > comm_bytes ? now : comm_bytes;
    }
    size_t own = none ? padded : shards;
    size_t gathered =
        c->fsdp.sharding == SHARDING_GRAD_OP ? padded : in->units[UNIT_ROOT].padded_elems + largest;
    size_t *bytes = mem->peak_bytes;
    memset(mem, 0, sizeof *mem);
    bytes[MEM_PARAMS_SHARD] = own * sizeof(float);
    bytes[MEM_PARAMS_FULL] = gathered * param_bytes;
    if (none) /* the masters themselves, or a copy of them in bf16 */
        bytes[MEM_PARAMS_FULL] = c->fsdp.param_dtype == DTYPE_F32 ? 0 : padded * param_bytes;
    bytes[MEM_GRADS_SHARD] = grads_shard_elems(in, none) * sizeof(float);
    bytes[MEM_GRADS_FULL] = grads_full_elems(in, batch) * sizeof(float);
    bytes[MEM_OPTIMIZER] = c->optimizer == OPTIMIZER_ADAMW ? 2 * own * sizeof(float) : 0;
    bytes[MEM_ACTIVATIONS] =
        runner_activation_bytes(c->fsdp.m, batch, seq_len, c->mode, c->fsdp.param_dtype);
    bytes[MEM_COMM] = comm_bytes;
}

/* What rank 0 sends; slices that cannot be equal are longest there. */
static void plan_traffic(const plan_input *in, traffic_plan *t)
{
    const fsdp_engine_config *c = in->config;
    uint64_t a = (uint64_t)c->grad_accum, others = (uint64_t)in->world_size - 1;
    const dtype sum_dtype = c->fsdp.reduce_dtype;
    const dtype gathered = c->fsdp.sharding == SHARDING_NONE ? DTYPE_F32 : c->fsdp.param_dtype;
    memset(t, 0, sizeof *t);
    for (int u = 0; u < in->n_units; u++) {
        uint64_t moved = others * in->units[u].shard_elems; /* elements */
        uint64_t gathers = c->fsdp.sharding == SHARDING_FULL && u != UNIT_ROOT ? 2 * a : a;
        gathers = c->fsdp.sharding == SHARDING_NONE ? 1 : gathers; /* of gradients, once a step */
        t->calls[COMM_OP_ALL_GATHER] += gathers;
        t->bytes_sent[COMM_OP_ALL_GATHER] += gathers * moved * dtype_bytes(gathered);
        t->calls[COMM_OP_REDUCE_SCATTER] += a;
        t->bytes_sent[COMM_OP_REDUCE_SCATTER] += a * moved * dtype_bytes(sum_dtype);
        size_t tied = in->units[u].tied_elems, shard = in->units[u].shard_elems;
        if (tied >
            0) { /* the tied parameter stands first in its unit: rank 0 keeps min(tied, shard) */
            t->calls[COMM_OP_REDUCE_SCATTER] += a;
            t->bytes_sent[COMM_OP_REDUCE_SCATTER] +=
                a * (tied - (tied < shard ? tied : shard)) * dtype_bytes(sum_dtype);
        }
    }
    if (c->fsdp.sharding == SHARDING_NONE)
        return;
    /* The norm: a reduce-scatter, then an all-gather, of slices as equal as can be; rank 0's is the
     * longest. */
    uint64_t slice = ((uint64_t)RSUM_BINS + others) / (uint64_t)in->world_size;
    t->calls[COMM_OP_ALL_REDUCE] = 1;
    t->bytes_sent[COMM_OP_ALL_REDUCE] = (RSUM_BINS - slice + others * slice) * sizeof(int64_t);
}

fsdp_status fsdp_plan(const fsdp_engine_config *config, int world_size, size_t batch,
                      size_t seq_len, memory_plan *mem, traffic_plan *traffic)
{
    const model *m = config->fsdp.m;
    plan_input in = {.config = config, .world_size = world_size};
    module_tree tree = {0};
    TRY(module_tree_build(m, &tree));
    int *unit_of_node = calloc((size_t)tree.n_nodes, sizeof *unit_of_node);
    in.units = calloc((size_t)tree.n_nodes, sizeof *in.units);
    in.layer_unit = calloc((size_t)m->n_layers, sizeof *in.layer_unit);
    fsdp_status status = unit_of_node && in.units && in.layer_unit
                             ? wrap_assign(&tree, config->fsdp.wrap, config->fsdp.wrap_min_elems,
                                           unit_of_node, &in.n_units)
                             : fsdp_error(FSDP_ENOMEM, "", "fsdp_plan: no host memory");
    if (status == FSDP_OK)
        status = measure_units(&in, &tree, unit_of_node);
    if (status == FSDP_OK) {
        plan_memory(&in, batch, seq_len, mem);
        plan_traffic(&in, traffic);
    }
    free(in.units);
    free(in.layer_unit);
    free(unit_of_node);
    module_tree_free(&tree);
    return status;
}
