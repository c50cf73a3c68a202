/* test_ops.c -- the rules of ops.h for every operation: results do not depend on threads, streams
 * or the position of an element; counts of 0; aliasing; errors; which elements dropout drops.
 * test_ops_values.c tests the values. */
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/device_impl.h"
#include "common/ops/cpu_kernels.h"
#include "common/ops/optimizers.h"
#include "common/sum/rsum_digits.h"
#include "tests/unit/ops_check_lib.h"

/* The stream of every test that needs one device: inline, 2 threads. */
static stream *s;
static const dtype TYPES[] = {DTYPE_F32, DTYPE_BF16};

static int setup(void **state)
{
    s = ops_test_open(state);
    return 0;
}

/* ---- threads and streams -------------------------------------------------------------------- */

/* OpenMP's own setting differs too. oneDNN's deep products of one row or column change with it
 * unless they are held to one thread. */
static void compare_with_one_thread(int t, stream *other, const char *where)
{
    device *one = ops_test_device(1, false);
    const int omp_threads = omp_get_max_threads();
    for (size_t i = 0; i < ops_case_count(); i++) {
        omp_set_num_threads(1);
        ops_result expected = ops_case_run(i, ops_table(t), device_compute_stream(one));
        omp_set_num_threads(other->n_threads > 1 ? other->n_threads : 4);
        ops_result got = ops_case_run(i, ops_table(t), other);
        OK(expected.status);
        OK(got.status);
        expect_same_bits(got.data, expected.data, expected.elems, ops_case_name(i), where);
        free(expected.data);
        free(got.data);
    }
    omp_set_num_threads(omp_threads);
    device_close(one);
}

TEST(test_thread_count_changes_no_bit)
{
    for (int t = 0; t < 2; t++) {
        for (int n_threads = 2; n_threads <= 4; n_threads++) {
            char where[64];
            snprintf(where, sizeof where, "%s, %d threads", ops_table(t)->name, n_threads);
            device *d = ops_test_device(n_threads, false);
            compare_with_one_thread(t, device_compute_stream(d), where);
            device_close(d);
        }
    }
}

TEST(test_worker_streams)
{
    for (int t = 0; t < 2; t++) {
        device *d = ops_test_device(3, true);
        stream *worker = NULL;
        OK(stream_create(d, &(stream_config){.name = "worker"}, &worker));
        compare_with_one_thread(t, device_compute_stream(d), "asynchronous compute stream");
        compare_with_one_thread(t, worker, "worker stream");
        stream_free(worker);
        device_close(d);
    }
}

/* oneDNN is held to one thread by a setting of the calling thread, which must be restored. */
TEST(test_openmp_setting_is_restored)
{
    const int before = omp_get_max_threads();
    omp_set_num_threads(3);
    float a[4] = {1, 2, 3, 4}, out[4];
    CALL(ops_cpu_fast(), s, matmul, .out = out, .a = a, .b = a, .m = 2, .n = 2, .k = 2);
    assert_int_equal(omp_get_max_threads(), 3);
    omp_set_num_threads(before);
}

/* Hosts compare this text, because sums by other kernels have other bits. */
TEST(test_library_names_our_kernels)
{
    char text[96];
    ops_cpu_library(text, sizeof text);
#ifdef __x86_64__
    if (getenv("ONEDNN_MAX_CPU_ISA") == NULL)
        assert_int_equal(strstr(text, "fp32 by FMA") != NULL,
                         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
#endif
    assert_true(strlen(text) + 1 < sizeof text);
}

/* The two tables differ only in matrix products. */
TEST(test_fast_is_close_to_portable)
{
    for (size_t i = 0; i < ops_case_count(); i++) {
        const char *name = ops_case_name(i);
        ops_result fast = ops_case_run(i, ops_cpu_fast(), s);
        ops_result portable = ops_case_run(i, ops_cpu_portable(), s);
        if (strncmp(name, "matmul", 6) != 0 && strncmp(name, "attention", 9) != 0 &&
            strncmp(name, "conv2d", 6) != 0)
            expect_same_bits(fast.data, portable.data, fast.elems, name, "fast and portable");
        expect_case_near(i, &fast, &portable, 0.0);
        free(fast.data), free(portable.data);
    }
}

/* ---- the position of an element -------------------------------------------------------------- */

enum { SHIFT_ELEMS = 131, SHIFTS = 19 };

/* The arrays of one element-wise call, all shifted by the same amount. */
typedef struct vectors {
    float x[SHIFT_ELEMS], y[SHIFT_ELEMS], z[SHIFT_ELEMS], grad[SHIFT_ELEMS];
} vectors;

enum { ADD, SCALE, GELU, GELU_BACKWARD, UPDATE, N_CALLS = UPDATE + N_OPTIMIZERS };

static void update(int kind, optim_part part)
{
    const optimizer_rule *rule = optimizer_of((optimizer_kind)kind);
    const optim_config config = {.lr = 0.1,
                                 .weight_decay = 0.3,
                                 .eps = 1e-8,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .momentum = 0.9,
                                 .rho = 0.9,
                                 .nesterov = true,
                                 .step = 4};
    optim_scalars scalars;
    optim_scalars_make(&config, NULL, &scalars);
    for (int k = rule->n_states; k < OPTIM_MAX_STATES; k++)
        part.state[k] = NULL;
    OK(rule->update(ops_cpu_fast(), s, &scalars, &part));
}

static void call(int which, vectors *v, size_t shift, size_t n)
{
    const ops *o = ops_cpu_fast();
    float *x = v->x + shift, *y = v->y + shift, *z = v->z + shift, *grad = v->grad + shift;
    if (which == ADD)
        CALL(o, s, add, x, x, y, n, DTYPE_F32);
    else if (which == SCALE)
        CALL(o, s, scale, x, 1.1f, n);
    else if (which == GELU)
        CALL(o, s, gelu, x, x, n, DTYPE_F32);
    else if (which == GELU_BACKWARD)
        CALL(o, s, gelu_backward, y, y, grad, n, DTYPE_F32);
    else
        update(which - UPDATE, (optim_part){x, {y, z}, grad, n, {0}});
}

static void fill_vectors(vectors *v)
{
    ops_test_fill(1, 1.0f, v->x, SHIFT_ELEMS);
    ops_test_fill(2, 1.0f, v->y, SHIFT_ELEMS);
    ops_test_fill(3, 1.0f, v->z, SHIFT_ELEMS);
    ops_test_fill(4, 1.0f, v->grad, SHIFT_ELEMS);
    for (size_t i = 0; i < SHIFT_ELEMS; i++) { /* averages of squares cannot be negative */
        v->y[i] *= v->y[i];
        v->z[i] *= v->z[i];
    }
}

/* The tail of a vector must round like its body. A call on [shift, end) must change its elements as
 * a call on the whole array does, and change no others. */
TEST(test_place_changes_no_bit)
{
    for (int c = 0; c < N_CALLS; c++) {
        vectors before, whole;
        fill_vectors(&before);
        whole = before;
        call(c, &whole, 0, SHIFT_ELEMS);
        for (size_t shift = 0; shift < SHIFTS; shift++) {
            vectors part = before, expected = before;
            const size_t elems = SHIFT_ELEMS - shift - shift / 3;
            call(c, &part, shift, elems);
            float *to[] = {expected.x, expected.y, expected.z};
            const float *from[] = {whole.x, whole.y, whole.z};
            for (int i = 0; i < 3; i++)
                memcpy(to[i] + shift, from[i] + shift, elems * sizeof(float));
            assert_memory_equal(&part, &expected, sizeof part);
        }
    }
}

/* ---- ranges: a call with a table is a call for each range ------------------------------------ */

static const decay_range PARTS[] = {{40, 7, true}, {50, 0, true}, {60, 50, false}, {112, 90, true}};
enum {
    N_PARTS = 4,
    PARTS_ORIGIN = 43
}; /* the first begins before the array, the last ends behind */

/* The elements of range i in the array. */
static void part_in_array(int i, size_t *begin, size_t *end)
{
    const size_t first = PARTS[i].begin, last = first + PARTS[i].elems;
    *begin = first > PARTS_ORIGIN ? first - PARTS_ORIGIN : 0;
    *end = last - PARTS_ORIGIN < SHIFT_ELEMS ? last - PARTS_ORIGIN : SHIFT_ELEMS;
}

TEST(test_ranges_are_calls)
{
    const range_table table = {PARTS, N_PARTS, PARTS_ORIGIN};
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        vectors got, expected;
        fill_vectors(&got);
        fill_vectors(&expected);
        update(kind, (optim_part){got.x, {got.y, got.z}, got.grad, SHIFT_ELEMS, table});
        for (int i = 0; i < N_PARTS; i++) {
            size_t at, end;
            part_in_array(i, &at, &end);
            const decay_range all = {0, end - at, PARTS[i].decay};
            update(kind, (optim_part){expected.x + at,
                                      {expected.y + at, expected.z + at},
                                      expected.grad + at,
                                      end - at,
                                      {&all, 1, 0}});
        }
        assert_memory_equal(&got, &expected, sizeof got);
    }
}

/* Undecayed elements differ from decayed ones, and without a table all decay. */
TEST(test_ranges_decide_on_decay)
{
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        vectors v[3];
        for (int i = 0; i < 3; i++) {
            const decay_range all = {0, SHIFT_ELEMS, i == 1};
            fill_vectors(&v[i]);
            update(kind, (optim_part){v[i].x,
                                      {v[i].y, v[i].z},
                                      v[i].grad,
                                      SHIFT_ELEMS,
                                      {i == 2 ? NULL : &all, i < 2, 0}});
        }
        assert_memory_equal(v[1].x, v[2].x, sizeof v[1].x);
        for (int i = 0; i < SHIFT_ELEMS; i++)
            assert_true(v[0].x[i] != v[1].x[i]);
    }
}

TEST(test_squares_of_ranges)
{
    const decay_range none = {0};
    rsum sum = {0}, expected = {0};
    vectors v;
    fill_vectors(&v);
    for (int i = 0; i < N_PARTS; i++) {
        size_t at, end;
        part_in_array(i, &at, &end);
        rsum_add_squares(&expected, v.x + at, end - at);
    }
    v.x[110 - PARTS_ORIGIN] = NAN; /* in a gap */
    for (int t = 0; t < 2; t++) {
        sum = (rsum){0};
        CALL(ops_table(t), s, sum_squares, .sum = &sum, .x = v.x, .elems = SHIFT_ELEMS,
             .ranges = {PARTS, N_PARTS, PARTS_ORIGIN});
        assert_memory_equal(&sum, &expected, sizeof sum);
        CALL(ops_table(t), s, sum_squares, .sum = &sum, .x = v.x, .elems = SHIFT_ELEMS,
             .ranges = {&none, 0});
        assert_memory_equal(&sum, &expected, sizeof sum);
    }
}

/* ---- gradients of parameters: overwriting gives the bits of adding to zero ------------------- */

enum { OW_B = 2, OW_T = 3, OW_C = 70, OW_ROWS = OW_B * OW_T };

/* All gradients of parameters that come from d_out [rows, C]. */
typedef struct param_grads {
    float bias[OW_C], norm_gain[OW_C], norm_bias[OW_C];
    float conv_weight[2 * 3 * 4], conv_bias[2];
} param_grads;

static void add_grads(const float *d_out, size_t batch, bool overwrite, param_grads *g)
{
    const ops *o = ops_cpu_fast();
    const size_t rows = batch * OW_T;
    float d_in[OW_ROWS * OW_C], x[OW_ROWS * OW_C], gain[OW_C], mean[OW_ROWS] = {0}, rstd[OW_ROWS];
    ops_test_fill(1, 1.0f, x, OW_ROWS * OW_C);
    ops_test_fill(2, 1.0f, gain, OW_C);
    for (int r = 0; r < OW_ROWS; r++)
        rstd[r] = 1.0f;
    CALL(o, s, bias_backward, g->bias, d_out, rows, OW_C, 0, overwrite, DTYPE_F32);
    CALL(o, s, layernorm_backward, .d_in = d_in, .d_gain = g->norm_gain, .d_bias = g->norm_bias,
         .d_out = d_out, .in = x, .gain = gain, .mean = mean, .rstd = rstd, .rows = rows,
         .cols = OW_C, .overwrite = overwrite);
    /* [batch, 2, 4, 6] of d_out, [batch, 3, 5, 7] of x */
    CALL(o, s, conv2d_backward, .d_weight = g->conv_weight, .d_bias = g->conv_bias, .d_out = d_out,
         .in = x, .overwrite = overwrite, .shape = {batch, 3, 2, 5, 7, 2, DTYPE_F32});
}

TEST(test_overwrite)
{
    float d_out[OW_ROWS * OW_C];
    ops_test_fill(3, 1.0f, d_out, OW_ROWS * OW_C);
    for (size_t c = 0; c < OW_ROWS * OW_C; c += 7)
        d_out[c] = -0.0f; /* 0 + -0 is +0, and so are sums of -0 that begin at 0 */
    d_out[5] = NAN;
    for (size_t batch = 0; batch <= OW_B; batch++) {
        param_grads added = {0}, written;
        memset(&written, 0xff, sizeof written);
        add_grads(d_out, batch, false, &added);
        add_grads(d_out, batch, true, &written);
        expect_same_bits((float *)&written, (float *)&added, sizeof added / sizeof(float),
                         "gradients overwritten", "added to 0");
    }
}

/* ---- counts of 0, aliasing, errors ----------------------------------------------------------- */

static void images_of_zero(const ops *o, float *out, dtype t)
{
    const conv_shape none = {0, 1, 2, 3, 3, 2, t};
    CALL(o, s, conv2d, .out = out, .shape = none);
    CALL(o, s, conv2d_backward, .d_weight = out, .shape = none);
    CALL(o, s, max_pool2d, .out = out, .planes = 2, .height = 1, .width = 2, .type = t);
    CALL(o, s, max_pool2d_backward, .d_in = out, .height = 2, .width = 2, .type = t);
    CALL(o, s, relu, .out = out, .type = t);
    CALL(o, s, relu_backward, .d_in = out, .type = t);
    CALL(o, s, dropout, .out = out, .width = 3, .type = t);
}

TEST(test_zero_counts_do_nothing)
{
    for (int i = 0; i < 4; i++) {
        const ops *o = ops_table(i % 2);
        const dtype t = TYPES[i / 2];
        float out[6] = {1, 2, 3, 4, 5, 6};
        const float kept[6] = {1, 2, 3, 4, 5, 6};
        rsum sum = {0};
        CALL(o, s, matmul, .out = out, .n = 3, .k = 2, .type = t);
        CALL(o, s, matmul, .out = out, .m = 3, .k = 2, .type = t);
        CALL(o, s, matmul, .out = out, .m = 2, .n = 3, .accumulate = true, .type = t);
        CALL(o, s, bias_backward, .d_bias = out, .cols = 3, .type = t);
        CALL(o, s, embedding, .out = out, .seq_len = 3, .width = 2, .vocab = 5, .type = t);
        CALL(o, s, embedding_backward, .d_wte = out, .batch = 1, .width = 2, .vocab = 5, .type = t);
        CALL(o, s, layernorm, .out = out, .cols = 3, .type = t);
        CALL(o, s, layernorm_backward, .d_gain = out, .cols = 3, .type = t);
        CALL(o, s, gelu, .out = out, .type = t);
        CALL(o, s, gelu_backward, .d_in = out, .type = t);
        images_of_zero(o, out, t);
        CALL(o, s, attention, .out = out, .shape = {.n_head = 2, .n_kv_head = 1, .type = t});
        CALL(o, s, attention_backward, .d_q = out, .shape = {.seq_len = 3, .type = t});
        CALL(o, s, add, .out = out);
        CALL(o, s, scale, .x = out, .factor = 2.0f);
        CALL(o, s, sum_squares, .sum = &sum);
        for (int k = 0; k < N_OPTIMIZERS; k++)
            OK(optimizer_of((optimizer_kind)k)
                   ->update(o, s, &(optim_scalars){0}, &(optim_part){.param = out}));
        assert_memory_equal(out, kept, sizeof out);
        assert_true(rsum_value(&sum) == 0.0);

        /* no terms: the product and the loss are empty sums */
        CALL(o, s, matmul, .out = out, .m = 2, .n = 3, .type = t);
        CALL(o, s, cross_entropy, .loss = out + 5, .vocab = 7, .type = t);
        assert_memory_equal(out, ((float[6]){0}), sizeof out);
    }
}

enum { ROWS = 5, COLS = 333, N = ROWS * COLS };
static const int32_t TARGETS[ROWS] = {0, COLS - 1, 5, 5, 200};

/* elems values, stored as t. */
static void fill_as(dtype t, uint64_t name, float *x, size_t elems)
{
    ops_test_fill(name, 1.0f, x, elems);
    for (size_t i = 0; i < elems && t == DTYPE_BF16; i++)
        ((uint16_t *)x)[i] = bf16_from_f32(x[i]);
}

/* SAME_IN_PLACE -- an operation must give the same bytes if its arrays `to` and `from` are two
 * arrays or one. `data` is the content of `from`. */
#define SAME_IN_PLACE(op, to, from, data, bytes, ...)                                              \
    do {                                                                                           \
        memcpy(x, data, sizeof x);                                                                 \
        CALL(o, s, op, .to = out, .from = data, __VA_ARGS__);                                      \
        CALL(o, s, op, .to = x, .from = x, __VA_ARGS__);                                           \
        assert_memory_equal(x, out, bytes);                                                        \
    } while (0)

TEST(test_allowed_aliasing)
{
    static float in[N], d[N], out[N], x[N];
    for (int i = 0; i < 4; i++) {
        const ops *o = ops_table(i % 2);
        const dtype t = TYPES[i / 2];
        const size_t bytes = N * dtype_bytes(t);
        float loss[3] = {0};
        fill_as(t, 1, in, N), fill_as(t, 3, d, N);
        SAME_IN_PLACE(matmul, out, residual, d, 5 * 7 * dtype_bytes(t), .a = in, .b = in, .m = 5,
                      .n = 7, .k = 7, .type = t, .out_type = t);
        SAME_IN_PLACE(gelu, out, in, in, bytes, .elems = N, .type = t);
        SAME_IN_PLACE(gelu_backward, d_in, d_out, d, bytes, .in = in, .elems = N, .type = t);
        SAME_IN_PLACE(relu, out, in, in, bytes, .elems = N, .type = t);
        SAME_IN_PLACE(relu_backward, d_in, d_out, d, bytes, .in = in, .elems = N, .type = t);
        SAME_IN_PLACE(dropout, out, in, in, bytes, .samples = ROWS, .width = COLS, .p = 0.5f,
                      .type = t);
        SAME_IN_PLACE(cross_entropy, d_logits, logits, in, bytes, .loss = &loss[loss[0] != 0],
                      .targets = TARGETS, .rows = ROWS, .vocab = COLS, .type = t);
        CALL(o, s, cross_entropy, &loss[2], NULL, in, TARGETS, ROWS, COLS, 0, t, NULL, 0, 0, NULL,
             0, {0, 0});
        expect_same_bits(&loss[1], &loss[0], 1, "loss", "d_logits == logits");
        expect_same_bits(&loss[2], &loss[0], 1, "loss", "without d_logits");
        fill_as(DTYPE_F32, 1, in, N), fill_as(DTYPE_F32, 3, d, N);
        SAME_IN_PLACE(add, out, b, d, sizeof x, .a = in, .elems = N);
    }
}

/* A vocabulary in one block has the bits of a call without blocks. In several, a row's sum of V
 * exponentials, and one more product for each block, are rounded elsewhere: relative to it by at
 * most (V + 16) u on either side. */
TEST(test_vocabulary_in_blocks)
{
    static float in[N], out[N], block[N], d[N];
    static vocab_part parts[8 * ROWS];
    ops_test_fill(1, 3.0f, in, N);
    for (int t = 0; t < 2; t++)
        for (size_t n = 1; n <= 8; n *= 2) {
            const ops *o = ops_table(t);
            const size_t each = (COLS + n - 1) / n;
            const double bound = 2.0 * (COLS + 16) * 0x1p-24;
            float want, got = NAN;
            CALL(o, s, cross_entropy, .loss = &want, .d_logits = out, .logits = in,
                 .targets = TARGETS, .rows = ROWS, .vocab = COLS);
            for (int pass = 0; pass < 2; pass++)
                for (size_t i = 0; i < n; i++) {
                    const vocab_cut cut = {i * each, COLS};
                    const size_t held = i + 1 < n ? each : COLS - i * each;
                    for (size_t r = 0; r < ROWS; r++)
                        memcpy(block + r * held, in + r * COLS + cut.first, held * sizeof *block);
                    if (pass == 0)
                        CALL(o, s, vocab_part, parts + i * ROWS, block, TARGETS, ROWS, held, 0,
                             DTYPE_F32, cut);
                    else
                        CALL(o, s, cross_entropy, .loss = i == 0 ? &got : NULL, .d_logits = block,
                             .logits = block, .targets = TARGETS, .rows = ROWS, .vocab = held,
                             .parts = parts, .n_parts = n, .cut = cut);
                    for (size_t r = 0; r < ROWS && pass == 1; r++)
                        memcpy(d + r * COLS + cut.first, block + r * held, held * sizeof *block);
                }
            if (n == 1) {
                expect_same_bits(&got, &want, 1, "loss", "in one block");
                expect_same_bits(d, out, N, "d_logits", "in one block");
            }
            assert_true(fabs((double)got - (double)want) <=
                        ROWS * bound + 0x1p-23 * fabs((double)want));
            for (size_t i = 0; i < N; i++)
                assert_true(fabs((double)d[i] - (double)out[i]) <= bound);
        }
}

/* A loss whose rows are split over two calls has the bits of one call. */
TEST(test_loss_in_two_calls)
{
    static float in[N], out[2][N];
    ops_test_fill(1, 1.0f, in, N);
    for (int t = 0; t < 2; t++) {
        float loss[2];
        double total = 0.0;
        enum { FIRST = 2 };
        CALL(ops_table(t), s, cross_entropy, loss, out[0], in, TARGETS, ROWS, COLS, 0, DTYPE_F32,
             NULL, 0, 0, NULL, 0, {0, 0});
        for (int part = 0; part < 2; part++)
            CALL(ops_table(t), s, cross_entropy, loss + 1, out[1] + part * FIRST * COLS,
                 in + part * FIRST * COLS, TARGETS + part * FIRST, part ? ROWS - FIRST : FIRST,
                 COLS, 0, DTYPE_F32, &total, 0, 0, NULL, 0, {0, 0});
        expect_same_bits(out[1], out[0], N, "cross_entropy", "in two calls");
        expect_same_bits(&loss[1], &loss[0], 1, "loss", "in two calls");
    }
}

TEST(test_numbers_outside_the_vocabulary)
{
    static const int32_t BAD[] = {3, NO_TARGET, 3, NO_TARGET, 3, -1};
    static const char *const SAYS[] = {"token 3",
                                       "token -100",
                                       "token 3",
                                       "token -100",
                                       "target 3 in row 2, expected 0 ... 2",
                                       "target -1 in row 2, expected 0 ... 2"};
    for (int i = 0; i < 6; i++) {
        /* an error stays with its stream, so each call gets a stream of its own */
        device *d = ops_test_device(2, false);
        const int32_t numbers[3] = {0, 1, BAD[i]};
        float x[2][9] = {{0}};
        const fsdp_status status =
            ops_bad_call(i / 2, ops_cpu_fast(), device_compute_stream(d), x[0], x[1], numbers);
        assert_int_equal(status, FSDP_EINVAL);
        assert_says(SAYS[i]);
        device_close(d);
    }
}

TEST(test_bad_shapes)
{
    static const struct {
        conv_shape shape;
        const char *says;
    } CONVS[] = {{{1, 1, 1, 9, 5, 0, DTYPE_F32}, "a kernel of 0 x 0, expected 1 to 5 rows"},
                 {{1, 1, 1, 9, 5, 6, DTYPE_F32}, "a kernel of 6 x 6, expected 1 to 5 rows"},
                 {{1, 0, 1, 9, 5, 3, DTYPE_F32}, "0 channels to 1"},
                 {{1, 1, 0, 9, 5, 3, DTYPE_F32}, "1 channels to 0"}};
    static const char *const WIDTHS[] = {"are 0 wide and heads of v 1",
                                         "are 1 wide and heads of v 0"};
    static const float BAD_P[] = {-0.1f, 1.0f, NAN};
    const ops *o = ops_cpu_fast();
    for (int i = 0; i < 4; i++) {
        const conv_shape x = CONVS[i].shape;
        REFUSED(FSDP_EINVAL, o->conv2d(s, &(conv2d_args){.shape = x}), CONVS[i].says);
        REFUSED(FSDP_EINVAL, o->conv2d_backward(s, &(conv2d_backward_args){.shape = x}),
                CONVS[i].says);
    }
    for (size_t d = 0; d < 2; d++) { /* leave out one width */
        const attention_shape x = {1, 1, 1, 1, 1, 1, 1, d, 1 - d, 1.0f, DTYPE_F32};
        REFUSED(FSDP_EINVAL, o->attention(s, &(attention_args){.shape = x}), WIDTHS[d]);
        assert_non_null(strstr(fsdp_error_get()->hint, "set both widths"));
        REFUSED(FSDP_EINVAL, o->attention_backward(s, &(attention_backward_args){.shape = x}),
                WIDTHS[d]);
    }
    for (int i = 0; i < 3; i++) {
        float x = 1.0f;
        REFUSED(FSDP_EINVAL, o->dropout(s, &(dropout_args){&x, &x, 1, 1, .p = BAD_P[i]}),
                "expected 0 <= p < 1");
    }
}

/* tile number 7 fails. */
static fsdp_status failing_tile(const void *args, size_t tile)
{
    return tile == 7 ? fsdp_error(FSDP_EIO, "", "tile %zu", tile) : FSDP_OK;
}

TEST(test_error_of_a_tile_reaches_the_caller)
{
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        fsdp_error(FSDP_EINVAL, "", "an older error");
        assert_int_equal(tiles_run(n_threads, 20, failing_tile, NULL), FSDP_EIO);
        assert_string_equal(fsdp_error_get()->what, "tile 7");
        assert_int_equal(tiles_run(n_threads, 7, failing_tile, NULL), FSDP_OK);
    }
}

/* ---- dropout --------------------------------------------------------------------------------- */

/* The choice for an element depends only on the element's place in the run. */

enum { WIDTH = 1003, SAMPLES = 60, MASK_ELEMS = SAMPLES * WIDTH };

static dropout_args drop_in(float *x)
{
    return (dropout_args){.out = x,
                          .in = x,
                          .samples = SAMPLES,
                          .width = WIDTH,
                          .p = 0.25f,
                          .seed = 3,
                          .first_sample = 1000,
                          .layer = 1};
}

/* Dropout of ones, so that the output says what was kept. Both tables share dropout. */
static void drop_ones(const dropout_args *a)
{
    for (size_t i = 0; i < a->samples * a->width; i++)
        ((float *)a->out)[i] = 1.0f;
    OK(ops_cpu_portable()->dropout(s, a));
}

static float mask[MASK_ELEMS], other[MASK_ELEMS];

/* The number of dropped elements has a standard deviation of sqrt(n p (1-p)). 5 of these are never
 * exceeded. */
TEST(test_dropped_fraction)
{
    static const float P[] = {0.0f, 0.1f, 0.25f, 0.5f, 0.9f};
    for (int i = 0; i < 5; i++) {
        dropout_args a = drop_in(mask);
        const double p = (double)P[i];
        size_t n = 0;
        a.p = P[i];
        drop_ones(&a);
        for (size_t e = 0; e < MASK_ELEMS; e++) {
            n += mask[e] == 0.0f;
            assert_true(mask[e] == 0.0f || mask[e] == (float)(1.0 / (1.0 - p)));
        }
        assert_true(fabs((double)n - MASK_ELEMS * p) <= 5 * sqrt(MASK_ELEMS * p * (1 - p)));
    }
}

/* A sample has one mask, however the samples are divided into calls and whatever the input is. */
TEST(test_same_mask)
{
    dropout_args a = drop_in(mask);
    drop_ones(&a);
    for (size_t first = 0, n = 1; first < SAMPLES; first += n, n = n * 2 + 1) {
        a = drop_in(other + first * WIDTH);
        a.samples = n < SAMPLES - first ? n : SAMPLES - first;
        a.first_sample += first;
        drop_ones(&a);
    }
    expect_same_bits(other, mask, MASK_ELEMS, "dropout", "in several calls");
    ops_test_fill(1, 1.0f, other, MASK_ELEMS); /* like a gradient */
    a = drop_in(other);
    OK(ops_cpu_portable()->dropout(s, &a));
    for (size_t e = 0; e < MASK_ELEMS; e++)
        assert_true((other[e] == 0.0f) == (mask[e] == 0.0f));
}

/* Unrelated masks differ in 2 p (1-p) of the elements. */
static void expect_unlike(const float *x, const float *y, size_t elems, const char *what)
{
    const double p = 2 * 0.25 * 0.75, n = (double)elems;
    double differ = 0;
    for (size_t e = 0; e < elems; e++)
        differ += (x[e] == 0.0f) != (y[e] == 0.0f);
    if (fabs(differ - n * p) > 5 * sqrt(n * p * (1 - p)))
        fail_msg("%s: %g of %g elements differ, expected %g", what, differ, n, n * p);
}

TEST(test_other_masks)
{
    dropout_args a = drop_in(mask);
    drop_ones(&a);
    expect_unlike(mask, mask + WIDTH, MASK_ELEMS - WIDTH, "the next sample");
    expect_unlike(mask, mask + 1, MASK_ELEMS - 1, "the next element");
    expect_unlike(mask, mask + 4, MASK_ELEMS - 4, "the next call of Philox");
    for (int what = 0; what < 4; what++) {
        static const char *const NAMES[] = {"another seed", "another layer", "the next epoch",
                                            "a sample 2^32 later"};
        a = drop_in(other);
        a.seed += what == 0;
        a.layer += what == 1;
        a.first_sample += what == 2 ? 60000 : what == 3 ? (uint64_t)1 << 32 : 0;
        drop_ones(&a);
        expect_unlike(mask, other, MASK_ELEMS, NAMES[what]);
    }
}

/* ---- norm, clipping, scalars ----------------------------------------------------------------- */

static float coef_of(double sum_of_squares, float max_norm, float *norm)
{
    rsum sum = {0};
    const float root = (float)sqrt(sum_of_squares);
    float coef;
    rsum_add_squares(&sum, &root, 1);
    CALL(ops_cpu_fast(), s, clip_coef, norm, &coef, &sum, max_norm);
    return coef;
}

TEST(test_sum_squares_adds)
{
    enum { MANY = 100001 };
    float *x = malloc(MANY * sizeof *x);
    double expected = 9.0;
    for (size_t i = 0; i < MANY; i++) {
        x[i] = (float)(i % 11) - 5.0f; /* small whole numbers, so the double sum is exact */
        expected += (double)x[i] * (double)x[i];
    }
    rsum sum = {0};
    rsum_add_squares(&sum, &(float){3.0f}, 1);
    CALL(ops_cpu_fast(), s, sum_squares, .sum = &sum, .x = x, .elems = MANY);
    assert_true(rsum_value(&sum) == expected);
    free(x);
}

TEST(test_clip_coef)
{
    float norm;
    assert_true(coef_of(16.0, 1.0f, &norm) == 1.0f / (4.0f + 1e-6f));
    assert_true(norm == 4.0f);
    assert_true(coef_of(16.0, 5.0f, &norm) == 1.0f); /* below the limit: not scaled up */
    assert_true(coef_of(16.0, 0.0f, &norm) == 1.0f); /* 0: no clipping */
    assert_true(norm == 4.0f);
    assert_true(coef_of(0.0, 1.0f, &norm) == 1.0f && norm == 0.0f);
    assert_true(coef_of(INFINITY, 1.0f, &norm) == 1.0f && isinf(norm));
    assert_true(coef_of(NAN, 1.0f, &norm) == 1.0f && isnan(norm));
}

TEST(test_scale)
{
    const float x = 1.7f, factor = 0.1f;
    float y = x;
    CALL(ops_cpu_fast(), s, scale, &y, factor, 1);
    assert_true(y == x * factor);
}

/* Repeated multiplication of n factors is off by at most n halves of DBL_EPSILON. In fp32 this
 * shows only at a rounding boundary, as 1 ulp. */
TEST(test_adamw_scalars)
{
    static const int64_t STEPS[] = {0, 1, 9, 1000, 100000};
    for (size_t i = 0; i < 5; i++) {
        adamw_args a = {0};
        const double t = (double)STEPS[i] + 1.0;
        const optim_config config = {.lr = 3e-4,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .eps = 1e-8,
                                     .weight_decay = 0.1,
                                     .step = STEPS[i]};
        adamw_scalars(&a, &config);
        const double step_size = 3e-4 / (1.0 - pow(0.9, t)), root = sqrt(1.0 - pow(0.95, t));
        assert_true(fabs((double)a.step_size - step_size) <= step_size * FLT_EPSILON);
        assert_true(fabs((double)a.sqrt_bias2 - root) <= root * FLT_EPSILON);
        assert_true(a.beta1 == 0.9f && a.one_minus_beta1 == (float)(1.0 - 0.9));
        assert_true(a.beta2 == 0.95f && a.one_minus_beta2 == (float)(1.0 - 0.95));
        assert_true(a.decay == (float)(3e-4 * 0.1) && a.eps == 1e-8f);
    }
}

int main(void)
{
    return tests_run(setup, ops_test_close);
}
