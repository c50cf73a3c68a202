/* test_order_check.c -- what the stream-order checker calls a violation, and what not: a test for
 * each rule. The compute stream is inline, so everything runs in the order of its issue, and only
 * the checker can tell. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/device/order_check.h"
#include "tests/unit/device_lib.h"

enum { BYTES = 256 };

/* Two streams, an event, and a block that was allocated on the first of them and may be used by
 * both. */
typedef struct rig {
    device *d;
    order_check *c;
    stream *a, *b;
    event *e;
    char *block;
} rig;

static fsdp_status run_nothing(void *args, int n_threads)
{
    (void)args;
    (void)n_threads;
    return FSDP_OK;
}

/* A launch on s that touches bytes from ptr on. */
static void use(stream *s, const char *name, const void *ptr, size_t bytes, bool writes)
{
    OK(stream_launch_work(s, &(launch_config){.fn = run_nothing,
                                              .name = name,
                                              .accesses = &(mem_access){ptr, bytes, writes},
                                              .n_accesses = 1}));
}

static void reads(stream *s, const void *ptr, size_t bytes)
{
    use(s, "reader", ptr, bytes, false);
}

static void writes(stream *s, const void *ptr, size_t bytes)
{
    use(s, "writer", ptr, bytes, true);
}

static void edge(rig *r, stream *from, stream *to)
{
    OK(event_record(r->e, from));
    OK(stream_wait_event(to, r->e));
}

static int rig_open(void **state)
{
    rig *r = *state = calloc(1, sizeof *r);
    r->d = open_cpu(false, false);
    r->c = order_check_create();
    const device_watch watch = order_check_watch(r->c);
    device_set_watch(r->d, &watch);
    r->a = device_compute_stream(r->d);
    OK(stream_create(r->d, &(stream_config){.name = "side"}, &r->b));
    OK(event_create(r->d, &r->e));
    void *new_block = NULL;
    OK(device_alloc(r->a, MEM_OTHER, BYTES, "block", &new_block));
    r->block = new_block;
    edge(r, r->a, r->b);
    return 0;
}

static int rig_close(void **state)
{
    rig *r = *state;
    stream_free(r->b);
    device_free(r->a, r->block);
    event_free(r->e);
    device_close(r->d);
    order_check_free(r->c);
    free(r);
    return 0;
}

static void expect_clean(rig *r)
{
    if (order_check_status(r->c) != FSDP_OK)
        fail_msg("%s", fsdp_error_get()->what);
    assert_int_equal(order_check_read(r->c).violations, 0);
}

/* One violation, whose report holds these words. */
static void expect_report(rig *r, const char *words, const char *hint)
{
    assert_int_equal(order_check_status(r->c), FSDP_EORDER);
    assert_says(words);
    if (strstr(fsdp_error_get()->hint, hint) == NULL)
        fail_msg("hint \"%s\", expected \"%s\"", fsdp_error_get()->hint, hint);
    assert_int_equal(order_check_read(r->c).violations, 1);
}

/* ---- edges ---------------------------------------------------------------------------------- */

static void test_record_and_wait_order(void **state)
{
    rig *r = *state;
    writes(r->a, r->block, BYTES);
    edge(r, r->a, r->b);
    writes(r->b, r->block, BYTES);
    edge(r, r->b, r->a);
    reads(r->a, r->block, BYTES);
    expect_clean(r);
}

static void test_missing_wait(void **state)
{
    rig *r = *state;
    device_set_scope(r->d, "h.0.attn", "forward");
    writes(r->b, r->block + 8, 16);
    OK(event_record(r->e, r->b));
    device_set_scope(r->d, "h.1.mlp", "backward");
    reads(r->a, r->block, 32);
    expect_report(r,
                  "order: 'reader' (h.1.mlp backward) on stream compute reads bytes 8-24 of "
                  "'block', which 'writer' (h.0.attn forward) on stream side writes; nothing "
                  "orders them",
                  "an event was recorded on side after it: let compute wait for that event");
}

static void test_missing_record(void **state)
{
    rig *r = *state;
    writes(r->b, r->block, BYTES);
    OK(stream_wait_event(r->a, r->e)); /* it stands for what was before */
    reads(r->a, r->block, BYTES);
    expect_report(r, "'reader' on stream compute reads bytes 0-256 of 'block', which 'writer'",
                  "record an event on side after it, and let compute wait for it");
}

static void test_wait_before_the_record(void **state)
{
    rig *r = *state;
    event *late;
    OK(event_create(r->d, &late));
    writes(r->b, r->block, BYTES);
    OK(stream_wait_event(r->a, late)); /* never recorded: no wait */
    OK(event_record(late, r->b));
    reads(r->a, r->block, BYTES);
    event_free(late);
    expect_report(r, "'writer' on stream side writes; nothing orders them",
                  "an event was recorded");
}

static void test_record_too_early(void **state)
{
    rig *r = *state;
    OK(event_record(r->e, r->b));
    writes(r->b, r->block, BYTES);
    OK(stream_wait_event(r->a, r->e));
    reads(r->a, r->block, BYTES);
    expect_report(r, "nothing orders them", "record an event on side after it");
}

static void test_a_wait_keeps_what_the_event_stood_for(void **state)
{
    rig *r = *state;
    writes(r->b, r->block, 8);
    edge(r, r->b, r->a);
    writes(r->b, r->block + 8, 8);
    OK(event_record(r->e, r->b)); /* again: the wait above stays as it was */
    reads(r->a, r->block, 8);
    expect_clean(r);
    reads(r->a, r->block + 8, 8);
    expect_report(r, "bytes 8-16", "an event was recorded");
}

static void test_order_is_handed_on(void **state)
{
    rig *r = *state;
    stream *third;
    OK(stream_create(r->d, &(stream_config){.name = "third"}, &third));
    writes(r->a, r->block, BYTES);
    edge(r, r->a, r->b);
    edge(r, r->b, third);
    writes(third, r->block, BYTES);
    stream_free(third); /* the host has waited for it */
    writes(r->a, r->block, BYTES);
    expect_clean(r);
}

static void test_the_host_waits(void **state)
{
    rig *r = *state;
    writes(r->b, r->block, BYTES);
    OK(stream_sync(r->b));
    writes(r->a, r->block, BYTES);
    OK(event_record(r->e, r->a));
    OK(event_sync(r->e));
    writes(r->b, r->block, BYTES);
    expect_clean(r);
    OK(stream_sync(r->a)); /* which has not waited for the side */
    reads(r->a, r->block, BYTES);
    expect_report(r, "'writer' on stream side", "record an event on side");
}

/* A new event may get the memory of a freed one; it does not get what that stood for. */
static void test_a_freed_event_is_forgotten(void **state)
{
    rig *r = *state;
    event *old;
    OK(event_create(r->d, &old));
    writes(r->b, r->block, BYTES);
    OK(event_record(old, r->b));
    event_free(old);
    order_check_issued(r->c, &(device_act){.kind = ACT_WAIT, .stream = r->a, .event = old});
    reads(r->a, r->block, BYTES);
    expect_report(r, "nothing orders them", "record an event");
}

/* ---- accesses ------------------------------------------------------------------------------- */

static void test_two_writes(void **state)
{
    rig *r = *state;
    writes(r->a, r->block, BYTES);
    use(r->b, "other", r->block, BYTES, true);
    expect_report(r, "'other' on stream side writes bytes 0-256 of 'block', which 'writer' on",
                  "let side wait");
}

static void test_a_write_behind_a_read(void **state)
{
    rig *r = *state;
    reads(r->a, r->block, BYTES);
    writes(r->b, r->block + BYTES - 1, 1);
    expect_report(r, "writes bytes 255-256 of 'block', which 'reader' on stream compute reads", "");
}

static void test_two_reads(void **state)
{
    rig *r = *state;
    reads(r->a, r->block, BYTES);
    reads(r->b, r->block, BYTES);
    expect_clean(r);
}

static void test_bytes_apart(void **state)
{
    rig *r = *state;
    writes(r->a, r->block, 64);
    writes(r->b, r->block + 64, 64);
    reads(r->b, NULL, 0);
    expect_clean(r);
}

/* What a covered access conflicts with, the one that covers it may not: an older write stays. */
static void test_a_read_does_not_hide_a_write(void **state)
{
    rig *r = *state;
    writes(r->a, r->block, BYTES);
    reads(r->a, r->block, BYTES);
    reads(r->b, r->block, BYTES);
    expect_report(r, "'writer' on stream compute writes", "");
}

static void test_a_small_write_does_not_hide_a_large_one(void **state)
{
    rig *r = *state;
    use(r->a, "large", r->block, BYTES, true);
    writes(r->a, r->block, 8);
    reads(r->b, r->block + 8, 8);
    expect_report(r, "'large' on stream compute writes", "");
}

/* An event after the last one would do for the others. */
static void test_the_last_conflict_is_reported(void **state)
{
    rig *r = *state;
    use(r->a, "early", r->block, BYTES, true);
    use(r->a, "late", r->block + 8, 8, true);
    reads(r->b, r->block, BYTES);
    expect_report(r, "reads bytes 8-16 of 'block', which 'late' on stream compute writes", "");
}

static void expect_named(rig *r, const char *now, const char *then)
{
    char words[128];
    snprintf(words, sizeof words, "'%s' on stream side", now);
    assert_int_equal(order_check_status(r->c), FSDP_EORDER);
    assert_says(words);
    snprintf(words, sizeof words, "'%s' on stream compute", then);
    assert_says(words);
}

/* Copies and fills are accesses too. */
static void test_moves(void **state)
{
    rig *r = *state;
    char host[8] = {0};
    OK(device_zero(r->a, r->block, 8));
    OK(device_download(r->b, host, r->block, 8));
    expect_named(r, "device_download", "device_zero");
}

static void test_copies(void **state)
{
    rig *r = *state;
    char host[8] = {0};
    OK(device_copy(r->a, r->block, r->block + 8, 8));
    OK(device_upload(r->b, r->block + 8, host, 8));
    expect_named(r, "device_upload", "device_copy");
}

static void test_copies_write(void **state)
{
    rig *r = *state;
    char host[8] = {0};
    OK(device_upload(r->a, r->block, host, 8));
    OK(device_copy(r->b, r->block, r->block + 8, 8));
    expect_named(r, "device_copy", "device_upload");
}

/* ---- blocks --------------------------------------------------------------------------------- */

static void test_memory_of_another_stream(void **state)
{
    rig *r = *state;
    char *fresh;
    void *new_fresh = NULL;
    OK(device_alloc(r->a, MEM_OTHER, 8, "fresh", &new_fresh));
    fresh = new_fresh;
    writes(r->b, fresh, 8);
    edge(r, r->b, r->a);
    device_free(r->a, fresh);
    expect_report(r, "bytes 0-8 of 'fresh', which 'device_alloc' on stream compute allocates", "");
}

static void test_free_does_not_wait(void **state)
{
    rig *r = *state;
    char *brief;
    void *new_brief = NULL;
    OK(device_alloc(r->b, MEM_OTHER, 8, "brief", &new_brief));
    brief = new_brief;
    reads(r->b, brief, 8);
    device_free(r->a, brief);
    assert_int_equal(order_check_status(r->c), FSDP_EORDER);
    assert_says("'device_free' on stream compute frees bytes 0-8 of 'brief'");
}

static void test_use_after_free(void **state)
{
    rig *r = *state;
    char *brief;
    void *new_brief = NULL;
    OK(device_alloc(r->b, MEM_OTHER, 1 << 20, "brief", &new_brief));
    brief = new_brief;
    device_free(r->b, brief);
    OK(stream_sync(r->b));
    reads(r->b, brief + 4096, 8);
    expect_report(r, "'reader' on stream side reads 'brief' after its free: 'device_free' was",
                  "issue the free after the last use");
}

/* The same memory again, on the other stream: device_alloc has seen to it that its last user is
 * done. */
static void test_memory_is_reused(void **state)
{
    rig *r = *state;
    char memory[64] = {0};
    stream *const users[] = {r->a, r->b};
    for (int i = 0; i < 2; i++) {
        stream *s = users[i];
        order_check_issued(
            r->c,
            &(device_act){
                .kind = ACT_ALLOC, .stream = s, .dst = memory, .bytes = 64, .label = "reused"});
        writes(s, memory, 64);
        order_check_issued(r->c, &(device_act){.kind = ACT_FREE, .stream = s, .dst = memory});
    }
    expect_clean(r);
    assert_int_equal(order_check_read(r->c).blocks, 3);
}

static void test_not_device_memory(void **state)
{
    rig *r = *state;
    char host[8] = {0};
    reads(r->a, host, sizeof host);
    expect_report(r, "'reader' on stream compute reads 8 bytes that are not device memory", "");
}

static void test_past_the_end(void **state)
{
    rig *r = *state;
    writes(r->a, r->block + 8, BYTES);
    expect_report(r, "'writer' on stream compute writes bytes 8-264 of 'block', which has 256",
                  "compare the sizes");
}

/* ---- launches ------------------------------------------------------------------------------- */

static void test_launch_without_a_list(void **state)
{
    rig *r = *state;
    device_set_scope(r->d, "h.0.attn", "forward");
    OK(stream_launch_work(r->a, &(launch_config){.fn = run_nothing, .work.key.name = "matmul"}));
    expect_report(r, "launch without an access list: 'matmul' (h.0.attn forward) on stream compute",
                  "TOUCHES_NOTHING");
}

static void test_launch_that_touches_nothing(void **state)
{
    rig *r = *state;
    OK(stream_launch_work(r->a, &(launch_config){.fn = run_nothing, .accesses = TOUCHES_NOTHING}));
    expect_clean(r);
    assert_int_equal(order_check_read(r->c).launches, 1);
}

static void test_label_and_scope(void **state)
{
    rig *r = *state;
    device_set_scope(r->d, "h.1.mlp", "backward");
    OK(stream_launch_work(r->b, &(launch_config){.fn = run_nothing,
                                                 .name = "all-gather",
                                                 .label = "h.0",
                                                 .accesses = &(mem_access){r->block, 8, true},
                                                 .n_accesses = 1}));
    device_set_scope(r->d, NULL, NULL);
    reads(r->a, r->block, BYTES);
    expect_report(r,
                  "'reader' on stream compute reads bytes 0-8 of 'block', which 'all-gather' "
                  "(h.0, h.1.mlp backward) on stream side writes",
                  "");
}

/* The first is reported; others count when other operations are at odds. */
static void test_violations_are_counted_by_pair(void **state)
{
    rig *r = *state;
    for (int i = 0; i < 5; i++) {
        writes(r->a, r->block, BYTES);
        reads(r->b, r->block, BYTES);
    }
    assert_int_equal(order_check_read(r->c).violations, 2); /* reader-writer, writer-reader */
    use(r->b, "other", r->block, BYTES, true);
    assert_int_equal(order_check_read(r->c).violations, 3);
    assert_int_equal(order_check_status(r->c), FSDP_EORDER);
    assert_says("'reader' on stream side");
}

/* What an assertion would otherwise hide: the first violation is printed at once, and no other. */
static void end_after_violations(rig *r, int err)
{
    char memory[2][64] = {{0}};
    dup2(err, STDERR_FILENO);
    order_check_tell(r->c, 1, 3);
    for (int i = 0; i < 2; i++) {
        device_act act = {.kind = ACT_ALLOC, .stream = r->a, .dst = memory[i], .bytes = 64};
        act.label = i == 0 ? "first" : "second";
        order_check_issued(r->c, &act);
        act = (device_act){.kind = i == 0 ? ACT_FILL : ACT_UPLOAD, .stream = r->b};
        act.dst = memory[i];
        act.bytes = 64;
        order_check_issued(r->c, &act);
    }
    abort();
}

static void test_the_first_is_printed_at_once(void **state)
{
    rig *r = *state;
    int end[2], status;
    char got[2048];
    assert_int_equal(pipe(end), 0);
    const pid_t child = fork();
    if (child == 0)
        end_after_violations(r, end[1]);
    close(end[1]);
    size_t n = 0;
    for (ssize_t more = 1; more > 0 && n + 1 < sizeof got; n += more > 0 ? (size_t)more : 0)
        more = read(end[0], got + n, sizeof got - 1 - n);
    got[n] = '\0';
    close(end[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    if (strstr(got,
               "[rank 1/3] order: 'device_zero' on stream side writes bytes 0-64 of 'first'") !=
            got ||
        strstr(got, "\nHINT: record an event on compute") == NULL)
        fail_msg("got \"%s\", expected the first violation and its hint", got);
    if (strstr(got, "second") != NULL)
        fail_msg("got \"%s\", expected the first violation alone", got);
    expect_clean(r);
}

/* ---- bounds --------------------------------------------------------------------------------- */

/* Steps that use memory in the same way, without and with a host that waits. */
static void test_a_long_run_keeps_no_more(void **state)
{
    rig *r = *state;
    size_t early = 0;
    for (int step = 0; step < 1000; step++) {
        for (size_t at = 0; at < BYTES; at += 8)
            reads(r->a, r->block + at, 8);
        edge(r, r->a, r->b);
        reads(r->b, r->block, 16);
        writes(r->b, r->block, 64);
        edge(r, r->b, r->a);
        if (step == 9)
            early = order_check_read(r->c).kept;
    }
    expect_clean(r);
    assert_in_range(early, 1, BYTES / 8 + 2);
    assert_int_equal(order_check_read(r->c).kept, early);
    OK(stream_sync(r->b));
    reads(r->a, r->block, 1);
    assert_int_equal(order_check_read(r->c).kept, 1); /* the host has waited for all else */
}

static void test_streams_one_after_the_other(void **state)
{
    rig *r = *state;
    stream *s;
    OK(stream_create(r->d, &(stream_config){.name = "brief"}, &s));
    edge(r, r->a, s);
    writes(s, r->block, BYTES);
    stream_free(s);
    writes(r->a, r->block, BYTES); /* the host has waited */
    stream brief[200] = {0};
    for (int i = 0; i < 200; i++) { /* each at an address of its own */
        order_check_issued(r->c, &(device_act){.kind = ACT_RECORD, .stream = &brief[i]});
        order_check_issued(r->c, &(device_act){.kind = ACT_STREAM_FREE, .stream = &brief[i]});
    }
    expect_clean(r);
}

static void test_too_many_streams(void **state)
{
    rig *r = *state;
    stream *s[64];
    for (int i = 0; i < 64; i++) {
        OK(stream_create(r->d, &(stream_config){.name = "many"}, &s[i]));
        use(s[i], "reader", r->block, 0, false);
    }
    assert_int_equal(order_check_status(r->c), FSDP_EINVAL);
    assert_says("more than 64 streams at once");
    for (int i = 0; i < 64; i++)
        stream_free(s[i]);
    assert_int_equal(order_check_read(r->c).violations, 0);
}

#define RULE(test) cmocka_unit_test_setup_teardown(test, rig_open, rig_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RULE(test_record_and_wait_order),
        RULE(test_missing_wait),
        RULE(test_missing_record),
        RULE(test_wait_before_the_record),
        RULE(test_record_too_early),
        RULE(test_a_wait_keeps_what_the_event_stood_for),
        RULE(test_order_is_handed_on),
        RULE(test_the_host_waits),
        RULE(test_a_freed_event_is_forgotten),
        RULE(test_two_writes),
        RULE(test_a_write_behind_a_read),
        RULE(test_two_reads),
        RULE(test_bytes_apart),
        RULE(test_a_read_does_not_hide_a_write),
        RULE(test_a_small_write_does_not_hide_a_large_one),
        RULE(test_the_last_conflict_is_reported),
        RULE(test_moves),
        RULE(test_copies),
        RULE(test_copies_write),
        RULE(test_memory_of_another_stream),
        RULE(test_free_does_not_wait),
        RULE(test_use_after_free),
        RULE(test_memory_is_reused),
        RULE(test_not_device_memory),
        RULE(test_past_the_end),
        RULE(test_launch_without_a_list),
        RULE(test_launch_that_touches_nothing),
        RULE(test_label_and_scope),
        RULE(test_violations_are_counted_by_pair),
        RULE(test_the_first_is_printed_at_once),
        RULE(test_a_long_run_keeps_no_more),
        RULE(test_streams_one_after_the_other),
        RULE(test_too_many_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
