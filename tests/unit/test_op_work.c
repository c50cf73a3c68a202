/* test_op_work.c -- what a call costs by formula, that every operation says so when it is launched,
 * and the roof. */
#include <string.h>
#include "common/ops/op_work.h"
#include "common/ops/profile_roof.h"
#include "tests/unit/unit_lib.h"

/* ---- formulas ------------------------------------------------------------------------------- */

static void expect_work(const work_info *w, const char *name, double flops, double bytes)
{
    assert_string_equal(w->key.name, name);
    if (w->cost.flops != flops || w->cost.bytes != bytes)
        fail_msg("%s: got %.17g FLOPs, %.17g bytes, expected %.17g, %.17g", name, w->cost.flops,
                 w->cost.bytes, flops, bytes);
}

#define COST(op, flops, bytes, ...)                                                                \
    do {                                                                                           \
        work_info work_ = op##_work(&(op##_args){__VA_ARGS__});                                    \
        expect_work(&work_, #op, flops, bytes);                                                    \
    } while (0)

/* Figures by hand, from the table at the top of op_work.c. */
static void test_formulas(void **state)
{
    (void)state;
    float x = 0;
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
    COST(add, 7, 84, .b = &x, .elems = 7, .round_to = DTYPE_BF16);
    COST(add, 7, 56, .elems = 7, .round_to = DTYPE_BF16);
}

static void test_matmul_forms(void **state)
{
    (void)state;
    static const char *const FORMS[] = {"NN", "TN", "NT", "TT", "NN+", "TN+", "NT+", "TT+"};
    for (int i = 0; i < 8; i++) {
        work_key key = matmul_work(&(matmul_args){.m = 1,
                                                  .n = 2,
                                                  .k = 3,
                                                  .trans_a = i & 1,
                                                  .trans_b = i & 2,
                                                  .accumulate = i & 4})
                           .key;
        assert_string_equal(key.form, FORMS[i]);
        assert_true(key.m == 1 && key.n == 2 && key.k == 3);
    }
    work_key bf16 = matmul_work(&(matmul_args){.compute = DTYPE_BF16}).key;
    assert_string_equal(bf16.form, "NN bf16");
}

/* Which FLOPs are of bf16: all of a product that computes in it, however operands are stored. */
static void test_bf16_flops(void **state)
{
    (void)state;
    matmul_args mm = {.m = 3, .n = 7, .k = 5, .compute = DTYPE_BF16};
    work_cost c = matmul_work(&mm).cost;
    assert_true(c.flops == 210 && c.bf16_flops == 210);
    mm.compute = DTYPE_F32;
    mm.b_type = DTYPE_BF16;
    c = matmul_work(&mm).cost;
    assert_true(c.flops == 210 && c.bf16_flops == 0);
}

/* ---- launches ------------------------------------------------------------------------------- */

/* The last launch that the device was told of, and how many there were. */
typedef struct seen {
    int n;
    work_info last;
} seen;

static uint64_t see(void *self, const device_act *act)
{
    seen *x = self;
    if (act->kind == ACT_LAUNCH) {
        x->n++;
        x->last = act->work;
    }
    return 0;
}

/* What the operations work on. */
typedef struct rig {
    const ops *o;
    stream *s;
    seen x;
    int n_ops;
    float f[16], g[16], h[16], y[16], z[16], w[16];
    int32_t token;
    rsum sum;
} rig;

#define LAUNCHES(r, table, op, ...)                                                                \
    do {                                                                                           \
        op##_args args_ = {__VA_ARGS__};                                                           \
        work_info want_ = op##_work(&args_);                                                       \
        int before_ = (r)->x.n;                                                                    \
        OK((table)->op((r)->s, &args_));                                                           \
        assert_int_equal((r)->x.n, before_ + 1);                                                   \
        assert_memory_equal(&(r)->x.last, &want_, sizeof want_);                                   \
        (r)->n_ops++;                                                                              \
    } while (0)

static void launch_layers(rig *r)
{
    const ops *o = r->o;
    LAUNCHES(r, o, matmul, .out = r->y, .a = r->f, .b = r->g, .m = 2, .n = 2, .k = 2);
    LAUNCHES(r, o, bias_add, .out = r->y, .in = r->f, .bias = r->g, .rows = 1, .cols = 2);
    LAUNCHES(r, o, bias_backward, .d_bias = r->h, .d_out = r->g, .rows = 1, .cols = 2);
    LAUNCHES(r, o, embedding, .out = r->y, .wte = r->f, .tokens = &r->token, .batch = 1,
             .seq_len = 1, .width = 2, .vocab = 1);
    LAUNCHES(r, o, embedding_backward, .d_wte = r->h, .d_out = r->f, .tokens = &r->token,
             .batch = 1, .seq_len = 1, .width = 2, .vocab = 1);
    LAUNCHES(r, o, layernorm, .out = r->y, .mean = r->z, .rstd = r->w, .in = r->f, .gain = r->g,
             .bias = r->g, .rows = 1, .cols = 2, .eps = 1);
    LAUNCHES(r, o, layernorm_backward, .d_in = r->y, .d_gain = r->h, .d_bias = r->h + 2,
             .d_out = r->f, .in = r->f, .gain = r->g, .mean = r->z, .rstd = r->w, .rows = 1,
             .cols = 2);
    LAUNCHES(r, o, gelu, .out = r->y, .in = r->f, .elems = 2);
    LAUNCHES(r, o, gelu_backward, .d_in = r->y, .d_out = r->f, .in = r->g, .elems = 2);
    LAUNCHES(r, o, attention, .out = r->y, .lse = r->z, .q = r->f, .k = r->g, .v = r->h,
             .q_stride = 1, .k_stride = 1, .v_stride = 1, .batch = 1, .seq_len = 1, .n_head = 1,
             .n_kv_head = 1, .head_dim = 1, .scale = 1);
    LAUNCHES(r, o, attention_backward, .d_q = r->w, .d_k = r->w + 1, .d_v = r->w + 2, .d_out = r->f,
             .out = r->y, .lse = r->z, .q = r->f, .k = r->g, .v = r->h, .q_stride = 1,
             .k_stride = 1, .v_stride = 1, .batch = 1, .seq_len = 1, .n_head = 1, .n_kv_head = 1,
             .head_dim = 1, .scale = 1);
    LAUNCHES(r, o, cross_entropy, .loss = r->y, .logits = r->f, .targets = &r->token, .rows = 1,
             .vocab = 2);
}

static void launch_elementwise(rig *r)
{
    const ops *o = r->o;
    LAUNCHES(r, o, cast, .out = r->y, .in = r->f, .out_type = DTYPE_BF16, .elems = 2);
    LAUNCHES(r, o, add, .out = r->y, .a = r->f, .b = r->g, .elems = 2);
    LAUNCHES(r, o, scale, .x = r->y, .factor = 1, .elems = 2);
    LAUNCHES(r, o, sum_squares, .sum = &r->sum, .x = r->f, .elems = 2);
    LAUNCHES(r, o, clip_coef, .norm = r->y, .coef = r->z, .sum = &r->sum, .max_norm = 1);
    LAUNCHES(r, o, adamw, .param = r->y, .m = r->z, .v = r->w, .grad = r->f, .elems = 2, .eps = 1,
             .sqrt_bias2 = 1);
    LAUNCHES(r, o, sgd, .param = r->y, .grad = r->f, .elems = 2);
}

/* Every operation of a table is one launch that says what it is. One that is new in ops.h must be
 * added above. */
static void test_every_operation_tells(void **state)
{
    device *d;
    rig r = {.o = *state, .f = {1, 1}, .g = {1, 1}};
    OK(device_open(&(device_config){.kind = DEVICE_CPU, .n_threads = 1}, &d));
    r.s = device_compute_stream(d);
    const device_watch watch = {.self = &r.x, .issued = see};
    device_set_watch(d, &watch);
    launch_layers(&r);
    launch_elementwise(&r);
    /* what a table holds beside its operations: the name, and the sums */
    assert_int_equal(r.n_ops, sizeof(ops) / sizeof(void (*)(void)) - 2);
    LAUNCHES(&r, r.o->sums, add, .out = r.y, .a = r.f, .b = r.g, .elems = 2);
    uint16_t rounded[7];
    OK(r.o->sums->round(r.s, &(round_args){.out = rounded, .in = r.f, .elems = 7}));
    expect_work(&r.x.last, "cast", 0, 42);
    device_set_watch(d, NULL);
    device_close(d);
}

/* ---- the roof ------------------------------------------------------------------------------- */

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
    device *d;
    profile_roof roof = {0};
    OK(device_open(&(device_config){.kind = DEVICE_CPU, .n_threads = 1}, &d));
    stream *s = device_compute_stream(d);
    OK(ops_profile_roof(ops_cpu_fast(), s, false, &roof));
    assert_true(roof.flops_per_s > 1e7 && roof.flops_per_s < 1e15);
    assert_true(roof.bytes_per_s > 1e7 && roof.bytes_per_s < 1e14);
    assert_true(roof.bf16_flops_per_s == 0);
    ops watched = *ops_cpu_fast();
    watched.matmul = matmul_of_roof;
    bf16_products = 0;
    OK(ops_profile_roof(&watched, s, true, &roof));
    assert_true(roof.bf16_flops_per_s > 1e7 && roof.bf16_flops_per_s < 1e15);
    assert_in_range(bf16_products, 4, 1 << 24);
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 0);
    device_close(d);
}

int main(void)
{
    static ops tables[2];
    tables[0] = *ops_cpu_fast();
    tables[1] = *ops_cpu_portable();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_matmul_forms),
        cmocka_unit_test(test_bf16_flops),
        cmocka_unit_test_prestate(test_every_operation_tells, &tables[0]),
        cmocka_unit_test_prestate(test_every_operation_tells, &tables[1]),
        cmocka_unit_test(test_roof),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
