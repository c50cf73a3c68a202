/* literal_lib.c -- see literal_lib.h. */
#include "tests/grade/literal_lib.h"
#include <stdlib.h>
#include <string.h>

enum { SLOT_ALIGN_ELEMS = 4, MOST_TIED = 3 };

/* ---- the model ----------------------------------------------------------------------------- */
static void add_param(model *m, size_t elems)
{
    param_spec *p = &m->params[m->n_params];
    snprintf(p->name, sizeof p->name, "literal.%d", m->n_params);
    p->n_dims = 1;
    p->dims[0] = p->elems = elems;
    p->init = INIT_ONE;
    p->tied_to = NOT_TIED;
    m->n_params++;
    m->n_param_elems += elems;
}

/* One layer per unit; room for tied parameters behind the others (literal_tie). */
static fsdp_status make_model(int n_units, const size_t (*elems)[2], model **out)
{
    model *m = calloc(1, sizeof *m);
    FSDP_ASSERT(m != NULL);
    m->layers = calloc((size_t)n_units, sizeof *m->layers);
    m->params = calloc(2 * (size_t)n_units + MOST_TIED, sizeof *m->params);
    FSDP_ASSERT(m->layers != NULL && m->params != NULL);
    m->n_layers = n_units;
    m->n_blocks = n_units - 1;
    for (int u = 0; u < n_units; u++) {
        layer *added = &m->layers[u];
        snprintf(added->name, sizeof added->name, u ? "h.%d" : "root", u - 1);
        added->block = u - 1;
        added->model = m;
        added->first_param = m->n_params;
        for (int k = 0; k < 2; k++)
            if (elems[u][k])
                add_param(m, elems[u][k]);
        added->n_params = m->n_params - added->first_param;
    }
    *out = m;
    return FSDP_OK;
}

/* ---- one unit ------------------------------------------------------------------------------ */
/* The array cut for the world: fsdp_unit.slices. */
static void make_layout(flat_layout *l, const size_t *elems, int first_param, int world_size)
{
    l->world_size = world_size;
    l->n_slots = (elems[0] != 0) + (elems[1] != 0);
    l->slots = calloc(2, sizeof *l->slots);
    FSDP_ASSERT(l->slots != NULL);
    size_t end = 0;
    for (int k = 0; k < l->n_slots; k++) {
        size_t begin = (end + SLOT_ALIGN_ELEMS - 1) / SLOT_ALIGN_ELEMS * SLOT_ALIGN_ELEMS;
        l->slots[k] = (flat_slot){.param = first_param + k, .offset = begin, .elems = elems[k]};
        end = begin + elems[k];
    }
    size_t w = (size_t)world_size;
    l->used_elems = end;
    l->shard_elems = (end + w - 1) / w;
    l->padded_elems = w * l->shard_elems;
}

float literal_value(const struct fsdp *f, int u, size_t j)
{
    const flat_layout *l = &f->units[u].layout;
    for (int k = 0; k < l->n_slots; k++)
        if (j >= l->slots[k].offset && j < l->slots[k].offset + l->slots[k].elems)
            return (float)(1000 * (size_t)(u + 1) + j + 1);
    return 0.0f;
}

static fsdp_status make_unit(grade *g, fsdp *f, int u, const size_t *elems)
{
    fsdp_unit *unit = &f->units[u];
    const layer *only = &f->run.m->layers[u]; /* one layer per unit */
    unit->id = u;
    memcpy(unit->name, only->name, sizeof unit->name);
    make_layout(&unit->slices, elems, only->first_param, g->world_size);
    unit->layout = unit->slices; /* borrows the slots */
    unit->layout.world_size = f->mesh.shape.shard_size;
    unit->layout.shard_elems = unit->slices.padded_elems / (size_t)f->mesh.shape.shard_size;
    unit->stays_after_forward = u == UNIT_ROOT; /* FULL's rule */
    size_t n = unit->layout.shard_elems;
    TRY(event_create(g->dev, &unit->gathered));
    TRY(event_create(g->dev, &unit->consumed));
    TRY(device_alloc_f32(g->compute, MEM_PARAMS_SHARD, n, "literal shard", &unit->shard));
    float *values = calloc(n + 1, sizeof *values);
    FSDP_ASSERT(values != NULL);
    for (size_t i = 0; i < n; i++)
        values[i] = literal_value(f, u, (size_t)f->mesh.shape.shard_rank * n + i);
    fsdp_status status = grade_write(g->compute, unit->shard, values, n * sizeof *values);
    if (status == FSDP_OK)
        status = stream_sync(g->compute);
    free(values);
    return status;
}

/* ---- the whole ----------------------------------------------------------------------------- */
static fsdp_status make_units(grade *g, int n_units, const size_t (*elems)[2], fsdp *f)
{
    const model *m = f->run.m;
    f->units = calloc((size_t)n_units, sizeof *f->units);
    f->layer_unit = calloc((size_t)n_units, sizeof *f->layer_unit);
    f->param_unit = calloc((size_t)m->n_params + MOST_TIED, sizeof *f->param_unit);
    FSDP_ASSERT(f->units != NULL && f->layer_unit != NULL && f->param_unit != NULL);
    f->n_units = n_units;
    for (int u = 0; u < n_units; u++) {
        TRY(make_unit(g, f, u, elems[u]));
        f->layer_unit[u] = u;
        for (int k = 0; k < m->layers[u].n_params; k++)
            f->param_unit[m->layers[u].first_param + k] = u;
    }
    return FSDP_OK;
}

static mesh literal_mesh(const grade *g, bool whole)
{
    int w = g->world_size, r = g->rank;
    mesh out = {.shape = {.world_size = w, .world_rank = r}, .world = g->comm};
    out.shape.shard_size = whole ? 1 : w;
    out.shape.shard_rank = whole ? 0 : r;
    out.shape.replicate_size = whole ? w : 1;
    out.shape.replica = whole ? r : 0;
    out.shard = !whole || w == 1 ? g->comm : NULL;
    out.replicate = whole && w > 1 ? g->comm : NULL;
    return out;
}

static fsdp_status make_literal(grade *g, int n_units, const size_t (*elems)[2], bool whole,
                                fsdp *f)
{
    *f = (fsdp){.run = {.ops = g->ops, .dev = g->dev, .world = g->comm, .batch = 1, .seed = 1},
                .mesh = literal_mesh(g, whole),
                .compute = g->compute,
                .reduce_group = g->comm};
    f->gather_group = f->mesh.shard;
    model *m;
    TRY(make_model(n_units, elems, &m));
    f->run.m = m;
    m->n_params += MOST_TIED; /* views with room for literal_tie */
    fsdp_status status = model_views_init(m, &f->views);
    m->n_params -= MOST_TIED;
    if (status == FSDP_OK)
        status = stream_create(g->dev, &(stream_config){.name = "comm"}, &f->comm_stream);
    f->gather_stream = f->reduce_stream = f->comm_stream;
    if (status == FSDP_OK)
        status = make_units(g, n_units, elems, f);
    if (status != FSDP_OK)
        literal_fsdp_free(f);
    return status;
}

fsdp_status literal_fsdp(grade *g, int n_units, const size_t (*elems)[2], struct fsdp *out)
{
    return make_literal(g, n_units, elems, false, out);
}

fsdp_status literal_fsdp_whole(grade *g, int n_units, const size_t (*elems)[2], struct fsdp *out)
{
    return make_literal(g, n_units, elems, true, out);
}

void literal_fsdp_free(struct fsdp *f)
{
    if (!f->run.m)
        return;
    (void)stream_sync(f->compute);
    if (f->comm_stream)
        (void)stream_sync(f->comm_stream);
    for (int u = 0; f->units && u < f->n_units; u++) {
        fsdp_unit *unit = &f->units[u];
        if (unit->full != (void *)unit->shard) /* resident */
            device_free(f->compute, unit->full);
        device_free(f->compute, unit->shard);
        event_free(unit->gathered);
        event_free(unit->consumed);
        free(unit->slices.slots);
    }
    (void)stream_sync(f->compute);
    stream_free(f->comm_stream);
    model_views_free(&f->views);
    model *m = literal_model(f);
    free(m->layers);
    free(m->params);
    free(m);
    free(f->units);
    free(f->layer_unit);
    free(f->param_unit);
    *f = (fsdp){0};
}

struct model *literal_model(struct fsdp *f)
{
    return (model *)f->run.m; /* allocated by make_model */
}

int literal_tie(struct fsdp *f, int param)
{
    model *m = literal_model(f);
    int tied = m->n_params++;
    m->params[tied] = m->params[param];
    snprintf(m->params[tied].name, sizeof m->params[tied].name, "literal.tied");
    m->params[tied].tied_to = param;
    f->param_unit[tied] = f->param_unit[param];
    return tied;
}

static flat_slot *slot_of(const fsdp *f, int param)
{
    const flat_layout *l = &f->units[f->param_unit[param]].layout;
    for (int i = 0; i < l->n_slots; i++)
        if (l->slots[i].param == param)
            return &l->slots[i];
    return NULL;
}

void literal_swap(struct fsdp *f, int p, int q)
{
    model *m = literal_model(f);
    const param_spec spec = m->params[p];
    const int unit = f->param_unit[p];
    flat_slot *slot_p = slot_of(f, p), *slot_q = slot_of(f, q);
    FSDP_ASSERT(slot_p != NULL && slot_q != NULL && unit != f->param_unit[q]);
    slot_p->param = q;
    slot_q->param = p;
    m->params[p] = m->params[q];
    m->params[q] = spec;
    f->param_unit[p] = f->param_unit[q];
    f->param_unit[q] = unit;
}
