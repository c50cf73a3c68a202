/* test_op_work.c -- what a call costs and touches by formula, that every operation says so when it
 * is launched and writes nothing else, and the roof. */
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
        op_work work_ = op##_work(&(op##_args){__VA_ARGS__});                                      \
        expect_work(&work_.info, #op, flops, bytes);                                               \
    } while (0)

/* Figures by hand, from the table at the top of op_work.c. */
static void test_formulas(void **state)
{
    (void)state;
    float x = 0;
    COST(matmul, 210, 4 * (15 + 35 + 21), .m = 3, .n = 7, .k = 5);
    COST(matmul, 210, 4 * (15 + 35 + 42), .m = 3, .n = 7, .k = 5, .accumulate = true);
    COST(matmul, 231, 4 * (15 + 35 + 7 + 21), .m = 3, .n = 7, .k = 5, .bias = &x);
    COST(matmul, 252, 2 * (15 + 35 + 7 + 21 + 21), .m = 3, .n = 7, .k = 5, .bias = &x,
         .residual = &x, .type = DTYPE_BF16, .out_type = DTYPE_BF16);
    COST(matmul, 210, 2 * (15 + 35) + 4 * 42, .m = 3, .n = 7, .k = 5, .accumulate = true,
         .type = DTYPE_BF16);
    COST(bias_backward, 15, 4 * (15 + 10), .rows = 3, .cols = 5);
    COST(bias_backward, 15, 2 * 15 + 4 * 5, .rows = 3, .cols = 5, .overwrite = true,
         .type = DTYPE_BF16);
    COST(embedding, 30, 4 * (60 + 6 + 15), .wpe = &x, .batch = 2, .seq_len = 3, .width = 5);
    COST(embedding, 0, 4 * (60 + 6), .batch = 2, .seq_len = 3, .width = 5);
    COST(embedding, 30, 4 * 6 + 2 * 75, .wpe = &x, .batch = 2, .seq_len = 3, .width = 5,
         .type = DTYPE_BF16);
    COST(embedding_backward, 60, 4 * (90 + 6 + 30), .d_wpe = &x, .batch = 2, .seq_len = 3,
         .width = 5);
    COST(embedding_backward, 30, 4 * (90 + 6), .batch = 2, .seq_len = 3, .width = 5);
    COST(embedding_backward, 60, 2 * 30 + 4 * (60 + 6 + 30), .d_wpe = &x, .batch = 2, .seq_len = 3,
         .width = 5, .vocab = 11, .type = DTYPE_BF16);
    COST(layernorm, 120, 4 * (30 + 10 + 6), .rows = 3, .cols = 5);
    COST(layernorm, 120, 2 * 40 + 4 * 6, .rows = 3, .cols = 5, .type = DTYPE_BF16);
    COST(layernorm_backward, 270, 4 * (45 + 25 + 6), .rows = 3, .cols = 5);
    COST(layernorm_backward, 285, 2 * (60 + 5) + 4 * (10 + 6), .rows = 3, .cols = 5,
         .d_residual = &x, .overwrite = true, .type = DTYPE_BF16);
    COST(rmsnorm, 60, 4 * (30 + 5 + 3), .rows = 3, .cols = 5);
    COST(rmsnorm, 60, 2 * 35 + 4 * 3, .rows = 3, .cols = 5, .type = DTYPE_BF16);
    COST(rmsnorm_backward, 180, 4 * (45 + 5 + 10 + 3), .rows = 3, .cols = 5);
    COST(rmsnorm_backward, 195, 2 * (60 + 5) + 4 * (5 + 3), .rows = 3, .cols = 5, .d_residual = &x,
         .overwrite = true, .type = DTYPE_BF16);
    COST(rope, 3 * 48 + 8 * 24, 4 * 96, .batch = 2, .seq_len = 3, .n_head = 2, .head_dim = 4,
         .stride = 8);
    COST(swiglu, 35, 84, .elems = 7);
    COST(swiglu_backward, 98, 140, .elems = 7);
    COST(swiglu_backward, 98, 70, .elems = 7, .type = DTYPE_BF16);
    COST(gelu, 63, 56, .elems = 7);
    COST(gelu, 63, 28, .elems = 7, .type = DTYPE_BF16);
    COST(gelu_backward, 133, 84, .elems = 7);
    COST(gelu_backward, 133, 42, .elems = 7, .type = DTYPE_BF16);
}

static void test_formulas_of_attention(void **state)
{
    (void)state;
    /* B=2, T=3, H=4, Hkv=2, D=Dv=5; then Dv=7 */
    attention_shape shape = {
        .batch = 2, .seq_len = 3, .n_head = 4, .n_kv_head = 2, .head_dim = 5, .v_head_dim = 5};
    COST(attention, 2 * 2 * 4 * 9 * 5, 4 * (30 * 12 + 24), .shape = shape);
    COST(attention_backward, 5 * 2 * 4 * 9 * 5, 4 * (30 * 24 + 24), .shape = shape);
    shape.type = DTYPE_BF16;
    COST(attention, 2 * 2 * 4 * 9 * 5, 2 * 30 * 12 + 4 * 24, .shape = shape);
    COST(attention_backward, 5 * 2 * 4 * 9 * 5, 2 * 30 * 24 + 4 * 24, .shape = shape);
    shape.v_head_dim = 7;
    COST(attention, 2 * 4 * 9 * (5 + 7), 2 * 6 * 12 * 6 + 4 * 24, .shape = shape);
    COST(attention_backward, 2 * 4 * 9 * (3 * 5 + 2 * 7), 2 * 6 * 12 * 12 + 4 * 24, .shape = shape);
}

static void test_formulas_of_images(void **state)
{
    (void)state;
    float x = 0;
    /* B=2, Cin=3, Cout=5, 4 x 6, K=2: n = 150, i = 144, q = 12, w = 60 */
    conv_shape shape = {2, 3, 5, 4, 6, 2, DTYPE_F32};
    COST(conv2d, 150 * 25, 4 * (150 + 144 + 60 + 5), .shape = shape);
    COST(conv2d_backward, 2 * 2 * 150 * 12 + 150, 4 * (150 + 2 * 144 + 3 * 60 + 10), .d_in = &x,
         .d_weight = &x, .d_bias = &x, .shape = shape);
    COST(conv2d_backward, 2 * 150 * 12, 4 * (150 + 144 + 60), .d_in = &x, .shape = shape);
    COST(conv2d_backward, 2 * 150 * 12, 4 * (150 + 144 + 60), .d_weight = &x, .overwrite = true,
         .shape = shape);
    shape.type = DTYPE_BF16;
    COST(conv2d, 150 * 25, 2 * (150 + 144 + 60 + 5), .shape = shape);
    COST(conv2d_backward, 2 * 150 * 12 + 150, 2 * (150 + 144) + 4 * (2 * 60 + 2 * 5),
         .d_weight = &x, .d_bias = &x, .shape = shape);
    assert_true(conv2d_work(&(conv2d_args){.shape = shape}).info.cost.bf16_flops == 3600);
    COST(max_pool2d, 0, 4 * (3 * 35 + 3 * 6), .planes = 3, .height = 5, .width = 7);
    COST(max_pool2d_backward, 0, 2 * (6 * 35 + 3 * 6), .planes = 3, .height = 5, .width = 7,
         .type = DTYPE_BF16);
    COST(relu, 0, 56, .elems = 7);
    COST(relu_backward, 0, 42, .elems = 7, .type = DTYPE_BF16);
    COST(dropout, 21, 4 * 42, .samples = 3, .width = 7);
}

static void test_formulas_of_the_rest(void **state)
{
    (void)state;
    float x = 0;
    COST(cross_entropy, 60, 4 * (15 + 3 + 1), .rows = 3, .vocab = 5);
    COST(cross_entropy, 75, 2 * 30 + 4 * (3 + 1), .rows = 3, .vocab = 5, .d_logits = &x,
         .type = DTYPE_BF16);
    COST(cast, 0, 42, .elems = 7, .out_type = DTYPE_BF16);
    COST(add, 7, 84, .b = &x, .elems = 7);
    COST(scale, 7, 56, .elems = 7);
    COST(sum_squares, 14, 28, .elems = 7);
    COST(clip_coef, 4, 8 + sizeof(rsum), .max_norm = 1);
    COST(adamw, 112, 28 * 7, .elems = 7);
    COST(sgd, 35, 84, .elems = 7);
    COST(sgd, 49, 140, .elems = 7, .momentum_buffer = &x);
    COST(sgd, 63, 140, .elems = 7, .momentum_buffer = &x, .nesterov = true);
    COST(adadelta, 133, 28 * 7, .elems = 7);
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
                           .info.key;
        assert_string_equal(key.form, FORMS[i]);
        assert_true(key.m == 1 && key.n == 2 && key.k == 3);
    }
    work_key bf16 = matmul_work(&(matmul_args){.type = DTYPE_BF16}).info.key;
    assert_string_equal(bf16.form, "NN bf16");
}

/* Which FLOPs are of bf16: the products, not what is added to them. */
static void test_bf16_flops(void **state)
{
    (void)state;
    float x = 0;
    matmul_args mm = {.bias = &x, .m = 3, .n = 7, .k = 5, .type = DTYPE_BF16};
    work_cost c = matmul_work(&mm).info.cost;
    assert_true(c.flops == 231 && c.bf16_flops == 210);
    mm.type = DTYPE_F32;
    c = matmul_work(&mm).info.cost;
    assert_true(c.flops == 231 && c.bf16_flops == 0);
}

/* ---- accesses ------------------------------------------------------------------------------- */

/* Arrays of a call, by letter; nobody reads them. */
static char memory[9][1024];
#define AT(letter) ((void *)memory[(letter) - 'A'])

/* "A84w B60r": bytes of each array, written or read. */
static void expect_accesses(const op_work *w, const char *want)
{
    char got[256] = "";
    for (int i = 0; i < w->n_accesses; i++) {
        const mem_access *a = &w->accesses[i];
        size_t used = strlen(got), at = (size_t)((const char *)a->ptr - memory[0]);
        assert_int_equal(at % sizeof memory[0], 0);
        snprintf(got + used, sizeof got - used, "%s%c%zu%c", i ? " " : "",
                 (char)('A' + at / sizeof memory[0]), a->bytes, a->writes ? 'w' : 'r');
    }
    if (strcmp(got, want) != 0)
        fail_msg("%s: got \"%s\", expected \"%s\"", w->info.key.name, got, want);
}

#define TOUCHES(op, want, ...)                                                                     \
    do {                                                                                           \
        op_work work_ = op##_work(&(op##_args){__VA_ARGS__});                                      \
        expect_accesses(&work_, want);                                                             \
    } while (0)

static void test_accesses_of_layers(void **state)
{
    (void)state;
    TOUCHES(matmul, "A84w B60r C140r", .out = AT('A'), .a = AT('B'), .b = AT('C'), .m = 3, .n = 7,
            .k = 5);
    TOUCHES(matmul, "A84w B30r C70r", .out = AT('A'), .a = AT('B'), .b = AT('C'), .m = 3, .n = 7,
            .k = 5, .type = DTYPE_BF16);
    TOUCHES(matmul, "A42w B30r C70r D14r E42r", .out = AT('A'), .a = AT('B'), .b = AT('C'),
            .bias = AT('D'), .residual = AT('E'), .m = 3, .n = 7, .k = 5, .type = DTYPE_BF16,
            .out_type = DTYPE_BF16);
    TOUCHES(matmul, "A84w", .out = AT('A'), .a = AT('B'), .b = AT('C'), .m = 3, .n = 7);
    TOUCHES(bias_backward, "A20w B60r", .d_bias = AT('A'), .d_out = AT('B'), .rows = 3, .cols = 5);
    TOUCHES(bias_backward, "A20w B30r", .d_bias = AT('A'), .d_out = AT('B'), .rows = 3, .cols = 5,
            .type = DTYPE_BF16);
    TOUCHES(embedding, "A60w B110r C30r D24r", .out = AT('A'), .wte = AT('B'), .wpe = AT('C'),
            .tokens = AT('D'), .batch = 2, .seq_len = 3, .width = 5, .vocab = 11,
            .type = DTYPE_BF16);
    TOUCHES(embedding, "A120w B220r D24r", .out = AT('A'), .wte = AT('B'), .tokens = AT('D'),
            .batch = 2, .seq_len = 3, .width = 5, .vocab = 11);
    embedding_backward_args e = {.d_wte = AT('A'),
                                 .d_wpe = AT('B'),
                                 .d_out = AT('C'),
                                 .tokens = AT('D'),
                                 .batch = 2,
                                 .seq_len = 3,
                                 .width = 5,
                                 .vocab = 11};
    op_work w = embedding_backward_work(&e);
    expect_accesses(&w, "A220w B60w C120r D24r");
    e.type = DTYPE_BF16;
    w = embedding_backward_work(&e);
    expect_accesses(&w, "A220w B60w C60r D24r");
    TOUCHES(layernorm, "A30w B12w C12w D30r E10r F10r", .out = AT('A'), .mean = AT('B'),
            .rstd = AT('C'), .in = AT('D'), .gain = AT('E'), .bias = AT('F'), .rows = 3, .cols = 5,
            .type = DTYPE_BF16);
    TOUCHES(layernorm_backward, "A30w B20w C20w D30r E30r F10r G12r H12r I30r", .d_in = AT('A'),
            .d_gain = AT('B'), .d_bias = AT('C'), .d_out = AT('D'), .in = AT('E'), .gain = AT('F'),
            .mean = AT('G'), .rstd = AT('H'), .d_residual = AT('I'), .rows = 3, .cols = 5,
            .type = DTYPE_BF16);
}

/* B=2, T=3, H=2, Hkv=1, D=5: six rows of 10 and of 5 elements, 20 apart: 110 and 105 elements.
 * Dv=3: of 6 and 3 elements: 36 and 103. */
static void test_accesses_of_attention(void **state)
{
    (void)state;
    attention_shape shape = {.q_stride = 20,
                             .k_stride = 20,
                             .v_stride = 20,
                             .batch = 2,
                             .seq_len = 3,
                             .n_head = 2,
                             .n_kv_head = 1,
                             .head_dim = 5,
                             .v_head_dim = 3};
    attention_args a = {AT('A'), AT('B'), AT('C'), AT('D'), AT('E'), shape};
    attention_backward_args b = {AT('A'), AT('B'), AT('C'), AT('D'), AT('E'),
                                 AT('G'), AT('H'), AT('I'), AT('F'), shape};
    op_work w = attention_work(&a), back = attention_backward_work(&b);
    expect_accesses(&w, "A144w B48w C440r D420r E412r");
    expect_accesses(&back, "A440w B420w C412w D144r E144r F48r G440r H420r I412r");
    a.shape.type = b.shape.type = DTYPE_BF16;
    w = attention_work(&a), back = attention_backward_work(&b);
    expect_accesses(&w, "A72w B48w C220r D210r E206r");
    expect_accesses(&back, "A220w B210w C206w D72r E72r F48r G220r H210r I206r");
    a.shape.batch = 0;
    w = attention_work(&a);
    expect_accesses(&w, "");
}

static void test_accesses_of_elements(void **state)
{
    (void)state;
    TOUCHES(gelu, "A28w B28r", .out = AT('A'), .in = AT('B'), .elems = 7);
    TOUCHES(gelu, "A14w B14r", .out = AT('A'), .in = AT('B'), .elems = 7, .type = DTYPE_BF16);
    TOUCHES(gelu_backward, "A28w B28r C28r", .d_in = AT('A'), .d_out = AT('B'), .in = AT('C'),
            .elems = 7);
    TOUCHES(cross_entropy, "A4w B60w C60r D12r", .loss = AT('A'), .d_logits = AT('B'),
            .logits = AT('C'), .targets = AT('D'), .rows = 3, .vocab = 5);
    TOUCHES(cross_entropy, "A4w B30w C30r D12r", .loss = AT('A'), .d_logits = AT('B'),
            .logits = AT('C'), .targets = AT('D'), .rows = 3, .vocab = 5, .type = DTYPE_BF16);
    TOUCHES(cross_entropy, "A4w E8w C60r D12r", .loss = AT('A'), .logits = AT('C'),
            .targets = AT('D'), .rows = 3, .vocab = 5, .total = AT('E'));
    TOUCHES(gelu_backward, "A14w B14r C14r", .d_in = AT('A'), .d_out = AT('B'), .in = AT('C'),
            .elems = 7, .type = DTYPE_BF16);
    TOUCHES(conv2d, "A600w B576r C240r D20r", .out = AT('A'), .in = AT('B'), .weight = AT('C'),
            .bias = AT('D'), .shape = {2, 3, 5, 4, 6, 2, DTYPE_F32});
    TOUCHES(conv2d_backward, "A288w D300r F120r", .d_in = AT('A'), .d_out = AT('D'), .in = AT('E'),
            .weight = AT('F'), .shape = {2, 3, 5, 4, 6, 2, DTYPE_BF16});
    TOUCHES(conv2d_backward, "B240w C20w D600r E576r", .d_weight = AT('B'), .d_bias = AT('C'),
            .d_out = AT('D'), .in = AT('E'), .weight = AT('F'),
            .shape = {2, 3, 5, 4, 6, 2, DTYPE_F32});
    TOUCHES(max_pool2d, "A72w B420r", .out = AT('A'), .in = AT('B'), .planes = 3, .height = 5,
            .width = 7);
    TOUCHES(max_pool2d_backward, "A420w B72r C420r", .d_in = AT('A'), .d_out = AT('B'),
            .in = AT('C'), .planes = 3, .height = 5, .width = 7);
    TOUCHES(relu, "A28w B28r", .out = AT('A'), .in = AT('B'), .elems = 7);
    TOUCHES(relu_backward, "A28w B28r C28r", .d_in = AT('A'), .d_out = AT('B'), .in = AT('C'),
            .elems = 7);
    TOUCHES(dropout, "A84w B84r", .out = AT('A'), .in = AT('B'), .samples = 3, .width = 7);
    TOUCHES(cast, "A14w B28r", .out = AT('A'), .in = AT('B'), .out_type = DTYPE_BF16, .elems = 7);
    TOUCHES(add, "A28w B28r C28r", .out = AT('A'), .a = AT('B'), .b = AT('C'), .elems = 7);
    TOUCHES(add, "A28w B28r", .out = AT('A'), .a = AT('B'), .elems = 7, .round_to = DTYPE_BF16);
    TOUCHES(scale, "A28w", .x = AT('A'), .elems = 7);
    op_work w = sum_squares_work(&(sum_squares_args){.sum = AT('A'), .x = AT('B'), .elems = 7});
    assert_int_equal(w.accesses[0].bytes, sizeof(rsum));
    assert_true(w.n_accesses == 2 && w.accesses[0].writes && w.accesses[1].bytes == 28);
    w = clip_coef_work(&(clip_coef_args){.norm = AT('A'), .coef = AT('B'), .sum = AT('C')});
    assert_int_equal(w.accesses[2].bytes, sizeof(rsum));
    assert_true(w.n_accesses == 3 && w.accesses[0].writes && w.accesses[1].writes);
    TOUCHES(adamw, "A28w B28w C28w D28r E4r", .param = AT('A'), .m = AT('B'), .v = AT('C'),
            .grad = AT('D'), .grad_coef = AT('E'), .elems = 7);
    TOUCHES(sgd, "A28w B28r C4r", .param = AT('A'), .grad = AT('B'), .grad_coef = AT('C'),
            .elems = 7);
    TOUCHES(sgd, "A28w B28w C28r", .param = AT('A'), .momentum_buffer = AT('B'), .grad = AT('C'),
            .elems = 7);
    TOUCHES(adadelta, "A28w B28w C28w D28r E4r", .param = AT('A'), .square_avg = AT('B'),
            .acc_delta = AT('C'), .grad = AT('D'), .grad_coef = AT('E'), .elems = 7);
}

/* ---- launches ------------------------------------------------------------------------------- */

/* The last launch that the device was told of, and how many there were. */
typedef struct seen {
    int n;
    op_work last;
} seen;

static uint64_t see(void *self, const device_act *act)
{
    seen *x = self;
    if (act->kind == ACT_LAUNCH) {
        x->n++;
        x->last = (op_work){.info = act->work, .n_accesses = act->n_accesses};
        memcpy(x->last.accesses, act->accesses, (size_t)act->n_accesses * sizeof *act->accesses);
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

static bool is_told(const op_work *w, const char *at)
{
    for (int i = 0; i < w->n_accesses; i++) {
        const mem_access *a = &w->accesses[i];
        if (a->writes && at >= (const char *)a->ptr && at < (const char *)a->ptr + a->bytes)
            return true;
    }
    return false;
}

/* One more launch, told as `want`; it changed only what it told that it writes. */
static void expect_launch(const rig *r, const rig *before, const op_work *want)
{
    const op_work *told = &r->x.last;
    const char *now = (const char *)&r->f, *then = (const char *)&before->f;
    assert_int_equal(r->x.n, before->x.n + 1);
    assert_memory_equal(&told->info, &want->info, sizeof want->info);
    assert_int_equal(told->n_accesses, want->n_accesses);
    for (int i = 0; i < want->n_accesses; i++) {
        assert_ptr_equal(told->accesses[i].ptr, want->accesses[i].ptr);
        assert_int_equal(told->accesses[i].bytes, want->accesses[i].bytes);
        assert_int_equal(told->accesses[i].writes, want->accesses[i].writes);
    }
    for (size_t i = 0; i < sizeof *r - offsetof(rig, f); i++)
        if (now[i] != then[i] && !is_told(told, now + i))
            fail_msg("%s: wrote byte %zu of the arrays, and did not tell", told->info.key.name, i);
}

#define LAUNCHES(r, table, op, ...)                                                                \
    do {                                                                                           \
        op##_args args_ = {__VA_ARGS__};                                                           \
        op_work want_ = op##_work(&args_);                                                         \
        rig before_ = *(r);                                                                        \
        OK((table)->op((r)->s, &args_));                                                           \
        expect_launch(r, &before_, &want_);                                                        \
        (r)->n_ops++;                                                                              \
    } while (0)

static const attention_shape ONE_HEAD = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, DTYPE_F32};

static void launch_layers(rig *r)
{
    const ops *o = r->o;
    LAUNCHES(r, o, matmul, .out = r->y, .a = r->f, .b = r->g, .m = 2, .n = 2, .k = 2);
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
             .shape = ONE_HEAD);
    LAUNCHES(r, o, attention_backward, .d_q = r->w, .d_k = r->w + 1, .d_v = r->w + 2, .d_out = r->f,
             .out = r->y, .lse = r->z, .q = r->f, .k = r->g, .v = r->h, .shape = ONE_HEAD);
    LAUNCHES(r, o, cross_entropy, .loss = r->y, .logits = r->f, .targets = &r->token, .rows = 1,
             .vocab = 2);
}

static void launch_llama(rig *r)
{
    const ops *o = r->o;
    LAUNCHES(r, o, rmsnorm, .out = r->y, .rstd = r->w, .in = r->f, .gain = r->g, .rows = 1,
             .cols = 2, .eps = 1);
    LAUNCHES(r, o, rmsnorm_backward, .d_in = r->y, .d_gain = r->h, .d_out = r->f, .in = r->f,
             .gain = r->g, .rstd = r->w, .rows = 1, .cols = 2);
    LAUNCHES(r, o, rope, .x = r->y, .stride = 2, .batch = 1, .seq_len = 1, .n_head = 1,
             .head_dim = 2);
    LAUNCHES(r, o, swiglu, .out = r->y, .gate = r->f, .up = r->g, .elems = 2);
    LAUNCHES(r, o, swiglu_backward, .d_gate = r->y, .d_up = r->z, .d_out = r->f, .gate = r->f,
             .up = r->g, .elems = 2);
}

static const conv_shape ONE_IMAGE = {1, 1, 1, 1, 2, 1, DTYPE_F32};

static void launch_mnist(rig *r)
{
    const ops *o = r->o;
    LAUNCHES(r, o, conv2d, .out = r->y, .in = r->f, .weight = r->g, .bias = r->g,
             .shape = ONE_IMAGE);
    LAUNCHES(r, o, conv2d_backward, .d_in = r->y, .d_weight = r->h, .d_bias = r->h + 1,
             .d_out = r->f, .in = r->f, .weight = r->g, .shape = ONE_IMAGE);
    LAUNCHES(r, o, max_pool2d, .out = r->y, .in = r->f, .planes = 1, .height = 2, .width = 2);
    LAUNCHES(r, o, max_pool2d_backward, .d_in = r->y, .d_out = r->g, .in = r->f, .planes = 1,
             .height = 2, .width = 2);
    LAUNCHES(r, o, relu, .out = r->y, .in = r->f, .elems = 2);
    LAUNCHES(r, o, relu_backward, .d_in = r->y, .d_out = r->f, .in = r->g, .elems = 2);
    LAUNCHES(r, o, dropout, .out = r->y, .in = r->f, .samples = 1, .width = 2, .p = 0.5f);
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
    LAUNCHES(r, o, adadelta, .param = r->y, .square_avg = r->z, .acc_delta = r->w, .grad = r->f,
             .elems = 2);
}

/* Every operation of a table is one launch that says what it is. One that is new in ops.h must be
 * added above. */
static void test_every_operation_tells(void **state)
{
    device *d;
    rig r = {.o = *state, .f = {1, 1}, .g = {1, 1}};
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d));
    r.s = device_compute_stream(d);
    const device_watch watch = {.self = &r.x, .issued = see};
    device_set_watch(d, &watch);
    launch_layers(&r);
    launch_llama(&r);
    launch_mnist(&r);
    launch_elementwise(&r);
    /* what a table holds beside its operations: the name, and the sums */
    assert_int_equal(r.n_ops, sizeof(ops) / sizeof(void (*)(void)) - 2);
    LAUNCHES(&r, r.o->sums, add, .out = r.y, .a = r.f, .b = r.g, .elems = 2);
    uint16_t rounded[7];
    OK(r.o->sums->cast(
        r.s, &(cast_args){.out = rounded, .in = r.f, .out_type = DTYPE_BF16, .elems = 7}));
    expect_work(&r.x.last.info, "cast", 0, 42);
    device_set_watch(d, NULL);
    device_close(d);
}

/* Sums of attention_backward that are not complete yet are an access too, and memory for the time
 * of the call. */
static void test_scratch_is_told(void **state)
{
    (void)state;
    device *d;
    rig r = {.o = ops_cpu_portable(), .f = {1, 1}, .g = {1, 1}};
    attention_shape shape = ONE_HEAD;
    shape.type = DTYPE_BF16;
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d));
    const device_watch watch = {.self = &r.x, .issued = see};
    device_set_watch(d, &watch);
    OK(r.o->attention_backward(
        device_compute_stream(d),
        &(attention_backward_args){r.w, r.w + 1, r.w + 2, r.f, r.y, r.f, r.g, r.h, r.z, shape}));
    assert_int_equal(r.x.last.n_accesses, 10);
    assert_true(r.x.last.accesses[9].writes);
    assert_int_equal(r.x.last.accesses[9].bytes, attention_backward_scratch_bytes(&shape));
    assert_int_equal(ledger_read(device_ledger(d)).peak_bytes[MEM_OTHER],
                     attention_backward_scratch_bytes(&shape));
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 0);
    device_set_watch(d, NULL);
    device_close(d);
}

/* ---- the roof ------------------------------------------------------------------------------- */

static unsigned bf16_products;

/* Products of fp32, and of bf16. */
static fsdp_status matmul_of_roof(stream *s, const matmul_args *a)
{
    bf16_products += a->type == DTYPE_BF16;
    return ops_cpu_fast()->matmul(s, a);
}

static void test_roof(void **state)
{
    (void)state;
    device *d;
    profile_roof roof = {0};
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d));
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
        cmocka_unit_test(test_formulas_of_attention),
        cmocka_unit_test(test_formulas_of_images),
        cmocka_unit_test(test_formulas_of_the_rest),
        cmocka_unit_test(test_matmul_forms),
        cmocka_unit_test(test_bf16_flops),
        cmocka_unit_test(test_accesses_of_layers),
        cmocka_unit_test(test_accesses_of_attention),
        cmocka_unit_test(test_accesses_of_elements),
        cmocka_unit_test_prestate(test_every_operation_tells, &tables[0]),
        cmocka_unit_test_prestate(test_every_operation_tells, &tables[1]),
        cmocka_unit_test(test_scratch_is_told),
        cmocka_unit_test(test_roof),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
