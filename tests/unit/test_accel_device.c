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
#include <sys/resource.h>
#include <unistd.h>
#include "tests/unit/accel_lib.h"

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
    assert_uint_in_range(device_mem_available(d), (24 << 20) - 64, 24 << 20);
    close_gate(s, &gate);
    device_free(s, first);
    OK(launch_c(opener, run_open_gate, &to, sizeof to));
    void *second = new_block(side, 40 << 20, "second");
    assert_int_equal(device_alloc(s, MEM_OTHER, 40 << 20, "third", &first), FSDP_ENOMEM);
    assert_says("of 'third' (other); the device holds 41943040 bytes");
    OK(stream_sync(s));
    device_free(side, second);
    OK(stream_sync(side));
    assert_uint_in_range(device_mem_available(d), (64 << 20) - 64, 64 << 20); /* pool included */
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

/* Has the device call poll(self) while the host waits; poll NULL: not any more. */
static void set_poll(device *d, fsdp_status (*poll)(void *self), void *self)
{
    fsdp_status (*set)(device *, fsdp_status(*)(void *), void *) =
        plugin_symbol("accel_device_set_poll");
    OK(set(d, poll, self));
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
    stream *s = device_compute_stream(d);
    polled first = {0}, second = {0};
    event *e = new_event(d);
    set_poll(d, count_look, &first);
    set_poll(d, count_look, &second);
    void *block = keep_busy(d, (size_t)64 << 20);
    OK(stream_sync(s));
    assert_true(first.n_looks > 0 && first.n_looks == second.n_looks);
    set_poll(d, NULL, &first);
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
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d);
    enum { BEFORE_NS = 40000 };
    slack_seen seen = {.n_looks = 0};
    assert_int_equal(prctl(PR_SET_TIMERSLACK, (unsigned long)BEFORE_NS), 0);
    set_poll(d, look_at_slack, &seen);
    close_gate(s, &seen.gate);
    OK(stream_sync(s));
    assert_int_equal(seen.slack_ns, 1);
    assert_int_equal(prctl(PR_GET_TIMERSLACK), BEFORE_NS);
    device_close(d);
}

TEST(test_failed_poll_ends_waits)
{
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d);
    polled p = {.fails_at = 3};
    stream *other = new_stream(d, "other");
    event *e = new_event(d);
    set_poll(d, count_look, &p);
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
ON_THIS(test_tasks_of_two_streams_meet, open_accel(&(device_config){0}))
{
    stream *side = new_stream(d, "side");
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
}

/* Stream numbers are reused, and a new stream does not depend on the earlier stream with its
 * number. */
ON_THIS(test_many_streams, open_accel(&(device_config){0}))
{
    stream *side[64];
    int n = 0;
    order x = {.elems = 0};
    for (int i = 0; i < 100; i++) {
        side[0] = new_stream(d, "side");
        OK(order_add(&x, side[0], i));
        OK(stream_sync(side[0]));
        stream_free(side[0]);
    }
    expect_order(&x, 100);
    while (n < 64 && stream_create(d, &(stream_config){.name = "one more"}, &side[n]) == FSDP_OK)
        n++;
    assert_int_equal(n, 31); /* in addition to the compute stream */
    assert_int_equal(fsdp_error_get()->status, FSDP_ENOMEM);
    while (n > 0)
        stream_free(side[--n]);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The host issues all calls while the stream is blocked. */
ON_THIS(test_host_runs_ahead_of_copies, open_accel(&(device_config){0}))
{
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
}

/* The transfer is larger than all staging buffers together, and its last piece is short. */
ON_THIS(test_large_transfers, open_accel(&(device_config){0}))
{
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
}

/* An upload waits for a staging buffer that is still in use: here upload 257 waits for the first
 * buffer. */
ON_THIS(test_stages_are_awaited, open_accel(&(device_config){0}))
{
    stream *opener = new_stream(d, "side");
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

/* Opens the gate while device_close waits. On the stand-in for an NPU, that is when the host has
 * asked for the stream's state again: it does not ask between the failure and device_close. */
typedef struct opener {
    sem_t *gate;
    long (*queries)(void); /* NULL: another device */
    long n_before;
} opener;

static void *open_in_close(void *arg)
{
    opener *o = arg;
    while (o->queries != NULL && o->queries() == o->n_before)
        usleep(1000);
    (void)run_open_gate(&o->gate, 1);
    return NULL;
}

/* When a poll finds a dead rank, a host task may still wait for other ranks, with more tasks queued
 * after it. */
TEST(test_failed_poll_with_tasks)
{
    device *d = open_accel(&(device_config){0});
    stream *s = device_compute_stream(d);
    polled p = {.fails_at = 2};
    order x = {.elems = 0};
    sem_t started, gate, *both[] = {&started, &gate};
    opener o = {.gate = &gate, .queries = target_symbol("sim_stream_queries")};
    pthread_t thread; /* not a task, which would be skipped too */
    sem_init(&started, 0, 0);
    sem_init(&gate, 0, 0);
    set_poll(d, count_look, &p);
    OK(launch_c(s, run_meet, both, sizeof both));
    OK(order_add(&x, s, 0));
    sem_wait(&started); /* after the failure the task would be skipped */
    assert_int_equal(stream_sync(s), FSDP_ECOMM);
    o.n_before = o.queries != NULL ? o.queries() : 0;
    assert_int_equal(pthread_create(&thread, NULL, open_in_close, &o), 0);
    device_close(d);
    pthread_join(thread, NULL);
    expect_order(&x, 0);
}

/* The host itself copies to and from pinned memory. */
ON_THIS(test_host_to_host, open_accel(&(device_config){0}))
{
    unsigned char host[1000], back[1000];
    memset(host, 5, sizeof host);
    void *pinned = new_host_block(s, sizeof host, "pinned");
    OK(device_upload(s, pinned, host, sizeof host));
    memset(host, 6, sizeof host);
    OK(device_download(s, back, pinned, sizeof back));
    OK(stream_sync(s));
    assert_true(all_bytes(back, sizeof back, 5));
    device_free(s, pinned);
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef void *block_fn(stream *s, size_t bytes, const char *label);

/* The stream that freed a block may reuse the block at once. Another stream may reuse it only when
 * the first stream is done. A block of another size is another one. */
static void check_reuse(device *d, block_fn *block)
{
    stream *s = device_compute_stream(d), *side = new_stream(d, "side");
    enum { BYTES = 1 << 20 };
    sem_t gate;
    void *first = block(s, BYTES, "first");
    assert_int_equal((uintptr_t)first % 64, 0);
    close_gate(s, &gate);
    OK(device_zero(s, first, BYTES));
    device_free(s, first);
    void *others = block(side, BYTES, "other's");
    assert_ptr_not_equal(others, first);
    void *larger = block(s, BYTES + 1, "larger");
    assert_ptr_not_equal(larger, first);
    void *again = block(s, BYTES - 100, "again");
    assert_ptr_equal(again, first);
    device_free(s, again);
    device_free(s, larger);
    open_gate(&gate);
    OK(stream_sync(s));
    device_free(s, others); /* it was allocated on `side` */
    OK(stream_sync(s));
    others = block(side, BYTES, "either");
    again = block(side, BYTES, "either");
    assert_true(again == first || others == first);
    assert_int_equal(ledger_read(device_ledger(d)).live_total_bytes,
                     block == new_block ? 2 * BYTES : 0);
    assert_int_equal(ledger_read(device_host_ledger(d)).live_total_bytes,
                     block == new_host_block ? 2 * BYTES : 0);
    device_free(side, again);
    device_free(side, others);
    stream_free(side);
}

/* CUDA's own pool has the blocks of a GPU; the device itself keeps an NPU's blocks, and pinned
 * memory. */
ON_THIS(test_memory_is_reused, open_accel(&(device_config){0}))
{
    check_reuse(d, new_host_block);
    if (strcmp(device_name(d), "npu") == 0)
        check_reuse(d, new_block);
}

/* ---- programs that are wrong: each in a process of its own ----------------------------------- */

enum { ELEMS = 1000 };

/* A device with a stream and two vectors. */
typedef struct vectors {
    device *d;
    stream *s;
    float *in, *out;
} vectors;

static vectors open_vectors(void)
{
    vectors v = {.d = open_accel(&(device_config){.debug_fill = true})};
    v.s = device_compute_stream(v.d);
    v.in = new_block(v.s, ELEMS * sizeof(float), "in");
    v.out = new_block(v.s, ELEMS * sizeof(float), "out");
    OK(device_zero(v.s, v.in, ELEMS * sizeof(float)));
    OK(stream_sync(v.s));
    return v;
}

static fsdp_status gelu(const vectors *v)
{
    return target_backend()->fast()->gelu(
        v->s, &(gelu_args){.out = v->out, .in = v->in, .elems = ELEMS, .type = DTYPE_F32});
}

/* The second operation fails. The stream that waits reports the error first; then every call
 * does. */
static void run_fault(void)
{
    vectors v = open_vectors();
    stream *side = new_stream(v.d, "side");
    void *more = (void *)1;
    float back;
    OK(gelu(&v));
    OK(device_zero(v.s, v.in, 4));
    (void)gelu(&v);
    (void)device_download(v.s, &back, v.out, sizeof back);
    printf("sync: %s\n", fsdp_status_name(stream_sync(v.s)));
    printf("words: %s\n", fsdp_error_get()->what);
    printf("launch: %s\n", fsdp_status_name(gelu(&v)));
    printf("other stream: %s\n", fsdp_status_name(stream_sync(side)));
    printf("alloc: %s\n", fsdp_status_name(device_alloc(v.s, MEM_OTHER, 8, "more", &more)));
    device_free(v.s, v.in);
    device_free(v.s, v.out);
    device_close(v.d);
    printf("closed\n");
}

static void run_host_read(void)
{
    vectors v = open_vectors();
    printf("read %g\n", (double)*(volatile float *)v.in);
}

static int run_wrong(const char *name)
{
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(name, "fault") == 0)
        run_fault();
    else
        run_host_read();
    return 0;
}

static bool is_cuda(void)
{
    return strcmp(target_backend()->device->name, "cuda") == 0;
}

TEST(test_fault)
{
    need_sim(NULL);
    const char *text = output_of("fault", is_cuda() ? "FSDP_SIM_FAULT=fast_gelu_kernel:2"
                                                    : "FSDP_SIM_FAULT=aclnnGeluV2:2");
    expect_output(
        text, is_cuda() ? "sync: FSDP_EDEVICE\nwords: GPU 0 failed: an illegal memory access was "
                          "encountered (cudaErrorIllegalAddress); issued last on stream "
                          "'compute': "
                        : "sync: FSDP_EDEVICE\nwords: NPU 0 failed: ACL's error 5");
    expect_output(text, "; issued last on stream 'compute': ");
    expect_output(text, "gelu, fill, gelu");
    expect_output(text, "launch: FSDP_EDEVICE\nother stream: FSDP_EDEVICE\nalloc: FSDP_EDEVICE\n"
                        "closed\n");
}

TEST(test_host_read)
{
    need_sim(NULL);
    device_close(open_mode(&SEPARATE, false)); /* skips if the memory cannot be guarded */
    expect_output(output_of("host-read", "A=B"),
                  is_cuda()
                      ? "host access to device memory: 'memory of the GPU' (4064 bytes), byte 0"
                      : "host access to device memory: 'memory of the NPU'");
}

int main(int argc, char **argv)
{
    alarm(600); /* a deadlock is a failure, not a hang */
    if (argc > 1)
        return run_wrong(argv[1]);
    return tests_run(NULL, NULL);
}
