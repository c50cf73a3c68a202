/* device_lib.h -- what the tests of common/device share: opening a device, tasks to launch,
 * gates. */
#pragma once
#include <semaphore.h>
#include "common/device/cpu_impl.h"
#include "tests/unit/unit_lib.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(UNDER_ASAN)
#define UNDER_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) && !defined(UNDER_TSAN)
#define UNDER_TSAN 1
#endif
#ifndef UNDER_ASAN
#define UNDER_ASAN 0
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

/* How a test opens its device; *state points to a device_mode. */
typedef struct device_mode {
    bool async; /* first: tests read it as a bool */
    const device_backend *backend;
    uint64_t seed;      /* of a schedule; 0: none */
    size_t limit_bytes; /* of memory; 0: none */
} device_mode;
extern device_mode INLINE, ASYNC, SEPARATE;
extern device_mode TARGET; /* the device that FSDP_DEVICE names */

/* TEST_BOTH: a test that runs with the inline compute stream and with a worker. THREE: also on
 * device_separate; the test opens its device by open_mode. ALL: also on FSDP_DEVICE; the test
 * launches by launch_c. */
#define TEST_BOTH(test)  TEST_EACH(test, TEST_IN_BOTH(test))
#define TEST_THREE(test) TEST_EACH(test, TEST_IN_THREE(test))
#define TEST_ALL(test)                                                                             \
    TEST_EACH(test, TEST_IN_THREE(test) TEST_IN(test, #test " (FSDP_DEVICE)", &TARGET))
#define TEST_IN_BOTH(test)                                                                         \
    TEST_IN(test, #test " (inline)", &INLINE) TEST_IN(test, #test " (async)", &ASYNC)
#define TEST_IN_THREE(test) TEST_IN_BOTH(test) TEST_IN(test, #test " (separate)", &SEPARATE)

/* device_tests_run -- tests_run. If FSDP_DEVICE is the CPU, leaves out the tests on FSDP_DEVICE,
 * which the other modes cover. */
int device_tests_run(void);

/* open_mode -- opens the device with two threads. If this machine has no such device, says so and
 * skips the test. */
device *open_mode(const void *mode, bool debug_fill);
device *open_cpu(bool async, bool debug_fill);
device *open_scheduled(uint64_t seed);
cpu_pool *pool_of(device *d);
size_t live_bytes(device *d);

/* ON_THIS -- a test with an open device and its compute stream. The device is closed after the
 * test, which leaves no work that uses its variables. ON_EACH: the same in each mode of TEST_BOTH,
 * TEST_THREE or TEST_ALL. */
#define ON_THIS(test, opened)                                                                      \
    static void test##_on(device *d, stream *s);                                                   \
    TEST(test)                                                                                     \
    {                                                                                              \
        device *d_ = (opened);                                                                     \
        test##_on(d_, device_compute_stream(d_));                                                  \
        device_close(d_);                                                                          \
    }                                                                                              \
    static void test##_on(device *d, stream *s)
#define ON_EACH(modes, test, debug_fill)                                                           \
    static void test##_on(device *d, stream *s, const device_mode *mode);                          \
    modes(test)                                                                                    \
    {                                                                                              \
        device *d_ = open_mode(*state, debug_fill);                                                \
        test##_on(d_, device_compute_stream(d_), *state);                                          \
        device_close(d_);                                                                          \
    }                                                                                              \
    static void test##_on(device *d, stream *s, const device_mode *mode)

/* launch_c -- stream_launch of a function that touches only host memory. */
fsdp_status launch_c(stream *s, stream_fn fn, const void *args, size_t args_bytes);

/* new_stream, new_event, new_block (of MEM_OTHER), new_host_block -- as device.h creates them. */
stream *new_stream(device *d, const char *name);
event *new_event(device *d);
void *new_block(stream *s, size_t bytes, const char *label);
void *new_host_block(stream *s, size_t bytes, const char *label);

/* close_gate -- work issued on s after this starts only when the test posts the gate. */
void close_gate(stream *s, sem_t *gate);

/* order -- the numbers of the tasks that have run, in order. order_add: launches a task that adds
 * `value` and then spoils its own copy of the arguments, as run_append does. expect_order: tasks
 * 0 to n - 1 have run, in this order, and no other. */
typedef struct order {
    int list[1000], elems;
} order;
typedef struct append_args {
    order *x;
    int value;
} append_args;
fsdp_status run_append(void *args, int n_threads);
fsdp_status order_add(order *x, stream *s, int value);
void expect_order(const order *x, int n);

/* run_child -- how body(arg) ends in a process of its own, and what it writes to standard error.
 * The status is wait's; valid until the next call. */
typedef struct child_end {
    int status;
    char text[16384];
} child_end;
typedef int child_body(void *arg);
const child_end *run_child(child_body *body, void *arg);
/* ended_by -- did this signal end the child? */
bool ended_by(const child_end *end, int number);

/* all_bytes -- does every byte hold `byte`? */
bool all_bytes(const void *ptr, size_t bytes, unsigned char byte);
