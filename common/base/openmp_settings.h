/* openmp_settings.h -- how OpenMP threads wait for each other, and the stack of every thread. */
#pragma once
#include "common/base/status.h"

/* The stack of a thread that runs operations, whose blocks on it take up to 2.5 MB together. The
 * system's size would follow `ulimit -s`; for `unlimited` it is 2 MB. */
enum { THREAD_STACK_BYTES = 8 << 20 };

/* openmp_settings -- make idle OpenMP threads sleep instead of spin, with stacks of
 * THREAD_STACK_BYTES; call it first in main(), with main's argv.
 *
 * By default libgomp's threads spin for a while at the end of a parallel region. If another process
 * uses one of the cores, a spinning thread keeps the thread it waits for from running: a step of 1
 * s took 17 s. libgomp reads OMP_WAIT_POLICY and OMP_STACKSIZE before main(), so this function sets
 * them and executes the program again, once. If the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT,
 * threads wait in that way. If there is no /proc, nothing changes. */
void openmp_settings(char **argv);

/* stack_check -- FSDP_ENOMEM if the system limits the stack of the main thread, which runs
 * operations too, to less than these need. */
fsdp_status stack_check(void);
