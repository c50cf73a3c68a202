/* test_device.c -- device.h on the CPU, on device_separate, and on the device that FSDP_DEVICE
 * names (tests/unit/target_lib.h): streams, events, errors, copies.
 *
 * Order is tested with gates (tasks that wait for the test), so a wrong order shows in every run.
 * Memory: test_device_memory.c; wrong use and limits: test_device_faults.c; random programs:
 * test_device_stress.c. */
#include "common/base/openmp_settings.h"
#include "common/device/device_impl.h"
#include "tests/unit/device_lib.h"
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- tasks ----------------------------------------------------------------------------------- */
static fsdp_status run_count_threads(void *args, int n_threads)
{
    **(int **)args = n_threads;
    return FSDP_OK;
}

static fsdp_status run_measure_stack(void *args, int n_threads)
{
    pthread_attr_t attr;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstacksize(&attr, *(size_t **)args);
        pthread_attr_destroy(&attr);
    }
    return FSDP_OK;
}

static fsdp_status run_fail(void *args, int n_threads)
{
    int number = *(int *)args;
    return fsdp_error(number == 0 ? FSDP_EIO : FSDP_ECOMM, "try again", "task %d broke", number);
}

static fsdp_status run_fail_silently(void *args, int n_threads)
{
    return FSDP_ETIMEOUT;
}

static fsdp_status run_short_sleep(void *args, int n_threads)
{
    usleep(200);
    return FSDP_OK;
}

/* ---- opening -------------------------------------------------------------------------------- */
TEST(test_open_refuses)
{
    device *d = (device *)&state;
    device_config config = {.backend = &device_cpu, .index = 1, .n_threads = 1};
    assert_int_equal(device_open(&config, &d), FSDP_EINVAL);
    assert_null(d);
    assert_true(strlen(fsdp_error_get()->hint) > 0);
    config = (device_config){.backend = &device_cpu, .n_threads = 0};
    assert_int_equal(device_open(&config, &d), FSDP_EINVAL);
    assert_non_null(strstr(fsdp_error_get()->what, "n_threads 0"));
    device_close(NULL);
}

/* The number of threads for the tasks of s. */
static int threads_of(stream *s)
{
    int got = 0, *to = &got;
    OK(launch_c(s, run_count_threads, &to, sizeof to));
    OK(stream_sync(s));
    assert_int_equal(s->n_threads, got);
    return got;
}

ON_EACH(TEST_ALL, test_stream_facts, false)
{
    const device_backend *backend = mode->backend;
    bool is_cpu = backend == &device_cpu;
    stream *plain = new_stream(d, "plain"), *wide;
    OK(stream_create(d, &(stream_config){.name = "wide", .n_threads = 3}, &wide));
    assert_string_equal(device_name(d), backend->name);
    assert_int_equal(device_memory_is_host(d), is_cpu);
    assert_int_equal(device_ledger(d) == device_host_ledger(d), is_cpu);
    assert_int_equal(device_runs_c(d), backend->runs_c);
    assert_ptr_equal(stream_device(wide), d);
    assert_string_equal(stream_name(wide), "wide");
    assert_string_equal(stream_name(s), "compute");
    assert_int_equal(threads_of(s), 2);
    assert_int_equal(threads_of(plain), 1);
    assert_int_equal(threads_of(wide), 3);
    OK(device_set_threads(d, 5));
    assert_int_equal(threads_of(s), 5);
    assert_int_equal(device_set_threads(d, 0), FSDP_EINVAL);
    assert_int_equal(threads_of(s), 5);
    stream_free(plain);
    stream_free(NULL);
}

/* A stream's thread has a stack of its own size if other threads have smaller ones, as after
 * `ulimit -s 1024`. */
TEST(test_worker_stack)
{
    size_t stack_bytes = 0, *const out = &stack_bytes;
    pthread_attr_t before, small;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 20);
    assert_int_equal(pthread_setattr_default_np(&small), 0);
    device *d = open_cpu(true, false);
    OK(stream_launch(device_compute_stream(d), run_measure_stack, &out, sizeof out));
    device_close(d);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&before);
    assert_true(stack_bytes >= THREAD_STACK_BYTES);
}

/* ---- order ---------------------------------------------------------------------------------- */
ON_EACH(TEST_ALL, test_fifo_and_copied_args, false)
{
    bool async = mode->async;
    order x = {.elems = 0};
    sem_t gate;
    if (async)
        close_gate(s, &gate);
    append_args a = {&x, 0};
    for (int i = 0; i < 100; i++) {
        a.value = i; /* one struct reused: a queue that keeps the pointer sees 99 only */
        OK(launch_c(s, run_append, &a, sizeof a));
        assert_int_equal(a.value, i);
        if (!async)
            assert_int_equal(x.elems, i + 1); /* inline: done when the call returns */
    }
    a.value = -7;
    if (async)
        sem_post(&gate);
    OK(stream_sync(s));
    expect_order(&x, 100);
}

TEST(test_close_waits)
{
    order x = {.elems = 0};
    device *d = open_cpu(true, false);
    stream *s[2] = {device_compute_stream(d), new_stream(d, "left open")};
    event *e = new_event(d);
    for (int i = 0; i < 1000; i++) {
        OK(order_add(&x, s[i % 2], i));
        OK(event_record(e, s[i % 2]));
        OK(stream_wait_event(s[(i + 1) % 2], e));
    }
    event_free(e);
    device_close(d);
    expect_order(&x, 1000);
}

static long times_slept(void)
{
    struct rusage used;
    assert_int_equal(getrusage(RUSAGE_THREAD, &used), 0);
    return used.ru_nvcsw;
}

/* A host that waits for a stream sleeps until the last task is done: waking it at every task would
 * take the core from the tasks. The host may sleep once more for the lock, and once more after a
 * spurious wake-up. */
ON_THIS(test_sync_sleeps_once, open_cpu(true, false))
{
    enum { N_JOBS = 100, MOST_SLEEPS = 10 };
    for (int round = 0; round < 2; round++) { /* the second wait has its own target */
        for (int i = 0; i < N_JOBS; i++)
            OK(stream_launch(s, run_short_sleep, &i, sizeof i));
        long before = times_slept();
        OK(stream_sync(s));
        assert_true(times_slept() - before <= MOST_SLEEPS);
    }
}

ON_THIS(test_stream_free_drains, open_cpu(false, false))
{
    order x = {.elems = 0};
    stream *brief = new_stream(d, "short-lived stream with a long name beyond any limit");
    for (int i = 0; i < 1000; i++)
        OK(order_add(&x, brief, i));
    stream_free(brief);
    expect_order(&x, 1000);
}

/* ---- events --------------------------------------------------------------------------------- */
static void check_event(const device_mode *mode, fsdp_status create(device *d, event **out))
{
    bool async = mode->async;
    device *d = open_mode(mode, false);
    stream *consumer = device_compute_stream(d), *producer = new_stream(d, "producer");
    event *e = NULL;
    OK(create(d, &e));
    assert_true(event_done(e)); /* never recorded: nothing to wait for */
    OK(event_sync(e));
    OK(stream_wait_event(consumer, e));
    order x = {.elems = 0};
    sem_t gate;
    close_gate(producer, &gate);
    OK(order_add(&x, producer, 0));
    OK(event_record(e, producer));
    assert_false(event_done(e));
    if (!async)
        sem_post(&gate); /* the wait below blocks the host */
    OK(stream_wait_event(consumer, e));
    OK(order_add(&x, consumer, 1));
    if (async) {
        usleep(2000); /* a consumer that does not wait would run now */
        assert_false(event_done(e));
        sem_post(&gate);
    }
    OK(stream_sync(consumer));
    assert_true(event_done(e));
    OK(event_sync(e));
    expect_order(&x, 2);
    event_free(e);
    event_free(NULL);
    device_close(d);
}

TEST_ALL(test_event_orders_streams)
{
    check_event(*state, event_create);
}

TEST_ALL(test_timed_event_orders_streams)
{
    check_event(*state, event_create_timed);
}

/* A wait keeps what the event stood for when the wait was issued. Recording the event again on a
 * stuck stream, or freeing the event, changes nothing. */
ON_EACH(TEST_ALL, test_event_rerecord, false)
{
    stream *first = new_stream(d, "first"), *stuck = new_stream(d, "stuck"),
           *waiter = new_stream(d, "waiter");
    event *e = new_event(d);
    sem_t gate, stuck_gate;
    close_gate(first, &gate);
    close_gate(stuck, &stuck_gate);
    order x = {.elems = 0};
    OK(order_add(&x, first, 0));
    OK(event_record(e, first));
    OK(stream_wait_event(waiter, e)); /* waits for the first record */
    OK(event_record(e, stuck));
    OK(order_add(&x, waiter, 1));
    sem_post(&gate);
    OK(stream_sync(waiter)); /* hangs if it waits for the second record */
    expect_order(&x, 2);
    assert_false(event_done(e)); /* the event itself stands for the second record */
    OK(stream_wait_event(waiter, e));
    event_free(e); /* recorded, not reached, waited for */
    OK(order_add(&x, waiter, 2));
    e = new_event(d);
    OK(event_record(e, stuck));
    assert_false(event_done(e));
    OK(event_record(e, s)); /* replaces the first */
    OK(event_sync(e));      /* would hang on the first */
    assert_true(event_done(e));
    OK(stream_wait_event(s, e));
    event_free(e);
    sem_post(&stuck_gate);
    OK(stream_sync(waiter));
    OK(stream_sync(stuck));
    expect_order(&x, 3);
}

/* ---- errors --------------------------------------------------------------------------------- */
static void expect_error(fsdp_status got, fsdp_status status, const char *what)
{
    assert_int_equal(got, status);
    assert_string_equal(fsdp_error_get()->what, what);
    assert_int_equal(fsdp_error_get()->status, status);
    (void)fsdp_error(FSDP_ETODO, "", "overwritten, so that the next check sees the stream's words");
}

ON_EACH(TEST_ALL, test_error_is_sticky, false)
{
    bool async = mode->async;
    void *none = (void *)1, *kept = new_block(s, 100, "kept");
    event *e = new_event(d);
    order x = {.elems = 0};
    sem_t gate;
    if (async)
        close_gate(s, &gate);
    OK(order_add(&x, s, 0));
    fsdp_status first = launch_c(s, run_fail, &(int){0}, sizeof(int));
    assert_int_equal(first, async ? FSDP_OK : FSDP_EIO);
    (void)order_add(&x, s, 1);
    (void)launch_c(s, run_fail, &(int){1}, sizeof(int));
    if (async)
        sem_post(&gate);
    expect_error(stream_sync(s), FSDP_EIO, "task 0 broke");
    expect_order(&x, 1); /* the work after it was skipped */
    expect_error(order_add(&x, s, 2), FSDP_EIO, "task 0 broke");
    expect_error(device_alloc(s, MEM_OTHER, 1, "none", &none), FSDP_EIO, "task 0 broke");
    assert_null(none);
    expect_error(device_zero(s, kept, 100), FSDP_EIO, "task 0 broke");
    expect_error(device_upload(s, kept, x.list, 4), FSDP_EIO, "task 0 broke");
    expect_error(event_record(e, s), FSDP_EIO, "task 0 broke");
    expect_error(stream_wait_event(s, e), FSDP_EIO, "task 0 broke");
    expect_error(event_sync(e), FSDP_EIO, "task 0 broke"); /* the event completes, with the error */
    assert_true(event_done(e));
    assert_int_equal(stream_sync(s), FSDP_EIO);
    assert_string_equal(fsdp_error_get()->hint, "try again");
    device_free(s, kept); /* memory is given back all the same */
    (void)stream_sync(s);
    assert_int_equal(live_bytes(d), 0);
    expect_order(&x, 1);
    event_free(e);
}

ON_THIS(test_error_without_words, open_cpu(false, false))
{
    stream *quiet = new_stream(d, "quiet");
    OK(stream_launch(quiet, run_fail_silently, NULL, 0));
    assert_int_equal(stream_sync(quiet), FSDP_ETIMEOUT);
    assert_non_null(strstr(fsdp_error_get()->what, "quiet"));
}

ON_THIS(test_first_error_wins, open_cpu(false, false))
{
    stream *bad[2] = {new_stream(d, "bad"), new_stream(d, "bad")};
    event *e = new_event(d);
    for (int i = 0; i < 2; i++) {
        OK(stream_launch(bad[i], run_fail, &i, sizeof i));
        assert_int_equal(stream_sync(bad[i]), i == 0 ? FSDP_EIO : FSDP_ECOMM);
    }
    expect_error(event_record(e, bad[1]), FSDP_ECOMM, "task 1 broke");
    expect_error(stream_wait_event(bad[0], e), FSDP_EIO, "task 0 broke");
    expect_error(stream_sync(bad[0]), FSDP_EIO, "task 0 broke"); /* not the other stream's error */
    event_free(e);
}

/* A stream that waits for an event of a failed stream fails with the same error, from the wait on,
 * and so do streams that wait for it. is_late: the failure comes when all waits are issued. */
static void check_travel(device *d, stream *waiter, const device_mode *mode, bool is_late)
{
    stream *bad = new_stream(d, "bad"), *next = new_stream(d, "next"),
           *innocent = new_stream(d, "innocent");
    event *before = new_event(d), *e = new_event(d), *of_waiter = new_event(d);
    const bool is_whole = !device_runs_c(d); /* an accelerator fails with all its streams */
    order x = {.elems = 0};
    sem_t gate;
    OK(event_record(before, bad));
    if (mode->async)
        close_gate(is_late ? bad : waiter, &gate);
    OK(launch_c(bad, run_fail, &(int){0}, sizeof(int)));
    (void)event_record(e, bad);
    if (!is_late)
        (void)stream_sync(bad);
    if (is_whole && !is_late)
        expect_error(order_add(&x, waiter, 0), FSDP_EIO, "task 0 broke");
    else
        OK(order_add(&x, waiter, 0));
    fsdp_status status = stream_wait_event(waiter, e);
    if (!is_late && mode == &TARGET)
        assert_true(status == FSDP_OK || status == FSDP_EIO); /* depends on the time */
    else if (mode->async)
        assert_int_equal(status, FSDP_OK);
    else
        expect_error(status, FSDP_EIO, "task 0 broke");
    (void)order_add(&x, waiter, 1);
    (void)event_record(of_waiter, waiter);
    (void)stream_wait_event(next, of_waiter);
    (void)order_add(&x, next, 1);
    if (mode->async)
        sem_post(&gate);
    expect_error(stream_sync(next), FSDP_EIO, "task 0 broke");
    expect_error(stream_sync(waiter), FSDP_EIO, "task 0 broke");
    if (!is_whole)
        expect_order(&x, 1); /* what was queued before the wait has run */
    assert_int_equal(event_sync(of_waiter), FSDP_EIO);
    const fsdp_status unrelated = is_whole ? FSDP_EIO : FSDP_OK;
    assert_int_equal(event_sync(before), unrelated);
    assert_int_equal(stream_wait_event(innocent, before), unrelated);
    assert_int_equal(stream_sync(innocent), unrelated);
    event_free(before);
    event_free(e);
    event_free(of_waiter);
}

ON_EACH(TEST_ALL, test_error_travels_by_event, false)
{
    check_travel(d, s, mode, false);
}

ON_EACH(TEST_ALL, test_late_error_travels_by_event, false)
{
    check_travel(d, s, mode, true);
}

/* ---- memory -------------------------------------------------------------------------------- */

/* New blocks, then reused ones. Each keeps its bytes. */
ON_EACH(TEST_ALL, test_alloc_facts, false)
{
    static const size_t SIZES[] = {
        0, 0, 1, 63, 64, 65, 4088, 4089, 4096, 100001, (2 << 20) - 136, 2 << 20, (5 << 20) + 12345};
    enum { N = sizeof SIZES / sizeof *SIZES };
    static unsigned char host[(5 << 20) + 12345];
    void *ptr[N];
    size_t total_bytes = 0;
    for (int i = 0; i < N; i++)
        total_bytes += SIZES[i];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            ptr[i] = new_block(s, SIZES[i], "block");
            assert_int_equal((uintptr_t)ptr[i] % 64, 0);
            memset(host, i + 1, SIZES[i]);
            OK(device_upload(s, ptr[i], host, SIZES[i]));
            for (int k = 0; k < i; k++)
                assert_ptr_not_equal(ptr[k], ptr[i]);
        }
        ledger_figures f = ledger_read(device_ledger(d));
        assert_int_equal(f.live_bytes[MEM_OTHER], total_bytes);
        assert_int_equal(f.live_blocks, N);
        for (int i = 0; i < N; i++) {
            OK(device_download(s, host, ptr[i], SIZES[i]));
            OK(stream_sync(s));
            if (!all_bytes(host, SIZES[i], (unsigned char)(i + 1)))
                fail_msg("block %d does not keep its bytes", i);
            device_free(s, ptr[i]);
        }
        device_free(s, NULL);
        OK(stream_sync(s));
        f = ledger_read(device_ledger(d));
        assert_int_equal(f.live_total_bytes, 0);
        assert_int_equal(f.live_blocks, 0);
        assert_int_equal(f.peak_total_bytes, total_bytes);
    }
}

/* Host memory counts against the limit only if it is also the device's memory. */
TEST_ALL(test_limit)
{
    enum { LIMIT = 100000 };
    device_mode mode = *(device_mode *)*state;
    mode.limit_bytes = LIMIT;
    device *d = open_mode(&mode, false);
    stream *s = device_compute_stream(d);
    void *a, *b, *host;
    assert_int_equal(device_mem_available(d), LIMIT);
    OK(device_alloc(s, MEM_COMM, 60000, "a", &a));
    assert_int_equal(device_mem_available(d), LIMIT - 60000);
    REFUSED(FSDP_ENOMEM, device_alloc(s, MEM_GRADS_FULL, 40001, "b", &b),
            "no memory for 40001 bytes");
    assert_says("'b' (grads_full); the device holds 60000 bytes");
    assert_says("at its peak: comm 60 kB");
    OK(stream_sync(s)); /* the failed allocation is not an error of the stream */
    b = new_block(s, 40000, "b");
    REFUSED(FSDP_ENOMEM, device_alloc(s, MEM_OTHER, 1, "c", &host),
            "at its peak: comm 60 kB, other 40 kB");
    assert_int_equal(device_mem_available(d), 0);
    if (!device_memory_is_host(d))
        device_free(s, new_host_block(s, 2 * LIMIT, "host"));
    for (int i = 0; i < 50; i++) { /* the host runs ahead of the frees */
        OK(device_zero(s, a, 1));
        device_free(s, a);
        a = new_block(s, (size_t)60000 - (size_t)i, "a");
    }
    device_free(s, a);
    device_free(s, b);
    OK(stream_sync(s));
    assert_uint_in_range(ledger_read(device_ledger(d)).peak_total_bytes, LIMIT, LIMIT);
    device_close(d);
}

/* ---- moving bytes --------------------------------------------------------------------------- */
ON_EACH(TEST_ALL, test_copies, false)
{
    bool async = mode->async;
    enum { SMALL = 1000, LARGE = 1000000 }; /* below and above what is staged in the queue */
    static unsigned char host[LARGE], back[LARGE];
    void *a = new_block(s, LARGE, "a"), *b = new_block(s, LARGE, "b");
    for (int round = 0; round < 2; round++) {
        size_t bytes = round ? LARGE : SMALL;
        for (size_t i = 0; i < bytes; i++)
            host[i] = (unsigned char)(i * 7 + 1);
        sem_t gate;
        if (async && !round) /* a large upload waits for its turn, so it would wait for the gate */
            close_gate(s, &gate);
        OK(device_upload(s, a, host, bytes));
        memset(host, 0, bytes); /* the source may be reused at once */
        if (async && !round)
            sem_post(&gate);
        OK(device_copy(s, b, a, bytes));
        OK(device_zero(s, a, bytes - 1));
        OK(device_download(s, back, b, bytes));
        OK(stream_sync(s));
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(back[i], (unsigned char)(i * 7 + 1));
        OK(device_download(s, back, a, bytes));
        OK(stream_sync(s));
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(back[i], i < bytes - 1 ? 0 : (unsigned char)(i * 7 + 1));
    }
    OK(device_copy(s, NULL, NULL, 0));
    OK(device_zero(s, NULL, 0));
    device_free(s, a);
    device_free(s, b);
}

int main(void)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    return device_tests_run();
}
