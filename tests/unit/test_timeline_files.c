/* test_timeline_files.c -- timelines as Chrome traces and as pictures. */
#include <cjson/cJSON.h>
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
    assert_non_null(text);
    if (!strstr(text, part))
        fail_msg("no '%s' in:\n%s", part, text);
}

/* Write a trace of the handmade step; returns its path. */
static const char *write_hand(int rank)
{
    char name[32];
    timeline *t = hand_timeline(rank, 0);
    timeline_view v = timeline_read(t);
    v.offset_s = 0.25;
    v.bound_s = 2e-5;
    snprintf(name, sizeof name, "trace-rank-%d.json", rank);
    FILE *out = fopen(in_dir(name), "w");
    timeline_write_chrome(&v, 2, out);
    fclose(out);
    timeline_free(t);
    return in_dir(name);
}

/* The events that a viewer shows. */
TEST(test_events)
{
    const char *text = slurp(write_hand(1));
    expect_part(text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    expect_part(text, "\"process_name\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"rank 1\"}");
    expect_part(text, "\"thread_name\",\"pid\":1,\"tid\":2,\"args\":{\"name\":\"comm\"}");
    expect_part(text, "{\"name\":\"all-gather h.0\",\"cat\":\"collective\",\"pid\":1,\"tid\":2,"
                      "\"ph\":\"X\",\"ts\":100001000.000,\"dur\":3000.000,");
    expect_part(text,
                "\"args\":{\"step\":7,\"issued\":100001000.000,\"phase\":\"f\",\"bytes\":4096,"
                "\"flops\":0,\"unit\":\"h.0\",\"group\":\"0\",\"sequence\":1,\"ranks\":2}},\n");
    expect_part(text, "{\"name\":\"wait: all-gather h.0\",\"cat\":\"wait\",\"pid\":1,\"tid\":1,");
    expect_part(text, "{\"name\":\"wait: reduce-scatter h.1\",");
    expect_part(text, "{\"name\":\"wait: compute\",\"cat\":\"wait\",\"pid\":1,\"tid\":2,");
    expect_part(text, "{\"name\":\"wait: offload\",\"cat\":\"wait\",\"pid\":1,\"tid\":1,");
    expect_part(text, "{\"name\":\"host sync: compute\",\"cat\":\"sync\",\"pid\":1,\"tid\":0,");
    /* the arrow of the wait that was over at once, from the gather to the first work after it */
    expect_part(text, "\"ph\":\"s\",\"id\":4294967306,\"pid\":1,\"tid\":2,\"ts\":100006000.000}");
    expect_part(text, "\"ph\":\"f\",\"bp\":\"e\",\"id\":4294967306,\"pid\":1,\"tid\":1,"
                      "\"ts\":100010000.000}");
    assert_null(strstr(text, "record"));
    expect_part(text, "\"otherData\":{\"rank\":1,\"world_size\":2,\"clock_offset_us\":250000.000,"
                      "\"clock_bound_us\":20.000,\"lost\":0}}\n");
}

/* Labels may contain any characters. */
TEST(test_escapes)
{
    timeline *t = timeline_create(0, 0, 0);
    timeline_stream(t, "a \"b\" \\ c");
    timeline_item item = {.kind = TIMELINE_WORK, .after = TIMELINE_NONE, .phase = '-'};
    snprintf(item.unit, sizeof item.unit, "tab\t\"\\<&>");
    timeline_add(t, &item);
    timeline_view v = timeline_read(t);
    FILE *out = fopen(in_dir("escape.json"), "w");
    timeline_write_chrome(&v, 2, out);
    fclose(out);
    cJSON *root = cJSON_Parse(slurp(in_dir("escape.json")));
    assert_non_null(root);
    const cJSON *events = cJSON_GetObjectItem(root, "traceEvents");
    const cJSON *stream = cJSON_GetObjectItem(cJSON_GetArrayItem(events, 3), "args");
    const cJSON *work = cJSON_GetObjectItem(cJSON_GetArrayItem(events, 4), "args");
    assert_string_equal(cJSON_GetObjectItem(stream, "name")->valuestring, "a \"b\" \\ c");
    assert_string_equal(cJSON_GetObjectItem(work, "unit")->valuestring, item.unit);
    cJSON_Delete(root);
    timeline_free(t);
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* The handmade step on two ranks, the second 8 ms late, with a stream that does nothing: 40 ms,
 * 2.05 columns each. */
typedef struct two {
    timeline *t[2];
    timeline_view v[2];
    draw_window window;
} two;

static void two_open(two *x)
{
    for (int r = 0; r < 2; r++) {
        x->t[r] = hand_timeline(r, 8 * r);
        assert_true(timeline_stream(x->t[r], "idle") >= 0); /* gets no lane */
        x->v[r] = timeline_read(x->t[r]);
    }
    x->window = (draw_window){
        .step = 7, .begin_s = hand_s(0), .end_s = hand_s(32 + 8), .caption = "mode m, link l"};
}

static void two_close(two *x)
{
    timeline_free(x->t[0]);
    timeline_free(x->t[1]);
}

TEST(test_text)
{
    two x;
    two_open(&x);
    FILE *out = fopen(in_dir("text"), "w");
    draw_text.head(out, &x.window, (draw_count){0});
    for (int r = 0; r < 2; r++)
        draw_text.lanes(out, &x.window, &x.v[r], (draw_count){0});
    draw_text.foot(out, &x.window);
    fclose(out);
    const char *text = slurp(in_dir("text"));
    expect_part(text, "step 7 (mode m, link l)\n");
    expect_part(text,
                "      0 compute |wwwwwwwwwwfffffffffffffffffffbbbbbbbbbbbbwwwwwwwwwwwwwwGGGGGG");
    expect_part(text, "         0 comm |ccGGGGGG    GGGGGG    ");
    expect_part(text, "      1 compute |                wwwwwwwwww");
    expect_part(text, "10.0");
    assert_null(strstr(text, "idle"));
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_true(end - line <= 100);
    two_close(&x);
}

static const char *draw(const two *x)
{
    const draw_count all = {2, draw_lanes(&x->v[0]) + draw_lanes(&x->v[1])};
    FILE *out = fopen(in_dir("step.svg"), "w");
    draw_svg.head(out, &x->window, all);
    draw_svg.lanes(out, &x->window, &x->v[0], (draw_count){0});
    draw_svg.lanes(out, &x->window, &x->v[1], (draw_count){1, draw_lanes(&x->v[0])});
    draw_svg.foot(out, &x->window);
    fclose(out);
    return slurp(in_dir("step.svg"));
}

TEST(test_svg)
{
    two x;
    two_open(&x);
    const char *text = draw(&x);
    expect_part(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1200\"");
    expect_part(text, ">Step 7 on 2 ranks, mode m, link l: 40.0 ms</text>");
    expect_part(text, ">rank 1</text>");
    expect_part(text, ">offload</text>");
    expect_part(text, "<title>forward h.0, 5.000 ms</title>");
    expect_part(text, "<title>wait (exposed) h.0, 5.000 ms</title>");
    expect_part(text, "<title>reduce h.1, 6.000 ms</title>");
    expect_part(text, ">h.1</text>");
    expect_part(text, ">0 ms</text>");
    expect_part(text, "</svg>\n");
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "idle"));
    /* 3 lanes of 30 + 6 for each rank, 16 after each rank, 64 at the top, 40 at the bottom */
    expect_part(text, "height=\"352\" viewBox=");
    expect_part(text, "y=\"64.0\" width=\"1066\" height=\"30\" fill=\"#203040\"");
    expect_part(text, "y=\"188.0\" width=\"1066\" height=\"30\" fill=\"#203040\"");
    two_close(&x);
}

/* An axis of 100 ms for a step of 40 ms: the box from 5 to 10 ms is 53.3 of 1066 pixels wide. */
TEST(test_axis)
{
    two x;
    two_open(&x);
    x.window.axis_s = 0.1;
    const char *text = draw(&x);
    expect_part(text, "link l: 40.0 ms</text>");
    expect_part(text, ">100</text>");
    expect_part(text, "<rect x=\"171.30\" y=\"64.0\" width=\"53.30\"");
    x.window.axis_s = 0.02; /* shorter than the step: ignored */
    expect_part(draw(&x), "<rect x=\"251.25\" y=\"64.0\" width=\"133.25\"");
    two_close(&x);
}

int main(void)
{
    return tests_run(temp_dir_make, temp_dir_remove);
}
