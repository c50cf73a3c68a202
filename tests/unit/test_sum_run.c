/* test_sum_run.c -- many pushes in one pass over memory (sum_run.h), compared with the single
 * pushes of grad_acc.h: the same bits, the promised number of vectors, and no memory left after a
 * failure. */
#include "tests/unit/device_lib.h"
#include "common/base/bytes_copy.h"
#include "common/device/cpu_tiles.h"
#include "common/sum/sum_run.h"
#include "tests/unit/comm_cases_lib.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_INPUTS = 9, MOST_STEPS = 6, MOST_ELEMS = 10 };

/* The device and stream of the current test. */
static device *d;
static stream *s;

/* *state: NULL, or the mode in which to open the device. */
static int open_device(void **state)
{
    const device_mode *mode = *state;
    d = open_cpu(mode != NULL && mode->async, true);
    s = device_compute_stream(d);
    return 0;
}

static int close_device(void **state)
{
    assert_int_equal(live_bytes(d), 0);
    device_close(d);
    return 0;
}

/* A test on a new device, in a mode of device_lib.h (NULL: inline). */
#define TEST_ON(test, mode)                                                                        \
    TEST_EACH(test, TEST_REGISTER({#test, test, open_device, close_device, mode}))

/* Values whose sum depends on the order. */
static void fill(float *vec, size_t elems, uint64_t *seed)
{
    for (size_t i = 0; i < elems; i++) {
        float unit = (float)call_draw(seed, 1 << 16) / 65536.0f - 0.4f;
        vec[i] = unit * (float)(1u << call_draw(seed, 16)) / 256.0f;
    }
}

/* Push n nodes of a level in one pass, as comm_reduce_scatter does. n_threads 0: by a launch. */
static fsdp_status take_in(grad_acc *g, int level, int n, const void *const *in, int n_threads)
{
    sum_run run, copy;
    TRY(sum_run_begin(g, s, level, n, &run));
    copy = run; /* a run may be copied */
    memset(&run, 0xA5, sizeof run);
    fsdp_status status = n_threads > 0 ? sum_run_cpu(&copy, in, n_threads)
                                       : sum_run_launch(g->kernels, s, &copy, in, "pass", "test");
    sum_run_end(&copy, s);
    return status;
}

/* Begins an accumulator for `elems` elements, and pushes 1 to it `before` times. */
static void acc_begin(grad_acc *acc, grad_acc_mode mode, dtype sum_dtype, size_t elems, int before)
{
    static const float ONES[MOST_ELEMS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    grad_acc_init(acc, mode, &comm_test_sums, elems, MEM_GRADS_SHARD, "test");
    acc->sum_dtype = sum_dtype;
    for (int i = 0; i < before; i++)
        OK(grad_acc_push(acc, s, 0, ONES));
}

/* Both accumulators must hold the same levels with the same bits. */
static void compare_slots(const grad_acc *a, const grad_acc *b)
{
    assert_int_equal(a->n_pushed, b->n_pushed);
    for (int k = 0; k < TREE_SUM_LEVELS; k++) {
        assert_int_equal(a->tree.slot[k] == NULL, b->tree.slot[k] == NULL);
        if (a->tree.slot[k] != NULL)
            assert_memory_equal(a->tree.slot[k], b->tree.slot[k], a->elems * sizeof(float));
    }
}

typedef struct sequence {
    grad_acc_mode mode;
    dtype sum_dtype;
    size_t elems;
    int n_threads;
    uint64_t seed;
} sequence;

/* A random level that is allowed after `nodes` leaves. */
static int level_draw(uint64_t *seed, uint64_t nodes)
{
    int level = (int)call_draw(seed, 5);
    while (nodes & ((UINT64_C(1) << level) - 1))
        level--;
    return level;
}

/* Push some steps of random widths and levels into both accumulators: one by one into `single`, in
 * passes into `many`. Sometimes `many` gets a single push too. */
static void run_sequence(sequence q)
{
    grad_acc single, many;
    acc_begin(&single, q.mode, q.sum_dtype, q.elems, 0);
    acc_begin(&many, q.mode, q.sum_dtype, q.elems, 0);
    float *in[MOST_INPUTS], *sum_single = NULL, *sum_many = NULL;
    void *sent[MOST_INPUTS]; /* of the accumulator's sum_dtype */
    for (int i = 0; i < MOST_INPUTS; i++) {
        in[i] = comm_test_alloc(q.elems * sizeof(float));
        sent[i] = comm_test_alloc(q.elems * sizeof(float));
    }
    int steps = 1 + (int)call_draw(&q.seed, MOST_STEPS);
    uint64_t nodes = 0;
    for (int a = 0; a < steps; a++) {
        int n = 1 + (int)call_draw(&q.seed, MOST_INPUTS), level = level_draw(&q.seed, nodes);
        nodes += (uint64_t)n << level;
        for (int i = 0; i < n; i++) {
            fill(in[i], q.elems, &q.seed);
            OK(grad_acc_push(&single, s, level, in[i]));
            for (size_t e = 0; e < q.elems && q.sum_dtype == DTYPE_BF16; e++)
                ((uint16_t *)sent[i])[e] = bf16_from_f32(in[i][e]);
            if (q.sum_dtype == DTYPE_F32)
                memcpy(sent[i], in[i], q.elems * sizeof(float));
        }
        if (n == 1 && call_draw(&q.seed, 2) == 0)
            OK(grad_acc_push(&many, s, level, in[0]));
        else
            OK(take_in(&many, level, n, (const void *const *)sent, q.n_threads));
        compare_slots(&single, &many);
    }
    OK(grad_acc_finish(&single, s, &sum_single));
    OK(grad_acc_finish(&many, s, &sum_many));
    assert_memory_equal(sum_single, sum_many, q.elems * sizeof(float));
    device_free(s, sum_single);
    device_free(s, sum_many);
    grad_acc_free(&single, s);
    grad_acc_free(&many, s);
    assert_int_equal(live_bytes(d), 0);
    for (int i = 0; i < MOST_INPUTS; i++) {
        free(in[i]);
        free(sent[i]);
    }
}

/* Sizes: none, one, the edges of a block (2048) and of a tile, and enough for several threads. */
TEST_ON(test_bits_of_single_pushes, NULL)
{
    static const size_t SIZES[] = {0,    1,    7,          2047,           2048,
                                   2049, 4096, TILE_ELEMS, TILE_ELEMS + 1, 2 * TILE_ELEMS - 1};
    for (uint64_t i = 0; i < 400; i++) {
        size_t elems = SIZES[i % (sizeof SIZES / sizeof *SIZES)];
        run_sequence((sequence){.mode = i / 10 % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST,
                                .sum_dtype = i / 20 % 2 ? DTYPE_BF16 : DTYPE_F32,
                                .elems = elems > 4096 && i % 4 != 0 ? elems / 40 : elems,
                                .n_threads = (int)(i % 4),
                                .seed = i});
    }
    for (int n_threads = 0; n_threads <= 3; n_threads++)
        run_sequence((sequence){.mode = GRAD_ACC_CANONICAL,
                                .elems = MIN_PARALLEL_ELEMS + 12345,
                                .n_threads = n_threads,
                                .seed = 7});
    for (int mode = 0; mode < 2; mode++) /* long enough for sums to be stored past the caches */
        run_sequence((sequence){.mode = mode ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST,
                                .elems = BYTES_STREAM_MIN / sizeof(float) + 4321,
                                .n_threads = 2,
                                .seed = 8});
}

/* The most vectors that an accumulator holds while n nodes are pushed after `before`. A tree holds
 * as many as its node count has one bits. A run holds no more than the larger count, before or
 * after it. */
static size_t most_vectors(grad_acc_mode mode, int before, int n)
{
    int had = __builtin_popcount((unsigned)before),
        has = __builtin_popcount((unsigned)(before + n));
    return mode == GRAD_ACC_FAST ? 1 : (size_t)(had > has ? had : has);
}

TEST_ON(test_peak, NULL)
{
    float vec[MOST_ELEMS] = {1};
    const void *in[MOST_INPUTS];
    for (int i = 0; i < MOST_INPUTS; i++)
        in[i] = vec;
    for (int k = 0; k < 2 * 18 * MOST_INPUTS; k++) {
        grad_acc_mode mode = k % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST;
        int before = k / 2 % 18, n = 1 + k / 36;
        grad_acc acc;
        acc_begin(&acc, mode, DTYPE_F32, MOST_ELEMS, before);
        ledger_reset_peaks(device_ledger(d));
        OK(take_in(&acc, 0, n, in, 1));
        size_t most = ledger_read(device_ledger(d)).peak_bytes[MEM_GRADS_SHARD] / sizeof vec;
        if (most != most_vectors(mode, before, n))
            fail_msg("%d after %d, mode %d: %zu vectors, expected %zu", n, before, (int)mode, most,
                     most_vectors(mode, before, n));
        grad_acc_free(&acc, s);
    }
}

TEST_ON(test_counts, NULL)
{
    grad_acc acc;
    acc_begin(&acc, GRAD_ACC_FAST, DTYPE_F32, 1, 0);
    sum_run run;
    assert_int_equal(sum_run_begin(&acc, s, 0, 0, &run), FSDP_EINVAL);
    assert_int_equal(sum_run_begin(&acc, s, 0, SUM_RUN_MAX_INPUTS + 1, &run), FSDP_EINVAL);
}

/* The most inputs of a run, with an empty accumulator and with one that holds sums: there must be
 * blocks for all. */
TEST_ON(test_most_inputs, NULL)
{
    static const void *in[SUM_RUN_MAX_INPUTS];
    static const uint16_t ONE_BF16[1] = {0x3f80};
    static const float ONE[1] = {1};
    for (int k = 0; k < 16; k++) {
        int n = SUM_RUN_MAX_INPUTS - k % 2, before = k & 8 ? 7 : 0;
        grad_acc acc;
        acc_begin(&acc, k & 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST, k & 4 ? DTYPE_BF16 : DTYPE_F32,
                  1, before);
        float *sum;
        for (int i = 0; i < n; i++)
            in[i] = k & 4 ? (const void *)ONE_BF16 : ONE;
        OK(take_in(&acc, 0, n, in, 1));
        OK(grad_acc_finish(&acc, s, &sum));
        if ((k & 4) == 0) /* bf16 has 8 bits */
            assert_true(sum[0] == (float)(n + before));
        device_free(s, sum);
        grad_acc_free(&acc, s);
    }
}

/* A run of n inputs [elems] without an accumulator, as in an all-reduce, has the bits of the
 * definition. `to` may be an input. */
static void expect_root(float *to, const float *const *in, int n, size_t elems)
{
    float *want = malloc(elems * sizeof *want), *leaves = calloc((size_t)n, sizeof *leaves);
    for (size_t e = 0; e < elems; e++) {
        for (int i = 0; i < n; i++)
            leaves[i] = in[i][e];
        want[e] = tree_sum_f32(leaves, (size_t)n);
    }
    sum_run run = sum_run_root(to, elems, n, DTYPE_F32);
    OK(sum_run_cpu(&run, (const void *const *)in, 1));
    assert_memory_equal(to, want, elems * sizeof *want);
    free(want), free(leaves);
}

/* Every number of inputs; the result may replace any of them. */
TEST_ON(test_root, NULL)
{
    enum { MOST = 33, ELEMS = 2048 + 5 };
    static float in[MOST][ELEMS], out[ELEMS];
    const float *from[MOST];
    uint64_t seed = 5;
    for (int n = 1; n <= MOST; n++)
        for (int own = -1; own < n; own += 1 + n / 4) {
            for (int i = 0; i < n; i++) {
                fill(in[i], ELEMS, &seed);
                from[i] = in[i];
            }
            expect_root(own < 0 ? out : in[own], from, n, ELEMS);
        }
}

/* As many inputs as a large job has ranks. */
TEST_ON(test_many_inputs, NULL)
{
    enum { ELEMS = 2 };
    static const int COUNTS[] = {4096, 4097, 65535, 65536, 65541, SUM_RUN_MAX_INPUTS};
    static float in[SUM_RUN_MAX_INPUTS][ELEMS], out[ELEMS];
    static const float *from[SUM_RUN_MAX_INPUTS];
    uint64_t seed = 9;
    fill(in[0], sizeof in / sizeof(float), &seed);
    for (int i = 0; i < SUM_RUN_MAX_INPUTS; i++)
        from[i] = in[i];
    for (size_t c = 0; c < sizeof COUNTS / sizeof *COUNTS; c++)
        expect_root(out, from, COUNTS[c], ELEMS);
}

/* ---- launches ------------------------------------------------------------------------------- */

/* What the watch saw: the number of launches, and the ranges that the last one reads. */
typedef struct told {
    int n_launches, n_reads, n_writes;
    mem_access reads[MOST_INPUTS];
    bool named;
} told;

static uint64_t note_launch(void *self, const device_act *act)
{
    told *t = self;
    if (act->kind != ACT_LAUNCH)
        return 0;
    t->n_launches++;
    t->n_reads = t->n_writes = 0;
    t->named = act->name && strcmp(act->name, "pass") == 0 && strcmp(act->label, "test") == 0;
    for (int i = 0; i < act->n_accesses; i++)
        if (act->accesses[i].writes)
            t->n_writes++;
        else
            t->reads[t->n_reads++] = act->accesses[i];
    return 0;
}

/* The last launch must report that it reads these, and writes something. */
static void compare_told(const told *t, const void *const *in, int n, size_t bytes)
{
    assert_true(t->named && t->n_writes > 0);
    assert_int_equal(t->n_reads, n);
    for (int i = 0; i < n; i++)
        assert_true(t->reads[i].ptr == in[i] && t->reads[i].bytes == bytes);
}

/* A launch keeps copies of the host's arguments, and reports its accesses. */
TEST_ON(test_launch, &ASYNC)
{
    enum { ELEMS = 100, LEVEL = 2, N = 5 };
    static told t;
    device_set_watch(d, &(device_watch){.self = &t, .issued = note_launch});
    for (int k = 0; k < 4; k++) {
        static float in[N][ELEMS];
        uint64_t seed = 3;
        const void *from[N], *same[N];
        sem_t gate;
        grad_acc_mode mode = k % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST;
        grad_acc single, many;
        acc_begin(&single, mode, DTYPE_F32, ELEMS, 0);
        acc_begin(&many, mode, DTYPE_F32, ELEMS, 0);
        for (int i = 0; i < N; i++) {
            fill(in[i], ELEMS, &seed);
            from[i] = same[i] = in[i];
            OK(grad_acc_push(&single, s, LEVEL, in[i]));
        }
        close_gate(s, &gate);
        sum_run run;
        OK(sum_run_begin(&many, s, LEVEL, N, &run));
        OK(sum_run_launch(many.kernels, s, &run, from, "pass", "test"));
        compare_told(&t, same, N, sizeof in[0]);
        sum_run_end(&run, s);
        memset(from, 0xA5, sizeof from);
        memset(&run, 0xA5, sizeof run);
        sem_post(&gate);
        OK(stream_sync(s));
        compare_slots(&single, &many);
        grad_acc_free(&single, s);
        grad_acc_free(&many, s);
        OK(stream_sync(s));
        sem_destroy(&gate);
    }
}

/* Integers add up exactly and wrap around. With no elements there is no launch. */
TEST_ON(test_i64, NULL)
{
    enum { MOST = 9, ELEMS = TILE_ELEMS + 77 };
    static told t;
    static int64_t in[MOST][ELEMS], want[ELEMS];
    const void *from[MOST];
    device_set_watch(d, &(device_watch){.self = &t, .issued = note_launch});
    for (int n = 1; n <= MOST; n++) {
        memset(want, 0, sizeof want);
        for (int i = 0; i < n; i++) {
            from[i] = in[i];
            for (size_t e = 0; e < ELEMS; e++) {
                in[i][e] = INT64_MAX - (int64_t)e * (i + 1);
                want[e] = (int64_t)((uint64_t)want[e] + (uint64_t)in[i][e]);
            }
        }
        int64_t *out = in[n / 2];
        sum_run run = sum_run_root(out, ELEMS, n, DTYPE_I64);
        OK(sum_run_launch(&comm_test_sums, s, &run, from, "pass", "test"));
        assert_memory_equal(out, want, sizeof want);
        compare_told(&t, from, n, sizeof want);
        assert_int_equal(t.n_launches, n);
    }
    sum_run none = sum_run_root(in[0], 0, 2, DTYPE_I64);
    OK(sum_run_launch(&comm_test_sums, s, &none, from, "pass", "test"));
    assert_int_equal(t.n_launches, MOST);
}

/* ---- an allocation that fails --------------------------------------------------------------- */

static int allocs_left; /* number of allocations before one fails */

static fsdp_status alloc_or_fail(stream *on, const mem_request *want, void **out)
{
    if (allocs_left-- == 0)
        return fsdp_error(FSDP_ENOMEM, "", "no memory, for the test");
    return device_cpu.alloc(on, want, out);
}

/* If any allocation of a run fails, the accumulator is unchanged. */
TEST_ON(test_alloc_fails, NULL)
{
    device_backend failing = device_cpu;
    failing.alloc = alloc_or_fail;
    d->backend = &failing;
    int n_failed = 0;
    for (int k = 0; k < 2 * 16 * MOST_INPUTS * 4; k++) {
        int before = k / 2 % 16, n = 1 + k / 32 % MOST_INPUTS, fails_at = k / (32 * MOST_INPUTS);
        allocs_left = 1000;
        grad_acc acc;
        acc_begin(&acc, k % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST, DTYPE_F32, 5, before);
        sum_run run;
        tree_sum held = acc.tree;
        size_t held_bytes = live_bytes(d);
        allocs_left = fails_at;
        fsdp_status status = sum_run_begin(&acc, s, 0, n, &run);
        if (status == FSDP_OK) {
            sum_run_end(&run, s);
        } else {
            assert_int_equal(status, FSDP_ENOMEM);
            assert_memory_equal(acc.tree.slot, held.slot, sizeof held.slot);
            assert_int_equal(acc.n_pushed, before);
            assert_int_equal(live_bytes(d), held_bytes);
            n_failed++;
        }
        grad_acc_free(&acc, s);
        assert_int_equal(live_bytes(d), 0);
    }
    assert_true(n_failed > 50);
    d->backend = &device_cpu;
}

int main(void)
{
    return tests_run(NULL, NULL);
}
