/* pin.c -- choose the number of threads of a rank and the cores they run on; see trainer.h. */
#include <omp.h>
#include <sched.h>
#include "common/base/environment.h"
#include "trainer/trainer.h"

int pin_threads(const comm *world)
{
    cpu_set_t all, mine;
    int ranks = comm_local_size(world), n_threads = (int)environment_number("OMP_NUM_THREADS");
    if (n_threads < 1)
        n_threads = omp_get_num_procs() >= ranks ? omp_get_num_procs() / ranks : 1;
    if (ranks < 2 || environment_number("FSDP_PIN") == 0 ||
        sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) != n_threads * ranks)
        return n_threads;
    CPU_ZERO(&mine);
    for (int core = 0, seen = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all) && seen++ / n_threads == comm_local_rank(world))
            CPU_SET(core, &mine);
    (void)sched_setaffinity(0, sizeof mine, &mine); /* if it fails, the system decides */
    return n_threads;
}
