/* glob_in.c -- see glob_in.h. */
#include "common/base/glob_in.h"
#include <limits.h>
#include <stdio.h>

int glob_in(const char *dir, const char *names, int flags, glob_t *out)
{
    char pattern[3 * PATH_MAX], *to = pattern;
    for (int i = 0; i < PATH_MAX && dir[i] != '\0'; i++) {
        if (dir[i] != '/')
            *to++ = '\\';
        *to++ = dir[i];
    }
    snprintf(to, PATH_MAX, "/%s", names);
    return glob(pattern, flags, NULL, out);
}
