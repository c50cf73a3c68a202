/* lab2.c -- the task tests of lab 2: unshard, views, reshard, forward hooks, a whole forward pass.
 *
 * Tasks 2.1 to 2.4 run on a model made by hand. Where an earlier task would have made a state, the
 * test makes it by hand too (hand_gather). Order by events is tested with a gate: one stream is
 * held up while the host goes on. A check that fails on one rank never skips a collective that its
 * peers are in: failures are noted, and the ranks agree on them after the calls.
 *
 * Task 2.5, a whole forward pass, is in forward_lib.c. */
#include <math.h>
#include <string.h>
#include <time.h>
#include "lab2_forward/fsdp_setup.h"
#include "tests/grade/forward_lib.h"
#include "tests/grade/handmade_lib.h"

/* Two parameters with a gap; 5 elements over 4 ranks (2,2,1,0); one element, frozen; a gap and an
 * odd end. Two parameters of different units have swapped numbers. The second parameter of the root
 * has a second use; the second parameter of h.2 has a second and a third use. */
static const fix_param MODEL[] = {
    {.unit = 0, .offset = 0, .elems = 13},
    {.unit = 1, .offset = 0, .elems = 5},
    {.unit = 0, .offset = 16, .elems = 7},
    {.unit = 2, .offset = 0, .elems = 1, .frozen = true},
    {.unit = 3, .offset = 0, .elems = 6},
    {.unit = 3, .offset = 8, .elems = 3},
    {.unit = 0, .offset = 16, .elems = 7, .tied = 1 + 2},
    {.unit = 3, .offset = 8, .elems = 3, .tied = 1 + 5},
    {.unit = 3, .offset = 8, .elems = 3, .tied = 1 + 5},
};
enum { GATHER_MS = 8000, HELD_MS = 30 };
#define SPEC(...)                                                                                  \
    &(const fix_spec)                                                                              \
    {                                                                                              \
        .n_units = N_UNITS, .params = MODEL, .n_params = sizeof MODEL / sizeof *MODEL,             \
        .used_elems = {23, 5, 1, 11}, .async_compute = true, __VA_ARGS__                           \
    }

/* The gathered array equals the joined shards of the ranks. It is read on compute once the unit is
 * GATHERED, before that on the stream of gathers. */
static fsdp_status check_full(fixture *fx, int u, float added, const char *what)
{
    const bool is_there = fx->f.units[u].state == UNIT_GATHERED;
    return fix_check_full(fx, what, u, added, is_there ? fx->compute : fx->f.gather_stream);
}

/* The master copy still holds the fixture's values. */
static fsdp_status check_shard(fixture *fx, int u, const char *what)
{
    const fsdp_unit *unit = &fx->f.units[u];
    TRY(stream_sync(fx->f.comm_stream));
    fix_expect_shard(fx, WHAT("shard (the master copy) after %s", what), u, unit->shard,
                     fix_initial, NULL);
    return FSDP_OK;
}

/* a trace entry */
#define GATHER(unit) "all-gather " unit ";"

/* ---- 2.1 ----------------------------------------------------------------------------------- */
/* Second watch of the device: counts the copies of unshard_begin. */
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

/* unshard_begin copies the shard straight to its place. An all-gather from anywhere else needs a
 * second copy, and only memory of comm_alloc is visible to peers. */
static fsdp_status check_in_place(const fixture *fx, int u, const copy_count *c)
{
    const fsdp *f = &fx->f;
    const fsdp_unit *unit = &f->units[u];
    const size_t bytes = unit->layout.padded_elems * sizeof(float);
    device_share at;
    void *shown;
    /* a staged transport also copies */
    if (strstr(comm_backend_name(f->gather_group), "+staged") == NULL)
        TRY(expect_int("unshard_begin: copies (1: the all-gather is in place)",
                       atomic_load(&c->copies), 1));
    TRY(expect_int("unshard_begin: copies that read the shard", atomic_load(&c->of_shard), 1));
    TRY(comm_alloc(f->gather_group, fx->compute, MEM_OTHER, bytes, "probe", &shown));
    const bool is_shown = device_share_find(fx->dev, unit->full, bytes, &at);
    const bool wanted = device_share_find(fx->dev, shown, bytes, &at);
    device_free(fx->compute, shown);
    return EXPECT(is_shown == wanted, "allocate full with comm_alloc of gather_group",
                  "unshard_begin of %s: full is device memory that peers cannot see, expected "
                  "comm_alloc's",
                  unit->name);
}

static size_t full_bytes(const fsdp *f, int u)
{
    return f->units[u].layout.padded_elems * dtype_bytes(f->run.param_dtype);
}

/* Whoever waits for `gathered` may read the array. The order check reports an event that was
 * recorded before the gather. */
static fsdp_status read_behind_gathered(const fsdp *f, int u)
{
    static float got[MAX_ELEMS]; /* valid when the stream has run the copy */
    const fsdp_unit *unit = &f->units[u];
    if (!unit->full)
        return FSDP_OK; /* check_full reports it */
    TRY(stream_wait_event(f->compute, unit->gathered));
    return grade_fetch(f->compute, unit->full, full_bytes(f, u), got);
}

static fsdp_status begin_and_check(fixture *fx, int u)
{
    fsdp *f = &fx->f;
    fsdp_unit *unit = &f->units[u];
    const size_t peers = (size_t)f->mesh.shape.size[AXIS_SHARD] - 1;
    copy_count copies = {.shard = unit->shard};
    comm_job_stats_reset(fx->comm);
    const size_t before = fix_live(fx, MEM_PARAMS_FULL);
    device_set_second_watch(fx->dev, &(device_watch){.self = &copies, .issued = count_copy});
    fix_call_starts(fx);
    const fsdp_status begun = unshard_begin(f, u);
    fix_waits_watch(fx);
    TRY(begun);
    fix_expect_no_scratch(fx, "unshard_begin");
    fix_expect_rise(fx, "unshard_begin", MEM_PARAMS_FULL, full_bytes(f, u));
    TRY(fx->verdict);
    const comm_stats s = comm_job_stats_read(fx->comm);
    const bool is_idle = fix_shard_begin(fx, u) >= unit->layout.used_elems;
    for (int op = 0; op < COMM_OPS; op++)
        TRY(expect_size(WHAT("unshard_begin of %s on rank %d%s: calls of %s", unit->name, fx->rank,
                             is_idle ? ", whose shard is padding" : "", comm_op_name((comm_op)op)),
                        s.calls[op], op == COMM_OP_ALL_GATHER));
    TRY(expect_state("state after unshard_begin", unit->state, UNIT_GATHERING));
    for (int p = 0; p < f->run.m->n_params; p++)
        TRY(EXPECT(!f->views.params[p], "",
                   "views.params[%d] after unshard_begin (bound before the wait?): expected NULL",
                   p));
    TRY(unshard_begin(f, u)); /* no-op */
    TRY(read_behind_gathered(f, u));
    const size_t grown = fix_live(fx, MEM_PARAMS_FULL) - before;
    TRY(check_full(fx, u, 0.0f, "unshard_begin"));
    TRY(check_shard(fx, u, "unshard_begin"));
    TRY(EXPECT(
        event_done(unit->gathered), "event_record it after comm_all_gather",
        "unshard_begin of %s: event `gathered` is not reached although gather_stream has run "
        "all, expected it recorded on gather_stream",
        unit->name));
    TRY(expect_size("bytes sent", s.bytes_sent[COMM_OP_ALL_GATHER],
                    peers * unit->layout.shard_elems * dtype_bytes(f->run.param_dtype)));
    if (f->run.param_dtype == DTYPE_F32) /* in bf16 a cast takes the place of the copy */
        TRY(check_in_place(fx, u, &copies));
    return expect_size("bytes of the gathered array", grown, full_bytes(f, u));
}

/* A stand-in for the optimizer's update. */
static fsdp_status update_shard(const fsdp *f, int u)
{
    return grade_add(f->compute, f->units[u].shard, f->units[u].layout.shard_elems, 0.5f, 0.5f);
}

/* What a gather waits for: stream `held` stands still when unshard_begin is called. Then the test
 * checks whether `gathered`, or the next event on compute, is reached. */
typedef struct held_case {
    int u;
    enum { HOLD_COMPUTE, HOLD_GATHER, HOLD_COMM } held;
    enum { NONE, BEFORE, BEHIND } after; /* gather_after: an event before or after the gate */
    bool update;                         /* the optimizer's update is queued on compute */
    bool own_stream;                     /* gathers use their own stream, as in lab 5 */
    bool compute_ends, gather_ends;      /* which stream is watched and must end */
    const char *hint, *got;
} held_case;
static const held_case HELD_CASES[] = {
    {.u = 3,
     .update = true,
     .hint = "issue the copy and the gather on gather_stream, which waits for compute",
     .got = "the gather ended while compute stood before an update of the shard, expected it to "
            "wait for all that compute has (no gather_after)"},
    {.u = 0,
     .after = BEFORE,
     .gather_ends = true,
     .hint = "compute itself must not be waited for: lab 5 gathers ahead",
     .got = "the gather stood still with compute, expected it to wait for gather_after only, which "
            "was done"},
    {.u = 1,
     .after = BEHIND,
     .hint = "issue the copy and the gather on gather_stream",
     .got = "the gather ended before gather_after, expected it to wait for that event"},
    {.u = 2,
     .held = HOLD_GATHER,
     .compute_ends = true,
     .hint = "unshard_wait makes compute wait, not unshard_begin",
     .got = "compute stood still while the gather did, expected it to go on until unshard_wait"},
    {.u = 1,
     .held = HOLD_COMM,
     .own_stream = true,
     .gather_ends = true,
     .hint = "f->gather_stream, not f->comm_stream, is where gathers run",
     .got = "the gather stood still with comm_stream, expected it on gather_stream, which is "
            "another stream here"}};

/* Gathers use f->comm_stream again. */
static fsdp_status gather_stream_drop(fsdp *f)
{
    TRY(stream_sync(f->gather_stream));
    stream_free(f->gather_stream);
    f->gather_stream = f->comm_stream;
    return FSDP_OK;
}

static fsdp_status begin_held_up(fixture *fx, const held_case *c)
{
    fsdp *f = &fx->f;
    fsdp_unit *unit = &f->units[c->u];
    event *after = NULL;
    const bool ends = c->gather_ends || c->compute_ends;
    TRY(unshard_drop(f, c->u));
    TRY(event_create(fx->dev, &after));
    if (c->own_stream)
        TRY(stream_create(fx->dev, &(stream_config){.name = "gather"}, &f->gather_stream));
    stream *const held[] = {f->compute, f->gather_stream, f->comm_stream};
    if (c->after == BEFORE)
        TRY(event_record(after, f->compute));
    TRY(gate_close(fx->g, held[c->held]));
    if (c->after == BEHIND)
        TRY(event_record(after, f->compute));
    if (c->update)
        TRY(update_shard(f, c->u));
    f->gather_after = c->after == NONE ? NULL : after;
    note(fx, unshard_begin(f, c->u));
    f->gather_after = NULL;
    if (c->compute_ends)
        TRY(event_record(after, f->compute));
    /* a gather that fails to wait ends within HELD_MS */
    const bool ended =
        reaches(c->compute_ends ? after : unit->gathered, ends ? GATHER_MS : HELD_MS);
    note(fx, gate_open(fx->g, "unshard_begin"));
    note(fx, EXPECT(ended == ends, c->hint, "unshard_begin of %s: %s", unit->name, c->got));
    note(fx,
         check_full(fx, c->u, c->update ? 0.5f : 0.0f,
                    c->update ? "gather after an update of the shard (stale values?)" : "held up"));
    event_free(after);
    if (!c->own_stream)
        return FSDP_OK;
    TRY(unshard_drop(f, c->u));
    return gather_stream_drop(f);
}

static const void *cast_at; /* where the cast was to write; NULL: not called */

static fsdp_status cast_fails(stream *s, const cast_args *a)
{
    cast_at = a->out;
    return fsdp_error(FSDP_EDEVICE, "", "a cast of the test that fails");
}

/* In bf16 an element has 2 bytes. shard_cast (task 2.6) may be unwritten: the test lets it fail. */
static fsdp_status begin_in_bf16(fixture *fx, int u)
{
    fsdp *f = &fx->f;
    fsdp_unit *unit = &f->units[u];
    ops with = *f->run.ops;
    TRY(unshard_drop(f, u));
    const size_t before = fix_live(fx, MEM_PARAMS_FULL);
    with.cast = cast_fails;
    cast_at = NULL;
    f->run.ops = &with;
    f->run.param_dtype = DTYPE_BF16;
    const fsdp_status begun = unshard_begin(f, u);
    f->run.ops = fx->g->ops;
    f->run.param_dtype = DTYPE_F32;
    TRY(EXPECT(begun != FSDP_OK, "TRY() the call",
               "unshard_begin: got FSDP_OK, expected the status of shard_cast, which failed"));
    TRY(expect_size("bytes of the gathered array in bf16", fix_live(fx, MEM_PARAMS_FULL) - before,
                    unit->layout.padded_elems * sizeof(uint16_t)));
    if (cast_at != NULL)
        TRY(expect_view(
            WHAT("unshard_begin of %s in bf16: the slice that shard_cast gets", unit->name),
            cast_at, unit->full, fix_shard_begin(fx, u), sizeof(uint16_t)));
    device_free(f->gather_stream, unit->full);
    unit->full = NULL;
    unit->state = UNIT_SHARDED;
    return FSDP_OK;
}

/* The first three units are gathered and stay gathered. Each further part runs only if the part
 * before passed on all ranks, because a failed gate takes seconds. */
static fsdp_status unshard_begin_body(fixture *fx)
{
    fix_trace_start(fx);
    for (int u = 0; u + 1 < N_UNITS && fx->verdict != FSDP_ETODO; u++)
        note(fx, begin_and_check(fx, u));
    fix_expect_trace(fx, "collectives (operation, label)",
                     GATHER("root") GATHER("h.0") GATHER("h.1"));
    TRY(fix_settle(fx));
    for (size_t i = 0; i < sizeof HELD_CASES / sizeof *HELD_CASES; i++) {
        TRY(begin_held_up(fx, &HELD_CASES[i]));
        TRY(fix_settle(fx));
    }
    return begin_in_bf16(fx, 0);
}

static fsdp_status cast_nothing(stream *s, const cast_args *a)
{
    return FSDP_OK;
}

/* unshard_begin returns the errors of its calls. shard_cast (task 2.6) may be unwritten. */
static fsdp_status pass_errors_on(fixture *fx)
{
    fsdp *f = &fx->f;
    ops with = *f->run.ops;
    fsdp_unit *unit = &f->units[1];
    const flat_layout whole = unit->layout;
    comm_job_stats_reset(fx->comm);
    unit->layout.padded_elems = SIZE_MAX / 4;
    TRY(expect_status("unshard_begin when comm_alloc finds no memory", unshard_begin(f, 1),
                      FSDP_ENOMEM));
    unit->layout = whole;
    unit->state = UNIT_SHARDED;
    TRY(expect_size("all-gathers without memory",
                    comm_job_stats_read(fx->comm).calls[COMM_OP_ALL_GATHER], 0));
    f->run.param_dtype = DTYPE_BF16;
    f->run.ops = &with;
    with.cast = cast_nothing;
    unit->layout.shard_elems = SIZE_MAX / 2 + 1;
    TRY(EXPECT(unshard_begin(f, 1) != FSDP_OK, "TRY() the call",
               "unshard_begin: got FSDP_OK, expected the status of comm_all_gather, which failed"));
    unit->layout = whole;
    return FSDP_OK;
}

/* Every rank is its own shard group: the gather must use gather_group, not the world, and
 * shard_rank, not the rank in the world. Lab 5's gather_group is not the mesh's. */
static fsdp_status gather_alone_body(fixture *fx)
{
    mesh *grid = &fx->f.mesh; /* closes its groups, but not the world */
    TRY(comm_range(fx->comm, fx->rank, 1, 1, &grid->replicate));
    grid->shard = grid->world;
    fsdp_set_groups(&fx->f, grid->replicate, fx->f.reduce_group);
    TRY(begin_and_check(fx, 0));
    TRY(begin_and_check(fx, 1));
    TRY(unshard_drop(&fx->f, 1));
    return pass_errors_on(fx);
}

static fsdp_status task_2_1(grade *g)
{
    TRY(fixture_run(g, SPEC(), unshard_begin_body));
    return fixture_run(g, SPEC(.shard_size = 1), gather_alone_body);
}

/* ---- 2.2 ----------------------------------------------------------------------------------- */
/* hand_gather -- leave the state that unshard_begin would leave, without a collective: full holds
 * fix_full(added) once comm_stream has run; until then NaN.
 *   held  NULL, or a stream that is held up between the allocation and the gather */
static fsdp_status hand_gather(fixture *fx, int u, stream *held, float added)
{
    fsdp_unit *unit = &fx->f.units[u];
    const size_t bytes = unit->layout.padded_elems * sizeof(float);
    float values[MAX_ELEMS];
    fix_full(fx, u, added, values);
    TRY(device_alloc(fx->compute, MEM_PARAMS_FULL, bytes, "literal full", &unit->full));
    TRY(stream_sync(fx->compute));
    if (held)
        TRY(gate_close(fx->g, held));
    TRY(grade_write(fx->f.comm_stream, unit->full, values, bytes));
    unit->state = UNIT_GATHERING;
    return event_record(unit->gathered, fx->f.comm_stream);
}

static fsdp_status hand_release(fixture *fx, int u)
{
    fsdp *f = &fx->f;
    device_free(f->compute, f->units[u].full);
    f->units[u].full = NULL;
    f->units[u].state = UNIT_SHARDED;
    memset(f->views.params, 0, (size_t)f->run.m->n_params * sizeof *f->views.params);
    TRY(stream_sync(f->comm_stream)); /* work held by the gate is done */
    return stream_sync(f->compute);
}

static fsdp_status expect_grad_view(const fsdp *f, int p, const float *want, const char *call)
{
    return EXPECT(f->views.grads[p] == want, "views.grads are lab 3's",
                  "%s changed views.grads[%d], expected it left alone", call, p);
}

static fsdp_status check_views(const fsdp *f, int u)
{
    const fsdp_unit *unit = &f->units[u];
    for (int p = 0; p < f->run.m->n_params; p++) {
        const int storage = f->run.m->params[p].tied_to;
        const flat_slot *slot = NULL;
        for (int i = 0; i < unit->layout.n_slots; i++)
            if (unit->layout.slots[i].param == (storage != NOT_TIED ? storage : p))
                slot = &unit->layout.slots[i];
        TRY(expect_grad_view(f, p, NULL, "views_bind"));
        TRY(expect_view(WHAT("after binding %s%s: views.params[%d]%s", unit->name,
                             f->run.param_dtype == DTYPE_BF16 ? " in bf16" : "", p,
                             storage != NOT_TIED ? " (tied)" : ""),
                        f->views.params[p], slot ? unit->full : NULL, slot ? slot->offset : 0,
                        dtype_bytes(f->run.param_dtype)));
    }
    return FSDP_OK;
}

/* After this time, work that does not wait for the held-up stream has run. */
static void nap_10_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

/* The gather is held up. unshard_wait returns at once; kernels that read the view wait. */
static fsdp_status wait_and_check(fixture *fx, int u, float *probe)
{
    fsdp *f = &fx->f;
    fsdp_unit *unit = &f->units[u];
    const flat_slot *slot = &unit->layout.slots[unit->layout.n_slots - 1];
    float values[MAX_ELEMS], got[MAX_ELEMS];
    fix_full(fx, u, 0.0f, values);
    TRY(hand_gather(fx, u, f->comm_stream, 0.0f));
    TRY(unshard_wait(f, u));
    TRY(check_views(f, u));
    TRY(device_copy(f->compute, probe, f->views.params[slot->param], slot->elems * sizeof *probe));
    nap_10_ms();
    TRY(gate_open(fx->g, "unshard_wait"));
    TRY(expect_state("state after unshard_wait", unit->state, UNIT_GATHERED));
    TRY(grade_read(f->compute, probe, slot->elems * sizeof *got, got));
    TRY(expect_f32("what compute reads through the view (NaN: it did not wait)", got,
                   values + slot->offset, slot->elems));
    TRY(unshard_wait(f, u)); /* no-op */
    return hand_release(fx, u);
}

/* In bf16 an element has 2 bytes. */
static fsdp_status bind_in_bf16(fixture *fx, int u)
{
    TRY(hand_gather(fx, u, NULL, 0.0f));
    fx->f.run.param_dtype = DTYPE_BF16;
    TRY(unshard_wait(&fx->f, u));
    TRY(check_views(&fx->f, u));
    fx->f.run.param_dtype = DTYPE_F32;
    return hand_release(fx, u);
}

/* If work after the gather is held up on its stream, compute must wait for the gather alone. If
 * compute is held up, the gathers of later units must go on. */
static fsdp_status wait_held_up(fixture *fx, int u, bool hold_compute)
{
    fsdp *f = &fx->f;
    fsdp_unit *unit = &f->units[u];
    TRY(hand_gather(fx, u, hold_compute ? f->compute : NULL, 0.0f));
    if (!hold_compute)
        TRY(gate_close(fx->g, f->comm_stream));
    TRY(unshard_wait(f, u));
    TRY(event_record(unit->given.consumed, hold_compute ? f->comm_stream : f->compute));
    const bool ended = reaches(unit->given.consumed, GATHER_MS);
    TRY(gate_open(fx->g, "unshard_wait"));
    TRY(EXPECT(ended || hold_compute,
               "stream_wait_event(compute, unit->gathered); record no event of your own",
               "unshard_wait of %s: compute stood still with what follows the gather on "
               "gather_stream, expected it to wait for event `gathered` only",
               unit->name));
    TRY(EXPECT(ended, "the first argument of stream_wait_event is who waits",
               "unshard_wait of %s: gather_stream stood still with compute, expected compute alone "
               "to wait",
               unit->name));
    return hand_release(fx, u);
}

static fsdp_status unshard_wait_body(fixture *fx)
{
    float *probe;
    fx->f.param_unit[8] = UNIT_ROOT; /* the third use of h.2's parameter belongs to another unit */
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, MAX_ELEMS, "probe", &probe));
    for (int u = 0; u < N_UNITS; u++)
        TRY(wait_and_check(fx, u, probe));
    for (int u = 0; u < N_UNITS; u++)
        TRY(bind_in_bf16(fx, u));
    TRY(wait_held_up(fx, 1, false));
    TRY(wait_held_up(fx, 3, true));
    device_free(fx->compute, probe);
    return expect_status("unshard_wait of a sharded unit", unshard_wait(&fx->f, 1), FSDP_ESTATE);
}

static fsdp_status task_2_2(grade *g)
{
    return fixture_run(g, SPEC(), unshard_wait_body);
}

/* ---- 2.3 ----------------------------------------------------------------------------------- */
/* Bind every view to `somewhere`, also views of other units and of gradients. */
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
        TRY(EXPECT(!is_of_u || !f->views.params[p], "",
                   "views.params[%d]%s after reshard: expected NULL", p,
                   f->run.m->params[p].tied_to == NOT_TIED ? "" : " (tied)"));
        TRY(EXPECT(is_of_u || f->views.params[p] == somewhere, "",
                   "views.params[%d], which another unit has, after reshard of %s: expected as "
                   "before",
                   p, f->units[u].name));
        TRY(expect_grad_view(f, p, somewhere, "reshard"));
        f->views.params[p] = NULL;
        f->views.grads[p] = NULL;
    }
    return FSDP_OK;
}

/* After `call` the unit is not gathered. */
static fsdp_status check_dropped(fixture *fx, int u, const char *call)
{
    const fsdp_unit *unit = &fx->f.units[u];
    TRY(expect_state(WHAT("state after %s", call), unit->state, UNIT_SHARDED));
    return EXPECT(unit->full == NULL, "",
                  "%s of %s: full is the address of freed memory, expected NULL", call, unit->name);
}

static fsdp_status expect_gathered_bytes(fixture *fx, const char *when, size_t want)
{
    return expect_size(WHAT("bytes of gathered parameters %s", when), fix_live(fx, MEM_PARAMS_FULL),
                       want);
}

/* A kernel that still reads the views is held up. reshard must not free the memory before the
 * kernel has run, and later gathers must not wait for the kernel. The gathered array differs from
 * the masters, which must not change. */
static fsdp_status reshard_and_check(fixture *fx, int u, float *probe)
{
    fsdp *f = &fx->f;
    fsdp_unit *unit = &f->units[u];
    size_t n = unit->layout.padded_elems;
    float values[MAX_ELEMS], got[MAX_ELEMS];
    fix_full(fx, u, 0.25f, values);
    TRY(hand_gather(fx, u, NULL, 0.25f));
    TRY(expect_status("reshard of a unit whose gather is in flight", reshard(f, u), FSDP_ESTATE));
    TRY(EXPECT(unit->full != NULL, "look at the state first",
               "reshard of %s, whose gather is in flight: refused, but full is NULL, expected it "
               "left alone",
               unit->name));
    TRY(stream_sync(f->comm_stream));
    unit->state = UNIT_GATHERED;
    bind_all(f, values);
    TRY(gate_close(fx->g, f->compute));
    TRY(device_copy(f->compute, probe, unit->full, n * sizeof *probe));
    TRY(reshard(f, u));
    TRY(event_record(unit->given.consumed, f->comm_stream));
    bool goes_on = reaches(unit->given.consumed, GATHER_MS);
    nap_10_ms();
    TRY(gate_open(fx->g, "reshard"));
    TRY(EXPECT(
        goes_on, "device_free(compute, full) is ordered already; no other stream waits",
        "reshard of %s: gather_stream stood still with compute, expected later gathers to go "
        "on",
        unit->name));
    TRY(grade_read(f->compute, probe, n * sizeof *got, got));
    TRY(expect_f32("what compute read before reshard (NaN: freed under it)", got, values, n));
    TRY(check_dropped(fx, u, "reshard"));
    TRY(check_unbound(f, u, values));
    TRY(expect_gathered_bytes(fx, "after reshard", 0));
    TRY(reshard(f, u)); /* no-op */
    return check_shard(fx, u, "reshard");
}

/* An unused gather is dropped while it is held up. Its memory must be freed after the gather, so
 * that no other block gets it before the gather writes. Compute, which may write the shard next,
 * must wait. */
static fsdp_status drop_and_check(fixture *fx, int u)
{
    fsdp *f = &fx->f;
    fsdp_unit *unit = &f->units[u];
    size_t n = unit->layout.padded_elems;
    float got[MAX_ELEMS], nans[MAX_ELEMS], *next;
    stream *side;
    TRY(stream_create(fx->dev, &(stream_config){.name = "side"}, &side));
    for (size_t j = 0; j < n; j++)
        nans[j] = NAN;
    TRY(hand_gather(fx, u, f->comm_stream, 0.0f));
    TRY(unshard_drop(f, u));
    TRY(check_dropped(fx, u, "unshard_drop"));
    TRY(event_record(unit->given.consumed, f->compute));
    TRY(device_alloc_f32(side, MEM_OTHER, n, "next block", &next)); /* NaN */
    TRY(stream_sync(side));
    TRY(EXPECT(!event_done(unit->given.consumed), "",
               "unshard_drop of %s: compute went on while the gather stood still, expected it to "
               "wait: the gather reads the shard",
               unit->name));
    TRY(gate_open(fx->g, "unshard_drop"));
    TRY(stream_sync(f->comm_stream));
    TRY(grade_read(side, next, n * sizeof *got, got));
    TRY(expect_f32("next block (a number: the dropped gather wrote into it)", got, nans, n));
    device_free(side, next);
    stream_free(side);
    TRY(expect_gathered_bytes(fx, "after unshard_drop", 0));
    TRY(unshard_drop(f, u)); /* no-op */
    return check_dropped(fx, u, "a second unshard_drop");
}

/* Units in every state, and one that stays after forward: at the end all are SHARDED. */
static fsdp_status reshard_all_and_check(fixture *fx)
{
    fsdp *f = &fx->f;
    for (int u = 1; u < N_UNITS; u++) {
        TRY(hand_gather(fx, u, NULL, 0.0f));
        f->units[u].state = u == 1 ? UNIT_GATHERING : UNIT_GATHERED;
        f->units[u].stays_after_forward = u == 2;
    }
    TRY(unshard_drop(f, 2));
    TRY(expect_state("state of a gathered unit after unshard_drop", f->units[2].state,
                     UNIT_GATHERED));
    TRY(stream_sync(f->comm_stream));
    TRY(reshard_all(f));
    for (int u = 0; u < N_UNITS; u++)
        TRY(check_dropped(fx, u, "reshard_all"));
    return expect_gathered_bytes(fx, "after reshard_all", 0);
}

static fsdp_status reshard_body(fixture *fx)
{
    float *probe;
    size_t largest = 0;
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, MAX_ELEMS, "probe", &probe));
    ledger_reset_peaks(device_ledger(fx->dev));
    for (int u = 0; u < N_UNITS; u++) {
        size_t bytes = fx->f.units[u].layout.padded_elems * sizeof(float);
        largest = bytes > largest ? bytes : largest;
        TRY(reshard_and_check(fx, u, probe));
    }
    TRY(expect_size("peak of gathered bytes, one unit at a time",
                    ledger_read(device_ledger(fx->dev)).peak_bytes[MEM_PARAMS_FULL], largest));
    device_free(fx->compute, probe);
    TRY(drop_and_check(fx, 0));
    return reshard_all_and_check(fx);
}

static fsdp_status task_2_3(grade *g)
{
    return fixture_run(g, SPEC(), reshard_body);
}

/* ---- 2.4 ----------------------------------------------------------------------------------- */
/* One forward pass: each unit computes once, then the root's head. A unit stays gathered if its
 * stays_after_forward is set. */
static fsdp_status pass(fixture *fx, const unit_hooks *h)
{
    const fsdp *f = &fx->f;
    size_t stays = 0;
    for (int k = 0; k <= N_UNITS; k++) {
        const int u = k % N_UNITS;
        const bool stay = f->units[u].stays_after_forward;
        const char *whose = WHAT("of %s, which %s, after post_forward", f->units[u].name,
                                 stay ? "stays_after_forward" : "does not stay");
        TRY(h->pre_forward(h->self, u));
        TRY(expect_state("state between the hooks", f->units[u].state, UNIT_GATHERED));
        TRY(check_full(fx, u, 0.0f, "between the hooks"));
        TRY(h->post_forward(h->self, u));
        TRY(expect_state(WHAT("state %s", whose), f->units[u].state,
                         stay ? UNIT_GATHERED : UNIT_SHARDED));
        for (int p = 0; p < f->run.m->n_params; p++)
            if (f->param_unit[p] == u)
                TRY(EXPECT((f->views.params[p] != NULL) == stay,
                           "reshard unbinds the views; what stays keeps them",
                           "views.params[%d] %s: got %s", p, whose,
                           stay ? "NULL, expected it bound" : "an address, expected NULL"));
        if (stay && k < N_UNITS)
            stays += f->units[u].layout.padded_elems * sizeof(float);
    }
    return expect_gathered_bytes(fx, "after the pass: the units that stay", stays);
}

static fsdp_status hooks_and_states(fixture *fx)
{
    fsdp *f = &fx->f;
    unit_hooks h = fsdp_forward_hooks(f);
    TRY(EXPECT(h.pre_forward && h.post_forward, "",
               "fsdp_forward_hooks: got NULL for %s, expected both hooks",
               h.pre_forward ? "post_forward" : "pre_forward"));
    TRY(pass(fx, &h));
    TRY(pass(fx, &h)); /* the root is still gathered: no second gather */
    TRY(reshard(f, UNIT_ROOT));
    TRY(expect_status("unshard_wait of a sharded unit", unshard_wait(f, 1), FSDP_ESTATE));
    TRY(unshard_begin(f, 1));
    TRY(expect_status("reshard while gathering", reshard(f, 1), FSDP_ESTATE));
    TRY(expect_status("post_forward while gathering", h.post_forward(h.self, 1), FSDP_ESTATE));
    TRY(h.pre_forward(h.self, 1));
    TRY(expect_state("state after pre_forward of a unit that was gathering", f->units[1].state,
                     UNIT_GATHERED));
    /* change the shards as an optimizer step would: the next gather must see the new values */
    TRY(reshard(f, 1));
    TRY(update_shard(f, 1));
    TRY(h.pre_forward(h.self, 1));
    TRY(check_full(fx, 1, 0.5f, "gather after a step (stale copy?)"));
    return h.post_forward(h.self, 1);
}

/* Compute is held up during a whole pass: the hooks must not make the host wait. */
static fsdp_status host_runs_ahead(fixture *fx)
{
    unit_hooks h = fsdp_forward_hooks(&fx->f);
    TRY(gate_close(fx->g, fx->compute));
    for (int u = 0; u < N_UNITS; u++) {
        note(fx, h.pre_forward(h.self, u));
        note(fx, h.post_forward(h.self, u));
    }
    note(fx, gate_open(fx->g, "the forward hooks"));
    note(fx, reshard(&fx->f, UNIT_ROOT));
    return FSDP_OK;
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

static fsdp_status root_stays_body(fixture *fx)
{
    fix_trace_start(fx);
    note(fx, hooks_and_states(fx));
    fix_expect_trace(fx, "collectives of two passes",
                     GATHER("root") GATHER("h.0") GATHER("h.1") GATHER("h.2") GATHER("h.0")
                         GATHER("h.1") GATHER("h.2") GATHER("h.0") GATHER("h.0"));
    TRY(fix_settle(fx));
    TRY(host_runs_ahead(fx));
    return no_memory_in_hooks(&fx->f, 1);
}

/* Two passes where h.1 stays and the root does not. */
static fsdp_status marked_unit_stays_body(fixture *fx)
{
    fsdp *f = &fx->f;
    unit_hooks h = fsdp_forward_hooks(f);
    fix_trace_start(fx);
    for (int u = 0; u < N_UNITS; u++)
        f->units[u].stays_after_forward = u == 2;
    TRY(pass(fx, &h));
    TRY(pass(fx, &h));
    TRY(reshard_all(f));
    fix_expect_trace(fx, "collectives of two passes where h.1 alone stays",
                     GATHER("root") GATHER("h.0") GATHER("h.1") GATHER("h.2") GATHER("root")
                         GATHER("root") GATHER("h.0") GATHER("h.2") GATHER("root"));
    if (fx->world_size > 1)
        note(fx, expect_status("fsdp_make_resident of a unit with a part of the array",
                               fsdp_make_resident(f, 1), FSDP_ESTATE));
    return expect_state("state of h.0 after a refused fsdp_make_resident", f->units[1].state,
                        UNIT_SHARDED);
}

/* If a shard is the whole array, a unit can stay gathered for good. In bf16 its array follows
 * changes of the masters. In fp32 it is the shard: task 3.5a, under --sharding none. */
static fsdp_status resident_bf16_body(fixture *fx)
{
    fsdp *f = &fx->f;
    f->run.param_dtype = DTYPE_BF16;
    TRY(fsdp_make_resident(f, 3));
    TRY(expect_gathered_bytes(fx, "of a resident unit", full_bytes(f, 3)));
    TRY(check_full(fx, 3, 0.0f, "resident array"));
    TRY(update_shard(f, 3));
    TRY(fsdp_refresh(f));
    TRY(reshard_all(f));
    TRY(check_full(fx, 3, 0.5f, "resident array after a step"));
    return expect_status("fsdp_make_resident of a unit that is there", fsdp_make_resident(f, 3),
                         FSDP_ESTATE);
}

static fsdp_status task_2_4(grade *g)
{
    TRY(fixture_run(g, SPEC(), root_stays_body));
    TRY(fixture_run(g, SPEC(), marked_unit_stays_body));
    return fixture_run(g, SPEC(.shard_size = 1), resident_bf16_body);
}

/* ---- 2.6 ----------------------------------------------------------------------------------- */
/* The gathered array holds every rank's masters rounded to bf16. Half the bytes move. The master
 * keeps its fp32 values. Views count in elements of 2 bytes. */
static fsdp_status gather_bf16(fixture *fx, int u)
{
    TRY(begin_and_check(fx, u));
    TRY(unshard_wait(&fx->f, u));
    TRY(check_views(&fx->f, u));
    return reshard(&fx->f, u);
}

/* Gathers use their own stream, which is held up: the host goes on, and the cast must run on that
 * stream (the order check reports a cast on another stream). */
static fsdp_status cast_on_its_stream(fixture *fx)
{
    fsdp *f = &fx->f;
    TRY(stream_create(fx->dev, &(stream_config){.name = "gather"}, &f->gather_stream));
    TRY(gate_close(fx->g, f->gather_stream));
    note(fx, unshard_begin(f, 0));
    note(fx, gate_open(fx->g, "shard_cast"));
    note(fx, unshard_wait(f, 0));
    note(fx, reshard(f, 0));
    return gather_stream_drop(f);
}

static fsdp_status gather_bf16_body(fixture *fx)
{
    fx->f.run.param_dtype = DTYPE_BF16;
    for (int u = 0; u < N_UNITS && fx->verdict != FSDP_ETODO; u++)
        note(fx, gather_bf16(fx, u));
    TRY(fix_settle(fx));
    return cast_on_its_stream(fx);
}

static fsdp_status task_2_6(grade *g)
{
    return fixture_run(g, SPEC(), gather_bf16_body);
}

int main(int argc, char **argv)
{
    static const grade_task tasks[] = {{"2.1", task_2_1}, {"2.2", task_2_2}, {"2.3", task_2_3},
                                       {"2.4", task_2_4}, {"2.5", task_2_5}, {"2.6", task_2_6}};
    return grade_main(argc, argv, tasks, (int)(sizeof tasks / sizeof *tasks));
}
