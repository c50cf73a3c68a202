/* launched.c -- read the ranks of the job from the launcher's environment: from fsdp_run's own
 * variable first, then from the variables of other launchers. */
#include <stdlib.h>
#include "common/base/environment.h"
#include "common/comm/transport/transport_help.h"

bool comm_run_started(comm_run_start *start)
{
    const char *text = getenv(COMM_RUN_ENV);
    return text != NULL &&
           sscanf(text, "%d %d %d %d", &start->rank, &start->size, &start->job_fd,
                  &start->area_fd) == 4 &&
           start->rank >= 0 && start->rank < start->size;
}

/* The numbers that launchers announce. */
typedef enum fact { RANKS, RANK, LOCAL_RANKS, LOCAL_RANK, N_FACTS } fact;

/* What a launcher's variables mean to this program. */
typedef enum launcher_kind {
    OF_MPI,     /* they number the ranks of one MPI job, which this program may be able to join */
    OF_STEPS,   /* the same, but the tasks may be scripts, which pass the variables on */
    OF_STRANGER /* this program cannot join the job. The variables may be another program's */
} launcher_kind;

typedef struct launcher {
    const char *name;
    launcher_kind kind;
    const char *variables[N_FACTS]; /* NULL: there is none */
} launcher;

/* A launcher takes precedence over those below it. PMIx appears twice: most launchers that set
 * PMIX_RANK do not set PMIX_SIZE. SLURM sets the step's size only for tasks under srun, not for the
 * batch script. accelerate and deepspeed set torchrun's variables. */
/* clang-format off */
static const launcher LAUNCHERS[] = {
    {"mpiexec", OF_MPI, {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"}},
    {"Open MPI", OF_MPI, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"}},
    {"PMIx", OF_MPI, {"PMIX_SIZE", "PMIX_RANK", NULL, "PMIX_LOCAL_RANK"}},
    {"srun", OF_STEPS, {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", NULL, "SLURM_LOCALID"}},
    {"flux", OF_STEPS, {"FLUX_JOB_SIZE", "FLUX_TASK_RANK", NULL, "FLUX_TASK_LOCAL_ID"}},
    {"torchrun", OF_STRANGER, {"WORLD_SIZE", "RANK"}},
    {"horovodrun", OF_STRANGER, {"HOROVOD_SIZE", "HOROVOD_RANK"}},
    {"MVAPICH2", OF_STRANGER, {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"}},
    {"jsrun", OF_STRANGER, {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"}},
    {"PMIx", OF_STRANGER, {NULL, "PMIX_RANK"}},
    {"PALS", OF_STRANGER, {NULL, "PALS_RANKID"}},
    {"aprun", OF_STRANGER, {NULL, "ALPS_APP_PE"}},
    {"HPE MPT", OF_STRANGER, {NULL, "MPT_MPI_RANK"}},
};
/* clang-format on */
static const launcher *const END = LAUNCHERS + sizeof LAUNCHERS / sizeof *LAUNCHERS;

/* A launcher's value of f, which for numbers of ranks is at least 1, else at least 0; -1: none. */
static int value_of(const launcher *l, fact f)
{
    const char *text = l->variables[f] != NULL ? getenv(l->variables[f]) : NULL;
    int value, end;
    const bool is_good = text != NULL && sscanf(text, "%8d%n", &value, &end) == 1 && !text[end];
    return is_good && value >= (f == RANKS || f == LOCAL_RANKS) ? value : -1;
}

/* The value of f that fsdp_run has set, or else the first launcher that is no stranger; or else
 * `otherwise`. */
static int launched(fact f, int otherwise)
{
    comm_run_start run;
    if (comm_run_started(&run))
        return f == RANKS || f == LOCAL_RANKS ? run.size : run.rank;
    int value = -1;
    for (const launcher *l = LAUNCHERS; value < 0 && l->kind != OF_STRANGER; l++)
        value = value_of(l, f);
    return value >= 0 ? value : otherwise;
}

/* How many ranks the launcher's variables announce; at least so many if it sets only the rank; 0:
 * it has not started this process, or fsdp_run has. Both numbers must make sense, because scripts
 * set variables such as RANK for purposes of their own. */
static int announced(const launcher *l)
{
    comm_run_start run;
    int rank = value_of(l, RANK);
    int ranks = l->variables[RANKS] != NULL ? value_of(l, RANKS) : rank + 1;
    return rank >= 0 && rank < ranks && !comm_run_started(&run) ? ranks : 0;
}

int comm_launched_ranks(void)
{
    return launched(RANKS, 1);
}

int comm_launched_rank(void)
{
    return launched(RANK, 0);
}

int comm_launched_local_ranks(void)
{
    return launched(LOCAL_RANKS, comm_launched_ranks());
}

int comm_launched_local_rank(void)
{
    return launched(LOCAL_RANK, comm_launched_rank());
}

/* The launcher that announces other ranks than the `size` that are seen; NULL: there is none. */
static const launcher *contradicts(int size)
{
    const int ranks = comm_launched_ranks();
    for (const launcher *l = LAUNCHERS; l < END; l++)
        if (l->kind == OF_STRANGER ? size == 1 && ranks == 1 && announced(l) > 1
                                   : size != ranks && value_of(l, RANKS) == ranks)
            return l;
    return NULL;
}

fsdp_status comm_launched_check(int size, const char *seer)
{
    const launcher *by = contradicts(size);
    if (by == NULL)
        return FSDP_OK;
    const bool is_least = by->variables[RANKS] == NULL;
    const char *variable = by->variables[is_least ? RANK : RANKS], *value = getenv(variable);
    const int ranks = atoi(value) + is_least;
    char hint[200];
    snprintf(hint, sizeof hint,
             "start it with build/fsdp_run -n %d on one host, with MPICH's mpiexec or srun "
             "--mpi=pmi2 on several; unset %s if this process is to run alone",
             ranks, variable);
    return fsdp_error(FSDP_ECOMM, hint,
                      "comm_open: %s sets %s=%s: the launcher started %s%d ranks, %s sees %d",
                      by->name, variable, value, is_least ? "at least " : "", ranks, seer, size);
}

bool comm_launched_apart(void)
{
    const int ranks = comm_launched_ranks(), rank = comm_launched_rank();
    for (const launcher *l = LAUNCHERS; l < END; l++) {
        const bool is_mine = announced(l) == ranks && value_of(l, RANK) == rank;
        if (announced(l) > 1 &&
            (l->kind == OF_STRANGER ? ranks == 1 : l->kind == OF_STEPS && is_mine))
            return true;
    }
    return false;
}

const char *comm_launcher_variable(void)
{
    for (const launcher *l = LAUNCHERS; l->kind == OF_MPI; l++)
        if (getenv(l->variables[RANK]) != NULL)
            return l->variables[RANK];
    return NULL;
}

fsdp_status comm_schedule_seed(uint64_t *seed)
{
    int64_t number;
    *seed = 0;
    TRY(environment_read("FSDP_SCHEDULE", &number));
    if (number > 0)
        *seed = (uint64_t)comm_launched_rank() << 32 | (uint64_t)number;
    return FSDP_OK;
}
