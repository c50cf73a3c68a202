/* test_npu_ops.c -- details of an NPU's operations that other tests do not cover: all operations
 * near the CPU's, the optimizers' bits, how long a workspace lives, the context of a host task.
 * test_ops_double.c has bounds for the larger operations; test_accel_ops.c tests the sums.
 *
 *     FSDP_DEVICE=npu-sim build/tests/unit/test_npu_ops */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/accel_lib.h"
#include "tests/unit/ops_check_lib.h"

static device *dev, *cpu;
static stream *s;
static const ops *o;

static int setup(void **state)
{
    *state = NULL;
    need_accel("npu");
    dev = open_accel(&(device_config){.debug_fill = true});
    cpu = ops_test_device(1, false);
    s = device_compute_stream(dev);
    o = target_backend()->fast();
    return 0;
}

static int teardown(void **state)
{
    OK(stream_sync(s));
    assert_int_equal(ledger_read(device_ledger(dev)).live_total_bytes, 0);
    assert_int_equal(ledger_read(device_host_ledger(dev)).live_total_bytes, 0);
    device_close(dev);
    device_close(cpu);
    return 0;
}

TEST_AROUND(test_near_the_cpu, setup, teardown)
{
    for (size_t i = 0; i < ops_case_count(); i++) {
        ops_result got = ops_case_run(i, o, s);
        if (ops_refused(got.status)) {
            free(got.data);
            continue;
        }
        ops_result want = ops_case_run(i, ops_cpu_portable(), device_compute_stream(cpu));
        OK(got.status);
        OK(want.status);
        expect_case_near(i, &got, &want, 8.0 * (double)FLT_EPSILON);
        free(got.data);
        free(want.data);
    }
}

/* ---- the optimizers -------------------------------------------------------------------------- */

/* The optimizers round in the order of the recipe. If division and root are IEEE's, they give the
 * CPU's bits. */
TEST_AROUND(test_optimizers_are_the_recipe, setup, teardown)
{
    int n_cases = 0;
    need_sim("npu");
    for (size_t i = 0; i < ops_case_count(); i++) {
        const char *name = ops_case_name(i);
        if (strncmp(name, "optimizers", 10) != 0 && strncmp(name, "updates", 7) != 0)
            continue;
        ops_result got = ops_case_run(i, o, s);
        ops_result want = ops_case_run(i, ops_cpu_portable(), device_compute_stream(cpu));
        OK(got.status);
        OK(want.status);
        expect_same_bits(got.data, want.data, want.elems, name, "NPU and CPU");
        free(got.data), free(want.data);
        n_cases++;
    }
    assert_int_equal(n_cases, 6);
}

/* ---- long arrays, which are processed in pieces ---------------------------------------------- */

enum { LONG = (1 << 22) + 5 };

static float *on_device(stream *on, const float *x, size_t elems)
{
    float *there;
    OK(device_alloc_f32(on, MEM_OTHER, elems, "long", &there));
    OK(device_upload(on, there, x, elems * sizeof *x));
    return there;
}

static const optim_config CONFIG = {
    .lr = 3e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 2};

/* The last 8 elements of an array after adamw, with the array as param, m, v and grad. */
static void tail_of_adamw(const ops *table, stream *on, const float *x, float *out)
{
    adamw_args a = {.elems = LONG, .param = on_device(on, x, LONG), .m = on_device(on, x, LONG)};
    a.v = on_device(on, x, LONG), a.grad = on_device(on, x, LONG);
    adamw_scalars(&a, &CONFIG);
    OK(table->adamw(on, &a));
    OK(device_download(on, out, a.param + LONG - 8, 8 * sizeof *out));
    OK(stream_sync(on));
    device_free(on, a.param), device_free(on, a.m), device_free(on, a.v);
    device_free(on, (void *)(uintptr_t)a.grad);
}

TEST_AROUND(test_long_arrays, setup, teardown)
{
    float *x = normals(8, 1.0f, LONG), got[8], want[8], *there;
    rsum sum = {0}, expected = {0}, *on_npu;
    need_sim("npu");
    for (size_t i = 0; i < LONG; i++)
        x[i] = fabsf(x[i]);
    tail_of_adamw(o, s, x, got);
    tail_of_adamw(ops_cpu_portable(), device_compute_stream(cpu), x, want);
    assert_memory_equal(got, want, sizeof got);
    there = on_device(s, x, LONG);
    void *new_on_npu = new_block(s, sizeof sum, "sum");
    on_npu = new_on_npu;
    OK(device_zero(s, on_npu, sizeof sum));
    CALL(o, s, sum_squares, on_npu, there, LONG);
    OK(device_download(s, &sum, on_npu, sizeof sum));
    OK(stream_sync(s));
    rsum_add_squares(&expected, x, LONG);
    assert_memory_equal(&sum, &expected, sizeof sum);
    device_free(s, on_npu), device_free(s, there);
    free(x);
}

/* Five rows of a vocabulary so large that only four are processed at once. */
TEST_AROUND(test_loss_of_a_large_vocabulary, setup, teardown)
{
    enum { ROWS = 5, CLASSES = 1 << 20 };
    static const int32_t TARGETS[ROWS] = {0, 1, CLASSES - 1, 7, 99};
    float *x = normals(9, 1.0f, (size_t)ROWS * CLASSES), loss[2], d[2][ROWS];
    for (int i = 0; i < 2; i++) {
        stream *on = i ? device_compute_stream(cpu) : s;
        float *there = on_device(on, x, (size_t)ROWS * CLASSES), *total = on_device(on, x, 1);
        void *targets = on_device(on, (const float *)(const void *)TARGETS, ROWS);
        OK((i ? ops_cpu_portable() : o)
               ->cross_entropy(on, &(cross_entropy_args){.loss = total,
                                                         .d_logits = there,
                                                         .logits = there,
                                                         .targets = targets,
                                                         .rows = ROWS,
                                                         .vocab = CLASSES}));
        OK(device_download(on, &loss[i], total, sizeof(float)));
        for (int r = 0; r < ROWS; r++)
            OK(device_download(on, &d[i][r], there + (size_t)r * CLASSES + TARGETS[r],
                               sizeof(float)));
        OK(stream_sync(on));
        device_free(on, there), device_free(on, total), device_free(on, targets);
    }
    assert_true(fabsf(loss[0] - loss[1]) < 1e-3f * loss[1]); /* a sum of 2^20 terms in fp32 */
    for (int r = 0; r < ROWS; r++)
        assert_true(fabsf(d[0][r] - d[1][r]) < 1e-6f && d[0][r] < -0.99f);
    free(x);
}

/* ---- the workspace --------------------------------------------------------------------------- */

/* While a long product runs, another stream repeatedly allocates blocks of the workspace's size and
 * writes to them. The operator's workspace must not be among them. */
TEST_AROUND(test_workspace_outlives_the_call, setup, teardown)
{
    enum { M = 256, N = 256, K = 4096, MOST_BLOCKS = 64 };
    stream *side = new_stream(dev, "side");
    float *a = filled(1.0f, M * K), *got = filled(0.0f, M * N), *x, *other[MOST_BLOCKS];
    int n = 0;
    OK(device_alloc_f32(s, MEM_OTHER, 2 * M * K + M * N, "operands", &x));
    OK(device_upload(s, x, a, M * K * sizeof *a));
    OK(device_upload(s, x + M * K, a, N * K * sizeof *a));
    event *before = new_event(dev), *after = new_event(dev);
    OK(event_record(before, s));
    CALL(o, s, matmul, .out = x + 2 * M * K, .a = x, .b = x + M * K, .m = M, .n = N, .k = K);
    OK(event_record(after, s));
    OK(event_sync(before));
    do {
        usleep(1000);
        if (n < MOST_BLOCKS)
            OK(device_alloc_f32(side, MEM_OTHER, M * N, "somebody else's", &other[n++]));
        for (int i = 0; i < n; i++)
            OK(device_zero(side, other[i], M * N * sizeof *other[i]));
        OK(stream_sync(side));
    } while (!event_done(after));
    OK(device_download(s, got, x + 2 * M * K, M * N * sizeof *got));
    OK(stream_sync(s));
    for (int i = 0; i < M * N; i++)
        assert_true(got[i] == (float)K);
    event_free(before), event_free(after);
    while (n > 0)
        device_free(side, other[--n]);
    device_free(s, x);
    stream_free(side);
    free(a), free(got);
}

int main(void)
{
    alarm(100); /* a deadlock is a failure, not a hang */
    if (getenv("FSDP_DEVICE") == NULL || strncmp(getenv("FSDP_DEVICE"), "npu", 3) != 0) {
        printf("SKIP FSDP_DEVICE is no NPU\n");
        return 77;
    }
    return tests_run(NULL, NULL);
}
