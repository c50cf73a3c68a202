/* test_ops.c -- the rules of ops.h that hold for every operation: no dependence on threads, streams
 * or an element's place; counts of 0; aliasing; errors. Values are test_ops_values.c's business. */
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/device_impl.h"
#include "common/ops/cpu_kernels.h"
#include "common/sum/rsum_digits.h"
#include "tests/unit/ops_check_lib.h"

/* Every test that needs one device runs on this: inline, 2 threads. */
static stream *s;

static int setup(void **state)
{
    s = ops_test_open(state);
    return 0;
}

/* ---- threads and streams -------------------------------------------------------------------- */

/* OpenMP's own setting differs too: oneDNN's deep products of one row or column change with it when
 * nothing holds them to one thread. */
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

static void test_thread_count_changes_no_bit(void **state)
{
    (void)state;
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

static void test_worker_streams(void **state)
{
    (void)state;
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

/* oneDNN is held to one thread by a setting of the calling thread, which must come back. */
static void test_openmp_setting_is_restored(void **state)
{
    (void)state;
    const int before = omp_get_max_threads();
    omp_set_num_threads(3);
    float a[4] = {1, 2, 3, 4}, out[4];
    OK(ops_cpu_fast()->matmul(s,
                              &(matmul_args){.out = out, .a = a, .b = a, .m = 2, .n = 2, .k = 2}));
    assert_int_equal(omp_get_max_threads(), 3);
    omp_set_num_threads(before);
}

/* The two tables share all but the products of matrices. There both sum k terms of about normal
 * distribution in different orders. A partial sum of j terms is about sqrt(j), each addition
 * rounds by half an eps of it: a standard deviation of eps/2 sqrt(1 + 2 + ... + k) < eps k / 2; the
 * bound is 16 of these. Attention's sums are over T and D, at most 264 long. Stored in bf16, two
 * such results may round to neighbours, which are at most 2^-7 of their size apart. Attention's
 * backward reads such an out: d_out . out is then off by 2^-7 of a term, below 8 in size, and a
 * gradient by a quarter of that times a probability and an element: 2^-6. */
static void test_fast_is_close_to_portable(void **state)
{
    (void)state;
    for (size_t i = 0; i < ops_case_count(); i++) {
        const char *name = ops_case_name(i);
        ops_result fast = ops_case_run(i, ops_cpu_fast(), s);
        ops_result portable = ops_case_run(i, ops_cpu_portable(), s);
        const bool deep = strstr(name, "deep") != NULL;
        const bool is_attention = strncmp(name, "attention", 9) == 0;
        const bool is_conv = strncmp(name, "conv2d", 6) == 0;
        const double through_out = is_attention && fast.type == DTYPE_BF16 ? 1.0 / 64 : 0.0;
        const double rounding = fast.type == DTYPE_BF16 ? 1.0 / 128 : 0.0;
        if (strncmp(name, "matmul", 6) != 0 && !is_attention && !is_conv)
            expect_same_bits(fast.data, portable.data, fast.elems, name, "fast and portable");
        for (size_t e = 0; e < fast.elems; e++) {
            const double bound = 8.0 * FLT_EPSILON * (deep ? 2053 : 300) + through_out +
                                 rounding * fabs((double)portable.data[e]);
            if (!(fabs((double)fast.data[e] - (double)portable.data[e]) <= bound))
                fail_msg("%s: element %zu is %.9g, portable %.9g", name, e, (double)fast.data[e],
                         (double)portable.data[e]);
        }
        free(fast.data);
        free(portable.data);
    }
}

/* ---- an element's place --------------------------------------------------------------------- */

enum { SHIFT_ELEMS = 131, SHIFTS = 19 };

/* The arrays of one element-wise call, all shifted alike. */
typedef struct vectors {
    float x[SHIFT_ELEMS], y[SHIFT_ELEMS], z[SHIFT_ELEMS], grad[SHIFT_ELEMS];
} vectors;

typedef void (*elementwise_fn)(vectors *v, size_t shift, size_t elems);

static void call_add(vectors *v, size_t shift, size_t elems)
{
    OK(ops_cpu_fast()->add(
        s, &(add_args){v->x + shift, v->x + shift, v->y + shift, elems, DTYPE_F32}));
}

static void call_scale(vectors *v, size_t shift, size_t elems)
{
    OK(ops_cpu_fast()->scale(s, &(scale_args){v->x + shift, 1.1f, elems}));
}

static void call_gelu(vectors *v, size_t shift, size_t elems)
{
    OK(ops_cpu_fast()->gelu(s, &(gelu_args){v->x + shift, v->x + shift, elems, DTYPE_F32}));
    OK(ops_cpu_fast()->gelu_backward(
        s, &(gelu_backward_args){v->y + shift, v->y + shift, v->grad + shift, elems, DTYPE_F32}));
}

static void call_adamw(vectors *v, size_t shift, size_t elems)
{
    adamw_args a = {.param = v->x + shift,
                    .m = v->y + shift,
                    .v = v->z + shift,
                    .grad = v->grad + shift,
                    .elems = elems};
    adamw_scalars(
        &a,
        &(optim_config){
            .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .step = 4});
    OK(ops_cpu_fast()->adamw(s, &a));
}

static void call_sgd(vectors *v, size_t shift, size_t elems)
{
    OK(ops_cpu_fast()->sgd(s, &(sgd_args){.param = v->x + shift,
                                          .grad = v->grad + shift,
                                          .elems = elems,
                                          .lr = 0.1f,
                                          .weight_decay = 0.3f}));
}

static void call_momentum(vectors *v, size_t shift, size_t elems)
{
    OK(ops_cpu_fast()->sgd(s, &(sgd_args){.param = v->x + shift,
                                          .momentum_buffer = v->y + shift,
                                          .grad = v->grad + shift,
                                          .elems = elems,
                                          .lr = 0.1f,
                                          .weight_decay = 0.3f,
                                          .momentum = 0.9f,
                                          .nesterov = true}));
}

static void call_adadelta(vectors *v, size_t shift, size_t elems)
{
    OK(ops_cpu_fast()->adadelta(s, &(adadelta_args){.param = v->x + shift,
                                                    .square_avg = v->z + shift,
                                                    .acc_delta = v->y + shift,
                                                    .grad = v->grad + shift,
                                                    .elems = elems,
                                                    .lr = 0.1f,
                                                    .rho = 0.9f,
                                                    .one_minus_rho = 0.1f,
                                                    .eps = 1e-6f}));
}

static void fill_vectors(vectors *v)
{
    ops_test_fill(1, 1.0f, v->x, SHIFT_ELEMS);
    ops_test_fill(2, 1.0f, v->y, SHIFT_ELEMS);
    ops_test_fill(3, 1.0f, v->z, SHIFT_ELEMS);
    ops_test_fill(4, 1.0f, v->grad, SHIFT_ELEMS);
    for (size_t i = 0; i < SHIFT_ELEMS; i++) { /* averages of squares */
        v->y[i] *= v->y[i];
        v->z[i] *= v->z[i];
    }
}

/* A vector's tail must round as its body does: a call on [shift, end) changes what it covers as a
 * call on everything does, and nothing before or after. */
static void test_place_changes_no_bit(void **state)
{
    (void)state;
    static const elementwise_fn CALLS[] = {call_add, call_scale,    call_gelu,    call_adamw,
                                           call_sgd, call_momentum, call_adadelta};
    for (size_t c = 0; c < sizeof CALLS / sizeof CALLS[0]; c++) {
        vectors before, whole;
        fill_vectors(&before);
        whole = before;
        CALLS[c](&whole, 0, SHIFT_ELEMS);
        for (size_t shift = 0; shift < SHIFTS; shift++) {
            vectors part = before, expected = before;
            const size_t elems = SHIFT_ELEMS - shift - shift / 3;
            CALLS[c](&part, shift, elems);
            float *to[] = {expected.x, expected.y, expected.z};
            const float *from[] = {whole.x, whole.y, whole.z};
            for (int i = 0; i < 3; i++)
                memcpy(to[i] + shift, from[i] + shift, elems * sizeof(float));
            assert_memory_equal(&part, &expected, sizeof part);
        }
    }
}

/* ---- counts of 0, aliasing, errors ----------------------------------------------------------- */

static void images_of_zero(const ops *o, float *out, dtype type)
{
    OK(o->conv2d(s, &(conv2d_args){.out = out, .shape = {0, 1, 2, 3, 3, 2, type}}));
    OK(o->conv2d_backward(
        s, &(conv2d_backward_args){.d_weight = out, .shape = {0, 1, 2, 3, 3, 2, type}}));
    OK(o->max_pool2d(
        s, &(max_pool2d_args){.out = out, .planes = 2, .height = 1, .width = 2, .type = type}));
    OK(o->max_pool2d_backward(
        s, &(max_pool2d_backward_args){.d_in = out, .height = 2, .width = 2, .type = type}));
    OK(o->relu(s, &(relu_args){.out = out, .type = type}));
    OK(o->relu_backward(s, &(relu_backward_args){.d_in = out, .type = type}));
    OK(o->dropout(s, &(dropout_args){.out = out, .width = 3, .type = type}));
}

static void test_zero_counts_do_nothing(void **state)
{
    (void)state;
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (int t = 0; t < 4; t++) {
        const ops *o = ops_table(t % 2);
        const dtype type = types[t / 2];
        float out[6] = {1, 2, 3, 4, 5, 6};
        const float kept[6] = {1, 2, 3, 4, 5, 6};
        rsum sum = {0};
        OK(o->matmul(s, &(matmul_args){.out = out, .n = 3, .k = 2, .type = type}));
        OK(o->matmul(s, &(matmul_args){.out = out, .m = 3, .k = 2, .type = type}));
        OK(o->matmul(s,
                     &(matmul_args){.out = out, .m = 2, .n = 3, .accumulate = true, .type = type}));
        OK(o->bias_backward(s, &(bias_backward_args){.d_bias = out, .cols = 3, .type = type}));
        OK(o->embedding(
            s, &(embedding_args){.out = out, .seq_len = 3, .width = 2, .vocab = 5, .type = type}));
        OK(o->embedding_backward(
            s, &(embedding_backward_args){
                   .d_wte = out, .batch = 1, .width = 2, .vocab = 5, .type = type}));
        OK(o->layernorm(s, &(layernorm_args){.out = out, .cols = 3, .type = type}));
        OK(o->layernorm_backward(
            s, &(layernorm_backward_args){.d_gain = out, .cols = 3, .type = type}));
        OK(o->gelu(s, &(gelu_args){.out = out, .type = type}));
        OK(o->gelu_backward(s, &(gelu_backward_args){.d_in = out, .type = type}));
        images_of_zero(o, out, type);
        OK(o->attention(s, &(attention_args){
                               .out = out, .shape = {.n_head = 2, .n_kv_head = 1, .type = type}}));
        OK(o->attention_backward(
            s, &(attention_backward_args){.d_q = out, .shape = {.seq_len = 3, .type = type}}));
        OK(o->add(s, &(add_args){.out = out}));
        OK(o->scale(s, &(scale_args){.x = out, .factor = 2.0f}));
        OK(o->sum_squares(s, &(sum_squares_args){.sum = &sum}));
        OK(o->adamw(s, &(adamw_args){.param = out}));
        OK(o->sgd(s, &(sgd_args){.param = out}));
        OK(o->adadelta(s, &(adadelta_args){.param = out}));
        assert_memory_equal(out, kept, sizeof out);
        assert_true(rsum_value(&sum) == 0.0);

        /* no terms: the product and the loss are empty sums */
        OK(o->matmul(s, &(matmul_args){.out = out, .m = 2, .n = 3, .type = type}));
        OK(o->cross_entropy(s, &(cross_entropy_args){.loss = out + 5, .vocab = 7, .type = type}));
        assert_memory_equal(out, ((float[6]){0}), sizeof out);
    }
}

static void test_allowed_aliasing(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 37, N = ROWS * COLS };
    const ops *o = ops_cpu_fast();
    float in[N], d[N], out[N], loss[2];
    const int32_t targets[ROWS] = {0, 36, 5, 5, 20};
    ops_test_fill(1, 1.0f, in, N);
    ops_test_fill(3, 1.0f, d, N);
    float x[N];

    memcpy(x, in, sizeof x);
    matmul_args product = {.out = out, .a = in, .b = in, .residual = d, .m = 5, .n = 7, .k = 7};
    OK(o->matmul(s, &product));
    memcpy(x, d, sizeof x);
    product.out = x, product.residual = x;
    OK(o->matmul(s, &product));
    expect_same_bits(x, out, 5 * 7, "matmul", "residual == out");

    memcpy(x, in, sizeof x);
    OK(o->gelu(s, &(gelu_args){out, in, N, DTYPE_F32}));
    OK(o->gelu(s, &(gelu_args){x, x, N, DTYPE_F32}));
    expect_same_bits(x, out, N, "gelu", "in place");

    memcpy(x, d, sizeof x);
    OK(o->gelu_backward(s, &(gelu_backward_args){out, d, in, N, DTYPE_F32}));
    OK(o->gelu_backward(s, &(gelu_backward_args){x, x, in, N, DTYPE_F32}));
    expect_same_bits(x, out, N, "gelu_backward", "d_in == d_out");

    memcpy(x, in, sizeof x);
    OK(o->add(s, &(add_args){out, in, d, N, DTYPE_F32}));
    OK(o->add(s, &(add_args){x, d, x, N, DTYPE_F32}));
    expect_same_bits(x, out, N, "add", "out == b");

    memcpy(x, in, sizeof x);
    OK(o->cross_entropy(
        s, &(cross_entropy_args){&loss[0], out, in, targets, ROWS, COLS, DTYPE_F32, NULL}));
    OK(o->cross_entropy(
        s, &(cross_entropy_args){&loss[1], x, x, targets, ROWS, COLS, DTYPE_F32, NULL}));
    expect_same_bits(x, out, N, "cross_entropy", "d_logits == logits");
    expect_same_bits(&loss[1], &loss[0], 1, "loss", "d_logits == logits");
    OK(o->cross_entropy(
        s, &(cross_entropy_args){&loss[1], NULL, in, targets, ROWS, COLS, DTYPE_F32, NULL}));
    expect_same_bits(&loss[1], &loss[0], 1, "loss", "without d_logits");
}

static void test_allowed_aliasing_of_images(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 37, N = ROWS * COLS };
    const ops *o = ops_cpu_fast();
    float in[N], d[N], out[N], x[N];
    ops_test_fill(1, 1.0f, in, N);
    ops_test_fill(3, 1.0f, d, N);

    memcpy(x, in, sizeof x);
    OK(o->relu(s, &(relu_args){out, in, N, DTYPE_F32}));
    OK(o->relu(s, &(relu_args){x, x, N, DTYPE_F32}));
    expect_same_bits(x, out, N, "relu", "in place");

    memcpy(x, d, sizeof x);
    OK(o->relu_backward(s, &(relu_backward_args){out, d, in, N, DTYPE_F32}));
    OK(o->relu_backward(s, &(relu_backward_args){x, x, in, N, DTYPE_F32}));
    expect_same_bits(x, out, N, "relu_backward", "d_in == d_out");

    memcpy(x, in, sizeof x);
    dropout_args drop = {.out = out, .in = in, .samples = ROWS, .width = COLS, .p = 0.5f};
    OK(o->dropout(s, &drop));
    drop.out = x, drop.in = x;
    OK(o->dropout(s, &drop));
    expect_same_bits(x, out, N, "dropout", "in place");
}

/* A loss whose rows are taken in two calls has the bits of one call. */
static void test_loss_in_two_calls(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 37, N = ROWS * COLS };
    float in[N], out[2][N], loss[2];
    double total = 0.0;
    const int32_t targets[ROWS] = {0, 36, 5, 5, 20};
    ops_test_fill(1, 1.0f, in, N);
    const ops *tables[] = {ops_cpu_fast(), ops_cpu_portable()};
    for (int t = 0; t < 2; t++) {
        cross_entropy_args all = {loss, out[0], in, targets, ROWS, COLS, DTYPE_F32, NULL};
        cross_entropy_args part = {loss + 1, out[1], in, targets, 2, COLS, DTYPE_F32, &total};
        total = 0.0;
        OK(tables[t]->cross_entropy(s, &all));
        OK(tables[t]->cross_entropy(s, &part));
        part =
            (cross_entropy_args){loss + 1, out[1] + 2 * COLS, in + 2 * COLS, targets + 2, ROWS - 2,
                                 COLS,     DTYPE_F32,         &total};
        OK(tables[t]->cross_entropy(s, &part));
        expect_same_bits(out[1], out[0], N, "cross_entropy", "in two calls");
        expect_same_bits(&loss[1], &loss[0], 1, "loss", "in two calls");
    }
}

static void test_numbers_outside_the_vocabulary(void **state)
{
    (void)state;
    const ops *o = ops_cpu_fast();
    float wte[6] = {0}, out[4], loss = 0.0f;
    static const int32_t BAD[] = {3, -1};
    for (int i = 0; i < 2; i++) {
        const int32_t tokens[2] = {0, BAD[i]};
        /* an error stays with its stream, so each call gets a stream of its own */
        for (int call = 0; call < 3; call++) {
            device *d = ops_test_device(2, false);
            stream *own = device_compute_stream(d);
            fsdp_status status;
            if (call == 0)
                status = o->embedding(
                    own, &(embedding_args){out, wte, NULL, tokens, 1, 2, 2, 3, DTYPE_F32});
            else if (call == 1)
                status = o->embedding_backward(
                    own, &(embedding_backward_args){wte, NULL, out, tokens, 1, 2, 2, 3, DTYPE_F32});
            else
                status = o->cross_entropy(
                    own, &(cross_entropy_args){&loss, NULL, wte, tokens, 2, 3, DTYPE_F32, NULL});
            assert_int_equal(status, FSDP_EINVAL);
            assert_non_null(strstr(fsdp_error_get()->what, BAD[i] < 0 ? "-1" : "3"));
            device_close(d);
        }
    }
}

static void test_bad_shapes(void **state)
{
    (void)state;
    const ops *o = ops_cpu_fast();
    for (size_t kernel = 0; kernel <= 6; kernel += 6) { /* images of 9 x 5 */
        const conv_shape shape = {1, 1, 1, 9, 5, kernel, DTYPE_F32};
        char got[32];
        snprintf(got, sizeof got, "a kernel of %zu x %zu", kernel, kernel);
        assert_int_equal(o->conv2d(s, &(conv2d_args){.shape = shape}), FSDP_EINVAL);
        assert_non_null(strstr(fsdp_error_get()->what, got));
        assert_non_null(strstr(fsdp_error_get()->what, "expected 1 to 5 rows"));
        assert_int_equal(o->conv2d_backward(s, &(conv2d_backward_args){.shape = shape}),
                         FSDP_EINVAL);
    }
    for (size_t d = 0; d < 2; d++) { /* one width is left out */
        const attention_shape shape = {1, 1, 1, 1, 1, 1, 1, d, 1 - d, 1.0f, DTYPE_F32};
        assert_int_equal(o->attention(s, &(attention_args){.shape = shape}), FSDP_EINVAL);
        assert_non_null(strstr(fsdp_error_get()->what,
                               d ? "are 1 wide and heads of v 0" : "are 0 wide and heads of v 1"));
        assert_non_null(strstr(fsdp_error_get()->hint, "set both widths"));
        assert_int_equal(o->attention_backward(s, &(attention_backward_args){.shape = shape}),
                         FSDP_EINVAL);
    }
    for (size_t in = 0; in <= 1; in++) {
        const conv_shape shape = {1, in, 1 - in, 9, 5, 3, DTYPE_F32};
        char got[32];
        snprintf(got, sizeof got, "%zu channels to %zu", in, 1 - in);
        assert_int_equal(o->conv2d(s, &(conv2d_args){.shape = shape}), FSDP_EINVAL);
        assert_non_null(strstr(fsdp_error_get()->what, got));
        assert_int_equal(o->conv2d_backward(s, &(conv2d_backward_args){.shape = shape}),
                         FSDP_EINVAL);
    }
    static const float BAD[] = {-0.1f, 1.0f, NAN};
    for (int i = 0; i < 3; i++) {
        float x = 1.0f;
        assert_int_equal(
            o->dropout(s,
                       &(dropout_args){.out = &x, .in = &x, .samples = 1, .width = 1, .p = BAD[i]}),
            FSDP_EINVAL);
        assert_non_null(strstr(fsdp_error_get()->what, "expected 0 <= p < 1"));
    }
}

/* tile number 7 fails. */
static fsdp_status failing_tile(const void *args, size_t tile)
{
    (void)args;
    return tile == 7 ? fsdp_error(FSDP_EIO, "", "tile %zu", tile) : FSDP_OK;
}

static void test_error_of_a_tile_reaches_the_caller(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        fsdp_error(FSDP_EINVAL, "", "an older error");
        assert_int_equal(tiles_run(n_threads, 20, failing_tile, NULL), FSDP_EIO);
        assert_string_equal(fsdp_error_get()->what, "tile 7");
        assert_int_equal(tiles_run(n_threads, 7, failing_tile, NULL), FSDP_OK);
    }
}

/* ---- norm, clipping, scalars ----------------------------------------------------------------- */

static float coef_of(double sum_of_squares, float max_norm, float *norm)
{
    rsum sum = {0};
    const float root = (float)sqrt(sum_of_squares);
    float coef;
    rsum_add_squares(&sum, &root, 1);
    OK(ops_cpu_fast()->clip_coef(s, &(clip_coef_args){norm, &coef, &sum, max_norm}));
    return coef;
}

static void test_sum_squares_adds(void **state)
{
    (void)state;
    enum { N = 100001 };
    float *x = malloc(N * sizeof *x);
    double expected = 9.0;
    for (size_t i = 0; i < N; i++) {
        x[i] = (float)(i % 11) - 5.0f; /* small whole numbers: the double sum is exact */
        expected += (double)x[i] * (double)x[i];
    }
    rsum sum = {0};
    rsum_add_squares(&sum, &(float){3.0f}, 1);
    OK(ops_cpu_fast()->sum_squares(s, &(sum_squares_args){&sum, x, N}));
    assert_true(rsum_value(&sum) == expected);
    free(x);
}

static void test_clip_coef(void **state)
{
    (void)state;
    float norm;
    assert_true(coef_of(16.0, 1.0f, &norm) == 1.0f / (4.0f + 1e-6f));
    assert_true(norm == 4.0f);
    assert_true(coef_of(16.0, 5.0f, &norm) == 1.0f); /* below the limit: never scaled up */
    assert_true(coef_of(16.0, 0.0f, &norm) == 1.0f); /* 0: no clipping */
    assert_true(norm == 4.0f);
    assert_true(coef_of(0.0, 1.0f, &norm) == 1.0f && norm == 0.0f);
    assert_true(coef_of(INFINITY, 1.0f, &norm) == 1.0f && isinf(norm));
    assert_true(coef_of(NAN, 1.0f, &norm) == 1.0f && isnan(norm));
}

/* Repeated multiplication of n factors is off by at most n halves of DBL_EPSILON, which fp32 does
 * not show but at a rounding boundary: 1 ulp of fp32. */
static void test_adamw_scalars(void **state)
{
    (void)state;
    static const int64_t STEPS[] = {0, 1, 9, 1000, 100000};
    for (size_t i = 0; i < 5; i++) {
        adamw_args a = {0};
        const double t = (double)STEPS[i] + 1.0;
        adamw_scalars(&a, &(optim_config){.lr = 3e-4,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .weight_decay = 0.1,
                                          .step = STEPS[i]});
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_count_changes_no_bit),
        cmocka_unit_test(test_worker_streams),
        cmocka_unit_test(test_openmp_setting_is_restored),
        cmocka_unit_test(test_fast_is_close_to_portable),
        cmocka_unit_test(test_place_changes_no_bit),
        cmocka_unit_test(test_zero_counts_do_nothing),
        cmocka_unit_test(test_allowed_aliasing),
        cmocka_unit_test(test_allowed_aliasing_of_images),
        cmocka_unit_test(test_loss_in_two_calls),
        cmocka_unit_test(test_numbers_outside_the_vocabulary),
        cmocka_unit_test(test_bad_shapes),
        cmocka_unit_test(test_error_of_a_tile_reaches_the_caller),
        cmocka_unit_test(test_sum_squares_adds),
        cmocka_unit_test(test_clip_coef),
        cmocka_unit_test(test_adamw_scalars),
    };
    return cmocka_run_group_tests(tests, setup, ops_test_close);
}
