/* comm_calls_lib.c -- see comm_calls_lib.h. */
#include "tests/unit/comm_calls_lib.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHOWN = 5 };

atomic_llong call_differences, call_checked_bytes;

static uint64_t mix(uint64_t h)
{
    h *= UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

uint64_t call_draw(uint64_t *seed, uint64_t n)
{
    *seed += UINT64_C(0x9e3779b97f4a7c15);
    return mix(*seed) % n;
}

void *comm_test_alloc(size_t bytes)
{
    void *p = malloc(bytes + 1);
    if (p == NULL)
        abort();
    return p;
}

static fsdp_status free_task(void *args, int n_threads)
{
    free(*(void **)args);
    return FSDP_OK;
}

void comm_test_free(stream *s, void *p)
{
    MUST(stream_launch(s, free_task, &p, sizeof p));
}

/* ---- data ----------------------------------------------------------------------------------- */

/* Elements from index `first` on: of the data of one rank (or pair) in a call, or of the sum over
 * ranks. */
typedef struct data {
    char *at;
    size_t first, elems;
    uint64_t key;
    bool floats; /* of magnitudes 2^-8 ... 2^8: other orders give other bits */
    int from;    /* the rank whose data it is; -1: a sum */
    int ranks;   /* of a sum: over rank[0 ... ranks-1] of the job */
    int rank[CALL_RANKS], run;
    bool any_order;
    collective of;
} data;

/* The key of the data of rank (or pair) a, b in a call. */
static uint64_t key_of(const collective *d, int a, int b)
{
    return mix(d->key + (uint64_t)a * 1000003 + (uint64_t)b * 101);
}

static float value_of(uint64_t key, size_t i)
{
    uint64_t h = mix(key + i);
    float unit = (float)(h & 0xffff) / 65536.0f - 0.45f;
    return unit * (float)(1u << (h >> 60)) / 256.0f;
}

static uint64_t word_of(uint64_t key, size_t i)
{
    return mix(key ^ (i * 8 + 1));
}

static void element_of(const data *a, size_t i, char out[static 8])
{
    float value = a->floats ? value_of(a->key, a->first + i) : 0;
    uint64_t word = a->from < 0 ? 0 : word_of(a->key, a->first + i);
    for (int r = 0; r < a->ranks; r++)
        word += word_of(key_of(&a->of, 0, a->rank[r]), a->first + i);
    memcpy(out, &word, sizeof word);
    if (a->floats)
        memcpy(out, &value, sizeof value);
}

static fsdp_status fill(void *args, int n_threads)
{
    const data *a = args;
    const size_t bytes = dtype_bytes(a->of.type);
    char element[8];
    for (size_t i = 0; i < a->elems; i++) {
        element_of(a, i, element);
        memcpy(a->at + i * bytes, element, bytes);
    }
    return FSDP_OK;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* One element, added up like the binary counter of tree_sum.h, but on numbers. */
typedef struct counter {
    float slot[64];
    uint64_t used;
    bool rounds;
} counter;

static float plus(bool rounds, float a, float b)
{
    return rounds ? bf16_round(a + b) : a + b;
}

static void counter_push(counter *c, int level, float x)
{
    for (; c->used >> level & 1; level++) {
        x = plus(c->rounds, c->slot[level], x);
        c->used &= ~(UINT64_C(1) << level);
    }
    c->slot[level] = x;
    c->used |= UINT64_C(1) << level;
}

static float counter_sum(const counter *c)
{
    float sum = 0;
    bool any = false;
    for (int k = 0; k < 64; k++) {
        if (!(c->used >> k & 1))
            continue;
        sum = any ? plus(c->rounds, c->slot[k], sum) : c->slot[k];
        any = true;
    }
    return sum;
}

/* In fast mode the ranks of a host add up first, then the hosts. A library adds in any order: the
 * error of n-1 additions is at most (n-1) u (1 + O(nu)) sum |x|, u = 2^-24 (bf16: 2^-8) [Higham,
 * Accuracy and Stability, ch. 4]. */
static bool is_sum(const data *a, size_t i, float got)
{
    const bool rounds = a->of.sum_dtype == DTYPE_BF16;
    counter c = {.rounds = rounds};
    float plain = 0, host = 0;
    double exact = 0, size = 0;
    for (int step = 0; step < a->of.steps; step++) {
        for (int r = 0; r < a->ranks; r++) {
            float x = value_of(key_of(&a->of, step, a->rank[r]), a->first + i);
            x = rounds ? bf16_round(x) : x;
            exact += (double)x;
            size += fabs((double)x);
            host = r % a->run == 0 ? x : plus(rounds, host, x);
            if (r % a->run == a->run - 1)
                plain = step == 0 && r < a->run ? host : plus(rounds, plain, host);
            counter_push(&c, a->of.level[step], x);
        }
    }
    const float want = a->of.mode == GRAD_ACC_FAST ? plain : counter_sum(&c);
    const double u = rounds ? 0x1p-8 : 0x1p-24;
    return a->any_order ? fabs((double)got - exact) <= a->of.steps * a->ranks * u * size
                        : memcmp(&got, &want, sizeof want) == 0;
}

static fsdp_status check(void *args, int n_threads)
{
    const data *a = args;
    const size_t bytes = dtype_bytes(a->of.type);
    char element[8];
    float sum;
    atomic_fetch_add(&call_checked_bytes, (long long)(a->elems * bytes));
    for (size_t i = 0; i < a->elems; i++) {
        const char *got = a->at + i * bytes;
        memcpy(&sum, got, bytes < sizeof sum ? bytes : sizeof sum);
        element_of(a, i, element);
        const bool right = a->ranks > 0 && a->of.type == DTYPE_F32
                               ? is_sum(a, i, sum)
                               : memcmp(got, element, bytes) == 0;
        if (!right && atomic_fetch_add(&call_differences, 1) < MOST_SHOWN)
            printf("differs: round %d, %s of %zu: data of rank %d, at %zu\n", a->of.round,
                   comm_op_name(a->of.op), a->of.elems, a->from, i);
    }
    return FSDP_OK;
}

/* ---- work on the stream --------------------------------------------------------------------- */

/* check, of a copy on the host. */
static fsdp_status check_copy(void *args, int n_threads)
{
    const fsdp_status status = check(args, n_threads);
    free(((data *)args)->at);
    return status;
}

/* Runs fill or check in order of the stream; on a copy, if the device cannot run C. */
static void work(const collective *d, stream_fn task, data a)
{
    const size_t bytes = a.elems * dtype_bytes(d->type);
    char *there = a.at;
    const bool on_host = !device_runs_c(d->dev);
    a.of = *d;
    if (on_host)
        a.at = comm_test_alloc(bytes);
    if (on_host && task == fill) {
        fill(&a, 1);
        MUST(device_upload(d->s, there, a.at, bytes));
        free(a.at);
        return;
    }
    if (on_host)
        MUST(device_download(d->s, a.at, there, bytes));
    MUST(stream_launch_work(d->s, &(launch_config){.fn = on_host ? check_copy : task,
                                                   .args = &a,
                                                   .args_bytes = sizeof a,
                                                   .on_host = on_host}));
}

/* A buffer of this rank. The kind of memory is drawn. */
typedef struct buffer {
    void *block;
    char *at;
    bool plain;
} buffer;

static buffer buffer_get(const collective *d, size_t elems)
{
    buffer b = {.plain = false};
    uint64_t kind = call_draw(d->mine, 3), offset = 8 * call_draw(d->mine, 9);
    const size_t bytes = elems * dtype_bytes(d->type) + offset;
    b.plain = kind == 2 && device_memory_is_host(d->dev) && device_runs_c(d->dev);
    if (kind == 0)
        MUST(comm_alloc(d->c, d->s, MEM_OTHER, bytes, "test", &b.block));
    else if (b.plain)
        b.block = comm_test_alloc(bytes);
    else
        MUST(device_alloc(d->s, MEM_OTHER, bytes, "test", &b.block));
    b.at = (char *)b.block + offset;
    return b;
}

static void buffer_put(const collective *d, buffer b)
{
    if (b.plain)
        comm_test_free(d->s, b.block);
    else
        device_free(d->s, b.block);
}

/* ---- collectives ---------------------------------------------------------------------------- */

static int world_rank(const collective *d, int r)
{
    return comm_world_rank(&d->c->team, r);
}

/* `elems` elements from index `first` on, of what the group's rank r sends to all. */
static data sent_by(const collective *d, int r, char *at, size_t first, size_t elems)
{
    const int rank = world_rank(d, r);
    return (data){
        .at = at, .first = first, .elems = elems, .key = key_of(d, rank, 0), .from = rank};
}

/* Fills or checks the elements that no piece of the array covers. A call must not change them. */
static void gaps(const collective *d, stream_fn task, char *array)
{
    const size_t bytes = dtype_bytes(d->type);
    size_t in_pieces = 0;
    for (size_t k = 0; k < d->pieces->n; k++)
        in_pieces += d->pieces->list[k].elems;
    for (size_t i = 0; in_pieces < d->array_elems && i < d->array_elems; i++) {
        bool covered = false;
        for (size_t k = 0; k < d->pieces->n; k++)
            covered = covered || i - d->pieces->list[k].begin < d->pieces->list[k].elems;
        if (!covered)
            work(d, task, (data){.at = array + i * bytes, .elems = 1, .first = i});
    }
}

static void call_gather_pieces(const collective *d)
{
    const size_t bytes = dtype_bytes(d->type);
    buffer to = buffer_get(d, d->array_elems), from = buffer_get(d, d->elems);
    const data mine = sent_by(d, d->c->team.rank, from.at, 0, d->elems);
    work(d, fill, mine);
    gaps(d, fill, to.at);
    MUST(comm_all_gather_pieces(d->c, d->s, d->label, d->type, from.at, to.at, d->pieces));
    gaps(d, check, to.at);
    for (size_t k = 0; k < d->pieces->n; k++) {
        const comm_piece *p = &d->pieces->list[k];
        if (p->elems > 0)
            work(d, check,
                 sent_by(d, (int)(p->at / d->elems), to.at + p->begin * bytes, p->at % d->elems,
                         p->elems));
    }
    work(d, check, mine);
    buffer_put(d, from);
    buffer_put(d, to);
}

static void call_all_gather(const collective *d)
{
    if (d->pieces != NULL)
        return call_gather_pieces(d);
    const int size = d->c->team.size, me = d->c->team.rank;
    const size_t bytes = d->elems * dtype_bytes(d->type);
    buffer to = buffer_get(d, d->elems * (size_t)size);
    buffer from = d->other ? (buffer){.at = to.at + (size_t)me * bytes} : buffer_get(d, d->elems);
    const data mine = sent_by(d, me, from.at, 0, d->elems);
    work(d, fill, mine);
    MUST(comm_all_gather(d->c, d->s, d->label, d->type, from.at, to.at, d->elems));
    for (int r = 0; r < size; r++)
        work(d, check, sent_by(d, r, to.at + (size_t)r * bytes, 0, d->elems));
    work(d, check, mine);
    if (!d->other)
        buffer_put(d, from);
    buffer_put(d, to);
}

/* Elements that rank `from` sends to `to`. */
static size_t pair_elems(const collective *d, int from, int to)
{
    uint64_t h = mix(d->key + 1 + (uint64_t)from * 1000003 + (uint64_t)to * 101);
    return !d->other ? d->elems : h % 4 == 0 ? 0 : h / 4 % (d->elems + 1);
}

static data pair_data(const collective *d, int from, int to, char *at)
{
    const int a = world_rank(d, from), b = world_rank(d, to);
    return (data){.at = at, .elems = pair_elems(d, from, to), .key = key_of(d, a, b), .from = a};
}

static void call_all_to_all(const collective *d)
{
    const int me = d->c->team.rank, size = d->c->team.size;
    const size_t bytes = dtype_bytes(d->type);
    size_t sent[CALL_RANKS], received[CALL_RANKS], n_sent = 0, n_received = 0;
    for (int r = 0; r < size; r++) {
        n_sent += sent[r] = pair_elems(d, me, r);
        n_received += received[r] = pair_elems(d, r, me);
    }
    buffer from = buffer_get(d, n_sent), to = buffer_get(d, n_received);
    char *at = from.at;
    for (int r = 0; r < size; at += sent[r++] * bytes)
        work(d, fill, pair_data(d, me, r, at));
    if (d->other)
        MUST(comm_all_to_allv(d->c, d->s, d->label, d->type, from.at, sent, to.at, received));
    else
        MUST(comm_all_to_all(d->c, d->s, d->label, d->type, from.at, to.at, d->elems));
    memset(sent, 0, sizeof sent); /* lengths are read during the call only */
    at = to.at;
    for (int r = 0; r < size; at += received[r++] * bytes)
        work(d, check, pair_data(d, r, me, at));
    buffer_put(d, from);
    buffer_put(d, to);
}

/* Does the library of the device's own transport add in fast mode, in its own order? */
static bool library_adds(const collective *d)
{
    const char *name = comm_backend_name(d->c);
    return d->op == COMM_OP_REDUCE_SCATTER && d->mode == GRAD_ACC_FAST && !d->other &&
           (strncmp(name, "nccl", 4) == 0 || strncmp(name, "hccl", 4) == 0); /* also below a link */
}

static void check_sum(const collective *d, const void *sum, size_t first, size_t elems)
{
    data a = {.at = (char *)(uintptr_t)sum,
              .first = first,
              .elems = elems,
              .from = -1,
              .ranks = d->c->team.size,
              .run = d->c->data->fast_run,
              .any_order = library_adds(d)};
    for (int r = 0; r < a.ranks; r++)
        a.rank[r] = world_rank(d, r);
    work(d, check, a);
}

/* This rank's contribution in a step. */
static data addends(const collective *d, int step, char *at, size_t elems)
{
    const int rank = world_rank(d, d->c->team.rank);
    return (data){.at = at,
                  .elems = elems,
                  .key = key_of(d, step, rank),
                  .floats = d->type == DTYPE_F32,
                  .from = rank};
}

static void call_all_reduce(const collective *d)
{
    collective sum = *d;
    sum.mode = GRAD_ACC_CANONICAL;
    sum.sum_dtype = DTYPE_F32;
    sum.steps = 1;
    sum.level[0] = 0;
    buffer b = buffer_get(d, d->elems);
    work(d, fill, addends(d, 0, b.at, d->elems));
    MUST(comm_all_reduce(d->c, d->s, d->label, d->type, b.at, d->elems));
    check_sum(&sum, b.at, 0, d->elems);
    buffer_put(d, b);
}

/* Cuts an array into the ranks' slices. Unequal ones may begin with the last rank's. Returns the
 * array's elements. */
static size_t slices_draw(const collective *d, comm_slice slices[static CALL_RANKS])
{
    const int size = d->c->team.size;
    const bool backwards = d->other && mix(d->key) % 2 == 0;
    size_t begin = 0;
    for (int i = 0; i < size; i++) {
        const int r = backwards ? size - 1 - i : i;
        slices[r] = (comm_slice){.begin = begin, .elems = pair_elems(d, 0, r)};
        begin += slices[r].elems;
    }
    return d->pieces != NULL ? d->array_elems : begin;
}

static void reduce_step(const collective *d, int step, size_t total, const comm_slice *slices,
                        grad_acc *acc)
{
    buffer from = buffer_get(d, total);
    const data sent = addends(d, step, from.at, total);
    const float *send = (const float *)(void *)from.at;
    work(d, fill, sent);
    MUST(d->pieces != NULL ? comm_reduce_scatter_pieces(d->c, d->s, d->label, send, d->pieces, acc,
                                                        d->level[step])
         : d->other
             ? comm_reduce_scatterv(d->c, d->s, d->label, send, slices, acc, d->level[step])
             : comm_reduce_scatter(d->c, d->s, d->label, send, d->elems, acc, d->level[step]));
    work(d, check, sent);
    buffer_put(d, from);
}

static void call_reduce_scatter(const collective *d)
{
    const int me = d->c->team.rank;
    comm_slice slices[CALL_RANKS];
    grad_acc acc;
    float *sum = NULL;
    const size_t total = slices_draw(d, slices);
    grad_acc_init(&acc, d->mode, d->sums, slices[me].elems, MEM_OTHER, "test");
    acc.sum_dtype = d->sum_dtype;
    for (int step = 0; step < d->steps; step++)
        reduce_step(d, step, total, slices, &acc);
    FSDP_ASSERT(acc.n_pushed == d->steps * d->c->team.size);
    MUST(grad_acc_finish(&acc, d->s, &sum));
    if (d->pieces == NULL)
        check_sum(d, sum, slices[me].begin, slices[me].elems);
    for (size_t k = 0; d->pieces != NULL && k < d->pieces->n; k++) {
        const comm_piece *p = &d->pieces->list[k];
        if (p->elems > 0 && p->at / d->elems == (size_t)me)
            check_sum(d, sum + p->at % d->elems, p->begin, p->elems);
    }
    device_free(d->s, sum);
    grad_acc_free(&acc, d->s);
}

static void call_barrier(const collective *d)
{
    MUST(comm_barrier(d->c, d->s, d->label));
}

void collective_run(const collective *d)
{
    static void (*const CALLS[COMM_OPS])(const collective *) = {
        [COMM_OP_ALL_GATHER] = call_all_gather,
        [COMM_OP_REDUCE_SCATTER] = call_reduce_scatter,
        [COMM_OP_ALL_REDUCE] = call_all_reduce,
        [COMM_OP_ALL_TO_ALL] = call_all_to_all,
        [COMM_OP_BARRIER] = call_barrier};
    FSDP_ASSERT(d->c->team.size <= CALL_RANKS);
    CALLS[d->op](d);
}
