/* clock.h -- the one clock of this project. It is monotonic: setting the date changes nothing. */
#pragma once
#include <time.h>
#include "common/base/status.h"

EXTERN_C_BEGIN

/* clock_now_s -- seconds since a moment that all processes of a host share. */
double clock_now_s(void);

/* clock_deadline -- the moment `seconds` (>= 0) from now, for waits that take CLOCK_MONOTONIC. */
struct timespec clock_deadline(double seconds);

EXTERN_C_END
