/* digests.c -- see digests.h. */
#include "common/steps/digests.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "common/base/hash.h"
#include "common/comm/comm.h"
#include "common/observe/digest_file.h"

enum {
    CHUNK_ELEMS = 1 << 16, /* of a download */
    GATHER_BYTES = 2048,   /* of a comm_host_gather */
    ALL_RANKS = 0          /* none differs from rank 0 */
};

typedef enum row_kind { TOKENS, PARAMS, OUTPUT, PARAMS_BACKWARD, GRADIENT } row_kind;
static const char *const KINDS[] = {"tokens", "params", "output", "params-backward", "gradient"};

/* A row of the file. */
typedef struct row {
    row_kind kind;
    int id; /* of the parameter or layer */
    int layer;
    const char *name;
    uint64_t sum;
    int odd_rank;   /* of a parameter: the first rank whose copy differs from rank 0's */
    uint32_t *bits; /* [elems] where values are wanted, else NULL */
} row;

struct digests {
    run_context run;
    const engine *e;
    FILE *out;
    size_t n_written;
    row *rows;      /* of a micro-step, then the gradients, in the order of the file */
    size_t n_micro; /* rows of a micro-step */
    size_t n_rows;
    uint32_t *host;            /* [CHUNK_ELEMS] */
    int64_t step, values_step; /* values_step -1: none */
    int micro;
    bool training; /* this micro-step; an evaluation has no digests */
};

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t hash_elem(uint64_t array, uint64_t index, uint64_t bits)
{
    const uint64_t words[] = {array, index, bits};
    return XXH3_64bits(words, sizeof words);
}

static row *row_of(digests *d, row_kind kind, int id)
{
    size_t i = 0;
    while (d->rows[i].kind != kind || d->rows[i].id != id)
        i++;
    return &d->rows[i];
}

/* Elements in device memory, from `begin` on of one of the arrays that have the row's name. */
typedef struct span {
    uint64_t which;
    size_t begin, elems;
    dtype type;
    const void *at;
} span;

/* Add the hashes of a span to the row, after what compute has so far. */
static fsdp_status add_span(digests *d, row *r, const span *v)
{
    stream *s = device_compute_stream(d->run.dev);
    const size_t bytes = dtype_bytes(v->type);
    const uint64_t array = hash_elem(hash_bytes(r->name, strlen(r->name)), v->which, 0);
    const bool keeps = r->bits && d->step == d->values_step && d->micro == 0;
    for (size_t done = 0, n; done < v->elems; done += n) {
        n = v->elems - done < CHUNK_ELEMS ? v->elems - done : CHUNK_ELEMS;
        TRY(device_download(s, d->host, (const char *)v->at + done * bytes, n * bytes));
        TRY(stream_sync(s));
        for (size_t i = 0; i < n; i++) {
            const size_t index = v->begin + done + i;
            const bool narrow = v->type == DTYPE_BF16;
            const uint32_t bits = narrow ? ((const uint16_t *)d->host)[i] : d->host[i];
            r->sum += hash_elem(array, index, bits);
            if (keeps)
                r->bits[index] = bits;
        }
    }
    return FSDP_OK;
}

/* What the ranks' sums [W] of a row come to: all added, or of a parameter, of which ranks have
 * copies, the first that differs from rank 0's, because rank 0's may be the right one. */
static void merge(row *r, const uint64_t *sums, size_t stride, int n_ranks)
{
    const bool copies = r->kind == PARAMS || r->kind == PARAMS_BACKWARD;
    r->sum = *sums;
    r->odd_rank = ALL_RANKS;
    for (int rank = n_ranks - 1; rank > 0; rank--) {
        const uint64_t its = sums[(size_t)rank * stride];
        if (!copies)
            r->sum += its;
        else if (its != *sums)
            r->sum = sums[(size_t)(r->odd_rank = rank) * stride];
    }
}

/* Let rows [n] hold what all ranks' sums come to. */
static fsdp_status merge_rows(digests *d, row *rows, size_t n)
{
    enum { MOST = GATHER_BYTES / sizeof(uint64_t) };
    uint64_t mine[MOST];
    for (size_t at = 0, k; at < n; at += k) {
        void *all;
        for (k = 0; k < MOST && at + k < n; k++)
            mine[k] = rows[at + k].sum;
        TRY(comm_host_gather(d->run.world, "digests", mine, k * sizeof *mine, &all));
        for (size_t i = 0; i < k; i++)
            merge(&rows[at + i], (const uint64_t *)all + i, k, comm_size(d->run.world));
        free(all);
    }
    return FSDP_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* "step,micro,unit,kind,name,": what all lines of a row begin with. */
static void put_head(digests *d, const row *r, const char *suffix)
{
    char micro[16] = "";
    if (r->kind != GRADIENT)
        snprintf(micro, sizeof micro, "%d", d->micro);
    d->n_written++;
    fprintf(d->out, "%lld,%s,%s,%s%s,%s,", (long long)d->step, micro,
            d->e->unit_name(d->e->self, d->e->layer_unit[r->layer]), KINDS[r->kind], suffix,
            r->name);
}

static void put_value(digests *d, const row *r, uint32_t bits, size_t i)
{
    const param_spec *spec = &d->run.m->params[r->id];
    const size_t columns = spec->dims[spec->n_dims - 1];
    const bool narrow = r->kind == PARAMS && d->run.param_dtype == DTYPE_BF16;
    const uint32_t wide = narrow ? bits << 16 : bits;
    float value;
    memcpy(&value, &wide, sizeof value);
    put_head(d, r, "-value");
    fprintf(d->out, "%0*x,%.9g,%zu,%zu,%zu\n", narrow ? 4 : 8, bits, (double)value, i, i / columns,
            i % columns);
}

/* Write the values of a row: of a parameter those of the odd rank, of a gradient those of all
 * ranks, each of which has some and zeros in place of the others. */
static fsdp_status put_values(digests *d, const row *r)
{
    const size_t elems = d->run.m->params[r->id].elems, most = GATHER_BYTES / sizeof *r->bits;
    for (size_t begin = 0, n; begin < elems; begin += n) {
        void *all;
        n = elems - begin < most ? elems - begin : most;
        TRY(comm_host_gather(d->run.world, "values", r->bits + begin, n * sizeof *r->bits, &all));
        uint32_t *bits = (uint32_t *)all + (size_t)r->odd_rank * n;
        for (size_t i = n; i < (size_t)comm_size(d->run.world) * n && r->kind == GRADIENT; i++)
            bits[i % n] |= bits[i];
        for (size_t i = 0; i < n && d->out; i++)
            put_value(d, r, bits[i], begin + i);
        free(all);
    }
    return FSDP_OK;
}

/* Write rows [n], and forget their sums. */
static fsdp_status put_rows(digests *d, row *rows, size_t n)
{
    TRY(merge_rows(d, rows, n));
    for (row *r = rows; r < rows + n; r++) {
        if (d->out) {
            put_head(d, r, "");
            fprintf(d->out, "%016llx", (unsigned long long)r->sum);
            fprintf(d->out, r->odd_rank != ALL_RANKS ? ",rank %d\n" : "\n", r->odd_rank);
        }
        if (r->bits && d->step == d->values_step && d->micro == 0)
            TRY(put_values(d, r));
        r->sum = 0;
    }
    return FSDP_OK;
}

/* ---- parameters: hooks around the engine's --------------------------------------------------- */

/* Add the copies of a unit's parameters that the model is about to read. */
static fsdp_status add_params(digests *d, int unit, row_kind kind)
{
    for (row *r = d->rows; r < d->rows + d->n_micro && d->training; r++)
        if (r->kind == kind && d->e->layer_unit[r->layer] == unit)
            TRY(add_span(d, r,
                         &(span){.elems = d->run.m->params[r->id].elems,
                                 .type = d->run.param_dtype,
                                 .at = d->e->views->params[r->id]}));
    return FSDP_OK;
}

static fsdp_status begin_micro(void *self, int a, int n_micro, bool training)
{
    digests *d = self;
    const unit_hooks *h = &d->e->hooks;
    d->micro = a;
    d->training = training;
    return h->begin_micro ? h->begin_micro(h->self, a, n_micro, training) : FSDP_OK;
}

static fsdp_status call(digests *d, fsdp_status (*hook)(void *, int), int unit)
{
    return hook ? hook(d->e->hooks.self, unit) : FSDP_OK;
}

static fsdp_status pre_forward(void *self, int unit)
{
    digests *d = self;
    TRY(call(d, d->e->hooks.pre_forward, unit));
    return add_params(d, unit, PARAMS);
}

static fsdp_status post_forward(void *self, int unit)
{
    digests *d = self;
    return call(d, d->e->hooks.post_forward, unit);
}

static fsdp_status pre_backward(void *self, int unit)
{
    digests *d = self;
    TRY(call(d, d->e->hooks.pre_backward, unit));
    return add_params(d, unit, PARAMS_BACKWARD);
}

static fsdp_status post_backward(void *self, int unit)
{
    digests *d = self;
    return call(d, d->e->hooks.post_backward, unit);
}

static fsdp_status end_backward(void *self)
{
    digests *d = self;
    const unit_hooks *h = &d->e->hooks;
    if (h->end_backward)
        TRY(h->end_backward(h->self));
    return put_rows(d, d->rows, d->n_micro);
}

unit_hooks digests_hooks(digests *d)
{
    return (unit_hooks){.self = d,
                        .begin_micro = begin_micro,
                        .pre_forward = pre_forward,
                        .post_forward = post_forward,
                        .pre_backward = pre_backward,
                        .post_backward = post_backward,
                        .end_backward = end_backward};
}

/* ---- what the training loop tells ------------------------------------------------------------ */

void digests_begin_step(digests *d, int64_t step)
{
    d->step = step;
}

fsdp_status digests_after_layer(void *self, const runner *r, const micro_step *ms, int i)
{
    digests *d = self;
    const size_t T = d->run.seq_len;
    for (size_t j = 0; j < d->run.batch; j++) {
        span out = {.which = ms->first_sequence + j};
        for (size_t t = 0; t < T && i == 0; t++) {
            d->rows->sum += hash_elem(out.which, 2 * t, (uint32_t)ms->tokens[j * T + t]);
            d->rows->sum += hash_elem(out.which, 2 * t + 1, (uint32_t)ms->targets[j * T + t]);
        }
        out.at = runner_output(r, i, j, &out.type, &out.elems);
        TRY(add_span(d, row_of(d, OUTPUT, i), &out));
    }
    return FSDP_OK;
}

static fsdp_status add_gradient(void *ctx, int p, size_t begin, const float *at, size_t elems)
{
    digests *d = ctx;
    return add_span(d, row_of(d, GRADIENT, p), &(span){.begin = begin, .elems = elems, .at = at});
}

fsdp_status digests_end_step(digests *d)
{
    d->micro = 0; /* that of values */
    TRY(d->e->visit_grads(d->e->self, add_gradient, d));
    return put_rows(d, d->rows + d->n_micro, d->n_rows - d->n_micro);
}

/* ---- life ------------------------------------------------------------------------------------ */

static fsdp_status no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "digests: no host memory");
}

static void add_row(digests *d, row_kind kind, int id, int i, const char *name)
{
    d->rows[d->n_rows++] = (row){.kind = kind, .id = id, .layer = i, .name = name};
}

/* The rows of the parameters of layer i; gradients: of those that have one. */
static void add_param_rows(digests *d, row_kind kind, int i)
{
    const layer *l = &d->run.m->layers[i];
    for (int p = l->first_param; p < l->first_param + l->n_params; p++) {
        const param_spec *spec = &d->run.m->params[p];
        if (kind != GRADIENT || (spec->tied_to == NOT_TIED && !spec->frozen))
            add_row(d, kind, p, i, spec->name);
    }
}

fsdp_status digests_create(const run_context *run, const engine *e, FILE *out, digests **new)
{
    const model *m = run->m;
    digests *d = calloc(1, sizeof *d);
    if (!d)
        return no_memory();
    *d = (digests){.run = *run, .e = e, .out = out, .values_step = -1};
    d->rows = calloc((size_t)(1 + 3 * m->n_params + m->n_layers), sizeof *d->rows);
    d->host = calloc(CHUNK_ELEMS, sizeof *d->host);
    if (!d->rows || !d->host) {
        digests_free(d);
        return no_memory();
    }
    add_row(d, TOKENS, 0, 0, "tokens");
    for (int i = 0; i < m->n_layers; i++) {
        add_param_rows(d, PARAMS, i);
        add_row(d, OUTPUT, i, i, m->layers[i].name);
    }
    for (int i = m->n_layers - 1; i >= model_border(m); i--) /* layers below have no backward */
        add_param_rows(d, PARAMS_BACKWARD, i);
    d->n_micro = d->n_rows;
    for (int i = m->n_layers - 1; i >= 0; i--)
        add_param_rows(d, GRADIENT, i);
    if (out)
        fprintf(out, DIGEST_COLUMNS "\n");
    *new = d;
    return FSDP_OK;
}

fsdp_status digests_keep_values(digests *d, int64_t step, const char *unit, int64_t first,
                                int64_t end)
{
    char hint[288] = "the units of this run are";
    bool found = false;
    if (step < first || step >= end)
        return fsdp_error(FSDP_EINVAL, "name a step that this run makes",
                          "--digest-values: got step %lld, expected %lld to %lld", (long long)step,
                          (long long)first, (long long)end - 1);
    for (int u = 0; u < d->e->n_units; u++) {
        const char *name = d->e->unit_name(d->e->self, u);
        const size_t used = strlen(hint);
        snprintf(hint + used, sizeof hint - used, "%s %s", u > 0 ? "," : "", name);
        found = found || strcmp(name, unit) == 0;
    }
    if (!found)
        return fsdp_error(FSDP_EINVAL, hint, "--digest-values: this run has no unit '%.64s'", unit);
    d->values_step = step;
    for (row *r = d->rows; r < d->rows + d->n_rows; r++) {
        const char *name = d->e->unit_name(d->e->self, d->e->layer_unit[r->layer]);
        if ((r->kind != PARAMS && r->kind != GRADIENT) || strcmp(name, unit) != 0)
            continue;
        r->bits = calloc(d->run.m->params[r->id].elems, sizeof *r->bits);
        if (!r->bits)
            return no_memory();
    }
    return FSDP_OK;
}

size_t digests_end(digests *d)
{
    if (d->out)
        fprintf(d->out, "# end: %zu rows\n", d->n_written);
    return d->n_written;
}

void digests_free(digests *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n_rows; i++)
        free(d->rows[i].bits);
    free(d->rows);
    free(d->host);
    free(d);
}
