/* test_device_watch.c -- the watch of a device, timed events, and the priority of a stream. Most
 * tests also run on the device that FSDP_DEVICE names (tests/unit/target_lib.h). */
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "common/base/clock.h"
#include "common/device/device_impl.h"
#include "tests/unit/device_lib.h"

enum { MOST_ACTS = 32 };

/* The calls of the watch. Streams are threads, so the lock guards `ran`. */
typedef struct seen {
    int n_issued, n_ran;
    device_act issued[MOST_ACTS], ran[MOST_ACTS];
    pthread_mutex_t lock;
} seen;

static uint64_t see_issued(void *self, const device_act *act)
{
    seen *x = self;
    x->issued[x->n_issued] = *act;
    return (uint64_t)++x->n_issued;
}

static uint64_t see_and_forget(void *self, const device_act *act)
{
    (void)see_issued(self, act);
    return 0;
}

static void see_ran(void *self, const device_act *act)
{
    seen *x = self;
    pthread_mutex_lock(&x->lock);
    x->ran[x->n_ran++] = *act;
    pthread_mutex_unlock(&x->lock);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static fsdp_status run_sleep(void *args, int n_threads)
{
    sleep_ms(*(long *)args);
    return FSDP_OK;
}

static fsdp_status run_failing(void *args, int n_threads)
{
    return fsdp_error(FSDP_EINVAL, "", "on purpose");
}

/* A device with a watch, its compute stream, and the calls of the watch. */
typedef struct rig {
    device *d;
    stream *s;
    seen x;
} rig;

static void rig_open(rig *r, const void *mode, bool debug_fill,
                     uint64_t (*issued)(void *self, const device_act *act))
{
    *r = (rig){.d = open_mode(mode, debug_fill), .x.lock = PTHREAD_MUTEX_INITIALIZER};
    r->s = device_compute_stream(r->d);
    device_set_watch(r->d, &(device_watch){&r->x, issued, see_ran});
}

static void rig_close(rig *r)
{
    device_set_watch(r->d, NULL);
    device_close(r->d);
}

/* A test in all modes, with a rig. */
#define TEST_RIG(test, debug_fill, issued)                                                         \
    static void test##_on(rig *r);                                                                 \
    TEST_ALL(test)                                                                                 \
    {                                                                                              \
        rig r;                                                                                     \
        rig_open(&r, *state, debug_fill, issued);                                                  \
        test##_on(&r);                                                                             \
        rig_close(&r);                                                                             \
    }                                                                                              \
    static void test##_on(rig *r)

/* ---- the watch ------------------------------------------------------------------------------ */

static void expect_acts(const seen *x, const stream *s, const device_act *expected, size_t n)
{
    assert_int_equal(x->n_issued, n);
    for (size_t i = 0; i < n; i++) {
        const device_act *got = &x->issued[i], *want = &expected[i];
        assert_int_equal(got->kind, want->kind);
        assert_ptr_equal(got->stream, s);
        assert_ptr_equal(got->event, want->event);
        assert_ptr_equal(got->dst, want->dst);
        assert_ptr_equal(got->src, want->src);
        assert_int_equal(got->bytes, want->bytes);
        assert_true(got->label == want->label || strcmp(got->label, want->label) == 0);
    }
}

static void launch_nap(stream *s, const mem_access *touched)
{
    long ms = 0;
    OK(stream_launch_work(s, &(launch_config){.fn = run_sleep,
                                              .args = &ms,
                                              .args_bytes = sizeof ms,
                                              .on_host = true,
                                              .work = {{.name = "nap"}, {.flops = 3}},
                                              .accesses = touched,
                                              .n_accesses = 1}));
}

/* The watch is told every kind of call in the order of issue, with its operands. */
TEST_RIG(test_issued, false, see_issued)
{
    char host[8] = "1234567";
    const mem_access touched[] = {{host, 3, true}};
    event *e = new_event(r->d);
    void *p = new_block(r->s, 8, "first"), *q = new_host_block(r->s, 8, "second");
    OK(device_upload(r->s, p, host, 8));
    OK(device_copy(r->s, q, p, 8));
    OK(device_download(r->s, host, q, 8));
    OK(device_zero(r->s, q, 8));
    OK(device_copy(r->s, q, p, 0)); /* zero bytes: not reported */
    OK(event_record(e, r->s));
    OK(stream_wait_event(r->s, e));
    launch_nap(r->s, touched);
    device_free(r->s, p);
    device_free(r->s, q);
    device_free(r->s, NULL);
    OK(stream_sync(r->s));
    device_set_watch(r->d, NULL);
    OK(event_record(e, r->s));
    const device_act expected[] = {{.kind = ACT_ALLOC, .dst = p, .bytes = 8, .label = "first"},
                                   {.kind = ACT_ALLOC, .dst = q, .bytes = 8, .label = "second"},
                                   {.kind = ACT_UPLOAD, .dst = p, .src = host, .bytes = 8},
                                   {.kind = ACT_COPY, .dst = q, .src = p, .bytes = 8},
                                   {.kind = ACT_DOWNLOAD, .dst = host, .src = q, .bytes = 8},
                                   {.kind = ACT_FILL, .dst = q, .bytes = 8},
                                   {.kind = ACT_RECORD, .event = e},
                                   {.kind = ACT_WAIT, .event = e},
                                   {.kind = ACT_LAUNCH},
                                   {.kind = ACT_FREE, .dst = p},
                                   {.kind = ACT_FREE, .dst = q},
                                   {.kind = ACT_SYNC}};
    expect_acts(&r->x, r->s, expected, sizeof expected / sizeof *expected);
    assert_string_equal(r->x.issued[8].work.key.name, "nap");
    assert_true(r->x.issued[8].accesses == touched && r->x.issued[8].n_accesses == 1);
    event_free(e);
}

/* `ran` is called for launches, moves and syncs, in order, with the token that `issued`
 * returned. */
TEST_RIG(test_ran, true, see_issued)
{
    void *p;
    long ms = 0;
    static char host[512 << 10];
    OK(device_alloc(r->s, MEM_OTHER, sizeof host, "block", &p)); /* 1; its NaN fill is 2 */
    OK(device_upload(r->s, p, host, 8));                         /* 3: staged in the queue */
    OK(device_upload(r->s, p, host, sizeof host));               /* 4: too large for that */
    OK(stream_launch_work(r->s, &(launch_config){.fn = run_sleep,
                                                 .args = &ms,
                                                 .args_bytes = sizeof ms,
                                                 .on_host = true,
                                                 .name = "nap",
                                                 .label = host})); /* 5 */
    device_free(r->s, p);                                          /* 6 */
    OK(stream_sync(r->s));                                         /* 7 */
    assert_int_equal(r->x.n_ran, 5);
    assert_int_equal(r->x.ran[4].kind, ACT_SYNC);
    assert_int_equal(r->x.ran[4].token, 7);
    const device_act_kind kinds[] = {ACT_FILL, ACT_UPLOAD, ACT_UPLOAD, ACT_LAUNCH};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r->x.ran[i].kind, kinds[i]);
        assert_int_equal(r->x.ran[i].token, i + 2);
        assert_ptr_equal(r->x.ran[i].stream, r->s);
        assert_true(r->x.ran[i].begin_s <= r->x.ran[i].end_s);
        assert_true(i == 0 || r->x.ran[i - 1].end_s <= r->x.ran[i].begin_s);
    }
    assert_ptr_equal(r->x.issued[4].label, host);
    assert_null(r->x.ran[3].label); /* the label is the caller's, who may have reused its memory */
    assert_string_equal(r->x.ran[3].name, "nap");
    assert_int_equal(r->x.ran[2].bytes, sizeof host);
    assert_int_equal(r->x.ran[0].byte, 0xFF);
}

/* `ran` reports when a stream's wait for another stream began and ended. A host's wait for an event
 * is issued as a sync of that event. */
TEST_RIG(test_waits, false, see_issued)
{
    long ms = 200;
    stream *side = new_stream(r->d, "side");
    event *e = new_event(r->d);
    OK(launch_c(side, run_sleep, &ms, sizeof ms)); /* 1 */
    OK(event_record(e, side));                     /* 2 */
    OK(stream_wait_event(r->s, e));                /* 3 */
    OK(event_sync(e));                             /* 4 */
    OK(stream_sync(r->s));                         /* 5 */
    assert_int_equal(r->x.n_issued, 5);
    assert_int_equal(r->x.issued[3].kind, ACT_SYNC);
    assert_null(r->x.issued[3].stream);
    assert_ptr_equal(r->x.issued[3].event, e);
    int waits = 0;
    for (int i = 0; i < r->x.n_ran; i++) {
        const device_act *a = &r->x.ran[i];
        if (a->kind != ACT_WAIT)
            continue;
        waits++;
        assert_int_equal(a->token, 3);
        assert_ptr_equal(a->stream, r->s);
        assert_true(a->end_s - a->begin_s >= 0.05); /* the wait begins during the nap */
    }
    assert_int_equal(waits, 1);
    event_free(e);
    stream_free(side);
}

/* Each act carries the scope and phase that were set when the host issued it, also when it has
 * run. */
TEST_RIG(test_scope, false, see_issued)
{
    long ms = 0;
    OK(launch_c(r->s, run_sleep, &ms, sizeof ms));
    device_set_scope(r->d, "h.0.mlp", "backward");
    OK(launch_c(r->s, run_sleep, &ms, sizeof ms));
    device_set_scope(r->d, NULL, NULL);
    OK(stream_sync(r->s));
    assert_null(r->x.issued[0].scope);
    assert_string_equal(r->x.issued[1].scope, "h.0.mlp");
    assert_string_equal(r->x.ran[1].scope, "h.0.mlp");
    assert_string_equal(r->x.ran[1].phase, "backward");
    assert_null(r->x.issued[2].scope);
}

TEST_RIG(test_token_0_is_not_told, false, see_and_forget)
{
    long ms = 0;
    OK(launch_c(r->s, run_sleep, &ms, sizeof ms));
    OK(stream_sync(r->s));
    assert_int_equal(r->x.n_issued, 2);
    assert_int_equal(r->x.n_ran, 0);
}

/* Failed work and the work skipped after it are not reported as run. */
TEST_RIG(test_failures_have_not_run, false, see_issued)
{
    long ms = 0;
    (void)launch_c(r->s, run_failing, NULL, 0);
    assert_int_equal(stream_sync(r->s), FSDP_EINVAL);
    assert_string_equal(fsdp_error_get()->what, "on purpose");
    assert_int_equal(launch_c(r->s, run_sleep, &ms, sizeof ms), FSDP_EINVAL);
    (void)stream_sync(r->s);
    for (int i = 0; i < r->x.n_ran; i++)
        assert_int_equal(r->x.ran[i].kind, ACT_SYNC);
    assert_int_equal(r->x.n_issued, 4);
    assert_int_equal(r->x.n_ran, 2);
}

/* The time of a launch excludes the host's work, earlier work in the queue, and work of other
 * streams. So the times of a stream's launches add up to at most the total time. */
TEST_RIG(test_time_of_a_launch, false, see_issued)
{
    double sum_s = 0, last_s = 0;
    long before_ms = 200, ms = 20;
    stream *side = new_stream(r->d, "side");
    const double begun_s = clock_now_s();
    OK(launch_c(r->s, run_sleep, &before_ms, sizeof before_ms));
    OK(launch_c(side, run_sleep, &before_ms, sizeof before_ms));
    OK(launch_c(r->s, run_sleep, &ms, sizeof ms));
    OK(stream_sync(side));
    OK(stream_sync(r->s));
    const double all_s = clock_now_s() - begun_s;
    for (int i = 0; i < r->x.n_ran; i++)
        if (r->x.ran[i].kind == ACT_LAUNCH && r->x.ran[i].stream == r->s)
            sum_s += last_s = r->x.ran[i].end_s - r->x.ran[i].begin_s;
    assert_true(last_s >= 0.020 && sum_s - last_s >= 0.200);
    assert_true(sum_s <= all_s);
    stream_free(side);
}

/* ---- timed events --------------------------------------------------------------------------- */

ON_EACH(TEST_ALL, test_elapsed, false)
{
    event *begin, *end;
    long ms = 20, longer_ms = 60;
    double seconds = -1, begun_s = clock_now_s();
    OK(event_create_timed(d, &begin));
    OK(event_create_timed(d, &end));
    assert_int_equal(event_elapsed_s(begin, end, &seconds), FSDP_ESTATE);
    assert_says("first event has not been reached");
    assert_true(seconds == 0);
    OK(launch_c(s, run_sleep, &ms, sizeof ms));
    OK(event_record(begin, s));
    assert_int_equal(event_elapsed_s(begin, begin, &seconds) == FSDP_OK, event_done(begin));
    OK(event_sync(begin));
    assert_int_equal(event_elapsed_s(begin, end, &seconds), FSDP_ESTATE);
    assert_says("second event has not been reached");
    OK(launch_c(s, run_sleep, &longer_ms, sizeof longer_ms));
    OK(event_record(end, s)); /* the host is ahead of the stream */
    OK(event_sync(end));
    double most_s = clock_now_s() - begun_s;
    sleep_ms(300); /* this sleep must not count */
    OK(event_elapsed_s(begin, end, &seconds));
    assert_true(seconds >= 0.060 && seconds <= most_s);
    OK(event_elapsed_s(end, begin, &seconds));
    assert_true(seconds <= -0.060);
    event_free(begin);
    event_free(end);
}

ON_EACH(TEST_ALL, test_untimed, false)
{
    event *timed;
    double seconds;
    event *plain = new_event(d);
    OK(event_create_timed(d, &timed));
    OK(event_record(plain, s));
    OK(event_record(timed, s));
    OK(stream_sync(s));
    assert_int_equal(event_elapsed_s(plain, timed, &seconds), FSDP_ESTATE);
    assert_says("first event keeps no time");
    assert_int_equal(event_elapsed_s(timed, plain, &seconds), FSDP_ESTATE);
    assert_says("second event keeps no time");
    event_free(plain);
    event_free(timed);
}

/* ---- streams -------------------------------------------------------------------------------- */

static fsdp_status run_niceness(void *args, int n_threads)
{
    **(int **)args = getpriority(PRIO_PROCESS, (id_t)gettid());
    return FSDP_OK;
}

enum { NICEST = 19 }; /* the system's limit; a test run under `nice` may reach it */

/* Returns the niceness of the thread of a stream with this priority. */
static int niceness_on(device *d, int priority)
{
    stream *s;
    int got = 0, *to = &got;
    OK(stream_create(d, &(stream_config){.name = "ranked", .priority = priority}, &s));
    OK(launch_c(s, run_niceness, &to, sizeof to));
    OK(stream_sync(s));
    stream_free(s);
    return got;
}

/* The CPU device can only lower the priority of a stream, which any process may do. A positive
 * priority would need a privilege, so the device ignores it. The niceness of the creating thread
 * does not change. */
ON_THIS(test_priority, open_cpu(false, false))
{
    const int mine = getpriority(PRIO_PROCESS, 0);
    const int nicer = mine + 3 < NICEST ? mine + 3 : NICEST;
    assert_int_equal(niceness_on(d, -nicer), nicer);
    assert_int_equal(niceness_on(d, 3), mine);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), mine);
}

int main(void)
{
    return device_tests_run();
}
