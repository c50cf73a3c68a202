/* timeline_lib.h -- a step made by hand, for the tests of timelines, traces and pictures.
 *
 * Milliseconds from the beginning of step 7; [i] is an item:
 *
 *   compute  .....[7 h.0 f  ][11 h.1 f][12][13 h.1 b ]wwwwwwwww[19 loss  ]w
 *            0    5          10        14  15         20        27        30 31
 *   comm     [3][4 gather h.0]  [8 gather h.1]        [16 reduce h.1]
 *            0  1            4  6            9        20            26
 *   offload                                           [20 copy            ]
 *                                                     20                  31
 *
 * The compute stream reaches its wait for h.0 at 2, and has had nothing to do since 0. When it
 * waits for h.1, h.1 is there already. It waits for the reduction until 27, and for the offload
 * from 30 to 31. The compute stream runs the loss, a collective, itself. The host syncs until
 * 32. */
#pragma once
#include "common/observe/timeline.h"
#include "tests/unit/unit_lib.h"

/* Items of the step that tests name. */
enum {
    HAND_STEP,
    HAND_GATHER_0 = 4,
    HAND_WAIT_0 = 6,
    HAND_GATHER_1 = 8,
    HAND_WAIT_1 = 10,
    HAND_WORK_1 = 11,
    HAND_REDUCE = 16,
    HAND_WAIT_REDUCE = 18,
    HAND_LOSS = 19,
    HAND_WAIT_OFFLOAD = 22,
    HAND_ITEMS = 24
};

/* hand_timeline -- that step on rank `rank`, everything `late_ms` later. The caller frees it. */
timeline *hand_timeline(int rank, double late_ms);
/* hand_s -- a moment of that step, in seconds. */
double hand_s(double ms);
/* expect_ms -- got_s is so many milliseconds, to a nanosecond. */
void expect_ms(double got_s, double expected_ms);
