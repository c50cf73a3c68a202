/* clock.h -- the one clock of this project. It is monotonic: setting the date has no effect. */
#pragma once
#include <time.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

/* clock_now_s -- seconds since a moment that all processes of a host share. */
double clock_now_s(void);

/* Measures how long a wait has taken. Between two calls of clock_wait_s at most one second counts,
 * because a process does not wait while it, or its machine, is stopped. Call clock_wait_s at least
 * once a second. */
typedef struct clock_wait {
    double waited_s, looked_s;
} clock_wait;
/* clock_wait_begin -- begin a wait now. */
clock_wait clock_wait_begin(void);
/* clock_wait_s -- the seconds since the beginning that count. */
double clock_wait_s(clock_wait *w);

/* clock_deadline -- the CLOCK_MONOTONIC time `seconds` (>= 0) from now. */
struct timespec clock_deadline(double seconds);

EXTERN_C_END
