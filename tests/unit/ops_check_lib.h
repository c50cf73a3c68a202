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

/* ops_test_device -- a CPU device that runs kernels on n_threads; the caller closes it. */
device *ops_test_device(int n_threads, bool async_compute);
/* ops_test_open -- one with 2 threads into *state, for all tests of a group; its compute stream. */
stream *ops_test_open(void **state);
/* ops_test_close -- closes the device in *state. */
int ops_test_close(void **state);

/* ops_table -- 0: fast, 1: portable. */
const ops *ops_table(int i);

/* ops_refused -- whether `status`, a call's, says that the backend lacks the operation. */
bool ops_refused(fsdp_status status);

/* normals -- elems values of ops_test_fill; filled -- elems times `value`. The caller frees. */
float *normals(uint64_t name, float std, size_t elems);
float *filled(float value, size_t elems);

/* expect_same_bits -- fails at the first of elems that differ. */
void expect_same_bits(const float *got, const float *expected, size_t elems, const char *what,
                      const char *where);
