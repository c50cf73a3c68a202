/* openmp_settings.c -- see openmp_settings.h. */
#include "common/base/openmp_settings.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

void openmp_settings(char **argv)
{
    char kilobytes[16];
    const char *stack = getenv("OMP_STACKSIZE");
    const bool is_policy_set = getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT");
    snprintf(kilobytes, sizeof kilobytes, "%d", THREAD_STACK_BYTES / 1024);
    prctl(PR_SET_NAME, program_invocation_short_name); /* execv below named the process "exe" */
    if (is_policy_set && stack && strcmp(stack, kilobytes) == 0)
        return;
    if ((is_policy_set || setenv("OMP_WAIT_POLICY", "passive", 1) == 0) &&
        setenv("OMP_STACKSIZE", kilobytes, 1) == 0)
        execv("/proc/self/exe", argv); /* returns only if it failed */
}
