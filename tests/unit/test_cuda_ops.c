/* test_cuda_ops.c -- the portable operations of the device that FSDP_DEVICE names, and the sums of
 * vectors, against those of the CPU: the same bits. */
#include <stdlib.h>
#include <string.h>
#include "common/sum/sum_run.h"
#include "tests/unit/ops_check_lib.h"
#include "tests/unit/target_lib.h"

/* The device under test and the CPU, each with its compute stream and its portable table. */
typedef struct side {
    device *d;
    stream *s;
    const ops *o;
} side;
static side target, cpu;

static int setup(void **state)
{
    const backend *b = target_backend();
    device_config config = {.backend = b->device, .n_threads = 1, .debug_fill = true};
    OK(device_open(&config, &target.d));
    config.backend = &device_cpu;
    OK(device_open(&config, &cpu.d));
    target.s = device_compute_stream(target.d);
    target.o = b->portable();
    cpu.s = device_compute_stream(cpu.d);
    cpu.o = ops_cpu_portable();
    *state = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    device_close(target.d);
    device_close(cpu.d);
    return 0;
}

static uint64_t draw(uint64_t *seed, uint64_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % n;
}

/* A copy of x [bytes] in the device's memory; the caller frees it there. */
static void *copy_to(const side *to, const void *x, size_t bytes)
{
    void *vec = NULL;
    OK(device_alloc(to->s, MEM_OTHER, bytes, "test", &vec));
    OK(device_upload(to->s, vec, x, bytes));
    return vec;
}

/* Both devices hold the same [bytes] there. */
static void compare(const void *on_target, const void *on_cpu, size_t bytes, const char *what)
{
    unsigned char *got = malloc(bytes + 1), *expected = malloc(bytes + 1);
    OK(device_download(target.s, got, on_target, bytes));
    OK(device_download(cpu.s, expected, on_cpu, bytes));
    OK(stream_sync(target.s));
    OK(stream_sync(cpu.s));
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != expected[i])
            fail_msg("%s: byte %zu of %zu is %02x, expected %02x", what, i, bytes, got[i],
                     expected[i]);
    free(got);
    free(expected);
}

/* ---- sums of vectors --------------------------------------------------------------------------
 */

enum { MOST_INPUTS = 9, MOST_STEPS = 5 };

typedef struct sum_case {
    grad_acc_mode mode;
    dtype sum_dtype;
    size_t elems;
    uint64_t seed;
} sum_case;

/* n nodes of a level into the accumulator of one side. */
static void take_in(const side *x, grad_acc *acc, int level, int n, void *const *sent, size_t bytes)
{
    const void *in[MOST_INPUTS];
    sum_run run;
    for (int i = 0; i < n; i++)
        in[i] = copy_to(x, sent[i], bytes);
    OK(sum_run_begin(acc, x->s, level, n, &run));
    OK(sum_run_launch(x->o->sums, x->s, &run, in, "pass", "test"));
    sum_run_end(&run, x->s);
    for (int i = 0; i < n; i++)
        device_free(x->s, (void *)(uintptr_t)in[i]);
}

static int level_draw(uint64_t *seed, uint64_t nodes)
{
    int level = (int)draw(seed, 5);
    while (nodes & ((UINT64_C(1) << level) - 1))
        level--;
    return level;
}

/* Some steps of drawn widths and levels on both sides; what the slots hold after each. */
static void run_sums(sum_case c)
{
    const size_t bytes = c.elems * dtype_bytes(c.sum_dtype);
    const side *sides[] = {&target, &cpu};
    grad_acc acc[2];
    void *sent[MOST_INPUTS];
    float *sum[2];
    uint64_t nodes = 0;
    for (int k = 0; k < 2; k++) {
        grad_acc_init(&acc[k], c.mode, sides[k]->o->sums, c.elems, MEM_GRADS_SHARD, "sum");
        acc[k].sum_dtype = c.sum_dtype;
    }
    for (int i = 0; i < MOST_INPUTS; i++)
        sent[i] = malloc(c.elems * sizeof(float) + 1);
    for (int step = 1 + (int)draw(&c.seed, MOST_STEPS); step > 0; step--) {
        const int n = 1 + (int)draw(&c.seed, MOST_INPUTS), level = level_draw(&c.seed, nodes);
        nodes += (uint64_t)n << level;
        for (int i = 0; i < n; i++) {
            float *vec = normals(c.seed + (uint64_t)i, 1.0f, c.elems);
            for (size_t e = 0; e < c.elems; e++)
                if (c.sum_dtype == DTYPE_BF16)
                    ((uint16_t *)sent[i])[e] = bf16_from_f32(vec[e]);
                else
                    ((float *)sent[i])[e] = vec[e];
            free(vec);
        }
        for (int k = 0; k < 2; k++)
            take_in(sides[k], &acc[k], level, n, sent, bytes);
        for (int k = 0; k < TREE_SUM_LEVELS; k++)
            if (acc[1].tree.slot[k] != NULL)
                compare(acc[0].tree.slot[k], acc[1].tree.slot[k], c.elems * sizeof(float), "slot");
    }
    for (int k = 0; k < 2; k++)
        OK(grad_acc_finish(&acc[k], sides[k]->s, &sum[k]));
    compare(sum[0], sum[1], c.elems * sizeof(float), "sum");
    for (int k = 0; k < 2; k++) {
        device_free(sides[k]->s, sum[k]);
        grad_acc_free(&acc[k], sides[k]->s);
    }
    for (int i = 0; i < MOST_INPUTS; i++)
        free(sent[i]);
}

static void test_sums(void **state)
{
    (void)state;
    static const size_t SIZES[] = {0, 1, 7, 255, 256, 257, 1000};
    for (uint64_t i = 0; i < 140; i++)
        run_sums((sum_case){.mode = i / 7 % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST,
                            .sum_dtype = i / 14 % 2 ? DTYPE_BF16 : DTYPE_F32,
                            .elems = SIZES[i % 7],
                            .seed = i});
}

/* A sum of n vectors without an accumulator, into the last of them; more inputs than a kernel's
 * arguments have room for too. */
static void test_root(void **state)
{
    (void)state;
    static const int COUNTS[] = {1, 2, 3, 5, 8, 13, 384, 385, 1000, SUM_RUN_MAX_INPUTS};
    enum { ELEMS = 3 };
    static float in[SUM_RUN_MAX_INPUTS][2 * ELEMS];
    ops_test_fill(5, 1.0f, in[0], sizeof in / sizeof(float));
    const side *sides[] = {&target, &cpu};
    for (int c = 0; c < 10; c++)
        for (int t = 0; t < 2; t++) {
            const dtype type = t ? DTYPE_I64 : DTYPE_F32;
            const int n = COUNTS[c];
            void *all[2];
            for (int k = 0; k < 2; k++) {
                static const void *from[SUM_RUN_MAX_INPUTS];
                all[k] = copy_to(sides[k], in, sizeof in);
                for (int i = 0; i < n; i++)
                    from[i] = (float *)all[k] + (size_t)i * 2 * ELEMS;
                sum_run run =
                    sum_run_root((float *)all[k] + (size_t)(n - 1) * 2 * ELEMS, ELEMS, n, type);
                OK(sum_run_launch(sides[k]->o->sums, sides[k]->s, &run, from, "pass", "test"));
                memset(from, 0xA5, sizeof from);
            }
            compare(all[0], all[1], sizeof in, "root");
            for (int k = 0; k < 2; k++)
                device_free(sides[k]->s, all[k]);
        }
}

/* ---- operations -------------------------------------------------------------------------------
 */

static void test_catalogue(void **state)
{
    (void)state;
    for (size_t i = 0; i < ops_case_count(); i++) {
        ops_result got = ops_case_run(i, target.o, target.s);
        ops_result expected = ops_case_run(i, cpu.o, cpu.s);
        OK(got.status);
        OK(expected.status);
        expect_same_bits(got.data, expected.data, expected.elems, ops_case_name(i), "");
        free(got.data);
        free(expected.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_root),
        cmocka_unit_test(test_catalogue),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
