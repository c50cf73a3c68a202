/* clock.c -- see clock.h. */
#include "common/base/clock.h"

double clock_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct timespec clock_deadline(double seconds)
{
    const double at_s = clock_now_s() + seconds;
    const time_t whole_s = (time_t)at_s;
    return (struct timespec){.tv_sec = whole_s, .tv_nsec = (long)((at_s - (double)whole_s) * 1e9)};
}
