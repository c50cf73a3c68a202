/* test_comm_order.c -- every collective declares what it touches: the order checker finds work on
 * another stream that uses the same buffers without an event, on every rank and transport.
 *
 *   build/fsdp_run -n W build/tests/unit/test_comm_order        any W >= 1
 *
 * A probe is a launch on another stream that declares one access and does nothing. Each collective
 * is issued once for every probe: a probe writes slice r of what the collective reads, or reads
 * slice r of what it writes. */
#include <stdlib.h>
#include "common/device/instruments/order_check.h"
#include "common/device/instruments/separate.h"
#include "common/ops/ops.h"
#include "tests/unit/comm_cases_lib.h"

typedef struct rig {
    comm_fixture *f;
    stream *side;
    event *e;
    float *in, *out; /* [world*n] */
    size_t n;
    grad_acc acc;
    comm_piece list[2 * 64];
    comm_pieces pieces;
} rig;

/* ---- the collectives ------------------------------------------------------------------------ */

typedef enum kind { GATHER, SCATTER, GATHER_PIECES, SCATTER_PIECES, REDUCE, TO_ALL, KINDS } kind;

/* Each rank has its slice of the array, with the halves exchanged. */
static const comm_pieces *halves(rig *x)
{
    const size_t n = x->n, half = n / 2;
    for (size_t r = 0; r < (size_t)x->f->world; r++) {
        x->list[2 * r] = (comm_piece){.at = r * n, .begin = r * n + half, .elems = n - half};
        x->list[2 * r + 1] = (comm_piece){.at = (r + 1) * n - half, .begin = r * n, .elems = half};
    }
    x->pieces = (comm_pieces){x->list, 2 * (size_t)x->f->world, n};
    return &x->pieces;
}

static fsdp_status issue(rig *x, kind k)
{
    comm *c = x->f->c;
    stream *s = x->f->s;
    const char *l = "probe";
    const size_t n = x->n, all = n * (size_t)x->f->world, own = n * (size_t)x->f->rank;
    switch (k) {
    case GATHER: /* in place: nothing but the transport reads what is sent */
        return comm_all_gather(c, s, l, DTYPE_F32, x->out + own, x->out, n);
    case SCATTER: /* the second call adds to a sum that the other stream may use */
        TRY(comm_reduce_scatter(c, s, l, x->in, n, &x->acc, 0));
        TRY(event_record(x->e, s));
        TRY(stream_wait_event(x->side, x->e));
        return comm_reduce_scatter(c, s, l, x->in, n, &x->acc, 0);
    case GATHER_PIECES:
        return comm_all_gather_pieces(c, s, l, DTYPE_F32, x->in + own, x->out, halves(x));
    case SCATTER_PIECES:
        return comm_reduce_scatter_pieces(c, s, l, x->in, halves(x), &x->acc, 0);
    case REDUCE:
        return comm_all_reduce(c, s, l, DTYPE_F32, x->out, all);
    default:
        return comm_all_to_all(c, s, l, DTYPE_F32, x->in, x->out, n);
    }
}

/* Does this rank read (else write) slice `slice` of x->in (else of x->out) in the collective? */
static bool touches(const rig *x, kind k, bool in, bool reads, int slice)
{
    const bool own = slice == x->f->rank, alone = x->f->world == 1;
    switch (k) {
    case GATHER: /* in place: its own slice is read */
        return !in && !alone && reads == own;
    case SCATTER:
    case SCATTER_PIECES:
        return in && reads;
    case GATHER_PIECES:
        return in ? reads && own && !alone : !reads;
    case REDUCE: /* a single rank has nothing to do */
        return !in && !alone;
    default:
        return in == reads;
    }
}

/* ---- probes --------------------------------------------------------------------------------- */

static fsdp_status run_nothing(void *args, int n_threads)
{
    return FSDP_OK;
}

/* What comes after the collective on the other stream. */
static fsdp_status touch(const rig *x, const mem_access *probe, bool waits)
{
    if (waits) {
        TRY(event_record(x->e, x->f->s));
        TRY(stream_wait_event(x->side, x->e));
    }
    return stream_launch_work(
        x->side,
        &(launch_config){.fn = run_nothing, .name = "probe", .accesses = probe, .n_accesses = 1});
}

/* One way to run all collectives. */
typedef struct variant {
    const char *name;
    size_t n;    /* elements of a slice */
    bool shared; /* memory that peers can read in place */
    dtype sums;
} variant;

static fsdp_status array_make(const rig *x, bool shared, float **out)
{
    size_t bytes = x->n * (size_t)x->f->world * sizeof(float);
    void *ptr;
    if (shared)
        TRY(comm_alloc(x->f->c, x->side, MEM_OTHER, bytes, "array", &ptr));
    else
        TRY(device_alloc(x->side, MEM_OTHER, bytes, "array", &ptr));
    *out = ptr;
    return device_zero(x->side, ptr, bytes);
}

/* Arrays that both streams may use. */
static fsdp_status arrays_make(rig *x, const variant *v)
{
    TRY(array_make(x, v->shared, &x->in));
    TRY(array_make(x, v->shared, &x->out));
    TRY(event_record(x->e, x->side));
    TRY(stream_wait_event(x->f->s, x->e));
    grad_acc_init(&x->acc, GRAD_ACC_CANONICAL, ops_cpu_portable()->sums, x->n, MEM_OTHER, "sum");
    x->acc.sum_dtype = v->sums;
    return FSDP_OK;
}

static fsdp_status arrays_free(rig *x)
{
    TRY(stream_sync(x->f->s));
    TRY(stream_sync(x->side));
    grad_acc_free(&x->acc, x->side);
    device_free(x->side, x->in);
    device_free(x->side, x->out);
    return stream_sync(x->side);
}

/* Probe number i (ptr NULL: none): of the slices that are read, of the slices that are written,
 * then of the sum. */
static mem_access probe_of(const rig *x, kind k, int i)
{
    const int world = x->f->world, slice = i % world;
    const bool reads = i < world;
    if (i == 2 * world) {
        const float *sum = NULL;
        for (int level = 0; level < TREE_SUM_LEVELS; level++)
            sum = x->acc.tree.slot[level] != NULL ? x->acc.tree.slot[level] : sum;
        return (mem_access){.ptr = sum, .bytes = sizeof *sum};
    }
    const float *array = touches(x, k, true, reads, slice)    ? x->in
                         : touches(x, k, false, reads, slice) ? x->out
                                                              : NULL;
    if (array == NULL)
        return (mem_access){.ptr = NULL};
    array += (size_t)slice * x->n;
    return reads ? (mem_access){array + x->n - 1, sizeof *array, true}
                 : (mem_access){array, x->n * sizeof *array, false};
}

/* Issues the collective, then probe i. A new checker reports whether an event is missing. */
static fsdp_status probe_run(rig *x, const variant *v, kind k, int i, bool waits)
{
    static const char *const NAMES[KINDS] = {"all-gather",           "reduce-scatter",
                                             "all-gather of pieces", "reduce-scatter of pieces",
                                             "all-reduce",           "all-to-all"};
    order_check *check = order_check_create();
    const device_watch watch = order_check_watch(check);
    device_set_watch(x->f->dev, &watch);
    TRY(arrays_make(x, v));
    TRY(issue(x, k));
    const mem_access p = probe_of(x, k, i);
    if (p.ptr != NULL)
        TRY(touch(x, &p, waits));
    fsdp_status found = order_check_status(check);
    CHECK(x->f, found == (p.ptr == NULL || waits ? FSDP_OK : FSDP_EORDER),
          "%s, probe %d%s: got %s %.100s", NAMES[k], i, waits ? " that waits" : "",
          fsdp_status_name(found), found == FSDP_OK ? "" : fsdp_error_get()->what);
    fsdp_status status = arrays_free(x);
    device_set_watch(x->f->dev, NULL);
    order_check_free(check);
    return status;
}

static const variant VARIANTS[] = {{"small", 3, true, DTYPE_F32},
                                   {"shared", 1500, true, DTYPE_F32},
                                   {"copied", 1500, false, DTYPE_F32},
                                   {"rounded", 1500, true, DTYPE_BF16}};
static const variant *now; /* the variant that runs */

static void probe_all(comm_fixture *f)
{
    rig x = {.f = f, .side = device_compute_stream(f->dev), .n = now->n};
    CHECK_OK(f, event_create(f->dev, &x.e));
    for (kind k = GATHER; k < KINDS; k++)
        for (int i = 0; i <= 2 * f->world; i++)
            for (int waits = 0; waits < 2 && f->why[0] == '\0'; waits++)
                CHECK_OK(f, probe_run(&x, now, k, i, waits));
    event_free(x.e);
}

static void run_on_device(comm_fixture *f)
{
    char name[80];
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) {
        now = &VARIANTS[i];
        snprintf(name, sizeof name, "comm_order.%s on device %s", now->name, device_name(f->dev));
        comm_test_run(f, name, probe_all);
    }
}

int main(void)
{
    comm_fixture f, staged;
    if (comm_test_open(&f, &device_cpu, true) != FSDP_OK)
        return 1;
    run_on_device(&f);
    if (comm_test_open(&staged, &device_separate, true) != FSDP_OK)
        return 1;
    run_on_device(&staged);
    f.n_failed += staged.n_failed;
    comm_test_end(&staged);
    return comm_test_close(&f);
}
