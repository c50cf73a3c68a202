/* test_dry.c -- the device that computes nothing (dry.h): addresses, ledgers, what a watch is told;
 * and one rank of a large group in which no other rank exists (comm_dry). test_comm compares a dry
 * group with a real one. Wrong use: test_device_faults. Whole training runs, dry and measured:
 * tests/equivalence. */
#include "common/device/dry.h"
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include "common/comm/comm_impl.h"
#include "common/comm/mesh.h"
#include "common/device/order_clock.h"
#include "tests/unit/unit_lib.h"

static device *open_dry(dry_kind kind, bool async, size_t limit_bytes)
{
    device *d = NULL;
    OK(device_open(&(device_config){.backend = device_dry(kind),
                                    .n_threads = 1,
                                    .async_compute = async,
                                    .memory_limit_bytes = limit_bytes},
                   &d));
    return d;
}

static stream *open_stream(device *d)
{
    stream *s = NULL;
    OK(stream_create(d, &(stream_config){.name = "side"}, &s));
    return s;
}

static void *get(stream *s, size_t bytes)
{
    void *ptr = NULL;
    OK(device_alloc(s, MEM_COMM, bytes, "block", &ptr));
    return ptr;
}

static ledger_figures figures(device *d)
{
    return ledger_read(device_ledger(d));
}

static void assert_held(device *d, size_t live_bytes, size_t issued_bytes)
{
    assert_int_equal(figures(d).live_bytes[MEM_COMM], live_bytes);
    assert_int_equal(figures(d).issued_bytes[MEM_COMM], issued_bytes);
}

/* ---- addresses ------------------------------------------------------------------------------ */

/* Blocks of any size, freed at once or later, on two streams: no two blocks share a byte. */
TEST(test_addresses)
{
    static const size_t SIZES[] = {0, 0, 1, 63, 64, 65, 4096, 100001, 64, (size_t)1 << 40};
    enum { N = sizeof SIZES / sizeof *SIZES, ROUNDS = 3 };
    for (int kind = 0; kind < DRY_KINDS; kind++) {
        device *d = open_dry((dry_kind)kind, true, 0);
        stream *side = open_stream(d);
        assert_true(device_now_s(d) == 0 && device_now_s(NULL) > 0); /* its clock stands still */
        uintptr_t end = (uintptr_t)1 << 47; /* processes can map only what is below */
        for (int i = 0; i < N * ROUNDS; i++) {
            stream *s = i % 3 == 0 ? side : device_compute_stream(d);
            void *ptr = get(s, SIZES[i % N]);
            assert_int_equal((uintptr_t)ptr % 64, 0);
            assert_true((uintptr_t)ptr >= end);
            end = (uintptr_t)ptr + (SIZES[i % N] > 0 ? SIZES[i % N] : 1);
            device_free(i % 2 == 0 ? s : side, ptr);
            OK(stream_sync(s));
        }
        stream_free(side);
        device_close(d);
    }
}

/* ---- the ledger ----------------------------------------------------------------------------- */

typedef struct rule {
    const char *name;
    dry_kind kind;
    bool async;
    const char *acts;
} rule;

/* "SIDE|COMPUTE gets A 100" allocates by device_alloc, "hosts" by device_alloc_host; X and Y are
 * events. "ledger holds" two numbers: the bytes that streams have not come to free yet, and the
 * bytes by the order of the calls. "held": the peaks of both. "host": the host's ledger. */
static const rule RULES[] = {
    /* What a stream frees is in the ledger until the host has waited for the free: for the stream,
     * for an event recorded after the free, or for another stream that waited for such an event. */
    {"frees are awaited", DRY_CPU, true,
     "compute gets a 100, compute gets b 200, compute gets c 400, ledger holds 700 700, "
     "compute frees a, ledger holds 700 600, side syncs, ledger holds 700 600, "
     "compute syncs, ledger holds 600 600, "
     "side records x, side frees b, side records y, x syncs, ledger holds 600 400, "
     "y done, ledger holds 400 400, "
     "side frees c, side records y, compute waits y, ledger holds 400 0, "
     "compute syncs, ledger holds 0 0, ledger held 700 700"},
    /* The compute stream of a CPU works inside the call. What it frees is gone at once, and when it
     * waits for another stream the host has waited, too. */
    {"inline compute", DRY_CPU, false,
     "compute gets a 100, compute frees a, ledger holds 0 0, "
     "compute gets a 100, side frees a, ledger holds 100 0, "
     "side records x, compute waits x, ledger holds 0 0"},
    /* A stream of the CPU gets back what it freed itself, if it asks for the same number of
     * bytes. */
    {"the same bytes again", DRY_SEPARATE, true,
     "compute gets a 100, side frees a, side gets a 100, ledger holds 100 100, side frees a, "
     "side gets b 101, compute gets c 100, ledger holds 301 201, "
     "side hosts a 100, ledger holds 301 201, host holds 100 100, "
     "side frees a, side frees b, side frees c, ledger held 301 201, side syncs, ledger holds 0 0"},
    /* A block of device_alloc_host never becomes one of device_alloc; one ledger has both. */
    {"blocks of the host apart", DRY_CPU, false,
     "side hosts a 100, side frees a, side gets b 100, ledger holds 200 100, "
     "side hosts a 100, ledger holds 200 200, side frees a, side frees b"},
    /* An accelerator's pool: a block freed by the stream that allocated it is free at once, for any
     * size. A block freed by another stream cannot be used until the host has waited. */
    {"pool", DRY_POOL, false,
     "side gets a 100, side frees a, compute gets a 100, compute frees a, ledger holds 0 0, "
     "compute gets a 100, side frees a, ledger holds 100 0, "
     "side gets a 100, ledger holds 200 100, side syncs, ledger holds 100 100, side frees a"},
};

typedef struct rig {
    const char *rule;
    device *d;
    stream *compute, *side;
    event *x, *y;
    void *block[3];
} rig;

static void assert_ledger(rig *r, const char *on, const char *verb, size_t live, size_t issued)
{
    const bool of_host = strcmp(on, "host") == 0, peak = strcmp(verb, "held") == 0;
    const ledger_figures l = ledger_read(of_host ? device_host_ledger(r->d) : device_ledger(r->d));
    const size_t got_live = peak ? l.peak_bytes[MEM_COMM] : l.live_bytes[MEM_COMM];
    const size_t got_issued = peak ? l.issued_peak_bytes[MEM_COMM] : l.issued_bytes[MEM_COMM];
    if (got_live != live || got_issued != issued)
        fail_msg("%s: %s %s %zu %zu, not %zu %zu", r->rule, on, verb, got_live, got_issued, live,
                 issued);
}

static void issue(rig *r, const char *text)
{
    char on[12] = "", verb[12] = "", what[12] = "";
    size_t bytes = 0;
    sscanf(text, "%11s %11[a-z] %11[a-z0-9] %zu", on, verb, what, &bytes);
    stream *s = strcmp(on, "side") == 0 ? r->side : r->compute;
    event *e = strcmp(on, "y") == 0 || strcmp(what, "y") == 0 ? r->y : r->x;
    void **block = &r->block[(unsigned char)what[0] % 3];
    if (strcmp(verb, "gets") == 0)
        *block = get(s, bytes);
    else if (strcmp(verb, "hosts") == 0)
        OK(device_alloc_host(s, MEM_COMM, bytes, "on the host", block));
    else if (strcmp(verb, "frees") == 0)
        device_free(s, *block);
    else if (strcmp(verb, "records") == 0)
        OK(event_record(e, s));
    else if (strcmp(verb, "waits") == 0)
        OK(stream_wait_event(s, e));
    else if (strcmp(verb, "syncs") == 0)
        OK(on[1] == '\0' ? event_sync(e) : stream_sync(s));
    else if (strcmp(verb, "done") == 0)
        assert_true(event_done(e));
    else
        assert_ledger(r, on, verb, (size_t)atol(what), bytes);
}

static void check_rule(const rule *x)
{
    rig r = {.rule = x->name, .d = open_dry(x->kind, x->async, 0)};
    r.compute = device_compute_stream(r.d);
    r.side = open_stream(r.d);
    OK(event_create(r.d, &r.x));
    OK(event_create(r.d, &r.y));
    for (const char *text = x->acts; text != NULL; text = strchr(text, ','), text += text != NULL)
        issue(&r, text);
    event_free(r.x);
    event_free(r.y);
    stream_free(r.side);
    device_close(r.d);
}

TEST(test_ledger)
{
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++)
        check_rule(&RULES[i]);
}

/* The limit holds to the byte. Before an allocation exceeds it, the host waits for freed memory. */
TEST(test_memory_limit)
{
    for (int kind = 0; kind < DRY_KINDS; kind++) {
        device *d = open_dry((dry_kind)kind, true, 1000);
        stream *compute = device_compute_stream(d), *side = open_stream(d);
        void *a = get(compute, 600), *b = NULL;
        assert_int_equal(device_mem_available(d), 400);
        assert_int_equal(device_alloc(side, MEM_COMM, 401, "too much", &b), FSDP_ENOMEM);
        assert_says("too much");
        b = get(side, 400);
        if (kind != DRY_CPU) { /* memory of the host has no limit */
            void *host;
            OK(device_alloc_host(side, MEM_COMM, 1, "on the host", &host));
            device_free(side, host);
        }
        device_free(side, a);
        device_free(side, b);
        b = get(compute, 1000);
        assert_held(d, 1000, 1000);
        device_free(compute, b);
        stream_free(side);
        device_close(d);
    }
}

TEST(test_streams_are_limited)
{
    device *d = open_dry(DRY_CPU, false, 0);
    stream *s[ORDER_STREAMS], *more = NULL;
    for (int round = 0; round < 2; round++) {
        for (int i = 1; i < ORDER_STREAMS; i++)
            s[i] = open_stream(d);
        assert_int_equal(stream_create(d, &(stream_config){.name = "more"}, &more), FSDP_ENOMEM);
        assert_says("64 streams");
        for (int i = 1; i < ORDER_STREAMS; i++)
            stream_free(s[i]);
    }
    device_close(d);
}

/* ---- work ----------------------------------------------------------------------------------- */

typedef struct told {
    int n, n_ran;
    device_act_kind kind[16];
    const stream *on[16];
} told;

static uint64_t note_issued(void *self, const device_act *act)
{
    told *t = self;
    if (t->n < 16) {
        t->kind[t->n] = act->kind;
        t->on[t->n++] = act->stream;
    }
    return 1;
}

static void note_ran(void *self, const device_act *act)
{
    ((told *)self)->n_ran += act->kind != ACT_SYNC;
}

static fsdp_status must_not_run(void *args, int n_threads)
{
    fail_msg("a launch ran");
    return FSDP_OK;
}

static fsdp_status must_not_make(const void *args, void *out)
{
    return must_not_run(out, 1);
}

static void issue_all(device *d, event *e, void *at, float *down)
{
    stream *s = device_compute_stream(d);
    float up[4] = {1, 2, 3, 4};
    OK(device_upload(s, at, up, sizeof up));
    OK(device_zero(s, at, sizeof up));
    OK(device_copy(s, (char *)at + sizeof up, at, sizeof up));
    OK(stream_launch(s, must_not_run, NULL, 0));
    OK(device_make(s, &(device_made){.name = "make", .make = must_not_make}, at, sizeof up));
    OK(event_record(e, s));
    OK(stream_wait_event(s, e));
    OK(device_download(s, down, at, sizeof up));
    OK(stream_sync(s));
}

/* Nothing runs and no byte is touched, except that a download gives zeros. A watch is told each
 * call as it is issued, and never that work ran. */
TEST(test_work)
{
    static const device_act_kind WANT[] = {ACT_ALLOC,    ACT_UPLOAD, ACT_FILL,   ACT_COPY,
                                           ACT_LAUNCH,   ACT_LAUNCH, ACT_RECORD, ACT_WAIT,
                                           ACT_DOWNLOAD, ACT_SYNC,   ACT_FREE};
    enum { N = sizeof WANT / sizeof *WANT };
    for (int kind = 0; kind < DRY_KINDS; kind++) {
        device *d = open_dry((dry_kind)kind, true, 0);
        told t = {0};
        event *e = NULL;
        float down[5] = {7, 7, 7, 7, 7};
        double seconds = 1;
        OK(event_create_timed(d, &e));
        assert_true(device_runs_c(d));
        assert_int_equal(device_memory_is_host(d), kind == DRY_CPU);
        device_set_watch(d, &(device_watch){&t, note_issued, note_ran});
        void *at = get(device_compute_stream(d), 1000);
        issue_all(d, e, at, down);
        device_free(device_compute_stream(d), at);
        device_set_watch(d, NULL);
        assert_int_equal(t.n, N);
        assert_memory_equal(t.kind, WANT, sizeof WANT);
        for (int i = 0; i < N; i++)
            assert_ptr_equal(t.on[i], device_compute_stream(d));
        assert_int_equal(t.n_ran, 0);
        assert_memory_equal(down, ((float[5]){0, 0, 0, 0, 7}), sizeof down);
        OK(event_elapsed_s(e, e, &seconds));
        assert_true(seconds == 0);
        event_free(e);
        device_close(d);
    }
}

/* ---- one rank of many ----------------------------------------------------------------------- */

enum { MANY = 16384 };

typedef struct one_rank {
    device *d;
    comm *c;
} one_rank;

static one_rank open_rank(int rank, int size)
{
    one_rank r = {.d = open_dry(DRY_CPU, false, 0)};
    OK(comm_open(r.d, &(comm_config){.backend = COMM_DRY, .dry = {rank, size, MOVES_BY_SHOWING}},
                 &r.c));
    return r;
}

static void close_rank(one_rank *r)
{
    comm_close(r->c);
    device_close(r->d);
}

/* The first rank, the last and one between: their numbers, and few bytes for each peer. */
TEST(test_rank_of_many)
{
    static const int RANKS[] = {0, 5000, MANY - 1};
    for (int i = 0; i < 3; i++) {
        const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
        one_rank r = open_rank(RANKS[i], MANY);
        const size_t used = mallinfo2().uordblks + mallinfo2().hblkhd - before;
        if (before > 0) /* else a sanitizer's allocator is in use, which mallinfo2 does not know */
            assert_uint_in_range(used, 1, 256 * (size_t)MANY);
        assert_int_equal(comm_rank(r.c), RANKS[i]);
        assert_int_equal(comm_size(r.c), MANY);
        assert_string_equal(comm_backend_name(r.c), "dry");
        assert_int_equal(figures(r.d).live_total_bytes, 0);
        assert_false(comm_signal_came(r.c, 15));
        close_rank(&r);
    }
}

/* Memory that peers would read in place comes from device_alloc_host. A single rank has no
 * peers. */
TEST(test_what_is_shown)
{
    for (int size = 1; size <= 2; size++) {
        one_rank r = open_rank(0, size);
        stream *side = open_stream(r.d);
        void *ptr = NULL, *plain;
        OK(comm_alloc(r.c, side, MEM_COMM, 100, "shown", &ptr));
        device_free(side, ptr);
        plain = get(side, 100); /* in the same place, unless that is for peers */
        assert_held(r.d, size == 1 ? 100 : 200, 100);
        device_free(side, plain);
        stream_free(side);
        close_rank(&r);
    }
}

/* A collective of many ranks: bytes as comm.h says. */
TEST(test_many_count)
{
    one_rank r = open_rank(MANY - 1, MANY);
    stream *s = device_compute_stream(r.d);
    float *recv = get(s, (size_t)MANY * 40), *send = get(s, 40);
    OK(comm_all_gather(r.c, s, "x", DTYPE_F32, send, recv, 10));
    OK(comm_barrier(r.c, s, "x"));
    comm_stats st = comm_job_stats_read(r.c);
    assert_int_equal(st.bytes_sent[COMM_OP_ALL_GATHER], 40u * (MANY - 1));
    assert_int_equal(st.calls[COMM_OP_ALL_GATHER] + st.calls[COMM_OP_BARRIER], 2);
    device_free(s, send);
    device_free(s, recv);
    close_rank(&r);
}

/* Ranges that have this rank, and ranges of these ranges. */
TEST(test_many_in_ranges)
{
    one_rank r = open_rank(8 * 1000 + 3, MANY);
    comm *host = NULL, *same = NULL, *far = NULL, *alone = NULL;
    OK(comm_range(r.c, 8 * 1000, 1, 8, &host));
    OK(comm_range(r.c, 3, 8, MANY / 8, &same));
    OK(comm_range(same, 0, 1000, 3, &far));
    OK(comm_range(far, 1, 1, 1, &alone));
    assert_int_equal(comm_rank(host), 3);
    assert_int_equal(comm_size(host), 8);
    assert_int_equal(comm_rank(same), 1000);
    assert_int_equal(comm_size(same), MANY / 8);
    assert_int_equal(comm_rank(far), 1);
    assert_int_equal(comm_size(far), 3);
    assert_int_equal(comm_size(alone), 1);
    assert_int_not_equal(comm_group_number(host), comm_group_number(same));
    comm_close(alone);
    comm_close(far);
    comm_close(same);
    comm_close(host);
    close_rank(&r);
}

/* Sizes of a mesh. An axis that is not here has 1. */
#define SIZES(pp, replicas, shards, cp, tp)                                                        \
    {                                                                                              \
        [AXIS_PP] = pp, [AXIS_REPLICATE] = replicas, [AXIS_SHARD] = shards, [AXIS_CP] = cp,        \
        [AXIS_TP] = tp                                                                             \
    }

/* The rank of the world that differs from shape's rank along `axes`: the k-th of these. */
static int along(const mesh_shape *shape, unsigned axes, int k)
{
    int rank = shape->world_rank;
    for (int a = N_AXES - 1, stride = 1; a >= 0; stride *= shape->size[a--])
        if (axes >> a & 1) {
            rank += (k % shape->size[a] - shape->at[a]) * stride;
            k /= shape->size[a];
        }
    return rank;
}

/* Whether axes longer than 1 are missing in two places between the first and the last. */
static bool has_two_gaps(const mesh_shape *shape, unsigned axes)
{
    int n_runs = 0;
    bool inside = false;
    for (int a = 0; a < N_AXES; a++)
        if (shape->size[a] > 1) {
            n_runs += !inside && axes >> a & 1;
            inside = axes >> a & 1;
        }
    return n_runs > 2;
}

static void check_axes(const int size[N_AXES], int rank)
{
    mesh_shape shape;
    OK(mesh_shape_make(32, size, rank, &shape));
    for (unsigned axes = 0; axes < 1u << N_AXES; axes++) {
        one_rank r = open_rank(rank, 32); /* a refusal is final */
        comm *group = NULL;
        int n = 1, mine = -1;
        for (int a = 0; a < N_AXES; a++)
            n *= axes >> a & 1 ? shape.size[a] : 1;
        if (has_two_gaps(&shape, axes)) {
            assert_int_equal(mesh_group(r.c, &shape, axes, &group), FSDP_EINVAL);
            close_rank(&r);
            continue;
        }
        OK(mesh_group(r.c, &shape, axes, &group));
        assert_true((n == 1) == (group == NULL) && (n == 32) == (group == r.c));
        for (int k = 0; k < n; k++)
            mine = along(&shape, axes, k) == rank ? k : mine;
        if (group != NULL) {
            assert_int_equal(comm_size(group), n);
            assert_int_equal(comm_rank(group), mine);
            for (int k = 0; k < n; k++)
                assert_int_equal(comm_world_rank(&group->team, k), along(&shape, axes, k));
            OK(comm_barrier(group, device_compute_stream(r.d), "axes"));
        }
        if (group != r.c)
            comm_close(group);
        close_rank(&r);
    }
}

/* The groups that a mesh has open have the ranks of their axes. One rank in a larger world is no
 * group, but in dp_cp. */
static void check_open(const int size[N_AXES], int rank)
{
    enum {
        COLUMN = 1 << AXIS_REPLICATE,
        ROW = 1 << AXIS_SHARD | 1 << AXIS_CP,
        ALL = (1 << N_AXES) - 1
    };
    one_rank r = open_rank(rank, 32);
    mesh m;
    OK(mesh_open(r.c, size, &m));
    comm *const groups[] = {m.dp_cp, m.shard, m.replicate, m.copy};
    const unsigned axes[] = {ROW | COLUMN, ROW, COLUMN, ALL & ~COLUMN};
    for (int i = 0; i < 4; i++) {
        int n = 1;
        for (int a = 0; a < N_AXES; a++)
            n *= axes[i] >> a & 1 ? m.shape.size[a] : 1;
        assert_true((groups[i] == r.c) == (n == 32));
        assert_true((groups[i] == NULL) == (n == 1 && i > 0));
        for (int k = 0; groups[i] && k < n; k++)
            assert_int_equal(comm_world_rank(&groups[i]->team, k), along(&m.shape, axes[i], k));
        assert_true(!groups[i] || comm_size(groups[i]) == n);
    }
    mesh_close(&m);
    close_rank(&r);
}

/* The sizes do not fit 32 ranks, and the message has these words. */
static void refuse_axes(const int size[N_AXES], const char *words)
{
    mesh_shape s;
    REFUSED(FSDP_EINVAL, mesh_shape_make(32, size, 0, &s), words);
}

/* Every group of axes of meshes of 32 ranks, and the ranks that number data and leaves. */
TEST(test_axes)
{
    static const int sizes[][N_AXES] = {SIZES(2, 2, 2, 2, 2), SIZES(1, 4, 8, 1, 1),
                                        SIZES(4, 1, 4, 1, 2), SIZES(2, 1, 4, 4, 1),
                                        SIZES(1, 1, 1, 1, 32)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int rank = 0; rank < 32; rank += 7)
            check_axes(sizes[i], rank);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int rank = 0; rank < 32; rank += 7)
            check_open(sizes[i], rank);
    mesh_shape s; /* pp 1, replica 0, shard 1, cp 0, tp 1 */
    OK(mesh_shape_make(32, sizes[0], 16 + 4 + 1, &s));
    assert_int_equal(mesh_data_size(&s), 4);
    assert_int_equal(mesh_data_rank(&s), 1);
    assert_int_equal(mesh_leaf_size(&s), 8);
    assert_int_equal(mesh_leaf_rank(&s), 2);
    for (int r = 0; r < 32; r++) /* the last pp stage's ranks of tp 0 have the losses */
        assert_int_equal(mesh_leaf_of(&s, r), r >= 16 && r % 2 == 0 ? (r - 16) / 2 : -1);
    refuse_axes((const int[N_AXES]){[AXIS_TP] = 3},
                "axes of tp 3, expected sizes from 1 whose product divides 32,");
    refuse_axes((const int[N_AXES])SIZES(1, 0, 1, 8, 8), "axes of cp 8, tp 8, expected");
    refuse_axes((const int[N_AXES])SIZES(2, 2, 2, 2, 4),
                "axes of pp 2, replicate 2, shard 2, cp 2, tp 4, expected sizes from 1 whose "
                "product is 32,");
    refuse_axes((const int[N_AXES])SIZES(1, 1, 2, 1, 1), "axes of replicate 1, shard 2, expected");
    refuse_axes((const int[N_AXES]){[AXIS_CP] = -2}, "axes of cp -2, expected");
    OK(mesh_shape_make(32, (const int[N_AXES]){[AXIS_TP] = 4, [AXIS_SHARD] = 2}, 0, &s));
    assert_int_equal(s.size[AXIS_REPLICATE], 4);
}

/* Of a group of two runs, ranks 0, 1 and 2 are neither one run nor equal ones. */
TEST(test_part_of_runs)
{
    one_rank r = open_rank(0, 32);
    mesh_shape shape;
    comm *runs = NULL, *part = NULL;
    OK(mesh_shape_make(32, (const int[N_AXES])SIZES(2, 2, 2, 2, 2), 0, &shape));
    OK(mesh_group(r.c, &shape, 1u << AXIS_PP | 1u << AXIS_TP, &runs)); /* 0 1 16 17 */
    OK(comm_range(runs, 0, 2, 2, &part));
    assert_int_equal(comm_world_rank(&part->team, 1), 16);
    comm_close(part);
    REFUSED(FSDP_EINVAL, comm_range(runs, 0, 1, 3, &part), "3 ranks from 0 by 1, of 4 ranks");
    comm_close(runs);
    close_rank(&r);
    r = open_rank(0, 4);
    REFUSED(FSDP_EINVAL, comm_subset(r.c, &((comm_ranks){0, 2, 2, 1, 2}), &part),
            "2 ranks from 0 by 2, 2 times by 1, of 4 ranks, on rank 0");
    close_rank(&r);
}

/* Over an accelerator's own transport nothing goes through the host, and a plain sum arrives whole.
 * Other transports copy through the host and bring contributions. */
TEST(test_moves)
{
    enum { ELEMS = 1000, RANKS = 4 };
    for (int moves = MOVES_BY_SHOWING; moves <= MOVES_NATIVELY; moves++) {
        device *d = open_dry(DRY_POOL, false, 0);
        stream *s = device_compute_stream(d);
        comm *c = NULL;
        grad_acc acc;
        OK(comm_open(d, &(comm_config){.backend = COMM_DRY, .dry = {1, RANKS, (comm_moves)moves}},
                     &c));
        void *send = NULL;
        OK(device_alloc(s, MEM_GRADS_FULL, RANKS * ELEMS * 4, "gradients", &send));
        grad_acc_init(&acc, GRAD_ACC_FAST, &(sum_kernels){.launch = sum_launch_cpu}, ELEMS,
                      MEM_GRADS_SHARD, "sum");
        OK(comm_reduce_scatter(c, s, "x", send, ELEMS, &acc, 0));
        ledger_figures host = ledger_read(device_host_ledger(d));
        assert_int_equal(host.peak_total_bytes > 0, moves != MOVES_NATIVELY);
        assert_int_equal(figures(d).issued_peak_bytes[MEM_COMM],
                         (moves == MOVES_NATIVELY ? 1 : RANKS - 1) * ELEMS * 4);
        grad_acc_free(&acc, s);
        device_free(s, send);
        comm_close(c);
        device_close(d);
    }
}

/* What hosts settle: the result is as if all ranks had passed what this rank passes. */
TEST(test_many_agree)
{
    one_rank r = open_rank(2, 5);
    int mine = 42;
    void *all = NULL;
    OK(comm_agree(r.c, FSDP_OK));
    assert_int_equal(comm_agree(r.c, fsdp_error(FSDP_EIO, "", "disk full")), FSDP_EIO);
    assert_non_null(strstr(fsdp_error_get()->what, "disk full"));
    OK(comm_same(r.c, "what", "text"));
    OK(comm_host_gather(r.c, "numbers", &mine, sizeof mine, &all));
    for (int i = 0; i < 5; i++)
        assert_int_equal(((const int *)all)[i], 42);
    free(all);
    close_rank(&r);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
