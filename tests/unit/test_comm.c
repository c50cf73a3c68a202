/* test_comm.c -- the collectives between ranks, on any number of ranks.
 *
 *   build/fsdp_run -n W build/tests/unit/test_comm          (W = 1: alone)
 *
 * Rank 0 prints one PASS or FAIL line per check, with the first wrong rank. Every rank ends with a
 * DONE line. A harness must count these lines: a rank that dies early with status 0 would pass
 * otherwise. The checks are repeated over a simulated network (FSDP_LINK), on devices whose memory
 * is not the host's (separate.h, comm_apart_lib.h), and with a transport on top that cannot carry
 * hosts' calls (comm_fake_lib.h). FSDP_MPI_CHUNK_BYTES=1000 runs the same checks with messages cut
 * into pieces. comm_faults tests ranks that disagree, wait or die. */
#include "common/device/dry.h"
#include "common/device/instruments/separate.h"
#include "tests/unit/comm_apart_lib.h"
#include "tests/unit/comm_cases_lib.h"
#include "tests/unit/comm_fake_lib.h"
#include "tests/unit/slices.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- order, groups, figures ----------------------------------------------------------------- */

/* args points to the address of an atomic_int. */
static fsdp_status flag_set(void *args, int n_threads)
{
    atomic_store(*(atomic_int **)args, 1);
    return FSDP_OK;
}

static fsdp_status flag_await(void *args, int n_threads)
{
    while (!atomic_load(*(atomic_int **)args))
        usleep(500);
    return FSDP_OK;
}

/* Two streams. On even ranks the first call starts only when the second is done; on odd ranks the
 * first is in flight before the second starts. A transport that serves one call at a time hangs
 * here. */
static void test_two_streams(comm_fixture *f)
{
    stream *a = NULL, *b = NULL;
    CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "test a"}, &a));
    CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "test b"}, &b));
    for (int round = 0; round < 5; round++) {
        atomic_int flag = 0, *at = &flag;
        if (f->rank % 2 == 0)
            CHECK_OK(f, stream_launch(a, flag_await, &at, sizeof at));
        comm_test_call(f, a, 2 * round, comm_test_of(COMM_OP_ALL_GATHER, DTYPE_F32, 3000));
        if (f->rank % 2 == 1)
            usleep(2000);
        comm_test_call(f, b, 2 * round + 1, comm_test_of(COMM_OP_ALL_GATHER, DTYPE_F32, 3000));
        CHECK_OK(f, stream_launch(b, flag_set, &at, sizeof at));
        CHECK_OK(f, stream_sync(a));
        CHECK_OK(f, stream_sync(b));
    }
    stream_free(a);
    stream_free(b);
}

static fsdp_status take_a_nap(void *args, int n_threads)
{
    usleep(50000);
    return FSDP_OK;
}

/* Odd ranks are in comm_open when their part of a call begins. Even ranks enter comm_open after
 * they have received that part. A transport that serves no calls while comm_open waits for all
 * ranks hangs here. */
static void test_open_beside_calls(comm_fixture *f)
{
    stream *a = NULL;
    comm *other = NULL;
    CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "test a"}, &a));
    if (f->rank % 2 == 1)
        CHECK_OK(f, stream_launch(a, take_a_nap, NULL, 0));
    comm_test_call(f, a, 0, comm_test_of(COMM_OP_ALL_GATHER, DTYPE_F32, 3000));
    if (f->rank % 2 == 0)
        CHECK_OK(f, stream_sync(a));
    CHECK_OK(f, comm_open(f->dev, &(comm_config){.backend = COMM_AUTO, .timeout_s = 10}, &other));
    CHECK_OK(f, stream_sync(a));
    comm_close(other);
    stream_free(a);
}

/* A group that comm_subset makes. */
typedef struct family {
    int of; /* index of its parent in parts; -1: f->c */
    comm_ranks x;
    const char *name;
    comm *c;
} family;

static int parent_rank(const comm_ranks *x, int i)
{
    return x->first + i / x->n * x->outer_step + i % x->n * x->step;
}

/* Checks the members, and that a sum reaches exactly them. */
static void part_check(comm_fixture *f, const family *p, const comm *of)
{
    const int n = p->x.n * p->x.n_outer, rank = comm_rank(p->c);
    comm_fixture part = *f;
    part.c = p->c;
    CHECK(f, comm_size(p->c) == n && parent_rank(&p->x, rank) == comm_rank(of),
          "%s: place %d of %d, not of %d", p->name, rank, comm_size(p->c), n);
    for (int i = 0; i < n; i++)
        CHECK(f,
              comm_world_rank(&p->c->team, i) == comm_world_rank(&of->team, parent_rank(&p->x, i)),
              "%s: member %d", p->name, i);
    comm_test_call(&part, f->s, 0, comm_test_of(COMM_OP_ALL_REDUCE, DTYPE_I64, 1));
    CHECK_OK(f, stream_sync(f->s));
    CHECK(f, comm_group_number(p->c) != comm_group_number(of), "%s: no number of its own", p->name);
}

/* All ranks, each rank alone, side by side, with strides, pairs, and parts of a part. All
 * of them are open at once, and each round makes them again. Groups do not depend on the stream, so
 * only the compute stream gets all rounds. */
static void test_range(comm_fixture *f)
{
    const int parity = f->rank % 2, members = (f->world + 1 - parity) / 2;
    const int half = (f->world + 1) / 2, lower = f->rank < half, place = f->rank / 2;
    const bool is_last = place == members - 1;
    const int odd = place % 2, pairs = (f->world / 2 + 1 - odd) / 2; /* pairs of an even world */
    family parts[] = {
        {-1, {0, 1, f->world, 0, 1}, "all", NULL},
        {-1, {f->rank, 1, 1, 0, 1}, "alone", NULL},
        {-1, {f->rank, 7, 1, 0, 1}, "alone, with a step", NULL},
        {-1, {lower ? 0 : half, 1, lower ? half : f->world - half, 0, 1}, "side by side", NULL},
        {-1, {parity, 2, members, 0, 1}, "every other one", NULL},
        {4, {0, 1, members, 0, 1}, "all of these", NULL},
        {4, {is_last ? place : 0, 1, is_last ? 1 : members - 1, 0, 1}, "the last apart", NULL},
        {-1, {parity, 1, 1, 2, members}, "every other one, as runs of one", NULL},
        {-1, {2 * odd, 1, 2, 4, pairs}, "every other pair", NULL},
        {8, {0, 1, 2 * pairs, 0, 1}, "all of these pairs", NULL},
        {8, {parity, 2, pairs, 0, 1}, "one of each of these pairs", NULL}};
    const int n = sizeof parts / sizeof *parts - (f->world % 2 == 0 ? 0 : 3);
    const int rounds = f->s == f->worker ? 2 : 6;
    for (int round = 0; round < rounds && f->why[0] == '\0'; round++) {
        for (family *p = parts; p < parts + n && f->why[0] == '\0'; p++) {
            comm *of = p->of < 0 ? f->c : parts[p->of].c;
            CHECK_OK(f, comm_subset(of, &p->x, &p->c));
            if (p->c != NULL)
                part_check(f, p, of);
        }
        for (int i = n - 1; i >= 0; i--) {
            comm_close(parts[i].c);
            parts[i].c = NULL;
        }
    }
    int at = comm_local_rank(f->c), of = comm_local_size(f->c);
    CHECK(f, at <= f->rank && at < of && (of < f->world || at == f->rank), "local rank %d of %d",
          at, of);
}

/* What a watch of the job was told of calls with this label: the first calls issued, and for each
 * operation the first call that ended, with the times and bytes of all of them. */
typedef struct watched {
    const char *label;
    pthread_mutex_t lock;
    int n_issued, n_ended;
    comm_record issued[16], ended[COMM_OPS];
} watched;

static uint64_t note_issued(void *self, const comm_record *r)
{
    watched *w = self;
    if (strcmp(r->label, w->label) == 0 && w->n_issued++ < 16)
        w->issued[w->n_issued - 1] = *r;
    return (uint64_t)r->op + 1;
}

static void note_ended(void *self, const comm_record *r)
{
    watched *w = self;
    comm_record *sum = &w->ended[r->op];
    if (strcmp(r->label, w->label) != 0)
        return;
    pthread_mutex_lock(&w->lock);
    const double seconds = sum->seconds + r->seconds, bytes = sum->bytes + r->bytes;
    if (sum->calls == 0)
        *sum = *r;
    sum->seconds = seconds;
    sum->bytes = bytes;
    w->n_ended += (int)r->calls;
    pthread_mutex_unlock(&w->lock);
}

/* One call of each kind, with n elements. */
static void issue_each(comm_fixture *f, size_t n, const size_t *lengths, float *send, float *recv)
{
    grad_acc acc, accv, accp;
    comm_piece rows[64];
    const comm_pieces pieces = {rows, (size_t)f->world, n};
    for (size_t r = 0; r < pieces.n; r++) /* all but the first element of each shard */
        rows[r] = (comm_piece){.at = r * n + 1, .begin = r * n, .elems = n - 1};
    grad_acc_init(&acc, GRAD_ACC_FAST, &comm_test_sums, n, MEM_GRADS_SHARD, "sum");
    grad_acc_init(&accv, GRAD_ACC_FAST, &comm_test_sums, lengths[f->rank], MEM_GRADS_SHARD, "sum");
    grad_acc_init(&accp, GRAD_ACC_FAST, &comm_test_sums, n, MEM_GRADS_SHARD, "sum");
    const char *l = "figures";
    CHECK_OK(f, comm_all_gather(f->c, f->s, l, DTYPE_F32, send, recv, n));
    CHECK_OK(f, comm_reduce_scatter(f->c, f->s, l, send, n, &acc, 0));
    CHECK_OK(f,
             comm_reduce_scatterv(f->c, f->s, l, send,
                                  slices_of(lengths, f->world, (comm_slice[64]){{0}}), &accv, 0));
    CHECK_OK(f, comm_all_reduce(f->c, f->s, l, DTYPE_F32, recv, n));
    CHECK_OK(f, comm_all_to_all(f->c, f->s, l, DTYPE_U8, send, recv, n));
    CHECK_OK(f, comm_barrier(f->c, f->s, l));
    CHECK_OK(f, comm_all_gather_pieces(f->c, f->s, l, DTYPE_F32, send, recv, &pieces));
    CHECK_OK(f, comm_reduce_scatter_pieces(f->c, f->s, l, send, &pieces, &accp, 0));
    CHECK_OK(f, stream_sync(f->s));
    grad_acc_free(&acc, f->s);
    grad_acc_free(&accv, f->s);
    grad_acc_free(&accp, f->s);
}

enum { EACH_ELEMS = 37 };

typedef struct usage {
    comm_stats stats;
    ledger_figures device, host;
} usage;

static usage use_each(comm_fixture *f)
{
    size_t n = EACH_ELEMS, world = (size_t)f->world, room = (n * world + 3 * world * world) * 4,
           lengths[64];
    float *send = calloc(1, room), *recv = calloc(1, room);
    void *from = comm_test_up(f, send, room), *to = comm_test_up(f, recv, room);
    usage u;
    for (size_t r = 0; r < world; r++)
        lengths[r] = r * 3;
    CHECK_OK(f, stream_sync(f->s)); /* wait for earlier work */
    ledger_reset_peaks(device_ledger(f->dev));
    ledger_reset_peaks(device_host_ledger(f->dev));
    comm_job_stats_reset(f->c);
    issue_each(f, n, lengths, from, to);
    u.stats = comm_job_stats_read(f->c);
    u.device = ledger_read(device_ledger(f->dev));
    u.host = ledger_read(device_host_ledger(f->dev));
    comm_test_down(f, send, from, room);
    comm_test_down(f, recv, to, room);
    free(send);
    free(recv);
    return u;
}

/* Compares the counts with the formulas of comm.h. */
static void test_figures(comm_fixture *f)
{
    const size_t n = EACH_ELEMS, world = (size_t)f->world, rank = (size_t)f->rank, own = 3 * rank;
    const size_t all = 3 * world * (world - 1) / 2; /* elements of all unequal slices */
    const size_t slice = n / world + (rank < n % world ? 1 : 0); /* in the all-reduce */
    const uint64_t calls[COMM_OPS] = {[COMM_OP_ALL_GATHER] = 2,
                                      [COMM_OP_REDUCE_SCATTER] = 3,
                                      [COMM_OP_ALL_REDUCE] = 1,
                                      [COMM_OP_ALL_TO_ALL] = 1,
                                      [COMM_OP_BARRIER] = 1};
    const uint64_t bytes[COMM_OPS] = {
        [COMM_OP_ALL_GATHER] = 2 * (world - 1) * n * 4,
        [COMM_OP_REDUCE_SCATTER] = 2 * (world - 1) * n * 4 + (all - own) * 4,
        [COMM_OP_ALL_REDUCE] = (n - slice) * 4 + (world - 1) * slice * 4,
        [COMM_OP_ALL_TO_ALL] = (world - 1) * n};
    watched w = {.label = "figures"};
    comm_set_watch(f->c, &(comm_watch){.self = &w, .issued = note_issued});
    const comm_stats st = use_each(f).stats;
    comm_set_watch(f->c, NULL);
    for (int op = 0; op < COMM_OPS; op++)
        CHECK(f, st.calls[op] == calls[op] && st.bytes_sent[op] == bytes[op],
              "%s: %llu calls, %llu bytes, not %llu", comm_op_name((comm_op)op),
              (unsigned long long)st.calls[op], (unsigned long long)st.bytes_sent[op],
              (unsigned long long)bytes[op]);
    const size_t elems[] = {n, n, own, n, n, 0, n, n};
    CHECK(f,
          w.n_issued == 8 && w.issued[1].op == COMM_OP_REDUCE_SCATTER &&
              w.issued[5].op == COMM_OP_BARRIER,
          "%d calls seen", w.n_issued);
    for (int i = 0; i < 8; i++)
        CHECK(f, w.issued[i].elems == elems[i], "call %d: %zu elements", i, w.issued[i].elems);
    comm_job_stats_reset(f->c);
    CHECK(f, comm_job_stats_read(f->c).calls[COMM_OP_ALL_GATHER] == 0, "reset");
}

/* ---- a dry group beside a real one ---------------------------------------------------------- */

/* Over shm+mpi the memory that calls hold is not planned, because a dry group knows no hosts. */
static void same_peaks(comm_fixture *f, const char *of, const ledger_figures *dry,
                       const ledger_figures *real)
{
    const bool over_hosts = comm_moves_of(f->c) == MOVES_BY_BOTH;
    for (int k = 0; k < MEM_CATEGORIES; k++)
        CHECK(f,
              (over_hosts && k == MEM_COMM) ||
                  dry->issued_peak_bytes[k] == real->issued_peak_bytes[k],
              "%s of the %s: %zu bytes dry, %zu really", mem_category_name((mem_category)k), of,
              dry->issued_peak_bytes[k], real->issued_peak_bytes[k]);
}

/* A dry group of the same size counts what the real one counts, and holds as much memory. */
static void test_dry(comm_fixture *f)
{
    comm_fixture dry;
    bool is_host = device_memory_is_host(f->dev);
    comm_moves moves = comm_moves_of(f->c);
    bool brings = moves == MOVES_BY_BRINGING || moves == MOVES_BY_BOTH;
    CHECK_OK(f,
             comm_test_open_as(
                 &dry,
                 &(device_config){.backend = device_dry(is_host ? DRY_CPU : DRY_SEPARATE),
                                  .n_threads = 1},
                 &(comm_config){.backend = COMM_DRY,
                                .dry = {f->rank, f->world,
                                        brings && is_host ? MOVES_BY_BRINGING : MOVES_BY_SHOWING},
                                .sums = f->sums}));
    if (f->why[0] != '\0')
        return;
    dry.s = f->s == f->worker ? dry.worker : device_compute_stream(dry.dev);
    usage real = use_each(f), said = use_each(&dry);
    for (int op = 0; op < COMM_OPS; op++)
        CHECK(f,
              real.stats.calls[op] == said.stats.calls[op] &&
                  real.stats.bytes_sent[op] == said.stats.bytes_sent[op],
              "%s: %llu calls dry, %llu really", comm_op_name((comm_op)op),
              (unsigned long long)said.stats.calls[op], (unsigned long long)real.stats.calls[op]);
    if (is_host || device_ledger(f->dev) != device_host_ledger(f->dev)) { /* not "apart" */
        same_peaks(f, "device", &said.device, &real.device);
        same_peaks(f, "host", &said.host, &real.host);
    }
    CHECK(f, dry.why[0] == '\0', "dry: %.150s", dry.why);
    comm_test_end(&dry);
}

/* A gather of 5 elements on one group, a sum of 7 on the other. */
static void watched_calls(comm_fixture *f, comm *gathers, comm *sums)
{
    comm_fixture in = *f;
    collective gather = comm_test_of(COMM_OP_ALL_GATHER, DTYPE_F32, 5);
    collective sum = comm_test_of(COMM_OP_ALL_REDUCE, DTYPE_I64, 7);
    gather.label = sum.label = "watched";
    in.c = gathers;
    comm_test_call(&in, f->s, 0, gather);
    in.c = sums;
    comm_test_call(&in, f->s, 1, sum);
    CHECK_OK(f, stream_sync(f->s));
}

static void record_check(comm_fixture *f, const watched *w, int k, comm *g, size_t elems)
{
    const comm_record *i = &w->issued[k], *e = &w->ended[i->op];
    const char *name = comm_op_name(i->op);
    CHECK(f, i->group == comm_group_number(g) && i->group_ranks == comm_size(g), "%s: group", name);
    CHECK(f, i->elems == elems && i->stream == f->s && i->seq > 0 && i->calls == 1, "%s", name);
    CHECK(f,
          e->group == i->group && e->group_ranks == i->group_ranks && e->seq == i->seq &&
              e->elems == i->elems && e->type == i->type && e->stream == i->stream,
          "%s: another one ended", name);
    CHECK(f, e->begin_s >= i->begin_s && e->begin_s + e->seconds <= clock_now_s(), "%s: %f s", name,
          e->seconds);
    CHECK(f, e->token == (uint64_t)i->op + 1 && i->token == 0, "%s: token", name);
    CHECK(f, e->bytes == i->bytes, "%s: %g bytes, not %g", name, e->bytes, i->bytes);
}

/* Many calls issued ahead on two streams without a wait. A watch is told the end of every call. */
static void test_many_in_flight(comm_fixture *f)
{
    enum { CALLS = 300 };
    watched w = {.label = "watched", .lock = PTHREAD_MUTEX_INITIALIZER};
    stream *b = NULL;
    collective d = comm_test_of(COMM_OP_ALL_GATHER, DTYPE_I64, 5);
    d.label = w.label;
    CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "test b"}, &b));
    comm_set_watch(f->c, &(comm_watch){&w, note_issued, note_ended});
    CHECK_OK(f, stream_launch(f->s, take_a_nap, NULL, 0));
    for (int k = 0; k < CALLS; k++)
        comm_test_call(f, k % 3 == 0 ? b : f->s, k, d);
    CHECK_OK(f, stream_sync(b));
    CHECK_OK(f, stream_sync(f->s));
    comm_set_watch(f->c, NULL);
    CHECK(f, w.n_ended == CALLS, "%d calls issued ahead, %d have ended", CALLS, w.n_ended);
    stream_free(b);
}

/* One watch sees the calls of all groups of the job. Group and sequence numbers match between
 * ranks. */
static void test_watch(comm_fixture *f)
{
    watched w = {.label = "watched", .lock = PTHREAD_MUTEX_INITIALIZER};
    comm *half = NULL, *again = NULL;
    int parity = f->rank % 2, members = (f->world + 1 - parity) / 2;
    CHECK_OK(f, comm_range(f->c, parity, 2, members, &half));
    CHECK_OK(f, comm_range(f->c, parity, 2, members, &again));
    if (f->why[0] != '\0')
        return;
    comm_set_watch(half, &(comm_watch){&w, note_issued, note_ended});
    watched_calls(f, half, f->c);
    comm_set_watch(f->c, NULL);
    watched_calls(f, f->c, half);
    CHECK(f, w.n_issued == 2 && w.n_ended == 2, "issued %d times, ended %d", w.n_issued, w.n_ended);
    record_check(f, &w, 0, half, 5);
    record_check(f, &w, 1, f->c, 7);
    CHECK(f, comm_group_number(f->c) == 0 && comm_group_number(half) != 0, "group opened first");
    CHECK(f, comm_group_number(half) != comm_group_number(again), "two splits alike");
    const comm_record *gather = &w.issued[0], *sum = &w.issued[1];
    const uint64_t mine[4] = {gather->group, gather->seq, sum->group, sum->seq};
    void *all = NULL;
    CHECK_OK(f, comm_host_gather(f->c, "records", mine, sizeof mine, &all));
    for (int r = 0; all != NULL && r < f->world; r++) {
        const uint64_t *theirs = (const uint64_t *)all + (size_t)r * 4;
        CHECK(f, (theirs[0] == mine[0]) == (r % 2 == f->rank % 2), "group of rank %d", r);
        CHECK(f, theirs[1] == 1 && theirs[2] == 0 && theirs[3] == mine[3], "calls of rank %d", r);
    }
    free(all);
    comm_close(again);
    comm_close(half);
}

/* The bytes of a block that holds pieces of these sizes. Each piece begins at a multiple of 64. */
static size_t block_bytes(size_t first, size_t second, size_t third)
{
    size_t bytes = first;
    if (second > 0)
        bytes = (bytes + 63) / 64 * 64 + second;
    if (third > 0)
        bytes = (bytes + 63) / 64 * 64 + third;
    return bytes;
}

static bool is_staged(const comm_fixture *f)
{
    return f->world > 1 && !device_memory_is_host(f->dev);
}

/* Checks the peak of the last call under MEM_COMM: exactly on_device and on_host, plus at most
 * `copies` bytes on the device for data that peers read. The call must hold nothing any more. */
static void held_check(comm_fixture *f, const char *name, size_t on_device, size_t on_host,
                       size_t copies)
{
    ledger *l = device_ledger(f->dev), *h = device_host_ledger(f->dev);
    CHECK_OK(f, stream_sync(f->s));
    ledger_figures there = ledger_read(l), here = ledger_read(h);
    size_t got = there.peak_bytes[MEM_COMM], live = there.live_bytes[MEM_COMM];
    on_device += h == l ? on_host : 0;
    CHECK(f, live == 0 && here.live_bytes[MEM_COMM] == 0, "%s: %zu bytes live", name, live);
    CHECK(f, got >= on_device && got <= on_device + copies, "%s: peak %zu, not %zu ... %zu", name,
          got, on_device, on_device + copies);
    CHECK(f, h == l || here.peak_bytes[MEM_COMM] == on_host, "%s: peak %zu on the host, not %zu",
          name, here.peak_bytes[MEM_COMM], on_host);
    ledger_reset_peaks(l);
    ledger_reset_peaks(h);
}

/* A call of n elements per rank, in the first half of buf [2*world*n]. Number 2 gathers pieces into
 * the second half, from the last rank's to the first's. */
static fsdp_status call_nth(comm_fixture *f, int i, float *buf, size_t n, grad_acc *acc)
{
    const size_t world = (size_t)f->world;
    const char *l = "staged";
    static comm_piece rows[64]; /* valid until the call has run */
    static comm_pieces pieces;
    for (size_t r = 0; r < world; r++)
        rows[r] = (comm_piece){.at = r * n, .begin = (world - 1 - r) * n, .elems = n};
    pieces = (comm_pieces){rows, world, n};
    switch (i) {
    case 0:
        return comm_all_gather(f->c, f->s, l, DTYPE_F32, buf + (size_t)f->rank * n, buf, n);
    case 1:
        return comm_reduce_scatter(f->c, f->s, l, buf, n, acc, 0);
    default:
        return comm_all_gather_pieces(f->c, f->s, l, DTYPE_F32, buf, buf + world * n, &pieces);
    }
}

/* Staging memory is counted under MEM_COMM and given back. Calls on pieces need an array in rank
 * order, unless ranks read each other's memory. */
static void test_staging(comm_fixture *f)
{
    const size_t n = 1000, world = (size_t)f->world, slice = n * sizeof(float), row = world * slice;
    const size_t before = (size_t)f->rank * slice, behind = row - slice - before;
    const comm_transport *t = f->c->data->table;
    const bool hier = t->reduce_scatter != NULL, staged = is_staged(f);
    const size_t gathered = !staged                 ? 0
                            : t->all_gather != NULL ? row
                                                    : block_bytes(slice, before, behind);
    const size_t summed = staged && !hier ? block_bytes(before, behind, row - slice) : 0;
    /* hier: sums of this host and of others. The transport below a fake one copies for peers. */
    const size_t sums =
        hier ? (2 * world / (size_t)comm_local_size(f->c) - 1) * slice : row - slice;
    const size_t copies = hier ? row : staged ? 0 : t == &fake_transport ? 4096 + row : 4096;
    const struct {
        const char *name;
        size_t on_device, on_host, copies; /* see held_check */
    } want[] = {{"all-gather", 0, gathered, staged ? 0 : row},
                {"reduce-scatter", sums, summed, copies},
                {"all-gather of pieces", transport_shows(f->c->data) ? 0 : row, gathered,
                 staged ? 0 : row}};
    float *zeros = calloc(2, row), *buf = comm_test_up(f, zeros, 2 * row);
    grad_acc acc;
    grad_acc_init(&acc, GRAD_ACC_FAST, &comm_test_sums, n, MEM_GRADS_SHARD, "sum");
    ledger_reset_peaks(device_ledger(f->dev));
    ledger_reset_peaks(device_host_ledger(f->dev));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(f, call_nth(f, i, buf, n, &acc));
        held_check(f, want[i].name, want[i].on_device, want[i].on_host, want[i].copies);
    }
    grad_acc_free(&acc, f->s);
    comm_test_down(f, zeros, buf, 2 * row);
    free(zeros);
}

/* The name has the transports below, and says that data are staged. A single rank stages
 * nothing. */
static void test_staged_name(comm_fixture *f)
{
    const char *name = comm_backend_name(f->c);
    CHECK(f, (strstr(name, "+staged") != NULL) == (f->world > 1), "goes by %s", name);
    CHECK(f, f->world == 1 || comm_moves_of(f->c) == f->c->data->below->table->moves,
          "copies through the host change how data moves");
    CHECK(f, (strstr(name, "+link+staged") != NULL) == (f->world > 1 && getenv("FSDP_LINK")),
          "goes by %s", name);
    CHECK(f, f->world == 1 || (!f->c->data->table->shares && !f->c->data->table->carries_host),
          "%s", name);
}

/* ---- what the hosts settle ------------------------------------------------------------------ */

static void test_agree(comm_fixture *f)
{
    CHECK_OK(f, comm_agree(f->c, FSDP_OK));
    int failing = f->world - 1;
    fsdp_status mine = FSDP_OK;
    if (f->rank == failing)
        mine = fsdp_error(FSDP_EIO, "look at the disk", "cannot read shard %d", f->rank);
    fsdp_status got = comm_agree(f->c, mine);
    const char *what = fsdp_error_get()->what;
    char want[80];
    snprintf(want, sizeof want, "%scannot read shard %d", "", failing);
    CHECK(f, got == FSDP_EIO && strstr(what, want) != NULL, "%s: %.120s", fsdp_status_name(got),
          what);
    snprintf(want, sizeof want, "rank %d failed", failing);
    CHECK(f, f->rank == failing || strstr(what, want) != NULL, "%.120s", what);
    CHECK(f, strcmp(fsdp_error_get()->hint, "look at the disk") == 0, "hint");
    CHECK_OK(f, comm_agree(f->c, FSDP_OK)); /* the group stays usable */
}

static void test_same(comm_fixture *f)
{
    CHECK_OK(f, comm_same(f->c, "options", "--seed 1"));
    if (f->world == 1)
        return;
    fsdp_status got = comm_same(f->c, "options", f->rank == 1 ? "--seed 2" : "--seed 1");
    const char *what = fsdp_error_get()->what;
    CHECK(f, got == FSDP_EMISMATCH, "%s", fsdp_status_name(got));
    CHECK(f, strstr(what, "options differs: rank 1 has '--seed 2', rank 0 has '--seed 1'") != NULL,
          "%.150s", what);
}

/* An empty piece, wherever it begins, is no part of the array. */
static void test_empty_pieces(comm_fixture *f)
{
    const comm_piece list[] = {{0, 0, 3}, {3, 50, 0}};
    CHECK(f, pieces_extent(&(comm_pieces){list, 2, 4}) == 3, "an empty piece counts");
}

/* Bad arguments are refused before the call gets a number, so the ranks stay in step. */
static void test_bad_arguments(comm_fixture *f)
{
    grad_acc acc;
    float buf[8] = {0};
    grad_acc_init(&acc, GRAD_ACC_FAST, &comm_test_sums, 5, MEM_GRADS_SHARD, "sum");
    if (f->rank == 0) {
        CHECK(f, comm_reduce_scatter(f->c, f->s, "bad", buf, 1, &acc, 0) == FSDP_EINVAL, "elems");
        CHECK(f, comm_all_reduce(f->c, f->s, "bad", DTYPE_BF16, buf, 1) == FSDP_EINVAL, "bf16");
        CHECK(f, comm_all_gather(f->c, f->s, "bad", DTYPE_F32, buf, buf, SIZE_MAX / 3) != FSDP_OK,
              "overflow");
        /* a piece across the end of a shard; one after the last shard; pieces not in ascending
         * order; an accumulator of the wrong length */
        const size_t w = (size_t)f->world;
        const comm_piece bad[] = {{w * 4 - 2, 0, 3}, {w * 4, 0, 1}, {2, 0, 1}, {1, 1, 1}};
        for (size_t i = 0; i < 3; i++)
            CHECK(f,
                  comm_all_gather_pieces(f->c, f->s, "bad", DTYPE_F32, buf, buf,
                                         &(comm_pieces){bad + i, 1 + i / 2, 4}) == FSDP_EINVAL,
                  "pieces %zu", i);
        CHECK(f,
              comm_reduce_scatter_pieces(f->c, f->s, "bad", buf, &(comm_pieces){NULL, 0, 4}, &acc,
                                         0) == FSDP_EINVAL,
              "shard");
    }
    CHECK_OK(f, comm_barrier(f->c, f->s, "after"));
    CHECK_OK(f, stream_sync(f->s));
    grad_acc_free(&acc, f->s);
}

/* ---- a transport that carries no calls of hosts --------------------------------------------- */

static void test_fake_on_top(comm_fixture *f)
{
    const char *why_not = NULL;
    CHECK_OK(f, comm_put_over(f->c, &fake_transport, &why_not));
    CHECK(f, strcmp(comm_backend_name(f->c), "fake") == 0, "goes by %s", comm_backend_name(f->c));
    CHECK(f, transport_control(f->c->data) == transport_control(f->c->data->below),
          "control group");
}

/* Runs after all checks: the fake transport moved data, was split, and got no host call. */
static void test_fake_figures(comm_fixture *f)
{
    CHECK(f, fake_count.host_calls == 0, "%d calls of hosts", fake_count.host_calls);
    CHECK(f, fake_count.exchanges > 100, "%d exchanges", fake_count.exchanges);
    CHECK(f, (fake_count.splits > 0) == (f->world > 1), "%d splits", fake_count.splits);
    CHECK(f, fake_count.open_groups == 1, "%d groups open", fake_count.open_groups);
}

/* ---- what a device brings along ------------------------------------------------------------- */

static fsdp_status decline(transport_group *below, transport_group **out, const char **why_not)
{
    *out = NULL;
    *why_not = "no native transport, for the test";
    return FSDP_OK;
}

/* If the native transport cannot be had, comm_open fails with its reason. If another transport is
 * asked for, the native one does not matter. test_cuda_nccl and test_npu_hccl have transports that
 * work. */
static void test_native_declined(comm_fixture *f)
{
    static const comm_transport declining = {.name = "declining", .open_over = decline};
    comm *c = NULL;
    comm_config config = {.backend = COMM_NATIVE, .native = &declining};
    fsdp_status status = comm_open(f->dev, &config, &c);
    CHECK(f, status == (f->world > 1 ? FSDP_EINVAL : FSDP_OK), "%s", fsdp_status_name(status));
    CHECK(f, f->world == 1 || strstr(fsdp_error_get()->what, "no native transport, for the test"),
          "%.100s", fsdp_error_get()->what);
    comm_close(c);
    CHECK(f, comm_open(f->dev, &(comm_config){.backend = COMM_NATIVE}, &c) == FSDP_EINVAL,
          "a transport that is not there");
    config.backend = COMM_AUTO;
    char before[32];
    snprintf(before, sizeof before, "%s", getenv("FSDP_COMM") ? getenv("FSDP_COMM") : "");
    bool one_host = comm_local_size(f->c) == f->world;
    setenv("FSDP_COMM", f->world == 1 ? "auto" : one_host ? "shm" : "mpi", 1);
    c = NULL;
    CHECK_OK(f, comm_open(f->dev, &config, &c));
    comm_close(c);
    setenv("FSDP_COMM", "declining", 1);
    c = NULL;
    status = comm_open(f->dev, &config, &c);
    CHECK(f, status == (f->world > 1 ? FSDP_EINVAL : FSDP_OK), "by its name in the environment");
    comm_close(c);
    setenv("FSDP_COMM", before, 1);
}

static int n_f32_sums, n_i64_sums; /* not atomic: one thread issues calls */

static fsdp_status count_sums(stream *s, const sum_launch *l)
{
    *(l->run->sum_dtype == DTYPE_I64 ? &n_i64_sums : &n_f32_sums) += 1;
    return sum_launch_cpu(s, l);
}

/* All-reduces that add on the device use the kernels of the config, in split groups too. */
static void test_sums(comm_fixture *f)
{
    static const sum_kernels counted = {.launch = count_sums};
    comm_fixture own = *f;
    comm *opened = NULL, *part = NULL;
    CHECK_OK(f, comm_open(f->dev, &(comm_config){.sums = &counted}, &opened));
    CHECK_OK(f, comm_range(opened, 0, 1, f->world, &part));
    if (f->why[0] != '\0')
        return;
    bool launched = f->world > 1 && !opened->data->table->peer_read;
    for (int i = 0; i < 2; i++) {
        n_f32_sums = n_i64_sums = 0;
        own.c = i == 0 ? opened : part;
        comm_case_calls(&own, COMM_OP_ALL_REDUCE);
        CHECK(f, (n_i64_sums > 0) == launched && (n_f32_sums > 0) == launched, "%d and %d in %s",
              n_i64_sums, n_f32_sums, i == 0 ? "the group" : "a split");
    }
    CHECK(f, own.why[0] == '\0', "%s", own.why);
    comm_close(part);
    comm_close(opened);
}

/* A device that cannot run this program's functions has no default sums. */
static void test_sums_missing(comm_fixture *f)
{
    device_backend kernels_only = *apart_backend();
    device *d = NULL;
    comm *c = NULL;
    kernels_only.runs_c = false;
    CHECK_OK(f, device_open(&(device_config){.backend = &kernels_only, .n_threads = 1}, &d));
    CHECK(f, comm_open(d, &(comm_config){.timeout_s = 0}, &c) == FSDP_EINVAL && c == NULL,
          "opened without sums");
    CHECK(f, strstr(fsdp_error_get()->hint, "comm_config.sums") != NULL, "hint");
    device_close(d);
}

/* ---- memory that is missing ----------------------------------------------------------------- */

/* No rank gets host memory: the call fails and leaves nothing allocated, and the next call
 * works. */
static void test_no_block(comm_fixture *f)
{
    size_t n = 1000, bytes = 2 * n * sizeof(float) * (size_t)f->world;
    float *zeros = calloc(1, bytes), *buf = comm_test_up(f, zeros, bytes);
    fsdp_status want = f->world > 1 ? FSDP_ENOMEM : FSDP_OK;
    for (int i = 0; i < 4; i++) {
        grad_acc acc;
        grad_acc_init(&acc, GRAD_ACC_CANONICAL, &comm_test_sums, n, MEM_GRADS_SHARD, "sum");
        apart_fail_host(1);
        fsdp_status got = call_nth(f, i, buf, n, &acc);
        apart_fail_host(0);
        CHECK(f, got == want, "call %d: %s", i, fsdp_status_name(got));
        grad_acc_free(&acc, f->s);
        CHECK_OK(f, stream_sync(f->s));
        ledger_figures l = ledger_read(device_ledger(f->dev));
        CHECK(f, l.live_bytes[MEM_COMM] == 0 && l.live_bytes[MEM_GRADS_SHARD] == 0,
              "call %d leaves %zu bytes", i, l.live_bytes[MEM_COMM]);
    }
    comm_test_down(f, zeros, buf, bytes);
    free(zeros);
    comm_case_calls(f, COMM_OP_ALL_GATHER);
    comm_case_calls(f, COMM_OP_REDUCE_SCATTER);
}

static atomic_int n_naps; /* sleeps of a comm_close that waits for a task */
static _Thread_local bool closing;

/* Replaces the C library's usleep. */
int usleep(useconds_t us)
{
    n_naps += closing;
    return nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000L},
                     NULL);
}

static fsdp_status break_stream(void *args, int n_threads)
{
    return fsdp_error(FSDP_EIO, "", "work of the test failed");
}

static fsdp_status task_well(const comm_task *t, int n_threads)
{
    return FSDP_OK;
}

static fsdp_status task_fails(const comm_task *t, int n_threads)
{
    return fsdp_error(FSDP_EIO, "", "a task of the test failed");
}

/* Each task is counted down exactly once, whether it fails or not, and in whichever thread it
 * runs. */
static void test_task_count(comm_fixture *f)
{
    static const comm_transport table = {.name = "none"};
    comm_team team = {.size = 1, .dev = f->dev, .recorder = comm_recorder_create(f->dev)};
    transport_group *g = NULL;
    CHECK_OK(f, transport_group_new(&table, &team, 0, &g));
    for (int i = 0; i < 4 && g != NULL; i++) {
        bool at_once = i % 2 == 0, fails = i >= 2;
        comm_task task = {.run = fails ? task_fails : task_well, .group = g};
        comm_part part = {0};
        stream *s = NULL;
        if (!at_once)
            CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "task"}, &s));
        fsdp_status status = transport_task(&task, s, &part, NULL);
        if (!at_once && status == FSDP_OK)
            status = stream_sync(s);
        CHECK(f, (status != FSDP_OK) == fails, "case %d: status %d", i, (int)status);
        CHECK(f, g->n_unfinished == 0, "case %d: %d tasks are left", i, (int)g->n_unfinished);
        stream_free(s);
    }
    transport_group_close(g);
    comm_recorder_free(team.recorder);
}

/* A failed stream accepts no call, so closing the group waits for nothing. */
static void test_launch_fails(comm_fixture *f)
{
    char *mine = NULL;
    comm *part = NULL;
    stream *s = NULL;
    CHECK_OK(f, comm_range(f->c, 0, 1, f->world, &part));
    CHECK_OK(f, stream_create(f->dev, &(stream_config){.name = "fails"}, &s));
    if (part != NULL && s != NULL) {
        mine = comm_test_alloc((size_t)f->world);
        (void)stream_launch_work(s, &(launch_config){.fn = break_stream, .on_host = true});
        CHECK(f, stream_sync(s) == FSDP_EIO, "the stream has not failed");
        fsdp_status status =
            comm_all_gather(part, s, "not launched", DTYPE_U8, mine + f->rank, mine, 1);
        CHECK(f, (status == FSDP_OK) == (f->world == 1), "%s", fsdp_status_name(status));
    }
    n_naps = 0;
    closing = true;
    comm_close(part);
    closing = false;
    CHECK(f, n_naps == 0, "comm_close has waited %d times", (int)n_naps);
    stream_free(s);
    free(mine);
}

/* ---- running -------------------------------------------------------------------------------- */

static void run_on_stream(comm_fixture *f, stream *s, const char *stream_name)
{
    static const comm_case OWN[] = {{"two_streams", test_two_streams},
                                    {"many_in_flight", test_many_in_flight},
                                    {"open_beside_calls", test_open_beside_calls},
                                    {"launch_fails", test_launch_fails},
                                    {"range", test_range},
                                    {"figures", test_figures},
                                    {"dry", test_dry},
                                    {"watch", test_watch},
                                    {"staging", test_staging},
                                    {"agree", test_agree},
                                    {"same", test_same},
                                    {"empty_pieces", test_empty_pieces},
                                    {"bad_arguments", test_bad_arguments}};
    f->s = s;
    comm_cases_run(f, comm_cases, COMM_CASES, stream_name);
    comm_cases_run(f, OWN, sizeof OWN / sizeof *OWN, stream_name);
}

/* Runs the checks on a second group, over a simulated network. The first group stays open. */
static void run_over_link(comm_fixture *f, const char *name)
{
    comm *first = f->c;
    setenv("FSDP_LINK", "10Gbit,1us", 1);
    if (comm_open(f->dev, &(comm_config){.backend = COMM_AUTO}, &f->c) == FSDP_OK) {
        if (!device_memory_is_host(f->dev))
            comm_test_run(f, "link_staged", test_staged_name);
        run_on_stream(f, f->worker, name);
        comm_close(f->c);
    } else {
        fsdp_error_print(stderr, f->rank, f->world);
        f->n_failed++;
    }
    unsetenv("FSDP_LINK");
    f->c = first;
}

/* Runs the checks on a device whose memory is not the host's, then over a network. With link_only,
 * the first part is just no_block. */
static void run_on_device(comm_fixture *first, const device_backend *kind, bool link_only)
{
    comm_fixture f;
    fsdp_status status = comm_test_open(&f, kind, true);
    if (status == FSDP_ESKIP && first->rank == 0)
        printf("SKIP device %s\n", fsdp_error_get()->what);
    first->n_failed += status != FSDP_OK && status != FSDP_ESKIP;
    if (status != FSDP_OK)
        return;
    char link[32];
    snprintf(link, sizeof link, "%s link", device_name(f.dev));
    comm_test_run(&f, device_name(f.dev), test_staged_name);
    comm_test_run(&f, "native_declined", test_native_declined);
    comm_test_run(&f, "sums_on_device", test_sums);
    if (link_only)
        comm_test_run(&f, "no_block", test_no_block);
    else
        run_on_stream(&f, f.worker, device_name(f.dev));
    run_over_link(&f, link);
    first->n_failed += f.n_failed;
    comm_test_end(&f);
}

int main(void)
{
    comm_fixture f;
    if (comm_test_open(&f, comm_test_backend(), true) != FSDP_OK)
        return 1;
    run_on_stream(&f, f.worker, "worker");
    run_on_stream(&f, device_compute_stream(f.dev), "inline");
    run_over_link(&f, "link");
    comm_test_run(&f, "native_declined", test_native_declined);
    comm_test_run(&f, "sums", test_sums);
    comm_test_run(&f, "sums_missing", test_sums_missing);
    comm_test_run(&f, "task_count", test_task_count);
    run_on_device(&f, &device_separate, false);
    run_on_device(&f, apart_backend(), true);
    comm_test_run(&f, "fake_on_top", test_fake_on_top);
    run_on_stream(&f, f.worker, "fake");
    comm_test_run(&f, "fake_figures", test_fake_figures);
    return comm_test_close(&f);
}
