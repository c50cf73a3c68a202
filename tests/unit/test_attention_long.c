/* test_attention_long.c -- attention over 4096 keys and more: 65 blocks, the last one partial,
 * forward and backward against plain loops in double, and the memory that it takes.
 *
 * Sampled queries alone have a d_out: backward's results are then sums over these, so that the
 * reference costs a fraction of T*T, and d_k and d_v are compared for every key. Each block is
 * sampled at its edges and at those of its strips.
 *
 * Every bound is the first order of rounding, u = 2^-24, any order of a sum of n terms: (n-1) u
 * times the sum of their sizes. Sums over queries or keys: within a block, then over blocks. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/base/under_asan.h"
#include "tests/unit/ops_check_lib.h"

enum { H = 2, D = 8, N = H * D, BLOCK = 64, LONG = 4096 };

static const double U = FLT_EPSILON / 2;
static stream *s;

static int setup(void **state)
{
    s = ops_test_open(state);
    return 0;
}

/* ---- one case: inputs, the reference, how far off a result may be ---------------------------- */

typedef struct reference {
    double *value, *bound;
} reference;

typedef struct long_case {
    size_t T, n_kv, stride; /* of a row of qkv: q [N], k [n_kv*D], v [n_kv*D] */
    float scale;
    float *qkv, *d_out;          /* [T,stride], [T,N] */
    reference out, lse, d_qkv;   /* [T,N] and [H,T], sampled queries alone; [T,stride] */
    double *score, *p, *abs_out; /* of one query: [T], [T]; sum of p |v|: [D] */
} long_case;

static bool is_sampled(size_t t, size_t T)
{
    const size_t at = t % BLOCK;
    return at == 0 || at == 31 || at == 32 || at == 63 || at == t / BLOCK * 7 % BLOCK || t + 1 == T;
}

static reference reference_new(size_t elems)
{
    return (reference){calloc(elems, sizeof(double)), calloc(elems, sizeof(double))};
}

static void reference_free(reference *r)
{
    free(r->value), free(r->bound);
}

static const float *row_of(const long_case *c, size_t t, size_t part)
{
    return c->qkv + t * c->stride + part;
}

static size_t key_part(const long_case *c, size_t h)
{
    return N + h / (H / c->n_kv) * D;
}

static double dot(const float *a, const float *b, double *size)
{
    double sum = 0.0;
    *size = 0.0;
    for (size_t d = 0; d < D; d++) {
        sum += (double)a[d] * (double)b[d];
        *size += fabs((double)a[d] * (double)b[d]);
    }
    return sum;
}

/* Scores and probabilities of query t, its out and lse. Returns how far off a probability is,
 * relatively: its score (D products and the scale), the shift by the maximum, the exponential (2 u)
 * and the sum of up to t+1 of them, by blocks, each time with a factor for what came before (a
 * rounding each of the shift, the exponential and the product). */
static double forward_query(long_case *c, size_t t, size_t h)
{
    const float *q = row_of(c, t, h * D), *k = row_of(c, 0, key_part(c, h)), *v = k + c->n_kv * D;
    const double scale = (double)c->scale, n_blocks = (double)(t / BLOCK + 1);
    double top = -INFINITY, low = INFINITY, size, most = 0.0, sum = 0.0;
    for (size_t j = 0; j <= t; j++) {
        c->score[j] = scale * dot(q, k + j * c->stride, &size);
        most = fmax(most, scale * size);
        top = fmax(top, c->score[j]), low = fmin(low, c->score[j]);
    }
    for (size_t j = 0; j <= t; j++)
        sum += c->p[j] = exp(c->score[j] - top);
    const double e_score = (D + 1) * U * most + U * (top - low) + 2 * U;
    const double e_sum = (BLOCK + 5 * n_blocks) * U, lse = top + log(sum);
    double *out = c->out.value + t * N + h * D, *out_bound = c->out.bound + t * N + h * D;
    memset(c->abs_out, 0, D * sizeof(double));
    for (size_t j = 0; j <= t; j++) {
        c->p[j] /= sum;
        for (size_t d = 0; d < D; d++) {
            out[d] += c->p[j] * (double)v[j * c->stride + d];
            c->abs_out[d] += c->p[j] * fabs((double)v[j * c->stride + d]);
        }
    }
    /* numerator and denominator, each with e_score and e_sum; the quotient */
    for (size_t d = 0; d < D; d++)
        out_bound[d] = (2 * (e_score + e_sum) + U) * c->abs_out[d];
    c->lse.value[h * c->T + t] = lse;
    c->lse.bound[h * c->T + t] = e_score + e_sum + 2 * U * (1 + fabs(lse) + fabs(top));
    /* backward: exp(score - lse) */
    return e_score + c->lse.bound[h * c->T + t] + U * (top - low) + 2 * U * fabs(lse);
}

/* Adds what query t gives to d_q, d_k, d_v. e_p: see forward_query. */
static void backward_query(long_case *c, size_t t, size_t h, double e_p)
{
    const float *q = row_of(c, t, h * D), *d_out = c->d_out + t * N + h * D;
    const size_t kv = key_part(c, h), q_at = t * c->stride + h * D;
    const double scale = (double)c->scale;
    const double sum_q = (BLOCK + (double)(c->T / BLOCK + 1) * (double)(H / c->n_kv)) * U;
    const double sum_k = (BLOCK + (double)(t / BLOCK + 1)) * U;
    double delta = 0.0, delta_error = 0.0;
    for (size_t d = 0; d < D; d++) {
        const double out = c->out.value[t * N + h * D + d], g = (double)d_out[d];
        delta += g * out;
        delta_error += fabs(g) * (c->out.bound[t * N + h * D + d] + D * U * fabs(out));
    }
    for (size_t j = 0; j <= t; j++) {
        const float *k = row_of(c, j, kv), *v = k + c->n_kv * D;
        double size, d_p = dot(d_out, v, &size), p = c->p[j], ds = p * (d_p - delta) * scale;
        const double error =
            p * scale * (D * U * size + delta_error + (e_p + 3 * U) * (fabs(d_p) + fabs(delta)));
        const size_t k_at = j * c->stride + kv, v_at = k_at + c->n_kv * D;
        for (size_t d = 0; d < D; d++) {
            const double kd = (double)k[d], qd = (double)q[d], g = (double)d_out[d];
            c->d_qkv.value[q_at + d] += ds * kd;
            c->d_qkv.bound[q_at + d] += (error + sum_k * fabs(ds)) * fabs(kd);
            c->d_qkv.value[k_at + d] += ds * qd;
            c->d_qkv.bound[k_at + d] += (error + sum_q * fabs(ds)) * fabs(qd);
            c->d_qkv.value[v_at + d] += p * g;
            c->d_qkv.bound[v_at + d] += (e_p + sum_q) * p * fabs(g);
        }
    }
}

static void case_open(long_case *c, size_t T, size_t n_kv)
{
    const size_t stride = N + 2 * n_kv * D;
    *c = (long_case){.T = T,
                     .n_kv = n_kv,
                     .stride = stride,
                     .scale = 0.5f,
                     .qkv = normals(11, 1.0f, T * stride),
                     .d_out = normals(12, 1.0f, T * N),
                     .out = reference_new(T * N),
                     .lse = reference_new(H * T),
                     .d_qkv = reference_new(T * stride),
                     .score = calloc(T, sizeof(double)),
                     .p = calloc(T, sizeof(double)),
                     .abs_out = calloc(D, sizeof(double))};
    for (size_t t = 0; t < T; t++) {
        if (!is_sampled(t, T))
            memset(c->d_out + t * N, 0, N * sizeof *c->d_out);
        for (size_t h = 0; h < H && is_sampled(t, T); h++)
            backward_query(c, t, h, forward_query(c, t, h));
    }
}

static void case_close(long_case *c)
{
    reference_free(&c->out), reference_free(&c->lse), reference_free(&c->d_qkv);
    free(c->qkv), free(c->d_out), free(c->score), free(c->p), free(c->abs_out);
}

/* ---- running it ----------------------------------------------------------------------------- */

typedef struct outputs {
    float *out, *lse, *d_qkv;
} outputs;

/* NaN: everything must be overwritten. */
static outputs outputs_new(const long_case *c)
{
    return (outputs){filled(NAN, c->T * N), filled(NAN, H * c->T), filled(NAN, c->T * c->stride)};
}

static void outputs_free(outputs *o)
{
    free(o->out), free(o->lse), free(o->d_qkv);
}

static void attention_both(const ops *o, const long_case *c, const outputs *to)
{
    const size_t k = N, v = N + c->n_kv * D;
    const attention_shape shape = {.q_stride = c->stride,
                                   .k_stride = c->stride,
                                   .v_stride = c->stride,
                                   .batch = 1,
                                   .seq_len = c->T,
                                   .n_head = H,
                                   .n_kv_head = c->n_kv,
                                   .head_dim = D,
                                   .v_head_dim = D,
                                   .scale = c->scale};
    OK(o->attention(s, &(attention_args){.out = to->out,
                                         .lse = to->lse,
                                         .q = c->qkv,
                                         .k = c->qkv + k,
                                         .v = c->qkv + v,
                                         .shape = shape}));
    OK(o->attention_backward(s, &(attention_backward_args){.d_q = to->d_qkv,
                                                           .d_k = to->d_qkv + k,
                                                           .d_v = to->d_qkv + v,
                                                           .d_out = c->d_out,
                                                           .out = to->out,
                                                           .lse = to->lse,
                                                           .q = c->qkv,
                                                           .k = c->qkv + k,
                                                           .v = c->qkv + v,
                                                           .shape = shape}));
    OK(stream_sync(s));
}

/* ---- values --------------------------------------------------------------------------------- */

static void expect_within(float got, const reference *want, size_t i, const char *table,
                          const char *what)
{
    if (!(fabs((double)got - want->value[i]) <= want->bound[i]))
        fail_msg("%s: %s[%zu] is %.9g, expected %.9g within %.3g", table, what, i, (double)got,
                 want->value[i], want->bound[i]);
}

static void check_values(const ops *o, const long_case *c)
{
    outputs got = outputs_new(c);
    attention_both(o, c, &got);
    for (size_t t = 0; t < c->T; t++) {
        for (size_t i = t * N; i < (t + 1) * N && is_sampled(t, c->T); i++)
            expect_within(got.out[i], &c->out, i, o->name, "out");
        for (size_t h = 0; h < H && is_sampled(t, c->T); h++)
            expect_within(got.lse[h * c->T + t], &c->lse, h * c->T + t, o->name, "lse");
    }
    for (size_t i = 0; i < c->T * c->stride; i++)
        expect_within(got.d_qkv[i], &c->d_qkv, i, o->name, "d_qkv");
    outputs_free(&got);
}

static void check_length(size_t T, size_t n_kv)
{
    long_case c;
    case_open(&c, T, n_kv);
    for (int t = 0; t < 2; t++)
        check_values(ops_table(t), &c);
    case_close(&c);
}

static void test_whole_blocks(void **state)
{
    (void)state;
    check_length(LONG, H);
}

static void test_last_block_partial(void **state)
{
    (void)state;
    check_length(LONG + 17, 1);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Bytes that the process touches for the first time while both passes run, by page faults: stacks,
 * scratch of this library and of oneDNN, whoever allocates it. Inputs and outputs were touched. */
static size_t fresh_bytes(const ops *o, size_t T)
{
    const long_case c = {.T = T,
                         .n_kv = H,
                         .stride = 3 * N,
                         .scale = 0.5f,
                         .qkv = normals(11, 1.0f, T * 3 * N),
                         .d_out = normals(12, 1.0f, T * N)};
    outputs to = outputs_new(&c);
    struct rusage before, after;
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    attention_both(o, &c, &to);
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
    outputs_free(&to);
    free(c.qkv), free(c.d_out);
    return (size_t)(after.ru_minflt - before.ru_minflt) * (size_t)sysconf(_SC_PAGESIZE);
}

/* Four times the keys: at most four times the memory. A T x T array would be 4 MB at 1024 keys and
 * 64 MB at 4096; SLACK is what a first use touches (code, tables, a thread's stack), far below. */
static void test_memory(void **state)
{
    (void)state;
    enum { SHORT = LONG / 4, SLACK = 4 << 20 };
    if (UNDER_ASAN) {
        print_message("SKIP memory: AddressSanitizer gives every allocation fresh pages\n");
        skip();
    }
    assert_int_equal(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0); /* a fault is one small page */
    for (int t = 0; t < 2; t++) {
        const ops *o = ops_table(t);
        fresh_bytes(o, BLOCK);
        const size_t few = fresh_bytes(o, SHORT), many = fresh_bytes(o, LONG);
        print_message("%s: fresh memory at T=%d %zu kB, at T=%d %zu kB\n", o->name, SHORT,
                      few / 1024, LONG, many / 1024);
        if (many > 4 * few + SLACK)
            fail_msg("%s: %zu bytes at T=%d, expected at most 4 * %zu + %d", o->name, many, LONG,
                     few, SLACK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory), /* first: no memory of others to use again */
        cmocka_unit_test(test_whole_blocks),
        cmocka_unit_test(test_last_block_partial),
    };
    return cmocka_run_group_tests(tests, setup, ops_test_close);
}
