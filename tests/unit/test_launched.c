/* test_launched.c -- how many ranks there are, in all and on this host, according to the
 * environment variables of launchers. */
#include <stdlib.h>
#include <string.h>
#include "common/comm/transport/transport_help.h"
#include "tests/unit/unit_lib.h"

static void forget_launchers(void)
{
    char names[] =
        "FSDP_RUN PMI_SIZE PMI_RANK PMIX_SIZE PMIX_RANK PMIX_LOCAL_RANK MPI_LOCALNRANKS "
        "MPI_LOCALRANKID OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE "
        "OMPI_COMM_WORLD_LOCAL_RANK SLURM_LOCALID SLURM_STEP_NUM_TASKS SLURM_PROCID "
        "OMPI_COMM_WORLD_RANK FLUX_JOB_SIZE FLUX_TASK_RANK FLUX_TASK_LOCAL_ID WORLD_SIZE "
        "RANK LOCAL_RANK HOROVOD_SIZE HOROVOD_RANK MV2_COMM_WORLD_SIZE "
        "MV2_COMM_WORLD_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_RANK PALS_RANKID "
        "ALPS_APP_PE MPT_MPI_RANK FSDP_SCHEDULE";
    for (char *rest = names, *name; (name = strsep(&rest, " ")) != NULL;)
        unsetenv(name);
}

/* What variables of the environment (separated by commas) say. In each part of the table a row
 * takes precedence over the rows above it, whose variables are set too. */
static const struct {
    const char *variables;
    int ranks, rank, local_ranks, local_rank;
} LAUNCHES[] = {
    {"", 1, 0, 1, 0},
    {"PMI_SIZE=8,PMI_RANK=2", 8, 2, 8, 2},
    {"MPI_LOCALNRANKS=x", 8, 2, 8, 2},
    {"OMPI_COMM_WORLD_LOCAL_SIZE=2", 8, 2, 2, 2},
    {"MPI_LOCALNRANKS=4", 8, 2, 4, 2},
    {"FSDP_RUN=3 3 5 6", 8, 2, 4, 2}, /* no such rank */
    {"FSDP_RUN=1 3 5 6", 3, 1, 3, 1},
    {"", 1, 0, 1, 0},
    {"SLURM_STEP_NUM_TASKS=6,SLURM_PROCID=5", 6, 5, 6, 5},
    /* ranks 0 and 2 on one host, ranks 1 and 3 on the other */
    {"", 1, 0, 1, 0},
    {"PMI_SIZE=4,PMI_RANK=2", 4, 2, 4, 2},
    {"SLURM_LOCALID=0", 4, 2, 4, 0},
    {"PMIX_LOCAL_RANK=1", 4, 2, 4, 1},
    {"OMPI_COMM_WORLD_LOCAL_RANK=0", 4, 2, 4, 0},
    {"MPI_LOCALRANKID=1", 4, 2, 4, 1},
    {"FSDP_RUN=3 4 5 6", 4, 3, 4, 3},
    {"", 1, 0, 1, 0},
    {"FLUX_JOB_SIZE=4,FLUX_TASK_RANK=3,FLUX_TASK_LOCAL_ID=1", 4, 3, 4, 1},
    {"PMI_SIZE=4,PMI_RANK=2", 4, 2, 4, 1},
    /* these variables may be another program's */
    {"", 1, 0, 1, 0},
    {"WORLD_SIZE=4,RANK=2,LOCAL_RANK=1", 1, 0, 1, 0},
};

/* Set the variables of the list; forget all others first if it is empty. */
static void set_variables(const char *variables)
{
    char list[160], *rest = list;
    snprintf(list, sizeof list, "%s", variables);
    if (*list == '\0')
        forget_launchers();
    for (char *name; *list != '\0' && (name = strsep(&rest, ",")) != NULL;) {
        char *value = strchr(name, '=');
        *value = '\0';
        setenv(name, value + 1, 1);
    }
}

TEST(test_launchers)
{
    for (size_t i = 0; i < sizeof LAUNCHES / sizeof *LAUNCHES; i++) {
        set_variables(LAUNCHES[i].variables);
        print_message("row %zu: %s\n", i, LAUNCHES[i].variables);
        assert_int_equal(comm_launched_ranks(), LAUNCHES[i].ranks);
        assert_int_equal(comm_launched_rank(), LAUNCHES[i].rank);
        assert_int_equal(comm_launched_local_ranks(), LAUNCHES[i].local_ranks);
        assert_int_equal(comm_launched_local_rank(), LAUNCHES[i].local_rank);
    }
}

/* Environments, and how many ranks a process in them sees. refused: what the error says; NULL: the
 * process may run. apart: it may run alone if it was told to. */
static const struct {
    const char *variables;
    int seen;
    const char *refused;
    bool apart;
} CHECKS[] = {
    {"PMI_SIZE=2,PMI_RANK=1", 1, "mpiexec sets PMI_SIZE=2: the launcher started 2 ranks, it sees 1",
     false},
    {"PMI_SIZE=2,PMI_RANK=1", 2, NULL, false},
    {"PMI_SIZE=1,PMI_RANK=0", 1, NULL, false},
    {"PMI_RANK=0", 1, NULL, false},
    {"OMPI_COMM_WORLD_SIZE=3,OMPI_COMM_WORLD_RANK=1,PMIX_RANK=1", 1,
     "Open MPI sets OMPI_COMM_WORLD_SIZE=3: the launcher started 3 ranks", false},
    {"PMIX_RANK=1", 1, "PMIx sets PMIX_RANK=1: the launcher started at least 2 ranks", true},
    {"PMIX_RANK=0", 1, NULL, false},
    {"SLURM_STEP_NUM_TASKS=2,SLURM_PROCID=1", 1, "srun sets SLURM_STEP_NUM_TASKS=2", true},
    {"SLURM_STEP_NUM_TASKS=2,SLURM_PROCID=1,PMIX_RANK=1", 1, "srun sets SLURM_STEP_NUM_TASKS=2",
     true},
    {"SLURM_STEP_NUM_TASKS=2,SLURM_PROCID=1,PMI_SIZE=2,PMI_RANK=1", 2, NULL, true},
    {"SLURM_STEP_NUM_TASKS=2,SLURM_PROCID=1,PMI_SIZE=8,PMI_RANK=1", 8, NULL, false},
    {"SLURM_STEP_NUM_TASKS=2,SLURM_PROCID=0,PMI_SIZE=2,PMI_RANK=1", 2, NULL, false},
    {"SLURM_STEP_NUM_TASKS=2,SLURM_PROCID=1,PMI_SIZE=1,PMI_RANK=0", 1, NULL, false},
    {"SLURM_STEP_NUM_TASKS=1,SLURM_PROCID=0", 1, NULL, false},
    {"SLURM_NTASKS=4,SLURM_PROCID=0", 1, NULL, false}, /* a batch script */
    {"FLUX_JOB_SIZE=2,FLUX_TASK_RANK=0", 1, "flux sets FLUX_JOB_SIZE=2", true},
    {"WORLD_SIZE=2,RANK=0", 1, "torchrun sets WORLD_SIZE=2: the launcher started 2 ranks", true},
    {"WORLD_SIZE=2,RANK=0,PMI_SIZE=1,PMI_RANK=0", 1, "torchrun sets WORLD_SIZE=2", true},
    {"WORLD_SIZE=8,RANK=3,SLURM_STEP_NUM_TASKS=1,SLURM_PROCID=0", 1, "torchrun sets WORLD_SIZE=8",
     true},
    {"WORLD_SIZE=2,RANK=0,PMI_SIZE=3,PMI_RANK=0", 3, NULL, false}, /* mpiexec, in a task */
    {"WORLD_SIZE=2,RANK=0,FSDP_RUN=0 1 5 6", 1, NULL, false},
    {"WORLD_SIZE=1,RANK=0", 1, NULL, false},
    {"WORLD_SIZE=2", 1, NULL, false},
    {"RANK=3", 1, NULL, false},
    {"WORLD_SIZE=,RANK=", 1, NULL, false},
    {"WORLD_SIZE=2,RANK=2", 1, NULL, false}, /* no such rank */
    {"WORLD_SIZE=2x,RANK=0", 1, NULL, false},
    {"WORLD_SIZE=world,RANK=admiral", 1, NULL, false},
    {"HOROVOD_SIZE=2,HOROVOD_RANK=0", 1, "horovodrun sets HOROVOD_SIZE=2", true},
    {"MV2_COMM_WORLD_SIZE=2,MV2_COMM_WORLD_RANK=1", 1, "MVAPICH2 sets MV2_COMM_WORLD_SIZE=2", true},
    {"JSM_NAMESPACE_SIZE=2,JSM_NAMESPACE_RANK=1", 1, "jsrun sets JSM_NAMESPACE_SIZE=2", true},
    {"PALS_RANKID=2", 1, "PALS sets PALS_RANKID=2: the launcher started at least 3 ranks", true},
    {"ALPS_APP_PE=1", 1, "aprun sets ALPS_APP_PE=1", true},
    {"MPT_MPI_RANK=1", 1, "HPE MPT sets MPT_MPI_RANK=1", true},
};

TEST(test_launched_check)
{
    for (size_t i = 0; i < sizeof CHECKS / sizeof *CHECKS; i++) {
        forget_launchers();
        set_variables(CHECKS[i].variables);
        print_message("row %zu: %s\n", i, CHECKS[i].variables);
        const fsdp_status status = comm_launched_check(CHECKS[i].seen, "it");
        assert_int_equal(status, CHECKS[i].refused != NULL ? FSDP_ECOMM : FSDP_OK);
        if (CHECKS[i].refused != NULL)
            assert_says(CHECKS[i].refused);
        assert_int_equal(comm_launched_apart(), CHECKS[i].apart);
    }
}

/* Each rank has its own seed. There is none if FSDP_SCHEDULE is 0 or not set. */
TEST(test_schedule_seed)
{
    forget_launchers();
    uint64_t seed = 7, other;
    OK(comm_schedule_seed(&seed));
    assert_true(seed == 0);
    setenv("FSDP_SCHEDULE", "0", 1);
    setenv("PMI_SIZE", "2", 1);
    setenv("PMI_RANK", "1", 1);
    OK(comm_schedule_seed(&seed));
    assert_true(seed == 0);
    setenv("FSDP_SCHEDULE", "12", 1);
    OK(comm_schedule_seed(&seed));
    setenv("PMI_RANK", "0", 1);
    OK(comm_schedule_seed(&other));
    assert_true(other != 0 && other != seed);
    const char *const wrong[] = {"x", "1x", "-1", "4294967296"};
    for (int i = 0; i < 4; i++) {
        setenv("FSDP_SCHEDULE", wrong[i], 1);
        assert_int_equal(comm_schedule_seed(&seed), FSDP_EINVAL);
        assert_says(wrong[i]);
    }
}

int main(void)
{
    return tests_run(NULL, NULL);
}
