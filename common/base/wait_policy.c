/* wait_policy.c -- see wait_policy.h. */
#include "common/base/wait_policy.h"
#include <stdlib.h>
#include <unistd.h>

void wait_policy_passive(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
        execv("/proc/self/exe", argv); /* returns only when it could not */
}
