/* clock.h -- the one clock of this project: monotonic, so no change of the date disturbs it. */
#pragma once
#include <time.h>

/* clock_now_s -- seconds since some moment before the process began; the same for all processes of
 * a host. */
double clock_now_s(void);

/* clock_deadline -- the moment `seconds` (>= 0) from now, for waits that take CLOCK_MONOTONIC. */
struct timespec clock_deadline(double seconds);
