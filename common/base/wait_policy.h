/* wait_policy.h -- how OpenMP threads wait for each other. */
#pragma once

/* wait_policy_passive -- make idle OpenMP threads sleep instead of spin; call it first in main(),
 * with main's argv.
 *
 * By default libgomp's threads spin for a while at the end of a parallel region. If another process
 * uses one of the cores, a spinning thread keeps the thread it waits for from running: a step of 1
 * s took 17 s. libgomp reads OMP_WAIT_POLICY before main(), so this function sets OMP_WAIT_POLICY
 * and executes the program again, once. If the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT, or
 * if there is no /proc, it changes nothing. */
void wait_policy_passive(char **argv);
