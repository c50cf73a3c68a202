/* timeline_lib.c -- see timeline_lib.h. */
#include "tests/unit/timeline_lib.h"
#include <string.h>

double hand_s(double ms)
{
    return 100 + 1e-3 * ms;
}

void expect_ms(double got_s, double expected_ms)
{
    double off_ms = 1e3 * got_s - expected_ms;
    if (!(off_ms > -1e-6 && off_ms < 1e-6))
        fail_msg("got %.6f ms, expected %.6f ms", 1e3 * got_s, expected_ms);
}

enum { COMPUTE, COMM, OFFLOAD };

/* One line of the table: times are milliseconds, both 0 for an item that took none. */
typedef struct line {
    timeline_kind kind;
    int stream;
    const char *name, *unit;
    char phase;
    int after;
    int seq;
    double begin, end;
} line;

static const line STEP[HAND_ITEMS] = {
    {TIMELINE_STEP, TIMELINE_HOST, "", "", '-', -1, 7, 0, 0},
    {TIMELINE_RECORD, COMPUTE, "", "", 'f', -1, 0, 0, 0},
    {TIMELINE_WAIT, COMM, "", "", 'f', 1, 0, 0, 0},
    {TIMELINE_WORK, COMM, "copy", "h.0.attn", 'f', -1, 0, 0, 1},
    {TIMELINE_COLLECTIVE, COMM, "all-gather", "h.0", 'f', -1, 1, 1, 4},
    {TIMELINE_RECORD, COMM, "", "", 'f', -1, 0, 0, 0},
    {TIMELINE_WAIT, COMPUTE, "", "", 'f', 5, 0, 2, 5},
    {TIMELINE_WORK, COMPUTE, "matmul", "h.0.attn", 'f', -1, 0, 5, 10},
    {TIMELINE_COLLECTIVE, COMM, "all-gather", "h.1", 'f', -1, 2, 6, 9},
    {TIMELINE_RECORD, COMM, "", "", 'f', -1, 0, 0, 0},
    {TIMELINE_WAIT, COMPUTE, "", "", 'f', 9, 0, 0, 0},
    {TIMELINE_WORK, COMPUTE, "matmul", "h.1.attn", 'f', -1, 0, 10, 14},
    {TIMELINE_WORK, COMPUTE, "fill", "h.1.attn", 'b', -1, 0, 14, 15},
    {TIMELINE_WORK, COMPUTE, "matmul", "h.1.attn", 'b', -1, 0, 15, 20},
    {TIMELINE_RECORD, COMPUTE, "", "", 'b', -1, 0, 0, 0},
    {TIMELINE_WAIT, COMM, "", "", 'b', 14, 0, 0, 0},
    {TIMELINE_COLLECTIVE, COMM, "reduce-scatter", "h.1", 'b', -1, 3, 20, 26},
    {TIMELINE_RECORD, COMM, "", "", 'b', -1, 0, 0, 0},
    {TIMELINE_WAIT, COMPUTE, "", "", 'b', 17, 0, 20, 27},
    {TIMELINE_COLLECTIVE, COMPUTE, "all-gather", "loss", '-', -1, 4, 27, 30},
    {TIMELINE_WORK, OFFLOAD, "copy", "", '-', -1, 0, 20, 31},
    {TIMELINE_RECORD, OFFLOAD, "", "", '-', -1, 0, 0, 0},
    {TIMELINE_WAIT, COMPUTE, "", "", '-', 21, 0, 30, 31},
    {TIMELINE_SYNC, COMPUTE, "", "", '-', -1, 0, 31, 32},
};

timeline *hand_timeline(int rank, double late_ms)
{
    timeline *t = timeline_create(rank, 0, 0);
    assert_non_null(t);
    assert_int_equal(timeline_stream(t, "compute"), COMPUTE);
    assert_int_equal(timeline_stream(t, "comm"), COMM);
    assert_int_equal(timeline_stream(t, "offload"), OFFLOAD);
    for (int i = 0; i < HAND_ITEMS; i++) {
        const line *l = &STEP[i];
        timeline_item item = {.kind = l->kind,
                              .stream = l->stream,
                              .is_move =
                                  strcmp(l->name, "copy") == 0 || strcmp(l->name, "fill") == 0,
                              .phase = l->phase,
                              .reduces = strcmp(l->name, "reduce-scatter") == 0,
                              .after = l->after,
                              .seq = (uint64_t)l->seq,
                              .group_ranks = l->kind == TIMELINE_COLLECTIVE ? 2 : 0,
                              .bytes = l->kind == TIMELINE_COLLECTIVE ? 4096 : 0,
                              .issued_s = hand_s(l->begin + late_ms)};
        snprintf(item.name, sizeof item.name, "%s", l->name);
        snprintf(item.unit, sizeof item.unit, "%s", l->unit);
        assert_int_equal(timeline_add(t, &item), i);
        if (l->end > 0)
            timeline_ran(t, i, hand_s(l->begin + late_ms), hand_s(l->end + late_ms));
    }
    return t;
}
