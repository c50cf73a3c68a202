/* units.c -- see units.h. */
#include "common/base/units.h"
#include <stdio.h>

char *format_bytes(size_t bytes, char *buf, size_t buf_bytes)
{
    static const char *const UNITS[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(buf, buf_bytes, "%zu B", bytes);
        return buf;
    }
    double value = (double)bytes;
    int unit = 0;
    while (value >= 999.5) { /* 999.5 would be printed as 1000 */
        value /= 1000;
        unit++;
    }
    snprintf(buf, buf_bytes, "%.*f %s", value < 9.95 ? 1 : 0, value, UNITS[unit]);
    return buf;
}
