/* test_op_work.c -- the cost and the memory accesses of a call by formula; every operation reports
 * them when it is launched and writes nothing else; the roof. */
#include <math.h>
#include <string.h>
#include "common/ops/op_work.h"
#include "common/ops/profile_roof.h"
#include "tests/unit/unit_lib.h"

/* ---- formulas and accesses ------------------------------------------------------------------ */

/* Arrays of a call, by letter; their contents are not used. */
static char memory[9][1024];
enum { A, B, C, D, E, F, G, H, I };
#define AT(letter) ((void *)memory[letter])

/* touches: "A84w B60r", the bytes of each array and whether they are written or read; NULL: not
 * checked. */
static void expect_work(const op_work *w, const char *name, double flops, double bytes,
                        const char *touches)
{
    char got[256] = "";
    const work_cost *cost = &w->info.cost;
    assert_string_equal(w->info.key.name, name);
    if (cost->flops != flops || cost->bytes != bytes)
        fail_msg("%s: got %.17g FLOPs, %.17g bytes, expected %.17g, %.17g", name, cost->flops,
                 cost->bytes, flops, bytes);
    for (int i = 0; i < w->n_accesses && touches; i++) {
        const mem_access *a = &w->accesses[i];
        size_t used = strlen(got), at = (size_t)((const char *)a->ptr - memory[0]);
        assert_int_equal(at % sizeof memory[0], 0);
        snprintf(got + used, sizeof got - used, "%s%c%zu%c", i ? " " : "",
                 (char)('A' + at / sizeof memory[0]), a->bytes, a->writes ? 'w' : 'r');
    }
    if (touches && strcmp(got, touches) != 0)
        fail_msg("%s: got \"%s\", expected \"%s\"", name, got, touches);
}

/* WORK -- check the cost and the accesses of a call. COST -- check only its cost. */
#define WORK(op, flops, bytes, touches, ...)                                                       \
    do {                                                                                           \
        op_work work_ = op##_work(&(op##_args){__VA_ARGS__});                                      \
        expect_work(&work_, #op, flops, bytes, touches);                                           \
    } while (0)
#define COST(op, flops, bytes, ...) WORK(op, flops, bytes, NULL, __VA_ARGS__)

/* The figures are computed by hand: op_list.h has the formulas. */
TEST(test_matmul)
{
    WORK(matmul, 210, 4 * (15 + 35 + 21), "A84w B60r C140r", .out = AT(A), .a = AT(B), .b = AT(C),
         .m = 3, .n = 7, .k = 5);
    WORK(matmul, 0, 4 * 21, "A84w", .out = AT(A), .a = AT(B), .b = AT(C), .m = 3, .n = 7);
    COST(matmul, 210, 4 * (15 + 35 + 42), .m = 3, .n = 7, .k = 5, .accumulate = true);
    COST(matmul, 231, 4 * (15 + 35 + 7 + 21), .m = 3, .n = 7, .k = 5, .bias = AT(A));
    WORK(matmul, 252, 2 * (15 + 35 + 7 + 21 + 21), "A42w B30r C70r D14r E42r", .out = AT(A),
         .a = AT(B), .b = AT(C), .bias = AT(D), .residual = AT(E), .m = 3, .n = 7, .k = 5,
         .type = DTYPE_BF16, .out_type = DTYPE_BF16);
    WORK(matmul, 210, 2 * (15 + 35) + 4 * 42, "A84w B30r C70r", .out = AT(A), .a = AT(B),
         .b = AT(C), .m = 3, .n = 7, .k = 5, .accumulate = true, .type = DTYPE_BF16);
}

/* Rows of a begin 9 elements apart, rows of out and residual 11: elements count, and spans are
 * touched. Transposed, a is stored as 5 rows of 3. */
TEST(test_matmul_strides)
{
    WORK(matmul, 231, 4 * (15 + 35 + 21 + 21), "A116w B92r C140r D116r", .out = AT(A), .a = AT(B),
         .b = AT(C), .residual = AT(D), .m = 3, .n = 7, .k = 5, .a_stride = 9, .out_stride = 11);
    WORK(matmul, 210, 2 * (15 + 35) + 4 * 42, "A116w B78r C70r", .out = AT(A), .a = AT(B),
         .b = AT(C), .m = 3, .n = 7, .k = 5, .a_stride = 9, .out_stride = 11, .trans_a = true,
         .accumulate = true, .type = DTYPE_BF16);
    WORK(matmul, 0, 4 * 21, "A116w", .out = AT(A), .a = AT(B), .b = AT(C), .m = 3, .n = 7,
         .a_stride = 9, .out_stride = 11);
}

TEST(test_layers)
{
    const dtype bf16 = DTYPE_BF16;
    WORK(bias_backward, 15, 4 * (15 + 10), "A20w B60r", AT(A), AT(B), .rows = 3, .cols = 5);
    WORK(bias_backward, 15, 2 * 15 + 4 * 5, "A20w B30r", AT(A), AT(B), 3, 5, 0, true, bf16);
    COST(embedding, 30, 4 * (60 + 6 + 15), .wpe = AT(C), .batch = 2, .seq_len = 3, .width = 5);
    WORK(embedding, 0, 4 * (60 + 6), "A120w B220r D24r", AT(A), AT(B), NULL, AT(D), 2, 3, 5, 11,
         DTYPE_F32, {0, 0});
    WORK(embedding, 30, 4 * 6 + 2 * 75, "A60w B110r C30r D24r", AT(A), AT(B), AT(C), AT(D), 2, 3, 5,
         11, bf16, {0, 0});
    WORK(embedding_backward, 60, 4 * (90 + 6 + 30), "A220w B60w C120r D24r", AT(A), AT(B), AT(C),
         AT(D), 2, 3, 5, 11, 0, NULL, DTYPE_F32, {0, 0});
    COST(embedding_backward, 30, 4 * (90 + 6), .batch = 2, .seq_len = 3, .width = 5);
    WORK(embedding_backward, 60, 2 * 30 + 4 * (60 + 6 + 30), "A220w B60w C60r D24r", AT(A), AT(B),
         AT(C), AT(D), 2, 3, 5, 11, 0, NULL, bf16, {0, 0});
    COST(layernorm, 120, 4 * (30 + 10 + 6), .rows = 3, .cols = 5);
    WORK(layernorm, 120, 2 * 40 + 4 * 6, "A30w B12w C12w D30r E10r F10r", AT(A), AT(B), AT(C),
         AT(D), AT(E), AT(F), 3, 5, 1, bf16);
    COST(layernorm_backward, 270, 4 * (45 + 25 + 6), .rows = 3, .cols = 5);
    WORK(layernorm_backward, 285, 2 * (60 + 5) + 4 * (10 + 6),
         "A30w B20w C20w D30r E30r F10r G12r H12r I30r", AT(A), AT(B), AT(C), AT(D), AT(E), AT(F),
         AT(I), AT(G), AT(H), 3, 5, 0, true, bf16);
    COST(rmsnorm, 60, 4 * (30 + 5 + 3), .rows = 3, .cols = 5);
    COST(rmsnorm, 60, 2 * 35 + 4 * 3, .rows = 3, .cols = 5, .type = bf16);
    COST(rmsnorm_backward, 180, 4 * (45 + 5 + 10 + 3), .rows = 3, .cols = 5);
    COST(rmsnorm_backward, 195, 2 * (60 + 5) + 4 * (5 + 3), .rows = 3, .cols = 5,
         .d_residual = AT(A), .overwrite = true, .type = bf16);
    COST(rope, 3 * 48 + 8 * 24, 4 * 96, .batch = 2, .seq_len = 3, .n_head = 2, .head_dim = 4,
         .stride = 8);
    COST(swiglu, 35, 84, .elems = 7);
    COST(swiglu_backward, 98, 140, .elems = 7);
    COST(swiglu_backward, 98, 70, .elems = 7, .type = bf16);
    WORK(gelu, 63, 56, "A28w B28r", AT(A), AT(B), 7, DTYPE_F32);
    WORK(gelu, 63, 28, "A14w B14r", AT(A), AT(B), 7, bf16);
    WORK(gelu_backward, 133, 84, "A28w B28r C28r", AT(A), AT(B), AT(C), 7, DTYPE_F32);
    WORK(gelu_backward, 133, 42, "A14w B14r C14r", AT(A), AT(B), AT(C), 7, bf16);
}

/* B=2, T=3, H=2, Hkv=1, D=5: six rows of 10 or of 5 elements that begin 20 apart span 110 or 105
 * elements. Dv=3: out is dense with six rows of 6 elements, 36 in all; the rows of v, with 3
 * elements, span 103. */
TEST(test_attention)
{
    attention_shape shape = {20, 20, 20, 2, 3, 2, 1, 5, 3, 1, DTYPE_F32};
    const double flops = 2 * 2 * 9 * (5 + 3), back = 2 * 2 * 9 * (3 * 5 + 2 * 3);
    WORK(attention, flops, 4 * (6 * (10 + 5 + 3 + 6) + 12), "A144w B48w C440r D420r E412r", AT(A),
         AT(B), AT(C), AT(D), AT(E), shape);
    WORK(attention_backward, back, 4 * (2 * 6 * (10 + 5 + 3 + 6) + 12),
         "A440w B420w C412w D144r E144r F48r G440r H420r I412r", AT(A), AT(B), AT(C), AT(D), AT(E),
         AT(G), AT(H), AT(I), AT(F), shape, false);
    shape.type = DTYPE_BF16;
    WORK(attention, flops, 2 * 6 * 24 + 4 * 12, "A72w B48w C220r D210r E206r", AT(A), AT(B), AT(C),
         AT(D), AT(E), shape);
    WORK(attention_backward, back, 2 * 2 * 6 * 24 + 4 * 12,
         "A220w B210w C206w D72r E72r F48r G220r H210r I206r", AT(A), AT(B), AT(C), AT(D), AT(E),
         AT(G), AT(H), AT(I), AT(F), shape, false);
    WORK(attention_backward, back, 2 * 6 * (2 * 10 + 2 * 6 + 5 + 3) + 4 * (6 * 8 + 12),
         "A220w B420w C412w D72r E72r F48r G220r H210r I206r", AT(A), AT(B), AT(C), AT(D), AT(E),
         AT(G), AT(H), AT(I), AT(F), shape, true);
    shape.batch = 0;
    WORK(attention, 0, 0, "", AT(A), AT(B), AT(C), AT(D), AT(E), shape);
}

/* B=2, Cin=3, Cout=5, 4 x 6, K=2: n = 150, i = 144, q = 12, w = 60. */
TEST(test_images)
{
    const dtype bf16 = DTYPE_BF16;
    conv_shape shape = {2, 3, 5, 4, 6, 2, DTYPE_F32};
    WORK(conv2d, 150 * 25, 4 * (150 + 144 + 60 + 5), "A600w B576r C240r D20r", AT(A), AT(B), AT(C),
         AT(D), shape);
    COST(conv2d_backward, 2 * 2 * 150 * 12 + 150, 4 * (150 + 2 * 144 + 3 * 60 + 10), .d_in = AT(A),
         .d_weight = AT(B), .d_bias = AT(C), .shape = shape);
    COST(conv2d_backward, 2 * 150 * 12, 4 * (150 + 144 + 60), .d_in = AT(A), .shape = shape);
    COST(conv2d_backward, 2 * 150 * 12, 4 * (150 + 144 + 60), .d_weight = AT(A), .overwrite = true,
         .shape = shape);
    WORK(conv2d_backward, 2 * 150 * 12 + 150, 4 * (150 + 144 + 2 * 60 + 2 * 5),
         "B240w C20w D600r E576r", NULL, AT(B), AT(C), AT(D), AT(E), AT(F), false, shape);
    shape.type = bf16;
    COST(conv2d, 150 * 25, 2 * (150 + 144 + 60 + 5), .shape = shape);
    COST(conv2d_backward, 2 * 150 * 12 + 150, 2 * (150 + 144) + 4 * (2 * 60 + 2 * 5),
         .d_weight = AT(B), .d_bias = AT(C), .shape = shape);
    WORK(conv2d_backward, 2 * 150 * 12, 2 * (150 + 144 + 60), "A288w D300r F120r", AT(A), NULL,
         NULL, AT(D), AT(E), AT(F), false, shape);
    assert_true(conv2d_work(&(conv2d_args){.shape = shape}).info.cost.bf16_flops == 3600);
    WORK(max_pool2d, 0, 4 * (3 * 35 + 3 * 6), "A72w B420r", AT(A), AT(B), 3, 5, 7, DTYPE_F32);
    WORK(max_pool2d_backward, 0, 4 * (6 * 35 + 3 * 6), "A420w B72r C420r", AT(A), AT(B), AT(C), 3,
         5, 7, DTYPE_F32);
    COST(max_pool2d_backward, 0, 2 * (6 * 35 + 3 * 6), .planes = 3, .height = 5, .width = 7,
         .type = bf16);
    WORK(relu, 0, 56, "A28w B28r", AT(A), AT(B), 7, DTYPE_F32);
    WORK(relu_backward, 0, 84, "A28w B28r C28r", AT(A), AT(B), AT(C), 7, DTYPE_F32);
    COST(relu_backward, 0, 42, .elems = 7, .type = bf16);
    WORK(dropout, 21, 4 * 42, "A84w B84r", .out = AT(A), .in = AT(B), .samples = 3, .width = 7);
}

TEST(test_the_rest)
{
    const dtype bf16 = DTYPE_BF16;
    WORK(matmul_finish, 2 * 21, 4 * (21 + 42 + 7 + 21), "A84w B84w C28r D84r",
         {.out = AT(A), .bias = AT(C), .residual = AT(D), .m = 3, .n = 7}, AT(B));
    WORK(vocab_part, 3 * 15, 2 * 15 + 4 * (9 + 3), "A36w B38r C12r", AT(A), AT(B), AT(C), 3, 5, 7,
         bf16, {0, 0});
    WORK(cross_entropy, 60, 4 * (15 + 3 + 18), "E72r C60r D12r", .logits = AT(C), .targets = AT(D),
         .rows = 3, .vocab = 5, .parts = AT(E), .n_parts = 2);
    WORK(cross_entropy, 60, 4 * (15 + 3 + 1), "A4w C60r D12r", AT(A), NULL, AT(C), AT(D), 3, 5, 0,
         DTYPE_F32, NULL, 0, 0, NULL, 0, {0, 0});
    WORK(cross_entropy, 75, 4 * (30 + 3 + 1), "A4w B60w C60r D12r", AT(A), AT(B), AT(C), AT(D), 3,
         5, 0, DTYPE_F32, NULL, 0, 0, NULL, 0, {0, 0});
    WORK(cross_entropy, 75, 2 * 30 + 4 * (3 + 1), "A4w B30w C30r D12r", AT(A), AT(B), AT(C), AT(D),
         3, 5, 0, bf16, NULL, 0, 0, NULL, 0, {0, 0});
    /* three rows of 5 that begin 9 or 7 apart */
    WORK(cross_entropy, 75, 2 * 30 + 4 * (3 + 1), "A4w B38w C46r D12r", .loss = AT(A),
         .d_logits = AT(B), .logits = AT(C), .targets = AT(D), .rows = 3, .vocab = 5, .type = bf16,
         .logits_stride = 9, .d_logits_stride = 7);
    op_work total = cross_entropy_work(&(cross_entropy_args){
        .loss = AT(A), .logits = AT(C), .targets = AT(D), .rows = 3, .vocab = 5, .total = AT(E)});
    expect_work(&total, "cross_entropy", total.info.cost.flops, total.info.cost.bytes,
                "A4w E8w C60r D12r");
    WORK(cast, 0, 42, "A14w B28r", AT(A), AT(B), bf16, DTYPE_F32, 7);
    WORK(add, 7, 84, "A28w B28r C28r", AT(A), AT(B), AT(C), 7, DTYPE_F32);
    COST(add, 7, 84, .b = AT(C), .elems = 7, .round_to = bf16);
    WORK(add, 7, 56, "A28w B28r", AT(A), AT(B), NULL, 7, bf16);
    WORK(scale, 7, 56, "A28w", AT(A), 2, 7);
    COST(sum_squares, 14, 28, .elems = 7);
    COST(clip_coef, 4, 8 + sizeof(rsum), .max_norm = 1);
    op_work w = sum_squares_work(&(sum_squares_args){.sum = AT(A), .x = AT(B), .elems = 7});
    assert_int_equal(w.accesses[0].bytes, sizeof(rsum));
    assert_true(w.n_accesses == 2 && w.accesses[0].writes && w.accesses[1].bytes == 28);
    w = clip_coef_work(&(clip_coef_args){AT(A), AT(B), AT(C), 1});
    assert_int_equal(w.accesses[2].bytes, sizeof(rsum));
    assert_true(w.n_accesses == 3 && w.accesses[0].writes && w.accesses[1].writes);
    WORK(adamw, 112, 28 * 7, "A28w B28w C28w D28r E4r", .param = AT(A), .m = AT(B), .v = AT(C),
         .grad = AT(D), .grad_coef = AT(E), .elems = 7);
    WORK(sgd, 35, 84, "A28w B28r C4r", .param = AT(A), .grad = AT(B), .grad_coef = AT(C),
         .elems = 7);
    WORK(sgd, 49, 140, "A28w B28w C28r", .param = AT(A), .state = {AT(B)}, .grad = AT(C),
         .elems = 7);
    COST(sgd, 63, 140, .elems = 7, .state = {AT(A)}, .config = {.nesterov = true});
    WORK(adadelta, 133, 28 * 7, "A28w B28w C28w D28r E4r", .param = AT(A), .state = {AT(B), AT(C)},
         .grad = AT(D), .grad_coef = AT(E), .elems = 7);
}

TEST(test_matmul_forms)
{
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

/* Only the products count as bf16 FLOPs, not what is added to them. */
TEST(test_bf16_flops)
{
    float x = 0;
    matmul_args mm = {.bias = &x, .m = 3, .n = 7, .k = 5, .type = DTYPE_BF16};
    work_cost c = matmul_work(&mm).info.cost;
    assert_true(c.flops == 231 && c.bf16_flops == 210);
    mm.type = DTYPE_F32;
    c = matmul_work(&mm).info.cost;
    assert_true(c.flops == 231 && c.bf16_flops == 0);
}

/* ---- launches ------------------------------------------------------------------------------- */

/* The last launch reported to the watch, and the number of launches. */
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

/* The arrays that the operations work on. */
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

/* One more launch was reported, equal to `want`, and it changed only the memory it reports as
 * written. */
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

#define LAUNCHES_OF(r, table, op, ...)                                                             \
    do {                                                                                           \
        op##_args args_ = {__VA_ARGS__};                                                           \
        op_work want_ = op##_work(&args_);                                                         \
        rig before_ = *(r);                                                                        \
        OK((table)->op((r)->s, &args_));                                                           \
        expect_launch(r, &before_, &want_);                                                        \
        (r)->n_ops++;                                                                              \
    } while (0)

#define LAUNCHES(op, ...) LAUNCHES_OF(r, r->o, op, __VA_ARGS__)

static const attention_shape ONE_HEAD = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, DTYPE_F32};
static const conv_shape ONE_IMAGE = {1, 1, 1, 1, 2, 1, DTYPE_F32};

static void launch_layers(rig *r)
{
    const dtype t = DTYPE_F32;
    float *f = r->f, *g = r->g, *h = r->h, *y = r->y, *z = r->z, *w = r->w;
    LAUNCHES(matmul, y, f, g, NULL, NULL, 2, 2, 2, 0, 0, 0, false, false, false, t, t);
    LAUNCHES(matmul_finish, {.out = y, .bias = f, .m = 2, .n = 2}, w);
    LAUNCHES(vocab_part, (vocab_part *)y, f, &r->token, 1, 2, 0, t, {0, 0});
    LAUNCHES(bias_backward, h, g, 1, 2, 0, false, t);
    LAUNCHES(embedding, y, f, NULL, &r->token, 1, 1, 2, 1, t, {0, 0});
    LAUNCHES(embedding_backward, h, NULL, f, &r->token, 1, 1, 2, 1, 0, NULL, t, {0, 0});
    LAUNCHES(layernorm, y, z, w, f, g, g, 1, 2, 1, t);
    LAUNCHES(layernorm_backward, y, h, h + 2, f, f, g, NULL, z, w, 1, 2, 0, false, t);
    LAUNCHES(rmsnorm, y, w, f, g, 1, 2, 1, t);
    LAUNCHES(rmsnorm_backward, y, h, f, f, g, NULL, w, 1, 2, 0, false, t);
    LAUNCHES(rope, y, .stride = 2, .batch = 1, .seq_len = 1, .n_head = 1, .head_dim = 2);
    LAUNCHES(gelu, y, f, 2, t);
    LAUNCHES(gelu_backward, y, f, g, 2, t);
    LAUNCHES(swiglu, y, f, g, 2, t);
    LAUNCHES(swiglu_backward, y, z, f, f, g, 2, t);
    LAUNCHES(attention, y, z, f, g, h, ONE_HEAD);
    LAUNCHES(attention_backward, w, w + 1, w + 2, f, y, f, g, h, z, ONE_HEAD, false);
    LAUNCHES(cross_entropy, y, NULL, f, &r->token, 1, 2, 0, t, NULL, 0, 0, NULL, 0, {0, 0});
}

static void launch_the_rest(rig *r)
{
    const dtype t = DTYPE_F32;
    float *f = r->f, *g = r->g, *h = r->h, *y = r->y, *z = r->z, *w = r->w;
    LAUNCHES(conv2d, y, f, g, g, ONE_IMAGE);
    LAUNCHES(conv2d_backward, y, h, h + 1, f, f, g, false, ONE_IMAGE);
    LAUNCHES(max_pool2d, y, f, 1, 2, 2, t);
    LAUNCHES(max_pool2d_backward, y, g, f, 1, 2, 2, t);
    LAUNCHES(relu, y, f, 2, t);
    LAUNCHES(relu_backward, y, f, g, 2, t);
    LAUNCHES(dropout, y, f, .samples = 1, .width = 2, .p = 0.5f);
    LAUNCHES(cast, y, f, DTYPE_BF16, t, 2);
    LAUNCHES(add, y, f, g, 2, t);
    LAUNCHES(scale, y, 1, 2);
    LAUNCHES(sum_squares, .sum = &r->sum, .x = f, .elems = 2);
    LAUNCHES(clip_coef, y, z, &r->sum, 1);
    LAUNCHES(adamw, .param = y, .m = z, .v = w, .grad = f, .elems = 2, .eps = 1, .sqrt_bias2 = 1);
    LAUNCHES(sgd, .param = y, .grad = f, .elems = 2);
    LAUNCHES(adadelta, .param = y, .state = {z, w}, .grad = f, .elems = 2);
}

/* Every operation of a table is one launch that reports its work. A new operation of ops.h must be
 * added above. */
TEST_EACH(test_every_operation_tells,
          TEST_IN(test_every_operation_tells, "test_every_operation_tells (fast)", ops_cpu_fast)
              TEST_IN(test_every_operation_tells, "test_every_operation_tells (portable)",
                      ops_cpu_portable))
{
    device *d;
    rig r = {.o = ((const ops *(*)(void)) * state)(), .f = {1, 1}, .g = {1, 1}};
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d));
    r.s = device_compute_stream(d);
    const device_watch watch = {.self = &r.x, .issued = see};
    device_set_watch(d, &watch);
    launch_layers(&r);
    launch_the_rest(&r);
    /* a table also holds its name, the sums and leaves_sum */
    assert_int_equal(r.n_ops, sizeof(ops) / sizeof(void (*)(void)) - 3);
    LAUNCHES_OF(&r, r.o->sums, add, .out = r.y, .a = r.f, .b = r.g, .elems = 2);
    uint16_t rounded[7];
    OK(r.o->sums->cast(
        r.s, &(cast_args){.out = rounded, .in = r.f, .out_type = DTYPE_BF16, .elems = 7}));
    expect_work(&r.x.last, "cast", 0, 42, NULL);
    device_set_watch(d, NULL);
    device_close(d);
}

/* attention_backward reports its scratch for incomplete sums as an access, and holds this memory
 * only during the call. */
TEST(test_scratch_is_told)
{
    device *d;
    rig r = {.o = ops_cpu_portable(), .f = {1, 1}, .g = {1, 1}};
    attention_shape shape = ONE_HEAD;
    shape.type = DTYPE_BF16;
    OK(device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &d));
    const device_watch watch = {.self = &r.x, .issued = see};
    device_set_watch(d, &watch);
    OK(r.o->attention_backward(device_compute_stream(d),
                               &(attention_backward_args){r.w, r.w + 1, r.w + 2, r.f, r.y, r.f, r.g,
                                                          r.h, r.z, shape, false}));
    assert_int_equal(r.x.last.n_accesses, 10);
    assert_true(r.x.last.accesses[9].writes);
    assert_int_equal(r.x.last.accesses[9].bytes, attention_backward_scratch_bytes(&shape));
    assert_int_equal(ledger_read(device_ledger(d)).peak_bytes[MEM_OTHER],
                     attention_backward_scratch_bytes(&shape));
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 0);
    device_set_watch(d, NULL);
    device_close(d);
}

/* ---- which backends have an operation -------------------------------------------------------- */

/* The words of a column: NULL, or how the README goes on if calls are refused. */
#define BOTH                     NULL
#define EACH                     NULL
#define YES                      NULL
#define NO                       ""
#define NO_ABOVE(x, most, words) " with " words

/* Appends "`rope`, ..." to text for an operation that the column refuses. */
static void add_if_refused(char text[512], const char *op, const char *words)
{
    if (words != NULL)
        snprintf(text + strlen(text), 512 - strlen(text), "%s`%s`%s", *text ? ", " : "", op, words);
}

/* Asserts that the README says of the backend in column 1 that it refuses these, in any order. */
static void expect_documented(const char *backend, char *refused)
{
    char line[1024] = "", none[] = "none", *rest = *refused ? refused : none;
    FILE *f = fopen("common/ops/README.md", "r");
    assert_non_null(f);
    while (strncmp(line, backend, strlen(backend)) != 0 && fgets(line, sizeof line, f) != NULL)
        ;
    fclose(f);
    const char *cell = line + strlen(line) - strlen("|  |\n") - strlen(rest);
    assert_true(cell > line && *cell == '|');
    for (const char *word; (word = strsep(&rest, ",")) != NULL;)
        if (strstr(cell, word) == NULL)
            fail_msg("op_list.h says \"%s\", and README.md of %s: %s", word, backend, cell);
}

/* test_accel_ops.c calls the operations of a device and compares with the same README. */
TEST(test_refusals_are_documented)
{
    char cpu[512] = "", cuda[512] = "", npu[512] = "";
#define OP(op, on_cpu, on_cuda, on_npu, ...)                                                       \
    add_if_refused(cpu, #op, on_cpu);                                                              \
    add_if_refused(cuda, #op, on_cuda);                                                            \
    add_if_refused(npu, #op, on_npu);
#include "common/ops/op_list.h"
    expect_documented("| `cpu`", cpu);
    expect_documented("| `cuda`", cuda);
    expect_documented("| `npu`", npu);
}

/* ---- the roof ------------------------------------------------------------------------------- */

static unsigned bf16_products;

/* The fast product; counts the bf16 products. */
static fsdp_status matmul_of_roof(stream *s, const matmul_args *a)
{
    bf16_products += a->type == DTYPE_BF16;
    return ops_cpu_fast()->matmul(s, a);
}

TEST(test_roof)
{
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
    assert_uint_in_range(bf16_products, 4, 1 << 24);
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes, 0);
    device_close(d);
}

/* The fit goes through both copies. After a small copy that was held up there is a rate, too. */
TEST(test_copy_link)
{
    const virtual_link quiet = profile_copy_link(1e-5, 1e-5 + (32767 << 10) / 8e9);
    assert_true(fabs(quiet.latency_s - 1e-5) < 1e-12);
    assert_true(fabs(quiet.bytes_per_s - 8e9) < 1);
    const virtual_link busy = profile_copy_link(0.05, 0.004);
    assert_true(busy.latency_s == 0.002);
    assert_true(fabs(busy.bytes_per_s - (32767 << 10) / 0.002) < 1);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
