/* test_device.c -- device.h on the CPU, on device_separate, and on the device that FSDP_DEVICE
 * names (tests/unit/target_lib.h): streams, events, errors, copies.
 *
 * Order is tested with gates (tasks that wait for the test), so a wrong order shows in every run.
 * Memory: test_device_memory.c; wrong use and limits: test_device_faults.c; random programs:
 * test_device_stress.c. */
#include "common/device/device_impl.h"
#include "tests/unit/device_lib.h"
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- tasks ----------------------------------------------------------------------------------- */
static fsdp_status run_report_threads(void *args, int n_threads)
{
    **(int **)args = n_threads;
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

TEST_ALL(test_stream_facts)
{
    device *d = open_mode(*state, false);
    const device_backend *backend = ((device_mode *)*state)->backend;
    bool is_cpu = backend == &device_cpu;
    stream *compute = device_compute_stream(d), *other = new_stream(d, "comm");
    assert_string_equal(device_name(d), backend->name);
    assert_int_equal(device_memory_is_host(d), is_cpu);
    assert_int_equal(device_ledger(d) == device_host_ledger(d), is_cpu);
    assert_int_equal(device_runs_c(d), backend->runs_c);
    assert_ptr_equal(stream_device(other), d);
    assert_int_equal(compute->n_threads, 2);
    assert_int_equal(other->n_threads, 1);
    int seen[2] = {0, 0};
    OK(launch_c(compute, run_report_threads, &(int *){&seen[0]}, sizeof(int *)));
    OK(launch_c(other, run_report_threads, &(int *){&seen[1]}, sizeof(int *)));
    OK(stream_sync(compute));
    OK(stream_sync(other));
    assert_int_equal(seen[0], 2);
    assert_int_equal(seen[1], 1);
    stream_free(other);
    stream_free(NULL);
    device_close(d);
}

/* ---- order ---------------------------------------------------------------------------------- */
TEST_ALL(test_fifo_and_copied_args)
{
    bool async = *(bool *)*state;
    device *d = open_mode(*state, false);
    stream *s = device_compute_stream(d);
    int list[100] = {0}, elems = 0;
    sem_t gate;
    if (async)
        close_gate(s, &gate);
    append_args a = {list, &elems, 0};
    for (int i = 0; i < 100; i++) {
        a.value = i; /* one struct reused: a queue that keeps the pointer sees 99 only */
        OK(launch_c(s, run_append, &a, sizeof a));
        assert_int_equal(a.value, i);
        if (!async)
            assert_int_equal(elems, i + 1); /* inline: done when the call returns */
    }
    a.value = -7;
    if (async)
        sem_post(&gate);
    OK(stream_sync(s));
    assert_int_equal(elems, 100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(list[i], i);
    device_close(d);
}

TEST(test_close_waits)
{
    int list[1000], elems = 0;
    device *d = open_cpu(true, false);
    stream *s[2] = {device_compute_stream(d), NULL};
    OK(stream_create(d, &(stream_config){.name = "left open"}, &s[1]));
    event *e = new_event(d);
    for (int i = 0; i < 1000; i++) {
        OK(stream_launch(s[i % 2], run_append, &(append_args){list, &elems, i},
                         sizeof(append_args)));
        OK(event_record(e, s[i % 2]));
        OK(stream_wait_event(s[(i + 1) % 2], e));
    }
    event_free(e);
    device_close(d);
    assert_int_equal(elems, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(list[i], i);
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
TEST(test_sync_sleeps_once)
{
    enum { N_JOBS = 100, MOST_SLEEPS = 10 };
    device *d = open_cpu(true, false);
    stream *s = device_compute_stream(d);
    for (int round = 0; round < 2; round++) { /* the second wait has its own target */
        for (int i = 0; i < N_JOBS; i++)
            OK(stream_launch(s, run_short_sleep, &i, sizeof i));
        long before = times_slept();
        OK(stream_sync(s));
        assert_true(times_slept() - before <= MOST_SLEEPS);
    }
    device_close(d);
}

TEST(test_stream_free_drains)
{
    int list[1000], elems = 0;
    device *d = open_cpu(false, false);
    stream *s = new_stream(d, "short-lived stream with a long name beyond any limit");
    for (int i = 0; i < 1000; i++)
        OK(stream_launch(s, run_append, &(append_args){list, &elems, i}, sizeof(append_args)));
    stream_free(s);
    assert_int_equal(elems, 1000);
    device_close(d);
}

/* ---- events --------------------------------------------------------------------------------- */
TEST_ALL(test_event_orders_streams)
{
    bool async = *(bool *)*state;
    device *d = open_mode(*state, false);
    stream *consumer = device_compute_stream(d), *producer = new_stream(d, "producer");
    event *e = new_event(d);
    assert_true(event_done(e)); /* never recorded: nothing to wait for */
    OK(event_sync(e));
    OK(stream_wait_event(consumer, e));
    int list[2], elems = 0;
    sem_t gate;
    close_gate(producer, &gate);
    OK(launch_c(producer, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    OK(event_record(e, producer));
    assert_false(event_done(e));
    if (!async)
        sem_post(&gate); /* the wait below blocks the host */
    OK(stream_wait_event(consumer, e));
    OK(launch_c(consumer, run_append, &(append_args){list, &elems, 2}, sizeof(append_args)));
    if (async) {
        usleep(2000); /* a consumer that does not wait would run now */
        assert_false(event_done(e));
        sem_post(&gate);
    }
    OK(stream_sync(consumer));
    assert_true(event_done(e));
    OK(event_sync(e));
    assert_int_equal(elems, 2);
    assert_int_equal(list[0], 1);
    assert_int_equal(list[1], 2);
    event_free(e);
    event_free(NULL);
    device_close(d);
}

/* A wait keeps what the event stood for when the wait was issued. Recording the event again on a
 * stuck stream, or freeing the event, changes nothing. */
TEST_ALL(test_event_rerecord)
{
    device *d = open_mode(*state, false);
    stream *first = new_stream(d, "first"), *stuck = new_stream(d, "stuck"),
           *waiter = new_stream(d, "waiter");
    event *e = new_event(d);
    sem_t gate, stuck_gate;
    close_gate(first, &gate);
    close_gate(stuck, &stuck_gate);
    int list[4], elems = 0;
    OK(launch_c(first, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    OK(event_record(e, first));
    OK(stream_wait_event(waiter, e)); /* waits for the first record */
    OK(event_record(e, stuck));
    OK(launch_c(waiter, run_append, &(append_args){list, &elems, 2}, sizeof(append_args)));
    sem_post(&gate);
    OK(stream_sync(waiter)); /* hangs if it waits for the second record */
    assert_int_equal(elems, 2);
    assert_int_equal(list[0], 1);
    assert_false(event_done(e)); /* the event itself stands for the second record */
    OK(stream_wait_event(waiter, e));
    event_free(e); /* recorded, not reached, waited for */
    OK(launch_c(waiter, run_append, &(append_args){list, &elems, 3}, sizeof(append_args)));
    usleep(2000);
    sem_post(&stuck_gate);
    OK(stream_sync(waiter));
    assert_int_equal(elems, 3);
    OK(event_create(d, &e)); /* on an inline stream a record is complete at once */
    OK(event_record(e, device_compute_stream(d)));
    OK(event_sync(e));
    assert_true(event_done(e));
    event_free(e);
    device_close(d);
}

TEST(test_rerecord_on_done_stream_replaces)
{
    device *d = open_cpu(false, false);
    stream *stuck = new_stream(d, "stuck");
    event *e = new_event(d);
    sem_t gate;
    close_gate(stuck, &gate);
    OK(event_record(e, stuck));
    assert_false(event_done(e));
    OK(event_record(e, device_compute_stream(d))); /* inline: done, and replaces the first */
    assert_true(event_done(e));
    OK(stream_wait_event(device_compute_stream(d), e)); /* would hang on the first */
    sem_post(&gate);
    event_free(e);
    device_close(d);
}

/* ---- errors --------------------------------------------------------------------------------- */
static void expect_error(fsdp_status got, fsdp_status status, const char *what)
{
    assert_int_equal(got, status);
    assert_string_equal(fsdp_error_get()->what, what);
    assert_int_equal(fsdp_error_get()->status, status);
    (void)fsdp_error(FSDP_ETODO, "", "overwritten, so that the next check sees the stream's words");
}

TEST_ALL(test_error_is_sticky)
{
    bool async = *(bool *)*state;
    device *d = open_mode(*state, false);
    stream *s = device_compute_stream(d);
    void *none = (void *)1, *kept = new_block(s, 100, "kept");
    event *e = new_event(d);
    int list[3], elems = 0;
    sem_t gate;
    if (async)
        close_gate(s, &gate);
    OK(launch_c(s, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    fsdp_status first = launch_c(s, run_fail, &(int){0}, sizeof(int));
    assert_int_equal(first, async ? FSDP_OK : FSDP_EIO);
    (void)launch_c(s, run_append, &(append_args){list, &elems, 2}, sizeof(append_args));
    (void)launch_c(s, run_fail, &(int){1}, sizeof(int));
    if (async)
        sem_post(&gate);
    expect_error(stream_sync(s), FSDP_EIO, "task 0 broke");
    assert_int_equal(elems, 1); /* the work after it was skipped */
    expect_error(launch_c(s, run_append, &(append_args){list, &elems, 3}, sizeof(append_args)),
                 FSDP_EIO, "task 0 broke");
    expect_error(device_alloc(s, MEM_OTHER, 1, "none", &none), FSDP_EIO, "task 0 broke");
    assert_null(none);
    expect_error(device_zero(s, kept, 100), FSDP_EIO, "task 0 broke");
    expect_error(device_upload(s, kept, list, 4), FSDP_EIO, "task 0 broke");
    expect_error(event_record(e, s), FSDP_EIO, "task 0 broke");
    expect_error(stream_wait_event(s, e), FSDP_EIO, "task 0 broke");
    expect_error(event_sync(e), FSDP_EIO, "task 0 broke"); /* the event completes, with the error */
    assert_true(event_done(e));
    assert_int_equal(stream_sync(s), FSDP_EIO);
    assert_string_equal(fsdp_error_get()->hint, "try again");
    device_free(s, kept); /* memory is given back all the same */
    (void)stream_sync(s);
    assert_int_equal(live_bytes(d), 0);
    assert_int_equal(elems, 1);
    event_free(e);
    device_close(d);
}

TEST(test_error_without_words)
{
    device *d = open_cpu(false, false);
    stream *s = new_stream(d, "quiet");
    OK(stream_launch(s, run_fail_silently, NULL, 0));
    assert_int_equal(stream_sync(s), FSDP_ETIMEOUT);
    assert_non_null(strstr(fsdp_error_get()->what, "quiet"));
    device_close(d);
}

TEST(test_first_error_wins)
{
    device *d = open_cpu(false, false);
    stream *s[2] = {NULL, NULL};
    event *e = new_event(d);
    for (int i = 0; i < 2; i++) {
        OK(stream_create(d, &(stream_config){.name = "bad"}, &s[i]));
        OK(stream_launch(s[i], run_fail, &i, sizeof i));
        assert_int_equal(stream_sync(s[i]), i == 0 ? FSDP_EIO : FSDP_ECOMM);
    }
    expect_error(event_record(e, s[1]), FSDP_ECOMM, "task 1 broke");
    expect_error(stream_wait_event(s[0], e), FSDP_EIO, "task 0 broke");
    expect_error(stream_sync(s[0]), FSDP_EIO, "task 0 broke"); /* not the other stream's error */
    event_free(e);
    device_close(d);
}

/* A stream that waits for an event of a failed stream fails with the same error, from the wait
 * on. */
TEST_ALL(test_error_travels_by_event)
{
    bool async = *(bool *)*state;
    device *d = open_mode(*state, false);
    stream *waiter = device_compute_stream(d), *bad = new_stream(d, "bad"),
           *innocent = new_stream(d, "innocent");
    event *e = new_event(d), *before = new_event(d);
    OK(event_record(before, bad));
    OK(launch_c(bad, run_fail, &(int){0}, sizeof(int)));
    (void)event_record(e, bad);
    (void)stream_sync(bad);
    int list[4], elems = 0;
    sem_t gate;
    if (async)
        close_gate(waiter, &gate);
    OK(launch_c(waiter, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    fsdp_status status = stream_wait_event(waiter, e);
    if (*state == &TARGET)
        assert_true(status == FSDP_OK || status == FSDP_EIO); /* depends on the time */
    else if (async)
        assert_int_equal(status, FSDP_OK);
    else
        expect_error(status, FSDP_EIO, "task 0 broke");
    (void)launch_c(waiter, run_append, &(append_args){list, &elems, 2}, sizeof(append_args));
    if (async)
        sem_post(&gate);
    expect_error(stream_sync(waiter), FSDP_EIO, "task 0 broke");
    assert_int_equal(elems, 1);              /* what was queued before the wait has run */
    OK(stream_wait_event(innocent, before)); /* recorded before the failure */
    OK(stream_sync(innocent));
    event_free(e);
    event_free(before);
    device_close(d);
}

/* ---- moving bytes --------------------------------------------------------------------------- */
TEST_ALL(test_copies)
{
    bool async = *(bool *)*state;
    device *d = open_mode(*state, false);
    stream *s = device_compute_stream(d);
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
    device_close(d);
}

int main(void)
{
    alarm(120); /* a deadlock is a failure, not a hang */
    return device_tests_run();
}
