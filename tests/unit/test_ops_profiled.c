/* test_ops_profiled.c -- the formulas of what a call costs, the table that counts, the roof. The
 * operations under the table are fakes that do nothing, or run for a known time. */
#include <string.h>
#include "common/ops/ops_profiled.h"
#include "tests/unit/profile_lib.h"

/* ---- formulas ------------------------------------------------------------------------------- */

#define FAKE(op)                                                                                   \
    static fsdp_status fake_##op(stream *s, const op##_args *a)                                    \
    {                                                                                              \
        (void)s;                                                                                   \
        (void)a;                                                                                   \
        return FSDP_OK;                                                                            \
    }
FAKE(matmul)
FAKE(bias_add)
FAKE(bias_backward)
FAKE(embedding)
FAKE(embedding_backward)
FAKE(layernorm)
FAKE(layernorm_backward)
FAKE(gelu)
FAKE(gelu_backward)
FAKE(attention)
FAKE(attention_backward)
FAKE(cross_entropy)
FAKE(cast)
FAKE(add)
FAKE(scale)
FAKE(sum_squares)
FAKE(clip_coef)
FAKE(adamw)
FAKE(sgd)

static fsdp_status fake_round(stream *s, const round_args *a)
{
    (void)s;
    (void)a;
    return FSDP_OK;
}

static const sum_kernels FAKE_SUMS = {.add = fake_add, .round = fake_round, .run = sum_run_cpu};

static const ops FAKES = {.name = "fakes",
                          .matmul = fake_matmul,
                          .bias_add = fake_bias_add,
                          .bias_backward = fake_bias_backward,
                          .embedding = fake_embedding,
                          .embedding_backward = fake_embedding_backward,
                          .layernorm = fake_layernorm,
                          .layernorm_backward = fake_layernorm_backward,
                          .gelu = fake_gelu,
                          .gelu_backward = fake_gelu_backward,
                          .attention = fake_attention,
                          .attention_backward = fake_attention_backward,
                          .cross_entropy = fake_cross_entropy,
                          .cast = fake_cast,
                          .add = fake_add,
                          .scale = fake_scale,
                          .sum_squares = fake_sum_squares,
                          .clip_coef = fake_clip_coef,
                          .adamw = fake_adamw,
                          .sgd = fake_sgd,
                          .sums = &FAKE_SUMS};

/* A profile, its counting table over `base`, and a stream to use them on. */
typedef struct rig {
    device *dev;
    stream *s;
    profile *p;
    const ops *o;
} rig;

static rig rig_open(const ops *base, bool async_compute)
{
    rig r = {.p = warm_profile()};
    OK(device_open(
        &(device_config){.kind = DEVICE_CPU, .n_threads = 1, .async_compute = async_compute},
        &r.dev));
    r.s = device_compute_stream(r.dev);
    OK(ops_profiled(base, r.p, &r.o));
    return r;
}

static void rig_close(rig *r)
{
    device_close(r->dev);
    ops_profiled_end();
    profile_free(r->p);
}

/* What was counted since the last call of this. */
static profile_cost counted(rig *r, const char *name)
{
    static profile_cost before;
    profile_row rows[PROFILE_MAX_ROWS];
    size_t n = profile_read(r->p, rows);
    profile_cost now = profile_total(r->p).cost[PROFILE_COMPUTE];
    profile_cost c = {now.flops - before.flops, now.bytes - before.bytes,
                      now.bf16_flops - before.bf16_flops};
    bool found = !name;
    for (size_t i = 0; i < n; i++)
        found = found || strcmp(rows[i].key.name, name) == 0;
    if (!found)
        fail_msg("no row %s", name);
    before = name ? now : (profile_cost){0};
    return c;
}

static void expect_cost(rig *r, const char *name, double flops, double bytes)
{
    profile_cost c = counted(r, name);
    if (c.flops != flops || c.bytes != bytes)
        fail_msg("%s: got %.17g FLOPs, %.17g bytes, expected %.17g, %.17g", name, c.flops, c.bytes,
                 flops, bytes);
}

#define COST(op, flops, bytes, ...)                                                                \
    do {                                                                                           \
        OK(r.o->op(r.s, &(op##_args){__VA_ARGS__}));                                               \
        expect_cost(&r, #op, flops, bytes);                                                        \
    } while (0)

/* Figures by hand, from the table at the top of ops_profiled.c. */
static void test_formulas(void **state)
{
    (void)state;
    rig r = rig_open(&FAKES, false);
    float x = 0;
    assert_string_equal(r.o->name, "fakes");
    COST(matmul, 210, 4 * (15 + 35 + 21), .m = 3, .n = 7, .k = 5);
    COST(matmul, 210, 4 * (15 + 35 + 42), .m = 3, .n = 7, .k = 5, .accumulate = true);
    COST(matmul, 210, 4 * (15 + 21) + 2 * 35, .m = 3, .n = 7, .k = 5, .b_type = DTYPE_BF16);
    COST(matmul, 210, 4 * (35 + 21) + 2 * 15, .m = 3, .n = 7, .k = 5, .a_type = DTYPE_BF16);
    COST(bias_add, 15, 4 * (30 + 5), .rows = 3, .cols = 5);
    COST(bias_backward, 15, 4 * (15 + 10), .rows = 3, .cols = 5);
    COST(bias_backward, 15, 4 * (15 + 5), .rows = 3, .cols = 5, .overwrite = true);
    COST(embedding, 30, 4 * (60 + 6 + 15), .wpe = &x, .batch = 2, .seq_len = 3, .width = 5);
    COST(embedding, 0, 4 * (60 + 6), .batch = 2, .seq_len = 3, .width = 5);
    COST(embedding, 30, 4 * (30 + 6) + 2 * 45, .wpe = &x, .batch = 2, .seq_len = 3, .width = 5,
         .param_type = DTYPE_BF16);
    COST(embedding_backward, 60, 4 * (90 + 6 + 30), .d_wpe = &x, .batch = 2, .seq_len = 3,
         .width = 5);
    COST(embedding_backward, 30, 4 * (90 + 6), .batch = 2, .seq_len = 3, .width = 5);
    COST(embedding_backward, 60, 4 * (90 + 6 + 30 + 11 * 5 + 7 * 5), .d_wpe = &x, .batch = 2,
         .seq_len = 3, .width = 5, .vocab = 11, .positions = 7, .overwrite = true);
    COST(layernorm, 120, 4 * (30 + 10 + 6), .rows = 3, .cols = 5);
    COST(layernorm_backward, 270, 4 * (45 + 25 + 6), .rows = 3, .cols = 5);
    COST(layernorm_backward, 285, 4 * (60 + 15 + 6), .rows = 3, .cols = 5, .d_residual = &x,
         .overwrite = true);
    COST(gelu, 63, 56, .elems = 7);
    COST(gelu_backward, 133, 84, .elems = 7);
    /* B=2, T=3, H=4, Hkv=2, D=5 */
    COST(attention, 2 * 2 * 4 * 9 * 5, 4 * (30 * 12 + 24), .batch = 2, .seq_len = 3, .n_head = 4,
         .n_kv_head = 2, .head_dim = 5);
    COST(attention_backward, 5 * 2 * 4 * 9 * 5, 4 * (30 * 24 + 24), .batch = 2, .seq_len = 3,
         .n_head = 4, .n_kv_head = 2, .head_dim = 5);
    COST(cross_entropy, 60, 4 * (15 + 3 + 1), .rows = 3, .vocab = 5);
    COST(cross_entropy, 75, 4 * (30 + 3 + 1), .rows = 3, .vocab = 5, .d_logits = &x);
    COST(cast, 0, 42, .elems = 7, .out_type = DTYPE_BF16);
    COST(add, 7, 84, .elems = 7);
    COST(scale, 7, 56, .elems = 7);
    COST(sum_squares, 14, 28, .elems = 7);
    COST(clip_coef, 4, 8 + sizeof(rsum), .max_norm = 1);
    COST(adamw, 112, 28 * 7, .elems = 7);
    COST(sgd, 35, 84, .elems = 7);
    OK(r.o->sums->add(r.s, &(add_args){.b = &x, .elems = 7, .round_to = DTYPE_BF16}));
    expect_cost(&r, "add", 7, 84);
    OK(r.o->sums->add(r.s, &(add_args){.elems = 7, .round_to = DTYPE_BF16}));
    expect_cost(&r, "add", 7, 56);
    OK(r.o->sums->round(r.s, &(round_args){.elems = 7}));
    expect_cost(&r, "cast", 0, 42);
    assert_true(r.o->sums->run == FAKE_SUMS.run); /* counted as part of its collective */
    counted(&r, NULL);
    rig_close(&r);
}

/* An operation that is new in ops.h must get a wrapper, or it is NULL or not counted. */
static void test_every_operation_is_wrapped(void **state)
{
    (void)state;
    rig r = rig_open(ops_cpu_portable(), false);
    enum { N = sizeof(ops) / sizeof(void (*)(void)) };
    void (*base[N])(void), (*counting[N])(void);
    memcpy(base, ops_cpu_portable(), sizeof base);
    memcpy(counting, r.o, sizeof counting);
    for (int i = 1; i < N; i++) /* 0 is the name */
        if (!counting[i] || counting[i] == base[i])
            fail_msg("operation number %d is not counted", i);
    rig_close(&r);
}

static void test_matmul_names(void **state)
{
    (void)state;
    rig r = rig_open(&FAKES, false);
    profile_row rows[PROFILE_MAX_ROWS];
    char text[PROFILE_NAME_BYTES], all[512] = "";
    for (int i = 0; i < 8; i++)
        OK(r.o->matmul(
            r.s,
            &(matmul_args){
                .m = 1, .n = 2, .k = 3, .trans_a = i & 1, .trans_b = i & 2, .accumulate = i & 4}));
    OK(r.o->matmul(r.s, &(matmul_args){.m = 1, .n = 2, .k = 3, .compute = DTYPE_BF16}));
    size_t n = profile_read(r.p, rows);
    assert_int_equal(n, 9);
    for (size_t i = 0; i < n; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "[%s]",
                 profile_row_name(&rows[i], text));
    static const char *const FORMS[] = {"NN",  "NN+", "NT",  "NT+",    "TN",
                                        "TN+", "TT",  "TT+", "NN bf16"};
    for (size_t i = 0; i < 9; i++) {
        snprintf(text, sizeof text, "[matmul 1x2x3 %s]", FORMS[i]);
        assert_non_null(strstr(all, text));
    }
    rig_close(&r);
}

/* Which FLOPs are of bf16: all of a product that computes in it, however its operands are stored.
 */
static void test_bf16_flops(void **state)
{
    (void)state;
    rig r = rig_open(&FAKES, false);
    matmul_args mm = {.m = 3, .n = 7, .k = 5, .compute = DTYPE_BF16};
    OK(r.o->matmul(r.s, &mm));
    profile_cost c = counted(&r, "matmul");
    assert_true(c.flops == 210 && c.bf16_flops == 210);
    mm.compute = DTYPE_F32;
    mm.b_type = DTYPE_BF16;
    OK(r.o->matmul(r.s, &mm));
    c = counted(&r, "matmul");
    assert_true(c.flops == 210 && c.bf16_flops == 0);
    counted(&r, NULL);
    rig_close(&r);
}

/* ---- time and order ------------------------------------------------------------------------- */

static fsdp_status sleep_kernel(void *args, int n_threads)
{
    (void)n_threads;
    sleep_ms(*(long *)args);
    return FSDP_OK;
}

static fsdp_status slow_add(stream *s, const add_args *a)
{
    long ms = (long)a->elems;
    return stream_launch(s, sleep_kernel, &ms, sizeof ms);
}

static double seconds_of(profile *p, profile_kind kind, uint64_t *calls)
{
    profile_row rows[PROFILE_MAX_ROWS];
    size_t n = profile_read(p, rows);
    double seconds = 0;
    *calls = 0;
    for (size_t i = 0; i < n; i++)
        if (rows[i].key.kind == kind) {
            seconds += rows[i].seconds;
            *calls += rows[i].calls;
        }
    return seconds;
}

/* Time runs on the stream, from where it begins the operation: neither what the host does, nor what
 * stands before it in the queue, nor another stream's work is in it. */
static void test_time(void **state)
{
    ops slow = FAKES;
    slow.add = slow_add;
    rig r = rig_open(&slow, *state != NULL);
    stream *side;
    uint64_t calls;
    long before_ms = 400;
    OK(stream_create(r.dev, "side", &side));
    OK(stream_launch(r.s, sleep_kernel, &before_ms, sizeof before_ms));
    OK(r.o->add(side, &(add_args){.elems = 30}));
    for (int i = 0; i < 3; i++)
        OK(r.o->add(r.s, &(add_args){.elems = 10}));
    OK(stream_sync(side));
    OK(stream_sync(r.s));
    double compute_s = seconds_of(r.p, PROFILE_COMPUTE, &calls);
    assert_int_equal(calls, 3);
    assert_true(compute_s >= 0.030);
    expect_near(compute_s, 0.030, 0.3);
    double side_s = seconds_of(r.p, PROFILE_SIDE, &calls);
    assert_int_equal(calls, 1);
    assert_true(side_s >= 0.030);
    expect_near(side_s, 0.030, 0.3);
    stream_free(side);
    rig_close(&r);
}

/* Which calls are counted is decided when they are issued; the results are those of the base. */
static void test_bits_and_warm_up(void **state)
{
    (void)state;
    enum { N = 1000 };
    static float a[N], b[N], out[N], expected[N];
    for (int i = 0; i < N; i++) {
        a[i] = 0.1f * (float)i;
        b[i] = 1.0f / (float)(i + 1);
    }
    rig r = rig_open(ops_cpu_fast(), false);
    uint64_t calls;
    add_args args = {.out = out, .a = a, .b = b, .elems = N};
    profile_step_end(r.p);
    OK(r.o->add(r.s, &args));
    seconds_of(r.p, PROFILE_COMPUTE, &calls);
    assert_int_equal(calls, 0);
    profile_step_begin(r.p);
    OK(r.o->add(r.s, &args));
    seconds_of(r.p, PROFILE_COMPUTE, &calls);
    assert_int_equal(calls, 1);
    args.out = expected;
    OK(ops_cpu_fast()->add(r.s, &args));
    assert_memory_equal(out, expected, sizeof out);
    rig_close(&r);
}

static fsdp_status failing_kernel(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    return fsdp_error(FSDP_EINVAL, "", "on purpose");
}

static fsdp_status failing_add(stream *s, const add_args *a)
{
    return stream_launch(s, failing_kernel, a, sizeof *a);
}

static void test_failure_passes(void **state)
{
    (void)state;
    ops failing = FAKES;
    failing.add = failing_add;
    rig r = rig_open(&failing, false);
    uint64_t calls;
    assert_int_equal(r.o->add(r.s, &(add_args){.elems = 1}), FSDP_EINVAL);
    assert_string_equal(fsdp_error_get()->what, "on purpose");
    seconds_of(r.p, PROFILE_COMPUTE, &calls);
    assert_int_equal(calls, 0);
    rig_close(&r);
}

static fsdp_status own_adamw(void *args, int n_threads)
{
    (void)n_threads;
    ((adamw_args *)args)->param[0] += 1;
    return FSDP_OK;
}

static void test_own_adamw_kernel(void **state)
{
    (void)state;
    float param = 0;
    adamw_args a = {.param = &param, .elems = 5};
    rig r = rig_open(&FAKES, false);
    OK(ops_launch_adamw(r.s, own_adamw, &a));
    expect_cost(&r, "adamw", 80, 140);
    counted(&r, NULL);
    const ops *second;
    assert_int_equal(ops_profiled(&FAKES, r.p, &second), FSDP_ESTATE);
    ops_profiled_end();
    OK(ops_launch_adamw(r.s, own_adamw, &a)); /* without a profile */
    assert_true(param == 2);
    rig_close(&r);
}

static unsigned bf16_products;

/* Products of fp32, and of operands that are stored in bf16: no time goes into rounding them. */
static fsdp_status matmul_of_roof(stream *s, const matmul_args *a)
{
    bf16_products += a->compute == DTYPE_BF16;
    assert_true(a->a_type == a->compute && a->b_type == a->compute);
    return ops_cpu_fast()->matmul(s, a);
}

static void test_roof(void **state)
{
    (void)state;
    rig r = rig_open(&FAKES, false);
    profile_roof roof = {0};
    OK(ops_profile_roof(ops_cpu_fast(), r.s, false, &roof));
    assert_true(roof.flops_per_s > 1e7 && roof.flops_per_s < 1e15);
    assert_true(roof.bytes_per_s > 1e7 && roof.bytes_per_s < 1e14);
    assert_true(roof.bf16_flops_per_s == 0);
    ops watched = *ops_cpu_fast();
    watched.matmul = matmul_of_roof;
    bf16_products = 0;
    OK(ops_profile_roof(&watched, r.s, true, &roof));
    assert_true(roof.bf16_flops_per_s > 1e7 && roof.bf16_flops_per_s < 1e15);
    assert_in_range(bf16_products, 4, 1 << 24);
    assert_int_equal(ledger_read(device_ledger(r.dev)).live_total_bytes, 0);
    rig_close(&r);
}

int main(void)
{
    static int yes = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_every_operation_is_wrapped),
        cmocka_unit_test(test_matmul_names),
        cmocka_unit_test(test_bf16_flops),
        cmocka_unit_test(test_time),
        {.name = "test_time_async_compute", .test_func = test_time, .initial_state = &yes},
        cmocka_unit_test(test_bits_and_warm_up),
        cmocka_unit_test(test_failure_passes),
        cmocka_unit_test(test_own_adamw_kernel),
        cmocka_unit_test(test_roof),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
