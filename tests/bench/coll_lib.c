/* coll_lib.c -- see coll_lib.h.
 *
 * A figure is the median over batches; a batch is n calls back to back, its time that of the
 * slowest rank divided by n, as nccl-tests has it. In the form of nccl-tests too: size is that of
 * the larger buffer, algbw = size / time, busbw = algbw * (bytes that a rank must send / size). */
#include "tests/bench/coll_lib.h"
#include <stdlib.h>
#include <string.h>
#include "tests/bench/bench_lib.h"

static const char *const OP_NAMES[COLL_OPS] = {"all-gather", "reduce-scatter", "all-reduce",
                                               "broadcast",  "all-to-all",     "barrier"};

enum { MAX_BATCHES = 15 };

bool coll_parse(int argc, char **argv, coll_options *o)
{
    *o = (coll_options){
        .backend = "auto", .min_bytes = 1024, .max_bytes = 64 << 20, .factor = 4, .budget_s = 0.5};
    bool good = argc % 2 == 1;
    for (int i = 1; i + 1 < argc && good; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--backend") == 0)
            o->backend = value;
        else if (strcmp(name, "--csv") == 0)
            o->csv = value;
        else if (strcmp(name, "--only") == 0)
            o->only = value;
        else if (strcmp(name, "--min-bytes") == 0)
            o->min_bytes = strtoull(value, NULL, 10);
        else if (strcmp(name, "--max-bytes") == 0)
            o->max_bytes = strtoull(value, NULL, 10);
        else if (strcmp(name, "--factor") == 0)
            o->factor = strtoull(value, NULL, 10);
        else if (strcmp(name, "--budget") == 0)
            o->budget_s = atof(value);
        else
            good = false;
    }
    good = good && o->factor >= 2 && o->min_bytes >= 256 && o->max_bytes >= o->min_bytes;
    if (!good)
        fprintf(stderr,
                "usage: %s [--backend auto|mpi|shm] [--csv FILE] [--only OPERATION]\n"
                "       [--min-bytes N (256 or more)] [--max-bytes N] [--factor N] [--budget "
                "SECONDS]\n",
                argv[0]);
    return good;
}

size_t coll_max_elems(const coll_options *o)
{
    return o->max_bytes / sizeof(float);
}

/* ---- inputs and checks --------------------------------------------------------------------- */

/* What rank r holds in element i of its buffer: 0 ... 7. */
static float coded(int r, size_t i)
{
    return (float)((i + (i >> 3) + 3 * (size_t)r) & 7);
}

static float coded_sum(int world, size_t i)
{
    float sum = 0;
    for (int r = 0; r < world; r++)
        sum += coded(r, i);
    return sum;
}

static void fill(coll_transport *t, coll_op op, size_t elems)
{
    size_t total = elems * (size_t)t->world, mine = elems * (size_t)t->rank;
    for (size_t i = 0; i < total; i++)
        t->buf[i] = coded(t->rank, i);
    if (op == COLL_ALL_GATHER)
        for (size_t i = 0; i < total; i++)
            t->buf[i] = i >= mine && i < mine + elems ? coded(t->rank, i - mine) : -1.0f;
    if (op == COLL_BROADCAST && t->rank != 0)
        memset(t->buf, 0, total * sizeof(float));
}

static float expected(const coll_transport *t, coll_op op, size_t elems, size_t i)
{
    size_t mine = elems * (size_t)t->rank;
    switch (op) {
    case COLL_ALL_GATHER:
        return coded((int)(i / elems), i % elems);
    case COLL_REDUCE_SCATTER:
        return coded_sum(t->world, mine + i);
    case COLL_ALL_REDUCE:
        return coded_sum(t->world, i);
    case COLL_BROADCAST:
        return coded(0, i);
    default:
        return coded((int)(i / elems), mine + i % elems);
    }
}

static size_t count_wrong(const coll_transport *t, coll_op op, size_t elems)
{
    bool separate = op == COLL_REDUCE_SCATTER || op == COLL_ALL_TO_ALL;
    const float *got = separate ? t->out : t->buf;
    size_t n = op == COLL_REDUCE_SCATTER ? elems : elems * (size_t)t->world, wrong = 0;
    for (size_t i = 0; i < n; i++)
        wrong += got[i] != expected(t, op, elems, i);
    return wrong;
}

static fsdp_status check(coll_transport *t, coll_op op, size_t elems, double *wrong)
{
    double greatest;
    *wrong = 0;
    if (op == COLL_BARRIER)
        return FSDP_OK;
    fill(t, op, elems);
    memset(t->out, 0, (op == COLL_REDUCE_SCATTER ? 1 : (size_t)t->world) * elems * sizeof(float));
    TRY(t->run(t, op, elems, 1));
    TRY(t->agree(t, (double)count_wrong(t, op, elems), &greatest, wrong));
    /* What follows is timed on zeros: repeated sums stay finite. */
    memset(t->buf, 0, elems * (size_t)t->world * sizeof(float));
    return FSDP_OK;
}

/* ---- time ---------------------------------------------------------------------------------- */

/* Seconds of a call, by the slowest rank. */
static fsdp_status time_batch(coll_transport *t, coll_op op, size_t elems, size_t n,
                              double *seconds)
{
    double greatest, sum;
    TRY(t->agree(t, 0, &greatest, &sum));
    double begun = bench_now_s();
    TRY(t->run(t, op, elems, n));
    TRY(t->agree(t, (bench_now_s() - begun) / (double)n, seconds, &sum));
    return FSDP_OK;
}

/* What a rank must send, as a share of `size`. */
static double bus_factor(coll_op op, int world)
{
    double others = (double)(world - 1) / world;
    if (op == COLL_BROADCAST)
        return 1;
    return op == COLL_ALL_REDUCE ? 2 * others : others;
}

static fsdp_status measure(coll_transport *t, const coll_options *o, coll_op op, size_t bytes,
                           FILE *csv)
{
    size_t elems = op == COLL_BARRIER ? 0 : bytes / sizeof(float) / (size_t)t->world;
    double seconds[MAX_BATCHES], once, wrong;
    TRY(check(t, op, elems, &wrong));
    TRY(time_batch(t, op, elems, 1,
                   &once)); /* the same on every rank, and so is what follows from it */
    size_t n = bench_reps(once, o->budget_s / MAX_BATCHES, 1, 200);
    size_t batches = bench_reps(once * (double)n, o->budget_s, 3, MAX_BATCHES);
    for (size_t i = 0; i < batches; i++)
        TRY(time_batch(t, op, elems, n, &seconds[i]));
    bench_quartiles q = bench_quartiles_of(seconds, batches);
    double size = (double)(elems * (size_t)t->world * sizeof(float));
    if (t->rank == 0)
        fprintf(csv, "%s,%d,%s,%.0f,%.0f,float,%.2f,%.2f,%.2f,%.3f,%.3f,%.0f\n", t->name, t->world,
                OP_NAMES[op], size, size / sizeof(float), 1e6 * q.median, 1e6 * q.q1, 1e6 * q.q3,
                1e-9 * size / q.median, 1e-9 * size * bus_factor(op, t->world) / q.median, wrong);
    return wrong == 0
               ? FSDP_OK
               : fsdp_error(FSDP_ESTATE, "", "%s of %zu bytes: %.0f wrong elements, expected 0",
                            OP_NAMES[op], bytes, wrong);
}

static fsdp_status measure_all(coll_transport *t, const coll_options *o, FILE *csv)
{
    for (coll_op op = 0; op < COLL_OPS; op++) {
        if (o->only != NULL && strcmp(o->only, OP_NAMES[op]) != 0)
            continue;
        for (size_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes *= o->factor) {
            TRY(measure(t, o, op, bytes, csv));
            if (op == COLL_BARRIER)
                break;
        }
    }
    return FSDP_OK;
}

fsdp_status coll_run(coll_transport *t, const coll_options *o)
{
    FILE *csv = stdout;
    if (t->rank == 0 && o->csv != NULL && (csv = fopen(o->csv, "w")) == NULL)
        return fsdp_error(FSDP_EIO, "pass a path that can be written", "cannot write %s", o->csv);
    fsdp_status status = measure_all(t, o, csv);
    if (csv != stdout && fclose(csv) != 0 && status == FSDP_OK)
        return fsdp_error(FSDP_EIO, "free space on that disk", "cannot write %s", o->csv);
    return status;
}
