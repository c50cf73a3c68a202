/* baseline.c -- see baseline.h.
 *
 * One array holds all parameters, each at a multiple of ALIGN_ELEMS: the trained parameters, then
 * the frozen ones. The arrays of gradients and optimizer states have the same layout, without the
 * frozen parameters. The gradient array is padded to a multiple of W * ALIGN_ELEMS: 64 elements and
 * W = 3 give slices of 32, the last one all padding. In canonical mode the gradient of a tied
 * parameter's second use has its own place after the others; it is added last, as in FSDP. */
#include "common/steps/baseline.h"
#include <stdlib.h>
#include <string.h>
#include "common/base/dtype.h"
#include "common/checkpoint/ckpt_source.h"
#include "common/model/init.h"

/* 64 bytes of bf16 or 128 of fp32, so every parameter and every slice starts on 64 bytes. */
enum { ALIGN_ELEMS = 32, LOADED_ELEMS = 1 << 20 };

typedef struct baseline {
    run_context run;
    stream *s;           /* compute */
    stream *comm_stream; /* owned; where collectives run */
    event *done;         /* orders the two streams: see follow */
    model_views views;
    int *layer_unit;     /* all zero: one unit */
    size_t *offset;      /* [n_params] in params; a tied parameter has the offset of its storage */
    size_t *grad_offset; /* [n_params] in grads */
    decay_range *ranges; /* [n_ranges] the parameters that are updated */
    int n_ranges;
    size_t param_elems;  /* length of params */
    size_t own_elems;    /* length of the trained part of params, and of each state */
    size_t padded_elems; /* length of grads, with second uses and padding */
    float *params, *state[OPTIM_MAX_STATES];
    void *rounded;  /* bf16 copy of params, updated when they change; NULL in fp32 */
    float *grads;   /* a micro-step's, later the mean; NULL after acc or local took them */
    grad_acc local; /* no_sync: gradients of this rank's earlier micro-steps */
    bool defers;    /* no_sync: this micro-step is not the last one */
    grad_acc acc;   /* sums of this rank's slice */
    rsum *norm_sum;
    float *norm, *coef;
} baseline;

/* Set the offsets of all parameters and gradients, the ranges, and the lengths of the arrays. */
static fsdp_status lay_out(baseline *b)
{
    const model *m = b->run.m;
    const int n = m->n_params;
    for (int i = 0; i < 2 * n; i++) { /* trained parameters, then frozen ones */
        const int p = i % n;
        bool tied = m->params[p].tied_to != NOT_TIED;
        if (m->params[p].frozen != (i >= n))
            continue;
        if (!tied && i < n)
            b->ranges[b->n_ranges++] =
                (decay_range){b->param_elems, m->params[p].elems, m->params[p].decay};
        b->offset[p] = tied ? b->offset[m->params[p].tied_to] : b->param_elems;
        b->grad_offset[p] = b->offset[p];
        b->param_elems += tied ? 0 : m->params[p].elems;
        TRY(size_align_up(b->param_elems, ALIGN_ELEMS, "parameters", &b->param_elems));
        b->own_elems = i < n ? b->param_elems : b->own_elems;
    }
    size_t next = b->own_elems;
    for (int p = 0; p < m->n_params && b->run.mode == GRAD_ACC_CANONICAL; p++)
        if (m->params[p].tied_to != NOT_TIED && !m->params[p].frozen) {
            b->grad_offset[p] = next;
            TRY(size_align_up(next + m->params[p].elems, ALIGN_ELEMS, "gradients", &next));
        }
    return size_align_up(next, (size_t)comm_size(b->run.world) * ALIGN_ELEMS, "gradients",
                         &b->padded_elems);
}

/* ---- hooks: one unit, always resident -------------------------------------------------------- */

/* Allocates the gradients of a micro-step, and zeroes the gaps between and after the parameters.
 * Nothing else writes to the gaps. */
static fsdp_status grads_alloc(baseline *b)
{
    const model *m = b->run.m;
    TRY(comm_alloc_f32(b->run.world, b->s, MEM_GRADS_FULL, b->padded_elems, "gradients",
                       &b->grads));
    size_t next = 0;
    for (int p = 0; p < m->n_params; p++) {
        size_t at = b->grad_offset[p];
        if (m->params[p].frozen || at < next)
            continue; /* no gradient, or in the memory of the parameter it is tied to */
        TRY(device_zero(b->s, b->grads + next, (at - next) * sizeof(float)));
        next = at + m->params[p].elems;
    }
    return device_zero(b->s, b->grads + next, (b->padded_elems - next) * sizeof(float));
}

static fsdp_status begin_micro(void *self, int a, int n_micro, bool training)
{
    baseline *b = self;
    b->defers = training && b->run.no_sync && a + 1 < n_micro;
    return FSDP_OK;
}

static fsdp_status pre_backward(void *self, int u)
{
    (void)u;
    baseline *b = self;
    if (b->grads == NULL)
        TRY(grads_alloc(b));
    for (int p = 0; p < b->run.m->n_params; p++)
        b->views.grads[p] = b->run.m->params[p].frozen ? NULL : b->grads + b->grad_offset[p];
    return FSDP_OK;
}

/* Make stream s wait for all work issued on `first` so far. */
static fsdp_status follow(const baseline *b, stream *s, stream *first)
{
    TRY(event_record(b->done, first));
    return stream_wait_event(s, b->done);
}

/* With one rank, give the gradients to acc. With several ranks, reduce-scatter them into acc; with
 * no_sync, only in the last micro-step, and give them to local before that. */
static fsdp_status post_backward(void *self, int u)
{
    (void)u;
    baseline *b = self;
    if (comm_size(b->run.world) == 1)
        return grad_acc_give(&b->acc, b->s, run_batch_level(&b->run), &b->grads);
    if (b->defers)
        return grad_acc_give(&b->local, b->s, run_batch_level(&b->run), &b->grads);
    TRY(grad_acc_finish_into(&b->local, b->s, b->grads));
    TRY(follow(b, b->comm_stream, b->s));
    TRY(comm_reduce_scatter(b->run.world, b->comm_stream, "ddp", b->grads, b->acc.elems, &b->acc,
                            run_reduce_level(&b->run)));
    return follow(b, b->s, b->comm_stream);
}

/* ---- the step -------------------------------------------------------------------------------- */

/* b->grads = the gradients summed over micro-steps and ranks, all-gathered from the slices. */
static fsdp_status collect_gradients(baseline *b)
{
    float *slice;
    TRY(grad_acc_finish(&b->acc, b->s, &slice));
    if (comm_size(b->run.world) == 1) {
        device_free(b->s, b->grads);
        b->grads = slice;
        return FSDP_OK;
    }
    float *mine = b->grads + (size_t)comm_rank(b->run.world) * b->acc.elems;
    fsdp_status status = device_copy(b->s, mine, slice, b->acc.elems * sizeof *mine);
    device_free(b->s, slice);
    TRY(status);
    TRY(follow(b, b->comm_stream, b->s));
    TRY(comm_all_gather(b->run.world, b->comm_stream, "ddp", DTYPE_F32, mine, b->grads,
                        b->acc.elems));
    return follow(b, b->s, b->comm_stream);
}

/* b->grads = the mean gradients, on every rank: collect them, add second uses, and scale once. */
static fsdp_status finish_gradients(baseline *b, float scale)
{
    const model *m = b->run.m;
    const ops *o = b->run.ops;
    TRY(collect_gradients(b));
    for (int p = 0; p < m->n_params; p++) {
        if (b->grad_offset[p] == b->offset[p])
            continue;
        float *first = b->grads + b->offset[p];
        TRY(o->add(b->s, &(add_args){.out = first,
                                     .a = first,
                                     .b = b->grads + b->grad_offset[p],
                                     .elems = m->params[p].elems}));
    }
    return o->scale(b->s, &(scale_args){.x = b->grads, .factor = scale, .elems = b->own_elems});
}

/* Update the bf16 copy, which the model reads, from the fp32 masters. */
static fsdp_status refresh(baseline *b)
{
    if (!b->rounded)
        return FSDP_OK;
    return b->run.ops->cast(b->s, &(cast_args){.out = b->rounded,
                                               .in = b->params,
                                               .out_type = b->run.param_dtype,
                                               .in_type = DTYPE_F32,
                                               .elems = b->param_elems});
}

static fsdp_status find_norm(baseline *b, float max_norm)
{
    TRY(device_zero(b->s, b->norm_sum, sizeof *b->norm_sum));
    TRY(b->run.ops->sum_squares(b->s, &(sum_squares_args){.sum = b->norm_sum,
                                                          .x = b->grads,
                                                          .elems = b->own_elems,
                                                          .ranges = {b->ranges, b->n_ranges}}));
    return b->run.ops->clip_coef(
        b->s, &(clip_coef_args){
                  .norm = b->norm, .coef = b->coef, .sum = b->norm_sum, .max_norm = max_norm});
}

static fsdp_status update_params(baseline *b, const optim_config *c)
{
    const optimizer_rule *rule = optimizer_of(b->run.optimizer);
    optim_scalars sc;
    optim_scalars_make(c, b->coef, &sc);
    optim_part part = {.param = b->params,
                       .grad = b->grads,
                       .elems = b->own_elems,
                       .ranges = {b->ranges, b->n_ranges}};
    memcpy(part.state, b->state, sizeof part.state);
    return rule->update(b->run.ops, b->s, &sc, &part);
}

static fsdp_status baseline_step(void *self, const step_scalars *sc, float *norm)
{
    baseline *b = self;
    TRY(finish_gradients(b, sc->grad_scale));
    TRY(find_norm(b, sc->clip_norm));
    TRY(device_copy(b->s, norm, b->norm, sizeof *norm));
    TRY(update_params(b, &sc->optim));
    return refresh(b);
}

/* ---- values on the host: checkpoints and exports --------------------------------------------- */

/* List the pieces that this rank saves: the r-th of W parts of each parameter. Every rank has the
 * whole arrays. Returns the number of pieces. */
static int share_of(const baseline *b, ckpt_piece *pieces)
{
    const model *m = b->run.m;
    size_t r = (size_t)comm_rank(b->run.world), w = (size_t)comm_size(b->run.world);
    int n = 0;
    for (int p = 0; p < m->n_params; p++) {
        size_t elems = m->params[p].elems, each = elems / w + (elems % w != 0);
        size_t begin = each * r, end = begin + each < elems ? begin + each : elems;
        if (m->params[p].tied_to == NOT_TIED && begin < end)
            pieces[n++] =
                (ckpt_piece){.param = p, .begin = begin, .elems = end - begin, .unit = "model"};
    }
    return n;
}

static fsdp_status saved_elems(void *self, size_t *out)
{
    const baseline *b = self;
    const size_t w = (size_t)comm_size(b->run.world);
    size_t n = 0;
    for (int p = 0; p < b->run.m->n_params; p++)
        n += b->run.m->params[p].tied_to == NOT_TIED ? b->run.m->params[p].elems / w + 1 : 0;
    *out = n * (size_t)(1 + optimizer_of(b->run.optimizer)->n_states);
    return FSDP_OK;
}

/* Every rank has all gradients, but each element must be in one piece only: rank 0's. */
static fsdp_status find_grad(void *self, int p, engine_piece *out)
{
    const baseline *b = self;
    const size_t elems = comm_rank(b->run.world) == 0 ? b->run.m->params[p].elems : 0;
    *out = (engine_piece){0, elems, b->grads + b->offset[p]};
    return FSDP_OK;
}

static const char *unit_name(void *self, int unit)
{
    (void)self;
    (void)unit;
    return "model";
}

/* Copy a piece of array k (0: the parameter, k: state k - 1) between device and host
 * [piece->elems]. */
static fsdp_status move_piece(const baseline *b, int k, const ckpt_piece *piece, float *host,
                              bool to_host)
{
    float *at = (k == 0 ? b->params : b->state[k - 1]) + b->offset[piece->param] + piece->begin;
    size_t bytes = (size_t)piece->elems * sizeof *host;
    TRY(to_host ? device_download(b->s, host, at, bytes) : device_upload(b->s, at, host, bytes));
    return stream_sync(b->s);
}

static size_t most_elems(const model *m)
{
    size_t most = 1;
    for (int p = 0; p < m->n_params; p++)
        most = m->params[p].elems > most ? m->params[p].elems : most;
    return most;
}

static fsdp_status read_array(void *self, int k, engine_sink sink, void *ctx)
{
    baseline *b = self;
    const model *m = b->run.m;
    const int n = sink && comm_rank(b->run.world) == 0 ? m->n_params : 0;
    float *host = n > 0 ? malloc(most_elems(m) * sizeof *host) : NULL;
    fsdp_status status = stream_sync(b->s);
    if (status == FSDP_OK && n > 0 && !host)
        status = fsdp_error(FSDP_ENOMEM, "", "export: no host memory");
    for (int p = 0; p < n && status == FSDP_OK; p++) {
        const ckpt_piece whole = {.param = p, .elems = m->params[p].elems};
        if (m->params[p].tied_to != NOT_TIED || !ckpt_has(m, p, k))
            continue;
        status = move_piece(b, k, &whole, host, true);
        if (status == FSDP_OK)
            status = sink(ctx, host, m->params[p].elems);
    }
    free(host);
    return comm_agree(b->run.world, status);
}

static fsdp_status baseline_save(void *self, ckpt_store *to, int64_t next_step)
{
    baseline *b = self;
    ckpt_out out;
    ckpt_pieces list = {.pieces = calloc((size_t)b->run.m->n_params, sizeof *list.pieces),
                        .values = malloc(most_elems(b->run.m) * sizeof *list.values)};
    fsdp_status status =
        comm_agree(to->world, list.pieces && list.values ? FSDP_OK : ckpt_no_memory());
    if (status == FSDP_OK) {
        list.n_pieces = share_of(b, list.pieces);
        status = ckpt_save_begin(to, next_step, &list, &out);
        for (int k = 0; k <= to->optimizer->n_states; k++)
            for (int i = 0; i < list.n_pieces && status == FSDP_OK; i++) {
                if (!ckpt_has(b->run.m, list.pieces[i].param, k))
                    continue;
                status = move_piece(b, k, &list.pieces[i], list.values, true);
                if (status == FSDP_OK)
                    status = ckpt_out_write(&out, &list.pieces[i], k, list.values);
            }
        status = ckpt_save_end(to, next_step, &out, status);
    }
    free(list.pieces);
    free(list.values);
    return status;
}

/* Load array k of a parameter through `host` [LOADED_ELEMS], block by block, so that no whole
 * tensor is in host memory. */
static fsdp_status load_param(const baseline *b, const ckpt_source *from, int p, int k, float *host)
{
    ckpt_piece block = {.param = p};
    const size_t end = b->run.m->params[p].elems;
    for (; block.begin < end; block.begin += block.elems) {
        block.elems = min_size(end - (size_t)block.begin, LOADED_ELEMS);
        TRY(ckpt_source_range(from, b->run.m, block, k, host));
        TRY(move_piece(b, k, &block, host, false));
    }
    return FSDP_OK;
}

static fsdp_status baseline_load(void *self, const ckpt_source *from)
{
    baseline *b = self;
    float *host = malloc(LOADED_ELEMS * sizeof *host);
    fsdp_status status = host ? FSDP_OK : ckpt_no_memory();
    for (size_t i = 0, n; i < from->entries.n && status == FSDP_OK; i += n) {
        const ckpt_entry *e = &from->entries.list[i];
        ckpt_source_find(from, e->array, e->piece.param, &n); /* entries are in this order */
        if (!ckpt_has(b->run.m, e->piece.param, e->array))    /* frozen now, but not when saved */
            continue;
        if (e->array > 0 && b->run.forward_only)
            continue;
        status = load_param(b, from, e->piece.param, e->array, host);
    }
    free(host);
    if (status == FSDP_OK)
        status = refresh(b);
    return comm_agree(b->run.world, status);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void baseline_free(void *self)
{
    baseline *b = self;
    if (!b)
        return;
    stream_free(b->comm_stream); /* waits for its work */
    event_free(b->done);
    grad_acc_free(&b->acc, b->s);
    grad_acc_free(&b->local, b->s);
    void *blocks[] = {b->params, b->rounded, b->grads, b->norm_sum, b->norm, b->coef};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        device_free(b->s, blocks[i]);
    for (int k = 0; k < OPTIM_MAX_STATES; k++)
        device_free(b->s, b->state[k]);
    model_views_free(&b->views);
    free(b->layer_unit);
    free(b->offset);
    free(b->grad_offset);
    free(b->ranges);
    free(b);
}

typedef struct fill_args {
    const param_spec *spec;
    int p;
    uint64_t seed;
} fill_args;

static fsdp_status initial_values(const void *args, void *out)
{
    const fill_args *a = args;
    param_init_range(a->spec, a->p, a->seed, 0, a->spec->elems, out);
    return FSDP_OK;
}

static fsdp_status fill_params(baseline *b)
{
    const model *m = b->run.m;
    for (int p = 0; p < m->n_params; p++) {
        const param_spec *spec = &m->params[p];
        b->views.params[p] =
            b->rounded ? (char *)b->rounded + b->offset[p] * dtype_bytes(b->run.param_dtype)
                       : (void *)(b->params + b->offset[p]);
        if (spec->tied_to != NOT_TIED)
            continue;
        fill_args a = {spec, p, b->run.seed};
        TRY(device_make(b->s, &(device_made){"initial values", initial_values, &a, sizeof a},
                        b->params + b->offset[p], spec->elems * sizeof *b->params));
    }
    TRY(refresh(b));
    return stream_sync(b->s);
}

static fsdp_status allocate(baseline *b)
{
    const model *m = b->run.m;
    stream *s = b->s;
    TRY(model_views_init(m, &b->views));
    TRY(comm_stream_create(b->run.dev, "comm", &b->comm_stream));
    TRY(event_create(b->run.dev, &b->done));
    b->layer_unit = calloc((size_t)m->n_layers, sizeof *b->layer_unit);
    b->offset = calloc((size_t)m->n_params, sizeof *b->offset);
    b->grad_offset = calloc((size_t)m->n_params, sizeof *b->grad_offset);
    b->ranges = calloc((size_t)m->n_params, sizeof *b->ranges);
    if (!b->layer_unit || !b->offset || !b->grad_offset || !b->ranges)
        return fsdp_error(FSDP_ENOMEM, "", "baseline: no host memory");
    TRY(lay_out(b));
    grad_acc_init(&b->acc, b->run.mode, b->run.ops->sums,
                  b->padded_elems / (size_t)comm_size(b->run.world), MEM_GRADS_SHARD, "ddp slice");
    grad_acc_init(&b->local, b->run.mode, b->run.ops->sums, b->padded_elems, MEM_GRADS_FULL,
                  "gradients");
    b->acc.sum_dtype = b->local.sum_dtype = b->run.reduce_dtype;
    TRY(device_alloc_f32(s, MEM_PARAMS_SHARD, b->param_elems, "parameters", &b->params));
    TRY(device_zero(s, b->params, b->param_elems * sizeof(float)));
    if (b->run.param_dtype != DTYPE_F32)
        TRY(device_alloc(s, MEM_PARAMS_FULL, b->param_elems * dtype_bytes(b->run.param_dtype),
                         "parameters in bf16", &b->rounded));
    void *norm_sum;
    TRY(device_alloc(s, MEM_OTHER, sizeof *b->norm_sum, "norm bins", &norm_sum));
    b->norm_sum = norm_sum;
    TRY(device_alloc_f32(s, MEM_OTHER, 1, "norm", &b->norm));
    TRY(device_alloc_f32(s, MEM_OTHER, 1, "clip coefficient", &b->coef));
    if (b->run.forward_only)
        return FSDP_OK;
    return optim_state_alloc(s, optimizer_of(b->run.optimizer), b->own_elems, false, b->state);
}

fsdp_status baseline_create(const run_context *run, engine *out)
{
    baseline *b = calloc(1, sizeof *b);
    if (!b)
        return fsdp_error(FSDP_ENOMEM, "", "baseline: no host memory");
    b->run = *run;
    b->s = device_compute_stream(run->dev);
    fsdp_status status;
    GOTO_ON_FAIL(status, allocate(b), fail);
    GOTO_ON_FAIL(status, fill_params(b), fail);
    *out = (engine){
        .self = b,
        .n_units = 1,
        .layer_unit = b->layer_unit,
        .hooks = {.self = b,
                  .begin_micro = begin_micro,
                  .pre_backward = pre_backward,
                  .post_backward = post_backward},
        .views = &b->views,
        .unit_name = unit_name,
        .optimizer_step = baseline_step,
        .find_grad = find_grad,
        .read_array = read_array,
        .save = baseline_save,
        .saved_elems = saved_elems,
        .load = baseline_load,
        .free = baseline_free,
    };
    return FSDP_OK;
fail:
    baseline_free(b);
    return status;
}
