/* test_attention_long.c -- the memory that attention over 4096 keys needs, forward and backward.
 * test_ops_double.c tests its values. */
#include <math.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/base/under_asan.h"
#include "tests/unit/ops_check_lib.h"

enum { H = 2, D = 8, N = H * D, STRIDE = 3 * N, BLOCK = 64, LONG = 4096 };

static stream *s;

static int setup(void **state)
{
    s = ops_test_open(state);
    return 0;
}

/* Bytes that the process touches for the first time in both passes, by page faults: stacks, and
 * scratch of this library and of oneDNN, whoever allocates it. Inputs and outputs are touched
 * before. */
static size_t fresh_bytes(const ops *o, size_t T)
{
    float *qkv = normals(11, 1.0f, T * STRIDE), *d_out = normals(12, 1.0f, T * N);
    float *out = filled(NAN, T * N), *lse = filled(NAN, H * T), *d_qkv = filled(NAN, T * STRIDE);
    const attention_shape shape = {STRIDE, STRIDE, STRIDE, 1, T, H, H, D, D, 0.5f, DTYPE_F32};
    struct rusage before, after;
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    CALL(o, s, attention, out, lse, qkv, qkv + N, qkv + 2 * N, shape);
    CALL(o, s, attention_backward, d_qkv, d_qkv + N, d_qkv + 2 * N, d_out, out, qkv, qkv + N,
         qkv + 2 * N, lse, shape, false);
    OK(stream_sync(s));
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
    free(qkv), free(d_out), free(out), free(lse), free(d_qkv);
    return (size_t)(after.ru_minflt - before.ru_minflt) * (size_t)sysconf(_SC_PAGESIZE);
}

/* Four times the keys may take at most four times the memory. A T x T array would take 4 MB at 1024
 * keys and 64 MB at 4096. SLACK covers what a first use touches (code, tables, a thread's stack),
 * which is far less. */
TEST(test_memory)
{
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
    return tests_run(setup, ops_test_close);
}
