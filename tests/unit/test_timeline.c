/* test_timeline.c -- the record of issued work, how a device and its collectives fill it, and what
 * is computed from it. */
#include <string.h>
#include "common/comm/comm_impl.h"
#include "common/device/device_impl.h"
#include "common/observe/timeline_stats.h"
#include "common/observe/timeline_watch.h"
#include "tests/unit/device_lib.h"
#include "tests/unit/timeline_lib.h"

/* ---- the record ------------------------------------------------------------------------------ */

TEST(test_streams_and_items)
{
    timeline *t = timeline_create(3, 0, 0);
    assert_int_equal(timeline_stream(t, "compute"), 0);
    assert_int_equal(timeline_stream(t, "comm"), 1);
    assert_int_equal(timeline_stream(t, "compute"), 0);
    for (int i = 0; i < 5000; i++) /* more than the initial room */
        assert_int_equal(
            timeline_add(t, &(timeline_item){.kind = TIMELINE_WORK, .stream = 1, .flops = i}), i);
    timeline_ran(t, 4000, 2.0, 3.0);
    timeline_ran(t, 4000, 3.5, 4.0); /* a second part */
    timeline_view v = timeline_read(t);
    assert_int_equal(v.rank, 3);
    assert_int_equal(v.n_streams, 2);
    assert_string_equal(v.streams[1], "comm");
    assert_int_equal(v.n_items, 5000);
    assert_int_equal(v.n_lost, 0);
    assert_true(v.items[4999].flops == 4999 && v.items[4999].end_s == 0);
    assert_true(v.items[4000].begin_s == 2.0 && v.items[4000].end_s == 4.0);
    timeline_clear(t);
    v = timeline_read(t);
    assert_int_equal(v.n_items, 0);
    assert_int_equal(v.n_streams, 2);
    timeline_free(t);
    timeline_free(NULL);
}

/* Every recorded time is moved to the clock of rank 0. */
TEST(test_offset)
{
    timeline *t = timeline_create(0, 0.25, 0);
    const timeline_item item = {.kind = TIMELINE_WORK, .issued_s = 1};
    assert_int_equal(timeline_add(t, &item), 0);
    assert_int_equal(timeline_add(t, &item), 1);
    timeline_ran(t, 0, 2, 3);
    timeline_ran(t, 0, 3.5, 4); /* a second part */
    timeline_view v = timeline_read(t);
    assert_true(v.items[0].issued_s == 1.25 && v.items[1].issued_s == 1.25);
    assert_true(v.items[0].begin_s == 2.25 && v.items[0].end_s == 4.25);
    assert_true(v.items[1].begin_s == 0 && v.items[1].end_s == 0); /* it has not run */
    timeline_free(t);
}

/* A run that is too long loses items, and reports how many. */
TEST(test_full)
{
    timeline *t = timeline_create(0, 0, 0);
    int64_t n = 0;
    timeline_stream(t, "compute");
    while (n < 1 << 20 && timeline_add(t, &(timeline_item){.kind = TIMELINE_RECORD}) == n)
        n++;
    assert_int_equal(timeline_add(t, &(timeline_item){.kind = TIMELINE_RECORD}), TIMELINE_NONE);
    timeline_view v = timeline_read(t);
    assert_int_equal(v.n_items, 1 << 18);
    assert_int_equal(v.n_lost, 2);
    timeline_free(t);
}

/* ---- filled by a device ---------------------------------------------------------------------- */

static fsdp_status run_nothing(void *args, int n_threads)
{
    return FSDP_OK;
}

static void launch(stream *s, const char *name)
{
    OK(stream_launch_work(s, &(launch_config){.fn = run_nothing,
                                              .work = {{.name = name}, {.flops = 6, .bytes = 8}}}));
}

/* A device whose acts and collectives are recorded in a timeline. */
typedef struct rig {
    device *d;
    comm *c;
    stream *compute, *side;
    event *e;
    timeline *t;
    timeline_watch *w;
} rig;

static void rig_open(rig *r, bool async)
{
    r->d = open_cpu(async, false);
    OK(comm_open(r->d, &(comm_config){.backend = COMM_SELF}, &r->c));
    OK(stream_create(r->d, &(stream_config){.name = "side"}, &r->side));
    OK(event_create(r->d, &r->e));
    r->compute = device_compute_stream(r->d);
    r->t = timeline_create(0, 0, 0);
    r->w = timeline_watch_create(r->d, r->c, NULL, NULL);
}

static void rig_sync(rig *r)
{
    OK(stream_sync(r->side));
    OK(stream_sync(r->compute));
}

static void rig_close(rig *r)
{
    rig_sync(r);
    event_free(r->e);
    stream_free(r->side);
    comm_close(r->c);
    device_close(r->d);
    timeline_watch_free(r->w);
    timeline_free(r->t);
}

/* The next item of this kind after *i. */
static const timeline_item *next_item(const rig *r, timeline_kind kind, int64_t *i)
{
    timeline_view v = timeline_read(r->t);
    while (*i < v.n_items && v.items[*i].kind != kind)
        ++*i;
    if (*i == v.n_items)
        fail_msg("no item of kind %d", (int)kind);
    return &v.items[(*i)++];
}

TEST_BOTH(test_watch_work)
{
    rig r;
    float a[4] = {0}, b[4], host[4];
    rig_open(&r, *(bool *)*state);
    launch(r.compute, "before"); /* no timeline is set yet */
    OK(stream_sync(r.compute));
    timeline_watch_to(r.w, r.t);
    timeline_watch_step(r.w, 12);
    device_set_scope(r.d, "h.0.attn", "forward");
    launch(r.compute, "matmul");
    launch(r.compute, NULL); /* a part of another act */
    device_set_scope(r.d, NULL, NULL);
    OK(device_copy(r.side, b, a, sizeof a));
    OK(device_upload(r.compute, a, host, sizeof a));
    OK(device_download(r.compute, host, a, sizeof a));
    OK(device_zero(r.compute, a, sizeof a));
    OK(stream_sync(r.side));
    OK(stream_sync(r.compute));
    timeline_watch_to(r.w, NULL);
    launch(r.compute, "behind");
    OK(stream_sync(r.compute));
    static const char *const NAMES[] = {"matmul", "copy", "upload", "download", "fill"};
    int64_t i = 0;
    const timeline_item *item = next_item(&r, TIMELINE_STEP, &i);
    assert_true(i == 1 && item->seq == 12 && item->stream == TIMELINE_HOST);
    for (int k = 0; k < 5; k++) {
        item = next_item(&r, TIMELINE_WORK, &i);
        assert_int_equal(i, k + 2);
        assert_string_equal(item->name, NAMES[k]);
        assert_int_equal(item->is_move, k > 0);
        assert_string_equal(item->unit, k == 0 ? "h.0.attn" : "");
        assert_int_equal(item->phase, k == 0 ? 'f' : '-');
        assert_int_equal(item->stream, k == 1); /* "side" was named second */
        assert_true(item->bytes == (k == 0 ? 8 : sizeof a) && item->flops == (k == 0 ? 6 : 0));
        assert_true(item->end_s >= item->begin_s && item->begin_s >= item->issued_s);
        assert_true(item->begin_s > 0);
    }
    item = next_item(&r, TIMELINE_SYNC, &i);
    assert_true(item->stream == 1 && item->after == TIMELINE_NONE && item->end_s > 0);
    assert_int_equal(timeline_read(r.t).n_items, 8);
    rig_close(&r);
}

/* A wait refers to the record that the event stood for when the wait was issued. */
TEST_BOTH(test_watch_events)
{
    rig r;
    rig_open(&r, *(bool *)*state);
    timeline_watch_to(r.w, r.t);
    OK(stream_wait_event(r.side, r.e)); /* 0: never recorded */
    OK(event_record(r.e, r.compute));   /* 1 */
    OK(stream_wait_event(r.side, r.e)); /* 2 */
    OK(event_record(r.e, r.compute));   /* 3 */
    OK(stream_wait_event(r.side, r.e)); /* 4 */
    OK(event_sync(r.e));                /* 5 */
    static const int64_t AFTER[] = {-1, -1, 1, -1, 3, 3};
    timeline_view v = timeline_read(r.t);
    assert_int_equal(v.n_items, 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(v.items[i].after, AFTER[i]);
    assert_int_equal(v.items[4].kind, TIMELINE_WAIT);
    assert_int_equal(v.items[5].kind, TIMELINE_SYNC);
    assert_int_equal(v.items[5].stream, TIMELINE_HOST);
    timeline_watch_to(r.w, r.t);
    OK(stream_wait_event(r.side, r.e)); /* the record is in another timeline: not known any more */
    assert_int_equal(timeline_read(r.t).items[6].after, TIMELINE_NONE);
    rig_close(&r);
}

TEST_BOTH(test_watch_collectives)
{
    rig r;
    float buf[4] = {0};
    rig_open(&r, *(bool *)*state);
    timeline_watch_to(r.w, r.t);
    device_set_scope(r.d, "h.1.mlp", "backward");
    OK(event_record(r.e, r.compute));
    OK(comm_all_gather(r.c, r.side, "h.1", DTYPE_F32, buf, buf, 4));
    OK(comm_all_reduce(r.c, r.side, "norm", DTYPE_F32, buf, 4));
    rig_sync(&r);
    int64_t i = 0;
    const timeline_item *gather = next_item(&r, TIMELINE_COLLECTIVE, &i);
    const timeline_item *reduce = next_item(&r, TIMELINE_COLLECTIVE, &i);
    timeline_view v = timeline_read(r.t);
    assert_string_equal(gather->name, "all-gather");
    assert_false(gather->reduces);
    assert_string_equal(gather->unit, "h.1");
    assert_string_equal(v.streams[gather->stream], "side");
    assert_int_equal(gather->phase, 'b');
    assert_int_equal(gather->group_ranks, 1);
    assert_true(gather->end_s >= gather->begin_s && gather->begin_s >= gather->issued_s);
    assert_true(gather->begin_s > 0);
    assert_string_equal(reduce->name, "all-reduce");
    assert_true(reduce->reduces);
    assert_int_equal(reduce->seq, gather->seq + 1);
    rig_close(&r);
}

static uint64_t issue_sum(const rig *r)
{
    const comm_issue how = {.op = COMM_OP_ALL_REDUCE, .type = DTYPE_F32};
    const comm_desc what = {.op = COMM_OP_ALL_REDUCE, .dtype = DTYPE_F32, .elems = 10};
    return comm_recorder_issue(&r->c->team, "norm", r->side, &how, &what);
}

static void run_part(const rig *r, uint64_t ticket)
{
    comm_recorder_mark(r->c->team.recorder, ticket, COMM_RUNNING);
    comm_recorder_mark(r->c->team.recorder, ticket, COMM_DONE);
}

/* The two parts of an all-reduce are one item. A part that ends late does not touch another
 * timeline. */
TEST(test_watch_parts)
{
    rig r;
    rig_open(&r, false);
    const device_watch w = r.d->watch;
    device_act act = {.kind = ACT_LAUNCH, .stream = r.side, .work.key.name = "add"};
    timeline_watch_to(r.w, r.t);
    uint64_t first = issue_sum(&r), second = issue_sum(&r);
    run_part(&r, first);
    const timeline_item part = timeline_read(r.t).items[0];
    assert_true(part.end_s > part.begin_s && part.begin_s > 0);
    run_part(&r, first);
    timeline_view v = timeline_read(r.t);
    assert_true(v.items[0].begin_s == part.begin_s && v.items[0].end_s > part.end_s);
    assert_true(v.items[1].end_s == 0);
    act.token = w.issued(w.self, &act);
    assert_int_not_equal(act.token, 0);
    timeline_watch_to(r.w, r.t);
    act.begin_s = 5, act.end_s = 6;
    w.ran(w.self, &act);
    run_part(&r, second);
    v = timeline_read(r.t);
    assert_true(v.items[2].end_s == 0 && v.items[1].end_s == 0);
    rig_close(&r);
}

/* ---- computed from it ------------------------------------------------------------------------ */

TEST(test_cause)
{
    timeline *t = hand_timeline(0, 0);
    timeline_view v = timeline_read(t);
    assert_int_equal(timeline_cause(&v, HAND_WAIT_0), HAND_GATHER_0);
    assert_int_equal(timeline_cause(&v, HAND_WAIT_1), HAND_GATHER_1);
    assert_int_equal(timeline_cause(&v, HAND_WAIT_REDUCE), HAND_REDUCE);
    assert_int_equal(timeline_cause(&v, HAND_WAIT_OFFLOAD), TIMELINE_NONE);
    assert_int_equal(timeline_cause(&v, HAND_WORK_1), TIMELINE_NONE);
    timeline_free(t);
}

TEST(test_stalls)
{
    static const struct {
        int64_t item, cause;
        double begin, ms;
    } EXPECTED[] = {{HAND_WAIT_0, HAND_GATHER_0, 0, 5},
                    {HAND_WAIT_1, HAND_GATHER_1, 0, 0},
                    {HAND_WAIT_REDUCE, HAND_REDUCE, 20, 7},
                    {HAND_LOSS, HAND_LOSS, 27, 3}};
    timeline *t = hand_timeline(0, 0);
    timeline_view v = timeline_read(t);
    timeline_cursor c = {.at = 0, .busy_until_s = hand_s(0)};
    timeline_stall stall;
    for (int i = 0; i < 4; i++) {
        assert_true(timeline_next_stall(&v, &c, v.n_items, &stall));
        assert_int_equal(stall.item, EXPECTED[i].item);
        assert_int_equal(stall.cause, EXPECTED[i].cause);
        expect_ms(stall.seconds, EXPECTED[i].ms);
        if (EXPECTED[i].ms > 0)
            expect_ms(stall.begin_s - hand_s(0), EXPECTED[i].begin);
    }
    assert_false(timeline_next_stall(&v, &c, v.n_items, &stall));
    timeline_free(t);
}

/* A stall begins when the work it waits for was issued, even if that work begins later. */
TEST(test_stall_from_issue)
{
    timeline *t = hand_timeline(0, 0);
    timeline_view v = timeline_read(t);
    timeline_item *copy = (timeline_item *)&v.items[HAND_GATHER_0 - 1];
    timeline_cursor c = {.at = 0, .busy_until_s = hand_s(0)};
    timeline_stall stall;
    copy->begin_s = hand_s(0.75);
    copy->issued_s = hand_s(0.25);
    assert_true(timeline_next_stall(&v, &c, v.n_items, &stall));
    expect_ms(stall.seconds, 4.75);
    expect_ms(stall.begin_s - hand_s(0), 0.25);
    timeline_free(t);
}

TEST(test_step)
{
    timeline *t = hand_timeline(0, 0);
    timeline_step s;
    timeline_view v = timeline_read(t);
    assert_true(timeline_next_step(&v, 0, &s));
    assert_true(s.step == 7 && s.first == 0 && s.end == HAND_ITEMS);
    expect_ms(s.end_s - s.begin_s, 32);
    expect_ms(s.compute_s, 14);
    expect_ms(s.move_s, 1);
    expect_ms(s.wait_s, 1);
    expect_ms(s.exposed_s, 15);
    expect_ms(s.comm_s, 16); /* 0-4, 6-9, 20-26, 27-30 */
    assert_int_equal(s.stall.item, HAND_WAIT_REDUCE);
    assert_true(timeline_overlap(&s) > 0.0625 - 1e-9 && timeline_overlap(&s) < 0.0625 + 1e-9);
    assert_false(timeline_next_step(&v, s.end, &s));
    assert_true(timeline_overlap(&(timeline_step){.comm_s = 0}) == 1);
    assert_true(timeline_overlap(&(timeline_step){.comm_s = 1, .exposed_s = 2}) == 0);
    timeline_free(t);
}

/* Two collectives at once, on two streams, count for the union of their times. */
TEST(test_two_comm_streams)
{
    timeline *t = hand_timeline(0, 0);
    int second = timeline_stream(t, "gather");
    int64_t i = timeline_add(t, &(timeline_item){.kind = TIMELINE_COLLECTIVE, .stream = second});
    timeline_ran(t, i, hand_s(22), hand_s(26.5)); /* the reduction: 20 to 26 */
    timeline_step s;
    timeline_view v = timeline_read(t);
    assert_true(timeline_next_step(&v, 0, &s));
    expect_ms(s.comm_s, 16.5);
    expect_ms(s.exposed_s, 15);
    timeline_free(t);
}

int main(void)
{
    return tests_run(NULL, NULL);
}
