/* coll_lib.c -- see coll_lib.h.
 *
 * A figure is the median over batches. A batch is n calls back to back; its time is the slowest
 * rank's time divided by n. As in nccl-tests, size is the size of the larger buffer, algbw = size /
 * time, busbw = algbw * (bytes that a rank must send / size). */
#include "tests/bench/coll_lib.h"
#include <stdlib.h>
#include <string.h>
#include "common/base/options.h"
#include "common/comm/comm.h"
#include "tests/bench/bench_lib.h"

static const char *const OP_NAMES[COLL_OPS] = {"all-gather", "reduce-scatter", "all-reduce",
                                               "all-to-all", "barrier"};

enum { MAX_BATCHES = 15 };
#define MOST_BYTES 4294967296.0 /* MPI counts elements in an int */

/* clang-format off */
#define FIELD(name) offsetof(coll_options, name)
static const option_spec OPTIONS[] = {
    {.name = "backend", .kind = OPT_ENUM, .offset = FIELD(backend), .def = "auto", .choices = "auto|mpi|shm",
     .group = "Collectives", .help = "transport; a peer has its own"},
    {.name = "only", .kind = OPT_ENUM, .offset = FIELD(only), .def = "all",
     .choices = "all-gather|reduce-scatter|all-reduce|all-to-all|barrier|all", .help = "which of them"},
    {.name = "min-bytes", .kind = OPT_INT, .offset = FIELD(min_bytes), .def = "1024", .min = 256, .max = MOST_BYTES,
     .help = "of the larger buffer of a rank"},
    {.name = "max-bytes", .kind = OPT_INT, .offset = FIELD(max_bytes), .def = "67108864", .min = 256, .max = MOST_BYTES,
     .help = "the same"},
    {.name = "factor", .kind = OPT_INT, .offset = FIELD(factor), .def = "4", .min = 2, .max = 1e6,
     .help = "from one size to the next"},
    {.name = "budget", .kind = OPT_DOUBLE, .offset = FIELD(budget_s), .def = "0.5", .min = 0, .max = 3600,
     .arg = "SECONDS", .help = "for one operation and size"},
    {.name = "csv", .kind = OPT_STRING, .offset = FIELD(csv), .arg = "FILE", .help = "write the table there"},
    {0}};
#undef FIELD
/* clang-format on */

fsdp_status coll_parse(const char *program, int argc, char **argv, coll_options *o)
{
    *o = (coll_options){0};
    TRY(options_parse(OPTIONS, program, argc, argv, o));
    if (o->max_bytes < o->min_bytes)
        return fsdp_error(FSDP_EINVAL, "pass --min-bytes and --max-bytes together",
                          "--max-bytes: got %lld, expected at least --min-bytes %lld",
                          (long long)o->max_bytes, (long long)o->min_bytes);
    return FSDP_OK;
}

int coll_leave(fsdp_status parsed, const char *program)
{
    bool ours_to_say = comm_launched_rank() == 0;
    char usage[64];
    snprintf(usage, sizeof usage, "%s [OPTION...]", program);
    if (parsed == FSDP_HELP)
        parsed = ours_to_say
                     ? options_print_help(OPTIONS, usage, "times and checks collectives of fp32")
                     : FSDP_OK;
    if (parsed != FSDP_OK && ours_to_say)
        fsdp_error_print(stderr, 0, 0);
    return parsed == FSDP_OK ? 0 : 2;
}

size_t coll_max_elems(const coll_options *o)
{
    return (size_t)o->max_bytes / sizeof(float);
}

/* ---- inputs and checks --------------------------------------------------------------------- */

/* Element i of rank r's buffer: 0 ... 7. */
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
    /* The timed calls sum zeros, so that repeated sums stay finite. */
    memset(t->buf, 0, elems * (size_t)t->world * sizeof(float));
    return FSDP_OK;
}

/* ---- time ---------------------------------------------------------------------------------- */

/* Seconds per call on the slowest rank. */
static fsdp_status time_batch(coll_transport *t, coll_op op, size_t elems, size_t n,
                              double *seconds)
{
    double greatest, sum;
    TRY(t->agree(t, 0, &greatest, &sum));
    double begun = clock_now_s();
    TRY(t->run(t, op, elems, n));
    TRY(t->agree(t, (clock_now_s() - begun) / (double)n, seconds, &sum));
    return FSDP_OK;
}

/* The bytes that a rank must send, as a share of `size`. */
static double bus_factor(coll_op op, int world)
{
    double others = (double)(world - 1) / world;
    return op == COLL_ALL_REDUCE ? 2 * others : others;
}

static fsdp_status measure(coll_transport *t, const coll_options *o, coll_op op, size_t bytes,
                           FILE *csv)
{
    size_t elems = op == COLL_BARRIER ? 0 : bytes / sizeof(float) / (size_t)t->world;
    double seconds[MAX_BATCHES], once, wrong;
    TRY(check(t, op, elems, &wrong));
    TRY(time_batch(t, op, elems, 1, &once)); /* the same on every rank, so n is too */
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
        if (o->only != COLL_OPS && o->only != (int)op)
            continue;
        for (int64_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes *= o->factor) {
            TRY(measure(t, o, op, (size_t)bytes, csv));
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
