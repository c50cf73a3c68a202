/* comm_launched.c -- how many ranks a launcher has put on this host, by its environment. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "common/comm/comm.h"
#include "common/comm/shm_boot.h"

enum { MOST = 1 << 24 };

/* A number from 1 to MOST at *text, which moves behind it. */
static bool take_number(const char **text, long *value)
{
    char *end = NULL;
    *value = isdigit((unsigned char)**text) ? strtol(*text, &end, 10) : 0;
    if (*value < 1 || *value > MOST)
        return false;
    *text = end;
    return true;
}

/* One node's tasks by SLURM's list of all nodes': "4(x2),3" is 4, 4, 3 (srun(1), output environment
 * variables). 0 when it is no such list, has no such node, or holds other than n_tasks in all, so
 * that it is of another step or of the whole job. */
static int slurm_tasks(const char *list, int node, int n_tasks)
{
    long here = 0, all = 0, first = 0, tasks;
    do {
        long nodes = 1;
        if (!take_number(&list, &tasks))
            return 0;
        if (strncmp(list, "(x", 2) == 0) {
            list += 2;
            if (!take_number(&list, &nodes) || *list++ != ')')
                return 0;
        }
        if (node >= first && node < first + nodes)
            here = tasks;
        first += nodes;
        all += tasks * nodes;
    } while (*list++ == ',');
    return list[-1] == '\0' && all == n_tasks ? (int)here : 0;
}

static int slurm_local_ranks(int n_ranks)
{
    static const char *const names[] = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};
    const char *node = getenv("SLURM_NODEID");
    if (node == NULL || !isdigit((unsigned char)*node))
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *list = getenv(names[i]);
        int here = list != NULL ? slurm_tasks(list, atoi(node), n_ranks) : 0;
        if (here > 0)
            return here;
    }
    return 0;
}

int comm_launched_local_ranks(void)
{
    static const char *const names[] = {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"};
    int rank, size;
    if (comm_shm_launched(&rank, &size))
        return size;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL && atoi(text) > 0)
            return atoi(text);
    }
    size = comm_launched_ranks();
    int here = slurm_local_ranks(size);
    return here > 0 ? here : size;
}
