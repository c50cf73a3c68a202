/* test_profile.c -- the counters, the formulas of what a call costs, the table that counts, the
 * files. The operations under the table are fakes that do nothing, or run for a known time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/comm/comm_impl.h"
#include "common/ops/ops_profiled.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        fsdp_status ok_status_ = (call);                                                           \
        if (ok_status_ != FSDP_OK)                                                                 \
            fail_msg("%s: %s", #call, fsdp_error_get()->what);                                     \
    } while (0)

static void expect_near(double got, double expected, double tolerance)
{
    if (!(got >= expected - tolerance && got <= expected + tolerance))
        fail_msg("got %.9g, expected %.9g +- %.3g", got, expected, tolerance);
}

static const profile_key ADD = {.name = "add"};

/* A profile that counts: one step has gone by. */
static profile *warm_profile(void)
{
    profile *p = profile_create();
    assert_non_null(p);
    profile_step_begin(p);
    profile_step_begin(p);
    return p;
}

/* ---- counters ------------------------------------------------------------------------------- */

static void test_first_step_is_not_counted(void **state)
{
    (void)state;
    profile *p = profile_create();
    profile_row rows[PROFILE_MAX_ROWS];
    const profile_cost c = {3, 4};
    profile_add(p, &ADD, 1, 1.0, c); /* before the first step */
    profile_step_begin(p);
    assert_false(profile_is_counting(p));
    profile_add(p, &ADD, 1, 1.0, c); /* warm-up */
    profile_step_begin(p);
    assert_true(profile_is_counting(p));
    profile_add(p, &ADD, 1, 0.25, c);
    profile_step_end(p);
    profile_add(p, &ADD, 1, 1.0, c); /* between steps */
    profile_step_end(p);
    profile_step_begin(p);
    profile_add(p, &ADD, 2, 0.5, c);
    profile_step_end(p);
    profile_totals t = profile_total(p);
    assert_int_equal(profile_read(p, rows), 1);
    assert_int_equal(rows[0].calls, 3);
    assert_true(rows[0].seconds == 0.75 && rows[0].cost.flops == 6 && rows[0].cost.bytes == 8);
    assert_int_equal(t.steps, 2);
    assert_true(t.seconds[PROFILE_COMPUTE] == 0.75 && t.cost[PROFILE_COMPUTE].flops == 6);
    profile_free(p);
    profile_free(NULL);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* A step lasts until its last operation: what comes behind it is no part of it. */
static void test_wall(void **state)
{
    (void)state;
    profile *p = warm_profile();
    double begun_s = profile_now_s();
    sleep_ms(20);
    profile_add(p, &ADD, 1, 0.0, (profile_cost){0});
    double most_s = profile_now_s() - begun_s;
    sleep_ms(300);
    profile_step_begin(p);
    profile_add(p, &ADD, 1, 0.0, (profile_cost){0});
    profile_step_end(p);
    profile_totals t = profile_total(p);
    assert_int_equal(t.steps, 2);
    assert_true(t.wall_s >= 0.020);
    expect_near(t.wall_s, most_s, 0.2); /* without the 300 ms */
    profile_free(p);
}

static void test_rows(void **state)
{
    (void)state;
    profile *p = warm_profile();
    profile_row rows[PROFILE_MAX_ROWS];
    char text[PROFILE_NAME_BYTES], add_text[] = "add";
    const profile_cost none = {0, 0};
    profile_key mm = {.name = "matmul", .form = "NT+", .m = 2, .n = 3, .k = 4}, other = mm;
    other.k = 5;
    profile_add(p, &ADD, 1, 1.0, none);
    profile_add(p, &(profile_key){.name = add_text}, 1, 1.0, none); /* by text, not by place */
    profile_add(p, &mm, 1, 5.0, none);
    profile_add(p, &other, 1, 6.0, none);
    profile_add(p, &(profile_key){.kind = PROFILE_SIDE, .name = "add"}, 1, 9.0, none);
    profile_add(p, &(profile_key){.kind = PROFILE_COLLECTIVE, .name = "x"}, 1, 10.0, none);
    assert_int_equal(profile_read(p, rows), 5);
    static const char *const EXPECTED[] = {"matmul 2x3x5 NT+", "matmul 2x3x4 NT+", "add", "add",
                                           "x"};
    for (int i = 0; i < 5; i++)
        assert_string_equal(profile_row_name(&rows[i], text), EXPECTED[i]);
    assert_int_equal(rows[2].calls, 2);
    assert_int_equal(rows[3].key.kind, PROFILE_SIDE);
    profile_free(p);
}

/* More keys than rows: nothing is lost, the rest is in "other" of its kind. */
static void test_more_keys_than_rows(void **state)
{
    (void)state;
    profile *p = warm_profile();
    profile_row rows[PROFILE_MAX_ROWS];
    profile_key key = {.name = "matmul", .form = "NN"};
    const profile_cost c = {1, 2};
    for (key.m = 0; key.m < 3 * PROFILE_MAX_ROWS; key.m++) {
        key.kind = key.m % 2 ? PROFILE_SIDE : PROFILE_COMPUTE;
        profile_add(p, &key, 1, 0.5, c);
    }
    size_t n = profile_read(p, rows);
    uint64_t calls = 0, others = 0;
    assert_true(n <= PROFILE_MAX_ROWS);
    for (size_t i = 0; i < n; i++) {
        calls += rows[i].calls;
        others += strcmp(rows[i].key.name, "other") == 0;
    }
    assert_int_equal(calls, 3 * PROFILE_MAX_ROWS);
    assert_int_equal(others, 2);
    assert_true(profile_total(p).cost[PROFILE_SIDE].bytes == 3 * PROFILE_MAX_ROWS);
    profile_free(p);
}

enum { THREADS = 4, ADDS = 100000 };

static void *add_many(void *arg)
{
    for (int i = 0; i < ADDS; i++) {
        profile_key key = {.name = "matmul", .form = "NN", .m = (size_t)i % 7};
        profile_add(arg, &key, 1, 0.5, (profile_cost){1, 2});
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    profile *p = warm_profile();
    profile_row rows[PROFILE_MAX_ROWS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, add_many, p), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    uint64_t calls = 0;
    assert_int_equal(profile_read(p, rows), 7);
    for (int i = 0; i < 7; i++)
        calls += rows[i].calls;
    assert_int_equal(calls, THREADS * ADDS);
    assert_true(profile_total(p).seconds[PROFILE_COMPUTE] == 0.5 * THREADS * ADDS);
    profile_free(p);
}

static void test_share(void **state)
{
    (void)state;
    const char *binds;
    const profile_roof roof = {100, 10};
    profile_row row = {.seconds = 2, .cost = {150, 4}}; /* 75 of 100, 2 of 10 */
    assert_true(profile_share(&row, roof, &binds) == 0.75);
    assert_string_equal(binds, "compute");
    row.cost.bytes = 18; /* 9 of 10 */
    assert_true(profile_share(&row, roof, &binds) == 0.9);
    assert_string_equal(binds, "memory");
    assert_true(profile_share(&row, (profile_roof){0, 0}, &binds) == 0);
    assert_string_equal(binds, "-");
    row.key.kind = PROFILE_COLLECTIVE;
    assert_true(profile_share(&row, roof, &binds) == 0);
    row = (profile_row){.cost = {1, 1}};
    assert_true(profile_share(&row, roof, &binds) == 0);
    assert_string_equal(binds, "-");
}

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
                          .sgd = fake_sgd};

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
    profile_cost c = {now.flops - before.flops, now.bytes - before.bytes};
    bool found = !name;
    for (size_t i = 0; i < n; i++)
        found = found || strcmp(rows[i].key.name, name) == 0;
    if (!found)
        fail_msg("no row %s", name);
    before = name ? now : (profile_cost){0, 0};
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

static void test_roof(void **state)
{
    (void)state;
    rig r = rig_open(&FAKES, false);
    profile_roof roof = {0};
    OK(ops_profile_roof(ops_cpu_fast(), r.s, &roof));
    assert_true(roof.flops_per_s > 1e7 && roof.flops_per_s < 1e15);
    assert_true(roof.bytes_per_s > 1e7 && roof.bytes_per_s < 1e14);
    assert_int_equal(ledger_read(device_ledger(r.dev)).live_total_bytes, 0);
    rig_close(&r);
}

/* ---- collectives ---------------------------------------------------------------------------- */

static void note_timing(void *self, const comm_timing *t)
{
    ((unsigned *)self)[t->op] += t->calls;
    assert_true(t->seconds >= 0 && t->bytes == 0);
}

static void test_timer_of_one_rank(void **state)
{
    (void)state;
    device *d;
    comm *c;
    float buf[2] = {1, 2};
    unsigned calls[COMM_OPS] = {0};
    OK(device_open(&(device_config){.kind = DEVICE_CPU, .n_threads = 1}, &d));
    OK(comm_open(d, &(comm_config){.backend = COMM_SELF}, &c));
    stream *s = device_compute_stream(d);
    OK(comm_all_reduce(c, s, "before", DTYPE_F32, buf, 2));
    comm_set_timer(c, note_timing, calls);
    OK(comm_all_reduce(c, s, "x", DTYPE_F32, buf, 2));
    OK(comm_all_gather(c, s, "y", DTYPE_F32, buf, buf, 2));
    OK(comm_agree(c, FSDP_OK)); /* a call of the host is none of them */
    comm_set_timer(c, NULL, NULL);
    OK(comm_all_reduce(c, s, "behind", DTYPE_F32, buf, 2));
    for (int op = 0; op < COMM_OPS; op++)
        assert_int_equal(calls[op], op == COMM_OP_ALL_REDUCE || op == COMM_OP_ALL_GATHER);
    comm_close(c);
    device_close(d);
}

typedef struct timings {
    int n;
    comm_timing last;
} timings;

static void keep_timing(void *self, const comm_timing *t)
{
    ((timings *)self)->n++;
    ((timings *)self)->last = *t;
}

/* One call on a group of W ranks, as its transport marks it; bytes that the timer is told. */
static double told_bytes(comm *c, timings *told, const comm_desc *d, int world_size)
{
    int n_before = told->n;
    uint64_t ticket = comm_recorder_issue(c->recorder, d, world_size);
    comm_recorder_mark(c->recorder, ticket, COMM_RUNNING);
    assert_int_equal(told->n, n_before);
    comm_recorder_mark(c->recorder, ticket, COMM_DONE);
    assert_int_equal(told->n, n_before + 1);
    assert_int_equal(told->last.calls, 1);
    assert_int_equal(told->last.op, d->op);
    return told->last.bytes;
}

static void test_timer_bytes(void **state)
{
    (void)state;
    timings told = {0};
    comm c = {.recorder = comm_recorder_create()};
    comm_set_timer(&c, keep_timing, &told);
    comm_desc d = {.op = COMM_OP_ALL_GATHER, .dtype = DTYPE_F32, .elems = 10};
    assert_true(told_bytes(&c, &told, &d, 3) == 80); /* to 2 others, 40 each */
    d.op = COMM_OP_REDUCE_SCATTER;
    assert_true(told_bytes(&c, &told, &d, 3) == 80);
    d.shape_hash = 12345; /* slices of 10 elements together: 2 of 3 go to others, on average */
    expect_near(told_bytes(&c, &told, &d, 3), 80.0 / 3, 1e-9);
    d.shape_hash = 0;
    d.op = COMM_OP_ALL_REDUCE;
    expect_near(told_bytes(&c, &told, &d, 3), 2 * 80.0 / 3, 1e-9);
    d.op = COMM_OP_BROADCAST;
    expect_near(told_bytes(&c, &told, &d, 3), 80.0 / 3, 1e-9);
    d.op = COMM_OP_ALL_TO_ALL;
    d.dtype = DTYPE_BF16;
    assert_true(told_bytes(&c, &told, &d, 3) == 40);
    d.op = COMM_OP_BARRIER;
    assert_true(told_bytes(&c, &told, &d, 3) == 0);
    comm_recorder_free(c.recorder);
}

/* An all-reduce is told in two parts, which add up to its time; a failed call and one of the host
 * are not told. */
static void test_timer_of_halves(void **state)
{
    (void)state;
    timings told = {0};
    comm c = {.recorder = comm_recorder_create()};
    comm_set_timer(&c, keep_timing, &told);
    comm_desc d = {.op = COMM_OP_ALL_REDUCE, .dtype = DTYPE_F32, .elems = 10};
    uint64_t ticket = comm_recorder_issue(c.recorder, &d, 2);
    double begun_s = profile_now_s(), first_s;
    comm_recorder_mark(c.recorder, ticket, COMM_RUNNING);
    sleep_ms(10);
    comm_recorder_mark(c.recorder, ticket, COMM_DONE);
    first_s = told.last.seconds;
    sleep_ms(10); /* the sum between them is a part of it */
    comm_recorder_mark(c.recorder, ticket, COMM_RUNNING);
    comm_recorder_mark(c.recorder, ticket, COMM_DONE);
    assert_int_equal(told.n, 2);
    assert_int_equal(told.last.calls, 0);
    assert_true(told.last.bytes == 0);
    assert_true(first_s >= 0.010 && told.last.seconds >= 0.010);
    assert_true(first_s + told.last.seconds <= profile_now_s() - begun_s);
    ticket = comm_recorder_issue(c.recorder, &d, 2);
    comm_recorder_mark(c.recorder, ticket, COMM_RUNNING);
    comm_recorder_mark(c.recorder, ticket, COMM_FAILED);
    d.op = COMM_OP_HOST;
    ticket = comm_recorder_issue(c.recorder, &d, 2);
    comm_recorder_mark(c.recorder, ticket, COMM_RUNNING);
    comm_recorder_mark(c.recorder, ticket, COMM_DONE);
    assert_int_equal(told.n, 2);
    comm_recorder_free(c.recorder);
}

/* ---- files ---------------------------------------------------------------------------------- */

static char *slurp(const char *path)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    return text;
}

static void expect_line(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("no '%s' in:\n%s", line, text);
}

static void test_files(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_profile.XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    profile *p = warm_profile();
    profile_set_roof(p, (profile_roof){1000e9, 100e9});
    profile_key mm = {.name = "matmul", .form = "NN", .m = 2, .n = 3, .k = 4};
    profile_add(p, &mm, 2, 0.5, (profile_cost){400e9, 1e9});
    profile_add(p, &ADD, 1, 0.25, (profile_cost){1e9, 20e9});
    profile_add(p, &(profile_key){.kind = PROFILE_COLLECTIVE, .name = "all-gather"}, 1, 2.0,
                (profile_cost){0, 4e9});
    profile_step_end(p);
    snprintf(path, sizeof path, "%s/p.csv", dir);
    OK(profile_write_csv(p, path));
    const char *text = slurp(path);
    expect_line(text, "compute,matmul 2x3x4 NN,2,0.500000000,400000000000,1000000000,8e+11,2e+09,"
                      "0.8,compute\n");
    expect_line(text, "compute,add,1,0.250000000,1000000000,20000000000,4e+09,8e+10,0.8,memory\n");
    expect_line(text, "collective,all-gather,1,2.000000000,0,4000000000,0,2e+09,0,-\n");
    expect_line(text, "total,compute,1,0.750000000,401000000000,21000000000,");
    expect_line(text, "total,wall,1,");
    expect_line(text, "roof,measured,,,,,1e+12,1e+11,,\n");
    unlink(path);
    snprintf(path, sizeof path, "%s/p.md", dir);
    OK(profile_write_table(p, path));
    text = slurp(path);
    expect_line(text, ": 1 steps, without the first");
    expect_line(text, "1000.0 GFLOP/s");
    expect_line(text, "| matmul 2x3x4 NN                      |        2.0 |    500.000 |");
    expect_line(text, "|    800.00 |    2.00 |     80% | compute |");
    expect_line(text, "| **sum**                              |        3.0 |    750.000 |");
    expect_line(text, "**not accounted**");
    unlink(path);
    rmdir(dir);
    assert_int_equal(profile_write_csv(p, path), FSDP_EIO);
    profile_free(p);
}

/* No step was counted: files without rows, no division by 0. */
static void test_files_of_nothing(void **state)
{
    (void)state;
    char path[] = "/tmp/test_profile.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    profile *p = profile_create();
    OK(profile_write_csv(p, path));
    expect_line(slurp(path), "total,wall,0,0.000000000,");
    OK(profile_write_table(p, path));
    expect_line(slurp(path), ": 0 steps");
    assert_null(strstr(slurp(path), "nan"));
    unlink(path);
    profile_free(p);
}

int main(void)
{
    static int yes = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_step_is_not_counted),
        cmocka_unit_test(test_wall),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_more_keys_than_rows),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_every_operation_is_wrapped),
        cmocka_unit_test(test_matmul_names),
        cmocka_unit_test(test_time),
        {.name = "test_time_async_compute", .test_func = test_time, .initial_state = &yes},
        cmocka_unit_test(test_bits_and_warm_up),
        cmocka_unit_test(test_failure_passes),
        cmocka_unit_test(test_own_adamw_kernel),
        cmocka_unit_test(test_roof),
        cmocka_unit_test(test_timer_of_one_rank),
        cmocka_unit_test(test_timer_bytes),
        cmocka_unit_test(test_timer_of_halves),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_files_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
