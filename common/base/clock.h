/* clock.h -- the one clock of this project. It is monotonic: setting the date changes nothing. */
#pragma once
#include <time.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

/* clock_now_s -- seconds since a moment that all processes of a host share. */
double clock_now_s(void);

/* How long a wait has taken. Of the time between two looks at it a second counts, at most: a
 * process that was stopped, or whose machine was, has not waited meanwhile. Look more often than
 * that. */
typedef struct clock_wait {
    double waited_s, looked_s;
} clock_wait;
/* clock_wait_begin -- it begins now. */
clock_wait clock_wait_begin(void);
/* clock_wait_s -- look: seconds since the beginning, as far as they count. */
double clock_wait_s(clock_wait *w);

/* clock_deadline -- the moment `seconds` (>= 0) from now, for waits that take CLOCK_MONOTONIC. */
struct timespec clock_deadline(double seconds);

EXTERN_C_END
