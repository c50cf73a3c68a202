/* test_npu_ops.c -- operations of an NPU that other tests do not look at from close by: all of the
 * catalogue near the CPU's, the optimizers' bits, how long a workspace lives, what a host task
 * finds. test_accel_fast.c has bounds for the larger operations, test_accel_ops.c the sums.
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
    (void)state;
    OK(stream_sync(s));
    assert_int_equal(ledger_read(device_ledger(dev)).live_total_bytes, 0);
    assert_int_equal(ledger_read(device_host_ledger(dev)).live_total_bytes, 0);
    device_close(dev);
    device_close(cpu);
    return 0;
}

/* The bound of test_ops.c's fast tables: sums of up to 300 terms of about normal distribution, or
 * 2053 of the deep ones, in another order; what is stored in bf16 may be rounded to a neighbour;
 * and so may the out that attention's backward reads. */
static double bound_of(const char *name, dtype type, double value)
{
    const bool is_attention = strncmp(name, "attention", 9) == 0;
    const double through_out = is_attention && type == DTYPE_BF16 ? 1.0 / 64 : 0.0;
    const double rounding = type == DTYPE_BF16 ? 1.0 / 128 : 8.0 * (double)FLT_EPSILON;
    return 8.0 * (double)FLT_EPSILON * (strstr(name, "deep") ? 2053 : 300) + through_out +
           rounding * fabs(value);
}

static void test_near_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < ops_case_count(); i++) {
        const char *name = ops_case_name(i);
        ops_result got = ops_case_run(i, o, s);
        if (ops_refused(got.status)) {
            free(got.data);
            continue;
        }
        ops_result want = ops_case_run(i, ops_cpu_portable(), device_compute_stream(cpu));
        OK(got.status);
        OK(want.status);
        for (size_t e = 0; e < want.elems; e++) {
            const double value = (double)want.data[e];
            if (!(fabs((double)got.data[e] - value) <= bound_of(name, want.type, value)))
                fail_msg("%s: element %zu is %.9g, the CPU's %.9g", name, e, (double)got.data[e],
                         value);
        }
        free(got.data);
        free(want.data);
    }
}

/* ---- embedding ------------------------------------------------------------------------------- */

enum { BATCH = 2, SEQ = 3, WIDTH = 4, VOCAB = 5, POSITIONS = 6 };
enum { N_WTE = VOCAB * WIDTH, N_WPE = POSITIONS * WIDTH, N_OUT = BATCH * SEQ * WIDTH };

/* d_wte, then d_wpe, of whole numbers: no order of their sums has other bits. */
static void embedding_gradients(const ops *table, stream *on, float out[N_WTE + N_WPE])
{
    static const int32_t TOKENS[BATCH * SEQ] = {4, 0, 4, 4, 2, 0};
    struct {
        float d_out[N_OUT], grads[N_WTE + N_WPE];
        int32_t tokens[BATCH * SEQ];
    } host, *there;
    for (int i = 0; i < N_OUT; i++)
        host.d_out[i] = (float)(i - 9);
    for (int i = 0; i < N_WTE + N_WPE; i++)
        host.grads[i] = 100.0f;
    memcpy(host.tokens, TOKENS, sizeof TOKENS);
    void *new_there = NULL;
    OK(device_alloc(on, MEM_OTHER, sizeof host, "embedding", &new_there));
    there = new_there;
    OK(device_upload(on, there, &host, sizeof host));
    OK(table->embedding_backward(on, &(embedding_backward_args){.d_wte = there->grads,
                                                                .d_wpe = there->grads + N_WTE,
                                                                .d_out = there->d_out,
                                                                .tokens = there->tokens,
                                                                .batch = BATCH,
                                                                .seq_len = SEQ,
                                                                .width = WIDTH,
                                                                .vocab = VOCAB}));
    OK(device_download(on, out, there->grads, sizeof host.grads));
    OK(stream_sync(on));
    device_free(on, there);
}

static void test_embedding_gradients(void **state)
{
    (void)state;
    float got[N_WTE + N_WPE], want[N_WTE + N_WPE];
    embedding_gradients(o, s, got);
    embedding_gradients(ops_cpu_portable(), device_compute_stream(cpu), want);
    for (int i = 0; i < N_WTE + N_WPE; i++)
        assert_true(got[i] == want[i]);
}

/* ---- the optimizers -------------------------------------------------------------------------- */

enum { ELEMS = 1000 };

/* param, m, v, grad and coef on a device. */
typedef struct state_arrays {
    stream *on;
    float *x[5];
} state_arrays;

static state_arrays arrays_new(stream *on)
{
    state_arrays a = {.on = on};
    for (int i = 0; i < 5; i++) {
        float *x = normals(31 + (uint64_t)i, 1.0f, ELEMS);
        for (int e = 0; e < ELEMS && i == 2; e++)
            x[e] *= x[e];
        OK(device_alloc_f32(on, MEM_OTHER, ELEMS, "state", &a.x[i]));
        OK(device_upload(on, a.x[i], x, ELEMS * sizeof *x));
        free(x);
    }
    return a;
}

/* The first three [3][ELEMS]. */
static void arrays_take(state_arrays *a, float out[3][ELEMS])
{
    for (int i = 0; i < 3; i++)
        OK(device_download(a->on, out[i], a->x[i], sizeof out[i]));
    OK(stream_sync(a->on));
    for (int i = 0; i < 5; i++)
        device_free(a->on, a->x[i]);
}

static const optim_config CONFIG = {
    .lr = 3e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 2};

static void run_adamw(const ops *table, stream *on, bool scaled, float out[3][ELEMS])
{
    state_arrays x = arrays_new(on);
    adamw_args a = {.param = x.x[0], .m = x.x[1], .v = x.x[2], .grad = x.x[3], .elems = ELEMS};
    a.grad_coef = scaled ? x.x[4] : NULL;
    adamw_scalars(&a, &CONFIG);
    OK(table->adamw(on, &a));
    arrays_take(&x, out);
}

static void run_sgd(const ops *table, stream *on, bool scaled, float out[3][ELEMS])
{
    state_arrays x = arrays_new(on);
    OK(table->sgd(on, &(sgd_args){.param = x.x[0],
                                  .grad = x.x[3],
                                  .grad_coef = scaled ? x.x[4] : NULL,
                                  .elems = ELEMS,
                                  .lr = 0.1f,
                                  .weight_decay = 0.3f}));
    arrays_take(&x, out);
}

static void run_momentum(const ops *table, stream *on, bool scaled, float out[3][ELEMS])
{
    state_arrays x = arrays_new(on);
    for (int nesterov = 0; nesterov < 2; nesterov++)
        OK(table->sgd(on, &(sgd_args){.param = x.x[0],
                                      .momentum_buffer = x.x[1],
                                      .grad = x.x[3],
                                      .grad_coef = scaled ? x.x[4] : NULL,
                                      .elems = ELEMS,
                                      .lr = 0.1f,
                                      .weight_decay = 0.3f,
                                      .momentum = 0.9f,
                                      .nesterov = nesterov == 1}));
    arrays_take(&x, out);
}

/* Its averages may not be negative, and two arrays are both averages. */
static void run_adadelta(const ops *table, stream *on, bool scaled, float out[3][ELEMS])
{
    state_arrays x = arrays_new(on);
    OK(device_copy(on, x.x[1], x.x[2], ELEMS * sizeof(float)));
    OK(table->adadelta(on, &(adadelta_args){.param = x.x[0],
                                            .square_avg = x.x[1],
                                            .acc_delta = x.x[2],
                                            .grad = x.x[3],
                                            .grad_coef = scaled ? x.x[4] : NULL,
                                            .elems = ELEMS,
                                            .lr = 0.1f,
                                            .weight_decay = 0.3f,
                                            .rho = 0.9f,
                                            .one_minus_rho = 0.1f,
                                            .eps = 1e-3f}));
    arrays_take(&x, out);
}

/* The recipe's roundings in its order: where division and root are IEEE's, the CPU's bits. */
static void test_optimizers_are_the_recipe(void **state)
{
    (void)state;
    static float got[3][ELEMS], want[3][ELEMS];
    static void (*const RUN[])(const ops *, stream *, bool,
                               float(*)[ELEMS]) = {run_adamw, run_sgd, run_momentum, run_adadelta};
    need_sim("npu");
    for (int i = 0; i < 8; i++) {
        RUN[i / 2](o, s, i % 2 == 1, got);
        RUN[i / 2](ops_cpu_portable(), device_compute_stream(cpu), i % 2 == 1, want);
        assert_memory_equal(got, want, sizeof got);
    }
}

/* ---- long arrays, which are treated piece by piece ------------------------------------------- */

enum { LONG = (1 << 22) + 5 };

static float *on_device(stream *on, const float *x, size_t elems)
{
    float *there;
    OK(device_alloc_f32(on, MEM_OTHER, elems, "long", &there));
    OK(device_upload(on, there, x, elems * sizeof *x));
    return there;
}

/* The last elements of an array that adamw has treated as param, m, v and grad. */
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

static void test_long_arrays(void **state)
{
    (void)state;
    float *x = normals(8, 1.0f, LONG), got[8], want[8], *there;
    rsum sum = {0}, expected = {0}, *on_npu;
    need_sim("npu");
    for (size_t i = 0; i < LONG; i++)
        x[i] = fabsf(x[i]);
    tail_of_adamw(o, s, x, got);
    tail_of_adamw(ops_cpu_portable(), device_compute_stream(cpu), x, want);
    assert_memory_equal(got, want, sizeof got);
    there = on_device(s, x, LONG);
    void *new_on_npu = NULL;
    OK(device_alloc(s, MEM_OTHER, sizeof sum, "sum", &new_on_npu));
    on_npu = new_on_npu;
    OK(device_zero(s, on_npu, sizeof sum));
    OK(o->sum_squares(s, &(sum_squares_args){on_npu, there, LONG}));
    OK(device_download(s, &sum, on_npu, sizeof sum));
    OK(stream_sync(s));
    rsum_add_squares(&expected, x, LONG);
    assert_memory_equal(&sum, &expected, sizeof sum);
    device_free(s, on_npu), device_free(s, there);
    free(x);
}

/* Five rows of a vocabulary so large that four are treated at once. */
static void test_loss_of_a_large_vocabulary(void **state)
{
    (void)state;
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

/* While a long product runs, another stream takes memory of the workspace's size, time and again,
 * and keeps writing to it: what the operator has is still its own. */
static void test_workspace_outlives_the_call(void **state)
{
    (void)state;
    enum { M = 256, N = 256, K = 4096, MOST_BLOCKS = 64 };
    stream *side = new_stream(dev, "side");
    event *before, *after;
    float *a = filled(1.0f, M * K), *got = filled(0.0f, M * N), *x, *other[MOST_BLOCKS];
    int n = 0;
    OK(device_alloc_f32(s, MEM_OTHER, 2 * M * K + M * N, "operands", &x));
    OK(device_upload(s, x, a, M * K * sizeof *a));
    OK(device_upload(s, x + M * K, a, N * K * sizeof *a));
    OK(event_create(dev, &before));
    OK(event_create(dev, &after));
    OK(event_record(before, s));
    OK(o->matmul(
        s, &(matmul_args){.out = x + 2 * M * K, .a = x, .b = x + M * K, .m = M, .n = N, .k = K}));
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_near_the_cpu, setup, teardown),
        cmocka_unit_test_setup_teardown(test_embedding_gradients, setup, teardown),
        cmocka_unit_test_setup_teardown(test_optimizers_are_the_recipe, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_arrays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_loss_of_a_large_vocabulary, setup, teardown),
        cmocka_unit_test_setup_teardown(test_workspace_outlives_the_call, setup, teardown),
    };
    if (getenv("FSDP_DEVICE") == NULL || strncmp(getenv("FSDP_DEVICE"), "npu", 3) != 0) {
        printf("SKIP FSDP_DEVICE is no NPU\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
