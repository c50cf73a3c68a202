/* comm_stress.c -- drawn rounds of collectives, every element of every result against a plain
 * reference.
 *
 *   mpiexec -n W build/tests/unit/comm_stress [--rounds N] [--seed S]
 *
 * All ranks stress_draw the same plan from the seed: operations, types, sizes, groups and streams.
 * What cannot matter every rank draws for itself: where its buffers lie (comm_alloc, device_alloc,
 * malloc), delays, pinning, events between streams. Inputs are functions of (call, rank, index), so
 * a rank can compute what each of the others sent. A call is five pieces of work on its stream:
 * fill, collective, check, free, and perhaps a delay; the host runs ahead of all of them to the end
 * of the round. A round is a dozen calls; up to three more groups, splits also of each other, come
 * and go.
 *
 * COMM_TEST_DEVICE names another device than the CPU (comm_apart_lib.h).
 *
 * Rank 0 prints one PASS or FAIL line, every rank a DONE line. The first differences are printed by
 * the rank that sees them. */
#include "tests/unit/comm_apart_lib.h"
#include "tests/unit/comm_stress_lib.h"
#include "tests/unit/slices.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUPS = 4, STREAMS = 4 };

typedef struct stress {
    device *dev;
    comm *group[GROUPS];  /* [0]: all ranks; NULL: not there now */
    bool is_part[GROUPS]; /* split from the one before it */
    stream *s[STREAMS];   /* the last one runs inside the call */
    uint64_t plan, mine;  /* seeds: of all ranks alike, of this rank */
    int round;
    int64_t n_calls;
} stress;

/* ---- one call ------------------------------------------------------------------------------- */

/* What all ranks of the group have drawn alike, and this rank's place. */
typedef struct drawn {
    stress *x;
    comm *c;
    stream *s;
    comm_op op;
    dtype type;
    size_t elems;
    uint64_t key;
    bool other;  /* in place, or slices of unequal length */
    bool pieces; /* else: shards are pieces of the array */
    int root;
} drawn;

/* A buffer of this rank, in memory of a drawn kind. */
typedef struct buffer {
    void *block;
    char *at;
    bool plain;
} buffer;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != FSDP_OK) {                                                                   \
            fsdp_error_print(stderr, 0, 0);                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static buffer buffer_get(const drawn *d, size_t bytes)
{
    buffer b = {.plain = false};
    uint64_t kind = stress_draw(&d->x->mine, 3), offset = 8 * stress_draw(&d->x->mine, 9);
    b.plain = kind == 2 && device_memory_is_host(d->x->dev);
    if (kind == 0)
        MUST(comm_alloc(d->c, d->s, MEM_OTHER, bytes + offset, "stress", &b.block));
    else if (b.plain)
        b.block = comm_test_alloc(bytes + offset);
    else
        MUST(device_alloc(d->s, MEM_OTHER, bytes + offset, "stress", &b.block));
    b.at = (char *)b.block + offset;
    return b;
}

static fsdp_status free_task(void *args, int n_threads)
{
    (void)n_threads;
    free(*(void **)args);
    return FSDP_OK;
}

static void buffer_put(const drawn *d, buffer b)
{
    if (b.plain)
        MUST(stream_launch(d->s, free_task, &b.block, sizeof b.block));
    else
        device_free(d->s, b.block);
}

static void work(const drawn *d, stream_fn task, char *at, size_t bytes, uint64_t key, int from)
{
    stress_data a = {.at = at,
                     .bytes = bytes,
                     .key = key,
                     .label = comm_op_name(d->op),
                     .round = d->x->round,
                     .from = from};
    MUST(stream_launch(d->s, task, &a, sizeof a));
}

static int world_rank(const drawn *d, int r)
{
    return comm_world_rank(&d->c->team, r);
}

/* Pieces that a call borrows. */
typedef struct placed {
    comm_pieces pieces;
    comm_piece list[2 * STRESS_RANKS];
} placed;

/* Piece i, 0 or 1, of the shard of the group's rank r: `head` elements and the rest of d->elems.
 * The array has the first pieces of all ranks, then the second pieces, each time beginning with the
 * last rank. */
static comm_piece piece_of(const drawn *d, size_t head, int r, int i)
{
    const size_t size = (size_t)d->c->team.size, elems = i == 0 ? head : d->elems - head;
    const size_t before = (i == 0 ? 0 : size * head) + (size - 1 - (size_t)r) * elems;
    return (comm_piece){(size_t)r * d->elems + (i == 0 ? 0 : head), before, elems};
}

static placed *place(const drawn *d, size_t head)
{
    placed *p = comm_test_alloc(sizeof *p);
    p->pieces = (comm_pieces){p->list, 0, d->elems};
    for (int r = 0; r < d->c->team.size; r++)
        for (int i = 0; i < 2; i++) {
            const comm_piece piece = piece_of(d, head, r, i);
            if (piece.elems > 0)
                p->list[p->pieces.n++] = piece;
        }
    return p;
}

static void gather_pieces(const drawn *d)
{
    const size_t bytes = dtype_bytes(d->type), head = d->key % (d->elems + 1);
    const size_t cut[2] = {head, d->elems - head};
    const int size = d->c->team.size, rank = world_rank(d, d->c->team.rank);
    placed *p = place(d, head);
    buffer to = buffer_get(d, (size_t)size * d->elems * bytes);
    buffer from = buffer_get(d, d->elems * bytes);
    for (int i = 0; i < 2; i++)
        work(d, stress_fill, from.at + (i == 0 ? 0 : head * bytes), cut[i] * bytes,
             stress_key(d->key, rank, i), rank);
    MUST(comm_all_gather_pieces(d->c, d->s, "stress", d->type, from.at, to.at, &p->pieces));
    for (int k = 0; k < 2 * size; k++) {
        const int owner = world_rank(d, k / 2);
        const comm_piece piece = piece_of(d, head, k / 2, k % 2);
        work(d, stress_check, to.at + piece.begin * bytes, piece.elems * bytes,
             stress_key(d->key, owner, k % 2), owner);
    }
    MUST(stream_launch(d->s, free_task, &p, sizeof p));
    buffer_put(d, from);
    buffer_put(d, to);
}

static void call_all_gather(const drawn *d)
{
    if (d->pieces)
        return gather_pieces(d);
    size_t bytes = d->elems * dtype_bytes(d->type), me = (size_t)d->c->team.rank;
    int rank = world_rank(d, d->c->team.rank);
    buffer to = buffer_get(d, bytes * (size_t)d->c->team.size);
    buffer from = d->other ? (buffer){.at = to.at + me * bytes} : buffer_get(d, bytes);
    work(d, stress_fill, from.at, bytes, stress_key(d->key, rank, 0), rank);
    MUST(comm_all_gather(d->c, d->s, "stress", d->type, from.at, to.at, d->elems));
    for (int r = 0; r < d->c->team.size; r++)
        work(d, stress_check, to.at + (size_t)r * bytes, bytes,
             stress_key(d->key, world_rank(d, r), 0), world_rank(d, r));
    if (!d->other)
        buffer_put(d, from);
    buffer_put(d, to);
}

static void call_broadcast(const drawn *d)
{
    size_t bytes = d->elems * dtype_bytes(d->type);
    int root = world_rank(d, d->root), rank = world_rank(d, d->c->team.rank);
    buffer b = buffer_get(d, bytes);
    work(d, stress_fill, b.at, bytes, stress_key(d->key, rank, 0), rank);
    MUST(comm_broadcast(d->c, d->s, "stress", d->type, b.at, d->elems, d->root));
    work(d, stress_check, b.at, bytes, stress_key(d->key, root, 0), root);
    buffer_put(d, b);
}

/* Elements that rank `from` sends to `to`. */
static size_t pair_elems(const drawn *d, int from, int to)
{
    uint64_t h = stress_key(d->key + 1, from, to);
    return !d->other ? d->elems : h % 4 == 0 ? 0 : h / 4 % (d->elems + 1);
}

static void call_all_to_all(const drawn *d)
{
    size_t sent[STRESS_RANKS], received[STRESS_RANKS], n_sent = 0, n_received = 0;
    size_t bytes = dtype_bytes(d->type);
    int me = d->c->team.rank, rank = world_rank(d, me);
    for (int r = 0; r < d->c->team.size; r++) {
        n_sent += sent[r] = pair_elems(d, me, r);
        n_received += received[r] = pair_elems(d, r, me);
    }
    buffer from = buffer_get(d, n_sent * bytes), to = buffer_get(d, n_received * bytes);
    char *at = from.at;
    for (int r = 0; r < d->c->team.size; at += sent[r++] * bytes)
        work(d, stress_fill, at, sent[r] * bytes, stress_key(d->key, rank, world_rank(d, r)), rank);
    if (d->other)
        MUST(comm_all_to_allv(d->c, d->s, "stress", d->type, from.at, sent, to.at, received));
    else
        MUST(comm_all_to_all(d->c, d->s, "stress", d->type, from.at, to.at, d->elems));
    at = to.at;
    for (int r = 0; r < d->c->team.size; at += received[r++] * bytes)
        work(d, stress_check, at, received[r] * bytes, stress_key(d->key, world_rank(d, r), rank),
             world_rank(d, r));
    buffer_put(d, from);
    buffer_put(d, to);
}

static stress_sum sum_check_of(const drawn *d, const void *sum, size_t elems)
{
    stress_sum a = {.sum = sum,
                    .elems = elems,
                    .key = d->key,
                    .type = d->type,
                    .mode = GRAD_ACC_CANONICAL,
                    .size = d->c->team.size,
                    .steps = 1,
                    .run = d->c->data->fast_run,
                    .round = d->x->round,
                    .label = comm_op_name(d->op)};
    for (int r = 0; r < d->c->team.size; r++)
        a.rank[r] = world_rank(d, r);
    return a;
}

static void fill_floats(const drawn *d, char *at, size_t elems, uint64_t key)
{
    stress_data a = {.at = at, .bytes = elems * 4, .key = key, .floats = true};
    MUST(stream_launch(d->s, stress_fill, &a, sizeof a));
}

static void call_all_reduce(const drawn *d)
{
    size_t bytes = d->elems * dtype_bytes(d->type);
    int rank = world_rank(d, d->c->team.rank);
    buffer b = buffer_get(d, bytes);
    if (d->type == DTYPE_F32)
        fill_floats(d, b.at, d->elems, stress_key(d->key, 0, rank));
    else
        work(d, stress_fill, b.at, bytes, stress_key(d->key, 0, rank), rank);
    MUST(comm_all_reduce(d->c, d->s, "stress", d->type, b.at, d->elems));
    stress_sum a = sum_check_of(d, b.at, d->elems);
    MUST(stream_launch(d->s, stress_check_sum, &a, sizeof a));
    buffer_put(d, b);
}

/* Levels that a binary counter can take one behind the other, W nodes each. */
static void levels_draw(const drawn *d, stress_sum *a)
{
    uint64_t key = d->key, nodes = 0;
    a->mode = stress_draw(&key, 2) == 0 ? GRAD_ACC_FAST : GRAD_ACC_CANONICAL;
    a->sum_dtype = stress_draw(&key, 3) == 0 ? DTYPE_BF16 : DTYPE_F32;
    a->steps = 1 + (int)stress_draw(&key, STRESS_STEPS);
    for (int step = 0; step < a->steps; step++) {
        int level = (int)stress_draw(&key, 4);
        while (nodes & ((UINT64_C(1) << level) - 1))
            level--;
        a->level[step] = level;
        nodes += (uint64_t)d->c->team.size << level;
    }
}

static void reduce_step(const drawn *d, const stress_sum *a, int step, const size_t *lengths,
                        grad_acc *acc)
{
    size_t total = 0;
    int rank = world_rank(d, d->c->team.rank);
    uint64_t key = stress_key(d->key, step, rank);
    for (int r = 0; r < d->c->team.size; r++)
        total += lengths[r];
    placed *p = place(d, d->elems); /* the check expects one piece of the array */
    buffer from = buffer_get(d, total * 4);
    fill_floats(d, from.at, total, key);
    const float *send = (const float *)(void *)from.at;
    if (d->other)
        MUST(comm_reduce_scatterv(
            d->c, d->s, "stress", send,
            slices_of(lengths, d->c->team.size, (comm_slice[STRESS_RANKS]){{0}}), acc,
            a->level[step]));
    else if (d->pieces)
        MUST(comm_reduce_scatter_pieces(d->c, d->s, "stress", send, &p->pieces, acc,
                                        a->level[step]));
    else
        MUST(comm_reduce_scatter(d->c, d->s, "stress", send, d->elems, acc, a->level[step]));
    stress_data same = {.at = from.at,
                        .bytes = total * 4,
                        .key = key,
                        .floats = true,
                        .label = "reduce-scatter, what was sent",
                        .round = d->x->round,
                        .from = rank};
    MUST(stream_launch(d->s, stress_check, &same, sizeof same));
    MUST(stream_launch(d->s, free_task, &p, sizeof p));
    buffer_put(d, from);
}

static void call_reduce_scatter(const drawn *d)
{
    size_t lengths[STRESS_RANKS], first = 0;
    for (int r = 0; r < d->c->team.size; r++) {
        lengths[r] = pair_elems(d, 0, r);
        const bool before = d->pieces ? r > d->c->team.rank : r < d->c->team.rank;
        first += before ? lengths[r] : 0;
    }
    stress_sum a = sum_check_of(d, NULL, lengths[d->c->team.rank]);
    levels_draw(d, &a);
    grad_acc acc;
    grad_acc_init(&acc, a.mode, &comm_test_sums, a.elems, MEM_OTHER, "stress");
    acc.sum_dtype = a.sum_dtype;
    for (int step = 0; step < a.steps; step++)
        reduce_step(d, &a, step, lengths, &acc);
    float *sum = NULL;
    MUST(grad_acc_finish(&acc, d->s, &sum));
    a.sum = sum;
    a.first = first;
    MUST(stream_launch(d->s, stress_check_sum, &a, sizeof a));
    device_free(d->s, sum);
    grad_acc_free(&acc, d->s);
}

static void call_barrier(const drawn *d)
{
    MUST(comm_barrier(d->c, d->s, "stress"));
}

/* ---- rounds --------------------------------------------------------------------------------- */

typedef struct delay_args {
    uint64_t seed;
} delay_args;

static fsdp_status delay_task(void *args, int n_threads)
{
    uint64_t seed = ((delay_args *)args)->seed, kind = stress_draw(&seed, 8);
    (void)n_threads;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (kind < 4)
        sched_yield();
    else if (kind < 7)
        usleep((useconds_t)stress_draw(&seed, 300));
    else if (sched_getaffinity(getpid(), sizeof set, &set) == 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        int cpu = (int)stress_draw(&seed, CPU_SETSIZE);
        while (CPU_COUNT(&set) > 0 && !CPU_ISSET(cpu, &set))
            cpu = (cpu + 1) % CPU_SETSIZE;
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof one, &one);
        sched_yield();
        (void)sched_setaffinity(0, sizeof set, &set);
    }
    return FSDP_OK;
}

/* Elements: often few or just around what travels inline (2048 bytes), seldom many. */
static size_t elems_draw(uint64_t *seed, dtype t)
{
    static const size_t FEW[] = {0, 1, 2, 3, 7, 10, 31};
    size_t bytes = dtype_bytes(t);
    switch (stress_draw(seed, 8)) {
    case 0:
    case 1:
        return FEW[stress_draw(seed, sizeof FEW / sizeof *FEW)];
    case 2:
    case 3:
        return (2048 + bytes - 1) / bytes / (1 + stress_draw(seed, 4)) - 1 + stress_draw(seed, 3);
    case 4:
        return stress_draw(seed, 40) == 0 ? stress_draw(seed, 1 << 20) / bytes
                                          : stress_draw(seed, 100000) / bytes;
    default:
        return stress_draw(seed, 6000) / bytes;
    }
}

static void call_draw(stress *x)
{
    static const dtype TYPES[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8};
    static void (*const CALLS[COMM_OPS])(const drawn *) = {
        [COMM_OP_ALL_GATHER] = call_all_gather, [COMM_OP_REDUCE_SCATTER] = call_reduce_scatter,
        [COMM_OP_ALL_REDUCE] = call_all_reduce, [COMM_OP_BROADCAST] = call_broadcast,
        [COMM_OP_ALL_TO_ALL] = call_all_to_all, [COMM_OP_BARRIER] = call_barrier};
    drawn d = {.x = x, .op = (comm_op)stress_draw(&x->plan, COMM_OPS)};
    d.c = x->group[stress_draw(&x->plan, GROUPS)];
    d.c = d.c == NULL ? x->group[0] : d.c;
    d.s = x->s[stress_draw(&x->plan, STREAMS)];
    d.type = TYPES[stress_draw(&x->plan, 4)];
    if (d.op == COMM_OP_REDUCE_SCATTER || (d.op == COMM_OP_ALL_REDUCE && d.type != DTYPE_I64))
        d.type = DTYPE_F32;
    d.elems = elems_draw(&x->plan, d.type);
    d.other = stress_draw(&x->plan, 2);
    d.pieces = !d.other && stress_draw(&x->plan, 2);
    d.root = (int)(stress_draw(&x->plan, 840) % (uint64_t)d.c->team.size);
    d.key = stress_draw(&x->plan, UINT64_MAX);
    uint64_t kind = stress_draw(&x->mine, 6);
    if (kind == 0)
        MUST(stream_launch(d.s, delay_task, &(delay_args){stress_draw(&x->mine, 1u << 30)},
                           sizeof(delay_args)));
    else if (kind == 1)
        usleep((useconds_t)stress_draw(&x->mine, 200));
    else if (kind == 2) { /* an order that only this rank has */
        event *e = NULL;
        MUST(event_create(x->dev, &e));
        MUST(event_record(e, x->s[stress_draw(&x->mine, STREAMS)]));
        MUST(stream_wait_event(d.s, e));
        event_free(e);
    }
    CALLS[d.op](&d);
    x->n_calls++;
}

/* The groups split from it end first. */
static void group_close(stress *x, int i)
{
    if (i + 1 < GROUPS && x->group[i + 1] != NULL && x->is_part[i + 1])
        group_close(x, i + 1);
    comm_close(x->group[i]);
    x->group[i] = NULL;
}

/* The part of c that this rank is in: `width` ranks side by side, or every width-th one. */
static void range_draw(comm *c, int width, bool side_by_side, comm **out)
{
    int first = comm_rank(c) % width, n = (comm_size(c) - first + width - 1) / width;
    if (side_by_side) {
        first = comm_rank(c) - first;
        n = comm_size(c) - first < width ? comm_size(c) - first : width;
    }
    MUST(comm_range(c, first, side_by_side ? 1 : width, n, out));
}

/* A group ends, or a new one is split from the first or from the one before it, or opened. */
static void group_draw(stress *x)
{
    int i = 1 + (int)stress_draw(&x->plan, GROUPS - 1);
    uint64_t width = 1 + stress_draw(&x->plan, 3), key = stress_draw(&x->plan, 1u << 30);
    if (x->group[i] != NULL) {
        group_close(x, i);
    } else if (key % 5 == 0) {
        MUST(comm_open(x->dev, &(comm_config){.backend = COMM_AUTO}, &x->group[i]));
        x->is_part[i] = false;
    } else {
        x->is_part[i] = key % 2 == 0 && x->group[i - 1] != NULL;
        range_draw(x->group[x->is_part[i] ? i - 1 : 0], (int)width, key % 3 == 0, &x->group[i]);
    }
}

static void round_run(stress *x)
{
    int calls = 1 + (int)stress_draw(&x->plan, 20);
    if (stress_draw(&x->plan, 3) == 0)
        group_draw(x);
    for (int i = 0; i < calls; i++)
        call_draw(x);
    bool waits = stress_draw(&x->plan, 3) > 0; /* else this round runs into the next */
    for (int i = 0; waits && i < STREAMS; i++)
        MUST(stream_sync(x->s[i]));
}

static void stress_open(stress *x)
{
    device_config dc = {.backend = comm_test_backend(), .n_threads = 2, .debug_fill = true};
    MUST(comm_schedule_seed(&dc.schedule_seed));
    MUST(device_open(&dc, &x->dev));
    MUST(comm_open(x->dev, &(comm_config){.backend = COMM_AUTO}, &x->group[0]));
    for (int i = 0; i < STREAMS - 1; i++)
        MUST(stream_create(x->dev, &(stream_config){.name = "stress"}, &x->s[i]));
    x->s[STREAMS - 1] = device_compute_stream(x->dev);
}

static void stress_close(stress *x)
{
    for (int i = GROUPS - 1; i >= 0; i--)
        comm_close(x->group[i]);
    for (int i = 0; i < STREAMS - 1; i++)
        stream_free(x->s[i]);
    device_close(x->dev); /* asserts that no block is left */
}

static int report(stress *x, uint64_t seed)
{
    int64_t sum[2] = {atomic_load(&stress_differences), atomic_load(&stress_checked_bytes)};
    stream *s = x->s[STREAMS - 1];
    void *there;
    MUST(device_alloc(s, MEM_OTHER, sizeof sum, "result", &there));
    MUST(device_upload(s, there, sum, sizeof sum));
    MUST(comm_all_reduce(x->group[0], s, "result", DTYPE_I64, there, 2));
    MUST(device_download(s, sum, there, sizeof sum));
    device_free(s, there);
    MUST(stream_sync(s));
    if (x->group[0]->team.rank == 0)
        printf("%s stress over %s, seed %llu: %d rounds, %lld calls, %lld bytes checked, %lld "
               "differences\n",
               sum[0] == 0 ? "PASS" : "FAIL", comm_backend_name(x->group[0]),
               (unsigned long long)seed, x->round, (long long)x->n_calls, (long long)sum[1],
               (long long)sum[0]);
    return sum[0] == 0 ? 0 : 1;
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
    int rank = comm_rank(x.group[0]), world = comm_size(x.group[0]);
    FSDP_ASSERT(world <= STRESS_RANKS);
    x.plan = seed * 1000;
    x.mine = seed * 1000 + 1 + (uint64_t)rank;
    for (; x.round < rounds; x.round++)
        round_run(&x);
    for (int i = 0; i < STREAMS; i++)
        MUST(stream_sync(x.s[i]));
    int bad = report(&x, seed);
    stress_close(&x);
    printf("DONE rank %d/%d\n", rank, world);
    return bad;
}
