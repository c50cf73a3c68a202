/* pmath.c -- pm_cos, the function of pmath.h that is not inlined. */
#include "common/base/pmath.h"

#include "common/base/status.h"

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
