/* ops_check_lib.h -- what the unit programs of common/ops share: a device, both CPU tables, arrays,
 * a comparison of bits.
 *
 *     static int setup(void **state)      (the group's; ops_test_close is its teardown)
 *     {
 *         s = ops_test_open(state);
 *         return 0;
 *     } */
#pragma once
#include "tests/unit/ops_cases_lib.h"
#include "tests/unit/unit_lib.h"

/* ops_test_device -- a CPU device that runs kernels on n_threads threads; the caller closes it. */
device *ops_test_device(int n_threads, bool async_compute);
/* ops_test_open -- opens a device with 2 threads in *state, for all tests of a group; returns its
 * compute stream. */
stream *ops_test_open(void **state);
/* ops_test_close -- closes the device in *state. */
int ops_test_close(void **state);

/* ops_test_with_avx2 -- run this program once more, with `argument` (or NULL), as on a processor
 * with AVX2 and no later instructions. It must succeed. Skips the test in that run, and if the user
 * has set ONEDNN_MAX_CPU_ISA. */
void ops_test_with_avx2(const char *argument);

/* ops_table -- 0: fast, 1: portable. */
const ops *ops_table(int i);

/* CALL -- the operation of table `o` on stream s; the test fails if the call does.
 *
 *     CALL(ops_cpu_fast(), s, gelu, .out = y, .in = x, .elems = n); */
#define CALL(o, s, op, ...) OK((o)->op(s, &(op##_args){__VA_ARGS__}))

/* ops_refused -- does `status`, returned by a call, say that the backend lacks the operation? */
bool ops_refused(fsdp_status status);

/* normals -- elems values of ops_test_fill; filled -- elems copies of `value`. The caller frees. */
float *normals(uint64_t name, float std, size_t elems);
float *filled(float value, size_t elems);

/* expect_same_bits -- fails at the first element that differs. */
void expect_same_bits(const float *got, const float *expected, size_t elems, const char *what,
                      const char *where);

/* expect_case_near -- compares results of case i from tables that sum in different orders.
 * rounding: the relative rounding error of an element; bf16 has its own. Large inputs are not
 * compared. */
void expect_case_near(size_t i, const ops_result *got, const ops_result *want, double rounding);

/* ops_bad_call -- a call on three numbers that should be below 3, but some are not. 0: an
 * embedding, 1: its gradient, 2: a loss. x, y: [9] */
fsdp_status ops_bad_call(int which, const ops *o, stream *s, float *x, float *y,
                         const int32_t *numbers);
