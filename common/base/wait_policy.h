/* wait_policy.h -- how OpenMP threads wait for each other. */
#pragma once

/* wait_policy_passive -- make idle OpenMP threads sleep instead of spin; call it first in main().
 *
 * By default libgomp's threads spin for a while at the end of a parallel region. When another
 * process has one of the cores, a spinning thread keeps the one it waits for from running: a step
 * of 1 s took 17 s. libgomp reads OMP_WAIT_POLICY before main(), so the program sets it and starts
 * itself again, once. It respects OMP_WAIT_POLICY and GOMP_SPINCOUNT if the user has set one.
 * Without /proc it changes nothing. */
void wait_policy_passive(char **argv);
