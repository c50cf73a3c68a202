/* test_accel_device.c -- what accelerators share as devices and a CPU lacks: polls during the
 * host's waits, host tasks, staging buffers, pinned memory, memory limits.
 *
 *     FSDP_DEVICE=cuda-sim build/tests/unit/test_accel_device
 *
 * On a CPU every test is skipped. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "tests/unit/accel_lib.h"

typedef fsdp_status (*poll_fn)(void *self);
typedef fsdp_status (*set_poll_fn)(device *d, poll_fn poll, void *self);

/* An allocation waits for memory that another stream has freed, even if the free is still queued.
 * This test runs first, while the pool is empty. */
TEST(test_out_of_memory)
{
    need_sim(NULL);
    setenv("FSDP_SIM_MEMORY_MIB", "64", 1);
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d), *side = new_stream(d, "side"),
           *opener = new_stream(d, "side");
    sem_t gate, *to = &gate;
    assert_int_equal(device_mem_available(d), 64 << 20);
    void *first = new_block(s, 40 << 20, "first");
    assert_in_range(device_mem_available(d), (24 << 20) - 64, 24 << 20);
    close_gate(s, &gate);
    device_free(s, first);
    OK(launch_c(opener, run_open_gate, &to, sizeof to));
    void *second = new_block(side, 40 << 20, "second");
    assert_int_equal(device_alloc(s, MEM_OTHER, 40 << 20, "third", &first), FSDP_ENOMEM);
    assert_says("of 'third' (other); the device holds 41943040 bytes");
    OK(stream_sync(s));
    device_free(side, second);
    OK(stream_sync(side));
    assert_in_range(device_mem_available(d), (64 << 20) - 64, 64 << 20); /* pool included */
    device_close(d);
    unsetenv("FSDP_SIM_MEMORY_MIB");
}

/* ---- polls ----------------------------------------------------------------------------------- */

typedef struct polled {
    int n_looks, fails_at;
} polled;

static fsdp_status count_look(void *self)
{
    polled *p = self;
    return ++p->n_looks == p->fails_at ? fsdp_error(FSDP_ECOMM, "restart it", "rank 3 died")
                                       : FSDP_OK;
}

/* Queues enough work that a poll runs before the work ends. */
static void *keep_busy(device *d, size_t bytes)
{
    stream *s = device_compute_stream(d);
    void *block = new_block(s, bytes, "busy");
    for (int i = 0; i < 4; i++)
        OK(device_zero(s, block, bytes));
    return block;
}

TEST(test_polls_are_called_in_waits)
{
    device *d = open_accel(&(device_config){0});
    set_poll_fn set_poll = (set_poll_fn)plugin_symbol("accel_device_set_poll");
    stream *s = device_compute_stream(d);
    polled first = {0}, second = {0};
    event *e = new_event(d);
    OK(set_poll(d, count_look, &first));
    OK(set_poll(d, count_look, &second));
    void *block = keep_busy(d, (size_t)64 << 20);
    OK(stream_sync(s));
    assert_true(first.n_looks > 0 && first.n_looks == second.n_looks);
    OK(set_poll(d, NULL, &first));
    const int first_looks = first.n_looks, second_looks = second.n_looks;
    device_free(s, block);
    block = keep_busy(d, (size_t)64 << 20);
    OK(event_record(e, s));
    OK(event_sync(e));
    assert_int_equal(first.n_looks, first_looks);
    assert_true(second.n_looks > second_looks);
    event_free(e);
    device_free(s, block);
    device_close(d);
}

/* Opens the gate when the waiting thread's timer slack is 1 ns, or after 10000 polls, when the wait
 * must have slept. */
typedef struct slack_seen {
    sem_t gate;
    int n_looks, slack_ns;
} slack_seen;

static fsdp_status look_at_slack(void *self)
{
    slack_seen *seen = self;
    seen->slack_ns = prctl(PR_GET_TIMERSLACK);
    if (++seen->n_looks == 10000 || seen->slack_ns == 1)
        sem_post(&seen->gate);
    return FSDP_OK;
}

TEST(test_waits_sleep_as_told)
{
    enum { BEFORE_NS = 40000 };
    device *d = open_accel(&(device_config){0});
    set_poll_fn set_poll = (set_poll_fn)plugin_symbol("accel_device_set_poll");
    stream *s = device_compute_stream(d);
    slack_seen seen = {.n_looks = 0};
    assert_int_equal(prctl(PR_SET_TIMERSLACK, (unsigned long)BEFORE_NS), 0);
    OK(set_poll(d, look_at_slack, &seen));
    close_gate(s, &seen.gate);
    OK(stream_sync(s));
    assert_int_equal(seen.slack_ns, 1);
    assert_int_equal(prctl(PR_GET_TIMERSLACK), BEFORE_NS);
    device_close(d);
}

TEST(test_failed_poll_ends_waits)
{
    device *d = open_accel(&(device_config){0});
    set_poll_fn set_poll = (set_poll_fn)plugin_symbol("accel_device_set_poll");
    stream *s = device_compute_stream(d);
    polled p = {.fails_at = 3};
    stream *other = new_stream(d, "other");
    event *e = new_event(d);
    OK(set_poll(d, count_look, &p));
    void *block = keep_busy(d, (size_t)256 << 20);
    OK(event_record(e, s));
    assert_int_equal(stream_sync(s), FSDP_ECOMM);
    assert_says("rank 3 died");
    assert_int_equal(p.n_looks, 3);
    assert_int_equal(stream_sync(other), FSDP_ECOMM);
    assert_int_equal(event_sync(e), FSDP_ECOMM);
    assert_true(event_done(e)); /* a loop that polls the event must end */
    assert_int_equal(device_zero(other, block, 1), FSDP_ECOMM);
    event_free(e);
    device_free(s, block);
    device_close(d);
}

/* ---- tasks of the host ----------------------------------------------------------------------- */

/* Each task posts its own semaphore and waits for the other task's. */
static fsdp_status run_meet(void *args, int n_threads)
{
    sem_t **both = args;
    sem_post(both[0]);
    return sem_wait(both[1]) == 0 ? FSDP_OK : FSDP_EIO;
}

/* Tasks on two streams may wait for each other, whichever task was issued first. */
TEST(test_tasks_of_two_streams_meet)
{
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d), *side = new_stream(d, "side");
    sem_t a, b;
    sem_init(&a, 0, 0);
    sem_init(&b, 0, 0);
    for (int i = 0; i < 50; i++) {
        sem_t *of_s[] = {&a, &b}, *of_side[] = {&b, &a};
        OK(launch_c(i % 2 ? s : side, run_meet, i % 2 ? of_s : of_side, sizeof of_s));
        OK(launch_c(i % 2 ? side : s, run_meet, i % 2 ? of_side : of_s, sizeof of_s));
    }
    OK(stream_sync(s));
    OK(stream_sync(side));
    stream_free(side);
    device_close(d);
}

static fsdp_status run_fail(void *args, int n_threads)
{
    return fsdp_error(FSDP_EIO, "try again", "the task broke");
}

/* An error reaches other streams through events. Earlier work is not affected, nor are streams that
 * do not wait for the failed one. */
TEST(test_errors_travel_on)
{
    device *d = open_accel(&(device_config){0});
    stream *first = new_stream(d, "side"), *second = new_stream(d, "side"),
           *third = new_stream(d, "side");
    int list[2], elems = 0;
    sem_t gate;
    event *before = new_event(d), *from_first = new_event(d), *from_second = new_event(d);
    OK(event_record(before, first));
    close_gate(first, &gate);
    OK(launch_c(first, run_fail, NULL, 0));
    OK(event_record(from_first, first));
    OK(stream_wait_event(second, from_first));
    OK(event_record(from_second, second));
    OK(stream_wait_event(third, from_second));
    OK(launch_c(third, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    open_gate(&gate);
    assert_int_equal(stream_sync(third), FSDP_EIO);
    assert_says("the task broke");
    assert_int_equal(elems, 0); /* the append was queued after the failure */
    assert_int_equal(event_sync(from_second), FSDP_EIO);
    OK(event_sync(before));
    OK(stream_sync(device_compute_stream(d)));
    OK(stream_wait_event(device_compute_stream(d), before));
    OK(stream_sync(device_compute_stream(d)));
    event_free(before);
    event_free(from_first);
    event_free(from_second);
    device_close(d); /* frees the remaining streams */
}

/* Stream numbers are reused, and a new stream does not depend on the earlier stream with its
 * number. */
TEST(test_many_streams)
{
    device *d = open_accel(&(device_config){0});
    stream *s[64];
    int n = 0, list[100], elems = 0;
    for (int i = 0; i < 100; i++) {
        s[0] = new_stream(d, "side");
        OK(launch_c(s[0], run_append, &(append_args){list, &elems, i}, sizeof(append_args)));
        OK(stream_sync(s[0]));
        stream_free(s[0]);
    }
    assert_int_equal(elems, 100);
    while (n < 64 && stream_create(d, &(stream_config){.name = "one more"}, &s[n]) == FSDP_OK)
        n++;
    assert_int_equal(n, 31); /* in addition to the compute stream */
    assert_int_equal(fsdp_error_get()->status, FSDP_ENOMEM);
    while (n > 0)
        stream_free(s[--n]);
    device_close(d);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The host issues all calls while the stream is blocked. */
TEST(test_host_runs_ahead_of_copies)
{
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d);
    enum { BYTES = 3 << 20 };
    static unsigned char host[BYTES], back[BYTES];
    sem_t gate;
    event *behind = new_event(d);
    void *on_device = new_block(s, BYTES, "on the device"),
         *pinned = new_host_block(s, BYTES, "pinned"),
         *other = new_host_block(s, BYTES, "pinned too");
    memset(host, 1, BYTES);
    memset(pinned, 2, BYTES);
    memset(other, 3, BYTES);
    close_gate(s, &gate);
    OK(device_upload(s, on_device, host, BYTES));
    memset(host, 4, BYTES);
    OK(device_copy(s, pinned, on_device, BYTES));
    OK(device_copy(s, other, pinned, BYTES - 1));
    OK(device_zero(s, pinned, BYTES));
    OK(device_copy(s, on_device, other, BYTES));
    OK(device_download(s, back, on_device, BYTES));
    OK(event_record(behind, s));
    assert_true(all_bytes(pinned, BYTES, 2));
    assert_true(all_bytes(other, BYTES, 3));
    assert_false(event_done(behind));
    open_gate(&gate);
    OK(event_sync(behind));
    assert_true(all_bytes(back, BYTES - 1, 1));
    assert_int_equal(back[BYTES - 1], 3);
    assert_true(all_bytes(pinned, BYTES, 0));
    device_free(s, on_device);
    device_free(s, pinned);
    device_free(s, other);
    event_free(behind);
    device_close(d);
}

/* The transfer is larger than all staging buffers together, and its last piece is short. */
TEST(test_large_transfers)
{
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d);
    const size_t bytes = ((size_t)100 << 20) + 12345;
    unsigned char *host = malloc(bytes), *back = calloc(bytes, 1);
    assert_true(host != NULL && back != NULL);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)(i * 7 + i / 4096);
    void *on_device = new_block(s, bytes, "large");
    OK(device_upload(s, on_device, host, bytes));
    OK(device_download(s, back, on_device, bytes));
    OK(stream_sync(s));
    assert_memory_equal(host, back, bytes);
    device_free(s, on_device);
    free(host);
    free(back);
    device_close(d);
}

/* An upload waits for a staging buffer that is still in use: here upload 257 waits for the first
 * buffer. */
TEST(test_stages_are_awaited)
{
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d), *opener = new_stream(d, "side");
    enum { UPLOADS = 300, BYTES = 1000 };
    static unsigned char host[BYTES], back[UPLOADS][BYTES];
    unsigned char *on_device;
    sem_t gate, *to = &gate;
    on_device = new_block(s, sizeof back, "parts");
    for (int i = 0; i < UPLOADS; i++) /* create the buffers first: this is slow */
        OK(device_upload(s, on_device, host, BYTES));
    OK(stream_sync(s));
    close_gate(s, &gate);
    OK(launch_c(opener, run_open_gate, &to, sizeof to));
    for (int i = 0; i < UPLOADS; i++) {
        memset(host, i % 251, BYTES);
        OK(device_upload(s, on_device + i * BYTES, host, BYTES));
    }
    OK(device_download(s, back, on_device, sizeof back));
    OK(stream_sync(s));
    for (int i = 0; i < UPLOADS; i++)
        assert_true(all_bytes(back[i], BYTES, (unsigned char)(i % 251)));
    device_free(s, on_device);
    device_close(d);
}

/* Copies within the device work at any address, even if the library wants aligned addresses.
 * FSDP_SIM_ALIGN_BYTES makes the stand-in for ACL require them. */
TEST(test_copies_within)
{
    setenv("FSDP_SIM_ALIGN_BYTES", "64", 1);
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d);
    enum { BYTES = (9 << 20) + 5 };
    static unsigned char host[BYTES], back[BYTES];
    unsigned char *from, *to;
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 7 + i / 4096);
    from = new_block(s, BYTES, "from");
    to = new_block(s, BYTES, "to");
    OK(device_upload(s, from, host, BYTES));
    OK(device_zero(s, to, BYTES));
    OK(device_copy(s, to + 9, from + 3, BYTES - 20));
    OK(device_copy(s, to + 1, from, 4));
    OK(device_download(s, back, to, BYTES));
    OK(stream_sync(s));
    assert_memory_equal(back + 9, host + 3, BYTES - 20);
    assert_memory_equal(back + 1, host, 4);
    assert_true(back[0] == 0 && all_bytes(back + 5, 4, 0) && all_bytes(back + BYTES - 11, 11, 0));
    device_free(s, from);
    device_free(s, to);
    device_close(d);
    unsetenv("FSDP_SIM_ALIGN_BYTES");
}

static void *open_in_a_while(void *gate)
{
    (void)run_open_gate(&gate, 1);
    return NULL;
}

/* When a poll finds a dead rank, a host task may still wait for other ranks, with more tasks queued
 * after it. */
TEST(test_failed_poll_with_tasks)
{
    device *d = open_accel(&(device_config){0});
    set_poll_fn set_poll = (set_poll_fn)plugin_symbol("accel_device_set_poll");
    stream *s = device_compute_stream(d);
    polled p = {.fails_at = 2};
    int list[1], elems = 0;
    sem_t gate;
    pthread_t opener; /* a thread: a task would be skipped after the failure */
    OK(set_poll(d, count_look, &p));
    close_gate(s, &gate);
    OK(launch_c(s, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    assert_int_equal(stream_sync(s), FSDP_ECOMM);
    assert_int_equal(pthread_create(&opener, NULL, open_in_a_while, &gate), 0);
    device_close(d);
    pthread_join(opener, NULL);
    assert_int_equal(elems, 0);
}

/* The host itself copies to and from pinned memory. */
TEST(test_host_to_host)
{
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d);
    unsigned char host[1000], back[1000];
    memset(host, 5, sizeof host);
    void *pinned = new_host_block(s, sizeof host, "pinned");
    OK(device_upload(s, pinned, host, sizeof host));
    memset(host, 6, sizeof host);
    OK(device_download(s, back, pinned, sizeof back));
    OK(stream_sync(s));
    assert_true(all_bytes(back, sizeof back, 5));
    device_free(s, pinned);
    device_close(d);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The stream that freed a block may reuse the block at once. Another stream may reuse it only when
 * the first stream is done. */
TEST(test_pinned_memory_is_reused)
{
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d), *side = new_stream(d, "side");
    enum { BYTES = 1 << 20 };
    sem_t gate;
    void *first = new_host_block(s, BYTES, "first");
    close_gate(s, &gate);
    OK(device_zero(s, first, BYTES));
    device_free(s, first);
    void *others = new_host_block(side, BYTES, "other's");
    assert_ptr_not_equal(others, first);
    void *again = new_host_block(s, BYTES - 100, "again");
    assert_ptr_equal(again, first);
    device_free(s, again);
    device_free(side, others);
    open_gate(&gate);
    OK(stream_sync(s));
    OK(stream_sync(side));
    OK(device_alloc_host(side, MEM_OTHER, BYTES, "either", &others));
    OK(device_alloc_host(side, MEM_OTHER, BYTES, "either", &again));
    assert_true(again == first || others == first);
    assert_int_equal(ledger_read(device_host_ledger(d)).live_total_bytes, 2 * BYTES);
    assert_int_equal(live_bytes(d), 0);
    device_free(side, again);
    device_free(side, others);
    device_close(d);
}

TEST(test_memory_limit)
{
    device *d = open_accel(&(device_config){.memory_limit_bytes = 1000});
    stream *s = device_compute_stream(d);
    void *second;
    assert_int_equal(device_mem_available(d), 1000);
    void *first = new_block(s, 600, "first");
    assert_int_equal(device_mem_available(d), 400);
    assert_int_equal(device_alloc(s, MEM_ACTIVATIONS, 401, "logits", &second), FSDP_ENOMEM);
    assert_says("401 bytes (401 B) of 'logits' (activations); the device holds 600 bytes");
    OK(stream_sync(s)); /* the failed allocation is not an error of the stream */
    OK(device_alloc(s, MEM_OTHER, 400, "second", &second));
    device_free(s, first);
    OK(device_alloc(s, MEM_OTHER, 600, "third", &first));
    device_free(s, first);
    device_free(s, second);
    device_close(d);
}

int main(void)
{
    alarm(100); /* a deadlock is a failure, not a hang */
    return tests_run(NULL, NULL);
}
