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
    OF_STEP = -1,          /* in place of a micro-step */
    ALL_RANKS = -1,
    NO_RANK = 0 /* differs from rank 0 */
};

struct digests {
    run_context run;
    const engine *e;
    FILE *out;
    size_t n_rows;
    int64_t step;
    int micro;
    bool training; /* this micro-step; an evaluation has no digests */
    /* Sums of a micro-step, in one array: tokens and outputs, which ranks add up; then copies of
     * parameters, which all ranks have. */
    uint64_t *sums;               /* [n_added + n_copies] */
    uint64_t *tokens, *outputs;   /* [1], [n_layers] */
    uint64_t *forward, *backward; /* [n_params] each */
    uint64_t *gradients;          /* [n_params] of the step */
    size_t n_added, n_copies;
    int *odd_rank;  /* [most of them] the first rank whose copy differs from rank 0's */
    uint32_t *host; /* [CHUNK_ELEMS] */
    int64_t values_step;
    int values_unit;
    uint32_t **values; /* [n_params] bits of the elements of that unit's parameters, else NULL */
};

/* ---- hashing --------------------------------------------------------------------------------- */

static uint64_t hash_elem(uint64_t array, uint64_t index, uint64_t bits)
{
    const uint64_t words[] = {array, index, bits};
    return XXH3_64bits(words, sizeof words);
}

static uint64_t hash_name(const char *name)
{
    return hash_bytes(name, strlen(name));
}

/* A run of elements in device memory. */
typedef struct run_of_elems {
    uint64_t array; /* hash of what it is part of */
    size_t begin, elems;
    dtype type;
    const void *at;
    uint32_t *bits; /* [begin + elems] to keep them in; NULL: not kept */
} run_of_elems;

/* *sum += the hashes, after what compute has so far. */
static fsdp_status add_elems(digests *d, const run_of_elems *r, uint64_t *sum)
{
    stream *s = device_compute_stream(d->run.dev);
    const size_t bytes = dtype_bytes(r->type);
    for (size_t done = 0, n; done < r->elems; done += n) {
        n = r->elems - done < CHUNK_ELEMS ? r->elems - done : CHUNK_ELEMS;
        TRY(device_download(s, d->host, (const char *)r->at + done * bytes, n * bytes));
        TRY(stream_sync(s));
        for (size_t i = 0; i < n; i++) {
            const size_t index = r->begin + done + i;
            const uint32_t bits =
                r->type == DTYPE_F32 ? d->host[i] : ((const uint16_t *)d->host)[i];
            *sum += hash_elem(r->array, index, bits);
            if (r->bits)
                r->bits[index] = bits;
        }
    }
    return FSDP_OK;
}

static bool keeps_values(const digests *d)
{
    return d->values && d->step == d->values_step;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* What all ranks' values at place i come to: their sum or, where they are copies, which should be
 * alike, the first that differs from rank 0's, because rank 0's may be the right one. */
static uint64_t merge(const digests *d, const uint64_t *all, size_t n, size_t i, int *odd)
{
    uint64_t sum = all[i];
    if (odd)
        *odd = NO_RANK;
    for (int r = 1; r < comm_size(d->run.world); r++) {
        const uint64_t its = all[(size_t)r * n + i];
        if (!odd)
            sum += its;
        else if (*odd == NO_RANK && its != sum)
            *odd = r;
    }
    return odd ? all[(size_t)*odd * n + i] : sum;
}

/* Give every rank what its sums come to. odd [n]: see merge; NULL: they are added up. */
static fsdp_status merge_all(digests *d, uint64_t *sums, size_t n, int *odd)
{
    for (size_t at = 0, k; at < n; at += k) {
        void *all;
        k = n - at < GATHER_BYTES / sizeof *sums ? n - at : GATHER_BYTES / sizeof *sums;
        TRY(comm_host_gather(d->run.world, "digests", sums + at, k * sizeof *sums, &all));
        for (size_t i = 0; i < k; i++)
            sums[at + i] = merge(d, all, k, i, odd ? &odd[at + i] : NULL);
        free(all);
    }
    return FSDP_OK;
}

static void put(digests *d, int unit, const char *kind, const char *name, uint64_t hash, int rank)
{
    char micro[16] = "", odd[24] = "";
    d->n_rows++;
    if (!d->out)
        return;
    if (d->micro != OF_STEP)
        snprintf(micro, sizeof micro, "%d", d->micro);
    if (rank != NO_RANK)
        snprintf(odd, sizeof odd, ",rank %d", rank);
    fprintf(d->out, "%lld,%s,%s,%s,%s,%016llx%s\n", (long long)d->step, micro,
            d->e->unit_name(d->e->self, unit), kind, name, (unsigned long long)hash, odd);
}

static void put_params(digests *d, const char *kind, int i, const uint64_t *sums)
{
    const layer *l = &d->run.m->layers[i];
    for (int p = l->first_param; p < l->first_param + l->n_params; p++)
        put(d, d->e->layer_unit[i], kind, d->run.m->params[p].name, sums[p],
            d->odd_rank[&sums[p] - d->forward]);
}

/* Which elements to write: of parameter p, or of its gradient. */
typedef struct array_values {
    const char *kind;
    dtype type;
    int p;
    int rank; /* whose; ALL_RANKS: each has some of them, and zeros in place of the others */
} array_values;

static void put_values(digests *d, const array_values *v, const uint32_t *bits, size_t begin,
                       size_t n)
{
    const param_spec *spec = &d->run.m->params[v->p];
    const size_t columns = spec->dims[spec->n_dims - 1];
    d->n_rows += n;
    for (size_t i = 0; i < n && d->out; i++) {
        const uint32_t wide = v->type == DTYPE_BF16 ? bits[i] << 16 : bits[i];
        float value;
        memcpy(&value, &wide, sizeof value);
        fprintf(d->out, "%lld,,%s,%s,%s,%0*x,%.9g,%zu,%zu,%zu\n", (long long)d->step,
                d->e->unit_name(d->e->self, d->values_unit), v->kind, spec->name,
                2 * (int)dtype_bytes(v->type), bits[i], (double)value, begin + i,
                (begin + i) / columns, (begin + i) % columns);
    }
}

static fsdp_status write_values(digests *d, const array_values *v)
{
    const size_t elems = d->run.m->params[v->p].elems, W = (size_t)comm_size(d->run.world);
    const size_t most = GATHER_BYTES / sizeof(uint32_t);
    const bool all_ranks = v->rank == ALL_RANKS;
    for (size_t begin = 0, n; begin < elems; begin += n) {
        void *all;
        n = elems - begin < most ? elems - begin : most;
        TRY(comm_host_gather(d->run.world, "values", d->values[v->p] + begin, n * sizeof(uint32_t),
                             &all));
        uint32_t *bits = all;
        for (size_t i = n; i < W * n && all_ranks; i++)
            bits[i % n] |= bits[i];
        put_values(d, v, all_ranks ? bits : bits + (size_t)v->rank * n, begin, n);
        free(all);
    }
    return FSDP_OK;
}

/* ---- parameters: hooks around the engine's --------------------------------------------------- */

/* Add the copies of a unit's parameters that the model is about to read. */
static fsdp_status add_params(digests *d, int unit, uint64_t *sums, bool first)
{
    const model *m = d->run.m;
    for (int i = 0; i < m->n_layers && d->training; i++)
        for (int p = m->layers[i].first_param, k = 0; k < m->layers[i].n_params; k++, p++) {
            if (d->e->layer_unit[i] != unit)
                continue;
            const run_of_elems all = {.array = hash_name(m->params[p].name),
                                      .elems = m->params[p].elems,
                                      .type = d->run.param_dtype,
                                      .at = d->e->views->params[p],
                                      .bits = first && keeps_values(d) ? d->values[p] : NULL};
            TRY(add_elems(d, &all, &sums[p]));
        }
    return FSDP_OK;
}

static fsdp_status begin_micro(void *self, int a, int n_micro, bool training)
{
    digests *d = self;
    const unit_hooks *h = &d->e->hooks;
    d->micro = a;
    d->training = training;
    memset(d->sums, 0, (d->n_added + d->n_copies) * sizeof *d->sums);
    return h->begin_micro ? h->begin_micro(h->self, a, n_micro, training) : FSDP_OK;
}

static fsdp_status pre_forward(void *self, int unit)
{
    digests *d = self;
    const unit_hooks *h = &d->e->hooks;
    if (h->pre_forward)
        TRY(h->pre_forward(h->self, unit));
    return add_params(d, unit, d->forward, d->micro == 0);
}

static fsdp_status post_forward(void *self, int unit)
{
    const unit_hooks *h = &((digests *)self)->e->hooks;
    return h->post_forward ? h->post_forward(h->self, unit) : FSDP_OK;
}

static fsdp_status pre_backward(void *self, int unit)
{
    digests *d = self;
    const unit_hooks *h = &d->e->hooks;
    if (h->pre_backward)
        TRY(h->pre_backward(h->self, unit));
    return add_params(d, unit, d->backward, false);
}

static fsdp_status post_backward(void *self, int unit)
{
    const unit_hooks *h = &((digests *)self)->e->hooks;
    return h->post_backward ? h->post_backward(h->self, unit) : FSDP_OK;
}

/* Write the rows of the micro-step. */
static fsdp_status end_backward(void *self)
{
    digests *d = self;
    const model *m = d->run.m;
    const unit_hooks *h = &d->e->hooks;
    if (h->end_backward)
        TRY(h->end_backward(h->self));
    TRY(merge_all(d, d->sums, d->n_added, NULL));
    TRY(merge_all(d, d->forward, d->n_copies, d->odd_rank));
    put(d, d->e->layer_unit[0], "tokens", "tokens", *d->tokens, NO_RANK);
    for (int i = 0; i < m->n_layers; i++) {
        put_params(d, "params", i, d->forward);
        put(d, d->e->layer_unit[i], "output", m->layers[i].name, d->outputs[i], NO_RANK);
    }
    for (int i = m->n_layers - 1; i >= 0; i--)
        put_params(d, "params-backward", i, d->backward);
    for (int p = 0; p < m->n_params && keeps_values(d) && d->micro == 0; p++)
        if (d->values[p])
            TRY(write_values(
                d, &(array_values){"params-value", d->run.param_dtype, p, d->odd_rank[p]}));
    return FSDP_OK;
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
    memset(d->gradients, 0, (size_t)d->run.m->n_params * sizeof *d->gradients);
}

fsdp_status digests_after_layer(void *self, const runner *r, const micro_step *ms, int i)
{
    digests *d = self;
    const size_t T = d->run.seq_len;
    for (size_t j = 0; j < d->run.batch; j++) {
        const uint64_t sequence = ms->first_sequence + j;
        for (size_t t = 0; t < T && i == 0; t++) {
            *d->tokens += hash_elem(sequence, 2 * t, (uint32_t)ms->tokens[j * T + t]);
            *d->tokens += hash_elem(sequence, 2 * t + 1, (uint32_t)ms->targets[j * T + t]);
        }
        run_of_elems out = {.array = hash_elem(hash_name(d->run.m->layers[i].name), sequence, 0)};
        out.at = runner_output(r, i, j, &out.type, &out.elems);
        TRY(add_elems(d, &out, &d->outputs[i]));
    }
    return FSDP_OK;
}

static fsdp_status add_gradient(void *ctx, int p, size_t begin, const float *at, size_t elems)
{
    digests *d = ctx;
    const run_of_elems piece = {.array = hash_name(d->run.m->params[p].name),
                                .begin = begin,
                                .elems = elems,
                                .at = at,
                                .bits = keeps_values(d) ? d->values[p] : NULL};
    return add_elems(d, &piece, &d->gradients[p]);
}

fsdp_status digests_end_step(digests *d)
{
    const model *m = d->run.m;
    for (int p = 0; p < m->n_params && keeps_values(d); p++)
        if (d->values[p])
            memset(d->values[p], 0, m->params[p].elems * sizeof **d->values);
    TRY(d->e->visit_grads(d->e->self, add_gradient, d));
    TRY(merge_all(d, d->gradients, (size_t)m->n_params, NULL));
    d->micro = OF_STEP;
    for (int i = m->n_layers - 1; i >= 0; i--)
        for (int p = m->layers[i].first_param, k = 0; k < m->layers[i].n_params; k++, p++)
            if (m->params[p].tied_to == NOT_TIED && !m->params[p].frozen)
                put(d, d->e->layer_unit[i], "gradient", m->params[p].name, d->gradients[p],
                    NO_RANK);
    for (int p = 0; p < m->n_params && keeps_values(d); p++)
        if (d->values[p] && m->params[p].tied_to == NOT_TIED && !m->params[p].frozen)
            TRY(write_values(d, &(array_values){"gradient-value", DTYPE_F32, p, ALL_RANKS}));
    return FSDP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static fsdp_status no_memory(void)
{
    return fsdp_error(FSDP_ENOMEM, "", "digests: no host memory");
}

fsdp_status digests_create(const run_context *run, const engine *e, FILE *out, digests **new)
{
    const size_t n_layers = (size_t)run->m->n_layers, n_params = (size_t)run->m->n_params;
    digests *d = calloc(1, sizeof *d);
    if (!d)
        return no_memory();
    *d = (digests){
        .run = *run, .e = e, .out = out, .n_added = 1 + n_layers, .n_copies = 2 * n_params};
    d->sums = calloc(d->n_added + d->n_copies + n_params, sizeof *d->sums);
    d->odd_rank = calloc(d->n_copies, sizeof *d->odd_rank);
    d->host = calloc(CHUNK_ELEMS, sizeof *d->host);
    if (!d->sums || !d->odd_rank || !d->host) {
        digests_free(d);
        return no_memory();
    }
    d->tokens = d->sums;
    d->outputs = d->tokens + 1;
    d->forward = d->outputs + n_layers;
    d->backward = d->forward + n_params;
    d->gradients = d->backward + n_params;
    if (out)
        fprintf(out, DIGEST_COLUMNS "\n");
    *new = d;
    return FSDP_OK;
}

/* The number of the unit, or that of units if there is none; names: of all of them. */
static int find_unit(const engine *e, const char *unit, char *names, size_t bytes)
{
    int found = e->n_units;
    size_t used = 0;
    for (int u = 0; u < e->n_units; u++) {
        const char *name = e->unit_name(e->self, u);
        found = strcmp(name, unit) == 0 ? u : found;
        if (used < bytes)
            used += (size_t)snprintf(names + used, bytes - used, "%s%s", u > 0 ? ", " : "", name);
    }
    return found;
}

fsdp_status digests_keep_values(digests *d, int64_t step, const char *unit, int64_t first,
                                int64_t end)
{
    const model *m = d->run.m;
    char names[256], hint[288];
    if (step < first || step >= end)
        return fsdp_error(FSDP_EINVAL, "name a step that this run makes",
                          "--digest-values: got step %lld, expected %lld to %lld", (long long)step,
                          (long long)first, (long long)end - 1);
    d->values_step = step;
    d->values_unit = find_unit(d->e, unit, names, sizeof names);
    snprintf(hint, sizeof hint, "the units of this run are %s", names);
    if (d->values_unit == d->e->n_units)
        return fsdp_error(FSDP_EINVAL, hint, "--digest-values: this run has no unit '%.64s'", unit);
    d->values = calloc((size_t)m->n_params, sizeof *d->values);
    if (!d->values)
        return no_memory();
    for (int i = 0; i < m->n_layers; i++)
        for (int p = m->layers[i].first_param, k = 0; k < m->layers[i].n_params; k++, p++)
            if (d->e->layer_unit[i] == d->values_unit &&
                !(d->values[p] = calloc(m->params[p].elems, sizeof **d->values)))
                return no_memory();
    return FSDP_OK;
}

size_t digests_end(digests *d)
{
    if (d->out)
        fprintf(d->out, "# end: %zu rows\n", d->n_rows);
    return d->n_rows;
}

void digests_free(digests *d)
{
    if (!d)
        return;
    for (int p = 0; p < d->run.m->n_params && d->values; p++)
        free(d->values[p]);
    free(d->values);
    free(d->sums);
    free(d->odd_rank);
    free(d->host);
    free(d);
}
