/* comm_stress.c -- random rounds of collectives. Every element of every result is compared with a
 * plain reference (comm_calls_lib.h).
 *
 *   build/fsdp_run -n W build/tests/unit/comm_stress [--rounds N] [--seed S]
 *
 * All ranks draw the same plan from the seed: operations, types, sizes, groups and streams. Each
 * rank draws for itself what must not matter: where its buffers lie, delays, pinning, events
 * between streams. The host issues all calls of a round before it waits. A round has 1 to 20 calls.
 * Up to three more groups, some of them split from each other, come and go.
 *
 * COMM_TEST_DEVICE names a device other than the CPU (comm_apart_lib.h).
 *
 * Rank 0 prints one PASS or FAIL line, every rank a DONE line. A rank that sees differences prints
 * the first ones. */
#include "tests/unit/comm_apart_lib.h"
#include "tests/unit/comm_cases_lib.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUPS = 4, STREAMS = 4, ROWS_OF_A_RANK = 8 };

typedef struct stress {
    comm_fixture f;
    comm *group[GROUPS];  /* [0]: all ranks; NULL: closed */
    bool is_part[GROUPS]; /* split from the group before it */
    stream *s[STREAMS];   /* the last one runs calls inline */
    uint64_t plan, mine;  /* seeds: of all ranks; of this rank */
    int round;
    int64_t n_calls;
} stress;

/* ---- what is drawn of one call -------------------------------------------------------------- */

/* Draws levels that a binary counter accepts in this order, W nodes each. */
static void levels_draw(collective *d)
{
    uint64_t key = d->key, nodes = 0;
    d->mode = call_draw(&key, 2) == 0 ? GRAD_ACC_FAST : GRAD_ACC_CANONICAL;
    d->sum_dtype = call_draw(&key, 3) == 0 ? DTYPE_BF16 : DTYPE_F32;
    d->steps = 1 + (int)call_draw(&key, CALL_STEPS);
    for (int step = 0; step < d->steps; step++) {
        int level = (int)call_draw(&key, 4);
        while (nodes & ((UINT64_C(1) << level) - 1))
            level--;
        d->level[step] = level;
        nodes += (uint64_t)d->c->team.size << level;
    }
}

/* ---- rounds --------------------------------------------------------------------------------- */

static fsdp_status delay_task(void *args, int n_threads)
{
    uint64_t seed = *(uint64_t *)args, kind = call_draw(&seed, 8);
    cpu_set_t set;
    CPU_ZERO(&set);
    if (kind < 4)
        sched_yield();
    else if (kind < 7)
        usleep((useconds_t)call_draw(&seed, 300));
    else if (sched_getaffinity(getpid(), sizeof set, &set) == 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        int cpu = (int)call_draw(&seed, CPU_SETSIZE);
        while (CPU_COUNT(&set) > 0 && !CPU_ISSET(cpu, &set))
            cpu = (cpu + 1) % CPU_SETSIZE;
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof one, &one);
        sched_yield();
        (void)sched_setaffinity(0, sizeof set, &set);
    }
    return FSDP_OK;
}

/* Draws a number of elements: often few, or about as many as travel inline (2048 bytes); seldom
 * many. */
static size_t elems_draw(uint64_t *seed, dtype t)
{
    static const size_t FEW[] = {0, 1, 2, 3, 7, 10, 31};
    size_t bytes = dtype_bytes(t);
    switch (call_draw(seed, 8)) {
    case 0:
    case 1:
        return FEW[call_draw(seed, sizeof FEW / sizeof *FEW)];
    case 2:
    case 3:
        return (2048 + bytes - 1) / bytes / (1 + call_draw(seed, 4)) - 1 + call_draw(seed, 3);
    case 4:
        return call_draw(seed, 40) == 0 ? call_draw(seed, 1 << 20) / bytes
                                        : call_draw(seed, 100000) / bytes;
    default:
        return call_draw(seed, 6000) / bytes;
    }
}

/* Adds an order or a delay on this rank alone, before the next work on the stream. */
static void disturb(stress *x, stream *s)
{
    uint64_t kind = call_draw(&x->mine, 6);
    if (kind == 0) {
        const uint64_t seed = call_draw(&x->mine, 1u << 30);
        MUST(stream_launch(s, delay_task, &seed, sizeof seed));
    }
    if (kind == 1)
        usleep((useconds_t)call_draw(&x->mine, 200));
    if (kind == 2) {
        event *e = NULL;
        MUST(event_create(x->f.dev, &e));
        MUST(event_record(e, x->s[call_draw(&x->mine, STREAMS)]));
        MUST(stream_wait_event(s, e));
        event_free(e);
    }
}

static void draw_and_call(stress *x)
{
    static const dtype TYPES[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8};
    collective d = {.dev = x->f.dev,
                    .label = "stress",
                    .op = (comm_op)call_draw(&x->plan, COMM_OPS),
                    .sums = &comm_test_sums,
                    .mine = &x->mine,
                    .round = x->round};
    d.c = x->group[call_draw(&x->plan, GROUPS)];
    d.c = d.c == NULL ? x->group[0] : d.c;
    d.s = x->s[call_draw(&x->plan, STREAMS)];
    d.type = TYPES[call_draw(&x->plan, 4)];
    if (d.op == COMM_OP_REDUCE_SCATTER || (d.op == COMM_OP_ALL_REDUCE && d.type != DTYPE_I64))
        d.type = DTYPE_F32;
    d.elems = elems_draw(&x->plan, d.type);
    d.other = call_draw(&x->plan, 2);
    const bool in_pieces = call_draw(&x->plan, 2) && !d.other &&
                           (d.op == COMM_OP_ALL_GATHER || d.op == COMM_OP_REDUCE_SCATTER);
    d.key = call_draw(&x->plan, UINT64_MAX);
    levels_draw(&d);
    disturb(x, d.s);
    comm_rows *rows = NULL;
    if (in_pieces) {
        rows = comm_test_alloc(sizeof *rows);
        comm_rows_make(d.c->team.size, d.elems / ROWS_OF_A_RANK, rows);
        d.pieces = &rows->pieces;
        d.elems = rows->pieces.shard_elems;
        d.array_elems = rows->array_elems;
    }
    collective_run(&d);
    if (in_pieces)
        comm_test_free(d.s, rows);
    x->n_calls++;
}

/* Closes group i, after the groups that were split from it. */
static void group_close(stress *x, int i)
{
    if (i + 1 < GROUPS && x->group[i + 1] != NULL && x->is_part[i + 1])
        group_close(x, i + 1);
    comm_close(x->group[i]);
    x->group[i] = NULL;
}

/* Makes the part of c that has this rank: `width` ranks side by side, or every width-th rank. */
static void range_draw(comm *c, int width, bool side_by_side, comm **out)
{
    int first = comm_rank(c) % width, n = (comm_size(c) - first + width - 1) / width;
    if (side_by_side) {
        first = comm_rank(c) - first;
        n = comm_size(c) - first < width ? comm_size(c) - first : width;
    }
    MUST(comm_range(c, first, side_by_side ? 1 : width, n, out));
}

/* Closes a group; or splits a new one from the first group or the group before it; or opens one. */
static void group_draw(stress *x)
{
    int i = 1 + (int)call_draw(&x->plan, GROUPS - 1);
    uint64_t width = 1 + call_draw(&x->plan, 3), key = call_draw(&x->plan, 1u << 30);
    if (x->group[i] != NULL) {
        group_close(x, i);
    } else if (key % 5 == 0) {
        MUST(comm_open(x->f.dev, &(comm_config){.backend = COMM_AUTO}, &x->group[i]));
        x->is_part[i] = false;
    } else {
        x->is_part[i] = key % 2 == 0 && x->group[i - 1] != NULL;
        range_draw(x->group[x->is_part[i] ? i - 1 : 0], (int)width, key % 3 == 0, &x->group[i]);
    }
}

static void round_run(stress *x)
{
    int calls = 1 + (int)call_draw(&x->plan, 20);
    if (call_draw(&x->plan, 3) == 0)
        group_draw(x);
    for (int i = 0; i < calls; i++)
        draw_and_call(x);
    bool waits = call_draw(&x->plan, 3) > 0; /* else this round overlaps the next */
    for (int i = 0; waits && i < STREAMS; i++)
        MUST(stream_sync(x->s[i]));
}

static void stress_open(stress *x)
{
    device_config dc = {.backend = comm_test_backend(), .n_threads = 2, .debug_fill = true};
    MUST(comm_schedule_seed(&dc.schedule_seed));
    if (comm_test_open_as(&x->f, &dc, &(comm_config){.backend = COMM_AUTO}) != FSDP_OK)
        exit(1);
    FSDP_ASSERT(x->f.world <= CALL_RANKS);
    x->group[0] = x->f.c;
    x->s[0] = x->f.worker;
    for (int i = 1; i < STREAMS - 1; i++)
        MUST(stream_create(x->f.dev, &(stream_config){.name = "stress"}, &x->s[i]));
    x->s[STREAMS - 1] = device_compute_stream(x->f.dev);
}

/* Closing the device asserts that no block is left. */
static int stress_close(stress *x)
{
    for (int i = GROUPS - 1; i >= 1; i--)
        comm_close(x->group[i]);
    for (int i = 1; i < STREAMS - 1; i++)
        stream_free(x->s[i]);
    return comm_test_close(&x->f);
}

static void report(stress *x, uint64_t seed)
{
    const long long mine[2] = {call_differences, call_checked_bytes};
    long long differences = 0, bytes = 0;
    void *all = NULL;
    MUST(comm_host_gather(x->f.c, "result", mine, sizeof mine, &all));
    for (int r = 0; r < x->f.world; r++) {
        differences += ((const long long *)all)[2 * r];
        bytes += ((const long long *)all)[2 * r + 1];
    }
    free(all);
    x->f.n_failed = differences > 0;
    if (x->f.rank == 0)
        printf("%s stress over %s, seed %llu: %d rounds, %lld calls, %lld bytes checked, %lld "
               "differences\n",
               differences == 0 ? "PASS" : "FAIL", comm_backend_name(x->f.c),
               (unsigned long long)seed, x->round, (long long)x->n_calls, bytes, differences);
}

int main(int argc, char **argv)
{
    static stress x;
    int rounds = 100;
    uint64_t seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--rounds") == 0)
            rounds = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
    }
    stress_open(&x);
    x.plan = seed * 1000;
    x.mine = seed * 1000 + 1 + (uint64_t)x.f.rank;
    for (; x.round < rounds; x.round++)
        round_run(&x);
    for (int i = 0; i < STREAMS; i++)
        MUST(stream_sync(x.s[i]));
    report(&x, seed);
    return stress_close(&x);
}
