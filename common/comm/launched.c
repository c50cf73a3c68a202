/* launched.c -- what a launcher's environment says of the job: fsdp_run's own variable first, then
 * those of MPI's launchers and of SLURM. */
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

/* The first of these variables (the list ends with NULL) that holds a number, 0 or more; else
 * `otherwise`. */
static int env_first(const char *const *names, int otherwise)
{
    for (; *names != NULL; names++) {
        const char *text = getenv(*names);
        char *end = NULL;
        long value = text != NULL ? strtol(text, &end, 10) : 0;
        if (end != text && *end == '\0' && value >= 0 && value < 1 << 24)
            return (int)value;
    }
    return otherwise;
}

int comm_launched_ranks(void)
{
    /* SLURM sets the step's size for tasks under srun only, not for the batch script. */
    static const char *const names[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE",
                                        "SLURM_STEP_NUM_TASKS", NULL};
    comm_run_start run;
    if (comm_run_started(&run))
        return run.size;
    int size = env_first(names, 1);
    return size > 0 ? size : 1;
}

int comm_launched_rank(void)
{
    static const char *const names[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                        "SLURM_PROCID", NULL};
    comm_run_start run;
    if (comm_run_started(&run))
        return run.rank;
    return env_first(names, 0);
}

int comm_launched_local_rank(void)
{
    static const char *const names[] = {"MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "PMIX_LOCAL_RANK", "SLURM_LOCALID", NULL};
    comm_run_start run;
    if (comm_run_started(&run))
        return run.rank;
    return env_first(names, comm_launched_rank());
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

int comm_launched_local_ranks(void)
{
    static const char *const names[] = {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL};
    comm_run_start run;
    int here = 0;
    if (!comm_run_started(&run))
        here = env_first(names, 0);
    return here > 0 ? here : comm_launched_ranks();
}

/* One rank under a launcher is a rank of MPI too (it may be watched, and aborts properly). */
bool comm_launcher_present(void)
{
    return comm_launched_ranks() > 1 || getenv("PMI_RANK") != NULL || getenv("PMIX_RANK") != NULL ||
           getenv("OMPI_COMM_WORLD_RANK") != NULL;
}
