/* pin.c -- which cores a rank's threads run on. See trainer.h. */
#include <sched.h>
#include <stdlib.h>
#include "trainer/trainer.h"

/* The n-th to (n+count-1)-th core of `all`. */
static cpu_set_t cores_from(const cpu_set_t *all, int n, int count)
{
    cpu_set_t mine;
    CPU_ZERO(&mine);
    for (int core = 0, seen = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, all))
            continue;
        if (seen >= n && seen < n + count)
            CPU_SET(core, &mine);
        seen++;
    }
    return mine;
}

void pin_to_cores(const comm *c, int n_threads)
{
    cpu_set_t all;
    const char *wish = getenv("FSDP_PIN");
    int ranks = comm_local_size(c);
    if (ranks < 2 || (wish && *wish == '0'))
        return;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) != n_threads * ranks)
        return;
    cpu_set_t mine = cores_from(&all, comm_local_rank(c) * n_threads, n_threads);
    (void)sched_setaffinity(0, sizeof mine, &mine); /* may fail: then the system decides */
}
