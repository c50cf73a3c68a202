/* openmp_settings.c -- see openmp_settings.h. */
#include "common/base/openmp_settings.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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

fsdp_status stack_check(void)
{
    enum { LEAST_BYTES = 4 << 20 };
    struct rlimit r;
    if (getrlimit(RLIMIT_STACK, &r) != 0 || r.rlim_cur >= LEAST_BYTES)
        return FSDP_OK;
    return fsdp_error(FSDP_ENOMEM, "raise the limit: ulimit -s 8192",
                      "the stack is limited to %llu kB, expected at least %d kB",
                      (unsigned long long)r.rlim_cur / 1024, LEAST_BYTES / 1024);
}
