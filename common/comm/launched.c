/* launched.c -- read the ranks of the job from the launcher's environment: from fsdp_run's own
 * variable first, then from the variables of MPI launchers and SLURM. */
#include <stdlib.h>
#include "common/comm/transport_help.h"

bool comm_run_started(comm_run_start *start)
{
    const char *text = getenv(COMM_RUN_ENV);
    return text != NULL &&
           sscanf(text, "%d %d %d %d", &start->rank, &start->size, &start->job_fd,
                  &start->area_fd) == 4 &&
           start->rank >= 0 && start->rank < start->size;
}

/* The numbers that launchers announce. */
typedef enum fact { RANKS, RANK, LOCAL_RANKS, LOCAL_RANK } fact;

/* The variables of MPICH, Open MPI, PMIx and SLURM; NULL: there is none. SLURM sets the step's size
 * only for tasks under srun, not for the batch script. */
static const char *const VARIABLES[][4] = {
    [RANKS] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"},
    [RANK] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"},
    [LOCAL_RANKS] = {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    [LOCAL_RANK] = {"MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK",
                    "SLURM_LOCALID"}};

/* fsdp_run's value of f; else the first of f's variables that is a number >= `least`; else
 * `otherwise`. */
static int launched(fact f, int least, int otherwise)
{
    comm_run_start run;
    if (comm_run_started(&run))
        return f == RANKS || f == LOCAL_RANKS ? run.size : run.rank;
    for (int i = 0; i < 4; i++) {
        const char *text = VARIABLES[f][i] != NULL ? getenv(VARIABLES[f][i]) : NULL;
        char *end = NULL;
        long value = text != NULL ? strtol(text, &end, 10) : 0;
        if (end != text && *end == '\0' && value >= least && value < 1 << 24)
            return (int)value;
    }
    return otherwise;
}

int comm_launched_ranks(void)
{
    return launched(RANKS, 1, 1);
}

int comm_launched_rank(void)
{
    return launched(RANK, 0, 0);
}

int comm_launched_local_ranks(void)
{
    return launched(LOCAL_RANKS, 1, comm_launched_ranks());
}

int comm_launched_local_rank(void)
{
    return launched(LOCAL_RANK, 0, comm_launched_rank());
}

fsdp_status comm_schedule_seed(uint64_t *seed)
{
    const char *text = getenv("FSDP_SCHEDULE");
    *seed = 0;
    if (text == NULL || *text == '\0')
        return FSDP_OK;
    char *end;
    long long number = strtoll(text, &end, 10);
    if (*end != '\0' || number < 0 || number > UINT32_MAX)
        return fsdp_error(FSDP_EINVAL, "unset FSDP_SCHEDULE, or set it to a number such as 1",
                          "FSDP_SCHEDULE: got '%.40s', expected a number from 0 to %u", text,
                          UINT32_MAX);
    if (number > 0)
        *seed = (uint64_t)comm_launched_rank() << 32 | (uint64_t)number;
    return FSDP_OK;
}

/* Also a single rank under a launcher uses MPI: the launcher may watch it, and it can call
 * MPI_Abort. */
bool comm_launcher_present(void)
{
    return comm_launched_ranks() > 1 || getenv("PMI_RANK") != NULL || getenv("PMIX_RANK") != NULL ||
           getenv("OMPI_COMM_WORLD_RANK") != NULL;
}
