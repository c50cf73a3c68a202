/* clock.c -- see clock.h. */
#include "common/base/clock.h"

double clock_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

clock_wait clock_wait_begin(void)
{
    return (clock_wait){.looked_s = clock_now_s()};
}

double clock_wait_s(clock_wait *w)
{
    static const double MOST_S = 1;
    double now_s = clock_now_s(), passed_s = now_s - w->looked_s;
    w->waited_s += passed_s < MOST_S ? passed_s : MOST_S;
    w->looked_s = now_s;
    return w->waited_s;
}

struct timespec clock_deadline(double seconds)
{
    const double at_s = clock_now_s() + seconds;
    const time_t whole_s = (time_t)at_s;
    return (struct timespec){.tv_sec = whole_s, .tv_nsec = (long)((at_s - (double)whole_s) * 1e9)};
}
