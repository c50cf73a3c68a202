/* digests.c -- see digests.h. */
#include "common/steps/digests.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "common/base/hash.h"
#include "common/comm/comm.h"
#include "common/model/tensor_parallel.h"
#include "common/observe/digest_file.h"

enum { GATHER_BYTES = 2048 }; /* limit of comm_host_gather */

/* The kinds of rows: one for each runner_moment, and one for gradients. */
enum { GRADIENT = BEFORE_BACKWARD + 1 };
static const char *const KINDS[] = {"forward copy", "output", "backward copy", "reduced gradient"};

/* A row of the file. */
typedef struct row {
    digests *d;
    int kind;
    const char *name;
    int layer;
    const param_spec *param; /* NULL for an output */
    dtype type;
    uint64_t sum; /* over this rank's elements */
} row;

struct digests {
    run_context run;
    const engine *e;
    FILE *out;
    size_t n_written;
    uint32_t *host;            /* [elements of the largest array] the array hashed last */
    int64_t step, values_step; /* values_step: of --digest-values, or -1 */
    const char *values_unit;
    int micro;          /* the current or last micro-step */
    uint64_t outputs[]; /* [n_layers] sums of the outputs' hashes over the step so far */
};

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t hash_elem(uint64_t array, uint64_t index, uint64_t bits)
{
    const uint64_t words[] = {array, index, bits};
    return XXH3_64bits(words, sizeof words);
}

/* Identifies an array with the row's name. which: the sequence of an output, 0 for a parameter. */
static uint64_t array_of(const row *r, uint64_t which)
{
    return hash_elem(hash_bytes(r->name, strlen(r->name)), which, 0);
}

static uint32_t bits_at(const void *array, dtype type, size_t i)
{
    return type == DTYPE_BF16 ? ((const uint16_t *)array)[i] : ((const uint32_t *)array)[i];
}

/* Add the hashes of an array's elements from `begin` on to the row's sum. `at`: the elements, in
 * device memory. Waits for the compute stream, and leaves the elements in d->host. */
static fsdp_status add(row *r, uint64_t which, size_t begin, const void *at, size_t elems)
{
    stream *s = device_compute_stream(r->d->run.dev);
    const uint64_t array = array_of(r, which);
    char *host = (char *)r->d->host + begin * dtype_bytes(r->type);
    TRY(device_download(s, host, at, elems * dtype_bytes(r->type)));
    TRY(stream_sync(s));
    for (size_t i = 0; i < elems; i++)
        r->sum += hash_elem(array, begin + i, bits_at(host, r->type, i));
    return FSDP_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static const char *unit_of(const row *r)
{
    const engine *e = r->d->e;
    return e->unit_name(e->self, e->layer_unit[r->layer]);
}

/* Write "step,micro,unit,kind,name,hash,", the beginning of every row. */
static void put_head(const row *r, uint64_t hash)
{
    digests *d = r->d;
    d->n_written++;
    fprintf(d->out, "%lld,%d,%s,%s,%s,%016llx,", (long long)d->step, d->micro, unit_of(r),
            KINDS[r->kind], r->name, (unsigned long long)hash);
}

static void put_element(const row *r, uint32_t bits, size_t i)
{
    const size_t columns = r->param->cut.dims[r->param->n_dims - 1];
    const uint32_t wide = r->type == DTYPE_BF16 ? bits << 16 : bits;
    float value;
    size_t run;
    memcpy(&value, &wide, sizeof value);
    put_head(r, hash_elem(array_of(r, 0), i, bits));
    i = param_in_file(r->param, i, &run);
    fprintf(r->d->out, "element %zu (row %zu column %zu),%.9g (%0*x)\n", i, i / columns,
            i % columns, (double)value, 2 * (int)dtype_bytes(r->type), bits);
}

/* Whether a rank has only some tokens of the output of layer i. The last layer's is the loss. */
static bool is_cut(const digests *d, int i)
{
    return d->run.m->token_parts > 1 && i + 1 < d->run.m->n_layers;
}

/* The ranks whose parts of an array make up the whole. A parameter of which all ranks, or all data
 * ranks, have copies is on rank 0 and, if it is cut, on the next tp ranks. Where a copy differs,
 * the last rank that differs stands in for rank 0, since rank 0's copy may be the right one. Of
 * outputs the tp ranks have copies, too; of gradients every element is on one rank. */
static bool has_part(const row *r, const uint64_t *sums, int rank)
{
    const run_context *run = &r->d->run;
    const int size = comm_size(run->world), tp = run->shape.size[AXIS_TP];
    int taken = rank % tp;
    if (!r->param)
        return mesh_leaf_of(&run->shape, rank) >= 0 || is_cut(r->d, r->layer);
    if (r->kind == GRADIENT)
        return true;
    for (int other = taken + tp; other < size; other += tp)
        taken = sums[other] != sums[rank % tp] ? other : taken;
    return rank == taken && !param_is_elsewhere(r->param, run->m->config.tp_blocks, rank % tp, tp);
}

/* Write a row for each element of an array. Ranks that has_part have zeros in place of the elements
 * that others have. */
static fsdp_status put_elements(const row *r, const uint64_t *sums)
{
    const size_t bytes = dtype_bytes(r->type), most = GATHER_BYTES / bytes;
    for (size_t begin = 0, n; begin < r->param->cut.elems; begin += n) {
        const char *mine = (const char *)r->d->host + begin * bytes;
        void *all;
        n = r->param->cut.elems - begin < most ? r->param->cut.elems - begin : most;
        TRY(comm_host_gather(r->d->run.world, "elements", mine, n * bytes, &all));
        for (size_t i = 0; i < n && r->d->out; i++) {
            uint32_t bits = 0;
            for (int rank = 0; rank < r->d->run.shape.world_size; rank++)
                bits |= has_part(r, sums, rank) ? bits_at(all, r->type, (size_t)rank * n + i) : 0;
            put_element(r, bits, begin + i);
        }
        free(all);
    }
    return FSDP_OK;
}

/* Write a row with the total of the sums of the ranks that has_part. */
static fsdp_status put_row(const row *r)
{
    digests *d = r->d;
    const int tp = d->run.shape.size[AXIS_TP];
    int differs = 0;
    uint64_t sum = 0;
    void *all;
    TRY(comm_host_gather(d->run.world, "digests", &r->sum, sizeof r->sum, &all));
    for (int rank = 0; rank < comm_size(d->run.world); rank++) {
        const bool adds = has_part(r, all, rank);
        sum += adds ? ((const uint64_t *)all)[rank] : 0;
        differs = adds && r->param && r->kind != GRADIENT && rank >= tp ? rank : differs;
    }
    fsdp_status status = FSDP_OK;
    if (r->param && d->step == d->values_step && unit_of(r) == d->values_unit)
        status = put_elements(r, all);
    free(all);
    if (d->out && status == FSDP_OK) {
        put_head(r, sum);
        fprintf(d->out, differs > 0 ? ",rank %d's differs from rank %d's\n" : ",\n", differs,
                differs % tp);
    }
    return status;
}

/* ---- what is hashed -------------------------------------------------------------------------- */

static fsdp_status put_outputs(digests *d, const runner *from, const micro_step *ms, int i)
{
    row r = {d, AFTER_FORWARD, d->run.m->layers[i].name, i, .sum = ms->a > 0 ? d->outputs[i] : 0};
    for (size_t j = 0, elems; j < d->run.batch; j++) {
        const void *at = runner_output(from, i, j, &r.type, &elems);
        const size_t part = is_cut(d, i) ? (size_t)d->run.shape.at[AXIS_TP] : 0;
        TRY(add(&r, ms->first_sample + j, part * elems, at, elems));
    }
    d->outputs[i] = r.sum;
    return put_row(&r);
}

/* Write rows of layer i's parameters as the model is about to read them, or of their gradients. */
static fsdp_status put_params(digests *d, int kind, int i)
{
    const layer *l = &d->run.m->layers[i];
    for (int p = l->first_param; p < l->first_param + l->n_params; p++) {
        const param_spec *spec = &d->run.m->params[p];
        row r = {d, kind, spec->name, i, spec, d->run.param_dtype, 0};
        engine_piece piece = {spec->cut.begin, spec->elems, d->e->views->params[p]};
        memset(d->host, 0, spec->cut.elems * sizeof *d->host);
        if (kind == GRADIENT) {
            if (spec->tied_to != NOT_TIED || spec->frozen)
                continue;
            r.type = DTYPE_F32;
            TRY(d->e->find_grad(d->e->self, p, &piece));
        }
        TRY(add(&r, 0, piece.begin, piece.values, piece.elems));
        TRY(put_row(&r));
    }
    return FSDP_OK;
}

fsdp_status digests_look(void *self, const runner *r, const micro_step *ms, runner_moment when,
                         int i)
{
    digests *d = self;
    if (ms) {
        const uint64_t n_ranks = (uint64_t)mesh_data_size(&d->run.shape);
        d->micro = ms->a;
        d->step = (int64_t)(ms->first_sample / ((uint64_t)ms->n_micro * n_ranks * d->run.batch));
    }
    return when == AFTER_FORWARD ? put_outputs(d, r, ms, i) : put_params(d, (int)when, i);
}

fsdp_status digests_end_step(digests *d)
{
    for (int i = d->run.m->n_layers - 1; i >= 0; i--)
        TRY(put_params(d, GRADIENT, i));
    return FSDP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Write the facts about the run. "micro-batch" gives three numbers: micro-steps in a step, series
 * of consecutive sequences in a micro-step, and sequences in a series. If two runs have the same
 * three numbers, their micro-steps have the same sequences. */
static void put_facts(digests *d, const ckpt_about *about)
{
    const run_context *run = &d->run;
    const size_t n_ranks = (size_t)mesh_data_size(&run->shape);
    const size_t n_series = run->no_sync && run->grad_accum > 1 ? n_ranks : 1;
    fprintf(d->out, DIGEST_TITLE "\n# micro-batch: %d of %zu x %zu sequences\n# ops: %s\n",
            run->grad_accum, n_series, n_ranks * run->batch / n_series, run->ops->name);
    for (int i = 0; about && i < about->n; i++)
        fprintf(d->out, "# %s: %s\n", about->facts[i].name, about->facts[i].value);
    fprintf(d->out, DIGEST_COLUMNS "\n");
}

fsdp_status digests_create(const run_context *run, const engine *e, const ckpt_about *about,
                           FILE *out, digests **new)
{
    const model *m = run->m;
    size_t most = 1;
    for (int i = 0; i < m->n_layers; i++) {
        const size_t width = m->layers[i].out_width;
        most = run->seq_len * width > most ? run->seq_len * width : most;
    }
    for (int p = 0; p < m->n_params; p++)
        most = m->params[p].cut.elems > most ? m->params[p].cut.elems : most;
    digests *d = calloc(1, sizeof *d + (size_t)m->n_layers * sizeof *d->outputs);
    *new = d;
    if (d) {
        *d = (digests){.run = *run, .e = e, .out = out, .values_step = -1};
        d->host = malloc(most * sizeof *d->host);
    }
    if (!d || !d->host)
        return fsdp_error(FSDP_ENOMEM, "", "digests: no host memory");
    if (out)
        put_facts(d, about);
    return FSDP_OK;
}

fsdp_status digests_keep_values(digests *d, const char *text, int64_t first, int64_t end)
{
    char hint[320] = "pass a step that this run makes, and one of its units:", *unit;
    d->values_step = strtoll(text, &unit, 10);
    for (int u = 0; u < d->e->n_units; u++) {
        const char *name = d->e->unit_name(d->e->self, u);
        const size_t used = strlen(hint);
        snprintf(hint + used, sizeof hint - used, "%s %s", u > 0 ? "," : "", name);
        if (*unit == ':' && strcmp(name, unit + 1) == 0)
            d->values_unit = name;
    }
    if (unit > text && d->values_unit && d->values_step >= first && d->values_step < end)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, hint,
                      "--digest-values: got '%.64s', expected STEP:UNIT, a step from %lld to %lld",
                      text, (long long)first, (long long)end - 1);
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
    free(d->host);
    free(d);
}
