/* lab2.c -- the task tests of lab 2: unshard, views, reshard, forward hooks, a whole forward pass.
 *
 * 2.1 to 2.4 work on the literal fixture; a state that an earlier task would have made is made by
 * hand (hand_gather). What must be ordered by events is tested behind a gate: one stream is held up
 * while the host goes on. A check that fails on one rank never skips a collective that its peers
 * are in: results are collected in `st` by first_failure(), and compared after the calls.
 *
 * Task 2.5, a whole forward pass, stands in forward_lib.c. */
#include <math.h>
#include <string.h>
#include <time.h>
#include "tests/grade/forward_lib.h"
#include "tests/grade/literal_lib.h"

/* Two parameters with a gap; 5 over 4 ranks (2,2,1,0); one element; a gap and an odd end. */
enum { N_UNITS = 4 };
static const size_t ELEMS[N_UNITS][2] = {{13, 7}, {5, 0}, {1, 0}, {6, 3}};
enum { MAX_ELEMS = 64 };

/* end_fixture -- give back the first failure with its words. After a failure the program ends, and
 * who owns what is unknown: nothing is freed then. */
static fsdp_status end_fixture(fsdp *f, fsdp_status st, const fsdp_error_info *why)
{
    if (st == FSDP_OK || st == FSDP_ETODO)
        literal_fsdp_free(f);
    if (st != FSDP_OK)
        fsdp_error_set(why);
    return st;
}

static void wanted_full(const fsdp *f, int u, float *full)
{
    for (size_t j = 0; j < f->units[u].layout.padded_elems; j++)
        full[j] = literal_value(f, u, j);
}

/* The gathered array, read behind the communication stream, is what the ranks' shards make up. */
static fsdp_status check_full(const fsdp *f, int u, const char *what)
{
    const fsdp_unit *unit = &f->units[u];
    float got[MAX_ELEMS], want[MAX_ELEMS];
    char text[96];
    snprintf(text, sizeof text, "%s: unit %s: full", what, unit->name);
    if (!unit->full)
        return fsdp_error(FSDP_EINVAL, "", "%s is NULL", text);
    TRY(stream_sync(f->compute));
    TRY(grade_read(f->comm_stream, unit->full, unit->layout.padded_elems * sizeof *got, got));
    wanted_full(f, u, want);
    return expect_f32(text, got, want, unit->layout.padded_elems);
}

/* The master copy is what the fixture put there. */
static fsdp_status check_shard(const fsdp *f, int u, const char *what)
{
    const fsdp_unit *unit = &f->units[u];
    size_t n = unit->layout.shard_elems;
    float got[MAX_ELEMS], want[MAX_ELEMS * 4];
    char text[96];
    snprintf(text, sizeof text, "%s: unit %s: shard (the master copy)", what, unit->name);
    TRY(stream_sync(f->comm_stream));
    TRY(grade_read(f->compute, unit->shard, n * sizeof *got, got));
    wanted_full(f, u, want);
    return expect_f32(text, got, want + (size_t)f->mesh.shape.shard_rank * n, n);
}

/* ---- 2.1 ----------------------------------------------------------------------------------- */
/* What unshard_begin copies: the second watch of the device. */
typedef struct copy_count {
    atomic_int copies;
    const float *shard;
    atomic_int of_shard;
} copy_count;

static uint64_t count_copy(void *self, const device_act *act)
{
    copy_count *c = self;
    if (act->kind == ACT_COPY)
        atomic_fetch_add(&c->copies, 1);
    if (act->kind == ACT_COPY && act->src == c->shard)
        atomic_fetch_add(&c->of_shard, 1);
    return 0;
}

/* The shard goes straight to its place: an all-gather from anywhere else copies once more, and a
 * buffer that is not comm_alloc's is not shown to peers. */
static fsdp_status check_in_place(grade *g, fsdp *f, int u, const copy_count *c)
{
    const fsdp_unit *unit = &f->units[u];
    const size_t bytes = unit->layout.padded_elems * sizeof(float);
    device_share at;
    void *shown;
    /* a staged transport copies, too */
    if (strstr(comm_backend_name(f->gather_group), "+staged") == NULL)
        TRY(expect_int("unshard_begin: copies (1: the all-gather is in place)",
                       atomic_load(&c->copies), 1));
    TRY(expect_int("unshard_begin: copies that read the shard", atomic_load(&c->of_shard), 1));
    TRY(comm_alloc(f->gather_group, g->compute, MEM_OTHER, bytes, "probe", &shown));
    const bool is_shown = device_share_find(g->dev, unit->full, bytes, &at);
    const bool wanted = device_share_find(g->dev, shown, bytes, &at);
    device_free(g->compute, shown);
    return EXPECT(is_shown == wanted, "allocate full with comm_alloc of gather_group",
                  "unshard_begin of %s: full is device memory that peers cannot see, expected "
                  "comm_alloc's",
                  unit->name);
}

static fsdp_status expect_no_views(const fsdp *f, const char *when)
{
    for (int p = 0; p < f->run.m->n_params; p++)
        if (f->views.params[p])
            return fsdp_error(FSDP_EINVAL, "", "views.params[%d] %s: expected NULL", p, when);
    return FSDP_OK;
}

/* What waits for `gathered` may read the array: g->order sees whether the event was recorded behind
 * the gather. */
static fsdp_status read_behind_gathered(const fsdp *f, int u)
{
    static float got[MAX_ELEMS]; /* written when the stream comes to it */
    const fsdp_unit *unit = &f->units[u];
    if (!unit->full)
        return FSDP_OK; /* check_full reports it */
    TRY(stream_wait_event(f->compute, unit->gathered));
    return grade_fetch(f->compute, unit->full, unit->layout.padded_elems * sizeof *got, got);
}

static fsdp_status begin_and_check(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    size_t n = unit->layout.shard_elems, bytes_before;
    copy_count copies = {.shard = unit->shard};
    comm_job_stats_reset(g->comm);
    bytes_before = grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL);
    device_set_second_watch(g->dev, &(device_watch){.self = &copies, .issued = count_copy});
    const fsdp_status begun = unshard_begin(f, u);
    device_set_second_watch(g->dev, NULL);
    TRY(begun);
    TRY(expect_state("state after unshard_begin", unit->state, UNIT_GATHERING));
    TRY(expect_no_views(f, "after unshard_begin (bound before the wait?)"));
    TRY(unshard_begin(f, u)); /* no-op */
    TRY(read_behind_gathered(f, u));
    size_t grown = grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL) - bytes_before;
    TRY(check_full(f, u, "unshard_begin"));
    TRY(check_shard(f, u, "unshard_begin"));
    TRY(EXPECT(
        event_done(unit->gathered), "event_record it after comm_all_gather",
        "unshard_begin of %s: event `gathered` is not reached although gather_stream has run "
        "all, expected it recorded on gather_stream",
        unit->name));
    comm_stats s = comm_job_stats_read(g->comm);
    TRY(expect_int("all-gathers", (long long)s.calls[COMM_OP_ALL_GATHER], 1));
    TRY(expect_int("bytes sent", (long long)s.bytes_sent[COMM_OP_ALL_GATHER],
                   (long long)((size_t)(f->mesh.shape.shard_size - 1) * n * sizeof(float))));
    TRY(check_in_place(g, f, u, &copies));
    for (int op = 0; op < COMM_OPS; op++)
        if (op != COMM_OP_ALL_GATHER)
            TRY(expect_int(comm_op_name((comm_op)op), (long long)s.calls[op], 0));
    return expect_int("bytes of the gathered array", (long long)grown,
                      (long long)(unit->layout.padded_elems * sizeof(float)));
}

typedef struct add_args_host {
    float *x;
    size_t elems;
} add_args_host;

static fsdp_status add_half(void *args, int n_threads)
{
    (void)n_threads;
    const add_args_host *a = args;
    for (size_t i = 0; i < a->elems; i++)
        a->x[i] += 0.5f;
    return FSDP_OK;
}

/* The optimizer, as these tests know it. */
static fsdp_status update_shard(stream *s, float *shard, size_t elems)
{
    return grade_launch(s, add_half, &(add_args_host){shard, elems}, sizeof(add_args_host),
                        (mem_access){shard, elems * sizeof *shard, true});
}

/* Has it happened within limit_ms, while another stream is held up? */
static bool done_within(event *e, int limit_ms)
{
    const struct timespec nap = {.tv_nsec = 1000 * 1000};
    for (int ms = 0; ms < limit_ms && !event_done(e); ms++)
        nanosleep(&nap, NULL);
    return event_done(e);
}

static bool gathers_within(const fsdp *f, int u, int limit_ms)
{
    return done_within(f->units[u].gathered, limit_ms);
}

enum { GATHER_MS = 8000, HELD_MS = 30 };

/* The compute stream is held up before an update of the shard ("the optimizer"); a gather begun now
 * must carry the updated values. */
static fsdp_status gather_after_update(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    size_t n = unit->layout.shard_elems, padded = unit->layout.padded_elems;
    float got[MAX_ELEMS], want[MAX_ELEMS];
    fsdp_error_info why;
    fsdp_status st = gate_close(g, f->compute);
    st = first_failure(st, update_shard(f->compute, unit->shard, n), &why);
    st = first_failure(st, unshard_begin(f, u), &why);
    bool ended = gathers_within(f, u, HELD_MS); /* a gather that does not wait ends in this time */
    st = first_failure(st, gate_open(g, "unshard_begin"), &why);
    TRY(st);
    TRY(EXPECT(!ended, "issue the copy and the gather on gather_stream, which waits for compute",
               "unshard_begin of %s: the gather ended while compute stood before an update of the "
               "shard, expected it to wait for all that compute has (no gather_after)",
               unit->name));
    TRY(stream_sync(f->compute));
    TRY(grade_read(f->comm_stream, unit->full, padded * sizeof *got, got));
    wanted_full(f, u, want);
    for (size_t j = 0; j < padded; j++)
        want[j] += 0.5f;
    return expect_f32("gather behind an update of the shard (stale values?): full", got, want,
                      padded);
}

/* Compute is held up, and what gathers wait for is set: to an event before that (early: the gather
 * ends all the same), or to one behind it (the gather must not start). */
static fsdp_status gather_after_event(grade *g, fsdp *f, int u, bool early)
{
    event *after = NULL;
    fsdp_error_info why;
    TRY(unshard_drop(f, u));
    TRY(event_create(g->dev, &after));
    fsdp_status st = early ? event_record(after, f->compute) : FSDP_OK;
    st = first_failure(st, gate_close(g, f->compute), &why);
    if (!early)
        st = first_failure(st, event_record(after, f->compute), &why);
    f->gather_after = after;
    st = first_failure(st, unshard_begin(f, u), &why);
    bool ended = gathers_within(f, u, early ? GATHER_MS : HELD_MS);
    f->gather_after = NULL;
    st = first_failure(st, gate_open(g, "unshard_begin"), &why);
    st = first_failure(st,
                       early ? EXPECT(ended,
                                      "compute itself must not be waited for: lab 5 gathers "
                                      "ahead",
                                      "unshard_begin of %s: the gather stood still with compute, "
                                      "expected it to wait for gather_after only, which was done",
                                      f->units[u].name)
                             : EXPECT(!ended, "issue the copy and the gather on gather_stream",
                                      "unshard_begin of %s: the gather ended before gather_after, "
                                      "expected it to wait for that event",
                                      f->units[u].name),
                       &why);
    st = first_failure(st, check_full(f, u, "gather_after"), &why);
    event_free(after);
    if (st != FSDP_OK)
        fsdp_error_set(&why);
    return st;
}

/* The gather is held up; nobody waits for it before unshard_wait. */
static fsdp_status nobody_waits(grade *g, fsdp *f, int u)
{
    event *after = NULL;
    fsdp_error_info why;
    TRY(unshard_drop(f, u));
    TRY(event_create(g->dev, &after));
    fsdp_status st = gate_close(g, f->gather_stream);
    st = first_failure(st, unshard_begin(f, u), &why);
    st = first_failure(st, event_record(after, f->compute), &why);
    bool ended = done_within(after, GATHER_MS);
    st = first_failure(st, gate_open(g, "unshard_begin"), &why);
    st = first_failure(st,
                       EXPECT(ended, "unshard_wait makes compute wait, not unshard_begin",
                              "unshard_begin of %s: compute stood still while the gather did, "
                              "expected it to go on until unshard_wait",
                              f->units[u].name),
                       &why);
    st = first_failure(st, check_full(f, u, "held up"), &why);
    event_free(after);
    if (st != FSDP_OK)
        fsdp_error_set(&why);
    return st;
}

/* Gathers may have a stream of their own (lab 5): then they ask no other. */
static fsdp_status gather_on_its_stream(grade *g, fsdp *f, int u)
{
    fsdp_error_info why;
    TRY(unshard_drop(f, u));
    fsdp_status st = stream_create(g->dev, &(stream_config){.name = "gather"}, &f->gather_stream);
    st = first_failure(st, gate_close(g, f->comm_stream), &why);
    st = first_failure(st, unshard_begin(f, u), &why);
    bool ended = gathers_within(f, u, GATHER_MS);
    st = first_failure(st, gate_open(g, "unshard_begin"), &why);
    st = first_failure(st,
                       EXPECT(ended, "f->gather_stream, not f->comm_stream, is where gathers run",
                              "unshard_begin of %s: the gather stood still with comm_stream, "
                              "expected it on gather_stream, which is another stream here",
                              f->units[u].name),
                       &why);
    st = first_failure(st, stream_sync(f->gather_stream), &why);
    st = first_failure(st, check_full(f, u, "gather_stream"), &why);
    TRY(unshard_drop(f, u));
    if (st != FSDP_OK)
        fsdp_error_set(&why);
    else
        stream_free(f->gather_stream);
    f->gather_stream = f->comm_stream;
    return st;
}

/* Every rank is a shard group of its own: gather_group, not the world, and shard_rank, not the rank
 * of the world. */
static fsdp_status gather_alone(grade *g, comm *alone)
{
    fsdp f;
    fsdp_error_info why;
    TRY(literal_fsdp_whole(g, N_UNITS, ELEMS, &f));
    f.gather_group = f.mesh.shard = alone;
    fsdp_status st = first_failure(FSDP_OK, begin_and_check(g, &f, 0), &why);
    st = first_failure(st, begin_and_check(g, &f, 1), &why);
    return end_fixture(&f, st, &why);
}

static const void *cast_at; /* where it was to write to; NULL: it was not called */

static fsdp_status cast_fails(stream *s, const cast_args *a)
{
    (void)s;
    cast_at = a->out;
    return fsdp_error(FSDP_EDEVICE, "", "a cast of the test that fails");
}

/* In bf16 an element has 2 bytes. shard_cast, task 2.6, may be unwritten: it fails in any case. */
static fsdp_status begin_in_bf16(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    const ops *plain = f->run.ops;
    ops with = *plain;
    char what[96];
    TRY(unshard_drop(f, u));
    const size_t before = grade_live_bytes(g, f->gather_stream, MEM_PARAMS_FULL);
    with.cast = cast_fails;
    cast_at = NULL;
    f->run.ops = &with;
    f->run.param_dtype = DTYPE_BF16;
    const fsdp_status begun = unshard_begin(f, u);
    f->run.ops = plain;
    f->run.param_dtype = DTYPE_F32;
    TRY(EXPECT(begun != FSDP_OK, "TRY() the call",
               "unshard_begin: got FSDP_OK, expected the status of shard_cast, which failed"));
    TRY(expect_int("bytes of the gathered array in bf16",
                   (long long)(grade_live_bytes(g, f->gather_stream, MEM_PARAMS_FULL) - before),
                   (long long)(unit->layout.padded_elems * sizeof(uint16_t))));
    snprintf(what, sizeof what, "unshard_begin of %s in bf16: the slice that shard_cast gets",
             unit->name);
    if (cast_at != NULL)
        TRY(expect_view(what, cast_at, unit->full, (size_t)g->rank * unit->layout.shard_elems,
                        sizeof(uint16_t)));
    device_free(f->gather_stream, unit->full);
    unit->full = NULL;
    unit->state = UNIT_SHARDED;
    return FSDP_OK;
}

static fsdp_status cast_nothing(stream *s, const cast_args *a)
{
    (void)s;
    (void)a;
    return FSDP_OK;
}

/* What each call returns is passed on. In bf16 shard_cast, task 2.6, may be unwritten. */
static fsdp_status pass_errors_on(grade *g, fsdp *f)
{
    ops with = *f->run.ops;
    fsdp_unit *unit = &f->units[1];
    const flat_layout whole = unit->layout;
    comm_job_stats_reset(g->comm);
    unit->layout.padded_elems = SIZE_MAX / 4;
    TRY(expect_status("unshard_begin when comm_alloc finds no memory", unshard_begin(f, 1),
                      FSDP_ENOMEM));
    unit->layout = whole;
    unit->state = UNIT_SHARDED;
    TRY(expect_int("all-gathers without memory",
                   (long long)comm_job_stats_read(g->comm).calls[COMM_OP_ALL_GATHER], 0));
    f->run.param_dtype = DTYPE_BF16;
    f->run.ops = &with;
    with.cast = cast_nothing;
    unit->layout.shard_elems = SIZE_MAX / 2 + 1;
    TRY(EXPECT(unshard_begin(f, 1) != FSDP_OK, "TRY() the call",
               "unshard_begin: got FSDP_OK, expected the status of comm_all_gather, which failed"));
    unit->layout = whole;
    return FSDP_OK;
}

static fsdp_status errors_of_begin(grade *g, comm *alone)
{
    fsdp f;
    fsdp_error_info why;
    TRY(literal_fsdp_whole(g, N_UNITS, ELEMS, &f));
    f.gather_group = f.mesh.shard = alone;
    return end_fixture(&f, first_failure(FSDP_OK, pass_errors_on(g, &f), &why), &why);
}

static fsdp_status small_groups(grade *g)
{
    comm *alone;
    TRY(comm_range(g->comm, g->rank, 1, 1, &alone));
    fsdp_status st = comm_agree(g->comm, gather_alone(g, alone));
    if (st == FSDP_OK)
        st = comm_agree(g->comm, errors_of_begin(g, alone));
    if (st == FSDP_OK)
        comm_close(alone);
    return st;
}

/* The first three units are gathered, and stay so. */
static fsdp_status begin_in_turn(grade *g, fsdp *f)
{
    fsdp_error_info why;
    fsdp_status st = FSDP_OK;
    trace_start(g);
    for (int u = 0; u + 1 < N_UNITS && st != FSDP_ETODO; u++)
        st = first_failure(st, begin_and_check(g, f, u), &why);
    char want[128];
    snprintf(want, sizeof want, "%s root %zu;%s h.0 %zu;%s h.1 %zu;",
             comm_op_name(COMM_OP_ALL_GATHER), f->units[0].layout.shard_elems,
             comm_op_name(COMM_OP_ALL_GATHER), f->units[1].layout.shard_elems,
             comm_op_name(COMM_OP_ALL_GATHER), f->units[2].layout.shard_elems);
    st = first_failure(
        st, expect_text("collectives (operation, label, elements)", trace_stop(g), want), &why);
    if (st != FSDP_OK)
        fsdp_error_set(&why);
    return st;
}

/* Each part follows only where the one before passed on all ranks: a gate takes its time. */
static fsdp_status task_2_1(grade *g)
{
    fsdp f;
    fsdp_error_info why;
    TRY(literal_fsdp(g, N_UNITS, ELEMS, &f));
    fsdp_status st = comm_agree(g->comm, begin_in_turn(g, &f));
    for (int part = 0; part < 6 && st == FSDP_OK; part++) {
        st = part == 0   ? gather_after_update(g, &f, N_UNITS - 1)
             : part == 1 ? gather_after_event(g, &f, 0, true)
             : part == 2 ? gather_after_event(g, &f, 1, false)
             : part == 3 ? nobody_waits(g, &f, 2)
             : part == 4 ? gather_on_its_stream(g, &f, 1)
                         : begin_in_bf16(g, &f, 0);
        st = comm_agree(g->comm, st);
    }
    st = end_fixture(&f, first_failure(FSDP_OK, st, &why), &why);
    return st == FSDP_OK ? small_groups(g) : st;
}

/* ---- 2.2 ----------------------------------------------------------------------------------- */
/* hand_gather -- what unshard_begin would have left, without a collective: full holds the right
 * values once comm_stream has run; until then NaN. */
static fsdp_status hand_gather(fsdp *f, int u, const float *values)
{
    fsdp_unit *unit = &f->units[u];
    size_t padded = unit->layout.padded_elems;
    TRY(grade_write(f->comm_stream, unit->full, values, padded * sizeof *values));
    unit->state = UNIT_GATHERING;
    return event_record(unit->gathered, f->comm_stream);
}

static fsdp_status hand_alloc(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    TRY(device_alloc(g->compute, MEM_PARAMS_FULL, unit->layout.padded_elems * sizeof(float),
                     "literal full", &unit->full));
    return stream_sync(g->compute);
}

static fsdp_status expect_grad_view(const fsdp *f, int p, const float *want, const char *call)
{
    return EXPECT(f->views.grads[p] == want, "views.grads are lab 3's",
                  "%s changed views.grads[%d], expected it left alone", call, p);
}

static fsdp_status check_views(const fsdp *f, int u)
{
    const fsdp_unit *unit = &f->units[u];
    char what[96];
    for (int p = 0; p < f->run.m->n_params; p++) {
        const int storage = f->run.m->params[p].tied_to;
        const flat_slot *slot = NULL;
        for (int i = 0; i < unit->layout.n_slots; i++)
            if (unit->layout.slots[i].param == (storage != NOT_TIED ? storage : p))
                slot = &unit->layout.slots[i];
        snprintf(what, sizeof what, "after binding %s%s: views.params[%d]%s", unit->name,
                 f->run.param_dtype == DTYPE_BF16 ? " in bf16" : "", p,
                 storage != NOT_TIED ? " (tied)" : "");
        TRY(expect_grad_view(f, p, NULL, "views_bind"));
        TRY(expect_view(what, f->views.params[p], slot ? unit->full : NULL, slot ? slot->offset : 0,
                        dtype_bytes(f->run.param_dtype)));
    }
    return FSDP_OK;
}

/* The gather is held up; unshard_wait returns at once, and a kernel that reads the
 * view runs after it. */
static fsdp_status wait_and_check(grade *g, fsdp *f, int u, float *probe)
{
    fsdp_unit *unit = &f->units[u];
    const flat_slot *slot = &unit->layout.slots[unit->layout.n_slots - 1];
    float values[MAX_ELEMS], got[MAX_ELEMS];
    wanted_full(f, u, values);
    TRY(hand_alloc(g, f, u));
    TRY(gate_close(g, f->comm_stream));
    TRY(hand_gather(f, u, values));
    TRY(unshard_wait(f, u));
    TRY(check_views(f, u));
    TRY(device_copy(f->compute, probe, f->views.params[slot->param], slot->elems * sizeof *probe));
    struct timespec nap = {.tv_nsec = 10 * 1000 *
                                      1000}; /* a kernel that does not wait runs in this time */
    nanosleep(&nap, NULL);
    TRY(gate_open(g, "unshard_wait"));
    TRY(expect_state("state after unshard_wait", unit->state, UNIT_GATHERED));
    TRY(grade_read(f->compute, probe, slot->elems * sizeof *got, got));
    TRY(expect_f32("what compute reads through the view (NaN: it did not wait)", got,
                   values + slot->offset, slot->elems));
    TRY(unshard_wait(f, u)); /* no-op */
    return stream_sync(f->comm_stream);
}

static void hand_release(fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    device_free(f->compute, unit->full);
    unit->full = NULL;
    unit->state = UNIT_SHARDED;
    memset(f->views.params, 0, (size_t)f->run.m->n_params * sizeof *f->views.params);
}

/* In bf16 an element has 2 bytes. */
static fsdp_status bind_in_bf16(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    TRY(hand_alloc(g, f, u));
    unit->state = UNIT_GATHERING;
    TRY(event_record(unit->gathered, f->comm_stream));
    f->run.param_dtype = DTYPE_BF16;
    TRY(unshard_wait(f, u));
    TRY(check_views(f, u));
    f->run.param_dtype = DTYPE_F32;
    hand_release(f, u);
    return stream_sync(f->compute);
}

/* Behind the gather, other work on its stream is held up: compute waits for the gather alone. */
static fsdp_status wait_for_the_gather_alone(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    float values[MAX_ELEMS];
    wanted_full(f, u, values);
    TRY(hand_alloc(g, f, u));
    TRY(hand_gather(f, u, values));
    TRY(gate_close(g, f->comm_stream));
    TRY(unshard_wait(f, u));
    TRY(event_record(unit->consumed, f->compute));
    bool ended = done_within(unit->consumed, GATHER_MS);
    TRY(gate_open(g, "unshard_wait"));
    TRY(EXPECT(ended, "stream_wait_event(compute, unit->gathered); record no event of your own",
               "unshard_wait of %s: compute stood still with what follows the gather on "
               "gather_stream, expected it to wait for event `gathered` only",
               unit->name));
    hand_release(f, u);
    TRY(stream_sync(f->comm_stream)); /* out of the gate */
    return stream_sync(f->compute);
}

/* Compute is held up: the gathers of later units go on. */
static fsdp_status gathers_go_on(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    float values[MAX_ELEMS];
    wanted_full(f, u, values);
    TRY(hand_alloc(g, f, u));
    TRY(gate_close(g, f->compute));
    TRY(hand_gather(f, u, values));
    TRY(unshard_wait(f, u));
    TRY(event_record(unit->consumed, f->comm_stream));
    bool ended = done_within(unit->consumed, GATHER_MS);
    TRY(gate_open(g, "unshard_wait"));
    TRY(EXPECT(ended, "the first argument of stream_wait_event is who waits",
               "unshard_wait of %s: gather_stream stood still with compute, expected compute alone "
               "to wait",
               unit->name));
    hand_release(f, u);
    return stream_sync(f->compute);
}

/* Two parameters of different units trade numbers; the second parameter of the root is used a
 * second time, the parameter of h.2 a second and a third time. */
static int mix_params(fsdp *f)
{
    literal_swap(f, 1, 2);
    (void)literal_tie(f, 2);
    (void)literal_tie(f, 5);
    return literal_tie(f, 5);
}

static fsdp_status task_2_2(grade *g)
{
    fsdp f;
    fsdp_error_info why;
    float *probe = NULL;
    TRY(literal_fsdp(g, N_UNITS, ELEMS, &f));
    f.param_unit[mix_params(&f)] = UNIT_ROOT; /* the second use is another unit's */
    fsdp_status st = first_failure(
        FSDP_OK, device_alloc_f32(g->compute, MEM_OTHER, MAX_ELEMS, "probe", &probe), &why);
    for (int u = 0; u < N_UNITS && st == FSDP_OK; u++) {
        st = first_failure(st, wait_and_check(g, &f, u, probe), &why);
        if (st == FSDP_OK)
            hand_release(&f, u);
    }
    for (int u = 0; u < N_UNITS && st == FSDP_OK; u++)
        st = first_failure(st, bind_in_bf16(g, &f, u), &why);
    if (st == FSDP_OK)
        st = first_failure(st, wait_for_the_gather_alone(g, &f, 1), &why);
    if (st == FSDP_OK)
        st = first_failure(st, gathers_go_on(g, &f, 3), &why);
    st = first_failure(
        st, expect_status("unshard_wait of a sharded unit", unshard_wait(&f, 1), FSDP_ESTATE),
        &why);
    (void)gate_open(g, "");
    device_free(g->compute, probe);
    return end_fixture(&f, st, &why);
}

/* ---- 2.3 ----------------------------------------------------------------------------------- */
/* Every view points somewhere, the views of other units and of gradients, too. */
static void bind_all(fsdp *f, float *somewhere)
{
    for (int p = 0; p < f->run.m->n_params; p++) {
        f->views.params[p] = somewhere;
        f->views.grads[p] = somewhere;
    }
}

static fsdp_status check_unbound(fsdp *f, int u, const float *somewhere)
{
    for (int p = 0; p < f->run.m->n_params; p++) {
        const bool is_of_u = f->param_unit[p] == u;
        if (is_of_u && f->views.params[p])
            return fsdp_error(FSDP_EINVAL, "", "views.params[%d]%s after reshard: expected NULL", p,
                              f->run.m->params[p].tied_to == NOT_TIED ? "" : " (tied)");
        if (!is_of_u && f->views.params[p] != somewhere)
            return fsdp_error(FSDP_EINVAL, "",
                              "views.params[%d], which another unit has, after reshard of %s: "
                              "expected as before",
                              p, f->units[u].name);
        TRY(expect_grad_view(f, p, somewhere, "reshard"));
        f->views.params[p] = NULL;
        f->views.grads[p] = NULL;
    }
    return FSDP_OK;
}

/* A kernel that still reads the views is held up; reshard must not take the memory from it, nor let
 * later gathers wait for it. The gathered array differs from the masters, which stay. */
static fsdp_status reshard_and_check(grade *g, fsdp *f, int u, float *probe)
{
    fsdp_unit *unit = &f->units[u];
    size_t n = unit->layout.padded_elems;
    float values[MAX_ELEMS], got[MAX_ELEMS];
    wanted_full(f, u, values);
    for (size_t j = 0; j < n; j++)
        values[j] += 0.25f;
    TRY(hand_alloc(g, f, u));
    TRY(hand_gather(f, u, values));
    TRY(expect_status("reshard of a unit whose gather is in flight", reshard(f, u), FSDP_ESTATE));
    TRY(EXPECT(unit->full != NULL, "look at the state first",
               "reshard of %s, whose gather is in flight: refused, but full is NULL, expected it "
               "left alone",
               unit->name));
    TRY(stream_sync(f->comm_stream));
    unit->state = UNIT_GATHERED;
    bind_all(f, values);
    TRY(gate_close(g, f->compute));
    TRY(device_copy(f->compute, probe, unit->full, n * sizeof *probe));
    TRY(reshard(f, u));
    TRY(event_record(unit->consumed, f->comm_stream));
    bool goes_on = done_within(unit->consumed, GATHER_MS);
    struct timespec nap = {.tv_nsec =
                               10 * 1000 * 1000}; /* a free that does not wait runs in this time */
    nanosleep(&nap, NULL);
    TRY(gate_open(g, "reshard"));
    TRY(EXPECT(
        goes_on, "device_free(compute, full) is ordered already; no other stream waits",
        "reshard of %s: gather_stream stood still with compute, expected later gathers to go "
        "on",
        unit->name));
    TRY(grade_read(f->compute, probe, n * sizeof *got, got));
    TRY(expect_f32("what compute read before reshard (NaN: freed under it)", got, values, n));
    TRY(expect_state("state after reshard", unit->state, UNIT_SHARDED));
    TRY(EXPECT(unit->full == NULL, "",
               "reshard of %s: full is the address of freed memory, expected NULL", unit->name));
    TRY(check_unbound(f, u, values));
    TRY(expect_int("bytes of gathered parameters after reshard",
                   (long long)grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL), 0));
    TRY(reshard(f, u)); /* no-op */
    return check_shard(f, u, "reshard");
}

/* A gather that nobody used is dropped while it is held up: its memory goes behind it, so it is not
 * another block's when the gather writes. Compute, which may write the shard next, waits. */
static fsdp_status drop_and_check(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    size_t n = unit->layout.padded_elems;
    float values[MAX_ELEMS], got[MAX_ELEMS], nans[MAX_ELEMS], *next;
    stream *side;
    TRY(stream_create(g->dev, &(stream_config){.name = "side"}, &side));
    for (size_t j = 0; j < n; j++)
        nans[j] = NAN;
    wanted_full(f, u, values);
    TRY(hand_alloc(g, f, u));
    TRY(gate_close(g, f->comm_stream));
    TRY(hand_gather(f, u, values));
    TRY(unshard_drop(f, u));
    TRY(expect_state("state after unshard_drop", unit->state, UNIT_SHARDED));
    TRY(EXPECT(unit->full == NULL, "",
               "unshard_drop of %s: full is the address of freed memory, expected NULL",
               unit->name));
    TRY(event_record(unit->consumed, f->compute));
    TRY(device_alloc_f32(side, MEM_OTHER, n, "next block", &next)); /* NaN */
    TRY(stream_sync(side));
    TRY(EXPECT(!event_done(unit->consumed), "",
               "unshard_drop of %s: compute went on while the gather stood still, expected it to "
               "wait: the gather reads the shard",
               unit->name));
    TRY(gate_open(g, "unshard_drop"));
    TRY(stream_sync(f->comm_stream));
    TRY(grade_read(side, next, n * sizeof *got, got));
    TRY(expect_f32("next block (a number: the dropped gather wrote into it)", got, nans, n));
    device_free(side, next);
    stream_free(side);
    TRY(expect_int("bytes of gathered parameters after unshard_drop",
                   (long long)grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL), 0));
    TRY(unshard_drop(f, u)); /* no-op */
    return expect_state("state after a second unshard_drop", unit->state, UNIT_SHARDED);
}

/* Units in every state, and one that stays after forward: all are SHARDED in the end. */
static fsdp_status reshard_all_and_check(grade *g, fsdp *f)
{
    float values[MAX_ELEMS];
    for (int u = 1; u < N_UNITS; u++) {
        wanted_full(f, u, values);
        TRY(hand_alloc(g, f, u));
        TRY(hand_gather(f, u, values));
        f->units[u].state = u == 1 ? UNIT_GATHERING : UNIT_GATHERED;
        f->units[u].stays_after_forward = u == 2;
    }
    TRY(unshard_drop(f, 2));
    TRY(expect_state("state of a gathered unit after unshard_drop", f->units[2].state,
                     UNIT_GATHERED));
    TRY(stream_sync(f->comm_stream));
    TRY(reshard_all(f));
    for (int u = 0; u < N_UNITS; u++)
        TRY(expect_state("state after reshard_all", f->units[u].state, UNIT_SHARDED));
    return expect_int("bytes of gathered parameters after reshard_all",
                      (long long)grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL), 0);
}

static fsdp_status task_2_3(grade *g)
{
    fsdp f;
    fsdp_error_info why;
    float *probe = NULL;
    TRY(literal_fsdp(g, N_UNITS, ELEMS, &f));
    (void)mix_params(&f);
    fsdp_status st = first_failure(
        FSDP_OK, device_alloc_f32(g->compute, MEM_OTHER, MAX_ELEMS, "probe", &probe), &why);
    ledger_reset_peaks(device_ledger(g->dev));
    size_t largest = 0;
    for (int u = 0; u < N_UNITS && st == FSDP_OK; u++) {
        size_t bytes = f.units[u].layout.padded_elems * sizeof(float);
        largest = bytes > largest ? bytes : largest;
        st = first_failure(st, reshard_and_check(g, &f, u, probe), &why);
    }
    size_t peak = ledger_read(device_ledger(g->dev)).peak_bytes[MEM_PARAMS_FULL];
    st = first_failure(st,
                       expect_int("peak of gathered bytes, one unit at a time", (long long)peak,
                                  (long long)largest),
                       &why);
    if (st == FSDP_OK)
        st = first_failure(st, drop_and_check(g, &f, 0), &why);
    if (st == FSDP_OK)
        st = first_failure(st, reshard_all_and_check(g, &f), &why);
    (void)gate_open(g, "");
    device_free(g->compute, probe);
    return end_fixture(&f, st, &why);
}

/* ---- 2.4 ----------------------------------------------------------------------------------- */
/* One forward pass: each unit computes once, then the root's head. What stays is what the units'
 * own stays_after_forward says. */
static fsdp_status pass(grade *g, const unit_hooks *h, fsdp *f)
{
    size_t stays = 0;
    for (int k = 0; k <= N_UNITS; k++) {
        int u = k % N_UNITS;
        const bool stay = f->units[u].stays_after_forward;
        char what[96];
        TRY(h->pre_forward(h->self, u));
        TRY(expect_state("state between the hooks", f->units[u].state, UNIT_GATHERED));
        TRY(stream_sync(f->compute));
        TRY(check_full(f, u, "between the hooks"));
        TRY(h->post_forward(h->self, u));
        snprintf(what, sizeof what, "state of %s, which %s, after post_forward", f->units[u].name,
                 stay ? "stays_after_forward" : "does not stay");
        TRY(expect_state(what, f->units[u].state, stay ? UNIT_GATHERED : UNIT_SHARDED));
        for (int p = 0; p < f->run.m->n_params; p++)
            if (f->param_unit[p] == u)
                TRY(EXPECT((f->views.params[p] != NULL) == stay,
                           "reshard unbinds the views; what stays keeps them",
                           "views.params[%d] of %s, which %s, after post_forward: got %s", p,
                           f->units[u].name, stay ? "stays_after_forward" : "does not stay",
                           stay ? "NULL, expected it bound" : "an address, expected NULL"));
        if (stay && k < N_UNITS)
            stays += f->units[u].layout.padded_elems * sizeof(float);
    }
    return expect_int("gathered bytes after the pass: the units that stay",
                      (long long)grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL),
                      (long long)stays);
}

/* Two passes where h.1 stays and the root does not. */
static fsdp_status two_marked_passes(grade *g, fsdp *f)
{
    unit_hooks h = fsdp_forward_hooks(f);
    for (int u = 0; u < N_UNITS; u++)
        f->units[u].stays_after_forward = u == 2;
    TRY(pass(g, &h, f));
    TRY(pass(g, &h, f));
    return reshard_all(f);
}

static fsdp_status hooks_and_states(grade *g, fsdp *f)
{
    unit_hooks h = fsdp_forward_hooks(f);
    TRY(EXPECT(h.pre_forward && h.post_forward, "",
               "fsdp_forward_hooks: got NULL for %s, expected both hooks",
               h.pre_forward ? "post_forward" : "pre_forward"));
    TRY(pass(g, &h, f));
    TRY(pass(g, &h, f)); /* the root is there already: it is not gathered again */
    TRY(reshard(f, UNIT_ROOT));
    TRY(expect_status("unshard_wait of a sharded unit", unshard_wait(f, 1), FSDP_ESTATE));
    TRY(unshard_begin(f, 1));
    TRY(expect_status("reshard while gathering", reshard(f, 1), FSDP_ESTATE));
    TRY(expect_status("post_forward while gathering", h.post_forward(h.self, 1), FSDP_ESTATE));
    TRY(unshard_wait(f, 1));
    /* the shards change, as an optimizer step would change them: the next gather is fresh */
    TRY(reshard(f, 1));
    size_t n = f->units[1].layout.shard_elems, padded = f->units[1].layout.padded_elems;
    TRY(update_shard(f->compute, f->units[1].shard, n));
    TRY(h.pre_forward(h.self, 1));
    float got[MAX_ELEMS], want[MAX_ELEMS];
    TRY(grade_read(f->compute, f->units[1].full, padded * sizeof *got, got));
    wanted_full(f, 1, want);
    for (size_t j = 0; j < padded; j++)
        want[j] += 0.5f;
    TRY(expect_f32("gather after a step (stale copy?): full", got, want, padded));
    return h.post_forward(h.self, 1);
}

/* Compute is held up during a whole pass: the host only issues it. */
static fsdp_status host_runs_ahead(grade *g, fsdp *f)
{
    fsdp_error_info why;
    unit_hooks h = fsdp_forward_hooks(f);
    fsdp_status st = gate_close(g, f->compute);
    for (int u = 0; u < N_UNITS; u++) {
        st = first_failure(st, h.pre_forward(h.self, u), &why);
        st = first_failure(st, h.post_forward(h.self, u), &why);
    }
    st = first_failure(st, gate_open(g, "the forward hooks"), &why);
    st = first_failure(st, reshard(f, UNIT_ROOT), &why);
    if (st != FSDP_OK)
        fsdp_error_set(&why);
    return st;
}

static fsdp_status no_memory_in_hooks(fsdp *f, int u)
{
    unit_hooks h = fsdp_forward_hooks(f);
    const size_t padded = f->units[u].layout.padded_elems;
    f->units[u].layout.padded_elems = SIZE_MAX / 4;
    TRY(expect_status("pre_forward without memory", h.pre_forward(h.self, u), FSDP_ENOMEM));
    f->units[u].layout.padded_elems = padded;
    f->units[u].state = UNIT_SHARDED;
    return FSDP_OK;
}

static fsdp_status expect_gathers(const fsdp *f, const char *what, const char *got,
                                  const int *order, size_t n)
{
    char want[1024] = "";
    for (size_t i = 0; i < n; i++) {
        size_t used = strlen(want);
        snprintf(want + used, sizeof want - used, "%s %s %zu;", comm_op_name(COMM_OP_ALL_GATHER),
                 f->units[order[i]].name, f->units[order[i]].layout.shard_elems);
    }
    return expect_text(what, got, want);
}

/* The resident array is what the masters are: literal_value + added, rounded in bf16. */
static fsdp_status check_resident(const fsdp *f, int u, float added, const char *what)
{
    const fsdp_unit *unit = &f->units[u];
    const size_t padded = unit->layout.padded_elems;
    const bool is_bf16 = f->run.param_dtype == DTYPE_BF16;
    float got[MAX_ELEMS], want[MAX_ELEMS];
    uint16_t rounded[MAX_ELEMS];
    TRY(grade_read(f->compute, unit->full, padded * dtype_bytes(f->run.param_dtype),
                   is_bf16 ? (void *)rounded : got));
    wanted_full(f, u, want);
    for (size_t j = 0; j < padded; j++) {
        want[j] = is_bf16 ? bf16_round(want[j] + added) : want[j] + added;
        got[j] = is_bf16 ? f32_from_bf16(rounded[j]) : got[j];
    }
    return expect_f32(what, got, want, padded);
}

/* Where a shard is the whole array a unit can stay for good: no gather, and in fp32 no memory of
 * its own. Nothing takes it away; when the masters change it follows. */
static fsdp_status residency(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    const size_t padded = unit->layout.padded_elems;
    const bool is_bf16 = f->run.param_dtype == DTYPE_BF16;
    TRY(fsdp_make_resident(f, u));
    TRY(expect_int("bytes of gathered parameters of a resident unit",
                   (long long)grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL),
                   (long long)(is_bf16 ? padded * sizeof(uint16_t) : 0)));
    TRY(EXPECT(is_bf16 || unit->full == (void *)unit->shard, "",
               "fsdp_make_resident of %s in fp32: full is another array, expected the shard itself",
               unit->name));
    TRY(check_resident(f, u, 0.0f, "resident array"));
    unit_hooks h = fsdp_forward_hooks(f);
    for (int use = 1; use <= 2; use++) {
        TRY(h.pre_forward(h.self, u));
        TRY(expect_view("pre_forward of a resident unit: the view of its first parameter",
                        f->views.params[unit->layout.slots[0].param], unit->full, 0,
                        dtype_bytes(f->run.param_dtype)));
        unit->stays_after_forward = use == 1; /* a resident unit stays anyhow */
        TRY(h.post_forward(h.self, u));
        TRY(reshard(f, u));
        unshard_drop(f, u);
        TRY(reshard_all(f));
        TRY(expect_state("state of a resident unit", unit->state, UNIT_GATHERED));
        TRY(EXPECT(unit->full != NULL, "",
                   "reshard, unshard_drop or reshard_all of %s, which is resident: full is NULL, "
                   "expected it kept",
                   unit->name));
        TRY(expect_status("fsdp_make_resident of a unit that is there", fsdp_make_resident(f, u),
                          FSDP_ESTATE));
        TRY(update_shard(f->compute, unit->shard, padded));
        TRY(fsdp_refresh(f));
        TRY(check_resident(f, u, 0.5f * (float)use, "resident array after a step"));
    }
    return FSDP_OK;
}

static fsdp_status resident_units(grade *g, int u, dtype t)
{
    fsdp f;
    fsdp_error_info why;
    TRY(literal_fsdp_whole(g, N_UNITS, ELEMS, &f));
    f.run.param_dtype = t;
    trace_start(g);
    fsdp_status st = first_failure(FSDP_OK, residency(g, &f, u), &why);
    st = first_failure(st, expect_text("collectives of resident units", trace_stop(g), ""), &why);
    return end_fixture(&f, st, &why);
}

static fsdp_status full_keeps_the_root(grade *g)
{
    fsdp f;
    fsdp_error_info why;
    TRY(literal_fsdp(g, N_UNITS, ELEMS, &f));
    trace_start(g);
    fsdp_status st = first_failure(FSDP_OK, hooks_and_states(g, &f), &why);
    const int order[] = {0, 1, 2, 3, 1, 2, 3, 1, 1};
    st = first_failure(st,
                       expect_gathers(&f, "collectives of two passes", trace_stop(g), order,
                                      sizeof order / sizeof *order),
                       &why);
    st = comm_agree(g->comm, st);
    if (st == FSDP_OK)
        st = first_failure(st, host_runs_ahead(g, &f), &why);
    if (st == FSDP_OK)
        st = first_failure(st, no_memory_in_hooks(&f, 1), &why);
    return end_fixture(&f, st, &why);
}

static fsdp_status marked_unit_stays(grade *g)
{
    fsdp f;
    fsdp_error_info why;
    TRY(literal_fsdp(g, N_UNITS, ELEMS, &f));
    trace_start(g);
    fsdp_status st = first_failure(FSDP_OK, two_marked_passes(g, &f), &why);
    const int order[] = {0, 1, 2, 3, 0, 0, 1, 3, 0};
    st = first_failure(st,
                       expect_gathers(&f, "collectives of two passes where h.1 alone stays",
                                      trace_stop(g), order, sizeof order / sizeof *order),
                       &why);
    if (st == FSDP_OK && g->world_size > 1)
        st = first_failure(st,
                           expect_status("fsdp_make_resident of a unit with a part of the array",
                                         fsdp_make_resident(&f, 1), FSDP_ESTATE),
                           &why);
    st = first_failure(st,
                       expect_state("state of h.0 after a refused fsdp_make_resident",
                                    f.units[1].state, UNIT_SHARDED),
                       &why);
    return end_fixture(&f, st, &why);
}

static fsdp_status task_2_4(grade *g)
{
    TRY(full_keeps_the_root(g));
    TRY(marked_unit_stays(g));
    TRY(resident_units(g, 1, DTYPE_F32));
    return resident_units(g, 3, DTYPE_BF16);
}

/* ---- 2.6 ----------------------------------------------------------------------------------- */
/* The gathered array holds every rank's masters rounded to bf16; half the bytes move; the master
 * keeps its fp32 values. Views count in elements of 2 bytes. */
static fsdp_status gather_bf16(grade *g, fsdp *f, int u)
{
    fsdp_unit *unit = &f->units[u];
    size_t n = unit->layout.shard_elems, padded = unit->layout.padded_elems;
    float values[MAX_ELEMS], got[MAX_ELEMS], want[MAX_ELEMS];
    uint16_t full[MAX_ELEMS];
    comm_job_stats_reset(g->comm);
    size_t before = grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL);
    TRY(unshard_begin(f, u));
    TRY(unshard_wait(f, u));
    size_t grown = grade_live_bytes(g, f->comm_stream, MEM_PARAMS_FULL) - before;
    TRY(grade_read(f->compute, unit->full, padded * sizeof *full, full));
    wanted_full(f, u, values);
    for (size_t j = 0; j < padded; j++) {
        got[j] = f32_from_bf16(full[j]);
        want[j] = bf16_round(values[j]);
    }
    TRY(expect_f32("gathered in bf16: full", got, want, padded));
    TRY(check_shard(f, u, "gathered in bf16"));
    TRY(expect_int("bytes sent in bf16",
                   (long long)comm_job_stats_read(g->comm).bytes_sent[COMM_OP_ALL_GATHER],
                   (long long)((size_t)(g->world_size - 1) * n * sizeof(uint16_t))));
    TRY(expect_int("bytes of the gathered array in bf16", (long long)grown,
                   (long long)(padded * sizeof(uint16_t))));
    for (int i = 0; i < unit->layout.n_slots; i++)
        TRY(expect_view("gathered in bf16: a view", f->views.params[unit->layout.slots[i].param],
                        unit->full, unit->layout.slots[i].offset, sizeof(uint16_t)));
    return reshard(f, u);
}

/* Gathers have a stream of their own, which is held up: the host goes on, and the cast runs there
 * (the order check sees one that does not). */
static fsdp_status cast_on_its_stream(grade *g, fsdp *f)
{
    fsdp_error_info why;
    fsdp_status st = stream_create(g->dev, &(stream_config){.name = "gather"}, &f->gather_stream);
    TRY(st);
    st = first_failure(st, gate_close(g, f->gather_stream), &why);
    st = first_failure(st, unshard_begin(f, 0), &why);
    st = first_failure(st, gate_open(g, "shard_cast"), &why);
    st = first_failure(st, unshard_wait(f, 0), &why);
    st = first_failure(st, reshard(f, 0), &why);
    st = first_failure(st, stream_sync(f->gather_stream), &why);
    if (st == FSDP_OK)
        stream_free(f->gather_stream);
    f->gather_stream = f->comm_stream;
    if (st != FSDP_OK)
        fsdp_error_set(&why);
    return st;
}

static fsdp_status task_2_6(grade *g)
{
    fsdp f;
    fsdp_error_info why;
    TRY(literal_fsdp(g, N_UNITS, ELEMS, &f));
    f.run.param_dtype = DTYPE_BF16;
    fsdp_status st = FSDP_OK;
    for (int u = 0; u < N_UNITS && st != FSDP_ETODO; u++)
        st = first_failure(st, gather_bf16(g, &f, u), &why);
    if (st == FSDP_OK)
        st = first_failure(st, cast_on_its_stream(g, &f), &why);
    return end_fixture(&f, st, &why);
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"2.1", task_2_1}, {"2.2", task_2_2}, {"2.3", task_2_3},
                                       {"2.4", task_2_4}, {"2.5", task_2_5}, {"2.6", task_2_6}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
