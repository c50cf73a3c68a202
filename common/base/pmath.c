/* pmath.c -- the double functions of pmath.h. They are called for one number at a time. */
#include "common/base/pmath.h"

#include "common/base/status.h"

double pm_log(double x)
{
    if (x != x || x == pm_from_bits(0x7ff0000000000000))
        return x;
    if (x < 0.0)
        return pm_from_bits(0x7ff8000000000000); /* NaN */
    if (x == 0.0)
        return -pm_from_bits(0x7ff0000000000000);
    if (x < 0x1p-1022) /* 52 ln 2 goes last: it is small beside the result, about -709 */
        return pm_log_positive(x * 0x1p52) - 0x1.205966f2b4f12p5;
    return pm_log_positive(x);
}

/* x = n * pi/2 + a. pi/2 is subtracted in three parts; n times the first two is exact for n <= 41
 * (33 + 6 bits). */
double pm_cos(double x)
{
    FSDP_ASSERT(x >= -64.0 && x <= 64.0);
    double shifted = x * 0x1.45f306dc9c883p-1 + PM_ROUND, n = shifted - PM_ROUND;
    double a = ((x - n * 0x1.921fb544p0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    double s, c;
    pm_sincos_quadrant((uint32_t)pm_bits(shifted), a, &s, &c);
    return c;
}

void pm_sincos_turns(double turns, double *s, double *c)
{
    pm_sincos_turns_inline(turns, s, c);
}
