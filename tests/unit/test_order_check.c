/* test_order_check.c -- a test for each rule of the stream-order checker: what is a violation and
 * what is not. The compute stream is inline, so work runs in the order of issue and only the
 * checker can see a missing dependency. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/instruments/order_check.h"
#include "tests/unit/device_lib.h"

enum { BYTES = 256, MOST_ACTS = 8 };

/* The acts to issue, and parts of the report and of the hint of their one violation, or NULL.
 *   STREAM reads|writes|zeroes|uploads|downloads FROM-TO [of fresh|host|nothing]     default: block
 *   STREAM copies FROM-TO            from the same number of bytes after these
 *   STREAM reads|writes ... as NAME  the launch has that name instead of reader or writer
 *   STREAM allocates 0-N, STREAM frees                                               fresh
 *   STREAM records, STREAM waits     the event
 *   STREAM syncs, event syncs        the host waits
 *   layer NAME                       the layer of the next acts */
typedef struct rule {
    const char *name, *acts, *words, *hint;
} rule;

static const rule RULES[] = {
    {"record and wait order",
     "compute writes 0-256, compute records, side waits, side writes 0-256, side records, "
     "compute waits, compute reads 0-256",
     NULL, NULL},
    {"missing wait",
     "layer h.0.attn, side writes 8-24, side records, layer h.1.mlp, compute reads 0-32",
     "order: 'reader' (h.1.mlp forward) on stream compute reads bytes 8-24 of 'block', which "
     "'writer' (h.0.attn forward) on stream side writes; nothing orders them",
     "an event was recorded on side after it: let compute wait for that event"},
    {"missing record, the event stands for what was before",
     "compute records, side waits, side writes 0-256, compute waits, compute reads 0-256",
     "'reader' on stream compute reads bytes 0-256 of 'block', which 'writer'",
     "record an event on side after it, and let compute wait for it"},
    {"wait before the record: no wait",
     "side writes 0-256, compute waits, side records, compute reads 0-256",
     "'writer' on stream side writes; nothing orders them", "an event was recorded"},
    {"record too early", "side records, side writes 0-256, compute waits, compute reads 0-256",
     "nothing orders them", "record an event on side after it"},
    {"a wait keeps what the event stood for",
     "side writes 0-8, side records, compute waits, side writes 8-16, side records, "
     "compute reads 0-8, compute reads 8-16",
     "bytes 8-16", "an event was recorded"},
    {"order is handed on",
     "compute writes 0-256, compute records, side waits, side records, third waits, "
     "third writes 0-256, third syncs, compute writes 0-256",
     NULL, NULL},
    {"the host waits",
     "side writes 0-256, side syncs, compute writes 0-256, compute records, "
     "event syncs, side writes 0-256",
     NULL, NULL},
    {"the host waits for another stream", "side writes 0-256, compute syncs, compute reads 0-256",
     "'writer' on stream side", "record an event on side"},

    {"two writes", "compute writes 0-256, side writes 0-256 as other",
     "'other' on stream side writes bytes 0-256 of 'block', which 'writer' on", "let side wait"},
    {"a write after a read", "compute reads 0-256, side writes 255-256",
     "writes bytes 255-256 of 'block', which 'reader' on stream compute reads", ""},
    {"two reads", "compute reads 0-256, side reads 0-256", NULL, NULL},
    {"bytes apart", "compute writes 0-64, side writes 64-128, side reads 0-0 of nothing", NULL,
     NULL},
    {"a read covers a write, which still counts",
     "compute writes 0-256, compute reads 0-256, side reads 0-256",
     "'writer' on stream compute writes", ""},
    {"a small write does not hide a large one",
     "compute writes 0-256 as large, compute writes 0-8, side reads 8-16",
     "'large' on stream compute writes", ""},
    {"the last conflict is reported, an event after that would do for the others",
     "compute writes 0-256 as early, compute writes 8-16 as late, side reads 0-256",
     "reads bytes 8-16 of 'block', which 'late' on stream compute writes", ""},
    {"fills and downloads are accesses", "compute zeroes 0-8, side downloads 0-8",
     "'device_download' on stream side reads bytes 0-8 of 'block', which 'device_zero' on stream "
     "compute writes",
     ""},
    {"a copy reads", "compute copies 0-8, side uploads 8-16",
     "'device_upload' on stream side writes bytes 8-16 of 'block', which 'device_copy' on stream "
     "compute reads",
     ""},
    {"a copy writes", "compute uploads 0-8, side copies 0-8",
     "'device_copy' on stream side writes bytes 0-8 of 'block', which 'device_upload' on stream "
     "compute writes",
     ""},

    {"memory of another stream",
     "compute allocates 0-8, side writes 0-8 of fresh, side records, compute waits, compute frees",
     "bytes 0-8 of 'fresh', which 'device_alloc' on stream compute allocates", ""},
    {"free does not wait", "side allocates 0-8, side reads 0-8 of fresh, compute frees",
     "'device_free' on stream compute frees bytes 0-8 of 'fresh'", ""},
    {"use after free",
     "side allocates 0-1048576, side frees, side syncs, side reads 4096-4104 of fresh",
     "'reader' on stream side reads 'fresh' after its free: 'device_free' was",
     "issue the free after the last use"},
    {"not device memory", "compute reads 0-8 of host",
     "'reader' on stream compute reads 8 bytes that are not device memory", ""},
    {"past the end", "compute writes 8-264",
     "'writer' on stream compute writes bytes 8-264 of 'block', which has 256",
     "compare the sizes"},
};

enum { N_RULES = sizeof RULES / sizeof *RULES };

/* One act of a rule, parsed. */
typedef struct act {
    char on[12], verb[12], link[4], word[12];
    size_t from, to;
} act;

typedef enum where { COMPUTE, SIDE, THIRD, STREAMS } where;

/* Streams, an event that is not recorded yet, and a block that was allocated on the compute stream
 * and that the side stream may use too. */
typedef struct rig {
    device *d;
    order_check *c;
    stream *s[STREAMS];
    event *e;
    char *block, *fresh, host[BYTES];
    const rule *rule;
    act acts[MOST_ACTS]; /* the device keeps pointers to their names */
} rig;

static fsdp_status run_nothing(void *args, int n_threads)
{
    return FSDP_OK;
}

/* Launch on s a task that touches bytes from ptr on. */
static void use(stream *s, const char *name, const void *ptr, size_t bytes, bool writes)
{
    OK(stream_launch_work(s, &(launch_config){.fn = run_nothing,
                                              .name = name,
                                              .accesses = &(mem_access){ptr, bytes, writes},
                                              .n_accesses = 1}));
}

static int rig_open(void **state)
{
    rig *r = calloc(1, sizeof *r);
    r->rule = *state;
    *state = r;
    r->d = open_cpu(false, false);
    r->c = order_check_create();
    const device_watch watch = order_check_watch(r->c);
    device_set_watch(r->d, &watch);
    r->s[COMPUTE] = device_compute_stream(r->d);
    r->s[SIDE] = new_stream(r->d, "side");
    r->s[THIRD] = new_stream(r->d, "third");
    r->block = new_block(r->s[COMPUTE], BYTES, "block");
    r->e = new_event(r->d);
    OK(event_record(r->e, r->s[COMPUTE]));
    OK(stream_wait_event(r->s[SIDE], r->e));
    event_free(r->e);
    r->e = new_event(r->d);
    return 0;
}

static int rig_close(void **state)
{
    rig *r = *state;
    stream_free(r->s[THIRD]); /* the rules leave work that uses the block */
    stream_free(r->s[SIDE]);
    device_free(r->s[COMPUTE], r->block);
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

/* There must be one violation, and its report must contain these words. */
static void expect_report(rig *r, const char *words, const char *hint)
{
    assert_int_equal(order_check_status(r->c), FSDP_EORDER);
    assert_says(words);
    if (strstr(fsdp_error_get()->hint, hint) == NULL)
        fail_msg("hint \"%s\", expected \"%s\"", fsdp_error_get()->hint, hint);
    assert_int_equal(order_check_read(r->c).violations, 1);
}

static bool is(const char *word, const char *other)
{
    return strcmp(word, other) == 0;
}

static void touch(rig *r, const act *a, stream *s, char *at)
{
    const bool is_write = is(a->verb, "writes");
    const size_t bytes = a->to - a->from;
    if (is_write || is(a->verb, "reads"))
        use(s, is(a->link, "as") ? a->word : is_write ? "writer" : "reader", at, bytes, is_write);
    else if (is(a->verb, "zeroes"))
        OK(device_zero(s, at, bytes));
    else if (is(a->verb, "copies"))
        OK(device_copy(s, at, at + bytes, bytes));
    else if (is(a->verb, "uploads"))
        OK(device_upload(s, at, r->host, bytes));
    else if (is(a->verb, "downloads"))
        OK(device_download(s, r->host, at, bytes));
    else
        fail_msg("no such act: %s %s", a->on, a->verb);
}

static void issue(rig *r, const act *a)
{
    stream *s = r->s[is(a->on, "side") ? SIDE : is(a->on, "third") ? THIRD : COMPUTE];
    char *memory = is(a->word, "fresh") ? r->fresh : is(a->word, "host") ? r->host : r->block;
    if (is(a->on, "layer"))
        device_set_scope(r->d, a->verb, "forward");
    else if (is(a->verb, "allocates"))
        r->fresh = new_block(s, a->to, "fresh");
    else if (is(a->verb, "frees"))
        device_free(s, r->fresh);
    else if (is(a->verb, "records"))
        OK(event_record(r->e, s));
    else if (is(a->verb, "waits"))
        OK(stream_wait_event(s, r->e));
    else if (is(a->verb, "syncs"))
        OK(is(a->on, "event") ? event_sync(r->e) : stream_sync(s));
    else
        touch(r, a, s, is(a->word, "nothing") ? NULL : memory + a->from);
}

/* Overwrites the earlier acts, and with them their names. */
static void issue_all(rig *r, const char *text)
{
    act *a = r->acts;
    memset(a, 0, sizeof r->acts);
    for (; text != NULL; a++) {
        assert_true(a < r->acts + MOST_ACTS);
        sscanf(text, "%11s %11[^ ,] %zu-%zu %3s %11[^,]", a->on, a->verb, &a->from, &a->to, a->link,
               a->word);
        issue(r, a);
        text = strchr(text, ',');
        text = text != NULL ? text + 1 : NULL;
    }
}

static void test_rule(void **state)
{
    rig *r = *state;
    issue_all(r, r->rule->acts);
    if (r->rule->words == NULL)
        expect_clean(r);
    else
        expect_report(r, r->rule->words, r->rule->hint);
}

/* A test with its own rig. */
#define RIGGED(test) TEST_AROUND(test, rig_open, rig_close)

/* ---- cases that acts cannot express ---------------------------------------------------------- */

/* A new event at the address of a freed event must not inherit its record. */
RIGGED(test_a_freed_event_is_forgotten)
{
    rig *r = *state;
    event *old = new_event(r->d);
    issue_all(r, "side writes 0-256");
    OK(event_record(old, r->s[SIDE]));
    event_free(old);
    order_check_issued(r->c,
                       &(device_act){.kind = ACT_WAIT, .stream = r->s[COMPUTE], .event = old});
    issue_all(r, "compute reads 0-256");
    expect_report(r, "nothing orders them", "record an event");
}

/* The same memory again, on the other stream: device_alloc has made sure that its last user is
 * done. */
RIGGED(test_memory_is_reused)
{
    rig *r = *state;
    char memory[64] = {0};
    for (where s = COMPUTE; s <= SIDE; s++) {
        order_check_issued(r->c, &(device_act){.kind = ACT_ALLOC,
                                               .stream = r->s[s],
                                               .dst = memory,
                                               .bytes = 64,
                                               .label = "reused"});
        use(r->s[s], "writer", memory, 64, true);
        order_check_issued(r->c, &(device_act){.kind = ACT_FREE, .stream = r->s[s], .dst = memory});
    }
    expect_clean(r);
    assert_int_equal(order_check_read(r->c).blocks, 3);
}

RIGGED(test_launch_without_a_list)
{
    rig *r = *state;
    device_set_scope(r->d, "h.0.attn", "forward");
    OK(stream_launch_work(r->s[COMPUTE],
                          &(launch_config){.fn = run_nothing, .work.key.name = "matmul"}));
    expect_report(r, "launch without an access list: 'matmul' (h.0.attn forward) on stream compute",
                  "TOUCHES_NOTHING");
}

RIGGED(test_launch_that_touches_nothing)
{
    rig *r = *state;
    OK(stream_launch_work(r->s[COMPUTE],
                          &(launch_config){.fn = run_nothing, .accesses = TOUCHES_NOTHING}));
    expect_clean(r);
    assert_int_equal(order_check_read(r->c).launches, 1);
}

RIGGED(test_label_and_scope)
{
    rig *r = *state;
    device_set_scope(r->d, "h.1.mlp", "backward");
    OK(stream_launch_work(r->s[SIDE], &(launch_config){.fn = run_nothing,
                                                       .name = "all-gather",
                                                       .label = "h.0",
                                                       .accesses = &(mem_access){r->block, 8, true},
                                                       .n_accesses = 1}));
    device_set_scope(r->d, NULL, NULL);
    issue_all(r, "compute reads 0-256");
    expect_report(r,
                  "'reader' on stream compute reads bytes 0-8 of 'block', which 'all-gather' "
                  "(h.0, h.1.mlp backward) on stream side writes",
                  "");
}

/* Violations are counted once for each pair of operations; the status reports the first one. */
RIGGED(test_violations_are_counted_by_pair)
{
    rig *r = *state;
    for (int i = 0; i < 5; i++)
        issue_all(r, "compute writes 0-256, side reads 0-256");
    assert_int_equal(order_check_read(r->c).violations, 2); /* reader-writer and writer-reader */
    issue_all(r, "side writes 0-256 as other");
    assert_int_equal(order_check_read(r->c).violations, 3);
    assert_int_equal(order_check_status(r->c), FSDP_EORDER);
    assert_says("'reader' on stream side");
}

/* The first violation is printed at once, even if an assertion would end the program before the
 * report. No other is printed. */
static int end_after_violations(void *arg)
{
    rig *r = arg;
    order_check_tell(r->c, 1, 3);
    issue_all(r, "compute writes 0-128, side zeroes 0-64, side writes 64-128 as second");
    abort();
}

RIGGED(test_the_first_is_printed_at_once)
{
    rig *r = *state;
    const child_end *end = run_child(end_after_violations, r);
    const char *first =
        "[rank 1/3] order: 'device_zero' on stream side writes bytes 0-64 of 'block'";
    assert_true(ended_by(end, SIGABRT));
    if (strstr(end->text, first) != end->text ||
        strstr(end->text, "\nHINT: record an event on compute") == NULL ||
        strstr(end->text, "second") != NULL)
        fail_msg("got \"%s\", expected the first violation, its hint, and nothing else", end->text);
    expect_clean(r);
}

/* ---- bounds --------------------------------------------------------------------------------- */

/* Steps that use memory in the same way, with and without a host that waits. */
RIGGED(test_a_long_run_keeps_no_more)
{
    rig *r = *state;
    size_t early = 0;
    for (int step = 0; step < 1000; step++) {
        for (size_t at = 0; at < BYTES; at += 8)
            use(r->s[COMPUTE], "reader", r->block + at, 8, false);
        issue_all(r, "compute records, side waits, side reads 0-16, side writes 0-64, "
                     "side records, compute waits");
        if (step == 9)
            early = order_check_read(r->c).kept;
    }
    expect_clean(r);
    assert_uint_in_range(early, 1, BYTES / 8 + 2);
    assert_int_equal(order_check_read(r->c).kept, early);
    issue_all(r, "side syncs, compute reads 0-1");
    assert_int_equal(order_check_read(r->c).kept, 1); /* the host has waited for all other work */
}

RIGGED(test_streams_one_after_the_other)
{
    rig *r = *state;
    stream *s = new_stream(r->d, "brief");
    issue_all(r, "compute records");
    OK(stream_wait_event(s, r->e));
    use(s, "writer", r->block, BYTES, true);
    stream_free(s);
    issue_all(r, "compute writes 0-256"); /* the host has waited */
    stream brief[200] = {0};
    for (int i = 0; i < 200; i++) { /* each at another address */
        order_check_issued(r->c, &(device_act){.kind = ACT_RECORD, .stream = &brief[i]});
        order_check_issued(r->c, &(device_act){.kind = ACT_STREAM_FREE, .stream = &brief[i]});
    }
    expect_clean(r);
}

RIGGED(test_too_many_streams)
{
    rig *r = *state;
    stream *s[64];
    for (int i = 0; i < 64; i++) {
        s[i] = new_stream(r->d, "many");
        use(s[i], "reader", r->block, 0, false);
    }
    assert_int_equal(order_check_status(r->c), FSDP_EINVAL);
    assert_says("more than 64 streams at once");
    for (int i = 0; i < 64; i++)
        stream_free(s[i]);
    assert_int_equal(order_check_read(r->c).violations, 0);
}

int main(void)
{
    for (int i = 0; i < N_RULES; i++)
        tests_add((struct CMUnitTest){RULES[i].name, test_rule, rig_open, rig_close,
                                      (void *)(uintptr_t)&RULES[i]});
    return tests_run(NULL, NULL);
}
