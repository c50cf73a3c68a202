/* test_grad_bf16.c -- sums in bf16 (grad_acc.h: sum_dtype) against a plain loop over the
 * definition. Every input vector and every sum of two is rounded, in whatever way the input
 * comes. */
#include "tests/unit/device_lib.h"
#include "tests/unit/ops_check_lib.h"
#include "common/comm/comm.h"
#include "common/device/cpu_tiles.h"
#include "common/ops/ops.h"
#include "common/sum/sum_run.h"
#include "common/base/philox.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 40, SEED = 3 };

static float rounded(float x)
{
    return f32_from_bf16(bf16_from_f32(x));
}

/* Node i at the level that is pushed: numbers over many powers of two, not yet bf16. */
static void fill(float *vec, size_t elems, int i)
{
    philox_normal_fill(SEED, (uint64_t)i, 0, elems, 1.0f, vec);
    for (size_t k = 0; k < elems; k++)
        vec[k] *= (float)(1u << ((unsigned)i * 7 + (unsigned)k) % 12);
}

/* Element k of the sum of nodes first ... first+n-1: balanced, or one after the other. */
static float plain_tree(float *const *node, size_t k, int first, int n)
{
    int left = 1;
    if (n == 1)
        return rounded(node[first][k]);
    while (left * 2 < n)
        left *= 2;
    return rounded(plain_tree(node, k, first, left) + plain_tree(node, k, first + left, n - left));
}

static float plain_sum(grad_acc_mode mode, float *const *node, size_t k, int n)
{
    float sum = rounded(node[0][k]);
    if (mode == GRAD_ACC_CANONICAL)
        return plain_tree(node, k, 0, n);
    for (int i = 1; i < n; i++)
        sum = rounded(sum + rounded(node[i][k]));
    return sum;
}

/* How nodes come in: a run over bf16 copies, single pushes, vectors given away. */
typedef enum way { BY_RUN, BY_PUSH, BY_GIVE, WAYS } way;

static void take_run(grad_acc *g, stream *s, float *const *node, int n, int n_threads)
{
    uint16_t *in[MOST_NODES];
    sum_run run;
    for (int i = 0; i < n; i++) {
        in[i] = malloc(g->elems * sizeof *in[i] + 1);
        for (size_t k = 0; k < g->elems; k++)
            in[i][k] = bf16_from_f32(node[i][k]);
    }
    OK(sum_run_begin(g, s, 0, n, &run));
    OK(sum_run_cpu(&run, (const void *const *)in, n_threads));
    sum_run_end(&run, s);
    for (int i = 0; i < n; i++)
        free(in[i]);
}

static void take_given(grad_acc *g, stream *s, const float *node)
{
    float *vec;
    OK(device_alloc_f32(s, MEM_GRADS_FULL, g->elems, "given", &vec));
    memcpy(vec, node, g->elems * sizeof *vec);
    OK(grad_acc_give(g, s, 0, &vec));
    device_free(s, vec);
}

/* Adds the nodes in groups of `group`, in each of the ways in turn, beginning with `w`. */
static void check_sum(device *d, grad_acc_mode mode, size_t elems, int n, int group, way w)
{
    stream *s = device_compute_stream(d);
    float *node[MOST_NODES], *sum;
    grad_acc g;
    grad_acc_init(&g, mode, ops_cpu_portable()->sums, elems, MEM_GRADS_SHARD, "bf16");
    g.sum_dtype = DTYPE_BF16;
    for (int i = 0; i < n; i++) {
        node[i] = malloc(elems * sizeof **node + 1);
        fill(node[i], elems, i);
    }
    for (int i = 0; i < n; i += group, w = (w + 1) % WAYS) {
        int now = n - i < group ? n - i : group;
        if (w == BY_RUN)
            take_run(&g, s, node + i, now, 1 + i % 3);
        for (int k = i; k < i + now && w != BY_RUN; k++)
            if (w == BY_PUSH)
                OK(grad_acc_push(&g, s, 0, node[k]));
            else
                take_given(&g, s, node[k]);
    }
    OK(grad_acc_finish(&g, s, &sum));
    for (size_t k = 0; k < elems; k++) {
        float want = plain_sum(mode, node, k, n);
        if (memcmp(&want, &sum[k], sizeof want) != 0)
            fail_msg("mode %d, %d nodes by %d from way %d, element %zu: got %a, expected %a",
                     (int)mode, n, group, (int)w, k, (double)sum[k], (double)want);
    }
    device_free(s, sum);
    grad_acc_free(&g, s);
    for (int i = 0; i < n; i++)
        free(node[i]);
    assert_int_equal(live_bytes(d), 0);
}

TEST(test_plain_loop)
{
    static const size_t SIZES[] = {1, 7, 2049, TILE_ELEMS + 1};
    device *d = open_cpu(false, true);
    for (int n = 1; n <= 19; n++)
        for (int w = 0; w < WAYS; w++)
            for (int mode = 0; mode < 2; mode++)
                for (int group = 1; group <= 5; group += 1)
                    check_sum(d, (grad_acc_mode)mode, SIZES[(n + group) % (n < 6 ? 4 : 3)], n,
                              group, (way)w);
    device_close(d);
}

/* add with round_to in both tables; out may be an input, b may be NULL. */
TEST(test_rounded_add)
{
    enum { N = 1000 };
    device *d = open_cpu(false, true);
    stream *s = device_compute_stream(d);
    float a[N], b[N], out[N];
    for (int t = 0; t < 2; t++) {
        fill(a, N, 1);
        fill(b, N, 2);
        CALL(ops_table(t), s, add, .out = out, .a = a, .elems = N, .round_to = DTYPE_BF16);
        for (size_t i = 0; i < N; i++)
            assert_true(out[i] == rounded(a[i]));
        memcpy(out, a, sizeof out);
        CALL(ops_table(t), s, add, .out = out, .a = out, .b = b, .elems = N,
             .round_to = DTYPE_BF16);
        for (size_t i = 0; i < N; i++)
            assert_true(out[i] == rounded(rounded(a[i]) + rounded(b[i])));
    }
    device_close(d);
}

/* A reduce-scatter of one rank rounds its input, as with many ranks, and does not change `send`. */
TEST(test_one_rank_rounds)
{
    enum { N = 3000 };
    device *d = open_cpu(false, true);
    comm *c;
    OK(comm_open(d, &(comm_config){.backend = COMM_SELF}, &c));
    stream *s = device_compute_stream(d);
    float send[N], before[N], *sum;
    fill(send, N, 5);
    memcpy(before, send, sizeof send);
    grad_acc g;
    grad_acc_init(&g, GRAD_ACC_CANONICAL, ops_cpu_fast()->sums, N, MEM_GRADS_SHARD, "one");
    g.sum_dtype = DTYPE_BF16;
    OK(comm_reduce_scatter(c, s, "unit", send, N, &g, 0));
    OK(grad_acc_finish(&g, s, &sum));
    for (size_t i = 0; i < N; i++)
        assert_true(sum[i] == rounded(send[i]));
    assert_memory_equal(send, before, sizeof send);
    device_free(s, sum);
    grad_acc_free(&g, s);
    comm_close(c);
    assert_int_equal(live_bytes(d), 0);
    device_close(d);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
