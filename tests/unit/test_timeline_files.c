/* test_timeline_files.c -- timelines as Chrome traces and as pictures. */
#include <stdlib.h>
#include <string.h>
#include "common/observe/timeline_chrome.h"
#include "common/observe/timeline_draw.h"
#include "tests/unit/timeline_lib.h"

/* The text of a file; valid until the next call. */
static char *slurp(const char *path)
{
    static char text[1 << 16];
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    size_t n = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[n] = '\0';
    return text;
}

static void expect_part(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("no '%s' in:\n%s", part, text);
}

/* A trace of the step made by hand; returns its path. */
static const char *write_hand(int rank, const timeline_job *job)
{
    char name[32];
    timeline *t = hand_timeline(rank, 0);
    timeline_view v = timeline_read(t);
    snprintf(name, sizeof name, "trace-rank-%d.json", rank);
    const char *path = in_dir(name);
    OK(timeline_write_chrome(&v, 1, job, path));
    timeline_free(t);
    return path;
}

static const timeline_job TWO = {.world_size = 2};

static void expect_same(const timeline_item *got, const timeline_item *expected, double later_ms)
{
    assert_int_equal(got->kind, expected->kind);
    assert_int_equal(got->stream, expected->stream);
    assert_string_equal(got->name, expected->name);
    assert_string_equal(got->unit, expected->unit);
    assert_int_equal(got->phase, expected->phase);
    assert_int_equal(got->after, expected->after);
    assert_int_equal(got->group, expected->group);
    assert_int_equal(got->seq, expected->seq);
    assert_int_equal(got->group_ranks, expected->group_ranks);
    assert_true(got->bytes == expected->bytes && got->flops == expected->flops);
    assert_int_equal(got->end_s > 0, expected->end_s > 0);
    expect_ms(got->issued_s - expected->issued_s, later_ms);
    if (got->end_s > 0) {
        expect_ms(got->begin_s - expected->begin_s, later_ms);
        expect_ms(got->end_s - expected->end_s, later_ms);
    }
}

/* What is written is read back, on the clock of rank 0. */
static void test_round_trip(void **state)
{
    (void)state;
    timeline_job job = {.world_size = 2, .offset_s = 0.25, .bound_s = 2e-5}, got_job;
    timeline *t = hand_timeline(1, 0), *got;
    OK(timeline_read_chrome(write_hand(1, &job), &got, &got_job));
    timeline_view v = timeline_read(t), w = timeline_read(got);
    assert_int_equal(got_job.world_size, 2);
    expect_ms(got_job.offset_s, 250);
    expect_ms(got_job.bound_s, 0.02);
    assert_int_equal(w.rank, 1);
    assert_int_equal(w.n_streams, v.n_streams);
    for (int s = 0; s < v.n_streams; s++)
        assert_string_equal(w.streams[s], v.streams[s]);
    assert_int_equal(w.n_items, v.n_items);
    for (int64_t i = 0; i < v.n_items; i++)
        expect_same(&w.items[i], &v.items[i], 250);
    timeline_free(t);
    timeline_free(got);
}

/* What a viewer is shown. */
static void test_events(void **state)
{
    (void)state;
    const char *text = slurp(write_hand(1, &TWO));
    expect_part(text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    expect_part(text, "\"process_name\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"rank 1\"}");
    expect_part(text, "\"thread_name\",\"pid\":1,\"tid\":2,\"args\":{\"name\":\"comm\"}");
    expect_part(text, "{\"name\":\"all-gather h.0\",\"cat\":\"collective\",\"pid\":1,\"tid\":2,"
                      "\"ph\":\"X\",\"ts\":100001000.000,\"dur\":3000.000,");
    expect_part(text, "\"op\":\"all-gather\",\"bytes\":4096,\"group\":\"0\",\"sequence\":1,");
    expect_part(text, "{\"name\":\"wait: all-gather h.0\",\"cat\":\"wait\",\"pid\":1,\"tid\":1,");
    expect_part(text, "{\"name\":\"wait: reduce-scatter h.1\",");
    expect_part(text, "{\"name\":\"wait: compute\",\"cat\":\"wait\",\"pid\":1,\"tid\":2,");
    expect_part(text, "{\"name\":\"wait: offload\",\"cat\":\"wait\",\"pid\":1,\"tid\":1,");
    expect_part(text, "{\"name\":\"host sync: compute\",\"cat\":\"sync\",\"pid\":1,\"tid\":0,");
    /* the arrow of the wait that was over at once: from the gather to the first work behind it */
    expect_part(text, "\"ph\":\"s\",\"id\":4294967306,\"pid\":1,\"tid\":2,\"ts\":100006000.000}");
    expect_part(text, "\"ph\":\"f\",\"bp\":\"e\",\"id\":4294967306,\"pid\":1,\"tid\":1,"
                      "\"ts\":100010000.000}");
}

/* Labels may hold anything. */
static void test_escapes(void **state)
{
    (void)state;
    timeline *t = timeline_create(0), *got;
    timeline_job job;
    timeline_stream(t, "a \"b\" \\ c");
    timeline_item item = {.kind = TIMELINE_WORK, .after = TIMELINE_NONE, .phase = '-'};
    snprintf(item.unit, sizeof item.unit, "tab\t\"\\<&>");
    timeline_add(t, &item);
    timeline_view v = timeline_read(t);
    OK(timeline_write_chrome(&v, 1, &(timeline_job){.world_size = 1}, in_dir("escape.json")));
    OK(timeline_read_chrome(in_dir("escape.json"), &got, &job));
    assert_string_equal(timeline_read(got).streams[0], "a \"b\" \\ c");
    assert_string_equal(timeline_read(got).items[0].unit, item.unit);
    timeline_free(t);
    timeline_free(got);
}

/* The trace of rank 0 with `old`, which it holds once, or first, replaced, is refused so. */
static void expect_refused(const char *old, const char *new, const char *says)
{
    static char text[1 << 16];
    timeline *t = NULL;
    timeline_job job;
    const char *whole = slurp(write_hand(0, &TWO)), *at = strstr(whole, old);
    if (!at)
        fail_msg("no '%s' in:\n%s", old, whole);
    int n =
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, new, at + strlen(old));
    const char *path = write_bytes(in_dir("broken.json"), text, (size_t)n);
    assert_int_equal(timeline_read_chrome(path, &t, &job), FSDP_EINVAL);
    assert_null(t);
    assert_says("broken.json");
    assert_says(says);
}

static void test_broken_files(void **state)
{
    (void)state;
    timeline *t;
    timeline_job job;
    assert_int_equal(timeline_read_chrome(in_dir("none.json"), &t, &job), FSDP_EIO);
    assert_says("none.json: No such file");
    const char *path = write_bytes(in_dir("cut.json"), "{\"traceEvents\":[", 16);
    assert_int_equal(timeline_read_chrome(path, &t, &job), FSDP_EINVAL);
    assert_says("cut.json: it is no JSON, or not whole");
    expect_refused("\"traceEvents\"", "\"events\"", "it has no list of traceEvents");
    expect_refused("\"world_size\":2", "\"world_size\":0", "world_size is out of range");
    expect_refused("\"lost\":0", "\"lost\":1", "it is not whole");
    expect_refused("\"dur\":5000.000,", "", "(matmul): dur is missing");
    expect_refused("\"dur\":5000.000,", "\"dur\":-1,", "(matmul): dur is out of range");
    expect_refused("\"ph\":\"X\"", "\"ph\":\"B\"", "its phase is none of M, X, i, s, f");
    expect_refused("\"cat\":\"wait\"", "\"cat\":\"nap\"", "its category is none of");
    expect_refused("\"item\":7,", "\"item\":8,", "item is out of range");
    expect_refused("\"after\":5", "\"after\":4", "it waits for an item that is no record");
    expect_refused("\"after\":5", "\"after\":6", "after is out of range");
    expect_refused("\"pid\":0,\"tid\":2", "\"pid\":1,\"tid\":2", "pid is out of range");
    expect_refused("\"tid\":2,\"args\":{\"name\":\"comm\"}",
                   "\"tid\":2,\"args\":{\"name\":\"compute\"}", "not numbered in order");
}

static void test_broken_arrows(void **state)
{
    (void)state;
    expect_refused("\"ph\":\"s\",\"id\":6", "\"ph\":\"s\",\"id\":99", "has no other end");
    expect_refused("\"ph\":\"f\",\"bp\":\"e\",\"id\":6", "\"ph\":\"s\",\"id\":6",
                   "has no other end, or more than one");
    expect_refused("\"id\":6,\"pid\":0,\"tid\":2,\"ts\":100001000.000",
                   "\"id\":6,\"pid\":0,\"tid\":2,\"ts\":100001001.000",
                   "no slice begins where the arrow does");
    expect_refused("\"id\":6,\"pid\":0,\"tid\":2,\"ts\":100001000.000",
                   "\"id\":6,\"pid\":0,\"tid\":2,\"ts\":100020000.000", "points back in time");
}

static void test_cannot_write(void **state)
{
    (void)state;
    timeline *t = hand_timeline(0, 0);
    timeline_view v = timeline_read(t);
    draw_window window;
    assert_int_equal(timeline_write_chrome(&v, 1, &TWO, in_dir("no/dir.json")), FSDP_EIO);
    OK(draw_window_of(&v, 1, 7, &window));
    assert_int_equal(timeline_draw_svg(&v, 1, &window, in_dir("no/dir.svg")), FSDP_EIO);
    timeline_free(t);
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* The step by hand on two ranks, of which the second is 8 ms late: 40 ms, 2.05 columns each. */
typedef struct two {
    timeline *t[2];
    timeline_view v[2];
    draw_window window;
} two;

static void two_open(two *x)
{
    for (int r = 0; r < 2; r++) {
        x->t[r] = hand_timeline(r, 8 * r);
        x->v[r] = timeline_read(x->t[r]);
    }
    OK(draw_window_of(x->v, 2, 7, &x->window));
    expect_ms(x->window.end_s - x->window.begin_s, 40);
}

static void two_close(two *x)
{
    timeline_free(x->t[0]);
    timeline_free(x->t[1]);
}

static void test_text(void **state)
{
    (void)state;
    two x;
    two_open(&x);
    FILE *out = fopen(in_dir("text"), "w");
    timeline_draw_text(out, x.v, 2, &x.window);
    fclose(out);
    const char *text = slurp(in_dir("text"));
    expect_part(text, "step 7\n");
    expect_part(text,
                "      0 compute |wwwwwwwwwwfffffffffffffffffffbbbbbbbbbbbbwwwwwwwwwwwwwwGGGoGG");
    expect_part(text, "         0 comm |ccGGGGGG    GGGGGG    ");
    expect_part(text, "      1 compute |                wwwwwwwwww");
    expect_part(text, "10.0");
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_true(end - line <= 100);
    two_close(&x);
}

static void test_svg(void **state)
{
    (void)state;
    two x;
    two_open(&x);
    OK(timeline_draw_svg(x.v, 2, &x.window, in_dir("step.svg")));
    const char *text = slurp(in_dir("step.svg"));
    expect_part(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1200\"");
    expect_part(text, ">Step 7 on 2 ranks: 40.0 ms</text>");
    expect_part(text, ">rank 1</text>");
    expect_part(text, ">offload</text>");
    expect_part(text, "<title>forward h.0, 5.000 ms</title>");
    expect_part(text, "<title>wait (exposed) h.0, 5.000 ms</title>");
    expect_part(text, "<title>reduce h.1, 6.000 ms</title>");
    expect_part(text, ">h.1</text>");
    expect_part(text, ">0 ms</text>");
    expect_part(text, "</svg>\n");
    assert_null(strstr(text, "nan"));
    assert_int_equal(draw_window_of(x.v, 2, 8, &x.window), FSDP_EINVAL);
    two_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_events),
        cmocka_unit_test(test_escapes),       cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_broken_arrows), cmocka_unit_test(test_cannot_write),
        cmocka_unit_test(test_text),          cmocka_unit_test(test_svg),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
