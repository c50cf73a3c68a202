/* test_device.c -- device.h on the CPU: memory, streams, events, errors.
 *
 * Most tests run twice: with the inline compute stream and with a worker (async_compute). Order is
 * tested with gates (jobs that wait for the test), never with sleeps alone; a seeded stress run
 * checks random programs against the happens-before that device.h promises, and is meant to be run
 * under ThreadSanitizer too (make SAN=thread). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/device/cpu_impl.h"

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

#if UNDER_ASAN
/* A request beyond all memory is to return NULL, as it does without the sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
#endif

#define OK(call)                                                                                   \
    do {                                                                                           \
        fsdp_status ok_status_ = (call);                                                           \
        if (ok_status_ != FSDP_OK)                                                                 \
            fail_msg("%s: %s", #call, fsdp_error_get()->what);                                     \
    } while (0)

static device *open_cpu(bool async, bool debug_fill)
{
    device *d = NULL;
    OK(device_open(
        &(device_config){
            .kind = DEVICE_CPU, .n_threads = 2, .async_compute = async, .debug_fill = debug_fill},
        &d));
    return d;
}

static cpu_pool *pool_of(device *d)
{
    return &((cpu_device *)d)->pool;
}

static size_t live_bytes(device *d)
{
    return ledger_read(device_ledger(d)).live_total_bytes;
}

/* ---- jobs ----------------------------------------------------------------------------------- */
static fsdp_status run_gate(void *args, int n_threads)
{
    (void)n_threads;
    sem_wait(*(sem_t **)args);
    return FSDP_OK;
}

/* Work issued on s after this starts only when the test posts the gate. */
static void close_gate(stream *s, sem_t *gate)
{
    sem_init(gate, 0, 0);
    OK(stream_launch(s, run_gate, &gate, sizeof gate));
}

typedef struct append_args {
    int *list, *elems;
    int value;
} append_args;

static fsdp_status run_append(void *args, int n_threads)
{
    (void)n_threads;
    append_args *a = args;
    a->list[(*a->elems)++] = a->value;
    a->value = -1; /* its own copy: the caller's struct must not change */
    return FSDP_OK;
}

static fsdp_status run_report_threads(void *args, int n_threads)
{
    **(int **)args = n_threads;
    return FSDP_OK;
}

static fsdp_status run_fail(void *args, int n_threads)
{
    (void)n_threads;
    int number = *(int *)args;
    return fsdp_error(number == 0 ? FSDP_EIO : FSDP_ECOMM, "try again", "job %d broke", number);
}

static fsdp_status run_fail_silently(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    return FSDP_ETIMEOUT;
}

/* ---- opening -------------------------------------------------------------------------------- */
static void test_open_refuses(void **state)
{
    (void)state;
    device *d = (device *)&state;
    assert_int_equal(device_open(&(device_config){.kind = DEVICE_CUDA, .n_threads = 1}, &d),
                     FSDP_ESKIP);
    assert_null(d);
    assert_non_null(strstr(fsdp_error_get()->what, "cuda"));
    assert_true(strlen(fsdp_error_get()->hint) > 0);
    assert_int_equal(device_open(&(device_config){.kind = DEVICE_NPU, .n_threads = 1}, &d),
                     FSDP_ESKIP);
    assert_int_equal(device_open(&(device_config){.kind = (device_kind)7, .n_threads = 1}, &d),
                     FSDP_EINVAL);
    assert_int_equal(device_open(&(device_config){.index = 1, .n_threads = 1}, &d), FSDP_EINVAL);
    assert_int_equal(device_open(&(device_config){.n_threads = 0}, &d), FSDP_EINVAL);
    assert_non_null(strstr(fsdp_error_get()->what, "n_threads 0"));
    device_close(NULL);
}

static void test_stream_facts(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, false);
    stream *compute = device_compute_stream(d), *other = NULL;
    OK(stream_create(d, "comm", &other));
    assert_int_equal(device_get_kind(d), DEVICE_CPU);
    assert_ptr_equal(stream_device(other), d);
    assert_int_equal(stream_threads(compute), 2);
    assert_int_equal(stream_threads(other), 1);
    int seen[2] = {0, 0};
    OK(stream_launch(compute, run_report_threads, &(int *){&seen[0]}, sizeof(int *)));
    OK(stream_launch(other, run_report_threads, &(int *){&seen[1]}, sizeof(int *)));
    OK(stream_sync(compute));
    OK(stream_sync(other));
    assert_int_equal(seen[0], 2);
    assert_int_equal(seen[1], 1);
    stream_free(other);
    stream_free(NULL);
    device_close(d);
}

/* ---- order ---------------------------------------------------------------------------------- */
static void test_fifo_and_copied_args(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, false);
    stream *s = device_compute_stream(d);
    int list[100] = {0}, elems = 0;
    sem_t gate;
    if (async)
        close_gate(s, &gate);
    append_args a = {list, &elems, 0};
    for (int i = 0; i < 100; i++) {
        a.value = i; /* one struct reused: a queue that keeps the pointer sees 99 only */
        OK(stream_launch(s, run_append, &a, sizeof a));
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

static void test_close_waits(void **state)
{
    (void)state;
    int list[1000], elems = 0;
    device *d = open_cpu(true, false);
    stream *s[2] = {device_compute_stream(d), NULL};
    OK(stream_create(d, "left open", &s[1]));
    event *e = NULL;
    OK(event_create(d, &e));
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

static void test_stream_free_drains(void **state)
{
    (void)state;
    int list[1000], elems = 0;
    device *d = open_cpu(false, false);
    stream *s = NULL;
    OK(stream_create(d, "short-lived stream with a long name beyond any limit", &s));
    for (int i = 0; i < 1000; i++)
        OK(stream_launch(s, run_append, &(append_args){list, &elems, i}, sizeof(append_args)));
    stream_free(s);
    assert_int_equal(elems, 1000);
    device_close(d);
}

/* ---- events --------------------------------------------------------------------------------- */
static void test_event_orders_streams(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, false);
    stream *producer = NULL, *consumer = device_compute_stream(d);
    OK(stream_create(d, "producer", &producer));
    event *e = NULL;
    OK(event_create(d, &e));
    assert_true(event_done(e)); /* never recorded: nothing to wait for */
    OK(event_sync(e));
    OK(stream_wait_event(consumer, e));
    int list[2], elems = 0;
    sem_t gate;
    close_gate(producer, &gate);
    OK(stream_launch(producer, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    OK(event_record(e, producer));
    assert_false(event_done(e));
    if (!async)
        sem_post(&gate); /* the wait below blocks the host */
    OK(stream_wait_event(consumer, e));
    OK(stream_launch(consumer, run_append, &(append_args){list, &elems, 2}, sizeof(append_args)));
    if (async) {
        usleep(2000); /* gives a consumer that does not wait the time to go wrong */
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

/* A wait keeps what the event stood for when it was issued: recording the event again, on a stream
 * that is stuck, or freeing it, changes nothing. The inline consumer is the sharpest form: it would
 * hang here.                                                                                     */
static void test_event_rerecord(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, false);
    stream *first = NULL, *stuck = NULL, *waiter = NULL;
    OK(stream_create(d, "first", &first));
    OK(stream_create(d, "stuck", &stuck));
    OK(stream_create(d, "waiter", &waiter));
    event *e = NULL;
    OK(event_create(d, &e));
    sem_t gate, stuck_gate;
    close_gate(first, &gate);
    close_gate(stuck, &stuck_gate);
    int list[4], elems = 0;
    OK(stream_launch(first, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    OK(event_record(e, first));
    OK(stream_wait_event(waiter, e)); /* of the first capture */
    OK(event_record(e, stuck));
    OK(stream_launch(waiter, run_append, &(append_args){list, &elems, 2}, sizeof(append_args)));
    sem_post(&gate);
    OK(stream_sync(waiter)); /* hangs if it waits for the second capture */
    assert_int_equal(elems, 2);
    assert_int_equal(list[0], 1);
    assert_false(event_done(e)); /* the event itself stands for the second */
    OK(stream_wait_event(waiter, e));
    event_free(e); /* recorded, not reached, waited for */
    OK(stream_launch(waiter, run_append, &(append_args){list, &elems, 3}, sizeof(append_args)));
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

static void test_rerecord_on_done_stream_replaces(void **state)
{
    (void)state;
    device *d = open_cpu(false, false);
    stream *stuck = NULL;
    OK(stream_create(d, "stuck", &stuck));
    event *e = NULL;
    OK(event_create(d, &e));
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

static void test_error_is_sticky(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, false);
    stream *s = device_compute_stream(d);
    void *kept = NULL, *none = (void *)1;
    OK(device_alloc(s, MEM_OTHER, 100, "kept", &kept));
    event *e = NULL;
    OK(event_create(d, &e));
    int list[3], elems = 0;
    sem_t gate;
    if (async)
        close_gate(s, &gate);
    OK(stream_launch(s, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    fsdp_status first = stream_launch(s, run_fail, &(int){0}, sizeof(int));
    assert_int_equal(first, async ? FSDP_OK : FSDP_EIO);
    (void)stream_launch(s, run_append, &(append_args){list, &elems, 2}, sizeof(append_args));
    (void)stream_launch(s, run_fail, &(int){1}, sizeof(int));
    if (async)
        sem_post(&gate);
    expect_error(stream_sync(s), FSDP_EIO, "job 0 broke");
    assert_int_equal(elems, 1); /* the work behind it was skipped */
    expect_error(stream_launch(s, run_append, &(append_args){list, &elems, 3}, sizeof(append_args)),
                 FSDP_EIO, "job 0 broke");
    expect_error(device_alloc(s, MEM_OTHER, 1, "none", &none), FSDP_EIO, "job 0 broke");
    assert_null(none);
    expect_error(device_zero(s, kept, 100), FSDP_EIO, "job 0 broke");
    expect_error(device_upload(s, kept, list, 4), FSDP_EIO, "job 0 broke");
    expect_error(event_record(e, s), FSDP_EIO, "job 0 broke");
    expect_error(event_sync(e), FSDP_EIO, "job 0 broke"); /* completes, and says how */
    assert_true(event_done(e));
    assert_string_equal(((cpu_stream *)s)->error.hint, "try again");
    device_free(s, kept); /* memory comes back all the same */
    (void)stream_sync(s);
    assert_int_equal(live_bytes(d), 0);
    assert_int_equal(elems, 1);
    event_free(e);
    device_close(d);
}

static void test_error_without_words(void **state)
{
    (void)state;
    device *d = open_cpu(false, false);
    stream *s = NULL;
    OK(stream_create(d, "quiet", &s));
    OK(stream_launch(s, run_fail_silently, NULL, 0));
    assert_int_equal(stream_sync(s), FSDP_ETIMEOUT);
    assert_non_null(strstr(fsdp_error_get()->what, "quiet"));
    device_close(d);
}

/* An event of a failed stream: the waiter fails the same way, but only what comes behind its wait.
 */
static void test_error_travels_by_event(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, false);
    stream *bad = NULL, *waiter = device_compute_stream(d), *innocent = NULL;
    OK(stream_create(d, "bad", &bad));
    OK(stream_create(d, "innocent", &innocent));
    event *e = NULL, *before = NULL;
    OK(event_create(d, &e));
    OK(event_create(d, &before));
    OK(event_record(before, bad));
    OK(stream_launch(bad, run_fail, &(int){0}, sizeof(int)));
    (void)event_record(e, bad);
    (void)stream_sync(bad);
    int list[4], elems = 0;
    sem_t gate;
    if (async)
        close_gate(waiter, &gate);
    OK(stream_launch(waiter, run_append, &(append_args){list, &elems, 1}, sizeof(append_args)));
    fsdp_status status = stream_wait_event(waiter, e);
    if (async)
        assert_int_equal(status, FSDP_OK);
    else
        expect_error(status, FSDP_EIO, "job 0 broke");
    (void)stream_launch(waiter, run_append, &(append_args){list, &elems, 2}, sizeof(append_args));
    if (async)
        sem_post(&gate);
    expect_error(stream_sync(waiter), FSDP_EIO, "job 0 broke");
    assert_int_equal(elems, 1);              /* what was queued before the wait has run */
    OK(stream_wait_event(innocent, before)); /* that capture was before the failure */
    OK(stream_sync(innocent));
    event_free(e);
    event_free(before);
    device_close(d);
}

/* ---- moving bytes --------------------------------------------------------------------------- */
static void test_copies(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, false);
    stream *s = device_compute_stream(d);
    enum { SMALL = 1000, LARGE = 1000000 }; /* below and above what is staged in the queue */
    static unsigned char host[LARGE], back[LARGE];
    void *a = NULL, *b = NULL;
    OK(device_alloc(s, MEM_OTHER, LARGE, "a", &a));
    OK(device_alloc(s, MEM_OTHER, LARGE, "b", &b));
    for (int round = 0; round < 2; round++) {
        size_t bytes = round ? LARGE : SMALL;
        for (size_t i = 0; i < bytes; i++)
            host[i] = (unsigned char)(i * 7 + 1);
        sem_t gate;
        if (async && !round) /* a large upload waits for its turn, so it would wait for us */
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

/* ---- memory --------------------------------------------------------------------------------- */
static void test_alloc_facts(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, false);
    stream *s = device_compute_stream(d);
    static const size_t SIZES[] = {
        0, 0, 1, 63, 64, 65, 4096, 100001, (2 << 20) - 136, 2 << 20, (5 << 20) + 12345};
    enum { N = sizeof SIZES / sizeof *SIZES };
    void *ptr[N];
    size_t total_bytes = 0;
    for (int i = 0; i < N; i++) {
        OK(device_alloc(s, MEM_COMM, SIZES[i], "block", &ptr[i]));
        assert_int_equal((uintptr_t)ptr[i] % 64, 0);
        memset(ptr[i], i, SIZES[i]);
        total_bytes += SIZES[i];
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(ptr[k], ptr[i]);
    }
    ledger_figures f = ledger_read(device_ledger(d));
    assert_int_equal(f.live_bytes[MEM_COMM], total_bytes);
    assert_int_equal(f.live_blocks, N);
    for (int i = 0; i < N; i++) {
        for (size_t k = 0; k < SIZES[i]; k++)
            if (((unsigned char *)ptr[i])[k] != i)
                fail_msg("block %d overlaps another at byte %zu", i, k);
        device_free(s, ptr[i]);
    }
    device_free(s, NULL);
    OK(stream_sync(s));
    f = ledger_read(device_ledger(d));
    assert_int_equal(f.live_total_bytes, 0);
    assert_int_equal(f.live_blocks, 0);
    assert_int_equal(f.peak_total_bytes, total_bytes);
    device_close(d);
}

static void test_alloc_fails_with_words(void **state)
{
    (void)state;
    device *d = open_cpu(false, false);
    stream *s = device_compute_stream(d);
    void *kept = NULL, *ptr = (void *)1;
    OK(device_alloc(s, MEM_OTHER, 12345, "kept", &kept));
    size_t huge = SIZE_MAX / 4;
    assert_int_equal(device_alloc(s, MEM_ACTIVATIONS, huge, "logits", &ptr), FSDP_ENOMEM);
    assert_null(ptr);
    char number[32];
    snprintf(number, sizeof number, "%zu bytes", huge);
    const char *what = fsdp_error_get()->what;
    assert_non_null(strstr(what, number));
    assert_non_null(strstr(what, "'logits'"));
    assert_non_null(strstr(what, "activations"));
    assert_non_null(strstr(what, "12345 bytes"));
    assert_int_equal(device_alloc(s, MEM_OTHER, SIZE_MAX - 5, "most", &ptr), FSDP_ENOMEM);
    float *elems = NULL;
    assert_int_equal(device_alloc_f32(s, MEM_OTHER, SIZE_MAX / 4 + 1, "wraps", &elems),
                     FSDP_EINVAL);
    OK(stream_sync(s)); /* an alloc that fails is the caller's error, not the stream's */
    OK(device_alloc_f32(s, MEM_OTHER, 10, "ten", &elems));
    assert_int_equal(live_bytes(d), 12345 + 40);
    device_free(s, elems);
    device_free(s, kept);
    device_close(d);
}

static void test_recycling(void **state)
{
    (void)state;
    if (UNDER_ASAN)
        skip(); /* nothing is recycled there */
    device *d = open_cpu(false, false);
    stream *s = device_compute_stream(d);
    const size_t bytes = 3 << 20;
    void *a = NULL, *b = NULL, *c = NULL;
    OK(device_alloc(s, MEM_OTHER, bytes, "a", &a));
    OK(device_alloc(s, MEM_OTHER, bytes, "b", &b));
    device_free(s, a);
    OK(device_alloc(s, MEM_OTHER, bytes + 8192, "other size", &c));
    assert_ptr_not_equal(a, c);
    device_free(s, c);
    OK(device_alloc(s, MEM_OTHER, bytes, "again", &c));
    assert_ptr_equal(a, c);
    device_free(s, b);
    device_free(s, c);
    void *last = NULL;
    OK(device_alloc(s, MEM_OTHER, bytes, "latest first", &last));
    assert_ptr_equal(last, c);
    device_free(s, last);
    cpu_pool_trim(pool_of(d), 0);
    assert_int_equal(cpu_pool_cached_bytes(pool_of(d)), 0);
    device_close(d);
}

/* The cache never exceeds the most that was live at once: with one block live at a time, of ever
 * new sizes, at most the largest footprint may be cached.                                        */
static void test_cache_is_bounded(void **state)
{
    (void)state;
    if (UNDER_ASAN)
        skip();
    device *d = open_cpu(false, false);
    stream *s = device_compute_stream(d);
    size_t most_cached = 0, seed = 12345;
    for (int i = 0; i < 300; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        void *ptr = NULL;
        OK(device_alloc(s, MEM_OTHER, (seed >> 33) % 100000, "one", &ptr));
        device_free(s, ptr);
        size_t cached = cpu_pool_cached_bytes(pool_of(d));
        assert_true(cached <= pool_of(d)->live_peak_bytes);
        most_cached = cached > most_cached ? cached : most_cached;
    }
    /* 128 header + 8 tail + 63 of rounding beside the payload */
    size_t peak = ledger_read(device_ledger(d)).peak_total_bytes;
    assert_true(pool_of(d)->live_peak_bytes <= peak + 128 + 8 + 63);
    assert_true(most_cached > peak / 2); /* and it is used, not just empty */
    device_close(d);
}

/* ---- stream-ordered free and early reuse ------------------------------------------------------
 */
static void test_free_is_stream_ordered(void **state)
{
    (void)state;
    device *d = open_cpu(false, false);
    stream *s = NULL, *other = NULL;
    OK(stream_create(d, "s", &s));
    OK(stream_create(d, "other", &other));
    int *a = NULL, *b = NULL, *c = NULL, seen = 0;
    OK(device_alloc(s, MEM_OTHER, 4000, "a", (void **)&a));
    sem_t gate;
    close_gate(s, &gate);
    OK(device_upload(s, a, &(int){42}, sizeof(int)));
    OK(device_download(s, &seen, a, sizeof(int)));
    device_free(s, a);
    assert_int_equal(live_bytes(d), 4000); /* the stream has not come to the free */
    OK(device_alloc(other, MEM_OTHER, 4000, "b", (void **)&b));
    assert_ptr_not_equal(a, b); /* another stream must not get it yet */
    b[0] = 7;
    OK(device_alloc(s, MEM_COMM, 4000, "c", (void **)&c));
    if (!UNDER_ASAN) {
        assert_ptr_equal(a, c); /* the same stream may */
        assert_int_equal(live_bytes(d), 8000);
        assert_int_equal(ledger_read(device_ledger(d)).live_bytes[MEM_COMM], 4000);
    }
    OK(device_upload(s, c, &(int){43}, sizeof(int)));
    sem_post(&gate);
    OK(stream_sync(s));
    assert_int_equal(seen, 42); /* the older use came first */
    assert_int_equal(c[0], 43);
    assert_int_equal(b[0], 7);
    assert_int_equal(live_bytes(d), 8000); /* the queued free left the new owner alone */
    device_free(s, c);
    device_free(other, b);
    OK(stream_sync(s));
    OK(stream_sync(other));
    assert_int_equal(live_bytes(d), 0);
    device_close(d);
}

/* A host that runs ahead needs one block, not a hundred; with debug_fill the block holds NaN at the
 * start of each life, in stream order.                                                           */
static void test_run_ahead_needs_one_block(void **state)
{
    (void)state;
    if (UNDER_ASAN)
        skip();
    device *d = open_cpu(true, true);
    stream *s = device_compute_stream(d);
    sem_t gate;
    close_gate(s, &gate);
    unsigned first[100], last[100];
    for (int i = 0; i < 100; i++) {
        unsigned *ptr = NULL;
        OK(device_alloc(s, MEM_ACTIVATIONS, 50000, "temporary", (void **)&ptr));
        OK(device_download(s, &first[i], ptr, sizeof *ptr));
        OK(device_zero(s, ptr, 50000));
        OK(device_download(s, &last[i], ptr, sizeof *ptr));
        device_free(s, ptr);
    }
    assert_int_equal(live_bytes(d), 50000);
    sem_post(&gate);
    OK(stream_sync(s));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(first[i], 0xFFFFFFFFu);
        assert_int_equal(last[i], 0);
    }
    ledger_figures f = ledger_read(device_ledger(d));
    assert_int_equal(f.peak_total_bytes, 50000);
    assert_int_equal(f.alloc_calls, 100);
    assert_int_equal(f.live_blocks, 0);
    device_close(d);
}

/* Freed on one stream while an older free of an earlier life still waits on another. The last to
 * run retires it, whichever that is. */
static void test_two_frees_in_flight(void **state)
{
    (void)state;
    if (UNDER_ASAN)
        skip();
    device *d = open_cpu(false, false);
    stream *a = NULL, *b = NULL;
    OK(stream_create(d, "a", &a));
    OK(stream_create(d, "b", &b));
    void *first = NULL, *second = NULL, *third = NULL;
    OK(device_alloc(a, MEM_OTHER, 640, "first", &first));
    sem_t gate;
    close_gate(a, &gate);
    device_free(a, first);
    OK(device_alloc(a, MEM_OTHER, 640, "second", &second));
    assert_ptr_equal(first, second);
    device_free(b, second); /* without the event it would need: must not break the pool */
    OK(stream_sync(b));
    assert_int_equal(live_bytes(d), 640); /* stream a may still use it */
    OK(device_alloc(device_compute_stream(d), MEM_OTHER, 640, "third", &third));
    assert_ptr_not_equal(first, third);
    sem_post(&gate);
    OK(stream_sync(a));
    assert_int_equal(live_bytes(d), 640);
    device_free(device_compute_stream(d), third);
    assert_int_equal(live_bytes(d), 0);
    device_close(d);
}

/* ---- debug fill ------------------------------------------------------------------------------ */
static bool all_bytes(const void *ptr, size_t bytes, unsigned char byte)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const volatile unsigned char *)ptr)[i] != byte)
            return false;
    return true;
}

static void test_debug_fill(void **state)
{
    bool async = *(bool *)*state;
    device *d = open_cpu(async, true);
    stream *s = device_compute_stream(d);
    unsigned char *ptr = NULL;
    OK(device_alloc(s, MEM_OTHER, 1001, "filled", (void **)&ptr));
    OK(stream_sync(s));
    assert_true(all_bytes(ptr, 1001, 0xFF));
    OK(device_zero(s, ptr, 1001));
    OK(device_poison(s, ptr, 500));
    OK(stream_sync(s));
    assert_true(all_bytes(ptr, 500, 0xFF));
    assert_true(all_bytes(ptr + 500, 501, 0));
    device_free(s, ptr);
    OK(stream_sync(s));
    if (!UNDER_ASAN) /* the block is cached, so its bytes can still be looked at */
        assert_true(all_bytes(ptr, 1001, 0xFF));
    device_close(d);

    d = open_cpu(async, false); /* off: poison does nothing */
    s = device_compute_stream(d);
    OK(device_alloc(s, MEM_OTHER, 100, "plain", (void **)&ptr));
    OK(device_zero(s, ptr, 100));
    OK(device_poison(s, ptr, 100));
    OK(stream_sync(s));
    assert_true(all_bytes(ptr, 100, 0));
    device_free(s, ptr);
    device_close(d);
}

/* ---- programmer errors, in a child that must abort --------------------------------------------
 */
static void expect_abort(void (*body)(device *d, stream *s), const char *words)
{
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        dup2(pipe_fds[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        device *d = open_cpu(false, false);
        body(d, device_compute_stream(d));
        _exit(0);
    }
    close(pipe_fds[1]);
    char text[4096];
    size_t chars = 0;
    ssize_t n;
    while ((n = read(pipe_fds[0], text + chars, sizeof text - 1 - chars)) > 0)
        chars += (size_t)n;
    text[chars] = '\0';
    close(pipe_fds[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(text, words))
        fail_msg("expected an abort with \"%s\", got wait status %d and: %s", words, status, text);
}

static void *must_alloc(stream *s, size_t bytes)
{
    void *ptr = NULL;
    OK(device_alloc(s, MEM_GRADS_FULL, bytes, "block x", &ptr));
    return ptr;
}

static void body_double_free(device *d, stream *s)
{
    (void)d;
    void *ptr = must_alloc(s, 100);
    device_free(s, ptr);
    device_free(s, ptr);
}

static void body_double_free_queued(device *d, stream *s)
{
    stream *worker = NULL;
    sem_t gate;
    OK(stream_create(d, "worker", &worker));
    void *ptr = must_alloc(s, 100);
    close_gate(worker, &gate);
    device_free(worker, ptr);
    device_free(worker, ptr);
}

static void body_foreign(device *d, stream *s)
{
    (void)d;
    static _Alignas(64) char foreign[512];
    device_free(s, foreign + 256);
}

static void body_misaligned(device *d, stream *s)
{
    (void)d;
    device_free(s, (char *)must_alloc(s, 100) + 4);
}

static void body_write_before(device *d, stream *s)
{
    (void)d;
    volatile char *ptr = must_alloc(s, 100);
    ptr[-1] = 0;
    device_free(s, (void *)ptr);
}

static void body_write_behind(device *d, stream *s)
{
    (void)d;
    volatile char *ptr = must_alloc(s, 100);
    ptr[100] = 0;
    device_free(s, (void *)ptr);
}

static void body_live_at_close(device *d, stream *s)
{
    device_free(s, must_alloc(s, 99));
    (void)must_alloc(s, 777);
    device_close(d);
}

static void body_sync_from_job_inner(stream *s);
static fsdp_status run_sync_own(void *args, int n_threads)
{
    (void)n_threads;
    body_sync_from_job_inner(*(stream **)args);
    return FSDP_OK;
}

static void body_sync_from_job_inner(stream *s)
{
    (void)stream_sync(s);
}

static void body_sync_from_job(device *d, stream *s)
{
    OK(stream_create(d, "worker", &s));
    OK(stream_launch(s, run_sync_own, &s, sizeof s));
    (void)stream_sync(s);
}

static void body_free_compute(device *d, stream *s)
{
    (void)d;
    stream_free(s);
}

static void test_programmer_errors(void **state)
{
    (void)state;
    if (!UNDER_ASAN) { /* it reports these three itself */
        expect_abort(body_double_free, "block 'block x' (100 bytes) is already free");
        expect_abort(body_write_behind, "behind its end");
        expect_abort(body_foreign, "not from device_alloc");
    }
    expect_abort(body_double_free_queued, "block 'block x' (100 bytes) is already free");
    expect_abort(body_misaligned, "not from device_alloc");
    expect_abort(body_write_before, "before its start");
    expect_abort(body_live_at_close, "block 'block x' (grads_full, 777 bytes) was never freed");
    expect_abort(body_sync_from_job, "own stream");
    expect_abort(body_free_compute, "belongs to its device");
}

/* ---- memory that is left ----------------------------------------------------------------------
 */
static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_mem_available_sources(void **state)
{
    (void)state;
    char root[] = "/tmp/test_device.XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    assert_true(host_mem_available(root) == SIZE_MAX); /* nothing readable: nothing known */
    write_file(root, "proc/meminfo", "MemTotal: 900 kB\nMemFree:  100 kB\nMemAvailable:  500 kB\n");
    assert_int_equal(host_mem_available(root), 512000);
    /* v2: the enclosing level is the tighter one; inactive file pages count as free */
    write_file(root, "proc/self/cgroup", "0::/a/b\n");
    write_file(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    write_file(root, "sys/fs/cgroup/a/b/memory.current", "1000\n");
    assert_int_equal(host_mem_available(root), 512000);
    write_file(root, "sys/fs/cgroup/a/memory.max", "400000\n");
    write_file(root, "sys/fs/cgroup/a/memory.current", "300000\n");
    assert_int_equal(host_mem_available(root), 100000);
    write_file(root, "sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 50000\nx 1\n");
    assert_int_equal(host_mem_available(root), 150000);
    write_file(root, "sys/fs/cgroup/a/b/memory.max", "90000\n");
    assert_int_equal(host_mem_available(root), 89000);
    write_file(root, "sys/fs/cgroup/a/b/memory.current", "95000\n"); /* over the limit: none left */
    assert_int_equal(host_mem_available(root), 0);
    /* a container: the path names nothing that can be seen, the mount's root has the figures */
    write_file(root, "proc/self/cgroup", "0::/somewhere/outside\n");
    assert_int_equal(host_mem_available(root), 512000);
    write_file(root, "sys/fs/cgroup/memory.max", "70000\n");
    write_file(root, "sys/fs/cgroup/memory.current", "10000\n");
    assert_int_equal(host_mem_available(root), 60000);
    /* v1 */
    write_file(root, "proc/self/cgroup",
               "12:cpu,cpuacct:/j\n4:memory_not:/k\n3:hugetlb,memory:/j\n");
    write_file(root, "sys/fs/cgroup/memory/j/memory.limit_in_bytes", "80000\n");
    write_file(root, "sys/fs/cgroup/memory/j/memory.usage_in_bytes", "50000\n");
    assert_int_equal(host_mem_available(root), 30000);
    write_file(root, "sys/fs/cgroup/memory/j/memory.stat", "total_inactive_file 20000\n");
    assert_int_equal(host_mem_available(root), 50000);
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

/* Runs body in a child with `resource` limited to present use + slack_bytes; it returns 0 for
 * success. */
static void expect_in_limited_child(int (*body)(device *d, stream *s, int resource), int resource)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        device *d = NULL;
        if (device_open(&(device_config){.n_threads = 1}, &d) != FSDP_OK)
            _exit(100);
        _exit(body(d, device_compute_stream(d), resource));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static size_t process_bytes(int resource)
{
    const char *key = resource == RLIMIT_AS ? "VmSize:" : "VmData:";
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    size_t kb = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, 7) == 0)
            kb = strtoul(line + 7, NULL, 10);
    if (f)
        fclose(f);
    return kb * 1024;
}

enum { MB = 1 << 20 };

static int limit_to(int resource, size_t slack_bytes)
{
    rlim_t limit = process_bytes(resource) + slack_bytes;
    return setrlimit((__rlimit_resource_t)resource, &(struct rlimit){limit, limit});
}

/* The figure follows the limit: derivation of the margin: between reading the present use and the
 * call, stdio and malloc may map a little; 1 MB is far more than they take. */
static int body_figure(device *d, stream *s, int resource)
{
    void *ptr = NULL;
    if (limit_to(resource, 200 * (size_t)MB) != 0)
        return 1;
    size_t available = device_mem_available(d);
    if (available > 200 * (size_t)MB || available < 199 * (size_t)MB)
        return 2;
    if (device_alloc(s, MEM_OTHER, 150 * (size_t)MB, "most", &ptr) != FSDP_OK)
        return 3;
    if (device_mem_available(d) > 51 * (size_t)MB)
        return 4;
    void *more = NULL;
    if (device_alloc(s, MEM_OTHER, 100 * (size_t)MB, "too much", &more) != FSDP_ENOMEM)
        return 5;
    device_free(s, ptr); /* cached, but available: it is given back when needed */
    return device_mem_available(d) >= 199 * (size_t)MB ? 0 : 6;
}

/* 120 MB cached + 120 MB of another size do not fit into 200 MB: the cache must go, silently. */
static int body_cache_released(device *d, stream *s, int resource)
{
    void *ptr = NULL;
    if (limit_to(resource, 200 * (size_t)MB) != 0)
        return 1;
    for (int i = 0; i < 4; i++) {
        if (device_alloc(s, MEM_OTHER, (120 + (size_t)i) * MB, "in turn", &ptr) != FSDP_OK)
            return 2;
        device_free(s, ptr);
        if (cpu_pool_cached_bytes(pool_of(d)) < 120 * (size_t)MB)
            return 3;
    }
    device_close(d);
    return 0;
}

static void test_limits_of_the_process(void **state)
{
    (void)state;
    if (UNDER_ASAN || UNDER_TSAN)
        skip(); /* their shadow memory is beyond any limit */
    expect_in_limited_child(body_figure, RLIMIT_AS);
    expect_in_limited_child(body_figure, RLIMIT_DATA);
    expect_in_limited_child(body_cache_released, RLIMIT_AS);
}

static void test_mem_available_is_plausible(void **state)
{
    (void)state;
    device *d = open_cpu(false, false);
    size_t available = device_mem_available(d);
    size_t physical = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    assert_true(available > MB && available <= physical);
    device_close(d);
}

/* ---- threads ----------------------------------------------------------------------------------
 */
typedef struct alloc_thread {
    device *d;
    unsigned seed;
    int wrong;
} alloc_thread;

/* Eight blocks at a time, each filled with a pattern that must still be there when it is freed. */
static void *run_alloc_thread(void *arg)
{
    alloc_thread *t = arg;
    stream *s = device_compute_stream(t->d);
    struct {
        unsigned char *ptr;
        size_t bytes;
        unsigned char byte;
    } slot[8] = {0};
    for (int i = 0; i < 4000; i++) {
        int k = rand_r(&t->seed) % 8;
        if (slot[k].ptr) {
            if (!all_bytes(slot[k].ptr, slot[k].bytes, slot[k].byte))
                t->wrong++;
            device_free(s, slot[k].ptr);
        }
        slot[k].bytes = 100 * (size_t)(1 + rand_r(&t->seed) % 5);
        slot[k].byte = (unsigned char)rand_r(&t->seed);
        if (device_alloc(s, MEM_OTHER, slot[k].bytes, "slot", (void **)&slot[k].ptr) != FSDP_OK)
            t->wrong++;
        else
            memset(slot[k].ptr, slot[k].byte, slot[k].bytes);
    }
    for (int k = 0; k < 8; k++)
        device_free(s, slot[k].ptr);
    return NULL;
}

static void test_alloc_from_threads(void **state)
{
    (void)state;
    device *d = open_cpu(false, false);
    alloc_thread arg[3];
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) {
        arg[i] = (alloc_thread){d, (unsigned)i + 1, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, run_alloc_thread, &arg[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(arg[i].wrong, 0);
    }
    assert_int_equal(live_bytes(d), 0);
    device_close(d);
}

/* ---- stress: random programs against the promised happens-before ------------------------------
 */
/* The test keeps vector clocks: after[s][t] = how many jobs of stream t are finished, by the rules
 * of device.h, before the next job of s starts; what the host has waited for counts for every
 * stream. Each job checks that exactly those jobs have left their mark, in plain (non-atomic)
 * memory, so that ThreadSanitizer proves the order too; and then leaves its own mark. */
enum { STREAMS = 4, EVENTS = 5, BLOCKS = 6, OPS = 1500 };

typedef struct clocks {
    int n[STREAMS];
} clocks;

typedef struct stress_job {
    int (*marks)[OPS + 1]; /* marks[t][k] == 1 once job k of stream t is done; [STREAMS] */
    atomic_int *violations;
    clocks after;
    int stream, number, nap_us;
    uint32_t *block; /* a block of this stream's life, or NULL */
    uint32_t expect, write;
} stress_job;

static fsdp_status run_stress(void *args, int n_threads)
{
    (void)n_threads;
    stress_job *j = args;
    if (j->nap_us > 0)
        usleep((useconds_t)j->nap_us);
    for (int t = 0; t < STREAMS; t++) {
        int k = j->after.n[t];
        if (k > 0 && j->marks[t][k - 1] != 1)
            atomic_fetch_add(j->violations, 1);
    }
    if (j->block) {
        if (j->expect != 0 && (j->block[0] != j->expect || j->block[49] != j->expect))
            atomic_fetch_add(j->violations, 1);
        j->block[0] = j->block[49] = j->write;
    }
    j->marks[j->stream][j->number] = 1;
    return FSDP_OK;
}

static void merge(clocks *to, const clocks *from)
{
    for (int t = 0; t < STREAMS; t++)
        to->n[t] = to->n[t] > from->n[t] ? to->n[t] : from->n[t];
}

typedef struct stress_block {
    uint32_t *ptr;
    uint32_t value; /* last written; 0: nothing yet */
    clocks used;    /* what must come before its next use */
} stress_block;

typedef struct stress {
    stream *s[STREAMS];
    event *e[EVENTS];
    clocks after[STREAMS], recorded[EVENTS], host;
    int issued[STREAMS];
    stress_block block[BLOCKS];
    int marks[STREAMS][OPS + 1];
    atomic_int violations;
    unsigned seed;
    uint32_t next_value;
    bool inline_compute;
} stress;

static bool covers(const clocks *a, const clocks *b)
{
    for (int t = 0; t < STREAMS; t++)
        if (a->n[t] < b->n[t])
            return false;
    return true;
}

/* A job on s that uses b, if b's last use is ordered before it. */
static void stress_launch(stress *x, int s, stress_block *b)
{
    merge(&x->after[s], &x->host);
    stress_job j = {.marks = x->marks,
                    .violations = &x->violations,
                    .after = x->after[s],
                    .stream = s,
                    .number = x->issued[s]++};
    if (rand_r(&x->seed) % 40 == 0)
        j.nap_us = rand_r(&x->seed) % 300;
    x->after[s].n[s] = x->issued[s];
    if (b->ptr && covers(&j.after, &b->used)) {
        j.block = b->ptr;
        j.expect = b->value;
        j.write = b->value = ++x->next_value;
        b->used = (clocks){{0}};
        b->used.n[s] = x->issued[s];
    }
    OK(stream_launch(x->s[s], run_stress, &j, sizeof j));
    if (s == 0 && x->inline_compute)
        x->host.n[0] = x->issued[0];
}

/* Allocate an empty slot and use it on its stream (so that a stream that does not wait for that use
 * must keep off), or free a full one on a stream that is ordered behind its last use.            */
static void stress_memory(stress *x, int s, stress_block *b)
{
    merge(&x->after[s], &x->host);
    if (!b->ptr) {
        OK(device_alloc(x->s[s], MEM_OTHER, 200, "stress", (void **)&b->ptr));
        b->value = 0;
        b->used = (clocks){{0}};
        stress_launch(x, s, b);
    } else if (covers(&x->after[s], &b->used)) {
        device_free(x->s[s], b->ptr);
        b->ptr = NULL;
    }
}

static void stress_op(stress *x)
{
    int s = rand_r(&x->seed) % STREAMS, e = rand_r(&x->seed) % EVENTS;
    int op = rand_r(&x->seed) % 100;
    stress_block *b = &x->block[rand_r(&x->seed) % BLOCKS];
    if (op < 40) {
        stress_launch(x, s, b);
    } else if (op < 60) {
        stress_memory(x, s, b);
    } else if (op < 78) {
        OK(event_record(x->e[e], x->s[s]));
        merge(&x->after[s], &x->host);
        x->recorded[e] = x->after[s];
    } else if (op < 96) {
        OK(stream_wait_event(x->s[s], x->e[e]));
        merge(&x->after[s], &x->recorded[e]);
        if (s == 0 && x->inline_compute) /* blocks the host */
            merge(&x->host, &x->recorded[e]);
    } else if (op < 98) {
        OK(event_sync(x->e[e]));
        merge(&x->host, &x->recorded[e]);
    } else if (op == 98) {
        OK(stream_sync(x->s[s]));
        merge(&x->host, &x->after[s]);
    } else { /* a recorded event dies; waits keep what it stood for */
        event_free(x->e[e]);
        OK(event_create(stream_device(x->s[0]), &x->e[e]));
        x->recorded[e] = (clocks){{0}};
    }
}

static void test_stress(void **state)
{
    bool async = *(bool *)*state;
    for (unsigned seed = 1; seed <= 12; seed++) {
        device *d = open_cpu(async, seed % 2 == 0);
        stress *x = calloc(1, sizeof *x);
        x->seed = seed * 7919;
        x->inline_compute = !async;
        x->s[0] = device_compute_stream(d);
        for (int s = 1; s < STREAMS; s++)
            OK(stream_create(d, "stress", &x->s[s]));
        for (int e = 0; e < EVENTS; e++)
            OK(event_create(d, &x->e[e]));
        for (int i = 0; i < OPS; i++)
            stress_op(x);
        for (int s = 0; s < STREAMS; s++)
            OK(stream_sync(x->s[s]));
        for (int b = 0; b < BLOCKS; b++)
            device_free(x->s[0], x->block[b].ptr);
        OK(stream_sync(x->s[0]));
        for (int e = 0; e < EVENTS; e++)
            event_free(x->e[e]);
        if (atomic_load(&x->violations) != 0)
            fail_msg("seed %u: %d violations of the promised order", seed,
                     atomic_load(&x->violations));
        assert_int_equal(live_bytes(d), 0);
        device_close(d);
        free(x);
    }
}

#define BOTH(test)                                                                                 \
    {#test " (inline)", test, NULL, NULL, &INLINE},                                                \
    {                                                                                              \
#test " (async)", test, NULL, NULL, &ASYNC                                                 \
    }

int main(void)
{
    static bool INLINE = false, ASYNC = true;
    alarm(120); /* a deadlock is a failure, not a hang */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programmer_errors), /* forks first, while there are no threads */
        cmocka_unit_test(test_limits_of_the_process),
        cmocka_unit_test(test_open_refuses),
        BOTH(test_stream_facts),
        BOTH(test_fifo_and_copied_args),
        cmocka_unit_test(test_close_waits),
        cmocka_unit_test(test_stream_free_drains),
        BOTH(test_event_orders_streams),
        BOTH(test_event_rerecord),
        cmocka_unit_test(test_rerecord_on_done_stream_replaces),
        BOTH(test_error_is_sticky),
        cmocka_unit_test(test_error_without_words),
        BOTH(test_error_travels_by_event),
        BOTH(test_copies),
        BOTH(test_alloc_facts),
        cmocka_unit_test(test_alloc_fails_with_words),
        cmocka_unit_test(test_recycling),
        cmocka_unit_test(test_cache_is_bounded),
        cmocka_unit_test(test_free_is_stream_ordered),
        cmocka_unit_test(test_run_ahead_needs_one_block),
        cmocka_unit_test(test_two_frees_in_flight),
        BOTH(test_debug_fill),
        cmocka_unit_test(test_mem_available_sources),
        cmocka_unit_test(test_mem_available_is_plausible),
        cmocka_unit_test(test_alloc_from_threads),
        BOTH(test_stress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
