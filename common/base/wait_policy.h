/* wait_policy.h -- how OpenMP threads wait for each other. */
#pragma once

/* wait_policy_passive -- first call of main(): idle threads sleep, they do not spin.
 *
 * By default libgomp's threads spin for a while at the end of a parallel region. When another
 * process has one of the cores, spinning keeps the thread that is waited for from running: a step
 * of 1 s took 17 s. libgomp reads OMP_WAIT_POLICY before main(), so the program starts itself
 * again, once, with it set. The user's own OMP_WAIT_POLICY or GOMP_SPINCOUNT is respected; without
 * /proc nothing happens but that threads spin. */
void wait_policy_passive(char **argv);
