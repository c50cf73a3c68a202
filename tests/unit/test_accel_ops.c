/* test_accel_ops.c -- the portable operations and the vector sums of the device that FSDP_DEVICE
 * names must give the CPU's bits. If a device has one table only, its sums and elementwise
 * operations are portable, and the other operations are near the CPU's. test_ops_double.c has
 * bounds for the larger operations. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/ops/op_work.h"
#include "common/sum/sum_run.h"
#include "tests/unit/ops_check_lib.h"
#include "tests/unit/target_lib.h"

/* The device under test and the CPU, each with its compute stream and its portable table, or its
 * only table. */
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
    target.o = target_ops();
    cpu.s = device_compute_stream(cpu.d);
    cpu.o = ops_cpu_portable();
    *state = NULL;
    return 0;
}

static int teardown(void **state)
{
    const bool is_empty = ledger_read(device_ledger(target.d)).live_total_bytes == 0 &&
                          ledger_read(device_host_ledger(target.d)).live_total_bytes == 0;
    device_close(target.d);
    device_close(cpu.d);
    return is_empty ? 0 : -1;
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

/* Asserts that both devices hold the same bytes. */
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

/* ---- a call on both sides -------------------------------------------------------------------- */

enum { MOST_ARRAYS = 100 };

/* The arrays of one call on one side. */
typedef struct arrays {
    const side *x;
    void *ptr[MOST_ARRAYS];
    size_t bytes[MOST_ARRAYS];
    int n;
} arrays;

static void *put(arrays *a, const void *host, size_t bytes)
{
    assert_true(a->n < MOST_ARRAYS);
    a->bytes[a->n] = bytes;
    return a->ptr[a->n++] = copy_to(a->x, host, bytes);
}

/* Normal values times std, stored as t. Every array has different values. */
static void *values(arrays *a, size_t elems, float std, dtype t)
{
    float *vec = normals(77 + (uint64_t)a->n, std, elems);
    uint16_t *rounded = malloc((elems + 1) * sizeof *rounded);
    for (size_t i = 0; i < elems; i++)
        rounded[i] = bf16_from_f32(vec[i]);
    void *there = put(a, t == DTYPE_F32 ? (void *)vec : rounded, elems * dtype_bytes(t));
    free(rounded);
    free(vec);
    return there;
}

static void arrays_free(arrays *a)
{
    while (a->n > 0)
        device_free(a->x->s, a->ptr[--a->n]);
}

typedef void (*call_fn)(arrays *a, dtype type, int variant);

/* Runs one call on both sides, in fp32 and in bf16, and compares all arrays of the two calls. */
static void both(const char *what, call_fn call, int n_variants)
{
    for (int v = 0; v < 2 * n_variants; v++) {
        const dtype type = v % 2 ? DTYPE_BF16 : DTYPE_F32;
        arrays got = {.x = &target}, expected = {.x = &cpu};
        char name[96];
        call(&got, type, v / 2);
        call(&expected, type, v / 2);
        assert_int_equal(got.n, expected.n);
        for (int i = 0; i < got.n; i++) {
            snprintf(name, sizeof name, "%s, %s, variant %d, array %d", what, dtype_name(type),
                     v / 2, i);
            compare(got.ptr[i], expected.ptr[i], got.bytes[i], name);
        }
        arrays_free(&got);
        arrays_free(&expected);
    }
}

/* ---- sums of vectors ------------------------------------------------------------------------- */

/* Adds what x [elems] on the device holds now to the comparison. */
static void keep(arrays *a, const float *x, size_t elems)
{
    float *host = filled(0.0f, elems);
    OK(device_download(a->x->s, host, x, elems * sizeof *host));
    OK(stream_sync(a->x->s));
    put(a, host, elems * sizeof *host);
    free(host);
}

static int level_draw(uint64_t *seed, uint64_t nodes)
{
    int level = (int)draw(seed, 5);
    while (nodes & ((UINT64_C(1) << level) - 1))
        level--;
    return level;
}

/* Some steps of drawn widths and levels. The inputs are compared, and the slots after each step. */
static void call_sums(arrays *a, dtype type, int v)
{
    static const size_t SIZES[] = {0, 1, 7, 255, 256, 257, 1000};
    enum { MOST_INPUTS = 9, MOST_STEPS = 5 };
    const size_t elems = SIZES[v % 7];
    stream *s = a->x->s;
    uint64_t seed = (uint64_t)v, nodes = 0;
    grad_acc acc;
    float *sum;
    grad_acc_init(&acc, v / 7 % 2 ? GRAD_ACC_CANONICAL : GRAD_ACC_FAST, a->x->o->sums, elems,
                  MEM_GRADS_SHARD, "sum");
    acc.sum_dtype = type;
    for (int step = 1 + (int)draw(&seed, MOST_STEPS); step > 0; step--) {
        const int n = 1 + (int)draw(&seed, MOST_INPUTS), level = level_draw(&seed, nodes);
        const void *in[MOST_INPUTS];
        sum_run run;
        nodes += (uint64_t)n << level;
        for (int i = 0; i < n; i++)
            in[i] = values(a, elems, 1.0f, type);
        OK(sum_run_begin(&acc, s, level, n, &run));
        OK(sum_run_launch(a->x->o->sums, s, &run, in, "pass", "test"));
        sum_run_end(&run, s);
        for (int k = 0; k < TREE_SUM_LEVELS; k++)
            if (acc.tree.slot[k] != NULL)
                keep(a, acc.tree.slot[k], elems);
    }
    OK(grad_acc_finish(&acc, s, &sum));
    keep(a, sum, elems);
    device_free(s, sum);
    grad_acc_free(&acc, s);
}

TEST(test_sums)
{
    both("sums", call_sums, 70);
}

/* A sum of n vectors without an accumulator, into the last of them. Some n are larger than the room
 * for inputs in a kernel's arguments. Integers take the place of bf16. */
static void call_root(arrays *a, dtype type, int v)
{
    enum { ELEMS = 3, MOST = 5000 };
    static const int COUNTS[] = {1, 2, 3, 5, 8, 13, 384, 385, 1000, MOST};
    static const void *from[MOST];
    const int n = COUNTS[v];
    float *all = values(a, MOST * 2 * ELEMS, 1.0f, DTYPE_F32);
    for (int i = 0; i < n; i++)
        from[i] = all + (size_t)i * 2 * ELEMS;
    sum_run run = sum_run_root(all + (size_t)(n - 1) * 2 * ELEMS, ELEMS, n,
                               type == DTYPE_F32 ? DTYPE_F32 : DTYPE_I64);
    OK(sum_run_launch(a->x->o->sums, a->x->s, &run, from, "pass", "test"));
    memset(from, 0xA5, sizeof from);
}

TEST(test_root)
{
    both("root", call_root, 10);
}

/* ---- operations ------------------------------------------------------------------------------ */

static const attention_shape WIDE_V = {.head_dim = 1, .v_head_dim = 2};

/* Appends "`rope`, ..." to text for each operation that o refuses. Without elements, an operation
 * that exists does nothing. Two operations always do something, so they are not called. */
static void list_refused(const ops *o, char text[512])
{
#define LIST_IF_REFUSED(op, words, ...)                                                            \
    do {                                                                                           \
        const op##_args none = {__VA_ARGS__};                                                      \
        if (op##_work(&none).ends && ops_refused(o->op(target.s, &none))) {                        \
            snprintf(text + strlen(text), 512 - strlen(text), "%s`" #op "`" words,                 \
                     *text ? ", " : "");                                                           \
            assert_says("has no operation " #op);                                                  \
        }                                                                                          \
    } while (0)
#define OP(op, ...) LIST_IF_REFUSED(op, "", 0);
#include "common/ops/op_list.h"
#define WIDE " with heads of v wider than heads of q and k"
    LIST_IF_REFUSED(attention, WIDE, .shape = WIDE_V);
    LIST_IF_REFUSED(attention_backward, WIDE, .shape = WIDE_V);
#define BLOCKS " with blocks of a vocabulary"
    LIST_IF_REFUSED(embedding, BLOCKS, .cut = {0, 1});
    LIST_IF_REFUSED(embedding_backward, BLOCKS, .cut = {0, 1});
#undef LIST_IF_REFUSED
}

TEST(test_refusals_are_documented)
{
    const char *readme = "common/ops/README.md";
    const backend *b = target_backend();
    char line[1024] = "", name[64], refused[2][512] = {{0}}, cell[512];
    list_refused(b->fast(), refused[0]);
    list_refused(target.o, refused[1]);
    assert_string_equal(refused[0], refused[1]);
    FILE *f = fopen(readme, "r");
    assert_non_null(f);
    snprintf(name, sizeof name, "`%s`", b->name);
    while (strstr(line, name) == NULL && fgets(line, sizeof line, f) != NULL)
        ;
    fclose(f);
    snprintf(cell, sizeof cell, "| %.500s |\n", *refused[0] ? refused[0] : "none");
    if (strlen(line) < strlen(cell) || strcmp(line + strlen(line) - strlen(cell), cell) != 0)
        fail_msg("%s refuses %s, its line in %s is: %s", b->name, cell, readme, line);
}

/* An NPU's optimizers round in the order of the recipe, so they give the CPU's bits if division and
 * root are IEEE's, as on the stand-in. */
static bool optimizers_have_cpu_bits(void)
{
    return target_is_portable() || strcmp(getenv("FSDP_DEVICE"), "npu-sim") == 0;
}

static bool has_cpu_bits(const char *name)
{
    if (strncmp(name, "update ", 7) == 0)
        return optimizers_have_cpu_bits();
    return target_is_portable();
}

TEST(test_catalogue)
{
    for (size_t i = 0; i < ops_case_count(); i++) {
        ops_result got = ops_case_run(i, target.o, target.s);
        const bool refused = ops_refused(got.status);
        ops_result expected = ops_case_run(i, cpu.o, cpu.s);
        OK(refused ? FSDP_OK : got.status);
        OK(expected.status);
        if (!refused && has_cpu_bits(ops_case_name(i)))
            expect_same_bits(got.data, expected.data, expected.elems, ops_case_name(i), "");
        else if (!refused)
            expect_case_near(i, &got, &expected, 8.0 * (double)FLT_EPSILON);
        free(got.data);
        free(expected.data);
    }
}

/* Arrays so long that an NPU processes them in pieces. */
static void call_long(arrays *a, dtype type, int v)
{
    enum { LONG = (1 << 22) + 5 };
    const rsum zero = {{0}};
    float *x = normals(8, 1.0f, LONG);
    for (size_t i = 0; i < LONG; i++)
        x[i] = fabsf(x[i]); /* v cannot be negative */
    adamw_args adamw = {.elems = LONG, .param = put(a, x, LONG * sizeof *x)};
    adamw.m = put(a, x, LONG * sizeof *x), adamw.v = put(a, x, LONG * sizeof *x);
    adamw.grad = put(a, x, LONG * sizeof *x);
    adamw_scalars(
        &adamw,
        &(optim_config){
            .lr = 3e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 2});
    OK(a->x->o->adamw(a->x->s, &adamw));
    CALL(a->x->o, a->x->s, sum_squares, .sum = put(a, &zero, sizeof zero), .x = adamw.grad,
         .elems = LONG);
    free(x);
}

TEST(test_long_arrays)
{
    if (!optimizers_have_cpu_bits())
        skip();
    both("long", call_long, 1);
}

/* Five rows of a vocabulary so large that an NPU processes only four at once. */
TEST(test_loss_of_a_large_vocabulary)
{
    enum { ROWS = 5, CLASSES = 1 << 20 };
    static const int32_t TARGETS[ROWS] = {0, 1, CLASSES - 1, 7, 99};
    float loss[2], d[2][ROWS];
    for (int i = 0; i < 2; i++) {
        arrays a = {.x = i ? &cpu : &target};
        float *total = values(&a, 1, 1.0f, DTYPE_F32);
        float *x = values(&a, (size_t)ROWS * CLASSES, 1.0f, DTYPE_F32);
        CALL(a.x->o, a.x->s, cross_entropy, .loss = total, .d_logits = x, .logits = x,
             .targets = put(&a, TARGETS, sizeof TARGETS), .rows = ROWS, .vocab = CLASSES);
        OK(device_download(a.x->s, &loss[i], total, sizeof(float)));
        for (int r = 0; r < ROWS; r++)
            OK(device_download(a.x->s, &d[i][r], x + r * CLASSES + TARGETS[r], sizeof(float)));
        OK(stream_sync(a.x->s));
        arrays_free(&a);
    }
    assert_true(fabsf(loss[0] - loss[1]) < 1e-3f * loss[1]); /* a sum of 2^20 terms in fp32 */
    for (int r = 0; r < ROWS; r++)
        assert_true(fabsf(d[0][r] - d[1][r]) < 1e-6f && d[0][r] < -0.99f);
}

/* Positions for several chunks that a GPU sorts, or for one; a token for all of them, or any. */
static void call_embedding_backward(arrays *a, dtype type, int v)
{
    enum { VOCAB = 40, MOST = 2500 };
    static const size_t SEQS[] = {1, 50, 1023, 1024, 1025, MOST}, WIDTHS[] = {1, 7, 300};
    static int32_t tokens[2 * MOST];
    const size_t seq_len = SEQS[v / 2], batch = v % 4 == 1 ? 2 : 1, n = batch * seq_len;
    const size_t width = seq_len > 50 ? WIDTHS[v % 2] : WIDTHS[2];
    uint64_t seed = (uint64_t)v;
    for (size_t i = 0; i < n; i++)
        tokens[i] = v % 3 == 2 ? 7 : (int32_t)draw(&seed, VOCAB);
    float *d_wte = values(a, VOCAB * width, 1.0f, DTYPE_F32);
    float *d_wpe = v % 3 == 1 ? NULL : values(a, seq_len * width, 1.0f, DTYPE_F32);
    CALL(a->x->o, a->x->s, embedding_backward, .d_wte = d_wte, .d_wpe = d_wpe,
         .d_out = values(a, n * width, 1.0f, type), .tokens = put(a, tokens, n * sizeof *tokens),
         .batch = batch, .seq_len = seq_len, .width = width, .vocab = VOCAB, .type = type);
}

TEST(test_embedding_backward)
{
    if (!target_is_portable())
        skip();
    both("embedding_backward", call_embedding_backward, 12);
}

/* More rows or columns than 65,535 blocks have, the most in dimensions y and z of a GPU's grid. */
TEST(test_large_grids)
{
    const size_t rows = (size_t)65535 * 64 + 1, width = (size_t)65535 * 256 + 1;
    const float bias = 3.0f;
    const uint16_t one = bf16_from_f32(1.0f);
    const int32_t token = 0;
    if (!target_is_portable())
        skip();
    arrays a = {.x = &target};
    float *zeros = calloc(width, sizeof *zeros), last = 0.0f;
    float *out = put(&a, zeros, rows * sizeof *out);
    char *wte = put(&a, zeros, width * sizeof one), *row = put(&a, zeros, width * sizeof one);
    CALL(a.x->o, a.x->s, matmul, .out = out, .bias = put(&a, &bias, sizeof bias), .m = rows, .n = 1,
         .type = DTYPE_F32, .out_type = DTYPE_F32);
    OK(device_download(a.x->s, &last, out + rows - 1, sizeof last));
    OK(device_upload(a.x->s, wte + (width - 1) * sizeof one, &one, sizeof one));
    CALL(a.x->o, a.x->s, embedding, .out = row, .wte = wte, .tokens = put(&a, &token, sizeof token),
         .batch = 1, .seq_len = 1, .width = width, .vocab = 1, .type = DTYPE_BF16);
    OK(device_download(a.x->s, zeros, row + (width - 1) * sizeof one, sizeof one));
    OK(stream_sync(a.x->s));
    assert_true(last == bias);
    assert_memory_equal(zeros, &one, sizeof one);
    arrays_free(&a);
    free(zeros);
}

/* Casts begin with `type`. The elements include all numbers of bf16. */
static void call_elementwise(arrays *a, dtype type, int v)
{
    enum { N = 1 << 16 };
    static uint32_t bits[N];
    for (uint32_t i = 0; i < N; i++)
        bits[i] = i << 16 | (i * 40503u & 0xffff);
    const dtype to = v % 2 ? DTYPE_BF16 : DTYPE_F32, add_to = type;
    const void *in = put(a, bits, N * dtype_bytes(type));
    float *x = values(a, N, 1.0f, DTYPE_F32);
    const float *y = values(a, N, 1.0f, DTYPE_F32);
    CALL(a->x->o, a->x->s, cast, values(a, N, 1.0f, to), in, to, type, N);
    CALL(a->x->o, a->x->s, add, x, x, v && add_to ? NULL : y, N, add_to);
    CALL(a->x->o, a->x->s, scale, x, 0.7f, N);
    CALL(a->x->o->sums, a->x->s, cast, values(a, N, 1.0f, DTYPE_BF16), x, DTYPE_BF16, DTYPE_F32, N);
    CALL(a->x->o, a->x->s, add, .round_to = add_to);
    CALL(a->x->o, a->x->s, cast, .out_type = to);
}

TEST(test_elements)
{
    both("elementwise", call_elementwise, 2);
}

/* ---- exact sums ------------------------------------------------------------------------------ */

/* Elements of one kind: any exponent, the smallest, the largest, with infinities, with NaNs. */
static uint32_t odd_bits(uint64_t *seed, int kind)
{
    const uint32_t sign = (uint32_t)draw(seed, 2) << 31, fraction = (uint32_t)draw(seed, 1 << 23);
    const uint32_t any = (uint32_t)draw(seed, 255), rare = draw(seed, 50) == 0 ? 255 : 100;
    const uint32_t exponent[] = {any, 0, 254, rare, rare};
    return sign | exponent[kind] << 23 | (kind == 3 && rare == 255 ? 0 : fraction);
}

/* The bins count infinities and NaNs. At first they hold a sum that has been merged but not
 * normalised. */
static void call_squares(arrays *a, dtype type, int v)
{
    static const size_t SIZES[] = {1, 255, 257, 70001};
    static uint32_t bits[70001];
    const size_t elems = SIZES[v % 4];
    uint64_t seed = 9 + (uint64_t)v;
    rsum before = {{0}};
    for (size_t i = 0; i < elems; i++)
        bits[i] = odd_bits(&seed, v / 4);
    for (int i = 0; i < RSUM_DIGITS; i++)
        before.bin[i] = (int64_t)draw(&seed, 1u << 30) << (v % 2 ? 20 : 2);
    rsum *sum = put(a, &before, sizeof before);
    float *norm = put(a, bits, 2 * sizeof *norm);
    CALL(a->x->o, a->x->s, sum_squares, .sum = sum, .x = put(a, bits, elems * sizeof *bits),
         .elems = elems);
    CALL(a->x->o, a->x->s, clip_coef, norm, norm + 1, sum, v % 3 ? 1.0f : 0.0f);
    if (v / 4 == 4) /* which NaN comes out is not specified */
        OK(device_zero(a->x->s, norm, 2 * sizeof *norm));
}

TEST(test_sum_squares)
{
    both("sum_squares", call_squares, 20);
}

/* norm and coef of a sum of one square. */
static void call_clip(arrays *a, dtype type, int v)
{
    static const float ROOTS[] = {0.0f, 1e-20f, 4.0f, 3e38f}, MOST[] = {0.0f, 1.0f, 5.0f};
    rsum sum = {{0}};
    rsum_add_squares(&sum, &ROOTS[v % 4], 1);
    CALL(a->x->o, a->x->s, clip_coef, values(a, 1, 1.0f, DTYPE_F32), values(a, 1, 1.0f, DTYPE_F32),
         put(a, &sum, sizeof sum), MOST[v / 4]);
}

TEST(test_clip)
{
    both("clip_coef", call_clip, 12);
}

/* ---- numbers outside the vocabulary ---------------------------------------------------------- */

/* The words of the first error of call k. The call has its own device, because the device fails. */
static void words_of(const device_backend *on, const ops *o, int k, char *words)
{
    const int which = k / 4 % 3; /* the last one takes targets */
    const int32_t numbers[3] = {0, 1, k % 2 == 0 ? 3 : which == 2 ? -1 : NO_TARGET};
    side x = {.o = o};
    OK(device_open(&(device_config){.backend = on, .n_threads = 1}, &x.d));
    x.s = device_compute_stream(x.d);
    arrays a = {.x = &x};
    event *e = NULL;
    OK(event_create(x.d, &e));
    float *x9 = values(&a, 9, 1.0f, DTYPE_F32), *y9 = values(&a, 9, 1.0f, DTYPE_F32);
    fsdp_status status = ops_bad_call(which, o, x.s, x9, y9, put(&a, numbers, sizeof numbers));
    (void)event_record(e, x.s);
    if (status == FSDP_OK)
        status = k & 2 ? event_sync(e) : stream_sync(x.s);
    assert_int_equal(status, FSDP_EINVAL);
    snprintf(words, sizeof(fsdp_error_info), "%s / %s", fsdp_error_get()->what,
             fsdp_error_get()->hint);
    assert_int_equal(stream_sync(x.s), FSDP_EINVAL); /* the error stays */
    event_free(e);
    arrays_free(&a);
    device_close(x.d);
}

TEST(test_bad_numbers)
{
    for (int k = 0; k < 24; k++) {
        char got[sizeof(fsdp_error_info)], expected[sizeof(fsdp_error_info)];
        const backend *b = target_backend();
        words_of(b->device, k < 12 ? b->fast() : target_ops(), k, got);
        words_of(&device_cpu, cpu.o, k, expected);
        assert_string_equal(got, expected);
    }
}

int main(void)
{
    if (target_backend()->device == &device_cpu) {
        printf("SKIP FSDP_DEVICE names no device beside the CPU\n");
        return 77;
    }
    return tests_run(setup, teardown);
}
