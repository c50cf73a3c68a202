/* unit_lib.h -- what the unit programs under cmocka share: cmocka and the headers that it needs,
 * checks of a status, a directory for files.
 *
 *     TEST(test_sum) { assert_int_equal(sum(1, 2), 3); }
 *     int main(void) { return tests_run(temp_dir_make, temp_dir_remove); } */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/base/status.h"

/* cmocka 2 has deprecated the only such check of cmocka 1. */
#ifndef assert_uint_in_range
#define assert_uint_in_range assert_in_range
#endif

/* TEST -- a test of this program. It registers itself before main, so no list can omit it. TEST_IN:
 * the same test under another name, in a state to which *state points. TEST_AROUND: setup runs
 * before the test and teardown after it (NULL: none).
 * tests_run: runs all tests in the order of the source. setup runs before the first test, teardown
 * after the last (NULL: none). Returns the number of failures. tests_leave_out: leaves out the
 * tests in this state. */
#define TEST(test) TEST_EACH(test, TEST_IN(test, #test, NULL))
#define TEST_AROUND(test, setup, teardown)                                                         \
    TEST_EACH(test, TEST_REGISTER({#test, test, setup, teardown, NULL}))
#define TEST_EACH(test, in)                                                                        \
    static void test(void **state);                                                                \
    in static void test(void **state)
#define TEST_IN(test, title, initial_state) TEST_REGISTER({title, test, NULL, NULL, initial_state})
#define TEST_REGISTER(...)                                                                         \
    __attribute__((constructor)) static void TEST_JOIN(register_test_, __COUNTER__)(void)          \
    {                                                                                              \
        tests_add((struct CMUnitTest)__VA_ARGS__);                                                 \
    }
#define TEST_JOIN(a, b)  TEST_JOIN_(a, b)
#define TEST_JOIN_(a, b) a##b
void tests_add(struct CMUnitTest test);
void tests_leave_out(const void *initial_state);
int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown);

/* OK -- the call returns FSDP_OK; else the test fails with the call and its error. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        fsdp_status ok_status_ = (call);                                                           \
        if (ok_status_ != FSDP_OK)                                                                 \
            fail_msg("%s: %s", #call, fsdp_error_get()->what);                                     \
    } while (0)

/* assert_says -- the last error has `part` in its text, and a hint. */
void assert_says(const char *part);

/* REFUSED -- the call returns `status`, and then assert_says(part). */
#define REFUSED(status, call, part) assert_refused(status, call, part, #call)
void assert_refused(fsdp_status expected, fsdp_status got, const char *part, const char *call);

/* assert_aborts -- fn must fail an assertion, in its own process; its message is dropped. */
void assert_aborts(void (*fn)(void));

/* The program's own directory under TMPDIR, named after the program; removed with its contents. */
int temp_dir_make(void **state);
int temp_dir_remove(void **state);
/* in_dir -- "directory/name"; valid until the sixteenth call from here. */
const char *in_dir(const char *name);
/* write_bytes -- writes a file with these bytes; returns path. */
const char *write_bytes(const char *path, const void *bytes, size_t n_bytes);
/* files_like -- how many files of the directory match a shell pattern. */
int files_like(const char *pattern);
