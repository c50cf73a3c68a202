/* test_comm_order.c -- every collective tells what it touches: work on another stream that reaches
 * its buffers without an event is found by the order checker, on every rank and transport.
 *
 *   mpiexec -n W build/tests/unit/test_comm_order        any W >= 1
 *
 * A probe is a launch on another stream that tells one access and does nothing. Each collective is
 * issued once for every probe: slice r of what it reads is written, slice r of what it writes is
 * read. */
#include <stdlib.h>
#include "common/device/order_check.h"
#include "common/device/separate.h"
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

/* In place, so that nothing but the transport reads what is sent. */
static fsdp_status issue_all_gather(rig *x)
{
    return comm_all_gather(x->f->c, x->f->s, "probe", DTYPE_F32, x->out + (size_t)x->f->rank * x->n,
                           x->out, x->n);
}

/* The other stream may use what the first one has left: its memory is not new to the second. */
static fsdp_status issue_reduce_scatter(rig *x)
{
    TRY(comm_reduce_scatter(x->f->c, x->f->s, "probe", x->in, x->n, &x->acc, 0));
    TRY(event_record(x->e, x->f->s));
    TRY(stream_wait_event(x->side, x->e));
    return comm_reduce_scatter(x->f->c, x->f->s, "probe", x->in, x->n, &x->acc, 0);
}

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

static fsdp_status issue_gather_pieces(rig *x)
{
    return comm_all_gather_pieces(x->f->c, x->f->s, "probe", DTYPE_F32,
                                  x->in + (size_t)x->f->rank * x->n, x->out, halves(x));
}

static fsdp_status issue_scatter_pieces(rig *x)
{
    return comm_reduce_scatter_pieces(x->f->c, x->f->s, "probe", x->in, halves(x), &x->acc, 0);
}

static fsdp_status issue_all_reduce(rig *x)
{
    return comm_all_reduce(x->f->c, x->f->s, "probe", DTYPE_F32, x->out,
                           x->n * (size_t)x->f->world);
}

static fsdp_status issue_broadcast(rig *x)
{
    return comm_broadcast(x->f->c, x->f->s, "probe", DTYPE_F32, x->out, x->n * (size_t)x->f->world,
                          0);
}

static fsdp_status issue_all_to_all(rig *x)
{
    return comm_all_to_all(x->f->c, x->f->s, "probe", DTYPE_F32, x->in, x->out, x->n);
}

/* What a collective does with its arrays on this rank. */
typedef struct arrays {
    const float *read, *written; /* [world*n], NULL: none */
    bool own_slice_only;         /* that is all it reads */
    bool own_slice_stays;        /* that is not written */
} arrays;

static arrays of_all_gather(const rig *x)
{
    return (arrays){x->out, x->out, true, true};
}

static arrays of_reduce_scatter(const rig *x)
{
    return (arrays){.read = x->in};
}

static arrays of_gather_pieces(const rig *x)
{
    return (arrays){x->in, x->out, true, false};
}

/* One rank has nothing to do. */
static arrays of_all_reduce(const rig *x)
{
    return x->f->world > 1 ? (arrays){x->out, x->out, false, false} : (arrays){0};
}

static arrays of_broadcast(const rig *x)
{
    if (x->f->world == 1)
        return (arrays){0};
    return x->f->rank == 0 ? (arrays){.read = x->out} : (arrays){.written = x->out};
}

static arrays of_all_to_all(const rig *x)
{
    return (arrays){.read = x->in, .written = x->out};
}

/* ---- probes --------------------------------------------------------------------------------- */

static fsdp_status run_nothing(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    return FSDP_OK;
}

/* What follows the collective on the other stream. */
typedef struct probe {
    const float *at; /* NULL: nothing */
    size_t elems;
    bool writes;
    bool waits; /* for the collective */
} probe;

static fsdp_status touch(const rig *x, const probe *p)
{
    if (p->waits) {
        TRY(event_record(x->e, x->f->s));
        TRY(stream_wait_event(x->side, x->e));
    }
    mem_access a = {p->at, p->elems * sizeof *p->at, p->writes};
    return stream_launch_work(
        x->side,
        &(launch_config){.fn = run_nothing, .name = "probe", .accesses = &a, .n_accesses = 1});
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

typedef struct collective {
    const char *name;
    fsdp_status (*issue)(rig *x);
    arrays (*arrays_of)(const rig *x);
} collective;

/* Probe number i: of what is read, of what is written, and of the sum. */
static probe probe_of(const rig *x, const collective *c, int i)
{
    int world = x->f->world, slice = i % world;
    bool own = slice == x->f->rank;
    arrays a = c->arrays_of(x);
    if (i == 2 * world) {
        const float *sum = NULL;
        for (int k = 0; k < TREE_SUM_LEVELS; k++)
            sum = x->acc.tree.slot[k] != NULL ? x->acc.tree.slot[k] : sum;
        return (probe){.at = sum, .elems = 1};
    }
    if (i < world && a.read != NULL && (own || !a.own_slice_only) &&
        (world > 1 || !a.own_slice_only))
        return (probe){.at = a.read + (size_t)slice * x->n + x->n - 1, .elems = 1, .writes = true};
    if (i >= world && a.written != NULL && !(own && a.own_slice_stays))
        return (probe){.at = a.written + (size_t)slice * x->n, .elems = x->n};
    return (probe){.at = NULL};
}

/* The collective, then probe i; a new checker says whether something was missing. */
static fsdp_status probe_run(rig *x, const variant *v, const collective *c, int i, bool waits)
{
    order_check *check = order_check_create();
    const device_watch watch = order_check_watch(check);
    device_set_watch(x->f->dev, &watch);
    TRY(arrays_make(x, v));
    TRY(c->issue(x));
    probe p = probe_of(x, c, i);
    p.waits = waits;
    if (p.at != NULL)
        TRY(touch(x, &p));
    fsdp_status found = order_check_status(check);
    CHECK(x->f, found == (p.at == NULL || waits ? FSDP_OK : FSDP_EORDER),
          "%s, probe %d%s: got %s %.100s", c->name, i, waits ? " that waits" : "",
          fsdp_status_name(found), found == FSDP_OK ? "" : fsdp_error_get()->what);
    fsdp_status status = arrays_free(x);
    device_set_watch(x->f->dev, NULL);
    order_check_free(check);
    return status;
}

static void probe_all(rig *x, const variant *v)
{
    static const collective ALL[] = {
        {"all-gather", issue_all_gather, of_all_gather},
        {"reduce-scatter", issue_reduce_scatter, of_reduce_scatter},
        {"all-gather of pieces", issue_gather_pieces, of_gather_pieces},
        {"reduce-scatter of pieces", issue_scatter_pieces, of_reduce_scatter},
        {"all-reduce", issue_all_reduce, of_all_reduce},
        {"broadcast", issue_broadcast, of_broadcast},
        {"all-to-all", issue_all_to_all, of_all_to_all},
    };
    x->n = v->n;
    for (size_t c = 0; c < sizeof ALL / sizeof *ALL; c++)
        for (int i = 0; i <= 2 * x->f->world; i++)
            for (int waits = 0; waits < 2; waits++)
                CHECK_OK(x->f, probe_run(x, v, &ALL[c], i, waits));
}

/* All variants on a device, opened by comm_test_open. */
static void run_on_device(comm_fixture *f)
{
    static const variant VARIANTS[] = {{"small", 3, true, DTYPE_F32},
                                       {"shared", 1500, true, DTYPE_F32},
                                       {"copied", 1500, false, DTYPE_F32},
                                       {"rounded", 1500, true, DTYPE_BF16}};
    rig x = {.f = f, .side = device_compute_stream(f->dev)};
    if (event_create(f->dev, &x.e) != FSDP_OK) {
        fsdp_error_print(stderr, 0, 0);
        f->n_failed++;
        return;
    }
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) {
        f->why[0] = '\0';
        probe_all(&x, &VARIANTS[i]);
        fsdp_status mine = f->why[0] ? fsdp_error(FSDP_EINVAL, "", "%.190s", f->why) : FSDP_OK;
        bool passed = comm_agree(f->c, mine) == FSDP_OK;
        f->n_failed += !passed;
        if (f->rank == 0)
            printf("%s comm_order.%s on device %s%s%s\n", passed ? "PASS" : "FAIL",
                   VARIANTS[i].name, device_name(f->dev), passed ? "" : ": ",
                   passed ? "" : fsdp_error_get()->what);
    }
    event_free(x.e);
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
