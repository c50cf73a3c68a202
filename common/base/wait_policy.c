/* wait_policy.c -- see wait_policy.h. */
#include "common/base/wait_policy.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

void wait_policy_passive(char **argv)
{
    prctl(PR_SET_NAME, program_invocation_short_name); /* execv below named the process "exe" */
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
        execv("/proc/self/exe", argv); /* returns only if it failed */
}
