/* fsdp_setup.c -- provided, no task: builds an fsdp object; resident units.
 *
 *   fsdp_lay_out  wrap the model and lay out each unit (host only)
 *   fsdp_create   the same, then allocate the shards and fill them */
#include <stdlib.h>
#include "common/comm/comm.h"
#include "lab1_flatparam/dim0.h"
#include "lab2_forward/freeze.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab2_forward/reshard_to.h"

const gather_way GATHER_FLAT = {
    .begin = gather_flat, .wait = gather_wait, .drop = unit_drop, .make = shard_alloc};

unit_hooks fsdp_forward_hooks(fsdp *f)
{
    return (unit_hooks){
        .self = f, .pre_forward = forward_pre_hook, .post_forward = forward_post_hook};
}

static fsdp_status out_of_host_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "fsdp_create: no host memory");
}

/* Name each unit after its only layer, its block or, if merged, the blocks it spans. A unit without
 * layers gets no name here. */
static void name_units(fsdp *f)
{
    const layer *layers = f->run.m->layers;
    snprintf(f->units[UNIT_ROOT].name, UNIT_NAME_BYTES, "root");
    for (int u = UNIT_ROOT + 1; u < f->n_units; u++) {
        char *name = f->units[u].name;
        const int first = f->units[u].given.first_layer, last = f->units[u].given.end_layer - 1;
        if (first <= last && layers[first].block != layers[last].block)
            snprintf(name, UNIT_NAME_BYTES, "h.%d-h.%d", layers[first].block, layers[last].block);
        else if (first < last)
            snprintf(name, UNIT_NAME_BYTES, "h.%d", layers[first].block);
        else if (first == last)
            snprintf(name, UNIT_NAME_BYTES, "%s", layers[first].name);
    }
}

/* Let config->merge merge units. Afterwards unit_of_node and *n_units describe the buckets. */
static fsdp_status merge_units(const fsdp_config *config, const module_tree *tree,
                               int *unit_of_node, int *n_units)
{
    if (!config->merge)
        return FSDP_OK;
    int *bucket_of = calloc((size_t)*n_units, sizeof *bucket_of);
    size_t *elems = calloc((size_t)*n_units, sizeof *elems);
    fsdp_status status = bucket_of && elems ? FSDP_OK : out_of_host_memory();
    for (int i = 0; status == FSDP_OK && i < tree->n_nodes; i++)
        elems[unit_of_node[i]] += tree->nodes[i].own_elems;
    if (status == FSDP_OK)
        status = config->merge(config->merge_max_elems, elems, *n_units, bucket_of, n_units);
    for (int i = 0; status == FSDP_OK && i < tree->n_nodes; i++)
        unit_of_node[i] = bucket_of[unit_of_node[i]];
    free(bucket_of);
    free(elems);
    return status;
}

/* Make the units, and the maps from layers and parameters to units. */
static fsdp_status wrap_model(fsdp *f, const fsdp_config *config)
{
    const model *m = f->run.m;
    module_tree tree = {0};
    TRY(module_tree_build(m, &tree));
    int *unit_of_node = calloc((size_t)tree.n_nodes, sizeof *unit_of_node);
    f->layer_unit = calloc((size_t)m->n_layers, sizeof *f->layer_unit);
    f->param_unit = calloc((size_t)m->n_params, sizeof *f->param_unit);
    const bool has_memory = unit_of_node && f->layer_unit && f->param_unit;
    fsdp_status status = has_memory ? FSDP_OK : out_of_host_memory();
    if (status == FSDP_OK)
        status =
            wrap_assign(&tree, config->wrap, config->wrap_min_elems, unit_of_node, &f->n_units);
    if (status == FSDP_OK)
        status = merge_units(config, &tree, unit_of_node, &f->n_units);
    if (status == FSDP_OK && !(f->units = calloc((size_t)f->n_units, sizeof *f->units)))
        status = out_of_host_memory();
    f->n_units = f->units ? f->n_units : 0;
    for (int i = 0; status == FSDP_OK && i < tree.n_nodes; i++) {
        int u = unit_of_node[i];
        f->units[u].id = u;
        if (tree.nodes[i].layer < 0)
            continue;
        const layer *l = &m->layers[tree.nodes[i].layer];
        fsdp_unit *unit = &f->units[u];
        if (unit->given.end_layer == 0) {
            unit->given.first_layer = tree.nodes[i].layer;
            unit->first_param = l->first_param;
        }
        unit->given.end_layer = tree.nodes[i].layer + 1;
        unit->end_param = l->first_param + l->n_params;
        f->layer_unit[tree.nodes[i].layer] = u;
        for (int p = l->first_param; p < l->first_param + l->n_params; p++)
            f->param_unit[p] = u;
    }
    if (status == FSDP_OK)
        name_units(f);
    free(unit_of_node);
    module_tree_free(&tree);
    return status;
}

/* Lay out u: a slot for each of its parameters, in global order. A second use has no slot. */
static fsdp_status lay_out_unit(fsdp *f, fsdp_unit *u, const fsdp_config *config)
{
    const flat_align align = {FLAT_ALIGN_ELEMS, FLAT_ALIGN_ELEMS};
    const mesh_shape *shape = &f->mesh.shape;
    const model *m = f->run.m;
    const int first = u->first_param, end = u->end_param;
    int *params = calloc((size_t)(end - first) + 1, sizeof *params), n = 0;
    size_t *elems = calloc((size_t)(end - first) + 1, sizeof *elems);
    fsdp_status status = params && elems ? FSDP_OK : out_of_host_memory();
    placement *place = &u->given.place;
    *place = placement_make(&GATHER_FLAT, shape, &f->run, config->replicas_last);
    u->given.frozen = true;
    for (int p = first; status == FSDP_OK && p < end; p++) {
        if (f->param_unit[p] != u->id || m->params[p].tied_to != NOT_TIED)
            continue;
        params[n] = p;
        elems[n++] = m->params[p].elems;
        u->given.frozen = u->given.frozen && m->params[p].frozen;
    }
    if (status == FSDP_OK)
        status = flat_layout_build(n, params, elems, align, mesh_leaf_size(shape), &place->slices);
    if (status == FSDP_OK && config->per_param)
        status = dim0_layout(&place->slices, m->params, place->n_shards, align);
    if (place->slices.row_ranks > 0)
        place->way = GATHER_ROWS;
    if (status == FSDP_OK)
        u->layout = flat_layout_cut(&place->slices, place->n_shards);
    free(params);
    free(elems);
    return status;
}

typedef struct fill_args {
    const flat_layout *layout;
    const model *m;
    uint64_t seed;
    int rank;
} fill_args;

static fsdp_status initial_values(const void *args, void *out)
{
    const fill_args *a = args;
    return flat_init_shard(a->layout, a->m, a->seed, a->rank, out);
}

static fsdp_status allocate_unit(fsdp *f, fsdp_unit *u)
{
    const size_t elems = u->layout.shard_elems;
    fill_args a = {&u->layout, f->run.m, f->run.seed, u->given.place.shard};
    TRY(event_create(f->run.dev, &u->gathered));
    TRY(event_create(f->run.dev, &u->given.consumed));
    TRY(u->given.place.way.make(f, u));
    return device_make(f->compute, &(device_made){"initial values", initial_values, &a, sizeof a},
                       u->shard, elems * sizeof *u->shard);
}

static fsdp_status create_unit(fsdp *f, fsdp_unit *u)
{
    device_set_scope(f->run.dev, u->name, NULL);
    fsdp_status status = allocate_unit(f, u);
    device_set_scope(f->run.dev, NULL, NULL);
    return status;
}

fsdp_status fsdp_lay_out(const fsdp_config *config, const mesh_shape *shape, fsdp *f)
{
    *f = (fsdp){.run = config->run, .mesh.shape = *shape};
    fsdp_status status;
    GOTO_ON_FAIL(status, wrap_model(f, config), fail);
    GOTO_ON_FAIL(status, freeze_split(f), fail);
    for (int u = 0; u < f->n_units; u++) {
        GOTO_ON_FAIL(status, lay_out_unit(f, &f->units[u], config), fail);
        f->units[u].stays_after_forward = u == UNIT_ROOT;
    }
    return FSDP_OK;
fail:
    fsdp_free(f);
    return status;
}

fsdp_status fsdp_create(const fsdp_config *config, fsdp *f)
{
    fsdp_status status;
    TRY(fsdp_lay_out(config, &config->mesh->shape, f));
    f->mesh = *config->mesh;
    f->compute = device_compute_stream(config->run.dev);
    fsdp_set_groups(f, f->mesh.shard, config->replicas_last ? f->mesh.shard : f->mesh.dp_cp);
    for (int u = 0; u < f->n_units; u++) {
        f->units[u].given.place.replica_group = f->mesh.replicate;
        f->units[u].given.place.near_group = config->near_group;
    }
    f->given.keeps_for_step = config->keeps_for_step;
    f->given.replica_slices =
        calloc((size_t)f->mesh.shape.size[AXIS_REPLICATE], sizeof *f->given.replica_slices);
    if (!f->given.replica_slices)
        GOTO_ON_FAIL(status, out_of_host_memory(), fail);
    GOTO_ON_FAIL(status, model_views_init(config->run.m, &f->views), fail);
    GOTO_ON_FAIL(status, comm_stream_create(config->run.dev, "comm", &f->comm_stream), fail);
    f->gather_stream = f->reduce_stream = f->comm_stream;
    GOTO_ON_FAIL(status, offload_create(config->run.dev, &config->offload, &f->given.offload),
                 fail);
    for (int u = 0; u < f->n_units; u++)
        GOTO_ON_FAIL(status, create_unit(f, &f->units[u]), fail);
    if (shard_is_on_host(f))
        GOTO_ON_FAIL(
            status,
            offload_open_ring(f->given.offload, fsdp_most_shard_elems(f), OFFLOAD_MOST_ARRAYS),
            fail);
    GOTO_ON_FAIL(status, stream_sync(f->compute), fail); /* other streams read the shards */
    return FSDP_OK;
fail:
    fsdp_free(f);
    return status;
}

size_t fsdp_most_shard_elems(const fsdp *f)
{
    size_t n = 1;
    for (int u = 0; u < f->n_units; u++)
        n = f->units[u].layout.shard_elems > n ? f->units[u].layout.shard_elems : n;
    return n;
}

void fsdp_free(fsdp *f)
{
    stream_free(f->comm_stream); /* waits for work in flight */
    near_drop(f);
    offload_free(f->given.offload);
    for (int u = 0; u < f->n_units; u++) {
        fsdp_unit *unit = &f->units[u];
        if (unit->full != (void *)unit->shard)
            device_free(f->compute, unit->full);
        device_free(f->compute, unit->shard);
        event_free(unit->gathered);
        event_free(unit->given.consumed);
        placement_free(&unit->given.place); /* layout borrows its slots */
    }
    free(f->units);
    free(f->layer_unit);
    free(f->param_unit);
    free(f->given.replica_slices);
    model_views_free(&f->views);
    *f = (fsdp){0};
}

/* ---- units that stay ------------------------------------------------------------------------- */

/* A resident unit computes with the masters themselves or, in bf16, with a copy of them. */
static fsdp_status refresh_unit(fsdp *f, const fsdp_unit *u)
{
    if (!u->stays_after_backward || u->full == (void *)u->shard)
        return FSDP_OK;
    return f->run.ops->cast(f->compute, &(cast_args){.out = u->full,
                                                     .in = u->shard,
                                                     .out_type = f->run.param_dtype,
                                                     .in_type = DTYPE_F32,
                                                     .elems = u->layout.padded_elems});
}

fsdp_status fsdp_make_resident(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    if (unit->state != UNIT_SHARDED)
        return fsdp_error(FSDP_ESTATE, "reshard it first",
                          "unit %d (%s) cannot stay gathered: it is there already", u, unit->name);
    if (unit->layout.shard_elems != unit->layout.padded_elems)
        return fsdp_error(FSDP_ESTATE,
                          "only a unit of a shard group of one may stay after backward",
                          "unit %d (%s) cannot stay gathered: its shard is %zu of %zu elements", u,
                          unit->name, unit->layout.shard_elems, unit->layout.padded_elems);
    unit->full = unit->shard;
    if (f->run.param_dtype != DTYPE_F32)
        TRY(device_alloc(f->compute, MEM_PARAMS_FULL,
                         unit->layout.padded_elems * dtype_bytes(f->run.param_dtype),
                         "parameters in bf16", &unit->full));
    unit->stays_after_backward = true;
    unit->state = UNIT_GATHERED;
    TRY(views_bind(f, u));
    return refresh_unit(f, unit);
}

fsdp_status fsdp_refresh(fsdp *f)
{
    for (int u = 0; u < f->n_units; u++)
        TRY(refresh_unit(f, &f->units[u]));
    return FSDP_OK;
}
