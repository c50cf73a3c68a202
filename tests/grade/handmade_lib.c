/* handmade_lib.c -- see handmade_lib.h. */
#include "tests/grade/handmade_lib.h"
#include "tests/unit/target_lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void note(fixture *fx, fsdp_status check)
{
    if (check != FSDP_OK && fx->verdict == FSDP_OK) {
        fx->verdict = check;
        fx->info = *fsdp_error_get();
    }
}

fsdp_status fix_settle(fixture *fx)
{
    if (fx->verdict != FSDP_OK)
        fsdp_error_set(&fx->info);
    return comm_agree(fx->comm, fx->verdict);
}

const float *fix_read(fixture *fx, const void *array, size_t elems)
{
    if (!array)
        return NULL;
    float *copy = calloc(elems + 1, sizeof *copy);
    fx->copies = realloc(fx->copies, (fx->n_copies + 1) * sizeof *fx->copies);
    FSDP_ASSERT(copy && fx->copies);
    fx->copies[fx->n_copies++] = copy;
    note(fx, grade_read(fx->compute, array, elems * sizeof *copy, copy));
    return copy;
}

void fix_copies_free(fixture *fx)
{
    for (size_t i = 0; i < fx->n_copies; i++)
        free(fx->copies[i]);
    free(fx->copies);
    fx->copies = NULL;
    fx->n_copies = 0;
}

void expect_values(fixture *fx, const char *what, const float *got, const float *want, size_t elems)
{
    got = fix_read(fx, got, elems);
    if (!got && elems > 0)
        note(fx, fsdp_error(FSDP_EINVAL, "", "%s: no memory, expected %zu elements", what, elems));
    else
        note(fx, expect_f32(what, got, want, elems));
}

float fix_value(int p, size_t i)
{
    return 1000.0f * (float)(p + 1) + (float)i;
}

int fix_param_at(const fixture *fx, int u, size_t flat, size_t *elem)
{
    for (int p = 0; p < fx->spec->n_params; p++) {
        const fix_param *fp = &fx->spec->params[p];
        if (fp->unit == u && !fp->tied && flat >= fp->offset && flat < fp->offset + fp->elems) {
            *elem = flat - fp->offset;
            return p;
        }
    }
    return -1;
}

size_t fix_shard_begin(const fixture *fx, int u)
{
    return (size_t)fx->shard_rank * fx->f.units[u].layout.shard_elems;
}

size_t fix_slice_begin(const fixture *fx, int u)
{
    return (size_t)fx->slice * fx->f.units[u].given.place.slices.shard_elems;
}

size_t fix_used_in_slice(const fixture *fx, int u)
{
    const flat_layout *l = &fx->f.units[u].given.place.slices;
    const size_t begin = fix_slice_begin(fx, u), left = l->used_elems - begin;
    return begin >= l->used_elems ? 0 : left < l->shard_elems ? left : l->shard_elems;
}

int fix_n_buffers(const fixture *fx, int u)
{
    return fx->r.grads[u].buffer.next ? 2 : 1;
}

grad_buffer *fix_buffer(const fixture *fx, int u, int k)
{
    unit_grad *g = &fx->r.grads[u];
    return k ? g->buffer.next : &g->buffer;
}

size_t fix_buffer_begin(const fixture *fx, int u, int k)
{
    size_t begin = fix_slice_begin(fx, u), buffer_begin = fix_buffer(fx, u, k)->begin;
    return begin > buffer_begin ? begin - buffer_begin : 0;
}

size_t fix_reduced_elems(const fixture *fx, int u)
{
    size_t elems = ((size_t)fx->world_size - 1) * fx->f.units[u].given.place.slices.shard_elems;
    for (int k = 1; k < fix_n_buffers(fx, u); k++)
        elems += fix_buffer(fx, u, k)->elems - fix_buffer(fx, u, k)->acc.elems;
    return elems;
}

float fix_master(const fixture *fx, int u, size_t flat)
{
    size_t elem = 0;
    int p = fix_param_at(fx, u, flat, &elem);
    return fix_initial(NULL, p, elem);
}

float fix_initial(void *ctx, int p, size_t elem)
{
    return p < 0 ? 0.0f : fix_value(p, elem);
}

/* shard [shard_elems]: what value gives for this rank's shard of u. */
static void shard_values(const fixture *fx, int u, fix_value_of value, void *ctx, float *shard)
{
    const size_t begin = fix_shard_begin(fx, u);
    for (size_t i = 0, elem = 0; i < fx->f.units[u].layout.shard_elems; i++) {
        const int p = fix_param_at(fx, u, begin + i, &elem);
        shard[i] = value(ctx, p, elem);
    }
}

fsdp_status fix_fill_shard(fixture *fx, int u, float *array, fix_value_of value, void *ctx)
{
    static float values[MAX_SHARD_ELEMS];
    const size_t elems = fx->f.units[u].layout.shard_elems;
    FSDP_ASSERT(elems <= MAX_SHARD_ELEMS);
    shard_values(fx, u, value, ctx, values);
    return grade_write(fx->compute, array, values, elems * sizeof *values);
}

void fix_expect_shard(fixture *fx, const char *what, int u, const float *array, fix_value_of value,
                      void *ctx)
{
    const fsdp_unit *un = &fx->f.units[u];
    float want[MAX_ELEMS];
    FSDP_ASSERT(un->layout.shard_elems <= MAX_ELEMS);
    shard_values(fx, u, value, ctx, want);
    expect_values(fx, WHAT("unit %s: %s", un->name, what), array, want, un->layout.shard_elems);
}

void fix_full(const fixture *fx, int u, float added, float *full)
{
    const size_t padded = fx->f.units[u].layout.padded_elems;
    FSDP_ASSERT(padded <= MAX_ELEMS);
    for (size_t i = 0; i < padded; i++) {
        full[i] = fix_master(fx, u, i) + added;
        if (fx->f.run.param_dtype == DTYPE_BF16)
            full[i] = bf16_round(full[i]);
    }
}

fsdp_status fix_check_full(fixture *fx, const char *what, int u, float added, stream *on)
{
    const fsdp_unit *un = &fx->f.units[u];
    const size_t padded = un->layout.padded_elems;
    const bool is_bf16 = fx->f.run.param_dtype == DTYPE_BF16;
    float got[MAX_ELEMS], want[MAX_ELEMS];
    uint16_t rounded[MAX_ELEMS];
    const char *text = WHAT("%s: unit %s: full", what, un->name);
    fix_full(fx, u, added, want);
    if (!un->full)
        return fsdp_error(FSDP_EINVAL, "", "%s is NULL: the unit is not gathered", text);
    TRY(stream_sync(fx->compute));
    TRY(grade_read(on, un->full, padded * dtype_bytes(fx->f.run.param_dtype),
                   is_bf16 ? (void *)rounded : got));
    for (size_t i = 0; i < padded && is_bf16; i++)
        got[i] = f32_from_bf16(rounded[i]);
    return expect_f32(text, got, want, padded);
}

/* ---- making it ------------------------------------------------------------------------------ */
static void make_model(fixture *fx)
{
    const fix_spec *sp = fx->spec;
    model *m = &fx->m;
    m->n_params = sp->n_params;
    m->n_blocks = sp->n_units - 1;
    m->params = calloc((size_t)sp->n_params, sizeof *m->params);
    m->layers = calloc((size_t)sp->n_params, sizeof *m->layers);
    snprintf(m->config.family, sizeof m->config.family, "literal");
    for (int p = 0; p < sp->n_params; p++) {
        const fix_param *fp = &sp->params[p];
        param_spec *ps = &m->params[p];
        snprintf(ps->name, sizeof ps->name, "p%d", p);
        ps->n_dims = fp->decay ? 2 : 1;
        ps->dims[0] = fp->elems;
        ps->dims[1] = 1;
        ps->elems = ps->cut.elems = fp->elems;
        memcpy(ps->cut.dims, ps->dims, sizeof ps->dims);
        ps->decay = fp->decay;
        ps->frozen = fp->frozen;
        ps->tied_to = NOT_TIED;
        if (fp->tied)
            model_tie(m, p, fp->tied - 1);
        m->n_param_elems += fp->tied ? 0 : fp->elems;
        if (p == 0 || sp->params[p - 1].unit != fp->unit) {
            layer *added = &m->layers[m->n_layers++];
            snprintf(added->name, sizeof added->name, "layer.%d", m->n_layers - 1);
            added->block = fp->unit - 1;
            added->first_param = p;
            added->model = m;
        }
        m->layers[m->n_layers - 1].n_params++;
    }
}

static void make_layout(fixture *fx, int u)
{
    const fix_spec *sp = fx->spec;
    fsdp_unit *un = &fx->f.units[u];
    const mesh_shape *shape = &fx->f.mesh.shape;
    const int groups = mesh_row_size(shape);
    flat_layout *l = &un->given.place.slices;
    un->given.place = placement_make(&GATHER_FLAT, shape, &fx->f.run, false);
    un->given.place.replica_group = fx->f.mesh.replicate;
    *un->given.parts = u;
    un->given.n_parts = 1;
    *l = fix_layout(fx->world_size, calloc((size_t)sp->n_params, sizeof *l->slots), 0,
                    sp->used_elems[u]);
    un->given.frozen = true;
    for (int p = 0; p < sp->n_params; p++) {
        const fix_param *fp = &sp->params[p];
        if (fp->unit != u || fp->tied)
            continue;
        l->slots[l->n_slots++] = (flat_slot){.param = p, .offset = fp->offset, .elems = fp->elems};
        un->given.frozen = un->given.frozen && fp->frozen;
    }
    un->layout = *l; /* borrows the slots */
    un->layout.world_size = groups;
    un->layout.shard_elems = l->padded_elems / (size_t)groups;
}

static void bind_views(fixture *fx, int u, float *full)
{
    fx->f.units[u].full = full;
    fx->f.units[u].state = UNIT_GATHERED;
    for (int p = 0; p < fx->spec->n_params; p++)
        if (fx->spec->params[p].unit == u)
            fx->f.views.params[p] = full + fx->spec->params[p].offset;
}

/* Do by hand what task 3.5a and fsdp_make_resident would do. */
static void make_stay(fixture *fx, int u)
{
    fsdp_unit *un = &fx->f.units[u];
    const sharding_strategy sharding = fx->spec->sharding;
    if (sharding == SHARDING_GRAD_OP || sharding == SHARDING_NONE)
        un->stays_after_forward = true;
    if (sharding != SHARDING_NONE)
        return;
    un->stays_after_backward = true;
    bind_views(fx, u, un->shard); /* the master copy is the gathered array */
}

static fsdp_status make_unit(fixture *fx, int u)
{
    fsdp_unit *un = &fx->f.units[u];
    un->id = u;
    un->end_param = fx->m.n_params;
    if (u == UNIT_ROOT)
        snprintf(un->name, sizeof un->name, "root");
    else
        snprintf(un->name, sizeof un->name, "h.%d", u - 1);
    make_layout(fx, u);
    size_t elems = un->layout.shard_elems;
    TRY(device_alloc_f32(fx->compute, MEM_PARAMS_SHARD, elems, "fixture shard", &un->shard));
    TRY(fix_fill_shard(fx, u, un->shard, fix_initial, NULL));
    un->stays_after_forward = u == UNIT_ROOT; /* FULL's rule, as lab 2 leaves it */
    if (!fx->spec->by_strategy)
        make_stay(fx, u);
    TRY(event_create(fx->dev, &un->gathered));
    return event_create(fx->dev, &un->given.consumed);
}

/* W = 4, shard_size 2: ranks 0 1 2 3 are shards 0 1 0 1 and keep slices 0 2 1 3. */
static fsdp_status make_mesh(fixture *fx)
{
    const fix_spec *sp = fx->spec;
    fsdp *f = &fx->f;
    int w = fx->world_size, own = sp->sharding == SHARDING_NONE ? 1 : w;
    int groups_of = sp->shard_size ? sp->shard_size : own;
    TRY(mesh_open(fx->comm, (const int[N_AXES]){[AXIS_SHARD] = groups_of}, &f->mesh));
    fx->shard_rank = fx->rank % groups_of;
    fx->slice = fx->shard_rank * (w / groups_of) + fx->rank / groups_of;
    return FSDP_OK;
}

static fsdp_status make_fsdp(fixture *fx)
{
    const fix_spec *sp = fx->spec;
    fsdp *f = &fx->f;
    f->run = (run_context){.m = &fx->m,
                           .ops = fx->g->ops,
                           .dev = fx->dev,
                           .world = fx->comm,
                           .mode = sp->mode,
                           .batch = sp->batch ? sp->batch : 1,
                           .grad_accum = sp->no_sync,
                           .no_sync = sp->no_sync > 0};
    f->compute = fx->compute;
    TRY(make_mesh(fx));
    TRY(stream_create(fx->dev, &(stream_config){.name = "comm"}, &f->comm_stream));
    TRY(stream_create(fx->dev, &(stream_config){.name = "reduce"}, &fx->reduce));
    f->gather_stream = f->comm_stream;
    f->reduce_stream = fx->reduce;
    TRY(model_views_init(&fx->m, &f->views));
    f->n_units = sp->n_units;
    f->units = calloc((size_t)sp->n_units, sizeof *f->units);
    f->layer_unit = calloc((size_t)fx->m.n_layers, sizeof *f->layer_unit);
    f->param_unit = calloc((size_t)sp->n_params, sizeof *f->param_unit);
    for (int s = 0; s < fx->m.n_layers; s++)
        f->layer_unit[s] = sp->params[fx->m.layers[s].first_param].unit;
    for (int p = 0; p < sp->n_params; p++)
        f->param_unit[p] = sp->params[p].unit;
    for (int u = 0; u < sp->n_units; u++)
        TRY(make_unit(fx, u));
    fsdp_set_groups(f, f->mesh.shard, fx->comm);
    return FSDP_OK;
}

static fsdp_status make_all(fixture *fx)
{
    device_config dc = {
        .n_threads = 1, .debug_fill = true, .async_compute = fx->spec->async_compute};
    TRY(grade_device_open(fx->g, &dc, &fx->dev));
    fx->host = pthread_self();
    fix_waits_watch(fx);
    const comm_config cc = target_comm(8);
    TRY(comm_open(fx->dev, &cc, &fx->world));
    fx->comm = fx->world;
    if (fx->spec->group_ranks > 0) {
        int inside = fx->spec->group_ranks, outside = comm_size(fx->world) - inside;
        if (comm_rank(fx->world) < inside)
            TRY(comm_range(fx->world, 0, 1, inside, &fx->comm));
        else
            TRY(comm_range(fx->world, inside, 1, outside, &fx->comm));
    }
    fx->rank = comm_rank(fx->comm);
    fx->world_size = comm_size(fx->comm);
    fx->compute = device_compute_stream(fx->dev);
    fx->runs_ahead = fx->spec->async_compute || !device_memory_is_host(fx->dev);
    make_model(fx);
    TRY(make_fsdp(fx));
    return fx->spec->by_strategy ? reducer_create(&fx->f, fx->spec->sharding, &fx->r)
                                 : reducer_init(&fx->f, &fx->r);
}

/* ---- checking sums ------------------------------------------------------------------------- */
float fix_sum(const fixture *fx, const float *leaves, int n)
{
    float sum = leaves[0];
    if (fx->spec->mode == GRAD_ACC_CANONICAL)
        return tree_sum_f32(leaves, (size_t)n);
    for (int i = 1; i < n; i++)
        sum += leaves[i];
    return sum;
}

/* The sum that this rank must hold for buffer k of unit u: over n_leaves leaves value(leaf, k,
 * i). */
static void expect_buffer_sum(fixture *fx, int u, int k, const float *got, int n_leaves,
                              float (*value)(int leaf, int buffer, size_t i))
{
    const size_t elems = fix_buffer(fx, u, k)->acc.elems, first = fix_buffer_begin(fx, u, k);
    float want[MAX_ELEMS], leaves[MAX_ELEMS];
    FSDP_ASSERT(elems <= MAX_ELEMS && n_leaves <= MAX_ELEMS);
    for (size_t i = 0; i < elems; i++) {
        for (int n = 0; n < n_leaves; n++)
            leaves[n] = value(n, k, first + i);
        want[i] = fix_sum(fx, leaves, n_leaves);
    }
    expect_values(fx,
                  WHAT("sum over ranks, unit %d, buffer %d, slice of %zu, element", u, k,
                       fx->f.units[u].given.place.slices.shard_elems),
                  got, want, elems);
}

fsdp_status fix_expect_acc(fixture *fx, int u, int n_leaves,
                           float (*value)(int leaf, int buffer, size_t i))
{
    for (int k = 0; k < fix_n_buffers(fx, u); k++) {
        float *sum;
        TRY(grad_acc_finish(&fix_buffer(fx, u, k)->acc, fx->compute, &sum));
        TRY(stream_sync(fx->compute));
        expect_buffer_sum(fx, u, k, sum, n_leaves, value);
        device_free(fx->compute, sum);
    }
    return FSDP_OK;
}

/* ---- taking it apart ------------------------------------------------------------------------ */
static void free_hosts(fixture *fx)
{
    fix_copies_free(fx);
    for (int u = 0; u < fx->f.n_units; u++)
        free(fx->f.units[u].given.place.slices.slots);
    model_views_free(&fx->f.views);
    free(fx->f.units);
    free(fx->f.layer_unit);
    free(fx->f.param_unit);
    free(fx->m.params);
    free(fx->m.layers);
}

static fsdp_status take_apart(fixture *fx)
{
    reducer_free(&fx->r);
    TRY(stream_sync(fx->compute));
    TRY(stream_sync(fx->f.comm_stream));
    TRY(stream_sync(fx->reduce));
    for (int u = 0; u < fx->f.n_units; u++) {
        fsdp_unit *un = &fx->f.units[u];
        if (un->full != (void *)un->shard)
            device_free(fx->compute, un->full);
        device_free(fx->compute, un->shard);
        event_free(un->gathered);
        event_free(un->given.consumed);
    }
    TRY(stream_sync(fx->compute));
    return grade_no_leak(fx->dev);
}

/* All ranks return the same verdict. After a failure memory may still be live. The device then
 * stays open, because device_close asserts that it is empty; the process ends soon. */
fsdp_status fixture_run(grade *g, const fix_spec *spec, fix_body body)
{
    fixture *fx = calloc(1, sizeof *fx);
    fx->g = g;
    fx->spec = spec;
    fsdp_status st = make_all(fx);
    if (st == FSDP_OK)
        st = body(fx);
    const bool agrees = !grade_is_broken(st);
    if (fx->verdict != FSDP_OK && st != FSDP_ETODO) { /* the noted check failed first */
        st = fx->verdict;
        fsdp_error_set(&fx->info);
    }
    if (st == FSDP_OK)
        st = take_apart(fx);
    if (fx->world && agrees && !grade_is_broken(st))
        st = comm_agree(fx->world, st);
    if (st != FSDP_OK && st != FSDP_ETODO)
        return st; /* the program ends; streams and collectives may be stuck */
    fsdp_error_info keep = *fsdp_error_get();
    if (st == FSDP_ETODO && fx->f.comm_stream) { /* issued work uses these groups */
        (void)gate_open(g, "");
        (void)stream_sync(fx->f.comm_stream);
        (void)stream_sync(fx->compute);
    }
    comm_set_watch(fx->comm, NULL);
    if (st == FSDP_OK) {
        stream_free(fx->f.comm_stream);
        stream_free(fx->reduce);
        free_hosts(fx);
    }
    mesh_close(&fx->f.mesh);
    if (fx->comm != fx->world)
        comm_close(fx->comm);
    comm_close(fx->world);
    if (st == FSDP_OK) {
        device_close(fx->dev);
        free(fx);
    } else {
        fsdp_error_set(&keep);
    }
    return st;
}

/* ---- what bodies use ------------------------------------------------------------------------ */
fsdp_status fix_gather_by_hand(fixture *fx, int u)
{
    fsdp_unit *un = &fx->f.units[u];
    float *full, values[MAX_ELEMS];
    TRY(device_alloc_f32(fx->compute, MEM_PARAMS_FULL, un->layout.padded_elems, "fixture full",
                         &full));
    fix_full(fx, u, 0.0f, values);
    TRY(grade_write(fx->compute, full, values, un->layout.padded_elems * sizeof *full));
    bind_views(fx, u, full);
    return FSDP_OK;
}

fsdp_status fix_grad_by_hand(fixture *fx, int u, float (*value)(int rank, int buffer, size_t i))
{
    float host[MAX_ELEMS];
    for (int k = 0; k < fix_n_buffers(fx, u); k++) {
        grad_buffer *buf = fix_buffer(fx, u, k);
        TRY(device_alloc_f32(fx->compute, MEM_GRADS_FULL, buf->elems, "fixture full_grad",
                             &buf->full_grad));
        FSDP_ASSERT(buf->elems <= MAX_ELEMS);
        for (size_t i = 0; i < buf->elems; i++)
            host[i] = value(fx->rank, k, i);
        TRY(grade_write(fx->compute, buf->full_grad, host, buf->elems * sizeof *host));
    }
    return FSDP_OK;
}

fsdp_status fix_push(fixture *fx, int u, int n_leaves, int base,
                     float (*value)(int leaf, int buffer, size_t i))
{
    const size_t used = fx->f.units[u].given.place.slices.used_elems,
                 begin = fix_slice_begin(fx, u);
    for (int n = 0; n < n_leaves; n++)
        for (int k = 0; k < fix_n_buffers(fx, u); k++) {
            grad_buffer *buf = fix_buffer(fx, u, k);
            size_t first = fix_buffer_begin(fx, u, k), elems = buf->acc.elems;
            float *vec, host[MAX_ELEMS];
            FSDP_ASSERT(elems <= MAX_ELEMS);
            TRY(device_alloc_f32(fx->compute, MEM_OTHER, elems, "contribution", &vec));
            size_t held =
                k == 0 && begin + elems > used ? (begin < used ? used - begin : 0) : elems;
            for (size_t i = 0; i < held; i++)
                host[i] = value(base + n, k, first + i);
            TRY(grade_write(fx->compute, vec, host, held * sizeof *host));
            TRY(device_poison(fx->compute, vec + held, (elems - held) * sizeof *vec));
            TRY(grad_acc_push(&buf->acc, fx->compute, 0, vec));
            device_free(fx->compute, vec);
        }
    return FSDP_OK;
}

float fix_integer(int rank, int buffer, size_t i)
{
    return 100.0f * (float)(rank + 1) + (float)(i * (size_t)(7 * rank + 1)) +
           20000.0f * (float)buffer;
}

float fix_fraction(int rank, int buffer, size_t i)
{
    unsigned mix = (unsigned)(rank * 7919 + buffer * 15485 + (int)i * 613 + 17);
    return (float)(mix * 2654435761u >> 8) * 0x1p-24f - 0.37f;
}

flat_layout fix_layout(int world_size, const flat_slot *slots, int n_slots, size_t used)
{
    size_t w = (size_t)world_size, shard = (used + w - 1) / w;
    return (flat_layout){.world_size = world_size,
                         .n_slots = n_slots,
                         .slots = (flat_slot *)(uintptr_t)slots, /* never written */
                         .used_elems = used,
                         .shard_elems = shard,
                         .padded_elems = shard * w};
}

static uint64_t observe(void *self, const comm_record *r)
{
    fixture *fx = self;
    if (r->stream == fx->compute &&
        (r->op == COMM_OP_ALL_GATHER || r->op == COMM_OP_REDUCE_SCATTER))
        note(fx, fsdp_error(FSDP_EINVAL, "communication has streams of its own, beside compute",
                            "%s of %s: issued on stream compute, expected it on %s",
                            comm_op_name(r->op), r->label,
                            r->op == COMM_OP_REDUCE_SCATTER ? "reduce_stream"
                                                            : "gather_stream or reduce_stream"));
    if (r->group != comm_group_number(fx->comm) && !fx->in_all_groups)
        return 0;
    size_t at = strlen(fx->trace);
    snprintf(fx->trace + at, sizeof fx->trace - at, "%s %s;", comm_op_name(r->op), r->label);
    if (fx->on_issue)
        fx->on_issue(fx, r->op, r->label);
    return 0;
}

void fix_trace_start(fixture *fx)
{
    fx->trace[0] = '\0';
    comm_set_watch(fx->comm, &(comm_watch){.self = fx, .issued = observe});
}

void fix_expect_trace(fixture *fx, const char *what, const char *want)
{
    if (strcmp(fx->trace, want) != 0)
        note(fx, fsdp_error(FSDP_EINVAL, "", "%s: issued \"%s\", expected \"%s\"", what, fx->trace,
                            want));
    fx->trace[0] = '\0';
}

static uint64_t see_wait(void *self, const device_act *act)
{
    fixture *fx = self;
    if (act->kind != ACT_SYNC || !pthread_equal(pthread_self(), fx->host))
        return 0;
    fx->waits_for_events += act->stream == NULL;
    if (act->stream)
        fx->waited_for = stream_name(act->stream);
    return 0;
}

void fix_waits_watch(fixture *fx)
{
    device_set_second_watch(fx->dev, &(device_watch){.self = fx, .issued = see_wait});
}

void fix_call_starts(fixture *fx)
{
    fx->waited_for = NULL;
    fx->waits_for_events = 0;
    ledger_reset_peaks(device_ledger(fx->dev));
    fx->before = ledger_read(device_ledger(fx->dev));
    fx->calls_before = comm_job_stats_read(fx->comm);
}

bool fix_issued(fixture *fx, const char *what, int u, comm_op op, size_t want)
{
    const size_t got = comm_job_stats_read(fx->comm).calls[op] - fx->calls_before.calls[op];
    note(fx,
         EXPECT(got == want, want ? "every rank takes part, also one whose slice is padding" : "",
                "%s of %s, of which rank %d has %zu elements: issued %zu %ss, expected %zu", what,
                fx->f.units[u].name, fx->rank, fix_used_in_slice(fx, u), got, comm_op_name(op),
                want));
    return got == want;
}

void fix_expect_rise(fixture *fx, const char *what, mem_category c, size_t bytes)
{
    const size_t peak = ledger_read(device_ledger(fx->dev)).issued_peak_bytes[c];
    note(fx, expect_size(WHAT("%s: bytes of %s allocated at once", what, mem_category_name(c)),
                         peak - fx->before.issued_bytes[c], bytes));
}

void fix_expect_no_scratch(fixture *fx, const char *what)
{
    static const mem_category unneeded[] = {MEM_PARAMS_SHARD, MEM_ACTIVATIONS, MEM_OTHER};
    if (!device_runs_c(fx->dev))
        return; /* operations of other devices take scratch memory of their own */
    for (size_t i = 0; i < sizeof unneeded / sizeof *unneeded; i++)
        fix_expect_rise(fx, what, unneeded[i], 0);
}

fsdp_status fix_ran_ahead(fixture *fx, const char *what, bool may_wait, fsdp_status status)
{
    fix_expect_no_scratch(fx, what);
    const char *waited_for = fx->waited_for;
    if (!waited_for && fx->waits_for_events > 0 && !may_wait)
        waited_for = "an event";
    note(fx, EXPECT(status != FSDP_OK || !waited_for,
                    "let a stream wait for an event (stream_wait_event), not the host",
                    "%s: the host waited for %s, expected it to run ahead", what, waited_for));
    return status;
}

size_t fix_live(fixture *fx, mem_category c)
{
    note(fx, stream_sync(fx->compute));
    note(fx, stream_sync(fx->f.comm_stream));
    note(fx, stream_sync(fx->reduce));
    return ledger_read(device_ledger(fx->dev)).live_bytes[c];
}
