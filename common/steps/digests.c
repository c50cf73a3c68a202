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
    WHOLE_STEP = -1        /* in place of a micro-step */
};

typedef enum row_kind { TOKENS, FORWARD, OUTPUT, BACKWARD, GRADIENT } row_kind;
static const char *const KINDS[] = {"tokens", "forward copy", "output", "backward copy",
                                    "reduced gradient"};

/* A row of the file, and in `total` its sum over a step. */
typedef struct row {
    row_kind kind;
    int id; /* of the parameter or layer */
    int layer;
    const char *name;
    uint64_t sum, total;
    uint32_t *bits; /* [elems] where elements are wanted, else NULL */
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
};

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t hash_elem(uint64_t array, uint64_t index, uint64_t bits)
{
    const uint64_t words[] = {array, index, bits};
    return XXH3_64bits(words, sizeof words);
}

/* One of the arrays that have the row's name: of outputs there is one for each sequence. */
static uint64_t array_of(const row *r, uint64_t which)
{
    return hash_elem(hash_bytes(r->name, strlen(r->name)), which, 0);
}

static row *row_of(digests *d, row_kind kind, int id)
{
    size_t i = 0;
    while (d->rows[i].kind != kind || d->rows[i].id != id)
        i++;
    return &d->rows[i];
}

/* Elements in device memory, from `begin` on of an array of a row. */
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
    const uint64_t array = array_of(r, v->which);
    for (size_t done = 0, n; done < v->elems; done += n) {
        n = v->elems - done < CHUNK_ELEMS ? v->elems - done : CHUNK_ELEMS;
        TRY(device_download(s, d->host, (const char *)v->at + done * bytes, n * bytes));
        TRY(stream_sync(s));
        for (size_t i = 0; i < n; i++) {
            const size_t index = v->begin + done + i;
            const bool narrow = v->type == DTYPE_BF16;
            const uint32_t bits = narrow ? ((const uint16_t *)d->host)[i] : d->host[i];
            r->sum += hash_elem(array, index, bits);
            if (r->bits)
                r->bits[index] = bits;
        }
    }
    return FSDP_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* "step,micro,unit,kind,name,hash,": what all lines of a row begin with. */
static void put_head(digests *d, const row *r, uint64_t hash)
{
    char micro[16] = "";
    if (d->micro != WHOLE_STEP)
        snprintf(micro, sizeof micro, "%d", d->micro);
    d->n_written++;
    fprintf(d->out, "%lld,%s,%s,%s,%s,%016llx,", (long long)d->step, micro,
            d->e->unit_name(d->e->self, d->e->layer_unit[r->layer]), KINDS[r->kind], r->name,
            (unsigned long long)hash);
}

static void put_element(digests *d, const row *r, uint32_t bits, size_t i)
{
    const param_spec *spec = &d->run.m->params[r->id];
    const size_t columns = spec->dims[spec->n_dims - 1];
    const bool narrow = r->kind != GRADIENT && d->run.param_dtype == DTYPE_BF16;
    const uint32_t wide = narrow ? bits << 16 : bits;
    float value;
    memcpy(&value, &wide, sizeof value);
    put_head(d, r, hash_elem(array_of(r, 0), i, bits));
    fprintf(d->out, "%zu (row %zu column %zu),%.9g (%0*x)\n", i, i / columns, i % columns,
            (double)value, narrow ? 4 : 8, bits);
}

/* Write the elements of a row: a rank's copy, or a gradient, of which each rank has some elements
 * and zeros in place of the others. */
static fsdp_status put_elements(digests *d, const row *r, int rank)
{
    const size_t elems = d->run.m->params[r->id].elems, most = GATHER_BYTES / sizeof *r->bits;
    const size_t n_ranks = (size_t)comm_size(d->run.world);
    for (size_t begin = 0, n; begin < elems; begin += n) {
        void *all;
        n = elems - begin < most ? elems - begin : most;
        TRY(comm_host_gather(d->run.world, "elements", r->bits + begin, n * sizeof *r->bits, &all));
        uint32_t *bits = (uint32_t *)all + (size_t)rank * n;
        for (size_t i = n; i < n_ranks * n && r->kind == GRADIENT; i++)
            bits[i % n] |= bits[i];
        for (size_t i = 0; i < n && d->out; i++)
            put_element(d, r, bits[i], begin + i);
        free(all);
    }
    return FSDP_OK;
}

/* Write a row: what the ranks' sums come to. Of a parameter, of which ranks have copies, it is the
 * first that differs from rank 0's, because rank 0's may be the right one. */
static fsdp_status put_row(digests *d, row *r)
{
    const bool copies = r->kind == FORWARD || r->kind == BACKWARD;
    int odd = 0;
    void *all;
    TRY(comm_host_gather(d->run.world, "digests", &r->sum, sizeof r->sum, &all));
    const uint64_t *sums = all;
    uint64_t sum = sums[0];
    for (int rank = comm_size(d->run.world) - 1; rank > 0; rank--) {
        if (!copies)
            sum += sums[rank];
        else if (sums[rank] != sums[0])
            sum = sums[odd = rank];
    }
    free(all);
    if (d->out) {
        put_head(d, r, sum);
        fprintf(d->out, odd > 0 ? ",rank %d\n" : ",\n", odd);
    }
    r->total += r->sum;
    r->sum = 0;
    return r->bits && d->step == d->values_step ? put_elements(d, r, odd) : FSDP_OK;
}

/* ---- what is hashed -------------------------------------------------------------------------- */

static fsdp_status add_params(digests *d, row_kind kind, int i)
{
    const layer *l = &d->run.m->layers[i];
    for (int p = l->first_param; p < l->first_param + l->n_params; p++)
        TRY(add_span(d, row_of(d, kind, p),
                     &(span){.elems = d->run.m->params[p].elems,
                             .type = d->run.param_dtype,
                             .at = d->e->views->params[p]}));
    return FSDP_OK;
}

static fsdp_status add_outputs(digests *d, const runner *r, const micro_step *ms, int i)
{
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

fsdp_status digests_look(void *self, const runner *r, const micro_step *ms, runner_moment when,
                         int i)
{
    digests *d = self;
    if (when == AFTER_FORWARD)
        return add_outputs(d, r, ms, i);
    if (when == BEFORE_FORWARD)
        d->micro = ms->a;
    if (when != AFTER_BACKWARD)
        return add_params(d, when == BEFORE_FORWARD ? FORWARD : BACKWARD, i);
    for (row *micro_row = d->rows; micro_row < d->rows + d->n_micro; micro_row++)
        TRY(put_row(d, micro_row));
    return FSDP_OK;
}

void digests_begin_step(digests *d, int64_t step)
{
    d->step = step;
}

static fsdp_status add_gradient(void *ctx, int p, size_t begin, const float *at, size_t elems)
{
    digests *d = ctx;
    return add_span(d, row_of(d, GRADIENT, p), &(span){.begin = begin, .elems = elems, .at = at});
}

fsdp_status digests_end_step(digests *d)
{
    d->micro = WHOLE_STEP;
    TRY(d->e->visit_grads(d->e->self, add_gradient, d));
    for (row *r = d->rows; r < d->rows + d->n_rows; r++) {
        if (r->kind == TOKENS || r->kind == OUTPUT)
            r->sum = r->total;
        else if (r->kind != GRADIENT)
            continue;
        TRY(put_row(d, r));
        r->total = 0;
    }
    return FSDP_OK;
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

/* What the run is. Two runs have the same sequences in each micro-step if these are as many, in as
 * many and as long series. */
static void put_facts(digests *d, const ckpt_about *about)
{
    const run_context *run = &d->run;
    const size_t n_ranks = (size_t)comm_size(run->world);
    const size_t n_series = run->no_sync && run->grad_accum > 1 ? n_ranks : 1;
    fprintf(d->out, DIGEST_TITLE "\n# micro-steps: %d of %zu x %zu sequences\n# ops: %s\n",
            run->grad_accum, n_series, n_ranks * run->batch / n_series, run->ops->name);
    for (int i = 0; about && i < about->n; i++)
        fprintf(d->out, "# %s: %s\n", about->facts[i].name, about->facts[i].value);
    fprintf(d->out, DIGEST_COLUMNS "\n");
}

fsdp_status digests_create(const run_context *run, const engine *e, const ckpt_about *about,
                           FILE *out, digests **new)
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
    add_row(d, TOKENS, 0, 0, "the input");
    for (int i = 0; i < m->n_layers; i++) {
        add_param_rows(d, FORWARD, i);
        add_row(d, OUTPUT, i, i, m->layers[i].name);
    }
    for (int i = m->n_layers - 1; i >= model_border(m); i--) /* layers below have no backward */
        add_param_rows(d, BACKWARD, i);
    d->n_micro = d->n_rows;
    for (int i = m->n_layers - 1; i >= 0; i--)
        add_param_rows(d, GRADIENT, i);
    if (out)
        put_facts(d, about);
    *new = d;
    return FSDP_OK;
}

fsdp_status digests_keep_values(digests *d, const char *text, int64_t first, int64_t end)
{
    char hint[288] = "the units of this run are", *unit;
    bool found = false;
    d->values_step = strtoll(text, &unit, 10);
    if (unit == text || *unit++ != ':' || d->values_step < first || d->values_step >= end)
        return fsdp_error(FSDP_EINVAL, "pass a step that this run makes, and a unit, as in 3:h.1",
                          "--digest-values: got '%s', expected STEP:UNIT, a step from %lld to %lld",
                          text, (long long)first, (long long)end - 1);
    for (int u = 0; u < d->e->n_units; u++) {
        const char *name = d->e->unit_name(d->e->self, u);
        const size_t used = strlen(hint);
        snprintf(hint + used, sizeof hint - used, "%s %s", u > 0 ? "," : "", name);
        found = found || strcmp(name, unit) == 0;
    }
    if (!found)
        return fsdp_error(FSDP_EINVAL, hint, "--digest-values: this run has no unit '%.64s'", unit);
    for (row *r = d->rows; r < d->rows + d->n_rows; r++) {
        const char *name = d->e->unit_name(d->e->self, d->e->layer_unit[r->layer]);
        if (r->kind == TOKENS || r->kind == OUTPUT || strcmp(name, unit) != 0)
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
